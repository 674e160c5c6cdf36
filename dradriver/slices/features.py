"""What an API server stores of a ResourceSlice, and how that is found out.

Between Kubernetes 1.34 and 1.37 parts of a device sit behind feature gates, and what a gate that is off guards is
dropped without a word (k8s.io/kubernetes `pkg/registry/resource/resourceslice/strategy.go`). Neither the server's
version nor a list of its gates tells for sure; its answer to a dry-run create does.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from dradriver.slices.encode import Body, NodeAllocatableField


class Feature(Enum):
    """A part of a ResourceSlice that a server may not store. The value names it for people."""

    COUNTERS = "counters"
    SHARED = "consumable capacity"
    TAINTS = "device taints"
    BINDING = "binding conditions"
    LISTS = "list attributes"
    MAPPINGS = "node allocatable resources, in the field of Kubernetes 1.36"
    RESOURCES = "node allocatable resources"

    @property
    def gate(self) -> str:
        """The feature gate of Kubernetes that is behind it."""
        return _GATES[self]


_GATES: Final = {
    Feature.COUNTERS: "DRAPartitionableDevices",
    Feature.SHARED: "DRAConsumableCapacity",
    Feature.TAINTS: "DRADeviceTaints",
    Feature.BINDING: "DRADeviceBindingConditions",
    Feature.LISTS: "DRAListTypeAttributes",
    Feature.MAPPINGS: "DRANodeAllocatableResources",
    Feature.RESOURCES: "DRANodeAllocatableResources",
}


@dataclass(frozen=True, slots=True)
class ApiFeatures:
    """What an API server stores; by default all that Kubernetes 1.37 can.

    counters           devices that draw on shared counters
    shared             devices that several allocations hold at once, with a policy for each capacity
    taints             device taints, with the effects None, NoSchedule and NoExecute
    binding            binding conditions
    lists              attributes that are lists
    node_allocatable   the field for node allocatable resources
    """

    counters: bool = True
    shared: bool = True
    taints: bool = True
    binding: bool = True
    lists: bool = True
    node_allocatable: NodeAllocatableField = NodeAllocatableField.RESOURCES

    def without(self, feature: Feature) -> "ApiFeatures":
        """Return these features but that one."""
        field = _FIELDS.get(feature)
        if field is None:
            changes: dict[str, Any] = {feature.name.lower(): False}
        else:
            left = NodeAllocatableField.NONE if self.node_allocatable is field else self.node_allocatable
            changes = {"node_allocatable": left}
        return replace(self, **changes)


_FIELDS: Final = {
    Feature.MAPPINGS: NodeAllocatableField.MAPPINGS,
    Feature.RESOURCES: NodeAllocatableField.RESOURCES,
}


def features_of(stored: Iterable[Feature]) -> ApiFeatures:
    """Return what a server stores that stores just these. Of the two node allocatable fields the newer one counts."""
    found = frozenset(stored)
    return ApiFeatures(
        counters=Feature.COUNTERS in found,
        shared=Feature.SHARED in found,
        taints=Feature.TAINTS in found,
        binding=Feature.BINDING in found,
        lists=Feature.LISTS in found,
        node_allocatable=next(
            (_FIELDS[one] for one in (Feature.RESOURCES, Feature.MAPPINGS) if one in found),
            NodeAllocatableField.NONE,
        ),
    )


_RANGE: Final = {"default": "1", "validRange": {"min": "1", "step": "1"}}

_DEVICES: Final[dict[Feature, Body]] = {
    # No counter set goes with it: a slice has devices or counter sets. 1.34 wants both in one and refuses this, which
    # is as well, since it takes no other form of counters.
    Feature.COUNTERS: {
        "consumesCounters": [{"counterSet": "probe", "counters": {"slices": {"value": "1"}}}],
    },
    Feature.SHARED: {
        "allowMultipleAllocations": True,
        "capacity": {"amount": {"value": "2", "requestPolicy": _RANGE}},
    },
    # Where there are taints but not yet the effect None, this is refused and a sick device is withdrawn.
    Feature.TAINTS: {
        "taints": [
            {"key": "dradriver.io/probe", "effect": "NoSchedule"},
            {"key": "dradriver.io/probe-note", "effect": "None"},
        ],
    },
    Feature.BINDING: {
        "bindsToNode": True,
        "bindingConditions": ["dradriver.io/probe"],
        "bindingFailureConditions": ["dradriver.io/probe-failed"],
    },
    # Dropped, the list leaves an attribute without a value, which is refused.
    Feature.LISTS: {"attributes": {"probe": {"ints": [0, 1]}}},
    Feature.MAPPINGS: {NodeAllocatableField.MAPPINGS.value: {"cpu": {"allocationMultiplier": "1"}}},
    Feature.RESOURCES: {
        NodeAllocatableField.RESOURCES.value: {"cpu": {"mapping": {"deviceMultiplier": "1"}}}
    },
}


def probes(driver: str, node: str, pool: str) -> tuple[tuple[Feature, Body], ...]:
    """Return ResourceSlice specs to create in a dry run, one for each feature.

    Each is valid for the servers that know the feature. Its verdict is that of `learned`.
    """
    head: Body = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
    }
    return tuple(
        (feature, head | {"devices": [{"name": "probe", **device}]}) for feature, device in _DEVICES.items()
    )


def learned(feature: Feature, spec: Body, stored: Body | None) -> bool:
    """Return whether a server stores a feature, by what came back of a spec that uses it.

    stored   the spec that was answered; None where the server refused ours as invalid (422, or 400 where it takes no
             unknown fields). No other refusal tells anything about features.
    """
    return stored is not None and _used(feature, spec) <= _used(feature, stored)


def still_stored(features: ApiFeatures, spec: Body, stored: Body) -> ApiFeatures:
    """Return `features` less those of which a part of `spec` did not come back: a gate may be switched off any day."""
    for feature in Feature:
        if not learned(feature, spec, stored):
            features = features.without(feature)
    return features


Place = tuple[str, ...]
"""Where a spec uses a feature: name of the device or counter set, and the fields down from there."""


def _used(feature: Feature, spec: Body) -> frozenset[Place]:
    places = _PLACES[feature]
    found = {(device["name"], *place) for device in spec.get("devices") or () for place in places(device)}
    if feature is Feature.COUNTERS:
        found |= {("sharedCounters", one["name"]) for one in spec.get("sharedCounters") or ()}
    return frozenset(found)


def _fields(*names: str) -> Callable[[Body], Iterator[Place]]:
    def places(device: Body) -> Iterator[Place]:
        yield from ((name,) for name in names if device.get(name))

    return places


def _shares(device: Body) -> Iterator[Place]:
    if device.get("allowMultipleAllocations"):
        yield ("allowMultipleAllocations",)
    for name, capacity in (device.get("capacity") or {}).items():
        if capacity.get("requestPolicy"):
            yield name, "requestPolicy"


def _lists(device: Body) -> Iterator[Place]:
    for name, attribute in (device.get("attributes") or {}).items():
        yield from ((name, kind) for kind in ("bools", "ints", "strings", "versions") if attribute.get(kind))


_PLACES: Final[dict[Feature, Callable[[Body], Iterator[Place]]]] = {
    Feature.COUNTERS: _fields("consumesCounters"),
    Feature.SHARED: _shares,
    Feature.TAINTS: _fields("taints"),
    Feature.BINDING: _fields("bindingConditions", "bindingFailureConditions", "bindsToNode"),
    Feature.LISTS: _lists,
    Feature.MAPPINGS: _fields(NodeAllocatableField.MAPPINGS.value),
    Feature.RESOURCES: _fields(NodeAllocatableField.RESOURCES.value),
}
