"""Watches of the stand-in API server: resuming, bookmarks, selectors, expiry, and streams that break."""

import json
import threading
from collections.abc import Iterator
from queue import Empty

import pytest
import urllib3

from apiserverside import CLAIMS, SLICES, Api, claim_body, slice_body
from dradriver.sim.apiserver import ApiServer
from dradriver.sim.apiserver.store import Change, Subscription
from waiting import PATIENCE, eventually


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(history=20) as running:
        yield running


@pytest.fixture
def api(server: ApiServer) -> Iterator[Api]:
    with Api(server) as client:
        yield client


def version(api: Api) -> str:
    text: str = api.get(SLICES).body["metadata"]["resourceVersion"]
    return text


def test_a_watch_goes_on_where_a_list_ended(api: Api) -> None:
    api.post(SLICES, slice_body("s1"))
    since = version(api)
    api.post(SLICES, slice_body("s2"))
    api.post(CLAIMS, claim_body())
    with api.watch(f"{SLICES}?resourceVersion={since}") as events:
        api.put(f"{SLICES}/s1", slice_body("s1", labels={"a": "b"}))
        api.delete(f"{SLICES}/s2")
        assert events.names(3) == [("ADDED", "s2"), ("MODIFIED", "s1"), ("DELETED", "s2")]
        assert events.quiet()
    last = version(api)
    with api.watch(f"{SLICES}?resourceVersion={last}") as events:
        assert events.quiet()


def test_events_carry_whole_objects_with_rising_versions(api: Api) -> None:
    with api.watch(SLICES) as events:
        created = api.post(SLICES, slice_body()).body
        kind, obj = events.next()
        assert (kind, obj) == ("ADDED", created)
        api.delete(f"{SLICES}/s1")
        kind, obj = events.next()
        assert kind == "DELETED"
        assert int(obj["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
        assert obj["spec"] == created["spec"]


@pytest.mark.parametrize("query", ["", "?resourceVersion=0"])
def test_without_a_version_it_starts_with_what_is_there(api: Api, query: str) -> None:
    api.post(SLICES, slice_body("s1"))
    api.post(SLICES, slice_body("s2"))
    with api.watch(f"{SLICES}{query}") as events:
        assert events.names(2) == [("ADDED", "s1"), ("ADDED", "s2")]
        api.post(SLICES, slice_body("s3"))
        assert events.names(1) == [("ADDED", "s3")]


def test_a_streaming_list_ends_with_a_bookmark(api: Api) -> None:
    api.post(SLICES, slice_body("s1"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with api.watch(f"{SLICES}?{query}") as events:
        assert events.names(1) == [("ADDED", "s1")]
        kind, bookmark = events.next()
        assert kind == "BOOKMARK"
        assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert bookmark["metadata"]["resourceVersion"] == version(api)
    assert api.get(f"{SLICES}?watch=true&sendInitialEvents=true").status == 422


def test_an_object_that_moves_out_of_the_selection_is_deleted_for_the_watch(api: Api) -> None:
    api.post(SLICES, slice_body("s1", labels={"on": "yes"}))
    with api.watch(f"{SLICES}?resourceVersion={version(api)}&labelSelector=on") as events:
        gone = api.put(f"{SLICES}/s1", slice_body("s1")).body
        kind, obj = events.next()
        assert (kind, obj["metadata"]["labels"]) == ("DELETED", {"on": "yes"})
        assert obj["metadata"]["resourceVersion"] == gone["metadata"]["resourceVersion"]
        api.post(SLICES, slice_body("s2"))
        api.put(f"{SLICES}/s1", slice_body("s1", labels={"on": "again"}))
        assert events.names(1) == [("ADDED", "s1")]
        api.delete(f"{SLICES}/s2")
        api.delete(f"{SLICES}/s1")
        assert events.names(1) == [("DELETED", "s1")]


def test_watches_of_a_namespace_or_field_see_theirs_only(api: Api, server: ApiServer) -> None:
    with (
        api.watch(CLAIMS) as claims,
        api.watch(f"{SLICES}?fieldSelector=spec.nodeName=b,spec.driver=x.io") as slices,
    ):
        server.store.create(claim_body("elsewhere", namespace="team"))
        server.store.create(claim_body("here", namespace="default"))
        assert claims.names(1) == [("ADDED", "here")]
        api.post(SLICES, slice_body("s1", "a", "x.io"))
        api.post(SLICES, slice_body("s2", "b", "x.io"))
        assert slices.names(1) == [("ADDED", "s2")]


def test_bookmarks_come_on_command_and_with_time(api: Api, server: ApiServer) -> None:
    with api.watch(f"{SLICES}?allowWatchBookmarks=true") as wanted, api.watch(SLICES) as unwanted:
        eventually(lambda: server.faults.watches.open == 2)
        api.post(CLAIMS, claim_body())
        server.faults.watches.bookmark()
        kind, bookmark = wanted.next()
        assert (kind, bookmark["kind"]) == ("BOOKMARK", "ResourceSlice")
        # It has the version of the latest change of any kind, so that quiet watches do not grow old.
        assert bookmark["metadata"]["resourceVersion"] == str(server.store.version)
        assert unwanted.quiet()
    with (
        ApiServer(bookmark_seconds=0.05) as quick,
        Api(quick) as other,
        other.watch(f"{SLICES}?allowWatchBookmarks=true") as events,
    ):
        assert [events.next()[0] for _ in range(2)] == ["BOOKMARK", "BOOKMARK"]


def test_a_watch_ends_in_good_order_at_its_time_limit(api: Api) -> None:
    with api.watch(f"{SLICES}?timeoutSeconds=1") as events:
        assert events.ended.wait(PATIENCE)
        assert events.end is None


def test_what_is_not_remembered_has_expired(api: Api, server: ApiServer) -> None:
    since = version(api)
    for number in range(25):
        api.post(SLICES, slice_body(f"s{number:02}"))
    with api.watch(f"{SLICES}?resourceVersion={since}") as events:
        assert events.status == 200
        kind, status = events.next()
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        assert events.ended.wait(PATIENCE)
    recent = int(version(api)) - 10
    with api.watch(f"{SLICES}?resourceVersion={recent}") as events:
        assert len(events.names(10)) == 10
    current = version(api)
    server.faults.expire_watches()
    with api.watch(f"{SLICES}?resourceVersion={current}") as events:
        assert events.next()[0] == "ERROR"


def test_open_watches_expire_on_command_as_event_and_as_status(api: Api, server: ApiServer) -> None:
    with api.watch(SLICES) as events:
        eventually(lambda: server.faults.watches.open == 1)
        server.faults.expire_watches()
        kind, status = events.next()
        assert (kind, status["code"]) == ("ERROR", 410)
        assert events.ended.wait(PATIENCE)
    with api.watch(SLICES) as events:
        eventually(lambda: server.faults.watches.open == 1)
        server.faults.expire_watches(status=True)
        assert events.ended.wait(PATIENCE)
        assert events.end is None
    gone = api.get(f"{SLICES}?watch=true")
    assert (gone.status, gone.body["reason"]) == (410, "Expired")
    with api.watch(SLICES) as events:
        assert events.status == 200


@pytest.mark.parametrize("clean", [True, False])
def test_a_stream_breaks_off_in_the_middle_of_a_line(api: Api, server: ApiServer, clean: bool) -> None:
    with api.watch(SLICES) as events:
        eventually(lambda: server.faults.watches.open == 1)
        server.faults.watches.truncate(clean)
        assert events.ended.wait(PATIENCE)
        if clean:
            assert events.end is None
            assert events.rest.startswith(b'{"type":')
            with pytest.raises(ValueError, match=r"."):
                json.loads(events.rest)
        else:
            assert isinstance(events.end, urllib3.exceptions.ProtocolError)


def test_a_silent_watch_stays_open_and_says_nothing(api: Api, server: ApiServer) -> None:
    with api.watch(f"{SLICES}?allowWatchBookmarks=true") as events:
        eventually(lambda: server.faults.watches.open == 1)
        server.faults.watches.silence()
        api.post(SLICES, slice_body("s1"))
        server.faults.watches.bookmark()
        with pytest.raises(Empty):
            events.next(0.3)
        assert not events.ended.is_set()
        with api.watch(SLICES) as another:
            assert another.names(1) == [("ADDED", "s1")]
        server.faults.watches.close()
        assert events.ended.wait(PATIENCE)


def test_what_happens_after_the_order_to_be_silent_is_not_sent_by_a_watch_that_looks_just_then(
    api: Api, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, silenced = threading.Event(), threading.Event()
    take = Subscription.take

    def slow(subscription: Subscription) -> Iterator[Change]:
        looks.set()
        silenced.wait(PATIENCE)
        yield from take(subscription)

    monkeypatch.setattr(Subscription, "take", slow)
    with api.watch(SLICES) as events:
        assert looks.wait(PATIENCE)
        server.faults.watches.silence()
        api.post(SLICES, slice_body("s1"))
        silenced.set()
        assert events.quiet()
        server.faults.watches.close()
        assert events.ended.wait(PATIENCE)


def test_closed_watches_hold_nothing(api: Api, server: ApiServer) -> None:
    for _ in range(20):
        with api.watch(SLICES):
            pass
    eventually(lambda: server.faults.watches.open == 0)
    with api.watch(SLICES) as events:
        eventually(lambda: server.faults.watches.open == 1)
        server.faults.watches.close()
        assert events.ended.wait(PATIENCE)
        assert events.end is None


def test_a_table_watch_describes_its_columns_once(api: Api) -> None:
    with api.watch(SLICES, Accept="application/json;as=Table;v=v1;g=meta.k8s.io") as events:
        api.post(SLICES, slice_body("s1"))
        api.post(SLICES, slice_body("s2"))
        tables = [events.next()[1] for _ in range(2)]
    assert [bool(table["columnDefinitions"]) for table in tables] == [True, False]
    assert [table["rows"][0]["cells"][0] for table in tables] == ["s1", "s2"]


def test_many_changes_reach_many_watches_in_order(api: Api) -> None:
    with api.watch(SLICES) as one, api.watch(f"{SLICES}?labelSelector=a=b") as other:
        for number in range(100):
            api.post(SLICES, slice_body(f"s{number:03}", labels={"a": "b"}))
        expected = [("ADDED", f"s{number:03}") for number in range(100)]
        assert one.names(100) == expected
        assert other.names(100) == expected
