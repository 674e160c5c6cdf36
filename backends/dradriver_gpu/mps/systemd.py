"""Control daemons as transient units of the host's systemd, which outlive dradriver's own unit."""

import subprocess
from pathlib import Path

from dradriver.backend import BackendError, TransientError, UnavailableError
from dradriver.host import Host
from dradriver.model import shown
from dradriver_gpu.mps.daemons import COMMAND_SECONDS, Daemon, Launcher, checked

END_SECONDS = 10.0

BOOTED = "run/systemd/system"
"""There where systemd runs (sd_booted(3))."""

_RUN, _CONTROL = "systemd-run", "systemctl"


class Systemd(Launcher):
    """Transient units."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def check(self) -> None:
        """Say why systemd cannot be asked from here."""
        trouble = self.unreachable()
        if trouble:
            raise BackendError(
                f"{trouble}: MPS control daemons cannot be units of systemd (option mpsLauncher: pod in a cluster, "
                "with the keeper of docs/install.md)"
            )

    def unreachable(self) -> str:
        """Return why systemd cannot be asked from here; empty where it can.

        Its programs are the host's: in a pod, whose root is another one, they find neither their libraries nor
        systemd's socket.
        """
        if self._is_elsewhere():
            return f"the host is seen below {self._host.root} (option hostRoot), where its systemd cannot be reached"
        if not self._host.exists(BOOTED):
            return f"systemd does not run here (there is no /{BOOTED})"
        missing = next((program for program in (_RUN, _CONTROL) if self._find(program) is None), None)
        return f"{missing} is not on this host" if missing else ""

    def _is_elsewhere(self) -> bool:
        return self._host.root != Path("/")

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
        self._call(_RUN, *options, "--", *daemon.command)

    def runs(self, name: str) -> bool:
        """Ask for the unit's state; one that is on its way up or down counts as running."""
        trouble = self.unreachable()
        if trouble:
            raise UnavailableError(f"whether the MPS control daemon {name} runs is not known: {trouble}")
        state = self._call(_CONTROL, "show", "--property=ActiveState", "--value", _unit(name)).strip()
        return state in {"active", "activating", "reloading", "deactivating"}

    def end(self, name: str) -> None:
        """Stop the unit, with all processes in it."""
        if self.runs(name):
            self._call(_CONTROL, "stop", _unit(name), seconds=END_SECONDS + COMMAND_SECONDS)

    def _find(self, program: str) -> Path | None:
        for directory in ("usr/bin", "bin"):
            if self._host.exists(f"{directory}/{program}"):
                return self._host.path(f"{directory}/{program}")
        return None

    def _call(self, program: str, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
        path = self._find(program)
        if path is None:
            raise BackendError(f"{program} is not on this host any more")
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


def _unit(name: str) -> str:
    return f"dradriver-mps-{checked(name)}.service"


__all__ = ["Systemd"]
