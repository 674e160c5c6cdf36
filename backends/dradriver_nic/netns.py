"""Working in another network namespace.

Never by a fork: that of a process with gRPC's threads can hang, so pyroute2's `NetNS` is not for us. A thread may have
a network namespace of its own (setns(2)), and what it opens there stays there: a short-lived one does.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000


def inside(namespace: Path | None, work: Callable[[], T]) -> T:
    """Do `work` in a network namespace, in a thread that ends with it; here, where there is none given.

    A socket stays in the namespace that it was made in. Raises OSError where there is no such namespace, and what
    `work` raises.
    """
    if namespace is None:
        return work()
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _set_namespace(descriptor)
            finally:
                os.close(descriptor)
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller as it is
            failure.append(error)

    thread = threading.Thread(target=run, name="netns", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _set_namespace(descriptor: int) -> None:
    """Move the calling thread into a network namespace. os.setns came with Python 3.12."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
