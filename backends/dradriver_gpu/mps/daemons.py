"""Control daemons of a host: their directories, their start, the commands that they get, and their end."""

import contextlib
import re
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dradriver.backend import BackendError, TransientError, UnavailableError
from dradriver.host import Host
from dradriver.model import shown
from dradriver_gpu.library import driver_host, find_libraries
from dradriver_gpu.tools import MPS_CONTROL, Tools

READY_SECONDS = 10.0
COMMAND_SECONDS = 5.0
POLL_SECONDS = 0.05

NAME = r"[a-z0-9][a-z0-9-]{0,78}[a-z0-9]"
"""Names of control daemons: of claims and GPUs. No other file beside their directories is called so."""

_NAME = re.compile(NAME)

_CUDA_SHM = "cuda.shm*"
"""What CUDA calls its files in /dev/shm, by which the clients of a daemon share memory with it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What binds all clients of a daemon.

    percentage   of active threads; 0 for no limit
    memory       MiB of pinned memory on each device; 0 for no limit
    """

    percentage: int = 0
    memory: tuple[int, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        """What the daemon is told."""
        commands = []
        if self.percentage:
            commands.append(f"set_default_active_thread_percentage {self.percentage}")
        commands += [
            f"set_default_device_pinned_mem_limit {number} {limit}M"
            for number, limit in enumerate(self.memory)
            if limit
        ]
        return tuple(commands)


class ControlDaemons(ABC):
    """The control daemons of a host, by name, as one launcher keeps them."""

    def __init__(self, host: Host, directory: str) -> None:
        """Touch nothing yet. `directory` is below the host root."""
        self.host = host
        self.directory = f"{directory.rstrip('/')}/mps"

    @abstractmethod
    def start(
        self, name: str, devices: tuple[str, ...], limits: Limits, user: int, stop: threading.Event
    ) -> None:
        """Have a daemon run for these devices (UUIDs), with these limits, and a server for a user; -1 for nobody.

        One that runs already is found again. Raises BackendError where it does not come up, UnavailableError where
        nobody is there to keep it.
        """

    @abstractmethod
    def runs(self, name: str) -> bool:
        """Return whether a daemon runs. Raises BackendError, UnavailableError where that cannot be said."""

    @abstractmethod
    def end(self, name: str) -> None:
        """End a daemon, and remove what is its own. Raises BackendError, TransientError, UnavailableError."""

    def pipe(self, name: str) -> str:
        """Return the pipe directory, on the host."""
        return f"{self.home(name)}/pipe"

    def shm(self, name: str) -> str:
        """Return the directory that clients see as /dev/shm, on the host. It is on the host's own, a tmpfs."""
        return f"/dev/shm/dradriver-mps-{checked(name)}"  # noqa: S108 - made here, for root and its clients

    def home(self, name: str) -> str:
        """Return the directory of a daemon, on the host."""
        return f"{self.directory}/{checked(name)}"

    def names(self) -> tuple[str, ...]:
        """Return the names of the daemons that have directories, whether or not they run."""
        return tuple(name for name in self.host.list_dir(self.directory) if _NAME.fullmatch(name))

    def remove(self, name: str) -> None:
        """Remove the directories of a daemon."""
        for path in (self.shm(name), self.home(name)):
            shutil.rmtree(self.real(path), ignore_errors=True)

    def real(self, path: str) -> Path:
        """Return a path on this machine; what is there itself is not followed, whoever may have put a link there."""
        parent, _, name = path.rpartition("/")
        return self.host.path(parent) / name


@dataclass(frozen=True, slots=True)
class Daemon:
    """A control daemon as it is to run, on the host.

    name          unique among them; part of unit and directory names
    program       the control program, below the driver root
    root          a root file system for it, where the driver has one of its own; else `/`
    environment   among it the devices and directories
    shm           the directory that it must see as /dev/shm
    log           where what it prints goes
    directories   what it needs of the host beside the driver root
    """

    name: str
    program: str
    root: str
    environment: Mapping[str, str]
    shm: str
    log: str
    directories: tuple[str, ...]

    @property
    def command(self) -> tuple[str, ...]:
        """The command line: in the foreground, so that whoever started it sees its end."""
        return self.program, "-f"


class Launcher(ABC):
    """Starts control daemons that outlive this process, finds them again, and ends them."""

    @abstractmethod
    def check(self) -> None:
        """Raise BackendError, with what to do about it, where it can start none."""

    @abstractmethod
    def start(self, daemon: Daemon) -> None:
        """Start it. Raises BackendError, TransientError."""

    @abstractmethod
    def runs(self, name: str) -> bool:
        """Return whether the daemon of that name runs. Raises UnavailableError where that cannot be said."""

    @abstractmethod
    def end(self, name: str) -> None:
        """End it and all that it started; do nothing where it does not run. Raises BackendError, TransientError."""


class Mps(ControlDaemons):
    """Control daemons that are started from here."""

    def __init__(
        self, host: Host, directory: str, driver_root: str, tools: Tools, launcher: Launcher
    ) -> None:
        """Touch nothing yet. `directory` is below the host root, as `driver_root` is."""
        super().__init__(host, directory)
        self._driver_root = driver_root
        self._tools = tools
        self._launcher = launcher

    def _log(self, name: str) -> str:
        return f"{self.home(name)}/log"

    def start(
        self, name: str, devices: tuple[str, ...], limits: Limits, user: int, stop: threading.Event
    ) -> None:
        """Start a daemon where it does not run, and wait until it takes commands."""
        self._launcher.check()
        if not self._launcher.runs(name):
            daemon = self._daemon(name, devices)
            self._launcher.end(name)  # servers of one that died
            self._make(name)
            self._launcher.start(daemon)
        self._wait(name, stop)
        for command in limits.commands:
            self._command(name, command)
        if user >= 0 and not self._command(name, "get_server_list").strip():
            self._command(name, f"start_server -uid {user}")

    def runs(self, name: str) -> bool:
        """Return whether a daemon runs."""
        return self._launcher.runs(name)

    def end(self, name: str) -> None:
        """End a daemon, and remove what is its own."""
        try:
            runs = self._launcher.runs(name)
        except UnavailableError:
            if not self.host.exists(self.home(name)):
                return  # nothing was started
            raise
        self._halt(name, runs=runs)
        self.remove(name)

    def halt(self, name: str) -> None:
        """End a daemon, and leave its directories: containers have them, and it may be started again."""
        self._halt(name, runs=self._launcher.runs(name))

    def _halt(self, name: str, *, runs: bool) -> None:
        if runs:
            with contextlib.suppress(BackendError):
                self._command(name, "quit")  # it ends its servers in order; who does not listen is killed
        self._launcher.end(name)

    def _make(self, name: str) -> None:
        """Make its directories, without what a daemon that died left there, which would be in the way.

        They stay the same directories: containers that run have them. Of /dev/shm only what CUDA put there is removed,
        since it is theirs too. The server that a control daemon starts runs as the user of its first client, and writes
        there too.
        """
        try:
            make_directory(self.host, self.directory)
            home = self.real(self.home(name))
            home.mkdir(exist_ok=True)
            home.chmod(0o755)
            for path, left in ((self.pipe(name), "*"), (self._log(name), "*"), (self.shm(name), _CUDA_SHM)):
                directory = self.real(path)
                if directory.is_symlink():
                    directory.unlink()
                directory.parent.mkdir(exist_ok=True)
                directory.mkdir(exist_ok=True)
                directory.chmod(0o1777)
                _clear(directory, left)
        except OSError as error:
            raise BackendError(f"{error.filename}: {error.strerror} (option runDirectory)") from None

    def _daemon(self, name: str, devices: tuple[str, ...]) -> Daemon:
        program = self._tools.find(MPS_CONTROL)
        environment = {
            "CUDA_VISIBLE_DEVICES": ",".join(devices),
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe(name),
            "CUDA_MPS_LOG_DIRECTORY": self._log(name),
        }
        root, prefix = "/", f"/{self._driver_root.strip('/')}/".replace("//", "/")
        if self._has_root_of_its_own():
            root, prefix = self._driver_root, "/"
        elif prefix != "/":
            library = next(find_libraries(self.host, self._driver_root), None)
            if library:
                inside = library.path.parent.relative_to(self.host.root)
                environment["LD_LIBRARY_PATH"] = f"/{inside}"
        directories = (self.pipe(name), self._log(name))
        return Daemon(
            name, f"{prefix}{program}", root, environment, self.shm(name), self._log(name), directories
        )

    def _has_root_of_its_own(self) -> bool:
        """Return whether the driver root is a whole root file system, of a container that brings the driver."""
        if self._driver_root.strip("/") == "":
            return False
        driver = driver_host(self.host, self._driver_root)
        return driver.exists("etc/os-release") or driver.exists("usr/lib/os-release")

    def _wait(self, name: str, stop: threading.Event) -> None:
        """Wait until a daemon takes commands."""
        end = time.monotonic() + READY_SECONDS
        while True:
            try:
                self._command(name, "get_server_list")
            except TransientError:
                raise
            except BackendError as error:
                if not self._launcher.runs(name):
                    raise BackendError(
                        f"the MPS control daemon {name} ended at once: {self._said(name)}"
                    ) from None
                if time.monotonic() > end or stop.wait(POLL_SECONDS):
                    raise TransientError(f"the MPS control daemon {name} is not ready: {error}") from None
            else:
                return

    def _said(self, name: str) -> str:
        """Return the end of what a daemon wrote, for people."""
        for file in ("control.log", "output.log"):
            text = self.host.read_text(f"{self._log(name)}/{file}")
            if text:
                return shown(" ".join(text[-300:].split()), 300)
        return "its log is empty"

    def _command(self, name: str, line: str) -> str:
        pipe = str(self.host.path(self.pipe(name)))
        environment = {"CUDA_MPS_PIPE_DIRECTORY": pipe}
        return self._tools.run(
            MPS_CONTROL, commands=(line,), environment=environment, seconds=COMMAND_SECONDS
        )


def _clear(directory: Path, pattern: str) -> None:
    """Remove what is called so in a directory, in which others may do as they like meanwhile. Raises OSError."""
    for entry in [*directory.glob(pattern)]:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def make_directory(host: Host, directory: str) -> Path:
    """Make the directory of all daemons, through which users reach what they know the name of. Raises OSError."""
    made = host.path(directory)
    for one in (made.parent, made):
        one.mkdir(parents=True, exist_ok=True)
        one.chmod(0o711)
    return made


def checked(name: str) -> str:
    """Return a daemon's name, which comes back from a journal: nothing else may become a path or a unit."""
    if not _NAME.fullmatch(name):
        raise BackendError(f"{shown(name)} is no name of an MPS control daemon")
    return name


__all__ = ["NAME", "ControlDaemons", "Daemon", "Launcher", "Limits", "Mps", "checked", "make_directory"]
