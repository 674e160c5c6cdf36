"""Our bodies and checks against what a Kubernetes 1.36 API server accepted and refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

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
    TaintEffect,
    ValidRange,
    Version,
    json_quantity,
)
from dradriver.slices import (
    ApiFeatures,
    Earlier,
    NodeAllocatableField,
    Pool,
    next_generation,
    pool_specs,
    same,
)

VECTORS = Path(__file__).resolve().parents[2].parent / "shared" / "vectors" / "validation" / "vectors.json"

# Accepted by the server, and still left out or dropped by us, with the reason.
STRICTER = {
    "slice/attributes/name/domain-uppercase": "one spelling of a domain, the lower-case one",
    "slice/attributes/name/two-slashes-garbage": "the server does not check such names at all",
    "slice/capacity/name/two-slashes-garbage": "the server does not check such names at all",
    "slice/consumesCounters/unknown-set-not-checked": "the scheduler then ignores the whole pool",
    "slice/driver/uppercase-warns": "one spelling of a driver, the lower-case one",
    "slice/mappings/resource/empty": "there is no resource without a name",
    "slice/requestPolicy/step-negative": "a step leads upwards",
    "slice/taints/timeAdded/fraction-cut": "whole seconds are what is stored",
}

IN_1_36 = ApiFeatures(node_allocatable=NodeAllocatableField.MAPPINGS)

TIME_FILLED_IN = "slice/update/taint-timeAdded-removed"


class InexpressibleError(Exception):
    """The object says something that the model has no words for."""


@pytest.fixture(scope="module")
def vectors() -> list[dict[str, Any]]:
    if not VECTORS.exists():
        pytest.skip(f"no recorded answers of an API server at {VECTORS}")
    found: list[dict[str, Any]] = json.loads(VECTORS.read_text())["vectors"]
    return [vector for vector in found if vector["name"].startswith("slice/")]


def test_what_the_server_stored_is_what_we_send(vectors: list[dict[str, Any]]) -> None:
    compared, beyond = 0, []
    for vector in creates(vectors, accepted=True):
        try:
            pool, content = model_of(vector["object"]["spec"])
        except InexpressibleError as error:
            beyond.append(f"{vector['name']}: {error}")
            continue
        except ValueError:
            assert vector["name"] in STRICTER, vector["name"]
            continue
        made = pool_specs(pool, with_counter_sets(content, vector["name"]), IN_1_36)
        if vector["name"] in STRICTER:
            assert made.left_out or made.warnings, vector["name"]
            continue
        assert not made.left_out, vector["name"]
        assert not made.warnings, vector["name"]
        stored = vector["object"]["spec"] | without_now(vector.get("stored", {}))
        sent = stored | {
            key: [thing for spec in made.specs for thing in spec.get(key, ())]
            for key in ("devices", "sharedCounters")
            if stored.get(key)
        }
        assert same(sent, stored), vector["name"]
        compared += 1
    report(f"{compared} accepted objects compared; not expressible: {len(beyond)}", beyond)
    assert compared > 120


def test_what_the_server_refused_we_find(vectors: list[dict[str, Any]]) -> None:
    found, beyond = 0, []
    for vector in creates(vectors, accepted=False):
        spec = vector["object"].get("spec")
        try:
            pool, content = model_of(spec)
            made = pool_specs(pool, with_counter_sets(content, vector["name"]), IN_1_36)
        except InexpressibleError as error:
            beyond.append(f"{vector['name']}: {error}")
            continue
        except ValueError:
            found += 1
            continue
        if "Too many" in str(vector.get("causes")) and len(content.devices) > 64:
            assert all(len(spec.get("devices", ())) <= 64 for spec in made.specs), vector["name"]
        elif len(content.counter_sets) > 8:
            assert all(len(spec.get("sharedCounters", ())) <= 8 for spec in made.specs), vector["name"]
        else:
            assert made.left_out or made.warnings, vector["name"]
        found += 1
    report(f"{found} refused objects found; not expressible: {len(beyond)}", beyond)
    assert found > 100


def test_an_update_is_a_change_to_us_when_it_is_to_the_server(vectors: list[dict[str, Any]]) -> None:
    """The server raises metadata.generation on a change of meaning; a vector starts from 1."""
    compared = 0
    for vector in vectors:
        if vector["verb"] != "update" or not vector["accepted"] or vector["name"] == TIME_FILLED_IN:
            continue
        before = vector["existing"]["spec"]
        after = without_now(vector.get("stored") or vector["object"]["spec"])
        assert same(after, before) == (vector["generation"] == 1), vector["name"]
        compared += 1
    report(f"{compared} updates compared", [])
    assert compared > 10


def test_a_time_that_the_server_fills_in_is_no_difference(vectors: list[dict[str, Any]]) -> None:
    vector = next(one for one in vectors if one["name"] == TIME_FILLED_IN)
    ours, stored = vector["object"]["spec"], vector["existing"]["spec"]
    assert "timeAdded" not in str(ours)
    assert "timeAdded" in str(stored)
    assert same(ours, stored)
    assert next_generation(Earlier((stored,)), [ours]) == stored["pool"]["generation"]


def report(headline: str, lines: list[str]) -> None:
    sys.stdout.write("\n  ".join([f"\n{headline}", *lines, ""]))


def creates(vectors: list[dict[str, Any]], *, accepted: bool) -> list[dict[str, Any]]:
    """Return create vectors about what the model describes: not metadata, not selection of nodes."""
    elsewhere = {"metadata", "node", "perDevice", "perDevice-off", "unknown-fields", "spec"}
    return [
        vector
        for vector in vectors
        if vector["verb"] == "create"
        and vector["accepted"] is accepted
        and vector["name"].split("/")[1] not in elsewhere
        and vector["name"] != "slice/real/already-exists"
    ]


def without_now(spec: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(spec).replace("<now>", "2026-01-02T03:04:05Z"))
    return changed


def with_counter_sets(content: PoolContent, name: str) -> PoolContent:
    """Return `content` with the counter sets that it refers to, which a real pool has in another slice."""
    if "unknown-set" in name:
        return content
    wanted: dict[str, dict[str, Quantity]] = {}
    for device in content.devices:
        for counter_set, counters in device.consumes.items():
            wanted.setdefault(counter_set, {}).update(counters)
    sets = tuple(CounterSet(key, counters) for key, counters in wanted.items())
    return PoolContent(content.devices, content.counter_sets or sets)


def model_of(spec: Any) -> tuple[Pool, PoolContent]:
    """Read a ResourceSlice spec. Raises InexpressibleError, or ValueError for a bad name."""
    if not isinstance(spec, dict) or not isinstance(spec.get("nodeName"), str):
        raise InexpressibleError("no node name")
    pool = spec.get("pool")
    if not isinstance(pool, dict):
        raise InexpressibleError("no pool")
    number = {"generation", "resourceSliceCount"} & {
        key for key, value in pool.items() if type(value) is not int or value < 1
    }
    if number or "resourceSliceCount" not in pool:
        raise InexpressibleError("we count generations and slices ourselves")
    if spec.get("devices") is not None and spec.get("sharedCounters") is not None:
        raise InexpressibleError("both kinds of content in one slice")
    named = Pool(text(spec.get("driver", "")), spec["nodeName"], text(pool.get("name", "")))
    return named, PoolContent(
        tuple(device_of(device) for device in spec.get("devices") or ()),
        tuple(
            CounterSet(text(one.get("name", "")), counters_of(one.get("counters")))
            for one in spec.get("sharedCounters") or ()
        ),
    )


def device_of(body: dict[str, Any]) -> Device:
    conditions = body.get("bindingConditions"), body.get("bindingFailureConditions"), body.get("bindsToNode")
    consumes = body.get("consumesCounters") or ()
    if len({one["counterSet"] for one in consumes}) < len(consumes):
        raise InexpressibleError("one counter set consumed twice")
    return Device(
        name=text(body.get("name", "")),
        attributes={name: value_of(value) for name, value in (body.get("attributes") or {}).items()},
        capacity={name: capacity_of(value) for name, value in (body.get("capacity") or {}).items()},
        shared=bool(body.get("allowMultipleAllocations")),
        consumes={one["counterSet"]: counters_of(one.get("counters")) for one in consumes},
        taints=tuple(taint_of(taint or {}) for taint in body.get("taints") or ()),
        binding=BindingConditions(
            tuple(conditions[0] or ()), tuple(conditions[1] or ()), binds_to_node=bool(conditions[2])
        )
        if any(conditions)
        else None,
        node_allocatable=allocatable_of(body.get("nodeAllocatableResourceMappings")),
    )


def value_of(body: dict[str, Any] | None) -> AttributeValue:
    known: dict[str, type] = {"bool": bool, "int": int, "string": str, "version": str}
    known |= {f"{key}s": list for key in known}
    given = {key: value for key, value in (body or {}).items() if value is not None}
    if len(given) != 1:
        raise InexpressibleError("an attribute of no or several values")
    kind, value = next(iter(given.items()))
    fits = type(value) is known.get(kind)
    if not fits:
        raise InexpressibleError("a value of another type than its key says")
    if kind == "version":
        return Version(value)
    if kind == "versions":
        return tuple(Version(item) for item in value)
    made: AttributeValue = value
    if isinstance(value, list):
        made = tuple("" if item is None else item for item in value)
    return made


def capacity_of(body: dict[str, Any]) -> Capacity:
    policy = body.get("requestPolicy")
    return Capacity(quantity_of(body.get("value")), None if policy is None else policy_of(policy))


def policy_of(body: dict[str, Any]) -> RequestPolicy:
    if body.get("default") is None:
        raise InexpressibleError("a policy without a default")
    values = tuple(quantity_of(value) for value in body.get("validValues") or ())
    bounds = body.get("validRange")
    if bounds is None:
        return RequestPolicy(quantity_of(body["default"]), values)
    if bounds.get("min") is None:
        raise InexpressibleError("a range without a min")
    least, most, step = (
        None if bounds.get(key) is None else quantity_of(bounds[key]) for key in ("min", "max", "step")
    )
    assert least is not None
    return RequestPolicy(quantity_of(body["default"]), values, ValidRange(least, most, step))


def counters_of(body: Any) -> dict[str, Quantity]:
    if not isinstance(body or {}, dict) or not all(isinstance(one, dict) for one in (body or {}).values()):
        raise InexpressibleError("counters that are no map")
    return {name: quantity_of(counter.get("value")) for name, counter in (body or {}).items()}


def taint_of(body: dict[str, Any]) -> Taint:
    try:
        effect = TaintEffect(body.get("effect"))
    except ValueError as error:
        raise InexpressibleError("no such taint effect") from error
    time = body.get("timeAdded")
    return Taint(body.get("key", ""), effect, body.get("value", ""), None if time is None else text(time))


def allocatable_of(body: Any) -> tuple[NodeAllocatable, ...]:
    if not isinstance(body or {}, dict):
        raise InexpressibleError("mappings that are no map")
    return tuple(
        NodeAllocatable(
            resource,
            (entry or {}).get("capacityKey"),
            None
            if (entry or {}).get("allocationMultiplier") is None
            else quantity_of(entry["allocationMultiplier"]),
        )
        for resource, entry in (body or {}).items()
    )


def quantity_of(value: Any) -> Quantity:
    try:
        return json_quantity(value)
    except ValueError as error:
        raise InexpressibleError(f"no quantity: {error}") from error


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise InexpressibleError("a text that is none")
    return value
