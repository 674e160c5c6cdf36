"""The network namespaces of pods: opened once, told apart, and found again where their file is gone.

The number of a namespace's file goes to the next namespace as soon as it is gone, so that another pod soon has it. Its
cookie (SO_NETNS_COOKIE, since Linux 5.14) goes to no other one until the reboot.
"""

import errno
import fcntl
import functools
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dradriver.backend import BackendError, Work
from dradriver.host import Host
from dradriver.model import shown
from dradriver_nic.actuate.rtnl import Rtnl
from dradriver_nic.netns import CLONE_NEWNET, inside

_OWN = Path("/proc/thread-self/ns/net")

_NS_GET_NSTYPE = 0xB703
"""ioctl_ns(2): what kind of namespace a file is of; what is no such file does not know the question."""

_SO_NETNS_COOKIE = 71

NOTED = ("netns", "cookie", "file")
"""The facts by which a step finds the namespace again that it moved something to."""


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

    @functools.cached_property
    def cookie(self) -> int:
        """What no other network namespace has or had since the reboot; 0 where there is none. Raises OSError."""
        return inside(self.path, _own_cookie) if self.is_network else 0

    def noted(self, file: str) -> dict[str, Any]:
        """Return the facts by which it is found again; `file` is where it may be. Raises OSError."""
        return dict(zip(NOTED, (self.number, self.cookie, file), strict=True))

    def is_noted(self, facts: Mapping[str, Any]) -> bool:
        """Return whether it is the one that a step noted. Raises OSError."""
        number, cookie = (int(facts.get(name) or 0) for name in NOTED[:2])
        return self.number == number and (not cookie or self.cookie == cookie)

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
    """Return the namespace that a step moved something to, by what it noted, where it still lives and can be reached.

    After a reboot it does not, whichever one has its number then. Where its file is gone, a process may still be in it:
    those that this daemon sees are looked through (all of the host's where it shares their process ids), unless the
    kernel has no cookies, by which it would be known among them. Raises OSError where it cannot be looked at.
    """
    if work.rebooted or not work.facts.get("netns"):
        return None
    files = [file for file in (work.netns, str(work.facts.get("file") or "")) if file]
    for file in (*files, *(_processes(host) if work.facts.get("cookie") else ())):
        try:
            if os.stat(file).st_ino != work.facts["netns"]:  # noqa: PTH116 - a Path would read a link of procfs by name
                continue
            space = PodSpace(file)
        except OSError:
            continue
        if space.is_noted(work.facts):
            return space
        space.close()
    return None


def _own_cookie() -> int:
    """Return the cookie of the calling thread's network namespace; 0 where the kernel has none. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        try:
            return int.from_bytes(opened.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
        except OSError as error:
            if error.errno == errno.ENOPROTOOPT:
                return 0
            raise


def _processes(host: Host) -> Iterator[str]:
    for process in host.list_dir("proc"):
        if process.isdecimal():
            yield f"{host.root}/proc/{process}/ns/net"
