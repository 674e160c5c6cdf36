"""A backend in one file: scratch space on local disks, one directory for each claim.

Every configured directory is a device with its file system's size as consumable capacity. A claim gets a directory of
its own below it, mounted into the container, and removed with all that is in it at Unprepare.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dradriver.backend import (
    Backend,
    ClaimConfig,
    ContainerEdits,
    HostStep,
    Mount,
    Observed,
    Plan,
    PlannedDevice,
    Request,
    Requested,
    Strict,
    UnavailableError,
    Work,
)
from dradriver.model import (
    Capacity,
    ClaimRef,
    Device,
    Peer,
    PoolContent,
    Quantity,
    RequestPolicy,
    ValidRange,
    shown,
)
from dradriver.model.names import check_label

MIB = 1 << 20


class ScratchOptions(Strict, frozen=True, kw_only=True):
    """What stands below `backends.scratch`: the directories to offer, by name."""

    directories: dict[str, str]

    def __post_init__(self) -> None:
        for name, path in self.directories.items():
            check_label(f"scratch-{name}", "device name")
            if not path.startswith("/"):
                raise ValueError(f"directories.{name}: an absolute path is expected, found {path!r}")


class ScratchConfig(ClaimConfig, frozen=True, kw_only=True):
    """The claim's wishes: where the directory appears in the container."""

    mount_path: str = "/scratch"

    def __post_init__(self) -> None:
        if not self.mount_path.startswith("/") or ".." in self.mount_path.split("/"):
            raise ValueError(
                f"mountPath: an absolute path without '..' is expected, found {self.mount_path!r}"
            )


@dataclass(frozen=True, slots=True)
class Disk:
    """A directory that is offered, and the size of its file system in bytes."""

    name: str
    path: str
    size: int


@dataclass(frozen=True)
class MakeDirectory(HostStep["ScratchBackend"]):
    """Make the claim's directory `name` on a disk.

    The step is read back from a file when it is undone. It names the disk and not a path, so that whatever stands in
    that file, only what is directly below a configured directory can be removed.
    """

    disk: str
    name: str

    def describe(self) -> str:
        return f"make directory {self.name} on disk {self.disk}"

    def apply(self, backend: "ScratchBackend", work: Work) -> None:
        directory = backend.place(self.disk, self.name)
        directory.mkdir(exist_ok=True)
        directory.chmod(0o777)  # whoever the container runs as, like an emptyDir volume

    def revert(self, backend: "ScratchBackend", work: Work) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(backend.place(self.disk, self.name))

    def observe(self, backend: "ScratchBackend", work: Work) -> Observed:
        return Observed.DONE if backend.place(self.disk, self.name).is_dir() else Observed.UNDONE


class ScratchBackend(Backend[tuple[Disk, ...], ScratchOptions]):
    """Scratch space on local disks."""

    kind = "scratch"
    serves = "scratch directories"
    options_type = ScratchOptions
    config_types = (ScratchConfig,)
    step_types = (MakeDirectory,)

    def place(self, disk: str, name: str) -> Path:
        """Return where the directory `name` of a disk is, seen from here."""
        if disk not in self.options.directories:
            raise UnavailableError(f"disk {shown(disk)} is not configured")
        if "/" in name or name in {"", ".", ".."}:
            raise ValueError(f"{shown(name)} is not the name of a directory")
        return self.host.path(self.options.directories[disk]) / name

    def probe(self) -> tuple[Disk, ...]:
        disks = []
        for name, path in sorted(self.options.directories.items()):
            here = self.host.path(path)
            if here.is_dir():
                room = os.statvfs(here)
                disks.append(Disk(name, path, room.f_blocks * room.f_frsize))
        return tuple(disks)

    def devices(self, inventory: tuple[Disk, ...]) -> PoolContent:
        return PoolContent(tuple(_device(disk) for disk in inventory))

    def plan(
        self,
        request: Request,
        inventory: tuple[Disk, ...],
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        disks = {f"scratch-{disk.name}": disk for disk in inventory}
        steps, devices = [], []
        for requested in request.devices:
            disk = disks[requested.allocated.device]
            name = f"{request.claim.uid}-{requested.index}"
            steps.append(MakeDirectory(disk.name, name))
            devices.append(PlannedDevice(requested.allocated, _edits(requested, f"{disk.path}/{name}")))
        return Plan(tuple(devices), tuple(steps))


def _device(disk: Disk) -> Device:
    mib = Quantity.from_int(MIB, binary=True)
    policy = RequestPolicy(default=mib, valid_range=ValidRange(min=mib, step=mib))
    size = Quantity.from_int(disk.size // MIB * MIB, binary=True)
    return Device(name=f"scratch-{disk.name}", capacity={"storage": Capacity(size, policy)}, shared=True)


def _edits(requested: Requested, path: str) -> ContainerEdits:
    target = requested.config(ScratchConfig).mount_path
    return ContainerEdits(mounts=(Mount(host_path=path, container_path=target, options=("rbind", "rw")),))
