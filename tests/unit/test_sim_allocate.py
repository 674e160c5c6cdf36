"""Allocating claims by device name: what the scheduler would write, and what is refused."""

from typing import Any

import pytest

from dradriver.model import Quantity
from dradriver.sim.allocate import AllocationError, Wish, allocate, allocation, doubts, nearest

GPU, CPU = "gpu.example.com", "cpu.example.com"

Body = dict[str, Any]


def spec(driver: str, *devices: Body, node: str = "node-a") -> Body:
    pool = {"name": f"{node}/{driver.partition('.')[0]}", "generation": 1, "resourceSliceCount": 1}
    return {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}


STEPS = {"default": "1", "validRange": {"min": "1", "step": "2", "max": "9"}}
VALUES = {"default": "1Gi", "validValues": ["1Gi", "2Gi", "4Gi"]}
CPUS: Body = {
    "name": "cpu-0",
    "allowMultipleAllocations": True,
    "capacity": {
        "cpu": {"value": "9", "requestPolicy": STEPS},
        f"{CPU}/memory": {"value": "8Gi", "requestPolicy": VALUES},
        "cache": {"value": "32Mi"},
    },
}
BOUND: Body = {"name": "gpu-1", "bindingConditions": ["a/ready"], "bindingFailureConditions": ["a/failed"]}
SLICES = [spec(GPU, {"name": "gpu-0"}, BOUND), spec(CPU, CPUS), spec("npu.example.com", {"name": "gpu-0"})]
CLASSES: Body = {
    "gpu": {"spec": {"config": [{"opaque": {"driver": GPU, "parameters": {"of": "class"}}}]}},
    "cpu": {"spec": {}},
}


def claim(*requests: Body, config: list[Body] | None = None) -> Body:
    return {"spec": {"devices": {"requests": list(requests), **({"config": config} if config else {})}}}


def exactly(name: str, kind: str = "gpu", **more: Any) -> Body:
    return {"name": name, "exactly": {"deviceClassName": kind, **more}}


def given(obj: Body, **choices: list[str]) -> Body:
    wishes = {name.replace("__", "/"): list(map(Wish.parse, texts)) for name, texts in choices.items()}
    return allocation(obj, CLASSES, SLICES, wishes)


def test_a_wish_names_device_driver_and_amounts() -> None:
    assert Wish.parse("gpu-0") == Wish("gpu-0")
    assert Wish.parse(f"{GPU}/gpu-0") == Wish("gpu-0", GPU)
    amounts = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("4Gi")}
    assert Wish.parse("cpu-0:cpu=2,memory=4Gi") == Wish("cpu-0", "", amounts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cpu-0:cpu", "'cpu-0:cpu': capacity=amount is expected"),
        ("cpu-0:", "'cpu-0:': capacity=amount is expected"),
        ("cpu-0:=2", "capacity=amount is expected"),
        ("cpu-0:cpu=two", "'cpu-0:cpu=two': "),
        ("cpu-0:cpu=1,,", "capacity=amount is expected"),
    ],
)
def test_a_wish_that_says_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(AllocationError, match=said.replace("(", r"\(")):
        Wish.parse(text)


def test_whole_devices_are_allocated_with_node_class_and_claim_configuration() -> None:
    own = {"opaque": {"driver": GPU, "parameters": {"of": "claim"}}}
    made = given(claim(exactly("main"), config=[own]), main=[f"{GPU}/gpu-0"])
    assert made["devices"]["results"] == [
        {"request": "main", "driver": GPU, "pool": "node-a/gpu", "device": "gpu-0"}
    ]
    assert made["devices"]["config"] == [
        {"source": "FromClass", "requests": ["main"], **CLASSES["gpu"]["spec"]["config"][0]},
        {"source": "FromClaim", **own},
    ]
    (term,) = made["nodeSelector"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}


def test_what_the_scheduler_takes_over_from_request_and_device_is_taken_over() -> None:
    toleration = {"key": "a", "operator": "Exists"}
    made = given(claim(exactly("main", adminAccess=True, tolerations=[toleration])), main=["gpu-1"])
    (result,) = made["devices"]["results"]
    assert (result["adminAccess"], result["tolerations"]) == (True, [toleration])
    assert result["bindingConditions"] == ["a/ready"]
    assert result["bindingFailureConditions"] == ["a/failed"]


@pytest.mark.parametrize(
    ("asked", "wish", "consumed"),
    [
        ({}, "cpu-0", {"cpu": "1", "memory": "1Gi", "cache": "32Mi"}),
        ({}, "cpu-0:cpu=2,memory=3Gi", {"cpu": "3", "memory": "4Gi", "cache": "32Mi"}),
        ({}, "cpu-0:cpu=500m,cache=1Mi", {"cpu": "1", "memory": "1Gi", "cache": "1Mi"}),
        ({"cpu": "4"}, "cpu-0", {"cpu": "5", "memory": "1Gi", "cache": "32Mi"}),
        ({"cpu": 4, f"{CPU}/memory": "2Gi"}, "cpu-0:cpu=7", {"cpu": "7", "memory": "2Gi", "cache": "32Mi"}),
    ],
)
def test_shares_consume_what_their_policy_allows(asked: Body, wish: str, consumed: Body) -> None:
    request = exactly("cpus", "cpu", **({"capacity": {"requests": asked}} if asked else {}))
    (result,) = given(claim(request), cpus=[wish])["devices"]["results"]
    assert result["consumedCapacity"] == consumed
    again = given(claim(request), cpus=[wish])["devices"]["results"][0]
    assert result["shareID"] != again["shareID"]


def test_one_of_several_alternatives_is_chosen_by_its_name() -> None:
    request = {"name": "main", "firstAvailable": [{"name": name, "deviceClassName": "gpu"} for name in "ab"]}
    made = given(claim(request), main__b=["gpu-1"])
    assert made["devices"]["results"][0]["request"] == "main/b"
    assert made["devices"]["config"][0]["requests"] == ["main/b"]
    with pytest.raises(AllocationError, match="request main: devices are needed for main/a or main/b"):
        given(claim(request), main=["gpu-1"])
    with pytest.raises(AllocationError, match="devices are needed for main/a or main/b"):
        given(claim(request), main__a=["gpu-1"], main__b=["gpu-1"])


@pytest.mark.parametrize(
    ("request_", "choices", "said"),
    [
        (exactly("main"), {}, "request main: devices are needed for main"),
        (exactly("main", count=2), {"main": ["gpu-1"]}, "request main asks for 2 devices, 1 are named"),
        (exactly("main"), {"main": ["gpu-1"], "b": ["gpu-1"]}, "no request 'b'; requests are main"),
        (exactly("main", "tpu"), {"main": ["gpu-1"]}, "request main: there is no DeviceClass 'tpu'"),
        (
            exactly("main"),
            {"main": ["gpu-7"]},
            "device 'gpu-7' is not published; published are cpu-0, gpu-0, ",
        ),
        (
            exactly("main"),
            {"main": ["gpu-0"]},
            f"'gpu-0' is published by {GPU}, npu.example.com: write DRIVER/",
        ),
        (exactly("main"), {"main": ["gpu-1:cpu=1"]}, "device gpu-1 is given whole: it takes no amounts"),
        (
            exactly("main"),
            {"main": ["cpu-0:gpu=1"]},
            "device cpu-0 has no capacity 'gpu'; it has cache, cpu, ",
        ),
    ],
)
def test_what_cannot_be_allocated_is_said(request_: Body, choices: dict[str, list[str]], said: str) -> None:
    with pytest.raises(AllocationError, match=said):
        given(claim(request_), **choices)


def test_a_slice_without_devices_offers_none() -> None:
    empty = {**spec(GPU), "devices": None}
    made = allocation(claim(exactly("main")), CLASSES, [empty, *SLICES], {"main": [Wish.parse("gpu-1")]})
    assert made["devices"]["results"][0]["device"] == "gpu-1"
    with pytest.raises(AllocationError, match="'gpu-1' is not published; drivers with devices are none"):
        allocation(claim(exactly("main")), CLASSES, [empty], {"main": [Wish.parse("gpu-1")]})


def test_of_many_names_the_nearest_are_told() -> None:
    assert nearest("b", ["c", "a", "a"]) == "there are a, c"
    assert nearest("b", [], "known are") == "known are none"
    many = [f"gpu-{number:04}-mig-{place}" for number in range(20) for place in range(10)]
    cards = [f"gpu-{number:04}" for number in range(20)]
    text = nearest("gpu-0", [*many, *cards, "nic-0"])
    assert text.startswith("nearest of 221: ")
    names = text.partition(": ")[2].split(", ")
    assert len(names) == 8
    assert set(names) <= set(cards)


def test_a_device_of_another_driver_than_class_or_claim_select_is_doubted() -> None:
    def selecting(expression: str) -> Body:
        return {"selectors": [{"cel": {"expression": expression}}]}

    obj = claim(exactly("main", **selecting('device.driver == "a.io" || device.driver == "b.io"')))
    obj["status"] = {"allocation": allocation(obj, CLASSES, SLICES, {"main": [Wish.parse("gpu-1")]})}
    assert list(doubts(obj, {"gpu": {"spec": selecting(f"device.driver=='{GPU}'")}})) == [
        f"request main: device gpu-1 is of {GPU}, the claim selects devices of a.io, b.io"
    ]
    obj["spec"]["devices"]["requests"] = [exactly("main", **selecting("device.attributes.size() > 1"))]
    assert list(doubts(obj, {"gpu": {"spec": selecting('device.driver == "npu.io"')}})) == [
        f"request main: device gpu-1 is of {GPU}, class gpu selects devices of npu.io"
    ]
    assert list(doubts(obj, {"gpu": {"spec": {}}})) == []


def test_all_devices_of_a_request_may_be_any_number() -> None:
    made = given(claim(exactly("main", allocationMode="All")), main=[f"{GPU}/gpu-0", "gpu-1"])
    assert [result["device"] for result in made["devices"]["results"]] == ["gpu-0", "gpu-1"]


def test_a_new_claim_for_named_devices_carries_parameters_of_its_drivers_only() -> None:
    wishes = [Wish.parse("cpu-0:cpu=3"), Wish.parse(f"{GPU}/gpu-0")]
    made = allocate("demo", "default", wishes, SLICES, [(CPU, {"kind": "CpuConfig"})])
    results = made["status"]["allocation"]["devices"]["results"]
    assert [(result["device"], "shareID" in result) for result in results] == [
        ("cpu-0", True),
        ("gpu-0", False),
    ]
    (config,) = made["status"]["allocation"]["devices"]["config"]
    assert config["opaque"] == {"driver": CPU, "parameters": {"kind": "CpuConfig"}}
    with pytest.raises(AllocationError, match=r"parameters for driver 'npu\.example\.com': no device"):
        allocate("demo", "default", wishes, SLICES, [("npu.example.com", {})])
    with pytest.raises(AllocationError, match="gpu-1 is given whole"):
        allocate("demo", "default", [Wish.parse("gpu-1:cpu=1")], SLICES)
