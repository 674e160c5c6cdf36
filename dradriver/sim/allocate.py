"""Allocating a claim by device name, as a stand-in for the scheduler. Pure.

Facts: k8s.io/api/resource/v1 `DeviceRequestAllocationResult`; of a shared device each allocation has a share id and
consumes amounts that its request policy allows, rounded up to the next one.
"""

import difflib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dradriver.model import Quantity, json_quantity, shown
from dradriver.model.names import short_name
from dradriver.model.text import plain

MADE = "dradriver.io/allocated-by-name"
"""Annotation of claims that were made here, so that they can be cleaned up again."""

_FEW: Final = 8
"""Names that are listed; of more, the nearest."""

_DRIVER: Final = re.compile(r"""device\.driver\s*==\s*(["'])(.*?)\1""")
"""In a CEL expression: the driver that a device has to be of."""


class AllocationError(Exception):
    """The wish cannot be met from the slices at hand."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A device by name, of any driver or of the named one, and how much of its capacities."""

    device: str
    driver: str = ""
    amounts: Mapping[str, Quantity] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Wish":
        """Return the wish behind `[DRIVER/]NAME[:CAPACITY=AMOUNT[,CAPACITY=AMOUNT...]]`. Raises AllocationError."""
        device, colon, rest = text.partition(":")
        amounts = {}
        for part in rest.split(",") if colon else []:
            name, equals, amount = part.partition("=")
            try:
                if not name or not equals:
                    raise ValueError("capacity=amount is expected")
                amounts[name] = Quantity.parse(amount)
            except ValueError as error:
                raise AllocationError(f"{shown(text)}: {error}") from None
        driver, _, name = device.rpartition("/")
        return cls(name, driver, amounts)


def allocate(
    name: str,
    namespace: str,
    wishes: Sequence[Wish],
    specs: Iterable[Mapping[str, Any]],
    parameters: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> dict[str, Any]:
    """Return a ResourceClaim with a UID of its own, allocated to these devices.

    specs        ResourceSlice specs to find the devices in
    parameters   opaque configuration for all requests, as (driver, object)

    Raises AllocationError for a device that is not in the slices or has not that capacity.
    """
    found = published(specs)
    requests, results = [], []
    for number, wish in enumerate(wishes):
        request = f"device-{number}"
        spec, device = named(wish, found)
        results.append(_result(request, {}, wish, spec, device))
        exactly = {"deviceClassName": spec["driver"], "allocationMode": "ExactCount", "count": 1}
        requests.append({"name": request, "exactly": exactly})
    allocated = {result["driver"] for result in results}
    for driver, _ in parameters:
        if driver not in allocated:
            raise AllocationError(
                f"parameters for driver {shown(driver)}: no device of it is asked for, "
                f"but of {', '.join(sorted(allocated))}"
            )
    config = [
        {"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": dict(fields)}}
        for driver, fields in parameters
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "annotations": {MADE: "true"},
        },
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": results, "config": config}}},
    }


def allocation(
    claim: Mapping[str, Any],
    classes: Mapping[str, Mapping[str, Any]],
    specs: Iterable[Mapping[str, Any]],
    choices: Mapping[str, Sequence[Wish]],
) -> dict[str, Any]:
    """Return the `status.allocation` of a claim whose requests get the devices that `choices` names.

    classes   DeviceClass objects by name
    specs     ResourceSlice specs to find the devices in
    choices   request name, `request/subrequest` for one of several alternatives -> its devices

    Whether a device satisfies the selectors and constraints is not looked at. Raises AllocationError for a request
    without a choice, a choice without a request, a number of devices that was not asked for, and what `Wish` cannot
    have.
    """
    found = published(specs)
    devices = claim["spec"].get("devices", {})
    left, nodes, results, config = dict(choices), set(), [], []
    for request in devices.get("requests") or ():
        name, asked = _chosen(request, left)
        wishes = left.pop(name)
        count = asked.get("count", 1) if asked.get("allocationMode", "ExactCount") == "ExactCount" else None
        if count is not None and len(wishes) != count:
            raise AllocationError(f"request {name} asks for {count} devices, {len(wishes)} are named")
        device_class = classes.get(asked["deviceClassName"])
        if device_class is None:
            raise AllocationError(
                f"request {name}: there is no DeviceClass {shown(asked['deviceClassName'])}"
            )
        of_class = device_class["spec"].get("config") or ()
        config += [{"source": "FromClass", "requests": [name], **entry} for entry in of_class]
        for wish in wishes:
            spec, device = named(wish, found)
            nodes.add(spec.get("nodeName"))
            results.append(_result(name, asked, wish, spec, device))
    if left:
        known = ", ".join(request["name"] for request in devices.get("requests") or ()) or "none"
        raise AllocationError(f"there is no request {', '.join(map(shown, left))}; requests are {known}")
    config += [{"source": "FromClaim", **entry} for entry in devices.get("config") or ()]
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        for node in sorted(filter(None, nodes))
    ]
    return {
        "devices": {"results": results, **({"config": config} if config else {})},
        **({"nodeSelector": {"nodeSelectorTerms": terms}} if terms else {}),
    }


def published(specs: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return every device with the spec of its slice. A slice without devices has null in their place."""
    return [(spec, device) for spec in specs for device in spec.get("devices") or ()]


def named(
    wish: Wish, found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the one of the published devices that is wished for. Raises AllocationError."""
    name = wish.device
    of_name = [(spec, device) for spec, device in found if device["name"] == name]
    matching = [(spec, device) for spec, device in of_name if wish.driver in {"", spec["driver"]}]
    if len(matching) == 1:
        return matching[0]
    if matching:
        drivers = ", ".join(spec["driver"] for spec, _ in matching)
        raise AllocationError(f"device {shown(name)} is published by {drivers}: write DRIVER/{name}")
    of_driver = [device["name"] for spec, device in found if wish.driver in {"", spec["driver"]}]
    if of_driver:
        by = f" by {wish.driver}" if wish.driver else ""
        raise AllocationError(
            f"device {shown(name)} is not published{by}; {nearest(name, of_driver, 'published are')}"
        )
    drivers = ", ".join(dict.fromkeys(spec["driver"] for spec, _ in found)) or "none"
    by = f" by {shown(wish.driver)}" if wish.driver else ""
    raise AllocationError(f"device {shown(name)} is not published{by}; drivers with devices are {drivers}")


def nearest(name: str, known: Iterable[str], title: str = "there are") -> str:
    """Return the known names for a message; where they are many, those that are most alike, and how many there are."""
    names = sorted(set(known))
    if len(names) <= _FEW:
        return f"{title} {', '.join(map(plain, names)) or 'none'}"
    matcher = difflib.SequenceMatcher(autojunk=False, b=name)

    def likeness(other: str) -> tuple[bool, float]:
        matcher.set_seq1(other)
        return other.startswith(name), matcher.ratio()

    best = sorted(names, key=likeness, reverse=True)[:_FEW]
    return f"nearest of {len(names)}: {', '.join(map(plain, best))}"


def doubts(claim: Mapping[str, Any], classes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what of an allocated claim a scheduler would not do, as far as that is seen at a glance.

    Selectors are not evaluated; but a device of a driver that none of them names is not meant.
    """
    requests = {
        name: asked
        for request in claim["spec"].get("devices", {}).get("requests") or ()
        for name, asked in _alternatives(request).items()
    }
    for result in claim["status"]["allocation"]["devices"].get("results") or ():
        asked = requests.get(result["request"], {})
        name = asked.get("deviceClassName", "")
        for title, owner in (
            (f"class {plain(name)}", classes.get(name, {}).get("spec", {})),
            ("the claim", asked),
        ):
            for selector in owner.get("selectors") or ():
                drivers = {
                    driver for _, driver in _DRIVER.findall(selector.get("cel", {}).get("expression", ""))
                }
                if drivers and result["driver"] not in drivers:
                    yield (
                        f"request {plain(result['request'])}: device {result['device']} is of {result['driver']}, "
                        f"{title} selects devices of {', '.join(map(plain, sorted(drivers)))}"
                    )


def _alternatives(request: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what a request asks for, by the name under which devices are chosen for it."""
    name = request["name"]
    if "exactly" in request:
        return {name: request["exactly"]}
    return {f"{name}/{one['name']}": one for one in request.get("firstAvailable") or ()}


def _chosen(request: Mapping[str, Any], choices: Mapping[str, object]) -> tuple[str, Mapping[str, Any]]:
    """Return the name under which a request was chosen for, and what it asks for by that name."""
    asked = _alternatives(request)
    chosen = [key for key in asked if key in choices]
    if len(chosen) != 1:
        raise AllocationError(f"request {request['name']}: devices are needed for {' or '.join(asked)}")
    return chosen[0], asked[chosen[0]]


def _result(
    name: str,
    asked: Mapping[str, Any],
    wish: Wish,
    spec: Mapping[str, Any],
    device: Mapping[str, Any],
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "request": name,
        "driver": spec["driver"],
        "pool": spec["pool"]["name"],
        "device": wish.device,
    }
    amounts = {
        key: json_quantity(value)
        for key, value in ((asked.get("capacity") or {}).get("requests") or {}).items()
    } | dict(wish.amounts)
    if device.get("allowMultipleAllocations"):
        given = Wish(wish.device, wish.driver, amounts)
        result["shareID"] = str(uuid.uuid4())
        result["consumedCapacity"] = _consumed(given, spec["driver"], device)
    elif wish.amounts:
        raise AllocationError(f"device {wish.device} is given whole: it takes no amounts")
    if asked.get("adminAccess"):
        result["adminAccess"] = True
    for key, source in (
        ("tolerations", asked),
        ("bindingConditions", device),
        ("bindingFailureConditions", device),
    ):
        if source.get(key):
            result[key] = source[key]
    return result


def _consumed(wish: Wish, driver: str, device: Mapping[str, Any]) -> dict[str, str]:
    capacities = {short_name(key, driver): value for key, value in (device.get("capacity") or {}).items()}
    for name in wish.amounts:
        if short_name(name, driver) not in capacities:
            allowed = ", ".join(sorted(capacities)) or "none"
            raise AllocationError(f"device {wish.device} has no capacity {shown(name)}; it has {allowed}")
    asked = {short_name(name, driver): amount for name, amount in wish.amounts.items()}
    return {name: str(_amount(asked.get(name), capacity)) for name, capacity in capacities.items()}


def _amount(asked: Quantity | None, capacity: Mapping[str, Any]) -> Quantity:
    policy = capacity.get("requestPolicy") or {}
    if asked is None:
        return json_quantity(policy.get("default", capacity["value"]))
    if policy.get("validValues"):
        values = [json_quantity(value) for value in policy["validValues"]]
        return next((value for value in values if value >= asked), asked)
    valid = policy.get("validRange")
    if not valid:
        return asked
    least = json_quantity(valid["min"])
    if asked <= least:
        return least
    if "step" not in valid:
        return asked
    step = json_quantity(valid["step"])
    steps = -(-(asked - least).nano // step.nano)
    return least + step * steps
