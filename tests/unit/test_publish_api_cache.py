"""What is believed of the stored slices, where the watch, lists and answers tell of them in any order."""

from collections.abc import Callable
from typing import Any

import pytest

from dradriver.publish.stored import SliceCache

Body = dict[str, Any]


def body(name: str, revision: int, edition: int = 1, uid: str = "") -> Body:
    return {
        "metadata": {
            "name": name,
            "uid": uid or f"uid-of-{name}",
            "resourceVersion": str(revision),
            "generation": edition,
        },
        "spec": {
            "driver": "d",
            "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        },
    }


class Heard:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def cache(heard: Heard) -> SliceCache:
    return SliceCache(heard, "n", "d")


def revisions(cache: SliceCache) -> dict[str, str]:
    return {stored.name: stored.revision for stored in cache.slices()}


def doubted(cache: SliceCache) -> bool:
    return cache.unsure


def quiet(cache: SliceCache, action: Callable[[], object]) -> bool:
    """Whether nothing of what an action told was news."""
    before = cache.state
    action()
    return cache.state == before


NO_SLICES: list[Any] = [
    None,
    {},
    {"metadata": {"name": "x"}, "spec": {}},
    body("x", 1) | {"spec": {"driver": 1}},
    {key: value for key, value in body("x", 1).items() if key != "spec"},
    body("x", 1) | {"spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p", "generation": "one"}}},
]


@pytest.mark.parametrize("sent", NO_SLICES)
def test_what_is_no_slice_is_passed_over_and_told_once(
    cache: SliceCache, sent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cache.replaced([body("a", 1), sent, body("b", 2)])
    cache.changed("ADDED", sent)
    cache.changed("DELETED", sent)
    cache.listed_since(cache.mark(), [body("a", 1), sent, body("b", 2)])
    assert revisions(cache) == {"a": "1", "b": "2"}
    (told,) = caplog.records
    assert "is no ResourceSlice" in told.getMessage()
    assert told.levelname == "WARNING"
    assert told.exc_info is None


def test_a_slice_that_is_gone_may_have_become_anything(cache: SliceCache) -> None:
    cache.replaced([body("a", 1)])
    cache.changed("DELETED", body("a", 2) | {"spec": None})
    assert revisions(cache) == {}


@pytest.mark.parametrize("place", [{"nodeName": "other"}, {"nodeName": None}, {"driver": "other"}])
def test_slices_of_others_are_passed_over(cache: SliceCache, heard: Heard, place: dict[str, Any]) -> None:
    """Whatever the server was asked for."""
    foreign = body("x", 5)
    foreign["spec"] |= place
    cache.replaced([body("a", 1), foreign])
    assert quiet(cache, lambda: cache.changed("ADDED", foreign))
    assert quiet(cache, lambda: cache.changed("MODIFIED", foreign))
    assert quiet(cache, lambda: cache.changed("DELETED", foreign))
    cache.listed_since(cache.mark(), [body("a", 1), foreign])
    assert revisions(cache) == {"a": "1"}
    assert heard.count == 1


def test_a_list_and_events_tell_of_slices(cache: SliceCache, heard: Heard) -> None:
    cache.replaced([body("a", 1), body("b", 2)])
    cache.changed("ADDED", body("c", 3))
    cache.changed("MODIFIED", body("a", 4, 2))
    cache.changed("DELETED", body("b", 5))
    assert revisions(cache) == {"a": "4", "c": "3"}
    assert heard.count == 4


def test_answers_are_no_news_and_neither_is_their_echo(cache: SliceCache, heard: Heard) -> None:
    cache.replaced([])
    assert quiet(cache, lambda: cache.answered(body("a", 1)))
    assert quiet(cache, lambda: cache.changed("ADDED", body("a", 1)))
    assert quiet(cache, lambda: cache.answered(body("a", 2, 2)))
    assert quiet(cache, lambda: cache.changed("MODIFIED", body("a", 2, 2)))
    assert heard.count == 1


def test_an_event_before_the_answer_is_no_news_in_the_end(cache: SliceCache) -> None:
    cache.replaced([])
    before = cache.state
    cache.changed("ADDED", body("a", 1))
    cache.answered(body("a", 1))
    assert cache.state == before
    cache.changed("MODIFIED", body("a", 2, 2))
    cache.answered(body("a", 3, 3))
    assert cache.state != before


def test_an_event_older_than_an_answer_is_not_believed(cache: SliceCache) -> None:
    cache.replaced([body("a", 1)])
    cache.answered(body("a", 9, 3))
    assert quiet(cache, lambda: cache.changed("MODIFIED", body("a", 5, 2)))
    assert revisions(cache) == {"a": "9"}


def test_an_answer_older_than_an_event_is_not_believed(cache: SliceCache) -> None:
    cache.changed("MODIFIED", body("a", 9, 3))
    cache.answered(body("a", 5, 2))
    assert revisions(cache) == {"a": "9"}


def test_what_was_deleted_does_not_come_back_by_late_news(cache: SliceCache) -> None:
    cache.replaced([body("a", 1)])
    (stored,) = cache.slices()
    cache.forget(stored)
    cache.changed("MODIFIED", body("a", 1))
    cache.answered(body("a", 2, 2))
    assert revisions(cache) == {}
    cache.changed("ADDED", body("a", 3, uid="another"))
    assert revisions(cache) == {"a": "3"}


def test_a_list_of_the_watch_that_lacks_our_newest_slice_is_doubted(cache: SliceCache) -> None:
    cache.replaced([])
    cache.answered(body("a", 1))
    cache.replaced([])
    assert doubted(cache)
    assert revisions(cache) == {"a": "1"}
    cache.listed_since(cache.mark(), [])
    assert not doubted(cache)
    assert revisions(cache) == {}


def test_a_slice_that_the_watch_knew_is_gone_when_a_list_lacks_it(cache: SliceCache) -> None:
    cache.replaced([])
    cache.answered(body("a", 1))
    cache.changed("ADDED", body("a", 1))
    cache.replaced([])
    assert revisions(cache) == {}


def test_what_is_heard_of_while_a_list_is_under_way_stays(cache: SliceCache) -> None:
    cache.replaced([body("old", 1)])
    mark = cache.mark()
    cache.changed("ADDED", body("new", 3))
    cache.changed("DELETED", body("old", 2))
    cache.listed_since(mark, [body("old", 1)])
    assert revisions(cache) == {"new": "3"}


def test_a_server_that_was_put_back_is_believed_when_it_is_asked(cache: SliceCache) -> None:
    cache.replaced([body("a", 9, 5), body("b", 8)])
    cache.changed("DELETED", body("b", 10))
    cache.replaced([body("a", 3, 2), body("b", 2)])
    assert doubted(cache)
    assert revisions(cache) == {"a": "9"}
    cache.listed_since(cache.mark(), [body("a", 3, 2), body("b", 2)])
    assert revisions(cache) == {"a": "3", "b": "2"}


def test_a_slice_that_is_read_after_a_conflict_is_believed(cache: SliceCache) -> None:
    cache.replaced([body("a", 9, 5)])
    mark = cache.mark()
    cache.read_since(mark, body("a", 3, 2))
    assert revisions(cache) == {"a": "3"}
    cache.changed("MODIFIED", body("a", 11, 7))
    cache.read_since(mark, body("a", 10, 6))
    assert revisions(cache) == {"a": "11"}


def test_a_list_of_ours_finds_what_happened_unseen(cache: SliceCache) -> None:
    cache.replaced([body("a", 1), body("b", 2)])
    cache.doubt()
    before = cache.state
    cache.listed_since(cache.mark(), [body("a", 5, 2), body("c", 6)])
    assert revisions(cache) == {"a": "5", "c": "6"}
    assert cache.state != before
