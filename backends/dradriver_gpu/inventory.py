"""What was read of the driver and of each GPU: plain frozen data, from which devices, plans and container edits come.

What a GPU or its driver does not tell is None. Units are in the names; memory is in bytes where not said otherwise.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from dradriver.backend.vfio import VFIO
from dradriver.model import AttributeValue
from dradriver_gpu.geometry import Geometry, Placement, Resources, label
from dradriver_gpu.xids import Severity

_NAME = re.compile(r"gpu-([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])")


class DriverState(Enum):
    """How far the driver is there.

    ABSENT    neither its library nor its kernel module
    PARTIAL   some of it: nothing can be read, and `Driver.reason` says what is missing
    READY     its library answers
    """

    ABSENT = "absent"
    PARTIAL = "partial"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver of this host.

    root     the driver root below the host root, as configured: `/`, `/run/nvidia/driver` ...
    version  as NVML says it, with its leading zeros: `580.65.06`; so do library names end
    cuda     newest CUDA version that it supports, major and minor
    library  the NVML library, links followed, as this process opens it
    reason   for people, where it is not READY
    """

    state: DriverState
    root: str
    version: str = ""
    cuda: tuple[int, int] | None = None
    library: Path | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MigMode:
    """The MIG mode of a GPU that has one.

    enabled     the mode now
    pending     the mode after the next reset
    switchable  whether it changes at once, without a reset (Hopper and later)
    """

    enabled: bool
    pending: bool
    switchable: bool


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance: the MIG device that a container sees.

    id          within its GPU instance
    uuid        `MIG-...`; None where the driver does not give the MIG device away
    resources   what it can use, engines shared with its neighbours; None where unknown
    slices      its compute slices
    """

    id: int
    uuid: str | None
    resources: Resources | None = None
    slices: int | None = None


@dataclass(frozen=True, slots=True)
class GPUInstance:
    """A GPU instance that stands now, whoever made it.

    id         number that the driver gave it; numbers are used again
    start      its first memory slice, of `size`
    placement  its profile and place in the GPU's geometry; None for a profile that is not listed
    ours       whether a claim of ours made it; else it is foreign, and what it takes is not offered
    """

    id: int
    profile_id: int
    start: int
    size: int
    placement: Placement | None
    compute: tuple[ComputeInstance, ...] = ()
    ours: bool = False

    def part(self, compute: ComputeInstance) -> str:
        """Return the end of the name of a compute instance's device; one of several is told apart by its number."""
        name = label(self.placement.profile.name) if self.placement else f"profile-{self.profile_id}"
        end = f"-ci-{compute.id}" if len(self.compute) > 1 else ""
        return f"mig-{name}-{self.start}{end}"


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVLink domain that a GPU has joined: GPUs with one cluster and clique reach each other's memory."""

    cluster: str
    clique: int


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Rows of memory that were replaced: how many, whether a reset is due, and whether it failed."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class MemoryErrors:
    """Errors of a GPU's memories.

    uncorrected         how many could not be corrected since the GPU was reset or the driver loaded
    retirement_pending  whether a reset is due to retire pages (GPUs before Ampere)
    sram_threshold      whether its SRAM had more than it should have in its life
    """

    uncorrected: int | None = None
    retirement_pending: bool | None = None
    sram_threshold: bool | None = None


@dataclass(frozen=True, slots=True)
class Passthrough:
    """What matters for giving a GPU to a virtual machine.

    driver       the kernel driver that it is bound to; None for none
    iommu_group  None without an IOMMU
    vendor, device   PCI ids, as 0x10de
    """

    driver: str | None
    iommu_group: int | None
    vendor: int | None
    device: int | None

    @property
    def is_bound(self) -> bool:
        """Whether it is bound to vfio-pci, so that NVML does not know it."""
        return self.driver == VFIO


@dataclass(frozen=True, slots=True)
class GPU:
    """One physical GPU.

    address         `0000:41:00.0`, as sysfs has it
    uuid            `GPU-...`; None where NVML does not show the GPU and never did
    index, minor    NVML's number, which moves, and N of /dev/nvidiaN; None where NVML does not show the GPU
    place           attributes of where it is, the same on all kinds of devices
    mig             None on a GPU without MIG
    geometry        None where there is no MIG, or the driver does not tell (before 550 only in MIG mode)
    creatable       whether this driver makes instances at a given place (460 and later)
    instances       GPU instances that stand, by id; empty with MIG mode off
    memory_node     NUMA node that the kernel made of the GPU's memory (Grace)
    addressing      "None", "HMM" or "ATS"
    virtualization  NVML_GPU_VIRTUALIZATION_MODE_*: 0 bare metal, 1 passed through, 2 vGPU, 3 and 4 vGPU host
    compute_mode    NVML_COMPUTEMODE_*: 0 default, 2 prohibited, 3 exclusive process
    recovery        what the driver asks for (NVML_GPU_RECOVERY_ACTION_*): 0 nothing
    event_types     mask of the NVML events that it can send
    visible         whether NVML shows it now; else it is bound to another driver, and facts are the last known ones
    link_health     how its NVLinks are (NVML_GPU_FABRIC_HEALTH_SUMMARY_*)
    fault           why it cannot be used, as it answers now; empty where it is well
    lost            whether that is since it is off the bus, or answers nothing until it is reset
    """

    address: str
    uuid: str | None = None
    index: int | None = None
    minor: int | None = None
    place: Mapping[str, AttributeValue] = field(default_factory=lambda: MappingProxyType({}))
    product: str | None = None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    mig: MigMode | None = None
    max_mig_devices: int | None = None
    geometry: Geometry | None = None
    creatable: bool = True
    instances: tuple[GPUInstance, ...] = ()
    module_id: int | None = None
    memory_node: int | None = None
    addressing: str | None = None
    fabric: Fabric | None = None
    virtualization: int | None = None
    compute_mode: int | None = None
    ecc_enabled: bool | None = None
    ecc_pending: bool | None = None
    rows: RemappedRows | None = None
    errors: MemoryErrors = MemoryErrors()
    link_health: int | None = None
    recovery: int | None = None
    event_types: int | None = None
    passthrough: Passthrough | None = None
    visible: bool = True
    fault: str = ""
    lost: bool = False

    @property
    def name(self) -> str:
        """The name of its device, its counter set, and the thing behind its parts: `gpu-0000-41-00-0`."""
        return gpu_name(self.address)

    def instance_at(self, placement: Placement) -> GPUInstance | None:
        """Return the instance of that profile at that very place."""
        return next((one for one in self.instances if one.placement == placement), None)

    def instance(self, number: int) -> GPUInstance | None:
        """Return the instance with that id."""
        return next((one for one in self.instances if one.id == number), None)


@dataclass(frozen=True, slots=True)
class Ailment:
    """Something that is wrong with a GPU, or with a part of it only.

    gpu          name of the GPU
    gpu_instance, compute_instance   the instance that it concerns, and nothing else
    slices       where given: it concerns what takes one of these memory slices
    key, value   of its taint, `gpu.dradriver.io/<key>`; an empty key for no taint of its own
    since        when it was first seen, RFC 3339 in whole seconds
    """

    gpu: str
    message: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    slices: range | None = None
    severity: Severity = Severity.SICK
    key: str = ""
    value: str = ""
    since: str | None = None


@dataclass(frozen=True, slots=True)
class GPUInventory:
    """The driver and all GPUs, by address.

    ailments   what is wrong with the GPUs, by events and by what they answer
    mps_ends   how many MPS control daemons of claims have ended by themselves so far
    notes      what was odd, and how it was taken
    warnings   what somebody should mend
    """

    driver: Driver
    gpus: tuple[GPU, ...] = ()
    ailments: tuple[Ailment, ...] = ()
    mps_ends: int = 0
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def gpu(self, name: str) -> GPU | None:
        """Return the GPU of that name."""
        return next((gpu for gpu in self.gpus if gpu.name == name), None)


def gpu_name(address: str) -> str:
    """Return the name of the device at a PCI address."""
    return f"gpu-{address.replace(':', '-').replace('.', '-')}"


def address_of(name: str) -> str | None:
    """Return the PCI address in the name of a GPU's device; None for anything else."""
    match = _NAME.fullmatch(name)
    return f"{match[1]}:{match[2]}:{match[3]}.{match[4]}" if match else None
