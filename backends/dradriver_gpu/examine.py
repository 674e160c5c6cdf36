"""Probing that does not keep what events told from being seen, however long the driver takes to answer.

The calls to a GPU whose firmware does not answer (XID 119) last for most of a minute each, and no inventory would be
had meanwhile. Where events told something and the hardware is not read soon, the last inventory is shown with that,
until the hardware has been read.
"""

import threading
import time
from collections.abc import Callable

from dradriver_gpu.aside import Aside
from dradriver_gpu.health import HealthBook
from dradriver_gpu.inventory import GPUInventory

HASTE_SECONDS = 0.25
"""How long what events told waits for a reading."""

_POLL_SECONDS = 0.05


class _Run(Aside[GPUInventory]):
    """One reading of the hardware.

    late   whether somebody was not waiting for it any more; what it finds is then old
    """

    def __init__(self, read: Callable[[], GPUInventory], ended: Callable[["_Run"], None]) -> None:
        self.late = False
        super().__init__("gpu-probe", read, lambda: ended(self))


class Examiner:
    """Reads the hardware, one reading at a time, and adds what ails it."""

    def __init__(self, read: Callable[[], GPUInventory], book: HealthBook) -> None:
        """`read` reads the hardware."""
        self._read = read
        self._book = book
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self.changed: Callable[[str], None] = lambda _why: None

    def probe(self) -> GPUInventory:
        """Return what is there, with all that ails it; or, in haste, what was there last. Raises what `read` raises."""
        end = time.monotonic() + HASTE_SECONDS
        while True:
            with self._lock:
                run = self._run = self._run or _Run(self._read, self._ended)
            while not run.done.wait(_POLL_SECONDS):
                in_haste = self._book.has_news and time.monotonic() >= end
                last = self._book.in_haste() if in_haste else None
                if last:
                    run.late = True
                    if not run.done.is_set():
                        return last
                    run.late = False
            with self._lock:
                if self._run is run:
                    self._run = None
            if not run.late:
                return self._book.examine(run.result())

    def _ended(self, run: _Run) -> None:
        if run.late:
            self.changed("the GPUs answer again")
