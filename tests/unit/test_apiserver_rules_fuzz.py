"""Whatever the stand-in API server is sent, it refuses as a server does, or stores what it would take again."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from apirules import create, update
from dradriver.sim.apiserver.rules import Body, Gates, Refused

VALUES: list[Any] = [
    *(None, True, 0, -1, 2**63, 1.5, 1e400, [], {}, [None], {"a": None}, {"": ""}, [[]]),
    *("", "a", "A b", "a/b/c", "x" * 300, "\ud800", "é\n", "\x00", "1Gi", "1e999999999", "0" * 50, "-"),
    *("2026-01-01T00:00:00Z", "device.driver == 'x'", "(((("),
]
OPAQUE = {"opaque": {"driver": "gpu.example.com", "parameters": {"a": [1.0, {}]}}}
SELECTORS = [{"cel": {"expression": "device.attributes['gpu.example.com'].model.startsWith('a')"}}]
CLAIM_SPEC = {
    "devices": {
        "requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "gpu", "selectors": SELECTORS, "count": 2}},
            {
                "name": "nic",
                "firstAvailable": [
                    {
                        "name": "a",
                        "deviceClassName": "nic",
                        "tolerations": [{"key": "a", "operator": "Exists"}],
                    }
                ],
            },
        ],
        "constraints": [{"requests": ["gpu", "nic/a"], "matchAttribute": "example.com/numa"}],
        "config": [{"requests": ["gpu"], **OPAQUE}],
    }
}
OBJECTS: dict[str, dict[str, Any]] = {
    "ResourceSlice": {
        "driver": "gpu.example.com",
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
        },
        "pool": {"name": "a/b", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {"model": {"string": "a"}, "example.com/version": {"version": "1.2.3"}},
                "allowMultipleAllocations": True,
                "capacity": {
                    "memory": {
                        "value": "80Gi",
                        "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
                    }
                },
                "taints": [{"key": "example.com/a", "effect": "NoSchedule"}],
                "consumesCounters": [{"counterSet": "a", "counters": {"b": {"value": "1"}}}],
                "bindingConditions": ["example.com/a"],
                "bindingFailureConditions": ["example.com/b"],
            }
        ],
    },
    "ResourceClaim": CLAIM_SPEC,
    "ResourceClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": CLAIM_SPEC},
    "DeviceClass": {"selectors": SELECTORS, "config": [OPAQUE], "extendedResourceName": "example.com/gpu"},
}
GATES = [
    Gates.of("1.34", {"DRAPartitionableDevices": True, "DRADeviceTaints": True}),
    Gates.of("1.35"),
    Gates.of("1.36", {"DRAListTypeAttributes": True}),
    Gates.of("1.37", {"DRANodeAllocatableResources": True}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def mutated(obj: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    made = copy.deepcopy(obj)
    for _ in range(chance.randint(0, 2)):
        *path, last = chance.choice(list(places(made)))
        parent: Any = made
        for key in path:
            parent = parent[key]
        value = copy.deepcopy(chance.choice(VALUES))
        match chance.randrange(6), parent:
            case 0, _:
                del parent[last]
            case 1, dict():
                parent[chance.choice(["x", "name", "", "a/b", "Devices"])] = value
            case 1, list():
                parent.append(copy.deepcopy(parent[last]))
            case _:
                parent[last] = value
    return made


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_is_stored_is_taken_again_without_a_change(kind: str) -> None:
    chance = random.Random(kind)
    codes = set()
    for _ in range(500):
        gates = chance.choice(GATES)
        meta = {"name": "a", **({"namespace": "default"} if "Claim" in kind else {})}
        sent = mutated({"metadata": meta, "spec": OBJECTS[kind]}, chance)
        text = json.dumps(sent, separators=(",", ":"), ensure_ascii=False)
        try:
            first = create(kind, Body.parse(text.encode(errors="surrogatepass")), gates).obj
        except Refused as refused:
            codes.add(refused.code)
            continue
        codes.add(201)
        stored = json.loads(json.dumps(first))
        second = update(kind, stored, first, gates)
        assert not second.spec_changed, text
        assert json.loads(json.dumps(second.obj)) == stored, text
        assert create(kind, stored, gates).obj["spec"] == first["spec"], text
    assert {201, 400, 422} <= codes <= {201, 400, 422, 0}


PIECES = [
    *(
        "device",
        ".",
        "driver",
        "attributes",
        "capacity",
        "a",
        "b",
        "'x'",
        '"y"',
        "1",
        "2.5",
        "3u",
        "true",
        "null",
    ),
    *("[", "]", "(", ")", "{", "}", ",", ":", "?", "!", "-", "+", "*", "%", "&&", "||", "==", "<", "in", " "),
    *("has(", ".exists(", ".map(", "[?'a']", ".?a", "quantity('1')", ".compareTo(", ".matches(", ".size()"),
    *(
        "cel.bind(",
        ".optMap(",
        ".sum()",
        ".includes(",
        "string(",
        "dyn(",
        "`",
        "`a.b`",
        "//",
        "\n",
        "\\",
        "$",
        "é",
    ),
]


def test_selectors_of_any_text_are_compiled_or_refused() -> None:
    chance = random.Random("selectors")
    right = "device.attributes['a.b'].exists(a, a == 'x') && cel.bind(b, device.driver, b + 'x' != '')"
    answers = set()
    for _ in range(3000):
        if chance.random() < 0.5:
            expression = "".join(chance.choices(PIECES, k=chance.randint(1, 25)))
        else:
            start = chance.randrange(len(right))
            expression = right[:start] + chance.choice(PIECES) + right[start + chance.randrange(3) :]
        sent = {"metadata": {"name": "a"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        try:
            create("DeviceClass", sent, chance.choice(GATES))
            answers.add("")
        except Refused as refused:
            answers.add(refused.causes[0].reason)
    assert answers >= {"", "FieldValueInvalid"}
