"""Searching what a server refuses, waiting after failures, and saying where two objects differ."""

import threading
import time

import pytest

from dradriver.clock import Clock
from dradriver.kube import StatusError, UnreachableError
from dradriver.publish.culprits import MAX_TRIES, culprits
from dradriver.publish.difference import difference
from dradriver.publish.errors import PublishError, explained, part
from dradriver.publish.retry import CEILING_SECONDS, FIGHT_RESTORES, Patience, Reachable, Retry
from dradriver.slices import Body
from publishing import Hurried


def spec(count: int) -> Body:
    return {"driver": "d", "devices": [{"name": f"gpu-{number}"} for number in range(count)]}


class Server:
    """Refuses slices that hold one of these devices."""

    def __init__(self, *bad: str) -> None:
        self.bad = bad
        self.tries = 0

    def __call__(self, spec: Body) -> str:
        self.tries += 1
        held = [device["name"] for device in spec.get("devices", ()) if device["name"] in self.bad]
        return f"no {held[0]}" if held else ""


@pytest.mark.parametrize("bad", ["gpu-0", "gpu-31", "gpu-63"])
def test_one_culprit_is_found_in_few_tries(bad: str) -> None:
    server = Server(bad)
    assert culprits(spec(64), server) == {bad: f"the API server refuses it: no {bad}"}
    assert server.tries <= 14


def test_several_culprits_are_found() -> None:
    server = Server("gpu-3", "gpu-4", "gpu-60")
    found = culprits(spec(64), server)
    assert found is not None
    assert sorted(found) == ["gpu-3", "gpu-4", "gpu-60"]
    assert server.tries <= 14 + 2 * 12


def test_where_all_are_culprits_the_search_has_an_end() -> None:
    server = Server(*(f"gpu-{number}" for number in range(64)))
    found = culprits(spec(64), server)
    assert found is not None
    assert len(found) == 64
    assert server.tries <= MAX_TRIES


def test_what_does_not_go_together_costs_one_of_both() -> None:
    def refusal(spec: Body) -> str:
        names = {device["name"] for device in spec.get("devices", ())}
        return "not both" if {"gpu-1", "gpu-6"} <= names else ""

    assert culprits(spec(8), refusal) == {"gpu-6": "the API server refuses it: not both"}


def test_a_slice_that_is_refused_empty_has_no_culprits() -> None:
    assert culprits(spec(8), lambda _: "a policy says no") is None


def test_a_slice_that_is_taken_has_no_culprits() -> None:
    assert culprits(spec(8), lambda _: "") is None


def test_counter_sets_are_searched_alike() -> None:
    sets = {"driver": "d", "sharedCounters": [{"name": "a"}, {"name": "b"}]}

    def refusal(spec: Body) -> str:
        return "no" if {"name": "b"} in spec.get("sharedCounters", ()) else ""

    assert culprits(sets, refusal) == {"b": "the API server refuses it: no"}


class Stepped(Clock):
    """A clock that goes on when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def now(self) -> float:
        return self.time


class Setting:
    """A retry by a clock that goes on when it is told."""

    def __init__(self) -> None:
        self.clock = Stepped()
        self.reachable = Reachable()
        self.retry = Retry(self.clock, self.reachable)

    def waits(self) -> float:
        """Return how many seconds of the clock pass until another try is allowed."""
        start = self.clock.time
        while True:
            try:
                self.retry.check()
            except OSError:
                self.clock.time += 0.25
            else:
                return self.clock.time - start


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_there_is_no_wait_before_a_failure(setting: Setting) -> None:
    setting.retry.check()


def test_the_last_error_is_raised_again_meanwhile() -> None:
    retry = Retry(Clock(), Reachable())
    error = StatusError(403, "Forbidden", "no")
    retry.failed(error)
    for _ in range(3):
        with pytest.raises(StatusError) as caught:
            retry.check()
        assert caught.value is error


def test_waits_grow_to_a_ceiling(setting: Setting) -> None:
    for _ in range(12):
        setting.retry.failed(UnreachableError("gone"))
    assert setting.waits() >= CEILING_SECONDS / 2
    setting.retry.succeeded()
    setting.retry.check()
    assert not setting.retry.failing


def test_a_server_that_asks_for_time_gets_it(setting: Setting) -> None:
    error = PublishError("busy")
    error.__cause__ = StatusError(429, "TooManyRequests", "busy", retry_after=20.0)
    setting.retry.failed(error)
    setting.reachable.recoveries += 1
    assert setting.waits() >= 20.0


def test_a_server_that_asks_for_a_day_is_not_believed(setting: Setting) -> None:
    setting.retry.failed(StatusError(503, "ServiceUnavailable", "busy", retry_after=86400.0))
    assert 30.0 <= setting.waits() < 60.0


def test_a_success_of_any_request_ends_a_wait_once() -> None:
    clock = Hurried()
    reachable = Reachable()
    retry = Retry(clock, reachable)
    for _ in range(12):
        retry.failed(UnreachableError("gone"))
    with pytest.raises(UnreachableError):
        retry.check()
    reachable.successes.note()
    retry.check()
    retry.failed(UnreachableError("gone"))
    reachable.successes.note()
    with pytest.raises(UnreachableError):
        retry.check()


def test_a_task_that_always_fails_keeps_its_back_off_beside_requests_that_have_success() -> None:
    clock = Clock(speed=1200.0)
    reachable = Reachable()
    retry = Retry(clock, reachable)
    tries, end = 0, clock.now() + 1800
    while clock.now() < end:
        reachable.successes.note()
        try:
            retry.check()
        except UnreachableError:
            time.sleep(0.0001)
        else:
            tries += 1
            retry.failed(UnreachableError("gone"))
    assert tries < 1800 / (CEILING_SECONDS / 2) + 100


def test_a_success_of_others_does_not_shorten_what_the_server_asked_for(setting: Setting) -> None:
    setting.retry.failed(StatusError(503, "ServiceUnavailable", "busy", retry_after=20.0))
    setting.reachable.successes.note()
    assert setting.waits() >= 20.0


def test_a_server_that_answers_others_is_tried_at_once() -> None:
    reachable = Reachable()
    retry = Retry(Clock(), reachable)
    retry.failed(UnreachableError("gone"))
    reachable.recoveries += 1
    retry.check()


def test_a_server_that_refuses_is_not_tried_sooner_for_answering_others() -> None:
    reachable = Reachable()
    retry = Retry(Clock(), reachable)
    retry.failed(StatusError(403, "Forbidden", "no"))
    reachable.recoveries += 1
    with pytest.raises(StatusError):
        retry.check()


def test_a_success_after_a_long_time_ends_an_outage(setting: Setting) -> None:
    setting.retry.failed(UnreachableError("gone"))
    setting.retry.succeeded()
    assert setting.reachable == Reachable(1, 1, 0)
    setting.retry.failed(UnreachableError("gone"))
    setting.clock.time += 30
    setting.retry.succeeded()
    assert setting.reachable == Reachable(2, 2, 1)


def test_patience_ends_with_an_opponent_who_does_not_give_in() -> None:
    patience = Patience(Clock())
    for _ in range(FIGHT_RESTORES - 1):
        patience.restored()
    assert not patience.exhausted
    patience.restored()
    assert patience.exhausted


def test_patience_comes_back() -> None:
    clock = Clock(speed=10_000.0)
    patience = Patience(clock)
    for _ in range(2 * FIGHT_RESTORES):
        patience.restored()
        clock.wait(threading.Event(), 10)
    assert not patience.exhausted


@pytest.mark.parametrize("answer", [None, [], "yes", {}, {"metadata": None}, {"metadata": {}}])
def test_an_answer_of_another_shape_is_an_error(answer: object) -> None:
    with pytest.raises(PublishError, match=r"no metadata\.uid"):
        part(answer, "metadata", "uid")


def test_a_missing_permission_is_named() -> None:
    text = str(explained(StatusError(403, "Forbidden", "no"), "update", "resourceslices"))
    assert 'apiGroups ["resource.k8s.io"], resources ["resourceslices"], verbs ["update"]' in text


def test_an_old_server_is_told_from_a_missing_slice() -> None:
    missing = StatusError(404, "NotFound", "the server could not find the requested resource")
    assert "1.34" in str(explained(missing, "create", "resourceslices"))
    assert explained(missing, "get", "resourceslices") is missing


@pytest.mark.parametrize(
    ("stored", "places"),
    [
        ({"devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}, "devices[gpu-0].taints"),
        ({"devices": [{"name": "gpu-0", "taints": []}]}, "devices[gpu-0].taints[0], devices[gpu-1]"),
        ({"devices": [{"name": "gpu-0", "taints": [2]}, {"name": "gpu-1"}]}, "devices[gpu-0].taints[0]"),
        ({}, "devices"),
    ],
)
def test_the_places_of_a_difference(stored: Body, places: str) -> None:
    sent = {"devices": [{"name": "gpu-0", "taints": [1]}, {"name": "gpu-1"}]}
    assert difference(sent, stored) == places


def test_only_a_few_places_are_named() -> None:
    assert difference({str(number): 1 for number in range(9)}, {}).endswith(" and more")
