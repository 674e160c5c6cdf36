"""The loops of the daemon: each in a thread, restarted with back-off when it fails, ended together."""

import logging
import threading
import time
from collections.abc import Callable

from dradriver.backoff import delays

log = logging.getLogger(__name__)

STEADY_SECONDS = 60.0
"""A loop that ran this long before it failed starts its back-off anew."""


class Supervisor:
    """Runs loops of the form `run(stop)` until it is told to stop."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, run: Callable[[threading.Event], None]) -> None:
        """Run a loop in a thread of that name. One that returns has done its work; one that raises is run again."""
        thread = threading.Thread(target=self._keep, args=(name, run), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _keep(self, name: str, run: Callable[[threading.Event], None]) -> None:
        waits = delays(0.5, 60.0)
        last = ""
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                run(self.stop)
            except Exception as error:
                if time.monotonic() - began > STEADY_SECONDS:
                    waits = delays(0.5, 60.0)
                if str(error) != last:
                    last = str(error)
                    log.warning("%s failed and is tried again: %s", name, error, exc_info=_unexpected(error))
                self.stop.wait(next(waits))
            else:
                return

    def end(self, seconds: float) -> list[str]:
        """Stop all loops, wait for them at most that long, and return the names of those that still run."""
        self.stop.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]


def _unexpected(error: Exception) -> bool:
    return isinstance(error, TypeError | AttributeError | LookupError | AssertionError)
