"""The directory of a simulation: one at a time, and none that a daemon of this machine has."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dradriver.config import load
from dradriver.filelock import FileLock

LOCK: Final = "sim.lock"
"""Held as long as a simulation is at work; it stays, and tells that the directory is a simulation's."""

HEADER: Final = "# Written by `dradriver sim`, and again by its next run here.\n"
"""First line of a configuration that a simulation wrote."""


class BusyError(Exception):
    """The directory is somebody else's, or in use."""


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keep the directory to oneself; it is made where there is none. Before that is certain, nothing is written.

    Raises BusyError, and OSError where it cannot be used.
    """
    lock = FileLock(directory / LOCK)
    try:
        again = True
        if not lock.try_acquire(create=False):
            raise BusyError(f"{directory}: a simulation is at work there: end it, or name another --dir")
    except FileNotFoundError:
        again = False
    try:
        _check_daemon(directory, again=again)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not lock.try_acquire():
            raise BusyError(f"{directory}: a simulation is at work there: end it, or name another --dir")
        yield
    finally:
        lock.release()


def _check_daemon(directory: Path, *, again: bool) -> None:
    """See that no daemon is at work there, nor, unless a simulation was there before, has been."""
    settings = load(None, directory, {"NODE_NAME": "any"})
    lock = FileLock(settings.lock)
    try:
        if not lock.try_acquire(create=False):
            raise BusyError(f"{directory}: a daemon is at work there: end it, or name another --dir")
    except (FileNotFoundError, NotADirectoryError):
        pass
    finally:
        lock.release()
    if not again and settings.state.exists():
        raise BusyError(f"{directory}: the state of a daemon is kept there: name another --dir")


def check_config(path: Path) -> None:
    """See that writing it loses nobody's configuration. Raises BusyError and OSError."""
    try:
        if not path.read_text(errors="replace").startswith(HEADER):
            raise BusyError(
                f"{path} was not written by `dradriver sim`: use it by --config, or name another --dir"
            )
    except FileNotFoundError:
        pass
