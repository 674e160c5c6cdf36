"""Whether the control daemons of claims run: one can be killed, and all of them end with the pod that keeps them."""

import itertools
import logging
import threading
from collections.abc import Callable

from dradriver.backend import BackendError
from dradriver_gpu.mps.daemons import ControlDaemons

log = logging.getLogger(__name__)

PERIOD_SECONDS = 5.0


class MpsWatch:
    """Looks at the control daemons that claims have, now and then. Safe from all threads."""

    def __init__(self, period: float = PERIOD_SECONDS) -> None:
        """`period` is in seconds."""
        self._period = period
        self._guard = threading.Lock()
        self._running: dict[str, tuple[ControlDaemons, int]] = {}
        self._starts = itertools.count()
        self._ends = 0

    def add(self, name: str, daemons: ControlDaemons) -> None:
        """Look from now on at a daemon that runs, one of these."""
        with self._guard:
            self._running[name] = daemons, next(self._starts)

    def discard(self, name: str) -> None:
        """Look at it no more: it is about to be ended."""
        with self._guard:
            self._running.pop(name, None)

    @property
    def ends(self) -> int:
        """How many have been seen to have ended by themselves."""
        return self._ends

    def run(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        """Look until `stop`; call `changed(why)` when one has ended."""
        while not stop.wait(self._period):
            for name in self._looked():
                log.warning("the MPS control daemon %s has ended by itself", name)
                changed(f"the MPS control daemon {name} has ended")

    def _looked(self) -> list[str]:
        """Return the names of those that run no more; they are looked at again once they were started."""
        with self._guard:
            watched = dict(self._running)
        found = [name for name, (daemons, _) in watched.items() if not _runs(name, daemons)]
        with self._guard:
            ended = [
                name for name in found if self._running.get(name) == watched[name]
            ]  # not started meanwhile
            for name in ended:
                del self._running[name]
            self._ends += len(ended)
        return ended


def _runs(name: str, daemons: ControlDaemons) -> bool:
    """Return whether one runs; one that cannot be asked for does."""
    try:
        return daemons.runs(name)
    except BackendError:
        return True


__all__ = ["MpsWatch"]
