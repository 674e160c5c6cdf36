"""Lists and watches that go wrong: what follows is a good one, and never a storm of requests."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from dradriver.clock import Clock
from dradriver.kube import listwatch as listwatch_module
from kubeserver import (
    Answer,
    Request,
    Wire,
    allow_time,
    cut_at_once,
    descriptors,
    in_turn,
    page,
    refusing,
    silent,
    status,
    thing,
)
from publishing import Hurried
from waiting import eventually
from watching import PATH, bookmark, events, listing, open_end, watching


def expired_event(request: Request, wire: Wire) -> None:
    wire.line("ERROR", status(410, "Expired", "too old resource version: 10 (20)"))
    wire.end()


def expired_status(request: Request, wire: Wire) -> None:
    wire.refuse(410, "Expired", "too old resource version: 10 (20)")


def error_event(request: Request, wire: Wire) -> None:
    wire.line("ERROR", status(500, "InternalError", "etcd is away"))
    wire.end()


def odd_error_event(request: Request, wire: Wire) -> None:
    wire.line("ERROR", {"what": "ever"})


def truncated_line(request: Request, wire: Wire) -> None:
    wire.chunk(b'{"type":"ADDED","object":{"metadata":{"name":"x","resour')
    wire.end()


def cut_line(request: Request, wire: Wire) -> None:
    wire.chunk(b'{"type":"ADDED","object":{"metadata":{"name":"x","resour')
    wire.cut()


def garbage_line(request: Request, wire: Wire) -> None:
    wire.chunk(b"\xff\xfe garbage \x00\n" * 3)
    wire.silence()


def no_event(request: Request, wire: Wire) -> None:
    wire.chunk(b"[1]\n")
    wire.silence()


def unknown_event(request: Request, wire: Wire) -> None:
    wire.line("EXPLODED", thing("x", 11))
    wire.silence()


def event_without_object(request: Request, wire: Wire) -> None:
    wire.line("ADDED", None)
    wire.silence()


def event_without_metadata(request: Request, wire: Wire) -> None:
    wire.line("ADDED", {"spec": {}})
    wire.silence()


def closed_at_once(request: Request, wire: Wire) -> None:
    wire.end()


def broken_chunk(request: Request, wire: Wire) -> None:
    wire.begin()
    wire.raw(b"zz\r\n")
    wire.silence()


BAD_WATCHES = [
    error_event, odd_error_event, truncated_line, cut_line, garbage_line, no_event, unknown_event, event_without_object,
    event_without_metadata, closed_at_once, cut_at_once, broken_chunk, expired_event, expired_status,
    refusing(500, "InternalError"), refusing(403, "Forbidden"), refusing(401, "Unauthorized"),
    refusing(429, "TooManyRequests"), refusing(404, "NotFound"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_WATCHES)
def test_a_bad_watch_is_followed_by_a_good_one(bad: Answer) -> None:
    with watching(listing(page(thing("a", 1)), watch=in_turn(bad, events(("ADDED", thing("b", 50)))))) as it:
        eventually(lambda: "b" in it.seen.all)
        assert sorted(it.seen.all) == ["a", "b"]


BAD_LISTS: list[Answer] = [
    refusing(500, "InternalError"), refusing(401, "Unauthorized"), refusing(410, "Expired"), cut_at_once,
    lambda request, wire: wire.send(b"no JSON"),
    lambda request, wire: wire.send([]),
    lambda request, wire: wire.send({"metadata": {}, "items": []}),
    lambda request, wire: wire.send(page("no object")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "synced"),
    [([listing(page(thing("a", 1)), watch=bad) for bad in BAD_WATCHES], True), (BAD_LISTS, False)],
    ids=["watches", "lists"],
)
def test_a_server_that_is_always_bad_is_asked_rarely(
    bad: list[Answer], synced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An hour in some seconds, of each kind at once. A loop without back-off would send a request a millisecond."""
    caplog.set_level(logging.INFO, "dradriver")
    clock = Clock(speed=900)
    with ExitStack() as stack:
        all_of_them = [stack.enter_context(watching(answer, clock=clock)) for answer in bad]
        clock.wait(threading.Event(), 3600)
        for it in all_of_them:
            it.end()
            assert it.watch.synced.is_set() == synced
            assert it.watch.trouble
            # 30 s with a jitter of a half: 240 an hour at most, and some at the start; and as many lists at the worst.
            assert 10 <= len(it.server.watches() if synced else it.server.lists()) <= 250
            assert len(it.server.lists()) <= 250
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(bad), "each says it once"
    for text in said:
        assert text.startswith("slices: cannot be watched, and is tried again until it can: ")


def test_a_server_that_fails_is_asked_a_few_times_in_its_first_seconds() -> None:
    """Where informers without a back-off sent 432 requests in 1.5 s."""
    with watching(refusing(500, "InternalError")) as it:
        time.sleep(1.5)
        assert 2 <= len(it.server.requests) <= 6


def test_a_server_that_brings_something_and_ends_is_no_hot_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_time(monkeypatch)
    versions = iter(range(11, 10**9))

    def watch(request: Request, wire: Wire) -> None:
        wire.line("MODIFIED", thing("a", next(versions)))
        wire.end()

    clock = Clock(speed=600)
    with watching(listing(page(thing("a", 1)), watch=watch), clock=clock) as it:
        it.wait(1800)
        it.end()
        assert len(it.server.lists()) == 1
        assert len(it.server.watches()) <= 800
        assert 0 <= len(it.server.watches()) - len(it.seen.changes) <= 1, (
            "the last one may have been cut by the stop"
        )


def test_a_list_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listwatch_module, "_MAX_PAGES", 5)
    with watching(lambda request, wire: wire.send(page(thing("a", 1), rest="more"))) as it:
        eventually(lambda: it.watch.trouble)
        assert "no end" in it.watch.trouble
        assert it.seen.lists == []


def test_a_server_may_ask_for_a_pause() -> None:
    def busy(request: Request, wire: Wire) -> None:
        wire.refuse(429, "TooManyRequests", headers={"Retry-After": "40"})

    clock = Clock(speed=200)
    with watching(busy, clock=clock) as it:
        it.wait(600)
        it.end()
        assert 12 <= len(it.server.requests) <= 21, "half a minute is obeyed, and no more"


def test_a_silent_server_is_left_when_the_watch_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-open connection: nothing comes any more, and no end."""
    allow_time(monkeypatch)
    clock = Clock(speed=600)
    with watching(listing(page(thing("a", 1)), watch=open_end), clock=clock) as it:
        it.wait(1800)
        it.end()
        # Each one lasts four to six minutes and a half.
        assert 4 <= len(it.server.watches()) <= 9
        assert len(it.server.lists()) == 1
        assert it.watch.trouble == ""


def test_a_watch_that_is_not_answered_is_left_sooner() -> None:
    clock = Clock(speed=100)
    with watching(listing(page(thing("a", 1)), watch=in_turn(silent, open_end)), clock=clock) as it:
        began = clock.now()
        eventually(lambda: len(it.server.watches()) == 2)
        assert clock.now() - began < 200


def test_a_line_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dradriver.kube.transport.MAX_LINE_BYTES", 1 << 20)

    def watch(request: Request, wire: Wire) -> None:
        while not wire.stopping.is_set():
            wire.chunk(b"x" * 60_000)

    with watching(listing(page(), watch=watch)) as it:
        eventually(lambda: it.watch.trouble)
        assert "too long" in it.watch.trouble


def test_no_descriptor_is_left_over_by_reconnects() -> None:
    watches = in_turn(*[BAD_WATCHES[n % len(BAD_WATCHES)] for n in range(210)], open_end)
    clock = Clock(speed=2000)
    with watching(listing(page(thing("a", 1)), watch=watches), clock=clock) as it:
        eventually(lambda: len(it.server.watches()) >= 10)
        before = descriptors()
        eventually(lambda: len(it.server.watches()) >= 211, seconds=60)
        assert it.server.accepted > 100
        eventually(lambda: descriptors() <= before + 3)


@pytest.mark.parametrize(
    "late",
    [("ADDED", thing("b", 4)), bookmark(4), ("DELETED", thing("a", 9))],
    ids=["event", "bookmark", "end"],
)
def test_a_server_that_is_at_an_older_version_is_listed_anew(late: tuple[str, Any]) -> None:
    lists = in_turn(
        lambda request, wire: wire.send(page(thing("a", 1))),
        lambda request, wire: wire.send(page(thing("b", 2), version=4)),
    )
    watches = in_turn(events(late), open_end)
    with watching(lambda request, wire: (watches if request.watch else lists)(request, wire)) as it:
        eventually(lambda: len(it.server.watches()) == 2)
        assert it.seen.lists == [["a"], ["b"]]
        assert it.seen.changes == []
        assert [request.query["resourceVersion"] for request in it.server.watches()] == ["10", "4"]


def test_versions_of_thousands_of_digits_are_compared() -> None:
    """Python refuses to read such a number."""
    nines, more = "9" * 5000, f"1{'0' * 5000}"
    first = {"metadata": {"name": "b", "resourceVersion": f"00{nines}"}}
    second = {"metadata": {"name": "c", "resourceVersion": more}}
    old = {"metadata": {"name": "d", "resourceVersion": nines}}
    watches = in_turn(events(("ADDED", first), ("ADDED", second), ("ADDED", old)), open_end)
    with watching(listing(page(thing("a", 1)), watch=watches)) as it:
        eventually(lambda: len(it.server.watches()) == 2)
        assert [name for _, name in it.seen.changes] == ["b", "c"]
        assert len(it.server.lists()) == 2


def test_versions_that_are_no_numbers_are_not_compared() -> None:
    odd = {"metadata": {"name": "b", "resourceVersion": "4a"}}
    with watching(listing(page(thing("a", 1)), watch=events(("ADDED", odd)))) as it:
        eventually(lambda: "b" in it.seen.all)
        assert len(it.server.lists()) == 1


def too_large_event(request: Request, wire: Wire) -> None:
    wire.line("ERROR", status(504, "Timeout", "Too large resource version: 10, current: 4"))
    wire.end()


def too_large_status(request: Request, wire: Wire) -> None:
    causes = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "no"}]}
    wire.send(status(504, "Timeout", "no") | {"details": causes}, 504)


@pytest.mark.parametrize("answer", [too_large_event, too_large_status])
def test_a_version_that_the_server_does_not_know_yet_is_given_up(answer: Answer) -> None:
    with watching(listing(page(thing("a", 1)), watch=in_turn(answer, open_end))) as it:
        eventually(lambda: len(it.server.watches()) == 2)
        assert len(it.server.lists()) == 2


@pytest.mark.parametrize("interrupted", [Wire.cut, Wire.end])
def test_a_short_list_is_read_anew_after_an_interruption(interrupted: Callable[[Wire], None]) -> None:
    """The server may be another since, which shows in nothing else while nothing happens there."""
    lists = in_turn(
        lambda request, wire: wire.send(page(thing("a", 1))),
        lambda request, wire: wire.send(page(version=4)),
    )
    watches = in_turn(events(bookmark(11), then=interrupted), open_end)
    with watching(
        lambda request, wire: (watches if request.watch else lists)(request, wire), relist=600.0
    ) as it:
        eventually(lambda: len(it.server.watches()) == 2)
        assert it.seen.lists == [["a"], []]


def test_a_short_list_is_read_anew_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_time(monkeypatch)
    clock = Clock(speed=600)

    def watch(request: Request, wire: Wire) -> None:
        wire.begin()
        wire.stopping.wait(int(request.query["timeoutSeconds"]) / 600)
        wire.end()

    with watching(listing(page(thing("a", 1)), watch=watch), clock=clock, relist=600.0) as it:
        it.wait(3000)
        it.end()
        assert 3 <= len(it.server.lists()) <= 8
        assert len(it.server.watches()) > len(it.server.lists())


def test_a_success_of_another_request_ends_the_wait() -> None:
    clock = Hurried()
    with watching(refusing(500, "InternalError"), clock=clock) as it:
        clock.run_at(600)
        eventually(lambda: len(it.server.requests) > 12)
        clock.run_at(0.05)  # what is left of the wait would take minutes
        time.sleep(0.05)
        it.server.answer = listing(page(thing("a", 1)), watch=open_end)
        clock.run_at(0.5)
        it.client.get(PATH)
        eventually(it.watch.synced.is_set, seconds=5)


def test_one_that_always_fails_keeps_its_back_off_beside_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_time(monkeypatch)
    clock = Clock(speed=600)

    def answer(request: Request, wire: Wire) -> None:
        if request.path.endswith("good"):
            wire.send({})
        else:
            wire.refuse(500, "InternalError")

    with watching(answer, clock=clock) as it:
        end = clock.now() + 1800
        while clock.now() < end:
            it.client.get("/good")
            it.wait(5)
        it.end()
        # 120 by the waits alone at most, and some more for each time that it was woken.
        assert 25 <= len([one for one in it.server.requests if one.path == PATH]) <= 230
