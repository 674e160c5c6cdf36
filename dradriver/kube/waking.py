"""What ends a wait after failures early: a success of another request to the same server."""

import random
import threading

from dradriver.backoff import delays
from dradriver.clock import Clock
from dradriver.kube.limits import SLICE_SECONDS

JITTER_SECONDS = 0.3
"""What is waited all the same, at most: those that are woken together do not ask together."""

VAIN_SECONDS = (10.0, 600.0)
"""Who was woken is not woken again for so long, doubling from the first to the second: beside requests that have
success, one that always fails keeps its back-off."""


class Successes:
    """How many requests had success. Safe to use from threads."""

    def __init__(self) -> None:
        self.count = 0
        self._guard = threading.Lock()
        self._sleepers: set[threading.Event] = set()

    def note(self) -> None:
        """Count one, and wake who waits for it."""
        with self._guard:
            self.count += 1
            for sleeper in self._sleepers:
                sleeper.set()

    def wait(self, since: int, seconds: float, clock: Clock, stop: threading.Event) -> bool:
        """Wait for one after the first `since`, at most `seconds` and not after `stop`; return whether it came."""
        end = clock.now() + seconds
        woken = threading.Event()
        with self._guard:
            self._sleepers.add(woken)
        try:
            while self.count == since and not stop.is_set():
                left = end - clock.now()
                if left <= 0:
                    break
                clock.wait(woken, min(left, clock.lasting(SLICE_SECONDS)))
            return self.count != since
        finally:
            with self._guard:
                self._sleepers.discard(woken)


class Waking:
    """Whether one that waits after a failure is woken by a success of others: once, and then rarely for a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.worked()

    @property
    def left(self) -> float:
        """Seconds for which no success wakes."""
        return max(0.0, self._not_before - self._clock.now())

    def woken(self) -> None:
        """Note that a success woke: it may have been in vain."""
        self._not_before = self._clock.now() + next(self._pauses)

    def worked(self) -> None:
        """Note that it was not in vain."""
        self._pauses = delays(*VAIN_SECONDS)
        self._not_before = self._clock.now()

    def sleep(self, successes: Successes, seconds: float, stop: threading.Event) -> bool:
        """Wait for so long, or for a success and a moment more; return whether that came first."""
        since, early = successes.count, min(seconds, self.left)
        self._clock.wait(stop, early)
        if early == seconds or not successes.wait(since, seconds - early, self._clock, stop):
            return False
        self.woken()
        self._clock.wait(stop, random.uniform(0.0, JITTER_SECONDS))  # noqa: S311 - spreading, not secrecy
        return True
