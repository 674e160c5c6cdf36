"""The network namespaces of pods: opened once, told apart by number, and found again where their file is gone."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from dradriver.backend import BackendError, Work
from dradriver.host import Host
from dradriver.model import shown
from dradriver_nic.actuate.rtnl import Rtnl
from dradriver_nic.netns import CLONE_NEWNET

_OWN = Path("/proc/thread-self/ns/net")

_NS_GET_NSTYPE = 0xB703
"""ioctl_ns(2): what kind of namespace a file is of; what is no such file does not know the question."""


class PodSpace:
    """An open network namespace: it lives on while this does, whatever becomes of its file."""

    def __init__(self, file: str | Path) -> None:
        """Raises OSError where there is no such file. Never waits, as for a FIFO."""
        self.fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.number = os.fstat(self.fd).st_ino

    @property
    def path(self) -> Path:
        """A file of the namespace for this process."""
        return Path(f"/proc/self/fd/{self.fd}")

    @property
    def is_network(self) -> bool:
        """Whether the file is that of a network namespace at all."""
        try:
            return fcntl.ioctl(self.fd, _NS_GET_NSTYPE) == CLONE_NEWNET
        except OSError:
            return False

    def rtnl(self) -> Rtnl:
        """Return a socket in it. Raises UnavailableError."""
        return Rtnl(self.path)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pod_of(netns: str, home: Path | None) -> PodSpace:
    """Open a pod's namespace. Raises BackendError where there is none, or it is the host's, whose file `home` is."""
    if not netns:
        raise BackendError("the pod uses the host's network, so it cannot be given network interfaces")
    try:
        pod = PodSpace(netns)
    except OSError as error:
        raise BackendError(f"the pod's network namespace {shown(netns)}: {error.strerror}") from None
    if pod.number == number_of(home):
        pod.close()
        raise BackendError("the pod's network namespace is the host's: it cannot be given network interfaces")
    return pod


def pod_with_links(netns: str, home: Path | None) -> PodSpace:
    """Open a pod's namespace, as `pod_of` does, to give it links. Raises BackendError also where it can have none."""
    pod = pod_of(netns, home)
    if not pod.is_network:
        pod.close()
        raise BackendError(f"the pod's network namespace {shown(netns)}: it is no network namespace")
    return pod


def number_of(namespace: Path | None) -> int:
    """Return the number of a namespace; that of this thread's where it is None. Raises OSError."""
    return (namespace or _OWN).stat().st_ino


def pod_of_facts(work: Work, host: Host) -> PodSpace | None:
    """Return the namespace that a step moved something to, by the facts `netns` and `file`, where it still lives.

    After a reboot it does not, whichever one has its number then.
    """
    if work.rebooted:
        return None
    number = int(work.facts.get("netns") or 0)
    return living(number, [work.netns, str(work.facts.get("file") or "")], host)


def living(number: int, files: Iterable[str], host: Host) -> PodSpace | None:
    """Return the namespace with that number where it still lives and can be reached; else None.

    files   where it may be found. Where none of them is it, a process may still be in it: those that this daemon sees
            are looked through (all of the host's where it shares their process ids).
    """
    if not number:
        return None
    for file in (*(file for file in files if file), *_processes(host)):
        try:
            if os.stat(file).st_ino == number:  # noqa: PTH116 - a link of procfs, which a Path would read by name
                space = PodSpace(file)
                if space.number == number:
                    return space
                space.close()
        except OSError:
            continue
    return None


def _processes(host: Host) -> Iterator[str]:
    for process in host.list_dir("proc"):
        if process.isdecimal():
            yield f"{host.root}/proc/{process}/ns/net"
