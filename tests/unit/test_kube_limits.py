"""Deadlines and rates, without a network."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dradriver.clock import SYSTEM, Clock
from dradriver.kube import StoppedError, UnreachableError
from dradriver.kube.limits import SLICE_SECONDS, Limits, Rate


def limits(clock: Clock = SYSTEM, seconds: float = 3600.0) -> Limits:
    return Limits(clock, clock.now() + seconds)


def test_a_wait_is_cut_into_slices_and_ends_at_the_deadline() -> None:
    assert limits().slice() == SLICE_SECONDS
    assert 0 < limits(seconds=0.1).slice() <= 0.1
    with pytest.raises(TimeoutError, match="no whole answer within"):
        limits(seconds=-1).slice()


def test_a_part_may_have_less_time() -> None:
    whole = limits()
    with whole.within(0, "connection"), pytest.raises(TimeoutError, match="no connection within 0 s"):
        whole.slice()
    assert whole.slice() == SLICE_SECONDS
    with whole.within(1e9, "connection"):
        assert whole.left < 3601


def test_a_stop_is_seen_at_the_next_slice() -> None:
    stop, closed = threading.Event(), threading.Event()
    for event in (stop, closed):
        limits = Limits(SYSTEM, SYSTEM.now() + 60, stop, closed)
        assert limits.slice()
        event.set()
        with pytest.raises(StoppedError):
            limits.slice()
        with pytest.raises(StoppedError):
            limits.sleep(30)
        event.clear()


def test_limits_hold_for_their_thread_and_may_be_nested() -> None:
    outer, inner = limits(), limits()
    assert Limits.current() is None
    with outer:
        with inner:
            assert Limits.current() is inner
            with ThreadPoolExecutor(1) as threads:
                assert threads.submit(Limits.current).result() is None
        assert Limits.current() is outer
    assert Limits.current() is None


def test_a_burst_and_then_so_many_a_second() -> None:
    clock = Clock(speed=20)
    rate = Rate(10, 5, clock)
    began = clock.now()
    for _ in range(5):
        rate.take(limits(clock))
    burst = clock.now() - began
    for _ in range(20):
        rate.take(limits(clock))
    assert clock.now() - began >= 1.95
    assert burst < clock.now() - began


def test_threads_share_the_rate() -> None:
    clock = Clock(speed=20)
    rate = Rate(10, 5, clock)
    began = clock.now()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: rate.take(limits(clock)), range(25)))
    assert clock.now() - began >= 1.95


def test_who_would_wait_in_vain_does_not_wait_and_uses_nothing_up() -> None:
    rate = Rate(0.001, 1, SYSTEM)
    rate.take(limits())
    for _ in range(100):
        with pytest.raises(
            UnreachableError, match=r"not sent: at most 0\.001 requests a second are, and its turn"
        ):
            rate.take(limits(seconds=10))
    with pytest.raises(UnreachableError, match=r"its turn in 1e\+03 s"):
        rate.take(limits(seconds=10))
