"""Slices, devices and counter sets as resource.k8s.io/v1 JSON.

The functions here trust their input: `dradriver.slices.check` has looked at it before. What is empty is
omitted, since an empty list counts as present to the API server.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from dradriver.model import (
    AttributeValue,
    Capacity,
    CounterSet,
    Device,
    NodeAllocatable,
    Quantity,
    RequestPolicy,
    Taint,
    Version,
)

Body = dict[str, Any]
"""A JSON object of the API."""


_PLAIN: Final[dict[type, str]] = {bool: "bool", int: "int", str: "string"}


class NodeAllocatableField(Enum):
    """The field, if any, in which an API server takes node allocatable resources (alpha in 1.36 and 1.37)."""

    NONE = "none"
    MAPPINGS = "nodeAllocatableResourceMappings"
    """Kubernetes 1.36: multipliers only, no overhead."""
    RESOURCES = "nodeAllocatableResources"
    """Kubernetes 1.37."""


def slice_object(metadata: Body, spec: Body) -> Body:
    """Return a whole ResourceSlice object."""
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def device_body(
    device: Device, node_allocatable: NodeAllocatableField = NodeAllocatableField.RESOURCES
) -> Body:
    """Return the `Device` object of a slice."""
    body: Body = {"name": device.name}
    if device.attributes:
        body["attributes"] = {name: attribute_body(value) for name, value in device.attributes.items()}
    if device.capacity:
        body["capacity"] = {name: _capacity(capacity) for name, capacity in device.capacity.items()}
    if device.shared:
        body["allowMultipleAllocations"] = True
    if device.consumes:
        body["consumesCounters"] = [
            {"counterSet": name, "counters": _counters(counters)}
            for name, counters in device.consumes.items()
        ]
    if device.taints:
        body["taints"] = [_taint(taint) for taint in device.taints]
    if device.binding is not None:
        if device.binding.binds_to_node:
            body["bindsToNode"] = True
        if device.binding.conditions:
            body["bindingConditions"] = list(device.binding.conditions)
        if device.binding.failure_conditions:
            body["bindingFailureConditions"] = list(device.binding.failure_conditions)
    if node_allocatable is not NodeAllocatableField.NONE and device.node_allocatable:
        one = _resource_1_37 if node_allocatable is NodeAllocatableField.RESOURCES else _mapping_1_36
        resources = {entry.resource: one(entry) for entry in device.node_allocatable}
        given = {name: entry for name, entry in resources.items() if entry}
        if given:
            body[node_allocatable.value] = given
    return body


def counter_set_body(counter_set: CounterSet) -> Body:
    """Return the `CounterSet` object of a slice."""
    return {"name": counter_set.name, "counters": _counters(counter_set.counters)}


def attribute_body(value: AttributeValue) -> Body:
    """Return the `DeviceAttribute` object: its one key names the type, in the plural for a list."""
    kind = _PLAIN.get(type(value))
    if kind is not None:
        return {kind: value}
    if isinstance(value, tuple):
        items = [_scalar(item) for item in value]
        return {f"{items[0][0]}s": [item for _, item in items]}
    kind, plain = _scalar(value)
    return {kind: plain}


def has_overhead(entry: NodeAllocatable) -> bool:
    """Whether an entry charges something per pod or container, which 1.36 cannot express."""
    return entry.overhead_per_pod is not None or entry.overhead_per_container is not None


def _scalar(value: object) -> tuple[str, bool | int | str]:
    # A bool is an int to Python. Members of str and int enums become plain values.
    match value:
        case bool():
            return "bool", value
        case int():
            return "int", int(value)
        case str():
            return "string", str.__str__(value)
        case Version():
            return "version", value.text
    raise TypeError(f"a {type(value).__name__} is not an attribute value")


def _counters(counters: Mapping[str, Quantity]) -> Body:
    return {name: {"value": str(amount)} for name, amount in counters.items()}


def _capacity(capacity: Capacity) -> Body:
    body: Body = {"value": str(capacity.value)}
    if capacity.policy is not None:
        body["requestPolicy"] = _policy(capacity.policy)
    return body


def _policy(policy: RequestPolicy) -> Body:
    body: Body = {"default": str(policy.default)}
    if policy.valid_values:
        body["validValues"] = [str(value) for value in policy.valid_values]
    if policy.valid_range is not None:
        bounds = {"min": str(policy.valid_range.min)}
        if policy.valid_range.max is not None:
            bounds["max"] = str(policy.valid_range.max)
        if policy.valid_range.step is not None:
            bounds["step"] = str(policy.valid_range.step)
        body["validRange"] = bounds
    return body


def _taint(taint: Taint) -> Body:
    body: Body = {"key": taint.key}
    if taint.value:
        body["value"] = taint.value
    body["effect"] = taint.effect.value
    if taint.time_added is not None:
        body["timeAdded"] = taint.time_added
    return body


def _overhead_only(entry: NodeAllocatable) -> bool:
    return entry.capacity is None and entry.multiplier is None and has_overhead(entry)


def _multiplier(entry: NodeAllocatable) -> str:
    # 1.36 fills in a missing one, 1.37 demands it beside a capacity: when written, both store what was sent.
    return "1" if entry.multiplier is None else str(entry.multiplier)


def _mapping_1_36(entry: NodeAllocatable) -> Body:
    if _overhead_only(entry):
        # An entry without a multiplier is defaulted to 1 for each device.
        return {}
    body: Body = {}
    if entry.capacity is not None:
        body["capacityKey"] = entry.capacity
    body["allocationMultiplier"] = _multiplier(entry)
    return body


def _resource_1_37(entry: NodeAllocatable) -> Body:
    body: Body = {}
    if entry.capacity is not None:
        body["mapping"] = {"capacityKey": entry.capacity, "capacityMultiplier": _multiplier(entry)}
    elif not _overhead_only(entry):
        body["mapping"] = {"deviceMultiplier": _multiplier(entry)}
    overhead: Body = {}
    if entry.overhead_per_pod is not None:
        overhead["perPod"] = str(entry.overhead_per_pod)
    if entry.overhead_per_container is not None:
        overhead["perContainer"] = str(entry.overhead_per_container)
    if overhead:
        body["overhead"] = overhead
    return body
