"""The device nodes of the driver and of its GPUs: that they are there, and are the ones that the kernel serves now.

Facts: nv-chardev-numbers.h of the open kernel modules, and nvidia-modprobe. GPUs, their control node and nvidia-modeset
have one fixed major; nvidia-uvm and nvidia-caps are given one when their modules are loaded, which /proc/devices tells.
Capabilities: NVIDIA's MIG User Guide, "Device Nodes and Capabilities".
"""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dradriver.backend import TransientError
from dradriver.host import PCI_DIR, Host
from dradriver.model import shown
from dradriver_cdi import DeviceNode
from dradriver_gpu.library import driver_host

Numbers = tuple[int, int]
"""Major and minor number of a character device."""

_CAPABILITY = re.compile(r"^DeviceFileMinor:\s*([0-9]{1,7})\s*$", re.MULTILINE)
_DRM = re.compile(r"(card|renderD)[0-9]{1,4}")
_DEVICE = re.compile(r"([0-9]{1,4}):([0-9]{1,7})")


class MissingNodeError(TransientError):
    """A device node that a container must have is not there, or is not what the kernel serves now.

    node   its path in the container; the message names it too
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"device node {node} {reason}")
        self.node = node


@dataclass(frozen=True, slots=True)
class _Kind:
    """A node: its path in a container, its minor, and its major, or by which name /proc/devices tells it."""

    path: str
    minor: int
    major: int | str = 195


_REQUIRED = (_Kind("/dev/nvidiactl", 255), _Kind("/dev/nvidia-uvm", 0, "nvidia-uvm"))
_OPTIONAL = (_Kind("/dev/nvidia-uvm-tools", 1, "nvidia-uvm"), _Kind("/dev/nvidia-modeset", 254))


def character_device(path: Path) -> Numbers | None:
    """Return the numbers of a character device's node; None for anything else."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    return os.major(status.st_rdev), os.minor(status.st_rdev)


class Nodes:
    """The device nodes of a host.

    They are looked for on the host and in the driver root, where a driver container has its own, each for itself: nodes
    are equal that have equal numbers, and the host's stay when a driver container ends.
    """

    def __init__(
        self, host: Host, root: str, numbers: Callable[[Path], Numbers | None] = character_device
    ) -> None:
        """Look at nothing yet. `numbers` reads a node."""
        self._host = host
        self._root = root
        self._numbers = numbers

    def control(self) -> tuple[DeviceNode, ...]:
        """Return what every container with a GPU needs: nodes that must be there, whether they are or not, and others.

        One that must be there and is not makes the container runtime refuse the container.
        """
        required = [self._find(kind)[0] or _node(kind.path) for kind in _REQUIRED]
        optional = [self._find(kind)[0] for kind in _OPTIONAL]
        return (*required, *(node for node in optional if node))

    def check_control(self) -> None:
        """Raise MissingNodeError where a node is missing that every container with a GPU needs."""
        for kind in _REQUIRED:
            self._require(kind)

    def gpu(self, minor: int) -> DeviceNode:
        """Return the node of a GPU by its minor number. Raises MissingNodeError."""
        return self._require(_Kind(f"/dev/nvidia{minor}", minor))

    def capabilities(self, minor: int, gpu_instance: int, compute_instance: int) -> tuple[DeviceNode, ...]:
        """Return the nodes that give access to a GPU instance and one of its compute instances.

        minor   of the GPU, by which the directories in /proc are named

        Raises MissingNodeError, also while the driver does not tell their numbers.
        """
        instance = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
        nodes = []
        for path in (f"{instance}/access", f"{instance}/ci{compute_instance}/access"):
            match = _CAPABILITY.search(self._host.read_text(path) or "")
            if match is None:
                raise MissingNodeError(
                    "/dev/nvidia-caps/nvidia-cap*", f"is not known: /{path} does not tell its DeviceFileMinor"
                )
            number = int(match[1])
            nodes.append(self._require(_Kind(f"/dev/nvidia-caps/nvidia-cap{number}", number, "nvidia-caps")))
        return tuple(nodes)

    def drm(self, address: str) -> tuple[DeviceNode, ...]:
        """Return the nodes of the Direct Rendering Manager of a GPU, as far as there are any."""
        directory = f"{PCI_DIR}/{address}/drm"
        nodes = []
        for name in self._host.list_dir(directory):
            match = _DEVICE.fullmatch(self._host.read_text(f"{directory}/{name}/dev") or "")
            if match and _DRM.fullmatch(name):
                node, _ = self._find(_Kind(f"/dev/dri/{name}", int(match[2]), int(match[1])))
                nodes += [node] if node else []
        return tuple(nodes)

    def _require(self, kind: _Kind) -> DeviceNode:
        node, reason = self._find(kind)
        if node is None:
            raise MissingNodeError(kind.path, reason)
        return node

    def _find(self, kind: _Kind) -> tuple[DeviceNode | None, str]:
        """Return a node; or None, and why there is none that could be given out."""
        major = kind.major if isinstance(kind.major, int) else self._major(kind.major)
        if major == 0:
            return None, f"is of no use: the kernel module {kind.major} is not loaded (/proc/devices)"
        reason = f"is missing{self._where()}; nvidia-modprobe makes it"
        for prefix, host in self._places():
            resolved = host.resolve(kind.path)
            numbers = self._numbers(host.root / resolved) if resolved is not None else None
            if numbers is None:
                continue
            if numbers[1] == kind.minor and major in {None, numbers[0]}:
                return _node(kind.path, f"{prefix}/{resolved}"), ""
            expected = f"{'any' if major is None else major}:{kind.minor}"
            reason = (
                f"is stale{self._where()}: its numbers are {numbers[0]}:{numbers[1]}, and {expected} are served; "
                "nvidia-modprobe makes it anew once it is removed"
            )
        return None, reason

    def _places(self) -> list[tuple[str, Host]]:
        """Return the roots that may have a /dev, with what the host calls them."""
        resolved = self._host.resolve(self._root) if self._root.strip("/") else None
        own = [(f"/{resolved}", driver_host(self._host, self._root))] if resolved else []
        return [("", self._host), *own]

    def _where(self) -> str:
        return (
            f" on the host and in the driver root {shown(self._root)}"
            if self._root.strip("/")
            else " on the host"
        )

    def _major(self, name: str) -> int | None:
        """Return the major that the kernel serves by a name: 0 for none, None where it does not tell."""
        characters = (self._host.read_text("proc/devices") or "").partition("Block devices:")[0]
        lines = [line.split() for line in characters.splitlines() if "nvidia" in line]
        majors = {fields[1]: fields[0] for fields in lines if len(fields) == 2 and fields[0].isdecimal()}
        return int(majors.get(name, "0")) if majors else None


def _node(path: str, host_path: str = "") -> DeviceNode:
    """Return a node to read and write; nobody need make it anew in the container."""
    return DeviceNode(path, host_path="" if host_path == path else host_path, permissions="rw")
