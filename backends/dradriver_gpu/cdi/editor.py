"""What containers get of the driver and of GPUs, kept until the driver changes."""

import logging
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from dradriver.backend import UnavailableError
from dradriver.host import Host
from dradriver.model import shown
from dradriver_cdi import ContainerEdits, DeviceNode
from dradriver_gpu.cdi.edits import DriverFiles, file_edits, mount
from dradriver_gpu.cdi.files import (
    find_configuration,
    find_firmware,
    find_mps_pipes,
    find_programs,
    find_sockets,
    find_xorg_modules,
)
from dradriver_gpu.cdi.groups import COMPUTE, DISPLAY, GRAPHICS, UTILITY
from dradriver_gpu.cdi.hook import HookProgram, find_hook_program
from dradriver_gpu.cdi.libraries import directories, find_libraries
from dradriver_gpu.cdi.nodes import MissingNodeError, Nodes, Numbers, character_device
from dradriver_gpu.cdi.tree import Tree
from dradriver_gpu.inventory import GPU, Driver, DriverState

log = logging.getLogger(__name__)

_VERSION = re.compile(r"[0-9]{1,5}(\.[0-9]{1,5}){1,3}")
_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+~-]*")
_FIRMWARE_PATH = "sys/module/firmware_class/parameters/path"
_RELEASE = "proc/sys/kernel/osrelease"


@dataclass(frozen=True, slots=True)
class _Walk:
    """What one walk through the driver's files found, and of which driver.

    key     driver version, its NVML library, and the kernel's directory of firmware
    trees   what was looked at
    """

    key: tuple[str, Path | None, str]
    trees: tuple[Tree, ...]
    edits: ContainerEdits = field(default_factory=ContainerEdits)
    program: HookProgram | None = None
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class ContainerEditor:
    """Container edits of one driver root and one set of driver capabilities.

    What every container needs is `base`; what a device adds to it is `gpu` or `instance`. Before a claim is answered,
    `check` says whether base is whole.
    """

    def __init__(
        self,
        host: Host,
        root: str,
        capabilities: Collection[str],
        *,
        numbers: Callable[[Path], Numbers | None] = character_device,
    ) -> None:
        """Look at nothing yet.

        root           driver root below the host's
        capabilities   by the names of NVIDIA_DRIVER_CAPABILITIES
        numbers        reads the numbers of a device node
        """
        self._host = host
        self._root = root
        # What is shown has to be drawn (nvidia-container-toolkit, internal/modifier/graphics.go).
        self._capabilities = frozenset(capabilities) | ({GRAPHICS} if DISPLAY in capabilities else set())
        self._nodes = Nodes(host, root, numbers)
        self._lock = threading.Lock()
        self._last: _Walk | None = None

    def base(self, driver: Driver) -> ContainerEdits:
        """Return what every container with any GPU needs: control nodes, libraries, programs, hooks.

        Nothing for a driver that is not ready or not whole: rather none than a part of it. It names the nodes that must
        be there even where they are not, so that no container starts without.
        """
        walk = self._walked(driver, anew=True) if driver.state is DriverState.READY else None
        if walk is None or walk.faults:
            return ContainerEdits()
        return ContainerEdits(device_nodes=self._nodes.control()) + walk.edits

    def check(self, driver: Driver) -> None:
        """Raise where a container would not get all that it needs: MissingNodeError, or UnavailableError of a file."""
        if driver.state is not DriverState.READY:
            raise UnavailableError(driver.reason or "the NVIDIA driver is not ready")
        faults = self._walked(driver, anew=False).faults
        if faults:
            raise UnavailableError(f"the driver in {shown(self._root)} is not whole: {'; '.join(faults)}")
        self._nodes.check_control()

    def gpu(self, gpu: GPU) -> ContainerEdits:
        """Return what a whole GPU, or a share of it, adds to base: its node, and where it draws those of DRM.

        Where there is an MPS daemon for all on the host, its pipes come along at /tmp/nvidia-mps; a mount of the same
        path that is added behind replaces them.

        Raises MissingNodeError.
        """
        return self._with(gpu, (self._nodes.gpu(_minor(gpu)),), graphics=True)

    def instance(
        self, gpu: GPU, gpu_instance: int, compute_instance: int, *, graphics: bool = False
    ) -> ContainerEdits:
        """Return what a MIG device adds to base: the node of its GPU, and those of its two capabilities.

        gpu_instance, compute_instance   the driver's numbers of them, once they exist
        graphics                         whether its profile can draw (`+gfx`)

        Otherwise as `gpu`.
        """
        minor = _minor(gpu)
        nodes = (self._nodes.gpu(minor), *self._nodes.capabilities(minor, gpu_instance, compute_instance))
        return self._with(gpu, nodes, graphics=graphics)

    def notes(self, driver: Driver) -> tuple[str, ...]:
        """Return what was odd about the driver's files, and how it was taken."""
        return self._walked(driver, anew=False).notes if driver.state is DriverState.READY else ()

    @property
    def _draws(self) -> bool:
        return GRAPHICS in self._capabilities

    def _with(self, gpu: GPU, nodes: tuple[DeviceNode, ...], *, graphics: bool) -> ContainerEdits:
        """Return the edits of a device with what comes along with its nodes."""
        edits = ContainerEdits(device_nodes=nodes)
        if graphics and self._draws:
            edits += self._drm(gpu.address)
        pipes = find_mps_pipes(self._trees()) if COMPUTE in self._capabilities else None
        return edits + ContainerEdits(mounts=(mount(pipes),)) if pipes else edits

    def _trees(self) -> tuple[Tree, ...]:
        """Return the driver root and the host's root, once where they are one."""
        host = Tree(self._host)
        return (Tree(self._host, self._root), host) if self._root.strip("/") else (host,)

    def _drm(self, address: str) -> ContainerEdits:
        """Return the nodes by which a GPU draws, and the links by which they are found by their place on the bus."""
        nodes = self._nodes.drm(address)
        program = self._last.program if self._last else find_hook_program(Tree(self._host))
        if program is None or not nodes:
            return ContainerEdits(device_nodes=nodes)
        names = [node.path.rpartition("/")[2] for node in nodes]
        links = [
            (
                f"../{name}",
                f"/dev/dri/by-path/pci-{address}-{'card' if name.startswith('card') else 'render'}",
            )
            for name in names
        ]
        return ContainerEdits(device_nodes=nodes, hooks=(program.links(links),))

    def _walked(self, driver: Driver, *, anew: bool) -> _Walk:
        """Return what the driver's files come to, read again where they are, or may be, otherwise.

        anew   look whether they are; else what was read of this driver last will do
        """
        firmware = self._host.read_text(_FIRMWARE_PATH) or ""
        key = (driver.version, driver.library, firmware)
        with self._lock:
            last = self._last
            if last is None or last.key != key or (anew and any(tree.changed() for tree in last.trees)):
                told = last.notes if last else ()
                last = self._last = self._walk(key)
                for note in last.notes:
                    if note not in told:
                        log.warning("the driver in %s: %s", self._root, note)
            return last

    def _walk(self, key: tuple[str, Path | None, str]) -> _Walk:
        version, library, firmware = key
        trees = self._trees()
        driver, host = trees[0], trees[-1]
        if not _VERSION.fullmatch(version):
            fault = f"{shown(version)} is not the version of a driver"
            return _Walk(key, trees, faults=(fault,))
        near = driver.relative(library) if library is not None else None
        libraries = find_libraries(driver, version, near, self._capabilities)
        places = directories(near.rpartition("/")[0] if near is not None else None)
        release = self._host.read_text(_RELEASE) or ""
        release = release if _NAME.fullmatch(release) else ""
        others = [
            *find_programs(driver, version, self._capabilities),
            *find_firmware(driver, host, version, release, firmware),
            *find_configuration(driver, self._capabilities),
            *(find_sockets(trees) if UTILITY in self._capabilities else ()),
            *(find_xorg_modules(driver, version, places) if DISPLAY in self._capabilities else ()),
        ]
        files = DriverFiles(version, libraries, tuple(others), graphics=self._draws)
        program = find_hook_program(host)
        return _Walk(key, trees, file_edits(files, program), program, libraries.faults, libraries.notes)


def _minor(gpu: GPU) -> int:
    if gpu.minor is None:
        raise MissingNodeError(
            "/dev/nvidia*", f"is not known: the driver does not tell the minor number of {gpu.name}"
        )
    return gpu.minor
