"""Control daemons as processes of their own session, with a mount namespace of their own for /dev/shm.

What runs is noted with its start time, by which another process that got its number is told apart.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dradriver.backend import BackendError, TransientError
from dradriver.host import Host
from dradriver.model import shown
from dradriver_gpu.mps.daemons import COMMAND_SECONDS, POLL_SECONDS, Daemon, Launcher, checked

END_SECONDS = 10.0

NOTE = "process.json"

PROC = Path("/proc")

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Status:
    """What proc(5) tells of a process. `started` is in clock ticks since boot."""

    state: str
    session: int
    started: int

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and only its parent has not heard of it."""
        return self.state in {"Z", "X"}


class Process(Launcher):
    """Processes. They end with the container or the unit that they are started in."""

    def __init__(self, host: Host, directory: str) -> None:
        """`directory` is below the host root."""
        self._host = host
        self._directory = f"{directory.rstrip('/')}/mps"

    def _file(self, name: str) -> Path:
        return self._host.path(f"{self._directory}/{checked(name)}/{NOTE}")

    def check(self) -> None:
        """Say nothing: what is in the way shows at the start."""

    def start(self, daemon: Daemon) -> None:
        """Start it by the script `spawn`, which notes the process before that becomes the daemon."""
        root = self._host.path(daemon.root)
        inside = Host(root)
        binds = [(self._host.path(daemon.shm), inside.path("dev/shm"))]
        if daemon.root != "/":
            binds += [(self._host.path(path), inside.path(path)) for path in daemon.directories]
        orders = {
            "parent": os.getpid(),
            "note": str(self._file(daemon.name)),
            "root": str(root),
            "output": str(self._host.path(f"{daemon.log}/output.log")),
            "binds": [[str(source), str(target)] for source, target in binds],
            "command": list(daemon.command),
            "environment": {"PATH": _PATH, **daemon.environment},
        }
        script = Path(__file__).with_name("spawn.py")
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
        return is_alive(self._file(name))

    def end(self, name: str) -> None:
        """End all of its session: first kindly, then not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._members(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            if self._is_gone(name, END_SECONDS / 2):
                break
        else:
            raise TransientError(f"the MPS control daemon {name} does not end")
        self._file(name).unlink(missing_ok=True)

    def _is_gone(self, name: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self._members(name):
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _members(self, name: str) -> list[int]:
        """Return the processes of a daemon's session: itself, and the servers that it started and may have left.

        The kernel gives the number of a session to no other process while the session lasts.
        """
        noted = read_note(self._file(name))
        if noted is None:
            return []
        leader, started = noted
        now = status(leader)
        if now and now.started != started:
            return []
        return [process for process, found in _processes() if found.session == leader and not found.is_over]


def read_note(file: Path) -> tuple[int, int] | None:
    """Return the number and the start time of a process that was noted; None where none is."""
    try:
        note = json.loads(file.read_bytes())
        process, started = int(note["process"]), int(note["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (process, started) if process > 1 else None


def is_alive(file: Path, proc: Path = PROC) -> bool:
    """Return whether the process that was noted in a file runs. `proc` shows the processes among which it is."""
    noted = read_note(file)
    if noted is None:
        return False
    now = status(noted[0], proc)
    return now is not None and now.started == noted[1] and not now.is_over


def status(process: int, proc: Path = PROC) -> Status | None:
    """Return how a process is; None where there is none."""
    try:
        text = (proc / str(process) / "stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()
        return Status(fields[0], int(fields[3]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def _processes() -> Iterator[tuple[int, Status]]:
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and (found := status(int(entry.name))):
            yield int(entry.name), found


__all__ = ["NOTE", "Process", "Status", "is_alive", "read_note", "status"]
