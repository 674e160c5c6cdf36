"""A backend that hangs costs itself only, and is asked again when it answers."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from dradriver.backend import Backend, NoOptions, Plan, Request, TransientError, UnavailableError
from dradriver.backoff import delays
from dradriver.engine import HungError, Lane, Pools, refresh_all, retried
from dradriver.host import Host
from dradriver.model import NUMA_NODE, Allocated, ClaimRef, Device, Peer, PoolContent
from waiting import PATIENCE, eventually


def soon(seconds: float = 0.1) -> float:
    return time.monotonic() + seconds


def test_a_lane_hands_on_results_and_failures() -> None:
    lane = Lane("l")
    assert lane.call(lambda: 7, soon(10), "ask") == 7
    with pytest.raises(KeyError):
        lane.call(lambda: dict[str, int]()["x"], soon(10), "ask")

    def late() -> None:
        raise TimeoutError("of the library")

    with pytest.raises(TimeoutError, match="of the library"):
        lane.call(late, soon(10), "ask")


def test_a_lane_runs_several_calls_at_once_and_keeps_few_threads() -> None:
    lane = Lane("bounded", workers=3)
    together = threading.Barrier(3)
    callers = [
        threading.Thread(target=lane.call, args=(lambda: together.wait(PATIENCE), soon(PATIENCE), "meet"))
        for _ in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for _ in range(50):
        lane.call(lambda: None, soon(10), "ask")
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("lane-bounded-")]) == 3


def test_a_call_that_hangs_is_left_behind() -> None:
    lane, go = Lane("gpu", workers=2), threading.Event()
    with pytest.raises(HungError, match="ask: backend gpu did not answer in time") as hung:
        lane.call(go.wait, soon(), "ask")
    assert not hung.value.future.done()
    assert lane.call(lambda: 7, soon(10), "ask") == 7
    go.set()
    eventually(hung.value.future.done)


def test_a_lane_whose_workers_all_hang_refuses_at_once_until_they_come_back() -> None:
    lane, go = Lane("gpu", workers=2), threading.Event()
    for _ in range(2):
        with pytest.raises(HungError, match="did not answer"):
            lane.call(go.wait, soon(), "ask")
    never = threading.Event()
    with pytest.raises(
        HungError, match="ask again: backend gpu is not asked: all calls to it hang"
    ) as refused:
        lane.call(never.set, soon(3600), "ask again")
    assert refused.value.future.done()
    go.set()
    eventually(lambda: answers(lane))
    assert not never.is_set(), "what was refused is not done later"


def answers(lane: Lane) -> bool:
    try:
        return lane.call(lambda: True, soon(10), "ask")
    except HungError:
        return False


def test_a_call_that_waited_in_vain_is_never_run() -> None:
    lane, go, ran = Lane("gpu", workers=1), threading.Event(), threading.Event()
    began = threading.Event()

    def block() -> None:
        began.set()
        go.wait()

    blocker = threading.Thread(target=lane.call, args=(block, soon(20), "block"))
    blocker.start()
    began.wait()
    with pytest.raises(HungError) as refused:
        lane.call(ran.set, soon(), "wait")
    assert refused.value.future.done()
    go.set()
    blocker.join()
    lane.call(lambda: None, soon(10), "ask")
    assert not ran.is_set()


class Slow(Backend[int, NoOptions]):
    """Hardware that hangs, fails and changes when told."""

    kind = "slow"

    def __init__(self) -> None:
        super().__init__(Host(), NoOptions())
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.probes = 0

    def probe(self) -> int:
        self.probes += 1
        self.go.wait()
        if self.error:
            raise self.error
        return self.probes

    def devices(self, inventory: int) -> PoolContent:
        one = Device("one", attributes={NUMA_NODE: 1})
        return PoolContent((one, Device("two", attributes={NUMA_NODE: (0, 1)})))

    def plan(
        self, request: Request, inventory: int, held: Mapping[str, ClaimRef], peers: tuple[Peer, ...]
    ) -> Plan:
        return Plan(())


class Other(Slow):
    kind = "other"


@pytest.fixture
def slow() -> Slow:
    return Slow()


def test_a_pool_tells_whether_what_it_offers_changed(slow: Slow) -> None:
    (pool,) = Pools("n1", [("d.example.com", slow)]).all
    assert not pool.snapshot.probed
    assert pool.refresh()
    assert not pool.refresh()
    slow.error = UnavailableError("driver is not loaded")
    assert pool.refresh()
    assert not pool.refresh()
    assert (pool.snapshot.probed, pool.snapshot.error) == (True, "driver is not loaded")
    assert set(pool.snapshot.index) == {"one", "two"}, "the last inventory stays"
    slow.error = None
    assert pool.refresh()
    assert pool.snapshot.error == ""


def test_a_probe_that_hangs_is_not_joined_by_more_of_them(slow: Slow) -> None:
    (pool,) = Pools("n1", [("d.example.com", slow)]).all
    pool.refresh()
    slow.go.clear()
    for _ in range(6):
        pool.refresh(soon())
    assert slow.probes == 2
    assert "did not answer in time" in pool.snapshot.error
    assert pool.lane.call(lambda: 7, soon(10), "ask") == 7
    slow.go.set()
    eventually(lambda: pool.refresh() and not pool.snapshot.error)


def test_a_probe_that_began_late_enough_answers_others_too(slow: Slow) -> None:
    (pool,) = Pools("n1", [("d.example.com", slow)]).all
    asked = time.monotonic()
    pool.refresh(since=asked)
    pool.refresh(since=asked)
    assert slow.probes == 1
    pool.refresh(since=time.monotonic())
    assert slow.probes == 2


def test_a_slow_backend_delays_no_other(slow: Slow) -> None:
    other = Other()
    pools = Pools("n1", [("d.example.com", slow), ("d.example.com", other)])
    slow.go.clear()
    seen: list[str] = []
    both = threading.Thread(target=refresh_all, args=(pools.all, lambda pool: seen.append(pool.name)))
    both.start()
    eventually(lambda: seen == ["n1/other"])
    slow.go.set()
    both.join()
    assert seen == ["n1/other", "n1/slow"]


def test_a_peer_is_placed_where_it_is_known(slow: Slow) -> None:
    pools = Pools("n1", [("d.example.com", slow)])
    refresh_all(pools.all)

    def nodes(device: str, driver: str = "d.example.com", pool: str = "n1/slow") -> set[int]:
        return set(pools.peer(Allocated("r", driver, pool, device)).numa_nodes)

    assert nodes("one") == {1}
    assert nodes("two") == {0, 1}
    assert nodes("three") == set()
    assert nodes("one", driver="x.example.com") == set()
    assert nodes("one", pool="n2/slow") == set()


def test_a_backend_stands_under_one_driver(slow: Slow) -> None:
    with pytest.raises(ValueError, match="one driver only"):
        Pools("n1", [("a.example.com", slow), ("b.example.com", Slow())])


def test_what_may_pass_is_tried_again_until_time_is_up() -> None:
    tries: list[int] = []

    def busy() -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise TransientError("busy")
        return "done"

    assert retried(busy, soon(20), threading.Event()) == "done"
    tries[:] = [1] * -100
    with pytest.raises(TransientError):
        retried(lambda: tries.append(1) or fail(), soon(0.3), threading.Event())  # type: ignore[func-returns-value]
    assert len(tries) > 1
    stopped = threading.Event()
    stopped.set()
    tries.clear()
    with pytest.raises(TransientError):
        retried(lambda: tries.append(1) or fail(), soon(20), stopped)  # type: ignore[func-returns-value]
    assert len(tries) == 1


def fail() -> None:
    raise TransientError("busy")


def test_delays_grow_to_a_ceiling_with_jitter() -> None:
    waits = delays(1.0, 8.0)
    for ceiling in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert ceiling / 2 <= next(waits) <= ceiling
