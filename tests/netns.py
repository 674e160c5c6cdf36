"""A network namespace of its own for a test, on this machine's kernel; without a name, and gone with the test."""

import contextlib
import ctypes
import functools
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from waiting import eventually

needs_namespaces = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are made by root only")


class Namespace:
    """A network namespace.

    path   file by which it is entered, as long as this process lives and it is not closed
    """

    def __init__(self) -> None:
        made: list[int] = []

        def make() -> None:
            _unshare()
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        self._descriptor = made[0]
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        self.run("link set lo up")

    def run(self, *commands: str) -> None:
        """Run commands of `ip` in it."""
        for command in commands:
            self.call("ip", *command.split())

    def batch(self, commands: Iterable[str]) -> None:
        """Run many commands of `ip` at once."""
        self.call("ip", "-batch", "-", text="".join(f"{command}\n" for command in commands))

    def call(self, *command: str, text: str = "") -> str:
        """Run a program in it, and return what it writes."""
        done = subprocess.run(
            ["nsenter", f"--net={self.path}", *command],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert not done.returncode, f"{command}: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        """Let go of it; with what is in it, it is then gone."""
        os.close(self._descriptor)


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """Make a network namespace with its loopback up."""
    made = Namespace()
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def process_in(space: Namespace) -> Iterator[None]:
    """Have a process that stays in a namespace."""
    with subprocess.Popen(["nsenter", f"--net={space.path}", "sleep", "60"]) as process:
        try:
            here = space.path.stat().st_ino
            eventually(lambda: Path(f"/proc/{process.pid}/ns/net").stat().st_ino == here, "it is in there")
            yield
        finally:
            process.kill()


def _unshare() -> None:
    """Move this thread to a new network namespace (os.unshare came with Python 3.12)."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(0x40000000):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def supports(kind: str, arguments: str = "", *, link: bool = False) -> bool:
    """Return whether this kernel makes links of a kind; on another one, where `link` says that it needs that."""
    if os.geteuid():
        return False
    with namespace() as tried:
        try:
            if link:
                tried.run("link add base type veth peer name other")
            tried.run(f"link add {'link base' if link else ''} tried type {kind} {arguments}")
        except AssertionError:
            return False
    return True
