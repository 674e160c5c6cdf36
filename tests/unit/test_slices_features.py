"""What a server stores is learned from what comes back of a probe."""

import copy
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from apirules import create
from dradriver.sim.apiserver.rules import Gates, Refused
from dradriver.slices import (
    ApiFeatures,
    Body,
    Feature,
    NodeAllocatableField,
    features_of,
    learned,
    probes,
    still_stored,
)

VECTORS = Path(__file__).resolve().parents[2].parent / "shared" / "vectors" / "validation" / "vectors.json"

PROBES = dict(probes("gpu.dradriver.io", "node-a", "node-a/probe"))


def dropped(spec: Body, *keys: str) -> Body:
    """Return the spec as a server stores it that drops these fields wherever they stand."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items() if key not in keys}
        return [without(one) for one in value] if isinstance(value, list) else value

    made: Body = without(spec)
    return made


def test_there_is_one_probe_for_each_feature() -> None:
    assert set(PROBES) == set(Feature)
    for spec in PROBES.values():
        assert spec["nodeName"] == "node-a"
        assert spec["pool"] == {"name": "node-a/probe", "generation": 1, "resourceSliceCount": 1}
        assert len(spec["devices"]) == 1
        assert len(spec["devices"][0]) > 1


@pytest.mark.parametrize("feature", Feature)
def test_what_comes_back_is_stored_and_what_is_refused_is_not(feature: Feature) -> None:
    spec = PROBES[feature]
    assert learned(feature, spec, copy.deepcopy(spec))
    assert not learned(feature, spec, None)
    assert learned(feature, spec, spec | {"devices": [spec["devices"][0] | {"other": None}]})


@pytest.mark.parametrize(
    ("feature", "keys"),
    [
        (Feature.COUNTERS, ["consumesCounters"]),
        (Feature.SHARED, ["allowMultipleAllocations"]),
        (Feature.SHARED, ["requestPolicy"]),
        (Feature.TAINTS, ["taints"]),
        (Feature.BINDING, ["bindsToNode"]),
        (Feature.BINDING, ["bindingConditions", "bindingFailureConditions"]),
        (Feature.LISTS, ["ints"]),
        (Feature.MAPPINGS, ["nodeAllocatableResourceMappings"]),
        (Feature.RESOURCES, ["nodeAllocatableResources"]),
    ],
)
def test_fields_that_are_dropped_silently_are_not_stored(feature: Feature, keys: list[str]) -> None:
    spec = PROBES[feature]
    assert not learned(feature, spec, dropped(spec, *keys))
    assert all(learned(other, spec, dropped(spec, *keys)) for other in Feature if other is not feature)


def test_what_the_server_fills_in_and_writes_otherwise_is_still_stored() -> None:
    spec = copy.deepcopy(PROBES[Feature.TAINTS])
    for taint in spec["devices"][0]["taints"]:
        taint["timeAdded"] = "2026-01-02T03:04:05Z"
    assert learned(Feature.TAINTS, PROBES[Feature.TAINTS], spec)
    spec = copy.deepcopy(PROBES[Feature.SHARED])
    spec["devices"][0]["capacity"]["amount"]["value"] = "2000m"
    spec |= {"allNodes": None, "sharedCounters": None}
    assert learned(Feature.SHARED, PROBES[Feature.SHARED], spec)


def test_a_server_has_the_features_that_were_found() -> None:
    assert features_of(Feature) == ApiFeatures()
    assert features_of(set(Feature) - {Feature.RESOURCES}) == ApiFeatures(
        node_allocatable=NodeAllocatableField.MAPPINGS
    )
    nothing = features_of(())
    assert nothing == ApiFeatures(False, False, False, False, False, NodeAllocatableField.NONE)
    for feature in Feature:
        assert features_of({feature}) != nothing
        assert features_of({feature}).without(feature) == nothing
        assert nothing.without(feature) == nothing
    assert ApiFeatures().without(Feature.MAPPINGS) == ApiFeatures()
    assert len(fields(ApiFeatures)) == len(Feature) - 1, "two of them share the last field"


def test_a_gate_that_is_switched_off_shows_in_the_answer_to_any_slice() -> None:
    devices = [
        {**spec["devices"][0], "name": f"device-{n}"}
        for n, spec in enumerate(PROBES.values())
        if "nodeAllocatableResourceMappings" not in str(spec)
    ]
    sent = PROBES[Feature.LISTS] | {"devices": devices}
    every = ApiFeatures()
    assert still_stored(every, sent, copy.deepcopy(sent)) == every
    assert still_stored(every, sent, dropped(sent, "taints")) == ApiFeatures(taints=False)
    assert still_stored(every, sent, dropped(sent, "consumesCounters", "ints")) == ApiFeatures(
        counters=False, lists=False
    )
    counters = {key: value for key, value in sent.items() if key != "devices"}
    counters["sharedCounters"] = [{"name": "gpu-0", "counters": {"slices": {"value": "7"}}}]
    assert still_stored(every, counters, dropped(counters, "sharedCounters")) == ApiFeatures(counters=False)
    plain = PROBES[Feature.LISTS] | {"devices": [{"name": "gpu-0"}]}
    assert still_stored(every, plain, plain) == every, "what was not sent cannot be missed"


def test_recorded_answers_of_a_server_with_and_without_its_alpha_gates_are_told_apart() -> None:
    if not VECTORS.exists():
        pytest.skip(f"no recorded answers of an API server at {VECTORS}")
    found = json.loads(VECTORS.read_text())
    compared = 0
    for part, on in (("vectors", True), ("vectors_default_gates", False)):
        for vector in found[part]:
            feature = {
                "slice/attributes/value/strings-one": Feature.LISTS,
                "slice/devices/list-attribute-64": Feature.LISTS,
                "slice/mappings/resource/cpu": Feature.MAPPINGS,
                "slice/mappings/key-and-multiplier": Feature.MAPPINGS,
            }.get(vector["name"])
            if feature is None:
                continue
            sent = vector["object"]["spec"]
            stored = vector.get("stored", sent) if vector["accepted"] else None
            assert learned(feature, sent, stored) is on, vector["name"]
            compared += 1
    assert compared >= 6


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
@pytest.mark.parametrize("feature", Feature)
def test_the_stand_in_servers_rules_are_learned_as_their_gates_are(
    feature: Feature, version: str, on: bool
) -> None:
    try:
        server = Gates.of(version, {feature.gate: on})
    except ValueError:
        server, on = Gates.of(version), False  # a version that has no such gate
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "dradriver-probe-"},
        "spec": PROBES[feature],
    }
    try:
        stored = create("ResourceSlice", copy.deepcopy(body), server).obj["spec"]
    except Refused:
        stored = None
    expected = on and {
        Feature.COUNTERS: version != "1.34",
        Feature.TAINTS: version != "1.34",
        Feature.MAPPINGS: version == "1.36",
        Feature.RESOURCES: version == "1.37",
    }.get(feature, True)
    assert learned(feature, PROBES[feature], stored) is expected
