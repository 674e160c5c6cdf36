"""Where a driver's sockets are, and who may touch them.

gRPC binds over a live socket without a word, and the kubelet knows a driver by its sockets alone. So each
socket name is guarded by a lock on a file of its own (flock, which ends with the process) while it is used.
"""

import hashlib
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from dradriver.filelock import FileLock
from dradriver.model import shown
from dradriver.model.names import MAX_DRIVER_NAME, check_subdomain, check_uid

KUBELET_ROOT = Path("/var/lib/kubelet")
"""The kubelet's directory unless it was started with `--root-dir`."""

MAX_PATH_BYTES = 107
"""Room for a path in `sockaddr_un` (unix(7)), without the closing NUL."""

_REGISTRATION_SUFFIX = "-reg.sock"
_LOCK_SUFFIX = ".lock"

# `remove_dead` in another instance holds a dead name's lock for a moment, just when its owner may come back.
_PATIENCE_SECONDS = 1.0

_log = logging.getLogger(__name__)


class SocketInUseError(OSError):
    """Another running process holds this socket name."""


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """The sockets of one instance of one driver, and the directories that they are in.

    registry        the kubelet's directory of registration sockets, which it watches
    plugin_dir      the driver's own directory, for no one else (mode 0700): gRPC cannot tell who calls
    registration    socket in `registry`
    service         socket in `plugin_dir`
    """

    driver: str
    registry: Path
    plugin_dir: Path
    registration: Path
    service: Path

    @classmethod
    def of(cls, driver: str, root: Path = KUBELET_ROOT, instance: str | None = None) -> Self:
        """Return the paths of `driver` below the kubelet's directory `root`.

        instance    UID of the pod that the driver runs in, so that two can run during a rolling update; None
                    for a driver that runs once

        A name that would make the path too long gives way to a hash. Raises ValueError where even that is too
        long, and for a driver name, a UID or a root that is none.
        """
        check_subdomain(driver, "driver name", MAX_DRIVER_NAME)
        if instance is not None:
            check_uid(instance)
        if not root.is_absolute():
            raise ValueError(
                f"kubelet root {shown(root)} is not an absolute path: the kubelet dials it as given"
            )
        if instance is None:
            registration_names = [driver, _digest(driver, 16)]
            service_names = ["dra"]
        else:
            short = _digest(instance, 8)
            registration_names = [
                f"{driver}-{instance}",
                f"{driver}-{short}",
                _digest(f"{driver}/{instance}", 16),
            ]
            service_names = [f"dra-{instance}", f"dra-{short}"]
        registry = root / "plugins_registry"
        plugin_dir = root / "plugins" / driver
        return cls(
            driver=driver,
            registry=registry,
            plugin_dir=plugin_dir,
            registration=_first_that_fits(registry, registration_names, _REGISTRATION_SUFFIX, root),
            service=_first_that_fits(plugin_dir, service_names, ".sock", root),
        )

    @property
    def sockets(self) -> tuple[Path, Path]:
        """Both sockets, in the order in which they are served: the service first."""
        return self.service, self.registration

    def make_directories(self) -> None:
        """Create what is missing below the kubelet's directory; make `plugin_dir` private.

        The other two are the kubelet's own and stay as they are where they exist. Its root is not created: a
        wrong root would otherwise look like a kubelet that never calls.
        """
        root = self.registry.parent
        if not root.is_dir():
            raise NotADirectoryError(
                f"kubelet root {shown(root)} is not a directory: name the kubelet's --root-dir"
            )
        for directory in (self.registry, self.plugin_dir.parent):
            _make_directory(directory, 0o750)
        _make_directory(self.plugin_dir, 0o700)
        if stat.S_IMODE(self.plugin_dir.stat().st_mode) != 0o700:
            self.plugin_dir.chmod(0o700)

    def lock_file(self, socket: Path) -> Path:
        """Return the lock file that guards the name of `socket`."""
        return self.plugin_dir / (socket.name + _LOCK_SUFFIX)


def acquire(lock: FileLock) -> None:
    """Take the lock of a socket name. Raises SocketInUseError where another process has it."""
    patience = time.monotonic() + _PATIENCE_SECONDS
    while not lock.try_acquire():
        if time.monotonic() > patience:
            name = lock.path.name.removesuffix(_LOCK_SUFFIX)
            raise SocketInUseError(
                f"socket name {shown(name, 200)} is in use: another process holds {lock.path}. "
                "Stop it first; in a DaemonSet, POD_UID tells the instances apart"
            )
        time.sleep(_PATIENCE_SECONDS / 20)


def remove_dead(paths: SocketPaths) -> tuple[Path, ...]:
    """Remove the sockets that dead instances of this driver left behind; return those removed.

    An instance is dead if the lock of its socket can be taken. A socket without a lock file proves nothing
    and stays.
    """
    removed = []
    for lock in sorted(paths.plugin_dir.glob(f"*.sock{_LOCK_SUFFIX}")):
        name = lock.name.removesuffix(_LOCK_SUFFIX)
        with _lock_of_the_dead(FileLock(lock)) as dead:
            if not dead:
                continue
            directory = paths.registry if name.endswith(_REGISTRATION_SUFFIX) else paths.plugin_dir
            for socket in (bind_path(directory / name), directory / name):
                if socket.is_socket():
                    socket.unlink(missing_ok=True)
                    removed.append(socket)
            lock.unlink(missing_ok=True)
    if removed:
        _log.info("%s: removed %d sockets of dead instances", paths.driver, len(removed))
    return tuple(removed)


def bind_path(socket: Path, attempt: int = 0) -> Path:
    """Return the path at which `socket` is bound before it is moved to its name.

    It is no longer than the name, and starts with a dot: the kubelet ignores such names. Each attempt has its
    own, since a server that ends removes the path that it once bound.
    """
    name = socket.name if not attempt else f"{socket.name}#{attempt}"
    return socket.with_name(f".{_digest(name, 7)}")


def unix_target(path: Path | str) -> str:
    """Return the gRPC address of a socket path; gRPC reads it as a URI."""
    return f"unix:{quote(str(path))}"


def _digest(text: str, characters: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:characters]


def _first_that_fits(directory: Path, names: list[str], suffix: str, root: Path) -> Path:
    for name in names:
        path = directory / (name + suffix)
        if len(os.fsencode(path)) <= MAX_PATH_BYTES:
            return path
    raise ValueError(
        f"kubelet root {shown(root, 128)} is too long: the shortest path of a socket below it, "
        f"{shown(path, 256)}, has {len(os.fsencode(path))} bytes, and at most {MAX_PATH_BYTES} are allowed"
    )


def _make_directory(directory: Path, mode: int) -> None:
    try:
        directory.mkdir(mode)
    except FileExistsError:
        return
    directory.chmod(mode)  # whatever the umask


@contextmanager
def _lock_of_the_dead(lock: FileLock) -> Iterator[bool]:
    try:
        dead = lock.try_acquire(create=False)
    except FileNotFoundError:
        dead = False
    try:
        yield dead
    finally:
        lock.release()
