"""Whether two ResourceSlice specs mean the same, and which generation a changed pool gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dradriver.model import json_quantity
from dradriver.slices.encode import Body, NodeAllocatableField

UNSOUND_GENERATION: Final = 2**62
"""A generation from here on was written by somebody else, and leaves no room for higher ones."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was published of a pool so far.

    specs        by slice number, None where one was lost; empty for a new pool
    generation   the highest generation seen, where that may be higher than those of `specs`
    """

    specs: tuple[Body | None, ...] = ()
    generation: int = 0

    @classmethod
    def of(cls, specs: Mapping[int, Body], *, generation: int = 0, whole: bool = False) -> "Earlier":
        """Return what these specs, by slice number, are to be gone on from.

        generation   the highest one, where it is known; else that of the specs
        whole        nothing is let go; else slices at the end are that hold nothing, as nowhere else a pool becomes
                     smaller
        """
        kept = (
            number
            for number, spec in specs.items()
            if whole or spec.get("devices") or spec.get("sharedCounters")
        )
        newest = generation or max((spec["pool"]["generation"] for spec in specs.values()), default=0)
        return cls(tuple(specs.get(number) for number in range(max(kept, default=-1) + 1)), newest)


NOTHING = Earlier()


def same(ours: Body, stored: Body) -> bool:
    """Whether a spec as it was stored means what ours says.

    Quantities are compared by value and times by instant, to the second; null, false, and empty lists, maps and
    texts are absent. The time of a taint that names none is the server's affair. A stored spec of another shape
    than the API's is not the same.
    """
    if ours is stored:
        return True
    try:
        if msgspec.json.encode(ours) == msgspec.json.encode(stored):
            return True
        wanted, found = _spec(ours), _spec(stored)
        _forget_server_times(wanted, found)
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return False
    return bool(wanted == found)


def next_generation(earlier: Earlier, specs: Sequence[Body]) -> int:
    """Return the generation that `specs` carry when they are published; the one they have is not looked at.

    A change of one slice alone keeps the generation; readers then see the slice before or after it. Anything
    more could be read half done, and raises it, so that readers wait until all slices carry the new one.
    """
    pools = [spec["pool"] for spec in earlier.specs if spec is not None]
    newest: int = max([earlier.generation, *(pool["generation"] for pool in pools)])
    # The count that slices state may differ from how many there are: some were lost, or let go.
    counts = {len(specs), len(pools), len(earlier.specs), *(pool["resourceSliceCount"] for pool in pools)}
    whole = len(counts) == 1 and all(pool["generation"] == newest for pool in pools)
    if whole and sum(map(_differ, specs, earlier.specs)) <= 1:
        return newest
    return newest + 1


def _differ(spec: Body, previous: Body | None) -> bool:
    if previous is None:
        return True
    pool = spec["pool"] | {"generation": previous["pool"].get("generation")}
    return not same(spec | {"pool": pool}, previous)


def _given(body: Mapping[str, Any]) -> Body:
    """Return the entries that are there: a decoder of the API takes a zero value of these for an absent one."""
    return {
        key: value
        for key, value in body.items()
        if value is not None and value is not False and value not in ("", [], {})
    }


def _spec(body: Body) -> Body:
    spec = _given(body)
    spec["pool"] = _exact(spec["pool"])
    if "devices" in spec:
        spec["devices"] = [_device(device) for device in spec["devices"]]
    if "sharedCounters" in spec:
        spec["sharedCounters"] = [
            one | {"counters": _counters(one["counters"])} for one in spec["sharedCounters"]
        ]
    return spec


def _device(body: Body) -> Body:
    device = _given(body)
    if "attributes" in device:
        device["attributes"] = {name: _exact(value) for name, value in device["attributes"].items()}
    if "capacity" in device:
        device["capacity"] = {name: _capacity(value) for name, value in device["capacity"].items()}
    if "consumesCounters" in device:
        device["consumesCounters"] = [
            _given(one) | {"counters": _counters(one["counters"])} for one in device["consumesCounters"]
        ]
    if "taints" in device:
        device["taints"] = [_taint(taint) for taint in device["taints"]]
    for field in (NodeAllocatableField.MAPPINGS.value, NodeAllocatableField.RESOURCES.value):
        if field in device:
            device[field] = {name: _amounts(value) for name, value in device[field].items()}
    return device


def _exact(body: Mapping[str, Any]) -> bytes:
    # As text, which tells apart what Python takes for equal: true, 1 and 1.0.
    given = {key: value for key, value in body.items() if value is not None}
    return msgspec.json.encode(given, order="deterministic")


def _counters(body: Mapping[str, Any]) -> Body:
    return {name: _amounts(counter) for name, counter in body.items()}


def _capacity(body: Body) -> Body:
    capacity = _given(body)
    capacity["value"] = json_quantity(capacity.get("value"))
    policy = capacity.get("requestPolicy")
    if policy is not None:
        policy = capacity["requestPolicy"] = _given(policy)
        if "validValues" in policy:
            policy["validValues"] = [json_quantity(value) for value in policy["validValues"]]
        if "validRange" in policy:
            policy["validRange"] = _amounts(policy["validRange"])
        policy["default"] = json_quantity(policy.get("default"))
    return capacity


def _amounts(body: Mapping[str, Any]) -> Body:
    """Return an object with its quantities as values; they stand under every key but `capacityKey`."""
    return {
        key: value
        if key == "capacityKey"
        else _amounts(value)
        if isinstance(value, Mapping)
        else json_quantity(value)
        for key, value in body.items()
        if value is not None
    }


def _taint(body: Body) -> Body:
    taint = _given(body)
    if "timeAdded" in taint:
        instant = datetime.fromisoformat(taint["timeAdded"])
        taint["timeAdded"] = instant.astimezone(UTC).replace(microsecond=0)
    return taint


def _forget_server_times(ours: Body, stored: Body) -> None:
    for device, other in zip(ours.get("devices", ()), stored.get("devices", ()), strict=False):
        for taint, kept in zip(device.get("taints", ()), other.get("taints", ()), strict=False):
            if "timeAdded" not in taint:
                kept.pop("timeAdded", None)
