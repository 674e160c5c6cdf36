"""Several loops as one, each in a thread of its own."""

import threading
from collections.abc import Callable

_POLL_SECONDS = 0.25
_END_SECONDS = 5.0


def run_together(stop: threading.Event, *loops: Callable[[threading.Event], None]) -> None:
    """Run all loops until `stop`, or until one fails: the others are then ended, and its exception is raised."""
    over = threading.Event()
    failures: list[BaseException] = []

    def run(loop: Callable[[threading.Event], None]) -> None:
        try:
            loop(over)
        except BaseException as error:  # noqa: BLE001 - handed on to the caller as it is
            failures.append(error)
            over.set()

    threads = [threading.Thread(target=run, args=(loop,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    while not stop.is_set() and not over.wait(_POLL_SECONDS):
        pass
    over.set()
    for thread in threads:
        thread.join(_END_SECONDS)
    if failures:
        raise failures[0]
