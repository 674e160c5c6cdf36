"""The reduced form of a pool, for an API server that does not store all of it: less is offered, and nothing twice.

What decides is what claims could then be given. Without counters, devices that overlap would be given out beside each
other, so of those only some are published. Without consumable capacity a shared device is given out whole. Without
taints a sick device is withdrawn. Attributes and conditions are dropped: a selector that misses an attribute fails
closed, and a device that is not ready is refused when it is prepared.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from fractions import Fraction
from typing import Any

from dradriver.model import Capacity, Device, PoolContent, TaintEffect, shown
from dradriver.slices.check import firsts
from dradriver.slices.features import ApiFeatures, Feature

Unit = tuple[str, str]
"""A counter set, and a counter of it."""


def overlapping(content: PoolContent) -> frozenset[str]:
    """Return the devices that must not be published where nobody counts counters, since others are that they overlap.

    Of each counter set the device stays that draws most, which is the whole thing, and then in the order of the
    content each that still fits beside those that stay: all of them together draw no more than there is. Whether a
    device is sick, or can be published at all, is not looked at: a part must not appear because the whole is ill.

    The choice depends on the content alone. Where hardware itself goes, or is offered in another way, other devices may
    come to be published than those that claims hold; the ledger, which always counts, then refuses what overlaps.
    """
    left: dict[Unit, int] = {}
    for counter_set in firsts(content.counter_sets):
        left |= {(counter_set.name, name): amount.nano for name, amount in counter_set.counters.items()}
    drawing = {device.name: device for device in firsts(content.devices) if device.consumes}
    draws = {name: _draws(device, left) for name, device in drawing.items()}
    order = [*_largest(drawing, draws, left), *drawing]
    stay: set[str] = set()
    for name in order:
        if name not in stay and all(amount <= left[unit] for unit, amount in draws[name].items()):
            stay.add(name)
            for unit, amount in draws[name].items():
                left[unit] -= amount
    return frozenset(drawing.keys() - stay)


def _draws(device: Device, known: Mapping[Unit, int]) -> dict[Unit, int]:
    """Return what a device draws, in billionths; what does not exist cannot be overlapped, and no draw gives back."""
    return {
        (set_name, name): amount.nano
        for set_name, counters in device.consumes.items()
        for name, amount in counters.items()
        if amount.nano > 0 and (set_name, name) in known
    }


def _largest(
    drawing: Mapping[str, Device], draws: Mapping[str, Mapping[Unit, int]], there: Mapping[Unit, int]
) -> Iterator[str]:
    """Yield of each counter set the device that draws most of it, among those that draw no more than there is.

    Amounts of different counters are made comparable as parts of what there is. Of two that draw the same, as a GPU and
    its partition of full size do, the whole thing goes first.
    """
    best: dict[str, tuple[tuple[Fraction, bool], str]] = {}
    for name, device in drawing.items():
        if any(amount > there[unit] for unit, amount in draws[name].items()):
            continue
        parts: dict[str, Fraction] = {}
        for (set_name, counter), amount in draws[name].items():
            parts[set_name] = parts.get(set_name, Fraction(0)) + Fraction(amount, there[set_name, counter])
        for set_name, part in parts.items():
            rank = part, device.name == device.physical
            if set_name not in best or rank > best[set_name][0]:
                best[set_name] = rank, name
    sets = dict.fromkeys(set_name for set_name, _ in there)
    yield from (best[set_name][1] for set_name in sets if set_name in best)


def offered(content: PoolContent, features: ApiFeatures, hidden: AbstractSet[str]) -> PoolContent:
    """Return the content without the `hidden` devices, and without list attributes where these are not stored."""
    devices = content.devices
    if hidden:
        devices = tuple(device for device in devices if device.name not in hidden)
    if not features.lists:
        devices = tuple(map(_without_lists, devices))
    return content if devices is content.devices else replace(content, devices=devices)


def _without_lists(device: Device) -> Device:
    # An empty list stays, to be found wanting as everywhere.
    kept = {name: value for name, value in device.attributes.items() if not _is_list(value)}
    return device if len(kept) == len(device.attributes) else replace(device, attributes=kept)


def _is_list(value: object) -> bool:
    return isinstance(value, tuple) and bool(value)


def withdrawn(
    devices: Sequence[Device], features: ApiFeatures, refused: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return which devices are kept out of the slices for now, and why.

    The scheduler subtracts from counters what allocated devices draw only while these are published: so a sick device
    that is withdrawn takes with it all that draw on the same counters.

    refused   devices that the API server does not take, with the reasons
    """
    reasons: dict[str, list[str]] = {}
    for device in devices:
        if device.name in refused:
            reasons.setdefault(device.name, []).append(refused[device.name])
    if not features.taints:
        sick = {device.name: text for device in devices if (text := _sickness(device))}
        others = _related(devices, sick) if features.counters else {}
        for name, text in (sick | others).items():
            reasons.setdefault(name, []).append(text)
    return {device.name: tuple(reasons[device.name]) for device in devices if device.name in reasons}


def _sickness(device: Device) -> str:
    taints = [taint for taint in device.taints if taint.effect is not TaintEffect.NONE]
    if not taints:
        return ""
    names = ", ".join(f"{shown(taint.key)} ({taint.effect.value})" for taint in taints)
    return f"it is tainted with {names}, and this API server stores no taints"


def _related(devices: Sequence[Device], sick: Container[str]) -> dict[str, str]:
    """Return the devices that draw on the counters of sick ones, or of those that do."""
    drawing: dict[str, list[Device]] = {}
    for device in devices:
        for name in device.consumes:
            drawing.setdefault(name, []).append(device)
    found: dict[str, str] = {}
    seen: set[str] = set()
    queue = [device for device in devices if device.name in sick]
    for device in queue:
        for name in device.consumes:
            fresh = () if name in seen else drawing[name]
            seen.add(name)
            for other in fresh:
                if other.name not in found and other.name not in sick:
                    found[other.name] = (
                        f"it draws on the same counters as {shown(device.name)}, which is withdrawn and "
                        "no longer counted"
                    )
                    queue.append(other)
    return found


def bare(device: Device, features: ApiFeatures) -> Device:
    """Return a device without what is not stored; one that was shared is given out whole."""
    changes: dict[str, Any] = {}
    if device.consumes and not features.counters:
        changes["consumes"] = {}
    if device.shared and not features.shared:
        changes["shared"] = False
        changes["capacity"] = {name: Capacity(capacity.value) for name, capacity in device.capacity.items()}
    if device.taints and not features.taints:
        changes["taints"] = ()
    if device.binding is not None and not features.binding:
        changes["binding"] = None
    return replace(device, **changes) if changes else device


def reductions(content: PoolContent, features: ApiFeatures, hidden: AbstractSet[str]) -> tuple[str, ...]:
    """Return for people what is not stored and would be used: one line for each feature.

    The lines stay the same while the hardware is of the same kind, so that they can be told once. Node allocatable
    resources have none: their gate is off unless somebody turns it on, and what is published is no less without them.
    """
    if features == ApiFeatures():
        return ()
    return tuple(_lines(content.devices, features, hidden))


def _lines(devices: Sequence[Device], features: ApiFeatures, hidden: AbstractSet[str]) -> Iterator[str]:
    if hidden:
        yield _line(
            Feature.COUNTERS,
            "of devices that overlap only the largest is published, with what fits beside it",
            Feature.COUNTERS.value,
        )
    if not features.shared and any(device.shared for device in devices):
        yield _line(Feature.SHARED, "devices are given out whole instead of in shares", Feature.SHARED.value)
    if not features.taints and any(device.taints for device in devices):
        yield _line(
            Feature.TAINTS, "taints are not published, and devices that they keep claims from are withdrawn"
        )
    if not features.binding and any(device.binding is not None for device in devices):
        yield _line(Feature.BINDING, "binding conditions are not published")
    if not features.lists and (names := _list_names(devices)):
        yield _line(Feature.LISTS, f"list attributes are not published ({', '.join(names)})")


def _line(feature: Feature, text: str, what: str = "them") -> str:
    return f"{text}: this API server does not store {what} (feature gate {feature.gate})"


def _list_names(devices: Iterable[Device]) -> list[str]:
    return sorted(
        {shown(name) for device in devices for name, value in device.attributes.items() if _is_list(value)}
    )
