"""The time that waiting loops go by."""

import threading
import time


class Clock:
    """A monotonic clock in seconds that loops can wait by; `SYSTEM` is the one that the daemon uses."""

    def __init__(self, speed: float = 1.0) -> None:
        """`speed` is how many of its seconds pass in one of the machine's: an outage of an hour need not take one."""
        self._speed = speed
        self._start = time.monotonic()

    def now(self) -> float:
        """Return the seconds since some point in the past, as time.monotonic() does."""
        return self._start + (time.monotonic() - self._start) * self._speed

    def lasting(self, seconds: float) -> float:
        """Return how many of its seconds pass in so many of the machine's."""
        return seconds * self._speed

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        """Wait until the event is set or the seconds are over; return whether it is set."""
        return event.wait(None if seconds is None else max(0.0, seconds) / self._speed)


SYSTEM = Clock()
