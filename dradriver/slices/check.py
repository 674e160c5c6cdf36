"""What the API server would refuse, found before it is sent: a refused device would cost its whole slice.

An attribute that cannot be published is dropped, since a selector that misses it fails closed. It is not
shortened: two different values, cut, could look equal to a constraint. Whatever else is wrong leaves the
whole device out, because less of it could mean more than was offered: without its policy, counters or taints
it would be allocated where it must not be.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from dradriver.model import (
    AttributeValue,
    BindingConditions,
    Capacity,
    CounterSet,
    Device,
    NodeAllocatable,
    PoolContent,
    Quantity,
    RequestPolicy,
    Taint,
    ValidRange,
    Version,
    shown,
)
from dradriver.model.names import check_label, check_qualified, check_subdomain
from dradriver.slices.limits import (
    INT64_MAX,
    INT64_MIN,
    MAX_ATTRIBUTE_VALUES,
    MAX_ATTRIBUTES_AND_CAPACITIES,
    MAX_BINDING_CONDITIONS,
    MAX_CONSUMED_SETS,
    MAX_COUNTERS,
    MAX_TAINTS,
    MAX_VALID_VALUES,
    MAX_VALUE_BYTES,
)

# https://semver.org/spec/v2.0.0.html, in the grammar of its clauses 2, 9 and 10.
_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRERELEASE = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_SECONDS = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


_Named = TypeVar("_Named", CounterSet, Device)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device or counter set that is not published, and all reasons why."""

    name: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{shown(self.name)} is not published: {'; '.join(self.reasons)}"


@dataclass(frozen=True, slots=True)
class Checked:
    """The part of a content that can be published.

    left_out    devices and counter sets that are not in it
    warnings    attributes that are not in it, each line naming device and attribute
    """

    content: PoolContent
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]


def checked(content: PoolContent) -> Checked:
    """Return what of `content` the API server accepts. Of things of one name only the first counts."""
    left_out: list[LeftOut] = []
    warnings: list[str] = []
    counter_sets: dict[str, CounterSet] = {}
    for counter_set, first in _with_first(content.counter_sets):
        reasons = counter_set_problems(counter_set)
        if not first:
            reasons.insert(0, "a counter set of that name came before")
        if reasons:
            left_out.append(LeftOut(counter_set.name, tuple(reasons)))
        else:
            counter_sets[counter_set.name] = counter_set
    devices: list[Device] = []
    for device, first in _with_first(content.devices):
        reasons = problems(device, counter_sets)
        if not first:
            reasons.insert(0, "a device of that name came before")
        if reasons:
            left_out.append(LeftOut(device.name, tuple(reasons)))
            continue
        fitted, lost = fit(device)
        devices.append(fitted)
        warnings += lost
    return Checked(
        replace(content, devices=tuple(devices), counter_sets=tuple(counter_sets.values())),
        tuple(left_out),
        tuple(warnings),
    )


def fit(device: Device) -> tuple[Device, tuple[str, ...]]:
    """Return `device` with those attributes that can be published, and a warning for each other one.

    Capacities come before attributes where there are too many, and attributes in their own order.
    """
    room = MAX_ATTRIBUTES_AND_CAPACITIES - len(device.capacity)
    values = MAX_ATTRIBUTE_VALUES
    kept: dict[str, AttributeValue] = {}
    warnings: list[str] = []
    for name, value in device.attributes.items():
        fault = _name_fault(name, "its name") or _value_fault(value)
        count = len(value) if isinstance(value, tuple) else 1
        if fault is None and len(kept) >= room:
            fault = f"a device has at most {MAX_ATTRIBUTES_AND_CAPACITIES} attributes and capacities"
        if fault is None and count > values:
            fault = f"a device has at most {MAX_ATTRIBUTE_VALUES} attribute values, items of lists counted"
        if fault is None:
            kept[name] = value
            values -= count
        else:
            warnings.append(f"device {shown(device.name)}: attribute {shown(name)} is dropped: {fault}")
    return (replace(device, attributes=kept) if warnings else device), tuple(warnings)


def problems(device: Device, counter_sets: Mapping[str, CounterSet]) -> list[str]:
    """Return why `device` cannot be published in a pool with these counter sets; nothing if it can.

    Its attributes are not looked at: see `fit`.
    """
    found: list[str] = []
    found += _faults(_label_fault(device.name, "device name"))
    if len(device.capacity) > MAX_ATTRIBUTES_AND_CAPACITIES:
        found.append(
            f"{len(device.capacity)} capacities: at most {MAX_ATTRIBUTES_AND_CAPACITIES} "
            "attributes and capacities are allowed"
        )
    for name, capacity in device.capacity.items():
        found += _faults(_name_fault(name, "capacity name"))
        if capacity.policy is not None:
            found += (
                f"capacity {shown(name)}: {fault}"
                for fault in _policy_faults(device, capacity, capacity.policy)
            )
    if device.consumes:
        found += _consumption_faults(device.consumes, counter_sets)
    if device.taints:
        found += _taint_faults(device.taints)
    if device.binding is not None:
        found += _binding_faults(device.binding)
    if device.node_allocatable:
        found += _node_allocatable_faults(device.node_allocatable, device.capacity)
    return found


def counter_set_problems(counter_set: CounterSet) -> list[str]:
    """Return why `counter_set` cannot be published; nothing if it can."""
    return [
        *_faults(_label_fault(counter_set.name, "counter set name")),
        *_counter_faults(counter_set.counters),
    ]


def firsts(things: Iterable[_Named]) -> Iterator[_Named]:
    """Yield of the things of one name only the first."""
    return (thing for thing, first in _with_first(things) if first)


def _with_first(things: Iterable[_Named]) -> Iterator[tuple[_Named, bool]]:
    """Yield each thing, and whether it is the first of its name."""
    seen: set[str] = set()
    for thing in things:
        yield thing, thing.name not in seen
        seen.add(thing.name)


def _faults(fault: str | None) -> tuple[str, ...]:
    return () if fault is None else (fault,)


@lru_cache(maxsize=4096)
def _name_fault(name: str, what: str) -> str | None:
    # The same few names stand on every device of a kind.
    try:
        check_qualified(name, what)
    except ValueError as error:
        return str(error)
    return None


@lru_cache(maxsize=4096)
def _label_fault(name: str, what: str) -> str | None:
    try:
        check_label(name, what)
    except ValueError as error:
        return str(error)
    return None


def _value_fault(value: object) -> str | None:
    if not isinstance(value, tuple):
        return _scalar_fault(value)
    if not value:
        return "its list is empty"
    if len({_kind(item) for item in value}) > 1:
        return "its list mixes types"
    return next((fault for item in value if (fault := _scalar_fault(item)) is not None), None)


def _kind(value: object) -> type:
    return next((kind for kind in (bool, int, str, Version) if isinstance(value, kind)), type(value))


def _scalar_fault(value: object) -> str | None:
    match value:
        case bool():
            return None
        case int():
            return None if INT64_MIN <= value <= INT64_MAX else f"{shown(value)} is beyond 64 bits"
        case str():
            return _text_fault(value)
        case Version(text):
            if not _SEMVER.fullmatch(text):
                return f"version {shown(text)} is not a semantic version: major.minor.patch, no leading zeros"
            return _text_fault(text)
    return f"a {type(value).__name__} is none of bool, int, str, Version or a tuple of one of them"


def _text_fault(text: str) -> str | None:
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return f"{shown(text)} is not Unicode"
    if size > MAX_VALUE_BYTES:
        return f"{shown(text, limit=32)} has {size} bytes: at most {MAX_VALUE_BYTES} are allowed"
    return None


def _policy_faults(device: Device, capacity: Capacity, policy: RequestPolicy) -> Iterator[str]:
    if not device.shared:
        yield "a request policy is for a shared device only"
    if policy.valid_values and policy.valid_range is not None:
        yield "a request policy has valid values or a valid range, not both"
    if policy.valid_values:
        yield from _valid_values_faults(policy.valid_values, policy.default, capacity.value)
    if policy.valid_range is not None:
        yield from _valid_range_faults(policy.valid_range, policy.default, capacity.value)


def _valid_values_faults(
    values: tuple[Quantity, ...], default: Quantity, capacity: Quantity
) -> Iterator[str]:
    if len(values) > MAX_VALID_VALUES:
        yield f"{len(values)} valid values: at most {MAX_VALID_VALUES} are allowed"
    # To the API server, values that round up to the same integer are duplicates.
    whole = [value.to_int() for value in values]
    if any(after <= before for before, after in pairwise(whole)):
        yield "valid values do not rise, each by a whole unit at least"
    if max(values) > capacity:
        yield f"valid value {max(values)} is more than the capacity {capacity}"
    if default not in values:
        yield f"default {default} is not among the valid values"


def _valid_range_faults(bounds: ValidRange, default: Quantity, capacity: Quantity) -> Iterator[str]:
    if bounds.min > capacity:
        yield f"min {bounds.min} is more than the capacity {capacity}"
    if default < bounds.min:
        yield f"default {default} is less than min {bounds.min}"
    if bounds.max is not None:
        if bounds.max < bounds.min:
            yield f"max {bounds.max} is less than min {bounds.min}"
        if bounds.max > capacity:
            yield f"max {bounds.max} is more than the capacity {capacity}"
        if default > bounds.max:
            yield f"default {default} is more than max {bounds.max}"
    if bounds.step is not None:
        yield from _step_faults(bounds, bounds.step, default, capacity)


def _step_faults(bounds: ValidRange, step: Quantity, default: Quantity, capacity: Quantity) -> Iterator[str]:
    # The API server counts steps in integers, fractions rounded up; its handler panics at a step of 0.
    units = step.to_int()
    if units <= 0:
        yield f"step {step} is not positive"
        return
    if bounds.min + step > capacity:
        yield f"one step of {step} from min {bounds.min} is more than the capacity {capacity}"
    for what, value in (("default", default), ("max", bounds.max)):
        if value is not None and (value.to_int() - bounds.min.to_int()) % units:
            yield f"{what} {value} is not on a step of {step} from min {bounds.min}"


def _counter_faults(counters: Mapping[str, Quantity]) -> Iterator[str]:
    if not counters:
        yield "there are no counters"
    if len(counters) > MAX_COUNTERS:
        yield f"{len(counters)} counters: at most {MAX_COUNTERS} are allowed"
    for name in counters:
        yield from _faults(_label_fault(name, "counter name"))


def _consumption_faults(
    consumes: Mapping[str, Mapping[str, Quantity]], counter_sets: Mapping[str, CounterSet]
) -> Iterator[str]:
    # The API server checks no reference across slices; the scheduler then ignores the whole pool.
    if len(consumes) > MAX_CONSUMED_SETS:
        yield f"it consumes from {len(consumes)} counter sets: at most {MAX_CONSUMED_SETS} are allowed"
    for name, counters in consumes.items():
        for fault in _counter_faults(counters):
            yield f"consumption from {shown(name)}: {fault}"
        if name not in counter_sets:
            yield f"counter set {shown(name)} is not published in the pool"
            continue
        unknown = counters.keys() - counter_sets[name].counters.keys()
        for counter in sorted(unknown):
            yield f"counter set {shown(name)} has no counter {shown(counter)}"


def _taint_faults(taints: tuple[Taint, ...]) -> Iterator[str]:
    if len(taints) > MAX_TAINTS:
        yield f"{len(taints)} taints: at most {MAX_TAINTS} are allowed"
    for taint in taints:
        yield from _faults(_label_key_fault(taint.key, "taint key"))
        if taint.value and not _LABEL_NAME.fullmatch(taint.value):
            yield (
                f"taint {shown(taint.key)}: value {shown(taint.value)} is not a label value: "
                "at most 63 of A-Z, a-z, 0-9, '-', '_' and '.', with a letter or digit at both ends"
            )
        if taint.time_added is not None and not _is_time(taint.time_added):
            yield (
                f"taint {shown(taint.key)}: time {shown(taint.time_added)} is not of the form "
                "2006-01-02T15:04:05Z"
            )


def _is_time(text: str) -> bool:
    if not _SECONDS.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _label_key_fault(key: str, what: str) -> str | None:
    """Say why `key` is no label key: a name of at most 63, optionally behind `subdomain/`."""
    domain, slash, name = key.rpartition("/")
    if slash:
        try:
            check_subdomain(domain, f"the domain of {what}")
        except ValueError as error:
            return str(error)
    if not _LABEL_NAME.fullmatch(name):
        return (
            f"{what} {shown(key)} is not a label key: at most 63 of A-Z, a-z, 0-9, '-', '_' and '.', "
            "with a letter or digit at both ends, optionally behind a DNS subdomain and '/'"
        )
    return None


def _binding_faults(binding: BindingConditions) -> Iterator[str]:
    kinds = (("binding", binding.conditions), ("binding failure", binding.failure_conditions))
    if bool(binding.conditions) != bool(binding.failure_conditions):
        yield "binding conditions and binding failure conditions need each other"
    for what, names in kinds:
        if len(names) > MAX_BINDING_CONDITIONS:
            yield f"{len(names)} {what} conditions: at most {MAX_BINDING_CONDITIONS} are allowed"
        for name in names:
            yield from _faults(_label_key_fault(name, f"{what} condition"))
    for name in _repeated((*binding.conditions, *binding.failure_conditions)):
        yield f"condition {shown(name)} is named twice"


def _node_allocatable_faults(
    entries: tuple[NodeAllocatable, ...], capacities: Mapping[str, Capacity]
) -> Iterator[str]:
    for resource in _repeated(entry.resource for entry in entries):
        yield f"node resource {shown(resource)} is named twice"
    for entry in entries:
        what = f"node resource {shown(entry.resource)}"
        if not entry.resource or ("/" in entry.resource and "kubernetes.io/" not in entry.resource):
            yield f"{what} is not a node allocatable resource such as cpu or hugepages-2Mi"
        if entry.capacity is not None and entry.capacity not in capacities:
            yield f"{what}: capacity {shown(entry.capacity)} is not one of the device's"
        amounts = {
            "multiplier": entry.multiplier,
            "overhead per pod": entry.overhead_per_pod,
            "overhead per container": entry.overhead_per_container,
        }
        for name, amount in amounts.items():
            if amount is not None and amount <= Quantity(0):
                yield f"{what}: {name} {amount} is not positive"


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
