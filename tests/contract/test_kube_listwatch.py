"""Watching over real sockets: what a handler learns, also of what happened while the server was away."""

import logging
import threading
import time

import pytest

from dradriver.clock import Clock
from dradriver.kube import (
    Client,
    Connection,
    ListWatch,
)
from kubeserver import Answer, Request, Server, Wire, cut_at_once, in_turn, page, refusing, status, thing
from publishing import Hurried
from waiting import PATIENCE, eventually
from watching import PATH, Seen, bookmark, events, listing, open_end, watching


def test_what_there_is_and_what_happens() -> None:
    changes = (("ADDED", thing("c", 12)), ("MODIFIED", thing("a", 13)), ("DELETED", thing("b", 14)))
    query = {"fieldSelector": "spec.nodeName=n1,spec.driver=gpu.dradriver.io"}
    with watching(listing(page(thing("a", 1), thing("b", 2)), watch=events(*changes)), query=query) as it:
        eventually(lambda: len(it.seen.changes) == 3)
        assert it.watch.synced.is_set()
        assert it.seen.lists == [["a", "b"]]
        assert it.seen.changes == [("ADDED", "c"), ("MODIFIED", "a"), ("DELETED", "b")]
        assert sorted(it.seen.all) == ["a", "c"]
        listed, watched = it.server.requests
        assert listed.query == {**query, "limit": "500"}
        timeout = int(watched.query["timeoutSeconds"])
        assert 240 <= timeout <= 360
        assert watched.query == {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": "10",
            "timeoutSeconds": str(timeout),
        }
        assert it.watch.trouble == ""


def test_a_long_list_comes_in_pages() -> None:
    pages = page(thing("a", 1), rest="p2"), page(thing("b", 2), rest="p3"), page(thing("c", 3), version=10)
    with watching(listing(*pages, watch=open_end)) as it:
        eventually(it.server.watches)
        assert it.seen.lists == [["a", "b", "c"]]
        assert [request.query.get("continue") for request in it.server.lists()] == [None, "p2", "p3"]


def test_an_empty_list_has_no_items() -> None:
    empty = {"metadata": {"resourceVersion": "3"}, "items": None}
    with watching(listing(empty, watch=open_end)) as it:
        eventually(it.watch.synced.is_set)
        assert it.seen.lists == [[]]


def test_a_list_that_expires_between_pages_begins_anew() -> None:
    lists = in_turn(
        lambda request, wire: wire.send(page(thing("old", 1), rest="p2")),
        refusing(410, "Expired"),
        lambda request, wire: wire.send(page(thing("a", 1))),
    )
    with watching(lambda request, wire: (open_end if request.watch else lists)(request, wire)) as it:
        eventually(lambda: it.seen.lists)
        assert it.seen.lists == [["a"]]
        assert [request.query.get("continue") for request in it.server.lists()] == [None, "p2", None]


def test_a_watch_that_ends_goes_on_where_it_was() -> None:
    watches = in_turn(
        events(("ADDED", thing("b", 12)), bookmark(40), then=Wire.end),
        events(("ADDED", thing("c", 41)), then=Wire.cut),
        events(("ADDED", thing("d", 50))),
    )
    with watching(listing(page(thing("a", 1)), watch=watches)) as it:
        eventually(lambda: "d" in it.seen.all)
        assert [request.query["resourceVersion"] for request in it.server.watches()] == ["10", "40", "41"]
        assert len(it.server.lists()) == 1
        assert sorted(it.seen.all) == ["a", "b", "c", "d"]


def expired_event(request: Request, wire: Wire) -> None:
    wire.line("ERROR", status(410, "Expired", "too old resource version: 10 (20)"))
    wire.end()


def expired_status(request: Request, wire: Wire) -> None:
    wire.refuse(410, "Expired", "too old resource version: 10 (20)")


@pytest.mark.parametrize("expired", [expired_event, expired_status])
def test_where_a_version_is_too_old_all_is_listed_anew(
    expired: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    lists = in_turn(
        lambda request, wire: wire.send(page(thing("a", 1))),
        lambda request, wire: wire.send(page(thing("b", 2), version=20)),
    )
    watches = in_turn(expired, open_end)
    with watching(lambda request, wire: (watches if request.watch else lists)(request, wire)) as it:
        eventually(lambda: len(it.server.watches()) == 2)
        assert it.seen.lists == [["a"], ["b"]]
        assert [request.query["resourceVersion"] for request in it.server.watches()] == ["10", "20"]
    assert caplog.text == "", "that is nothing unusual"


def test_an_outage_is_told_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dradriver")
    clock = Hurried()
    before = clock.now()
    watches = events(bookmark(11))
    with watching(listing(page(thing("a", 1)), watch=watches), clock=clock) as it:
        eventually(it.server.watches)
        good = it.server.answer
        clock.run_at(1200)
        it.server.answer = refusing(503, "ServiceUnavailable")
        it.server.hang_up()
        eventually(lambda: it.watch.trouble)
        it.wait(3600)
        clock.run_at(30)
        it.server.answer = good
        began = clock.now()
        eventually(lambda: not it.watch.trouble)
        after = clock.now()
        assert after - began < 200
    lost, found = [record.getMessage() for record in caplog.records]
    assert lost == "slices: cannot be watched, and is tried again until it can: 503 ServiceUnavailable: no"
    assert found.startswith("slices: is watched again after ")
    assert 3600 <= float(found.split()[-2]) <= after - before


def test_after_an_outage_changes_are_not_missed() -> None:
    version, names = 10, ["a"]

    def answer(request: Request, wire: Wire) -> None:
        if not request.watch:
            wire.send(page(*(thing(name, 1) for name in names), version=version))
        elif request.query["resourceVersion"] != str(version):
            wire.refuse(410, "Expired")
        else:
            open_end(request, wire)

    clock = Clock(speed=60)
    with watching(answer, clock=clock) as it:
        eventually(it.server.watches)
        it.server.answer = cut_at_once
        it.server.hang_up()
        it.wait(120)
        version, names = 999, ["b"]
        it.server.answer = answer
        eventually(lambda: "b" in it.seen.all)
        assert it.seen.lists == [["a"], ["b"]]


def stuck_in_headers(request: Request, wire: Wire) -> None:
    wire.raw(b"HTTP/1.1 200 OK\r\nTransfer-")
    wire.silence()


def stuck_in_chunk(request: Request, wire: Wire) -> None:
    wire.begin()
    wire.raw(b"ff\r\nabc")
    wire.silence()


def stuck_in_size(request: Request, wire: Wire) -> None:
    wire.begin()
    wire.raw(b"f")
    wire.silence()


@pytest.mark.parametrize("stuck", [open_end, stuck_in_headers, stuck_in_chunk, stuck_in_size])
@pytest.mark.parametrize("watch", [True, False])
def test_a_stop_is_obeyed_while_nothing_comes(stuck: Answer, watch: bool) -> None:
    with watching(listing(page(thing("a", 1)), watch=stuck) if watch else stuck) as it:
        eventually(lambda: it.server.watches() if watch else it.server.requests)
        time.sleep(0.05)
        took = min(it.end(), 5.0)
        assert took < 2.0, "0.3 s where the machine has time"


def test_a_stop_is_obeyed_in_a_pause() -> None:
    clock = Clock(speed=0.1)
    with watching(refusing(500, "InternalError"), clock=clock) as it:
        eventually(lambda: it.server.requests)
        assert it.end() < 2.0


def test_a_handler_that_fails_is_told_once_and_given_all_again(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    broken = True

    def fail(what: str) -> None:
        if broken and what == "b":
            raise LookupError("b is\nunknown")

    seen.fail = fail
    clock = Clock(speed=300)
    with watching(
        listing(page(thing("a", 1)), watch=events(("ADDED", thing("b", 50)))), clock=clock, seen=seen
    ) as it:
        eventually(lambda: it.watch.trouble)
        it.wait(600)
        asked = len(it.server.requests)
        assert asked <= 2 * 100
        assert len(seen.lists) > 3
        broken = False
        eventually(lambda: "b" in seen.all)
        eventually(lambda: not it.watch.trouble)
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert len(tracebacks) == 1
    assert "could not be handled" in tracebacks[0].getMessage()


def test_an_object_without_a_version_is_passed_on() -> None:
    bare = {"metadata": {"name": "b"}}
    watches = in_turn(events(("ADDED", bare), then=Wire.end), open_end)
    with watching(listing(page(thing("a", 1)), watch=watches)) as it:
        eventually(lambda: len(it.server.watches()) == 2)
        assert sorted(it.seen.all) == ["a", "b"]
        assert [request.query["resourceVersion"] for request in it.server.watches()] == ["10", "10"]


def test_an_event_may_come_in_pieces_and_many_in_one() -> None:
    def watch(request: Request, wire: Wire) -> None:
        line = b'{"type":"ADDED","object":{"metadata":{"name":"big","resourceVersion":"11"},"x":"%b"}}\n' % (
            b"x" * 300_000
        )
        for start in range(0, len(line), 10_000):
            wire.chunk(line[start : start + 10_000])
        many = b"".join(
            b'{"type":"ADDED","object":{"metadata":{"name":"n%d","resourceVersion":"%d"}}}\n\r\n' % (n, n)
            for n in range(100, 200)
        )
        wire.chunk(many)
        wire.silence()

    with watching(listing(page(), watch=watch)) as it:
        eventually(lambda: len(it.seen.all) == 101)
        assert len(it.seen.all["big"]["x"]) == 300_000


def test_many_watch_by_one_client() -> None:
    with Server(listing(page(thing("a", 1)), watch=events(("ADDED", thing("b", 50))))) as server:
        client = Client(Connection(server.url))
        stop = threading.Event()
        all_seen = [Seen() for _ in range(8)]
        threads = [
            threading.Thread(target=ListWatch(client, f"{PATH}{n}", {}, seen).run, args=(stop,))
            for n, seen in enumerate(all_seen)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: all("b" in seen.all for seen in all_seen))
        assert client.get(PATH)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        client.close()
