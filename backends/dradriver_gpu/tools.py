"""The driver's own programs: found below the driver root, and called by argument list, within a time.

Programs of the driver are called where NVML has no function (time slices), and to talk to MPS control daemons.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dradriver.backend import BackendError, TransientError
from dradriver.host import Host
from dradriver.model import shown
from dradriver_gpu.library import driver_host, find_libraries

DIRECTORIES = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/local/nvidia/bin", "opt/bin")
"""Where programs are below a driver root: distributions, driver containers, Google's and Bottlerocket's images."""

SMI, MPS_CONTROL = "nvidia-smi", "nvidia-cuda-mps-control"

SECONDS = 15.0
"""How long a program may take: nvidia-smi initializes all GPUs, some 2 s for eight of them without persistence mode."""

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C"}


class Tools:
    """The programs of one driver root."""

    def __init__(self, host: Host, root: str) -> None:
        """Look for nothing yet. `root` is below the host root."""
        self._host = host
        self._root = root

    def find(self, name: str) -> str:
        """Return where a program is below the driver root. Raises BackendError where it is not."""
        driver = driver_host(self._host, self._root)
        for directory in DIRECTORIES:
            path = f"{directory}/{name}"
            try:
                if driver.path(path).stat().st_mode & 0o111:
                    return path
            except OSError:
                continue
        looked = ", ".join(DIRECTORIES)
        raise BackendError(
            f"{name} is not below the driver root {driver.root} (option driverRoot; looked in {looked})"
        )

    def path(self, name: str) -> Path:
        """Return a program's path on this machine, links followed. Raises BackendError."""
        return driver_host(self._host, self._root).path(self.find(name))

    def run(
        self,
        name: str,
        *arguments: str,
        commands: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
    ) -> str:
        """Run a program with these lines as its input; return what it prints.

        Raises TransientError where it does not end in time, BackendError where it is not there or fails.
        """
        path = self.path(name)
        lines = "".join(f"{line}\n" for line in commands)
        try:
            done = subprocess.run(  # noqa: S603 - a program of the driver, and arguments of ours
                [str(path), *arguments],
                input=lines,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                env={
                    **_ENVIRONMENT,
                    **(self._preload() if name == SMI else {}),
                    **(environment or {}),
                },
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TransientError(f"{name} did not end within {seconds:g} s") from None
        except OSError as error:
            raise BackendError(f"{path}: {error.strerror}") from None
        if done.returncode != 0:
            said = " ".join(f"{done.stdout} {done.stderr}".split())
            words = " ".join([name, *arguments, *(f"({line})" for line in commands)])
            raise BackendError(
                f"{words}: exit code {done.returncode}: {shown(said, 300) if said else 'no word'}"
            )
        return done.stdout

    def _preload(self) -> dict[str, str]:
        """Have nvidia-smi of another root find the driver's library: its dynamic linker looks below `/` only."""
        if self._root.strip("/") == "" and self._host.root == Path("/"):
            return {}
        library = next(find_libraries(self._host, self._root), None)
        return {"LD_PRELOAD": str(library.path)} if library else {}
