"""What bounds one request: its deadline, a wish to stop, and how many requests a second there may be."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from dradriver.clock import Clock
from dradriver.kube.errors import StoppedError, UnreachableError

SLICE_SECONDS = 0.2
"""How long one system call waits at most: as late is a wish to stop seen. Seconds of the machine, not of the clock."""

_thread = threading.local()


class Limits:
    """The limits of one request, and what is known of it.

    Used as a context, they hold for all that this thread does on sockets meanwhile: the layers between the client
    and its sockets know one timeout a system call, which a peer that sends byte after byte never reaches.

    received  bytes of the answer so far
    reused    whether the request went out on a connection that had carried one before
    unsent    whether the request could not be sent to its end, and so cannot have been executed
    """

    def __init__(
        self,
        clock: Clock,
        deadline: float,
        *stops: threading.Event,
        waiting: Callable[[], None] | None = None,
    ) -> None:
        """`deadline` is in seconds of the clock. `waiting` is called again and again while nothing comes."""
        self.clock = clock
        self.deadline = deadline
        self.received = 0
        self.reused = False
        self.unsent = False
        self._stops = stops
        self._waiting = waiting
        self._began = clock.now()
        self._awaited = "whole answer"
        self._outer: Limits | None = None

    @staticmethod
    def current() -> "Limits | None":
        """Return the limits that hold for this thread."""
        limits: Limits | None = getattr(_thread, "limits", None)
        return limits

    def __enter__(self) -> Self:
        self._outer = Limits.current()
        _thread.limits = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.limits = self._outer

    @property
    def stopped(self) -> bool:
        """Whether one of the events is set."""
        return any(stop.is_set() for stop in self._stops)

    @property
    def left(self) -> float:
        """Seconds of the clock until the deadline; negative after it."""
        return self.deadline - self.clock.now()

    def slice(self) -> float:
        """Return how many seconds a system call may wait now.

        Raises StoppedError where one of the events is set, TimeoutError after the deadline.
        """
        if self.stopped:
            raise StoppedError("stopped")
        left = self.left
        if left <= 0:
            raise TimeoutError(f"no {self._awaited} within {max(0.0, self.deadline - self._began):.3g} s")
        return min(left, SLICE_SECONDS)

    def waited(self) -> None:
        """Be told that a system call has waited for nothing."""
        if self._waiting is not None:
            self._waiting()

    @contextmanager
    def within(self, seconds: float, awaited: str) -> Iterator[None]:
        """Let an earlier deadline hold for a part of the request; `awaited` is what there should be by then."""
        outer = self.deadline, self._began, self._awaited
        self._began = self.clock.now()
        self.deadline = min(self.deadline, self._began + seconds)
        self._awaited = awaited
        try:
            yield
        finally:
            self.deadline, self._began, self._awaited = outer

    def sleep(self, seconds: float) -> None:
        """Wait. Raises as `slice` does."""
        end = self.clock.now() + seconds
        while (left := end - self.clock.now()) > 0:
            self.slice()
            # One of the events can be waited for, the others are looked at now and then.
            self.clock.wait(self._stops[0] if self._stops else threading.Event(), min(left, 1.0))
        self.slice()

    def again(self) -> None:
        """Forget what is known of an earlier attempt."""
        self.received, self.reused, self.unsent = 0, False, False


class Rate:
    """A token bucket: so many requests a second, after a burst of so many. In turn, and safe to use from threads."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._clock = clock
        self._guard = threading.Lock()
        self._tokens = float(burst)
        self._at = clock.now()

    def take(self, limits: Limits) -> None:
        """Wait for one's turn. Raises UnreachableError at once where that would come after the deadline."""
        with self._guard:
            now = self._clock.now()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps)
            self._at = now
            wait = max(0.0, (1.0 - self._tokens) / self._qps)
            if wait and wait > limits.left:
                raise UnreachableError(
                    f"not sent: at most {self._qps:g} requests a second are, "
                    f"and its turn in {wait:.3g} s is after its deadline"
                )
            self._tokens -= 1.0
        if wait > 0:
            limits.sleep(wait)


def spread(seconds: float) -> float:
    """Return a little more than `seconds`, so that many nodes that are told the same do not act as one."""
    return seconds * random.uniform(1.0, 1.25)  # noqa: S311 - spreading, not secrecy
