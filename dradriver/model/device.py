"""Devices, as resource.k8s.io/v1 describes them (k8s.io/api/resource/v1 `Device`, `CounterSet`).

Plain frozen data without behaviour: a backend makes it from its inventory, `dradriver.slices` turns it
into ResourceSlice bodies. Limits and grammars are checked there, so that one odd device costs only itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from dradriver.model.quantity import Quantity

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
NUMA_NODE = "resource.kubernetes.io/numaNode"
SOCKET_ID = "dradriver.io/socketID"
PCIE_SWITCH = "dradriver.io/pcieSwitch"


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version 2.0.0 (`major.minor.patch`, no leading `v`, no leading zeros)."""

    text: str

    def __str__(self) -> str:
        return self.text


Scalar = bool | int | str | Version
"""One attribute value. Strings and versions are at most 64 bytes of UTF-8."""

AttributeValue = Scalar | tuple[bool, ...] | tuple[int, ...] | tuple[str, ...] | tuple[Version, ...]
"""A value, or a list of values of one type (the gate DRAListTypeAttributes)."""


@dataclass(frozen=True, slots=True)
class ValidRange:
    """Amounts from `min` to `max` (the capacity where None), in steps of `step` counted from `min`."""

    min: Quantity
    max: Quantity | None = None
    step: Quantity | None = None


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How much of a shared capacity one allocation takes (`CapacityRequestPolicy`).

    `default` is consumed by a request that names no amount. At most one of `valid_values` (sorted, with the
    default among them, at most 10) and `valid_range` is given.
    """

    default: Quantity
    valid_values: tuple[Quantity, ...] = ()
    valid_range: ValidRange | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """An amount that a device has; with a policy where allocations share it."""

    value: Quantity
    policy: RequestPolicy | None = None


@dataclass(frozen=True, slots=True)
class CounterSet:
    """Counters of one physical thing, from which overlapping devices of its pool draw."""

    name: str
    counters: Mapping[str, Quantity]


class TaintEffect(Enum):
    """What a device taint does. `NONE` only informs."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    """A mark on a device that keeps claims without a toleration away (`DeviceTaint`).

    `time_added` is RFC 3339 in whole seconds, UTC; None leaves it to the API server.
    """

    key: str
    effect: TaintEffect
    value: str = ""
    time_added: str | None = None


@dataclass(frozen=True, slots=True)
class NodeAllocatable:
    """How a device counts against a node allocatable resource such as `cpu` (KEP-5517).

    With `capacity` the consumed amount of that capacity times `multiplier` is taken, without it
    `multiplier` per device. The overheads exist from Kubernetes 1.37 on and are charged per pod that uses
    the claim, and per container that does.
    """

    resource: str
    capacity: str | None = None
    multiplier: Quantity | None = None
    overhead_per_pod: Quantity | None = None
    overhead_per_container: Quantity | None = None


@dataclass(frozen=True, slots=True)
class BindingConditions:
    """Conditions that must be true on the claim before a pod is bound to the device, and those that end it.

    `binds_to_node` confines a claim to the node once the device is allocated.
    """

    conditions: tuple[str, ...]
    failure_conditions: tuple[str, ...]
    binds_to_node: bool = False


class Health(Enum):
    """The health of a device, by the names of the kubelet's DRAResourceHealth service."""

    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that a claim can be given.

    name        DNS label, physical and stable: where the thing is, never an index that moves
    thing       name of the physical thing that it is, or is a part or a variant of; variants of one thing stay
                together in the slices and become unhealthy together (`name` where empty)
    attributes  by unqualified name (belongs to the device's driver) or `domain/name`
    capacity    by name, likewise
    shared      several allocations may hold it at once, each with its share (`allowMultipleAllocations`)
    consumes    counter set name -> counter -> amount that an allocation draws
    health      as the backend sees it now; `health_message` says why, for people
    """

    name: str
    thing: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=lambda: MappingProxyType({}))
    capacity: Mapping[str, Capacity] = field(default_factory=lambda: MappingProxyType({}))
    shared: bool = False
    consumes: Mapping[str, Mapping[str, Quantity]] = field(default_factory=lambda: MappingProxyType({}))
    taints: tuple[Taint, ...] = ()
    binding: BindingConditions | None = None
    node_allocatable: tuple[NodeAllocatable, ...] = ()
    health: Health = Health.HEALTHY
    health_message: str = ""

    @property
    def physical(self) -> str:
        """The physical thing behind this device."""
        return self.thing or self.name


@dataclass(frozen=True, slots=True)
class PoolContent:
    """All that one backend publishes of one node: its devices, in the order of preference, and counters.

    The scheduler takes the first device that fits, so those that leave most room for others come first.

    notes      what was odd about the hardware and how it was taken, for who looks closely
    warnings   what somebody should mend: an option that has no effect, hardware that is left out
    """

    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def device(self, name: str) -> Device | None:
        """Return the device of that name, or None."""
        return next((device for device in self.devices if device.name == name), None)
