"""Devices and counter sets as JSON of resource.k8s.io/v1."""

import json
from enum import StrEnum
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
)
from dradriver.slices import ApiFeatures, NodeAllocatableField, Pool, pool_specs
from dradriver.slices.encode import attribute_body, counter_set_body, device_body

one, two, eight = (Quantity.from_int(value) for value in (1, 2, 8))

FULL = Device(
    name="cpu-numa-0",
    attributes={
        "type": "numa",
        "smtEnabled": True,
        "numCPUs": 32,
        "microcode": Version("1.2.3-rc.1"),
        "resource.kubernetes.io/numaNode": (0, 1),
        "caches": ("l3-0", "l3-1"),
    },
    capacity={
        "cores": Capacity(Quantity.parse("32"), RequestPolicy(one, valid_range=ValidRange(one, eight, one))),
        "bandwidth": Capacity(Quantity.parse("4096Mi"), RequestPolicy(two, valid_values=(one, two, eight))),
    },
    shared=True,
    consumes={"socket-0": {"cores": Quantity.parse("32")}},
    taints=(
        Taint("dradriver.io/unhealthy", TaintEffect.NO_EXECUTE, "mce", "2026-01-02T03:04:05Z"),
        Taint("dradriver.io/late", TaintEffect.NONE),
    ),
    binding=BindingConditions(("Attached",), ("AttachFailed",), binds_to_node=True),
    node_allocatable=(NodeAllocatable("cpu", "cores", two, overhead_per_pod=one),),
)


def test_a_device_with_everything() -> None:
    assert device_body(FULL) == {
        "name": "cpu-numa-0",
        "attributes": {
            "type": {"string": "numa"},
            "smtEnabled": {"bool": True},
            "numCPUs": {"int": 32},
            "microcode": {"version": "1.2.3-rc.1"},
            "resource.kubernetes.io/numaNode": {"ints": [0, 1]},
            "caches": {"strings": ["l3-0", "l3-1"]},
        },
        "capacity": {
            "cores": {
                "value": "32",
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "8", "step": "1"}},
            },
            "bandwidth": {
                "value": "4Gi",
                "requestPolicy": {"default": "2", "validValues": ["1", "2", "8"]},
            },
        },
        "allowMultipleAllocations": True,
        "consumesCounters": [{"counterSet": "socket-0", "counters": {"cores": {"value": "32"}}}],
        "taints": [
            {
                "key": "dradriver.io/unhealthy",
                "value": "mce",
                "effect": "NoExecute",
                "timeAdded": "2026-01-02T03:04:05Z",
            },
            {"key": "dradriver.io/late", "effect": "None"},
        ],
        "bindsToNode": True,
        "bindingConditions": ["Attached"],
        "bindingFailureConditions": ["AttachFailed"],
        "nodeAllocatableResources": {
            "cpu": {
                "mapping": {"capacityKey": "cores", "capacityMultiplier": "2"},
                "overhead": {"perPod": "1"},
            }
        },
    }


def test_a_bare_device_is_its_name() -> None:
    assert device_body(Device("gpu-0000-41-00-0")) == {"name": "gpu-0000-41-00-0"}


class Kind(StrEnum):
    FULL = "full"


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (True, {"bool": True}),
        (1, {"int": 1}),
        ((True, False), {"bools": [True, False]}),
        ((Version("1.2.3"),), {"versions": ["1.2.3"]}),
        (Kind.FULL, {"string": "full"}),
    ],
)
def test_an_attribute_says_its_type(value: AttributeValue, body: dict[str, Any]) -> None:
    made = attribute_body(value)
    assert json.dumps(made) == json.dumps(body)
    assert all(type(item) in {bool, int, str, list} for item in made.values())


@pytest.mark.parametrize(
    ("entry", "in_1_36", "in_1_37"),
    [
        (
            NodeAllocatable("cpu", "cores"),
            {"capacityKey": "cores", "allocationMultiplier": "1"},
            {"mapping": {"capacityKey": "cores", "capacityMultiplier": "1"}},
        ),
        (
            NodeAllocatable("cpu", multiplier=eight),
            {"allocationMultiplier": "8"},
            {"mapping": {"deviceMultiplier": "8"}},
        ),
        (
            NodeAllocatable("cpu", overhead_per_pod=one, overhead_per_container=two),
            None,
            {"overhead": {"perPod": "1", "perContainer": "2"}},
        ),
    ],
)
def test_node_allocatable_in_both_versions(
    entry: NodeAllocatable, in_1_36: dict[str, str] | None, in_1_37: dict[str, Any]
) -> None:
    device = Device("cpu-numa-0", node_allocatable=(entry,))
    old, new = device_body(device, NodeAllocatableField.MAPPINGS), device_body(device)
    assert old.get("nodeAllocatableResourceMappings", {}).get("cpu") == in_1_36
    assert new["nodeAllocatableResources"] == {"cpu": in_1_37}
    assert device_body(device, NodeAllocatableField.NONE) == {"name": "cpu-numa-0"}


@pytest.mark.parametrize("field", [NodeAllocatableField.NONE, NodeAllocatableField.MAPPINGS])
def test_what_is_off_everywhere_by_default_is_no_reduction(field: NodeAllocatableField) -> None:
    content = PoolContent(
        tuple(
            Device(f"cpu-{n}", node_allocatable=(NodeAllocatable("cpu", overhead_per_pod=one),))
            for n in range(3)
        )
    )
    pool = Pool("cpu.dradriver.io", "node-a", "node-a/cpu")
    made = pool_specs(pool, content, ApiFeatures(node_allocatable=field))
    assert (made.reductions, made.warnings, made.left_out) == ((), (), ())


def test_every_field_is_one_that_the_official_client_knows() -> None:
    client = pytest.importorskip("kubernetes.client")
    counters = CounterSet("socket-0", {"cores": Quantity.parse("32")})
    made = pool_specs(
        Pool("cpu.dradriver.io", "node-a", "node-a/cpu"),
        PoolContent((FULL, Device("cpu-numa-1", node_allocatable=(NodeAllocatable("cpu"),))), (counters,)),
    )
    assert not made.left_out
    assert made.specs[0]["sharedCounters"] == [counter_set_body(counters)]
    for spec in made.specs:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a"}}
        body |= {"spec": spec}
        assert json.loads(client.V1ResourceSlice.from_dict(body).to_json()) == body
