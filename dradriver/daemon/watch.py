"""Keeping a pool's inventory fresh: probed at the start, at events of its hardware, and at a fixed period."""

import logging
import threading
from collections.abc import Callable

from dradriver.engine import Pool

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.1
"""Events come in bursts; one probe answers those of this time."""


class PoolWatch:
    """The two loops of one pool."""

    def __init__(self, pool: Pool, period: float, seen: Callable[[Pool, bool], None]) -> None:
        """`period` is in seconds; `seen` is called after each probe, with whether it found something new."""
        self._pool = pool
        self._period = period
        self._seen = seen
        self._due = threading.Event()
        self.probed = threading.Event()

    def events(self, stop: threading.Event) -> None:
        """Run the backend's own event source."""
        self._pool.backend.watch(stop, self.request)

    def request(self, why: str) -> None:
        """Ask for a probe soon."""
        log.debug("pool %s is probed: %s", self._pool.name, why)
        self._due.set()

    def probes(self, stop: threading.Event) -> None:
        """Probe now, then whenever it is due."""
        self._due.clear()  # what was asked for before, as by events that are heard now, the first probe answers
        while not stop.is_set():
            changed = self._pool.refresh()
            self.probed.set()
            self._seen(self._pool, changed)
            if self._due.wait(self._period):
                stop.wait(SETTLE_SECONDS)
                self._due.clear()

    def wake(self) -> None:
        """Let `probes` look at its `stop`."""
        self._due.set()
