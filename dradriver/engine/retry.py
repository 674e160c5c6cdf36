"""Retrying what may pass by itself."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dradriver.backend import TransientError
from dradriver.backoff import delays

T = TypeVar("T")

LONGEST = 30.0
"""Seconds of retrying inside one call: the kubelet's own next try comes after more than a minute."""


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
