"""What the metrics show of a daemon at the moment of a scrape."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dradriver.daemon.publishing import Published
from dradriver.engine import JournalError

if TYPE_CHECKING:
    from dradriver.daemon.daemon import Daemon


class Facts:
    """The facts of one daemon. See `dradriver.daemon.metrics.Facts`."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon

    def published(self) -> tuple[Published, ...]:
        """Return what is published of each pool."""
        return self._daemon.publishing.state

    def health(self) -> Iterator[tuple[str, str, int]]:
        """Yield (driver, health, number of devices)."""
        for driver in self._daemon.pools.drivers:
            states = self._daemon.health.snapshot(driver).states.values()
            for health, number in Counter(state.health.value for state in states).items():
                yield driver, health, number

    def claims(self) -> Iterator[tuple[str, int]]:
        """Yield (driver, number of prepared claims)."""
        engine = self._daemon.gate.engine
        with contextlib.suppress(JournalError):
            counts = engine.claims() if engine else {}
            yield from ((driver, counts.get(driver, 0)) for driver in self._daemon.pools.drivers)

    def active(self) -> bool:
        """Return whether this instance is the active one."""
        return self._daemon.gate.engine is not None

    def reachable(self) -> bool | None:
        """Return whether the API server answers and can be watched; None where there is none, or it is not tried."""
        return self._daemon.reachable if self.active() else None
