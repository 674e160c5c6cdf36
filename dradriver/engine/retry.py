"""Retrying what may pass by itself."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from dradriver.backend import TransientError

T = TypeVar("T")

LONGEST = 30.0
"""Seconds of retrying inside one call: the kubelet's own next try comes after more than a minute."""


def delays(first: float = 0.05, ceiling: float = 5.0) -> Iterator[float]:
    """Yield waiting times in seconds: doubling up to the ceiling, each with jitter of up to half of it."""
    delay = first
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreading, not secrecy
        delay = min(delay * 2, ceiling)


def retried(work: Callable[[], T], deadline: float, stop: threading.Event) -> T:
    """Return what `work` returns, calling it again after a TransientError until time is up.

    Raises the last TransientError at `deadline` (time.monotonic() seconds), after LONGEST, or at `stop`.
    """
    end = min(deadline, time.monotonic() + LONGEST)
    for delay in delays():
        try:
            return work()
        except TransientError:
            if time.monotonic() + delay >= end or stop.wait(delay):
                raise
    raise AssertionError("delays() does not end")
