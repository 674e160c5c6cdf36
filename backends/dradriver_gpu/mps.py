"""MPS control daemons: one for each claim, or for each GPU that is shared out, with directories of its own.

Such a daemon must outlive ours, since its end ends the GPU contexts of all its clients. Who starts it, and keeps it, is
a `Launcher`: outside a cluster a transient systemd unit; without systemd a process of its own session, which lives as
long as the unit or container that dradriver runs in. Whatever else is to keep them (a pod of their own) has to start
the program of a `Daemon` with its environment, show its `shm` as /dev/shm, and tell whether it runs.

Facts: the manual page of nvidia-cuda-mps-control. Clients and daemon meet in the pipe directory and share memory in
/dev/shm, so that containers get both.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dradriver.backend import BackendError, TransientError
from dradriver.host import Host
from dradriver.model import shown
from dradriver_gpu.library import driver_host, find_libraries
from dradriver_gpu.tools import MPS_CONTROL, Tools

READY_SECONDS = 10.0
END_SECONDS = 10.0
COMMAND_SECONDS = 5.0
POLL_SECONDS = 0.05

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,78}[a-z0-9]")


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
    def start(self, daemon: Daemon) -> None:
        """Start it. Raises BackendError, TransientError."""

    @abstractmethod
    def runs(self, name: str) -> bool:
        """Return whether the daemon of that name runs. Raises BackendError where that cannot be said."""

    @abstractmethod
    def end(self, name: str) -> None:
        """End it and all that it started; do nothing where it does not run. Raises BackendError, TransientError."""


class Mps:
    """The control daemons of this host, by name."""

    def __init__(
        self, host: Host, directory: str, driver_root: str, tools: Tools, launcher: Launcher
    ) -> None:
        """Touch nothing yet. `directory` is below the host root, as `driver_root` is."""
        self._host = host
        self._directory = directory.rstrip("/")
        self._driver_root = driver_root
        self._tools = tools
        self._launcher = launcher

    def pipe(self, name: str) -> str:
        """Return the pipe directory, on the host."""
        return f"{self._home(name)}/pipe"

    def shm(self, name: str) -> str:
        """Return the directory that clients see as /dev/shm, on the host. It is on the host's own, a tmpfs."""
        return f"/dev/shm/dradriver-mps-{_checked(name)}"  # noqa: S108 - made here, for root and its clients

    def _log(self, name: str) -> str:
        return f"{self._home(name)}/log"

    def start(
        self, name: str, devices: tuple[str, ...], settings: tuple[str, ...], user: int, stop: threading.Event
    ) -> None:
        """Have a daemon run for these devices (UUIDs), with these settings as its commands, and a server for a user.

        One that runs already is found again. Raises BackendError where it does not come up.
        """
        if not self._launcher.runs(name):
            self._make(name)
            self._launcher.start(self._daemon(name, devices))
        self._wait(name, stop)
        for setting in settings:
            self._command(name, setting)
        if user >= 0 and not self._command(name, "get_server_list").strip():
            self._command(name, f"start_server -uid {user}")

    def runs(self, name: str) -> bool:
        """Return whether a daemon runs. Raises BackendError."""
        return self._launcher.runs(name)

    def end(self, name: str) -> None:
        """End a daemon, and remove what is its own. Raises BackendError, TransientError."""
        if self._launcher.runs(name):
            with contextlib.suppress(BackendError):
                self._command(name, "quit")  # it ends its servers in order; who does not listen is killed
            self._launcher.end(name)
        for path in (self.shm(name), self._home(name)):
            shutil.rmtree(self._real(path), ignore_errors=True)

    def _home(self, name: str) -> str:
        return f"{self._directory}/mps/{_checked(name)}"

    def _real(self, path: str) -> Path:
        """Return a path on this machine; what is there itself is not followed, whoever may have put a link there."""
        parent, _, name = path.rpartition("/")
        return self._host.path(parent) / name

    def _make(self, name: str) -> None:
        """Make its directories anew: what a daemon that died left there would be in the way.

        The server that a control daemon starts runs as the user of its first client, and writes there too.
        """
        try:
            home = self._host.path(self._directory)
            for directory, mode in (
                (home, 0o711),
                (home / "mps", 0o711),
                (self._real(self._home(name)), 0o755),
            ):
                directory.mkdir(parents=True, exist_ok=True)
                directory.chmod(mode)
            for path in (self.pipe(name), self._log(name), self.shm(name)):
                directory = self._real(path)
                if directory.is_symlink():
                    directory.unlink()
                elif directory.exists():
                    shutil.rmtree(directory)
                directory.parent.mkdir(exist_ok=True)
                directory.mkdir()
                directory.chmod(0o1777)
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
            library = next(find_libraries(self._host, self._driver_root), None)
            if library:
                inside = library.path.parent.relative_to(self._host.root)
                environment["LD_LIBRARY_PATH"] = f"/{inside}"
        directories = (self.pipe(name), self._log(name))
        return Daemon(
            name, f"{prefix}{program}", root, environment, self.shm(name), self._log(name), directories
        )

    def _has_root_of_its_own(self) -> bool:
        """Return whether the driver root is a whole root file system, of a container that brings the driver."""
        if self._driver_root.strip("/") == "":
            return False
        driver = driver_host(self._host, self._driver_root)
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
            text = self._host.read_text(f"{self._log(name)}/{file}")
            if text:
                return shown(" ".join(text[-300:].split()), 300)
        return "its log is empty"

    def _command(self, name: str, line: str) -> str:
        pipe = str(self._host.path(self.pipe(name)))
        environment = {"CUDA_MPS_PIPE_DIRECTORY": pipe}
        return self._tools.run(
            MPS_CONTROL, commands=(line,), environment=environment, seconds=COMMAND_SECONDS
        )


class Systemd(Launcher):
    """Transient units of the host's systemd."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def start(self, daemon: Daemon) -> None:
        """Start the unit."""
        options = [
            f"--unit={_unit(daemon.name)}",
            f"--description=MPS control daemon {daemon.name} of dradriver",
            "--collect",
            "--quiet",
            "--no-ask-password",
            f"--property=BindPaths={daemon.shm}:/dev/shm",
            "--property=KillMode=control-group",
            f"--property=TimeoutStopSec={END_SECONDS:.0f}",
            *(f"--setenv={name}={value}" for name, value in sorted(daemon.environment.items())),
        ]
        if daemon.root != "/":
            options += [f"--property=RootDirectory={daemon.root}", "--property=MountAPIVFS=yes"]
            options += [f"--property=BindPaths={directory}" for directory in daemon.directories]
        self._call("systemd-run", *options, "--", *daemon.command)

    def runs(self, name: str) -> bool:
        """Ask for the unit's state; one that is on its way up or down counts as running."""
        if self._find("systemctl") is None:
            return False
        state = self._call("systemctl", "show", "--property=ActiveState", "--value", _unit(name)).strip()
        return state in {"active", "activating", "reloading", "deactivating"}

    def end(self, name: str) -> None:
        """Stop the unit, with all processes in it."""
        self._call("systemctl", "stop", _unit(name), seconds=END_SECONDS + COMMAND_SECONDS)

    def _find(self, program: str) -> Path | None:
        for directory in ("usr/bin", "bin"):
            if self._host.exists(f"{directory}/{program}"):
                return self._host.path(f"{directory}/{program}")
        return None

    def _call(self, program: str, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
        path = self._find(program)
        if path is None:
            raise BackendError(
                f"{program} is not on this host: MPS control daemons are kept by systemd (option mpsLauncher)"
            )
        try:
            done = subprocess.run(  # noqa: S603 - systemd's program, and arguments of ours
                [str(path), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TransientError(f"{program} did not end within {seconds:g} s") from None
        except OSError as error:
            raise BackendError(f"{path}: {error.strerror}") from None
        if done.returncode != 0:
            raise BackendError(f"{program} {arguments[0]}: {shown(done.stderr.strip(), 300)}")
        return done.stdout


class Process(Launcher):
    """Processes of their own session, with a mount namespace of their own for /dev/shm.

    What runs is noted with its start time, by which another process that got its number is told apart.
    """

    def __init__(self, host: Host, directory: str) -> None:
        """`directory` is below the host root."""
        self._host = host
        self._directory = f"{directory.rstrip('/')}/mps"

    def _file(self, name: str) -> Path:
        return self._host.path(f"{self._directory}/{_checked(name)}/process.json")

    def _real(self, path: str) -> str:
        return str(self._host.path(path))

    def start(self, daemon: Daemon) -> None:
        """Start it by `mpslaunch`, which notes the process before that becomes the daemon."""
        binds = daemon.directories if daemon.root != "/" else ()
        command, environment, root = list(daemon.command), dict(daemon.environment), daemon.root
        if self._host.root != Path("/"):  # the host's paths mean nothing to a process here
            command[0] = self._real(f"{daemon.root.rstrip('/')}{daemon.program}")
            environment |= {
                name: self._real(path) for name, path in environment.items() if name.endswith("_DIRECTORY")
            }
            root = "/"
        orders = {
            "parent": os.getpid(),
            "note": str(self._file(daemon.name)),
            "root": root,
            "shm": self._real(daemon.shm),
            "output": self._real(f"{daemon.log}/output.log"),
            "binds": list(binds),
            "command": command,
            "environment": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment},
        }
        script = Path(__file__).with_name("mpslaunch.py")
        try:
            done = subprocess.run(  # noqa: S603 - our own script
                [sys.executable, "-I", "-S", str(script)],
                input=json.dumps(orders),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TransientError(
                f"the MPS control daemon {daemon.name} was not started within {COMMAND_SECONDS:g} s"
            ) from None
        if done.returncode != 0:
            raise BackendError(
                f"the MPS control daemon {daemon.name} cannot be started: {shown(done.stderr.strip(), 300)}"
            )

    def runs(self, name: str) -> bool:
        """Look for the process that was noted."""
        return self._process(name) is not None

    def end(self, name: str) -> None:
        """End its session: first kindly, then not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            process = self._process(name)
            if process is None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, number)
            if self._is_gone(name, END_SECONDS / 2):
                break
        else:
            raise TransientError(f"the MPS control daemon {name} does not end")
        self._file(name).unlink(missing_ok=True)

    def _is_gone(self, name: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.runs(name):
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _process(self, name: str) -> int | None:
        try:
            note: dict[str, Any] = json.loads(self._file(name).read_bytes())
            process, started = int(note["process"]), int(note["started"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return process if start_time(process) == started else None


def start_time(process: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None for one that is gone or a zombie (proc(5))."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def _unit(name: str) -> str:
    return f"dradriver-mps-{_checked(name)}.service"


def _checked(name: str) -> str:
    """Return a daemon's name, which comes back from a journal: nothing else may become a path or a unit."""
    if not _NAME.fullmatch(name):
        raise BackendError(f"{shown(name)} is no name of an MPS control daemon")
    return name


__all__ = ["Daemon", "Launcher", "Mps", "Process", "Systemd", "start_time"]
