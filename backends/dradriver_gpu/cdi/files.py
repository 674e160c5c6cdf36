"""The driver's other files: programs, firmware, configuration, sockets and modules of the X server."""

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from dradriver_gpu.cdi.content import held
from dradriver_gpu.cdi.groups import configuration, programs
from dradriver_gpu.cdi.tree import File, Tree

PROGRAM_DIRECTORY = "/usr/bin"
"""Where programs are in a container: in the search path of every image, whether /bin is a link to it or not."""

_PROGRAM_DIRECTORIES = (
    "usr/bin",
    "usr/sbin",
    "bin",
    "sbin",
    "usr/local/bin",
    "usr/local/sbin",
    "usr/local/nvidia/bin",
    "run/current-system/sw/bin",
)

_FIRMWARE = re.compile(r"gsp[A-Za-z0-9_.-]*\.bin")

_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_MPS = "tmp/nvidia-mps"

_XORG = ("usr/lib/xorg/modules", "usr/lib64/xorg/modules")
"""Where X servers look for modules, by Debian's way and by Fedora's."""

_XORG_BELOW = ("nvidia/xorg", "xorg/modules", "xorg/modules/updates")


@dataclass(frozen=True, slots=True)
class Placed:
    """A file of the host, and where it is in a container.

    is_channel   whether it is a socket, or a directory with pipes: written to, never executed
    """

    file: File
    path: str
    is_channel: bool = False


def find_programs(tree: Tree, version: str, capabilities: Collection[str]) -> Iterator[Placed]:
    """Yield the driver's programs."""
    for name in programs(capabilities):
        found = (tree.find(f"{directory}/{name}") for directory in _PROGRAM_DIRECTORIES)
        program = _of_version([file for file in found if file and file.is_program], version)
        if program:
            yield Placed(program, f"{PROGRAM_DIRECTORY}/{name}")


def find_firmware(driver: Tree, host: Tree, version: str, release: str, custom: str) -> Iterator[Placed]:
    """Yield the firmware of the GPU System Processor, of this driver version, from where the kernel takes it.

    release   of the kernel
    custom    a directory that the kernel was told of (firmware_class.path), on the host
    """
    places = [(host, custom.strip("/"))] if custom.startswith("/") and ".." not in custom.split("/") else []
    for base in ("lib/firmware/updates", "lib/firmware"):
        places += [(driver, f"{base}/{release}"), (driver, base)] if release else [(driver, base)]
    seen: set[str] = set()
    for tree, base in places:
        for name in tree.names(f"{base}/nvidia/{version}"):
            file = tree.within(f"{base}/nvidia/{version}", name) if _FIRMWARE.fullmatch(name) else None
            if file and name not in seen:
                seen.add(name)
                yield Placed(file, f"/lib/firmware/nvidia/{version}/{name}")


def find_configuration(tree: Tree, capabilities: Collection[str]) -> Iterator[Placed]:
    """Yield what loaders of OpenCL, Vulkan, EGL and X look for, to where they look for it."""
    for path in configuration(capabilities):
        kind = path.removeprefix("/etc/").removeprefix("/usr/share/")
        # The last: a driver root that holds the driver alone has them at its top.
        places = (f"etc/{kind}", f"usr/local/share/{kind}", f"usr/share/{kind}", kind)
        file = next((file for place in places if (file := tree.file(place))), None)
        if file:
            yield Placed(file, path)


def find_sockets(trees: Iterable[Tree]) -> Iterator[Placed]:
    """Yield the sockets of the driver's daemons, each from the first of the trees that has it."""
    trees = tuple(trees)
    for path in _SOCKETS:
        found = (tree.find(path, alone=True) for tree in trees)
        file = next((file for file in found if file and stat.S_ISSOCK(file.status.st_mode)), None)
        if file:
            yield Placed(file, f"/{path}", is_channel=True)


def find_mps_pipes(trees: Iterable[Tree]) -> Placed | None:
    """Return the pipes of an MPS control daemon that somebody has started on the host for all.

    They count only where they are in a directory, no link, of the superuser or of ours: everybody may make files in
    /tmp, and containers are to be led neither to another's daemon nor into other directories of the host.
    """
    for tree in trees:
        pipes = tree.find(_MPS, alone=True)
        control = tree.find(f"{_MPS}/control", alone=True) if pipes else None
        if pipes and control and _is_own_directory(pipes) and not tree.is_link(_MPS):
            return Placed(pipes, f"/{_MPS}", is_channel=True)
    return None


def find_xorg_modules(tree: Tree, version: str, libraries: Iterable[str]) -> Iterator[Placed]:
    """Yield the modules of the X server: to where it looks for them, and to where the driver's configuration says.

    libraries   directories of libraries
    """
    bases = [f"{directory}/{inner}" for directory in libraries for inner in _XORG_BELOW]
    bases = list(dict.fromkeys((*bases, *_XORG)))
    for kind, name, others in (
        ("drivers", "nvidia_drv.so", ()),
        ("extensions", f"libglxserver_nvidia.so.{version}", ("libglxserver_nvidia.so",)),
    ):
        places = [place for base in bases for place in (f"{base}/{kind}/{name}", f"{base}/{name}")]
        found = {place: file for place in places if (file := tree.file(place))}
        file = _of_version(list(found.values()), version)
        if file is None:
            continue
        own = {place.rpartition("/")[0] for place, one in found.items() if one == file}
        for directory in sorted({*own, *(f"{base}/{kind}" for base in _XORG)}):
            for called in (name, *others):
                yield Placed(file, f"/{directory}/{called}")


def _of_version(files: list[File], version: str) -> File | None:
    """Return the file that is of a driver version, where there are several by one name; else the first."""
    distinct = list({file.path: file for file in files}.values())
    if len(distinct) > 1:
        distinct = [file for file in distinct if held(file.path, (version,))] or distinct
    return distinct[0] if distinct else None


def _is_own_directory(file: File) -> bool:
    return stat.S_ISDIR(file.status.st_mode) and file.status.st_uid in {0, os.geteuid()}
