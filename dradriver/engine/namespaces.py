"""The network namespaces that claims are in, kept open: each lives on until its claims have left it."""

import os
import threading

from dradriver.backend import BackendError
from dradriver.engine.locks import Key
from dradriver.engine.records import Record, SandboxRecord
from dradriver.model import shown


class Namespaces:
    """One open file for each claim that is in a sandbox. Any thread may use it; the claim's lock is held."""

    def __init__(self, boot: str) -> None:
        """`boot` is the kernel's boot id, empty where it is unknown: namespaces of an earlier boot are gone."""
        self._boot = boot
        self._guard = threading.Lock()
        self._open: dict[Key, tuple[int, int]] = {}

    def hold(self, key: Key, path: str) -> int:
        """Open the namespace that a claim goes to, and return its number. Raises BackendError."""
        self.release(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise BackendError(
                f"the pod's network namespace, which the container runtime says is {shown(path)}, cannot be opened: "
                f"{error.strerror}; where dradriver is in a container, the host's directory of it must be mounted "
                "there with mount propagation HostToContainer"
            ) from None
        number = os.fstat(fd).st_ino
        with self._guard:
            self._open[key] = (fd, number)
        return number

    def file(self, record: Record) -> str:
        """Return a file of the namespace that a claim is in; empty where it is in none, or that is gone.

        It is opened again where another process had it open. The runtime's own file counts as long as it is there: a
        step may note it for a later process.
        """
        sandbox = record.sandbox
        if sandbox is None or not sandbox.netns:
            return ""
        key = (record.driver, record.ref.uid)
        with self._guard:
            held = self._open.get(key)
        if held is None or held[1] != sandbox.number:
            held = self._reopened(key, record, sandbox)
        if held is None:
            return ""
        try:
            # A link of procfs is followed to what it stands for, not by its name.
            if os.stat(sandbox.netns).st_ino == held[1]:  # noqa: PTH116
                return sandbox.netns
        except OSError:
            pass
        return f"/proc/{os.getpid()}/fd/{held[0]}"

    def _reopened(self, key: Key, record: Record, sandbox: SandboxRecord) -> tuple[int, int] | None:
        if record.predates(self._boot):
            return None
        try:
            number = self.hold(key, sandbox.netns)
        except BackendError:
            return None
        if number != sandbox.number:
            self.release(key)
            return None
        with self._guard:
            return self._open[key]

    def release(self, key: Key) -> None:
        """Let go of what is held for a claim."""
        with self._guard:
            held = self._open.pop(key, None)
        if held:
            os.close(held[0])

    def close(self) -> None:
        """Let go of everything."""
        with self._guard:
            held, self._open = list(self._open.values()), {}
        for fd, _ in held:
            os.close(fd)
