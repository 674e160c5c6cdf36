"""One lock for each claim under work."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

Key = tuple[str, str]
"""Driver and claim UID."""


class Locks:
    """Locks by key, which exist only while somebody holds or awaits them."""

    def __init__(self) -> None:
        self._locks: dict[Key, tuple[threading.Lock, int]] = {}
        self._guard = threading.Lock()

    @contextmanager
    def held(self, key: Key, deadline: float) -> Iterator[None]:
        """Hold the lock of a key. Raises TimeoutError at `deadline` (time.monotonic() seconds)."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise TimeoutError("another call for this claim is still at work")
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)
