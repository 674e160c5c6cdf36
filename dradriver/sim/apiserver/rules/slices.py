"""Rules for ResourceSlices: defaults, fields of disabled gates, validation.

Facts: pkg/apis/resource/validation, pkg/apis/resource/v1/defaults.go, pkg/registry/resource/resourceslice. Shared
counters stand beside the devices in 1.34, where they are alpha, and in slices of their own from 1.35 on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dradriver.sim.apiserver.rules import gates, names, quantities
from dradriver.sim.apiserver.rules.capacity import check_capacities, shortened
from dradriver.sim.apiserver.rules.errors import Literal, Problems
from dradriver.sim.apiserver.rules.gates import Gates
from dradriver.sim.apiserver.rules.lists import (
    check_binding,
    check_distinct,
    few_enough,
    taint_effects,
)
from dradriver.sim.apiserver.rules.selectors import check_node_selector
from dradriver.sim.apiserver.rules.types import TERMS

_MAX_DEVICES: Final = 128
_MAX_ADVANCED_DEVICES: Final = 64
_MAX_SETS: Final = 8
_MAX_COUNTERS: Final = 32
_MAX_CONSUMED_SETS: Final = 2
_MAX_NAMES: Final = 32
_MAX_VALUES: Final = 48
_MAX_SHARED_COUNTERS_134: Final = 32
_MAX_DEVICE_COUNTERS_134: Final = 32
_MAX_SLICE_COUNTERS_134: Final = 1024

_LISTS: Final = ("ints", "bools", "strings", "versions")
_VALUES: Final = ("int", "bool", "string", "version", *_LISTS)
_ONE_NODE_FIELD: Final = (
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
)
_ONE_DEVICE_FIELD: Final = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true "
    "in the ResourceSlice spec"
)

Body = Mapping[str, Any]


def set_defaults(spec: dict[str, Any], now: str) -> None:
    """Fill in what a client may leave out: the time of a taint, the multiplier of a mapping (1.36)."""
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", now)
        for mapping in (device.get("nodeAllocatableResourceMappings") or {}).values():
            mapping.setdefault("allocationMultiplier", "1")


def drop_disabled(spec: dict[str, Any], existing: Body | None, on: Gates) -> None:
    """Drop the fields of features that are off, silently, unless the existing slice uses the feature already."""
    old = list((existing or {}).get("devices") or ())
    devices = spec.get("devices") or ()
    if gates.DEVICE_TAINTS not in on and not _used(old, ("taints",)):
        _drop(devices, ("taints",))
    partitions = ("consumesCounters", "nodeName", "nodeSelector", "allNodes")
    if gates.PARTITIONABLE_DEVICES not in on and not (
        _used([existing or {}], ("sharedCounters", "perDeviceNodeSelection")) or _used(old, partitions)
    ):
        _drop([spec], ("sharedCounters", "perDeviceNodeSelection"))
        _drop(devices, partitions)
    binding = ("bindingConditions", "bindingFailureConditions", "bindsToNode")
    if not {gates.BINDING_CONDITIONS, gates.DEVICE_STATUS} <= on.enabled and not _used(old, binding):
        _drop(devices, binding)
    if gates.CONSUMABLE_CAPACITY not in on and not (
        _used(old, ("allowMultipleAllocations",)) or _used(_capacities(old), ("requestPolicy",))
    ):
        _drop(devices, ("allowMultipleAllocations",))
        _drop(_capacities(devices), ("requestPolicy",))
    allocatable = ("nodeAllocatableResourceMappings", "nodeAllocatableResources")
    if gates.NODE_ALLOCATABLE not in on and not _used(old, allocatable):
        _drop(devices, allocatable)
    if gates.LIST_ATTRIBUTES not in on and not _used(_attributes(old), _LISTS):
        _drop(_attributes(devices), _LISTS)


def warnings(spec: Body) -> list[str]:
    """Return what the server warns of."""
    driver = spec["driver"]
    if driver == driver.lower():
        return []
    return [f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters']


def check_spec(problems: Problems, spec: Body, existing: Body | None, on: Gates) -> None:
    """Check the spec of a new slice, or of a changed one against the existing."""
    names.check_driver(problems, "spec.driver", spec["driver"])
    pool = spec["pool"]
    names.check_pool(problems, "spec.pool.name", pool["name"])
    if pool["resourceSliceCount"] <= 0:
        problems.invalid(
            "spec.pool.resourceSliceCount", pool["resourceSliceCount"], "must be greater than zero"
        )
    if pool["generation"] < 0:
        problems.invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")
    if existing is not None:
        _check_unchanged(problems, spec, existing)
    _check_nodes(problems, spec)
    devices, sets = spec.get("devices"), spec.get("sharedCounters")
    if devices is not None and sets is not None and on.minor >= 35:
        problems.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    if few_enough(problems, "spec.devices", devices or (), _most_devices(devices or (), on)):
        per_device = spec.get("perDeviceNodeSelection", False)
        for index, device in enumerate(devices or ()):
            _check_device(problems, f"spec.devices[{index}]", device, on, per_device=per_device)
        check_distinct(problems, "spec.devices", devices or (), lambda device: device["name"])
    if on.minor < 35:
        _check_counters_134(problems, devices or (), sets or ())
    if few_enough(
        problems, "spec.sharedCounters", sets or (), _MAX_SETS if on.minor >= 35 else len(sets or ())
    ):
        for index, one in enumerate(sets or ()):
            _check_counter_set(problems, f"spec.sharedCounters[{index}]", "name", one)
        check_distinct(problems, "spec.sharedCounters", sets or (), lambda one: one["name"])


def _used(owners: Sequence[Body], fields: Sequence[str]) -> bool:
    return any(owner.get(name) not in (None, [], {}) for owner in owners for name in fields)


def _drop(owners: Sequence[dict[str, Any]], fields: Sequence[str]) -> None:
    for owner in owners:
        for name in fields:
            owner.pop(name, None)


def _capacities(devices: Sequence[Any]) -> list[Any]:
    return [capacity for device in devices for capacity in (device.get("capacity") or {}).values()]


def _attributes(devices: Sequence[Any]) -> list[Any]:
    return [value for device in devices for value in (device.get("attributes") or {}).values()]


def _check_unchanged(problems: Problems, spec: Body, existing: Body) -> None:
    for field, value, old in (
        ("spec.pool.name", spec["pool"]["name"], existing["pool"]["name"]),
        ("spec.driver", spec["driver"], existing["driver"]),
        ("spec.nodeName", spec.get("nodeName"), existing.get("nodeName")),
    ):
        if value != old:
            problems.invalid(field, value, "field is immutable")


def _check_nodes(problems: Problems, spec: Body) -> None:
    given = []
    name, selector = spec.get("nodeName"), spec.get("nodeSelector")
    if name:
        given.append("`nodeName`")
        problems.invalid_for("spec.nodeName", name, names.subdomain(name))
    elif name is not None:
        problems.invalid("spec.nodeName", name, "must be either unset or set to a non-empty string")
    if selector is not None:
        given.append("`nodeSelector`")
        check_node_selector(problems, "spec.nodeSelector", selector)
        terms = selector["nodeSelectorTerms"]
        if len(terms or ()) != 1:
            shown = TERMS.internal(terms)
            problems.invalid(
                "spec.nodeSelector.nodeSelectorTerms", shown, "must have exactly one node selector term"
            )
    for field in ("allNodes", "perDeviceNodeSelection"):
        value = spec.get(field)
        if value:
            given.append(f"`{field}`")
        elif value is not None:
            problems.invalid(f"spec.{field}", value, "must be either unset or set to true")
    if not given:
        problems.required("spec", _ONE_NODE_FIELD)
    elif len(given) > 1:
        problems.invalid("spec", f"{{{', '.join(given)}}}", f"{_ONE_NODE_FIELD}, but multiple fields are set")


def _most_devices(devices: Sequence[Body], on: Gates) -> int:
    if on.minor < 35:
        return _MAX_DEVICES
    for device in devices:
        if device.get("taints") or device.get("consumesCounters"):
            return _MAX_ADVANCED_DEVICES
        for value in (device.get("attributes") or {}).values():
            if not value.keys().isdisjoint(_LISTS):
                return _MAX_ADVANCED_DEVICES
    return _MAX_DEVICES


def _check_device(problems: Problems, field: str, device: Body, on: Gates, *, per_device: bool) -> None:
    problems.invalid_for(f"{field}.name", device["name"], names.label(device["name"]))
    attributes = device.get("attributes") or {}
    _check_count(problems, field, attributes, device.get("capacity") or {})
    for name, value in attributes.items():
        if not names.is_qualified(name):
            names.check_qualified(problems, f"{field}.attributes", name)
        _check_attribute(problems, field, name, value)
    check_capacities(problems, field, device, on)
    _check_taints(problems, field, device.get("taints") or (), on)
    consumed = device.get("consumesCounters") or ()
    place = f"{field}.consumesCounters"
    if few_enough(problems, place, consumed, _MAX_CONSUMED_SETS if on.minor >= 35 else len(consumed)):
        for index, one in enumerate(consumed):
            _check_counter_set(problems, f"{place}[{index}]", "counterSet", one)
        check_distinct(problems, place, consumed, lambda one: one["counterSet"])
    _check_device_nodes(problems, field, device, per_device=per_device)
    check_binding(problems, field, device)
    _check_mappings(problems, field, device)
    _check_allocatable(problems, field, device)


def _check_count(problems: Problems, field: str, attributes: Body, capacities: Body) -> None:
    count = len(attributes) + len(capacities)
    if count > _MAX_NAMES:
        problems.invalid(
            field, count, f"the total number of attributes and capacities must not exceed {_MAX_NAMES}"
        )
    values = 0
    for value in attributes.values():
        listed = 0 if value.keys().isdisjoint(_LISTS) else sum(len(value.get(name) or ()) for name in _LISTS)
        values += listed or 1
    if values > _MAX_VALUES:
        problems.invalid(field, values, f"the total number of attribute values must not exceed {_MAX_VALUES}")


def _check_attribute(problems: Problems, device: str, name: str, value: Body) -> None:
    # One scalar that is right, the case of nearly all, costs next to nothing.
    if len(value) == 1:
        kind, item = next(iter(value.items()))
        if kind in {"int", "bool"}:
            return
        if kind == "string" and names.size(item) <= names.MAX_VALUE:
            return
    field = f"{device}.attributes[{shortened(name)}]"
    for kind, items in value.items():
        texts = items if kind in {"strings", "versions"} else [items]
        for index, item in enumerate(texts):
            place = f"{field}.{kind}[{index}]" if texts is items else f"{field}.{kind}"
            if kind in {"string", "strings"}:
                _check_size(problems, place, item)
            elif kind in {"version", "versions"}:
                if not names.is_version(item):
                    problems.invalid(place, item, "must be a string compatible with semver.org spec 2.0.0")
                _check_size(problems, place, item)
        if kind in _LISTS and not items:
            problems.invalid(f"{field}.{kind}", [], "must not be empty if specified")
    if not value:
        problems.invalid(field, "", "exactly one value must be specified")
    elif len(value) > 1:
        shown = {
            f"{kind.removesuffix('s').title()}Value{'s' * (kind in _LISTS)}": value.get(kind)
            for kind in _VALUES
        }
        problems.invalid(field, shown, "exactly one value must be specified")


def _check_size(problems: Problems, field: str, value: str) -> None:
    if names.size(value) > names.MAX_VALUE:
        problems.too_long(field, names.MAX_VALUE)


def _check_taints(problems: Problems, field: str, taints: Sequence[Body], on: Gates) -> None:
    if not few_enough(problems, f"{field}.taints", taints, 16 if on.minor >= 35 else 4):
        return
    effects = taint_effects(on.minor)
    for index, taint in enumerate(taints):
        place = f"{field}.taints[{index}]"
        problems.invalid_for(f"{place}.key", taint["key"], names.label_key(taint["key"]))
        value = taint.get("value", "")
        if value:
            problems.invalid_for(f"{place}.value", value, names.label_value(value))
        if not taint["effect"]:
            problems.required(f"{place}.effect")
        elif taint["effect"] not in effects:
            problems.unsupported(f"{place}.effect", taint["effect"], effects)


def _check_counter_set(problems: Problems, field: str, name_field: str, one: Body) -> None:
    """Check a counter set, or what a device consumes of one."""
    name, counters = one[name_field], one.get("counters") or {}
    if name:
        problems.invalid_for(f"{field}.{name_field}", name, names.label(name))
    else:
        problems.required(f"{field}.{name_field}")
    if not counters:
        problems.required(f"{field}.counters")
    elif few_enough(problems, f"{field}.counters", counters, _MAX_COUNTERS):
        for counter in counters:
            problems.invalid_for(f"{field}.counters", counter, names.label(counter))


def _check_counters_134(problems: Problems, devices: Sequence[Body], sets: Sequence[Body]) -> None:
    """Check counters as 1.34 does: sets stand in the slice of the devices that consume them."""
    known = {one["name"]: frozenset(one.get("counters") or ()) for one in sets}
    total = 0
    for index, device in enumerate(devices):
        field, count = f"spec.devices[{index}]", 0
        for number, one in enumerate(device.get("consumesCounters") or ()):
            counters, place = one.get("counters") or {}, f"{field}.consumesCounters[{number}]"
            count += len(counters)
            if one["counterSet"] not in known:
                problems.invalid(
                    f"{place}.counterSet",
                    one["counterSet"],
                    "must reference a counterSet defined in the ResourceSlice sharedCounters",
                )
                continue
            for name in sorted(counters.keys() - known[one["counterSet"]]):
                problems.invalid(
                    f"{place}.counters",
                    name,
                    "must reference a counter defined in the ResourceSlice sharedCounters",
                )
        if count > _MAX_DEVICE_COUNTERS_134:
            problems.invalid(
                field, count, f"the total number of counters must not exceed {_MAX_DEVICE_COUNTERS_134}"
            )
        total += count
    for field, count, limit, what in (
        ("spec.devices", total, _MAX_SLICE_COUNTERS_134, "counters in devices"),
        ("spec.sharedCounters", sum(map(len, known.values())), _MAX_SHARED_COUNTERS_134, "shared counters"),
    ):
        if count > limit:
            problems.invalid(field, count, f"the total number of {what} must not exceed {limit}")


def _check_device_nodes(problems: Problems, field: str, device: Body, *, per_device: bool) -> None:
    name, selector, everywhere = (device.get(one) for one in ("nodeName", "nodeSelector", "allNodes"))
    if not per_device:
        if name is not None or selector is not None or everywhere is not None:
            problems.invalid(
                field,
                Literal("null"),
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true "
                "in the ResourceSlice spec",
            )
        return
    given = []
    if name:
        given.append("`nodeName`")
        problems.invalid_for(f"{field}.nodeName", name, names.subdomain(name))
    elif name is not None:
        problems.invalid(f"{field}.nodeName", name, "must not be empty")
    if selector is not None:
        given.append("`nodeSelector`")
        check_node_selector(problems, f"{field}.nodeSelector", selector)
    if everywhere:
        given.append("`allNodes`")
    elif everywhere is not None:
        problems.invalid(f"{field}.allNodes", everywhere, "must be either unset or set to true")
    if not given:
        problems.required(field, _ONE_DEVICE_FIELD)
    elif len(given) > 1:
        problems.invalid(field, f"{{{', '.join(given)}}}", _ONE_DEVICE_FIELD)


def _check_mappings(problems: Problems, field: str, device: Body) -> None:
    """Check nodeAllocatableResourceMappings, which are 1.36's."""
    for resource, mapping in (device.get("nodeAllocatableResourceMappings") or {}).items():
        place = f"{field}.nodeAllocatableResourceMappings[{resource}]"
        _check_resource(problems, place, resource)
        _check_capacity_key(problems, place, device, mapping)
        _check_sign(problems, place, mapping, ("allocationMultiplier",))


def _check_allocatable(problems: Problems, field: str, device: Body) -> None:
    """Check nodeAllocatableResources, which are 1.37's."""
    for resource, entry in (device.get("nodeAllocatableResources") or {}).items():
        place = f"{field}.nodeAllocatableResources[{resource}]"
        _check_resource(problems, place, resource)
        mapping, overhead = entry.get("mapping"), entry.get("overhead")
        if mapping is None and overhead is None:
            problems.required(place, "at least one of mapping or overhead must be set")
        if mapping is not None:
            _check_mapping(problems, f"{place}.mapping", device, mapping)
        if overhead is not None:
            if not overhead:
                problems.invalid(
                    f"{place}.overhead", "", "at least one of perPod or perContainer must be set"
                )
            for name in ("perPod", "perContainer"):
                if name in overhead and quantities.amount(overhead[name]).nano < 0:
                    problems.invalid(f"{place}.overhead.{name}", overhead[name], "must be non-negative")


def _check_mapping(problems: Problems, field: str, device: Body, mapping: Body) -> None:
    given = [name for name in ("capacityKey", "deviceMultiplier") if name in mapping]
    _check_capacity_key(problems, field, device, mapping)
    if "capacityKey" in mapping and "capacityMultiplier" not in mapping:
        problems.required(
            f"{field}.capacityMultiplier", "capacityMultiplier is required when capacityKey is set"
        )
    if "capacityMultiplier" in mapping and "capacityKey" not in mapping:
        problems.required(f"{field}.capacityKey", "capacityKey is required when capacityMultiplier is set")
    if len(given) != 1:
        shown = f"{{{', '.join(given)}}}" if given else ""
        problems.invalid(field, shown, "must specify exactly one of: `capacityKey`, `deviceMultiplier`")
    _check_sign(problems, field, mapping, ("capacityMultiplier", "deviceMultiplier"))


def _check_resource(problems: Problems, field: str, resource: str) -> None:
    """Check the name of a resource of the node: without a domain, or of kubernetes.io."""
    if "/" in resource and "kubernetes.io/" not in resource:
        problems.invalid(field, resource, "must be a node allocatable resource name")


def _check_capacity_key(problems: Problems, field: str, device: Body, mapping: Body) -> None:
    key = mapping.get("capacityKey")
    if key == "":
        problems.invalid(f"{field}.capacityKey", "", "capacityKey must not be an empty string")
    elif key is not None and key not in (device.get("capacity") or {}):
        problems.not_found(f"{field}.capacityKey", key)


def _check_sign(problems: Problems, field: str, mapping: Body, fields: Sequence[str]) -> None:
    for name in fields:
        if name in mapping and quantities.amount(mapping[name]).nano <= 0:
            problems.invalid(f"{field}.{name}", mapping[name], "must be positive")
