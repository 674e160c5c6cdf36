"""Finding the driver: its NVML library below the driver root, and its kernel module."""

import platform
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dradriver.host import Host

NAME = "libnvidia-ml.so.1"

_MACHINE = platform.machine()

# Debian and Ubuntu, Fedora and SUSE, Google's and AWS's images, Debian's alternatives, WSL, driver containers.
_DIRECTORIES = (
    f"usr/lib/{_MACHINE}-linux-gnu",
    "usr/lib64",
    f"usr/lib/{_MACHINE}-linux-gnu/nvidia/current",
    "lib64",
    f"lib/{_MACHINE}-linux-gnu",
    "usr/lib",
    "lib",
    "usr/local/nvidia/lib64",
    "usr/lib64/nvidia",
    "usr/lib/nvidia",
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
)

MODULE_VERSION = "sys/module/nvidia/version"
BOUND = "sys/bus/pci/drivers/nvidia"
TAKEN = "proc/driver/nvidia/gpus"


@dataclass(frozen=True, slots=True)
class Library:
    """A library as it is found now. Equal are those for which a session that is open serves on.

    path    links followed, on this machine
    file    device, inode and time of the last change
    taken   PCI addresses that the kernel module drives: a session of NVML knows only those of its beginning
    """

    path: Path
    file: tuple[int, int, int]
    taken: tuple[str, ...]


def find_libraries(host: Host, root: str) -> Iterator[Library]:
    """Yield the NVML libraries below a driver root, the likeliest first.

    Links are followed as if the driver root were `/`: it is a root file system of its own where the driver comes in a
    container.
    """
    driver = driver_host(host, root)
    taken = _taken(host)
    seen: set[tuple[int, int, int]] = set()
    for directory in _DIRECTORIES:
        try:
            path = driver.path(f"{directory}/{NAME}")
            status = path.stat()
        except OSError:
            continue
        file = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if file not in seen and stat.S_ISREG(status.st_mode):
            seen.add(file)
            yield Library(path, file, taken)


def _taken(host: Host) -> tuple[str, ...]:
    """Return the PCI addresses of the GPUs that the driver has taken.

    A GPU is in procfs once it has. The link to its driver is there before the driver is even asked (really_probe() in
    drivers/base/dd.c), and a session that begins in between does not know it.
    """
    names = host.list_dir(TAKEN if host.exists(TAKEN) else BOUND)
    return tuple(sorted(name for name in names if ":" in name))


def driver_host(host: Host, root: str) -> Host:
    """Return the driver root as a root directory of its own."""
    return host if root.strip("/") == "" else Host(host.path(root))


def module_number(host: Host) -> int | None:
    """Return a number of the kernel module that is loaded, which loading it again changes; None where none is."""
    try:
        return host.path(MODULE_VERSION).parent.stat().st_ino
    except OSError:
        return None


def module_version(host: Host) -> str | None:
    """Return the version of the kernel module that is loaded; None where none is."""
    return host.read_text(MODULE_VERSION)
