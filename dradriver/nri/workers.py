"""A few threads that answer the runtime, so that one that is slow does not hold up the connection."""

import queue
import threading
from collections.abc import Callable
from typing import Final

WORKERS: Final = 4

Work = Callable[[], None]


class Workers:
    """Daemon threads, started when needed. What they run must not raise."""

    def __init__(self, name: str, count: int = WORKERS) -> None:
        self._name = name
        self._count = count
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._outstanding = 0

    def submit(self, work: Work) -> None:
        """Have it done by the next thread that is free. Raises RuntimeError where no thread can be had."""
        with self._guard:
            if self._outstanding >= len(self._threads) < self._count:
                self._start()
            self._outstanding += 1
        self._queue.put(work)

    def _start(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"{self._name}-{len(self._threads) + 1}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work
            with self._guard:
                self._outstanding -= 1

    def close(self, seconds: float) -> None:
        """Let the threads end, and wait for them at most that long together."""
        with self._guard:
            threads, self._threads = self._threads, []
            self._outstanding = 0
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join(seconds / len(threads))
