"""Two specs are the same if a reader of the API could not tell them apart."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from dradriver.slices import same

OURS: dict[str, Any] = {
    "driver": "gpu.dradriver.io",
    "nodeName": "node-a",
    "pool": {"name": "node-a/gpu", "generation": 1, "resourceSliceCount": 1},
    "devices": [
        {
            "name": "gpu-0",
            "attributes": {"ecc": {"bool": True}, "index": {"int": 1}, "value": {"string": "1024Mi"}},
            "capacity": {
                "memory": {
                    "value": "1Gi",
                    "requestPolicy": {"default": "1Mi", "validRange": {"min": "1Mi", "step": "1Mi"}},
                }
            },
            "allowMultipleAllocations": True,
            "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": "1Gi"}}}],
            "taints": [{"key": "sick", "effect": "NoExecute"}],
            "nodeAllocatableResources": {
                "memory": {"mapping": {"capacityKey": "memory", "capacityMultiplier": "1"}}
            },
        },
        {
            "name": "gpu-1",
            "taints": [{"key": "sick", "effect": "None", "timeAdded": "2026-01-02T03:04:05Z"}],
        },
    ],
}

Edit = Callable[[dict[str, Any]], object]


def gpu(spec: dict[str, Any]) -> Any:
    return spec["devices"][0]


@pytest.mark.parametrize(
    "edit",
    [
        lambda spec: gpu(spec)["capacity"]["memory"].update(value="1024Mi"),
        lambda spec: gpu(spec)["capacity"]["memory"].update(value=1 << 30),
        lambda spec: gpu(spec)["capacity"]["memory"]["requestPolicy"].update(default="1024Ki"),
        lambda spec: gpu(spec)["capacity"]["memory"]["requestPolicy"].update(validValues=[]),
        lambda spec: gpu(spec)["capacity"]["memory"]["requestPolicy"]["validRange"].update(max=None),
        lambda spec: gpu(spec)["consumesCounters"][0]["counters"]["memory"].update(value="1024Mi"),
        lambda spec: gpu(spec)["nodeAllocatableResources"]["memory"]["mapping"].update(
            capacityMultiplier="1000m"
        ),
        lambda spec: gpu(spec)["taints"][0].update(timeAdded="2026-05-05T05:05:05Z", value=""),
        lambda spec: gpu(spec).update(bindsToNode=False, bindingConditions=[], nodeName=None),
        lambda spec: spec["devices"][1].update(attributes={}),
        lambda spec: spec["devices"][1]["taints"][0].update(timeAdded="2026-01-02T04:04:05.25+01:00"),
        lambda spec: spec.update(sharedCounters=None, allNodes=False),
        lambda spec: spec.update(driver=spec.pop("driver")),
    ],
)
def test_another_spelling_is_the_same(edit: Edit) -> None:
    stored = copy.deepcopy(OURS)
    edit(stored)
    assert stored != OURS or list(stored) != list(OURS)
    assert same(OURS, stored)


@pytest.mark.parametrize(
    "edit",
    [
        lambda spec: gpu(spec)["capacity"]["memory"].update(value="1G"),
        lambda spec: gpu(spec)["capacity"]["memory"].update(requestPolicy=None),
        lambda spec: gpu(spec)["capacity"]["memory"]["requestPolicy"]["validRange"].update(min="2Mi"),
        lambda spec: gpu(spec)["attributes"]["ecc"].update(bool=1),
        lambda spec: gpu(spec)["attributes"]["index"].update(int=1.0),
        lambda spec: gpu(spec)["attributes"]["index"].update(int="1"),
        lambda spec: gpu(spec)["attributes"]["value"].update(string="1Gi"),
        lambda spec: gpu(spec)["consumesCounters"][0].update(counterSet="gpu-1"),
        lambda spec: gpu(spec)["consumesCounters"][0]["counters"].update(memory={"value": "2Gi"}),
        lambda spec: gpu(spec)["nodeAllocatableResources"].update(cpu={}),
        lambda spec: gpu(spec)["taints"][0].update(effect="NoSchedule"),
        lambda spec: gpu(spec)["taints"].append({"key": "late", "effect": "None"}),
        lambda spec: gpu(spec).update(allowMultipleAllocations=False),
        lambda spec: gpu(spec).update(bindsToNode=True),
        lambda spec: spec["devices"][1]["taints"][0].pop("timeAdded"),
        lambda spec: spec["devices"].reverse(),
        lambda spec: spec["devices"].pop(),
        lambda spec: spec["pool"].update(generation=2),
        lambda spec: spec.update(nodeName="node-b"),
        lambda spec: spec.update(devices="all of them"),
        lambda spec: spec.update(devices=[None]),
        lambda spec: spec.update(pool=None),
        lambda spec: spec["devices"][1]["taints"][0].update(timeAdded="yesterday"),
        lambda spec: gpu(spec)["capacity"]["memory"].update(value="a lot"),
        lambda spec: gpu(spec)["capacity"].update(memory="1Gi"),
    ],
)
def test_another_meaning_is_a_difference(edit: Edit) -> None:
    stored = copy.deepcopy(OURS)
    edit(stored)
    assert not same(OURS, stored)
