"""What differs between the versions of the stand-in API server, and with its feature gates."""

from collections.abc import Mapping
from typing import Any

import pytest

from apirules import create, update
from dradriver.sim.apiserver.rules import Gates, Refused

PARTITIONS: Mapping[str, Any] = {
    "sharedCounters": [{"name": "set", "counters": {"slices": {"value": "4"}}}],
    "devices": [
        {
            "name": "gpu-0",
            "consumesCounters": [{"counterSet": "set", "counters": {"slices": {"value": "1"}}}],
        }
    ],
}
FEATURES: Mapping[str, Mapping[str, Any]] = {
    "DRADeviceTaints": {"taints": [{"key": "example.com/hot", "effect": "NoSchedule"}]},
    "DRAPartitionableDevices": PARTITIONS["devices"][0] | {"name": "gpu-0"},
    "DRAConsumableCapacity": {
        "allowMultipleAllocations": True,
        "capacity": {
            "memory": {"value": "8Gi", "requestPolicy": {"default": "1Gi", "validValues": ["1Gi", "2Gi"]}}
        },
    },
    "DRADeviceBindingConditions": {
        "bindsToNode": True,
        "bindingConditions": ["example.com/ready"],
        "bindingFailureConditions": ["example.com/failed"],
    },
}


def body(*devices: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "node-a-gpu"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{index}", **one} for index, one in enumerate(devices)],
            **spec,
        },
    }


def stored(obj: Mapping[str, Any], gates: Gates) -> dict[str, Any]:
    spec: dict[str, Any] = create("ResourceSlice", obj, gates).obj["spec"]
    return spec


def causes(obj: Mapping[str, Any], gates: Gates) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as refused:
        create("ResourceSlice", obj, gates)
    assert refused.value.code == 422
    return [(cause.field, cause.message) for cause in refused.value.causes]


@pytest.mark.parametrize("version", ["1.34", "1.35"])
@pytest.mark.parametrize("gate", FEATURES)
def test_alpha_features_are_dropped_without_a_word_unless_their_gate_is_on(version: str, gate: str) -> None:
    sent = body(FEATURES[gate])
    if gate == "DRAPartitionableDevices" and version == "1.34":
        sent["spec"]["sharedCounters"] = PARTITIONS["sharedCounters"]
    off = create("ResourceSlice", sent, Gates.of(version))
    assert off.warnings == ()
    [device] = off.obj["spec"]["devices"]
    assert device.keys() <= {"name", "capacity"}
    assert all(capacity.keys() == {"value"} for capacity in device.get("capacity", {}).values())
    [kept] = stored(sent, Gates.of(version, {gate: True}))["devices"]
    assert kept.keys() == {"name", *FEATURES[gate]}


@pytest.mark.parametrize("version", ["1.36", "v1.36.2", "1.37.0-beta.0"])
@pytest.mark.parametrize("gate", FEATURES)
def test_beta_features_are_kept_unless_their_gate_is_off(version: str, gate: str) -> None:
    sent = body(FEATURES[gate])
    [device] = stored(sent, Gates.of(version))["devices"]
    assert device.keys() == {"name", *FEATURES[gate]}
    [device] = stored(sent, Gates.of(version, {gate: False}))["devices"]
    assert device.keys() <= {"name", "capacity"}


def test_what_an_existing_slice_uses_is_kept_though_its_gate_is_off() -> None:
    sent = body(FEATURES["DRADeviceTaints"])
    old = create("ResourceSlice", sent, Gates.of("1.36")).obj
    kept = update("ResourceSlice", sent, old, Gates.of("1.36", {"DRADeviceTaints": False})).obj
    assert kept["spec"]["devices"][0]["taints"][0]["key"] == "example.com/hot"


def test_counter_sets_stand_beside_devices_in_1_34_and_in_slices_of_their_own_later() -> None:
    on = {"DRAPartitionableDevices": True}
    sent = body(**PARTITIONS)
    assert stored(sent, Gates.of("1.34", on))["sharedCounters"] == PARTITIONS["sharedCounters"]
    for version in ("1.35", "1.36", "1.37"):
        assert causes(sent, Gates.of(version, on)) == [
            ("spec", 'Invalid value: "": only one of `sharedCounters` or `devices` is allowed')
        ]
    sets = body(sharedCounters=PARTITIONS["sharedCounters"])
    del sets["spec"]["devices"]
    assert stored(sets, Gates.of("1.36"))["sharedCounters"] == PARTITIONS["sharedCounters"]


def test_1_34_looks_for_the_counters_that_devices_consume() -> None:
    gates = Gates.of("1.34", {"DRAPartitionableDevices": True})
    strange = [
        {"counterSet": "none", "counters": {"slices": {"value": "1"}}},
        {"counterSet": "set", "counters": {"other": {"value": "1"}}},
    ]
    sent = body({"consumesCounters": strange}, sharedCounters=PARTITIONS["sharedCounters"])
    assert [field for field, _ in causes(sent, gates)] == [
        "spec.devices[0].consumesCounters[0].counterSet",
        "spec.devices[0].consumesCounters[1].counters",
    ]
    assert "devices" in stored(body({"consumesCounters": strange}), Gates.of("1.36"))


def test_limits_of_counters_are_of_the_whole_slice_in_1_34_and_of_each_set_later() -> None:
    counters = {f"c{index}": {"value": "1"} for index in range(20)}
    sets = body(sharedCounters=[{"name": f"set-{index}", "counters": counters} for index in range(2)])
    del sets["spec"]["devices"]
    [(field, message)] = causes(sets, Gates.of("1.34", {"DRAPartitionableDevices": True}))
    assert field == "spec.sharedCounters"
    assert "must not exceed 32" in message
    assert stored(sets, Gates.of("1.36"))["sharedCounters"][1]["counters"] == counters


def test_taints_without_effect_and_more_than_four_of_them_are_newer_than_1_34() -> None:
    on = {"DRADeviceTaints": True}
    none = body({"taints": [{"key": "example.com/info", "effect": "None"}]})
    five = body({"taints": [{"key": f"example.com/t{index}", "effect": "NoExecute"} for index in range(5)]})
    [(field, _)] = causes(none, Gates.of("1.34", on))
    assert field == "spec.devices[0].taints[0].effect"
    [(field, message)] = causes(five, Gates.of("1.34", on))
    assert (field, message) == ("spec.devices[0].taints", "Too many: 5: must have at most 4 items")
    for sent in (none, five):
        assert stored(sent, Gates.of("1.35", on))["devices"][0]["taints"]


def test_attributes_that_are_lists_are_unknown_up_to_1_35_and_alpha_in_1_36() -> None:
    sent = body({"attributes": {"ports": {"ints": [1, 2]}}})
    for version in ("1.34", "1.35"):
        with pytest.raises(Refused) as refused:
            create("ResourceSlice", sent, Gates.of(version))
        assert [cause.message for cause in refused.value.causes] == [
            'Invalid value: "": exactly one value must be specified'
        ]
    [(field, _)] = causes(sent, Gates.of("1.36"))
    assert field == "spec.devices[0].attributes[ports]"
    on = Gates.of("1.36", {"DRAListTypeAttributes": True})
    assert stored(sent, on)["devices"][0]["attributes"] == {"ports": {"ints": [1, 2]}}


def test_node_allocatable_resources_are_written_differently_in_1_36_and_1_37() -> None:
    mappings = body(
        {
            "capacity": {"cores": {"value": "8"}},
            "nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "cores"}},
        }
    )
    resources = body(
        {
            "capacity": {"cores": {"value": "8"}},
            "nodeAllocatableResources": {
                "cpu": {"mapping": {"capacityKey": "cores", "capacityMultiplier": "2"}}
            },
        }
    )
    on = {"DRANodeAllocatableResources": True}
    for sent, name, version, other in (
        (mappings, "nodeAllocatableResourceMappings", "1.36", "1.37"),
        (resources, "nodeAllocatableResources", "1.37", "1.36"),
    ):
        assert name in stored(sent, Gates.of(version, on))["devices"][0]
        assert name not in stored(sent, Gates.of(version))["devices"][0]
        unknown = create("ResourceSlice", sent, Gates.of(other, on))
        assert name not in unknown.obj["spec"]["devices"][0]
        assert unknown.warnings == (f'unknown field "spec.devices[0].{name}"',)
        for old in ("1.34", "1.35"):
            assert create("ResourceSlice", sent, Gates.of(old)).warnings == unknown.warnings
    assert stored(mappings, Gates.of("1.36", on))["devices"][0]["nodeAllocatableResourceMappings"] == {
        "cpu": {"capacityKey": "cores", "allocationMultiplier": "1"}
    }


def test_1_37_checks_what_node_allocatable_resources_say() -> None:
    gates = Gates.of("1.37", {"DRANodeAllocatableResources": True})
    entries = {
        "cpu": {},
        "memory": {"mapping": {"capacityKey": "none", "capacityMultiplier": "0"}},
        "hugepages-2Mi": {"mapping": {"deviceMultiplier": "1", "capacityKey": "memory"}},
        "ephemeral-storage": {"overhead": {"perPod": "-1"}},
        "example.com/foo": {"overhead": {}},
    }
    sent = body({"capacity": {"memory": {"value": "1Gi"}}, "nodeAllocatableResources": entries})
    place = "spec.devices[0].nodeAllocatableResources"
    assert {field for field, _ in causes(sent, gates)} == {
        f"{place}[cpu]",
        f"{place}[memory].mapping.capacityKey",
        f"{place}[memory].mapping.capacityMultiplier",
        f"{place}[hugepages-2Mi].mapping",
        f"{place}[hugepages-2Mi].mapping.capacityMultiplier",
        f"{place}[ephemeral-storage].overhead.perPod",
        f"{place}[example.com/foo]",
        f"{place}[example.com/foo].overhead",
    }


def ranged(**bounds: str) -> dict[str, Any]:
    policy = {"default": bounds.pop("default", bounds["min"]), "validRange": bounds}
    return body(
        {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "10", "requestPolicy": policy}}}
    )


def test_a_step_of_zero_ends_the_handler_up_to_1_36_and_is_refused_since() -> None:
    sent = ranged(min="1", step="0")
    with pytest.raises(Refused) as refused:
        create("ResourceSlice", sent, Gates.of("1.36"))
    assert refused.value.code == 0
    [(field, message)] = causes(sent, Gates.of("1.37"))
    assert field == "spec.devices[0].capacity[memory].requestPolicy.validRange.step"
    assert message == 'Invalid value: "0": must be greater than zero'


def test_fractions_of_a_range_count_since_1_37() -> None:
    # Rounded up, 1.5 is 2 and on a step of 1 (0.5) from 1 (0.5).
    off = ranged(min="500m", step="500m", default="1200m")
    assert stored(off, Gates.of("1.36"))["devices"]
    [(_, message)] = causes(off, Gates.of("1.37"))
    assert message == 'Invalid value: "1200m": value is not a multiple of a given step (500m) from (500m)'
    assert stored(ranged(min="500m", step="500m", default="1500m"), Gates.of("1.37"))["devices"]
    [(_, message)] = causes(ranged(min="500u", step="1"), Gates.of("1.37"))[:1]
    assert message.endswith("value cannot be represented as a milli value")


def test_1_34_writes_a_slice_without_devices_with_null() -> None:
    sent = body()
    del sent["spec"]["devices"]
    assert stored(sent, Gates.of("1.34"))["devices"] is None
    assert "devices" not in stored(sent, Gates.of("1.35"))


def test_claims_lose_what_is_off() -> None:
    exactly = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "1Gi"}}, "adminAccess": False}
    sent = {
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    made = create("ResourceClaim", sent, Gates.of("1.35", {"DRAAdminAccess": False})).obj
    assert made["spec"]["devices"]["requests"][0]["exactly"] == {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": 1,
    }
    made = create("ResourceClaim", sent, Gates.of("1.36")).obj
    assert made["spec"]["devices"]["requests"][0]["exactly"]["capacity"] == exactly["capacity"]
    first = {"name": "gpu", "firstAvailable": [{"name": "big", "deviceClassName": "gpu"}]}
    sent["spec"] = {"devices": {"requests": [first]}}
    with pytest.raises(Refused) as refused:
        create("ResourceClaim", sent, Gates.of("1.36", {"DRAPrioritizedList": False}))
    assert [cause.field for cause in refused.value.causes] == ["spec.devices.requests[0]"]


def test_classes_name_extended_resources_where_the_gate_is_on() -> None:
    sent = {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}}
    assert create("DeviceClass", sent, Gates.of("1.36")).obj["spec"] == sent["spec"]
    assert create("DeviceClass", sent, Gates.of("1.35")).obj["spec"] == {}


@pytest.mark.parametrize("version", ["1.33", "1.38", "2.0", "", "one", "1.36x", "1.3\uff16"])
def test_versions_without_rules_are_named(version: str) -> None:
    with pytest.raises(ValueError, match=r"^API server version .*: allowed are 1\.34 to 1\.37$"):
        Gates.of(version)


def test_gates_that_a_version_does_not_have_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"^feature gate 'DRAListTypeAttributes' of API server 1\.35: known are DRA"
    ):
        Gates.of("1.35", {"DRAListTypeAttributes": True})
