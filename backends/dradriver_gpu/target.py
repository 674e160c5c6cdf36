"""What a published device is on the hardware: its name says so, and nothing else need be remembered."""

from dataclasses import dataclass
from enum import Enum

from dradriver.backend import PlanError
from dradriver.model import Device, shown
from dradriver_gpu.devices import PASSTHROUGH_SUFFIX
from dradriver_gpu.geometry import Placement
from dradriver_gpu.inventory import GPU, ComputeInstance, GPUInstance, GPUInventory


class Kind(Enum):
    """How a GPU, or a part of it, is given out."""

    WHOLE = "whole GPU"
    SHARE = "share of a GPU"
    PARTITION = "partition"
    EXISTING = "MIG device"
    PASSTHROUGH = "GPU for a virtual machine"


@dataclass(frozen=True, slots=True)
class Target:
    """The hardware behind a device.

    placement           where a partition is created
    instance, compute   of a MIG device that stands
    """

    kind: Kind
    gpu: GPU
    placement: Placement | None = None
    instance: GPUInstance | None = None
    compute: ComputeInstance | None = None

    @property
    def is_mig(self) -> bool:
        """Whether it is a part of a GPU in MIG mode."""
        return self.kind in {Kind.PARTITION, Kind.EXISTING}


def target_of(device: Device, inventory: GPUInventory) -> Target:
    """Return what a device is now. Raises PlanError where it is not there any more."""
    gpu = inventory.gpu(device.thing)
    if gpu is None:
        raise PlanError(f"device {shown(device.name)}: its GPU is not there any more")
    part = device.name.removeprefix(gpu.name)
    if not part:
        return Target(Kind.SHARE if device.shared else Kind.WHOLE, gpu)
    if part == f"-{PASSTHROUGH_SUFFIX}":
        return Target(Kind.PASSTHROUGH, gpu)
    uuid = device.attributes.get("uuid")
    if uuid is None:
        for placement in gpu.geometry.placements if gpu.geometry else ():
            if part == f"-{placement.suffix}":
                return Target(Kind.PARTITION, gpu, placement, gpu.instance_at(placement))
        raise PlanError(f"device {device.name}: the driver knows no such place any more")
    for instance in gpu.instances:
        for compute in instance.compute:
            if compute.uuid == uuid and part == f"-{instance.part(compute)}":
                return Target(Kind.EXISTING, gpu, instance=instance, compute=compute)
    raise PlanError(f"device {device.name}: the MIG device {shown(uuid)} is gone")
