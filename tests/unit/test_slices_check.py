"""One odd device costs itself, one odd attribute itself: everything else is published."""

from dataclasses import replace
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
from dradriver.slices import Pool
from dradriver.slices.check import checked, fit

GPU = CounterSet("gpu-0", {"slices": Quantity.from_int(7)})


def amount(value: str) -> Quantity:
    return Quantity.parse(value)


def shared(policy: RequestPolicy, value: str = "100") -> Device:
    return Device("nic-0", shared=True, capacity={"bandwidth": Capacity(amount(value), policy)})


def range_policy(default: str, least: str, most: str | None, step: str | None) -> RequestPolicy:
    others = (None if bound is None else amount(bound) for bound in (most, step))
    return RequestPolicy(amount(default), valid_range=ValidRange(amount(least), *others))


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (Device("0000:41:00.0"), "'0000:41:00.0' is not a DNS label"),
        (Device("gpu-0\nINFO all well"), r"'gpu-0\nINFO all well' is not a DNS label"),
        (Device("gpu-1", taints=(Taint("sick", TaintEffect.NONE),) * 17), "17 taints: at most 16"),
        (Device("gpu-1", taints=(Taint("so sick", TaintEffect.NONE),)), "'so sick' is not a label key"),
        (
            Device("gpu-1", taints=(Taint("sick", TaintEffect.NONE, "xid:79"),)),
            "'xid:79' is not a label value",
        ),
        (
            Device("gpu-1", taints=(Taint("sick", TaintEffect.NONE, time_added="2026-02-30T00:00:00Z"),)),
            "time '2026-02-30T00:00:00Z' is not of the form",
        ),
        (
            Device("gpu-1", consumes={"gpu-9": {"slices": amount("1")}}),
            "counter set 'gpu-9' is not published",
        ),
        (Device("gpu-1", consumes={"gpu-0": {"cores": amount("1")}}), "'gpu-0' has no counter 'cores'"),
        (Device("gpu-1", consumes={"gpu-0": {}}), "there are no counters"),
        (
            Device("gpu-1", consumes={name: {"slices": amount("1")} for name in ("gpu-0", "a", "b")}),
            "consumes from 3 counter sets: at most 2",
        ),
        (Device("gpu-1", capacity={"VRAM free": Capacity(amount("1"))}), "'VRAM free' is not a C identifier"),
        (
            Device("gpu-1", capacity={f"c{n}": Capacity(amount("1")) for n in range(33)}),
            "33 capacities: at most 32",
        ),
        (replace(shared(RequestPolicy(amount("1"))), shared=False), "for a shared device only"),
        (
            shared(RequestPolicy(amount("1"), (amount("1"),), ValidRange(amount("1")))),
            "valid values or a valid range, not both",
        ),
        (shared(RequestPolicy(amount("1"), (amount("500m"), amount("1")))), "do not rise"),
        (shared(RequestPolicy(amount("2"), (amount("1"), amount("3")))), "default 2 is not among"),
        (
            shared(RequestPolicy(amount("1"), (amount("1"), amount("101")))),
            "101 is more than the capacity 100",
        ),
        (shared(range_policy("1", "1", None, "0")), "step 0 is not positive"),
        (shared(range_policy("8", "1", "50", "5")), "default 8 is not on a step of 5 from min 1"),
        (shared(range_policy("6", "1", "50", "5")), "max 50 is not on a step of 5 from min 1"),
        (shared(range_policy("1", "2", None, None)), "default 1 is less than min 2"),
        (shared(range_policy("5", "5", "4", None)), "max 4 is less than min 5"),
        (
            Device("gpu-1", binding=BindingConditions(("Ready",), ())),
            "conditions and binding failure conditions need each other",
        ),
        (
            Device("gpu-1", binding=BindingConditions(("Ready",), ("Ready",))),
            "condition 'Ready' is named twice",
        ),
        (
            Device("gpu-1", node_allocatable=(NodeAllocatable("example.com/gpu"),)),
            "'example.com/gpu' is not a node allocatable resource",
        ),
        (
            Device("gpu-1", node_allocatable=(NodeAllocatable("cpu", "cores"),)),
            "capacity 'cores' is not one of the device's",
        ),
        (
            Device("gpu-1", node_allocatable=(NodeAllocatable("cpu"), NodeAllocatable("cpu"))),
            "'cpu' is named twice",
        ),
        (
            Device("gpu-1", node_allocatable=(NodeAllocatable("cpu", multiplier=amount("0")),)),
            "multiplier 0 is not positive",
        ),
    ],
)
def test_a_device_that_would_be_refused_is_left_out_alone(device: Device, reason: str) -> None:
    good = Device("gpu-0", consumes={"gpu-0": {"slices": amount("7")}})
    made = checked(PoolContent((device, good), (GPU,)))
    assert made.content.devices == (good,)
    (left,) = made.left_out
    assert left.name == device.name
    assert reason in str(left)
    assert "\n" not in str(left)


def test_of_two_devices_of_one_name_the_first_stays() -> None:
    first, second = Device("gpu-0", attributes={"index": 0}), Device("gpu-0", attributes={"index": 1})
    made = checked(PoolContent((first, second)))
    assert made.content.devices == (first,)
    assert "came before" in str(made.left_out[0])


def test_the_second_does_not_take_the_place_of_a_first_that_is_refused() -> None:
    first = Device("gpu-0", taints=(Taint("", TaintEffect.NO_EXECUTE),))
    assert not checked(PoolContent((first, Device("gpu-0")))).content.devices


@pytest.mark.parametrize(
    "counter_set",
    [
        CounterSet("GPU", {"slices": amount("1")}),
        CounterSet("gpu-1", {}),
        CounterSet("gpu-1", {"memory_slice": amount("1")}),
        CounterSet("gpu-1", {f"c{n}": amount("1") for n in range(33)}),
    ],
)
def test_a_bad_counter_set_takes_its_devices_with_it(counter_set: CounterSet) -> None:
    bad = Device("bad", consumes={counter_set.name: {"slices": amount("1")}})
    good = Device("good", consumes={"gpu-0": {"slices": amount("1")}})
    made = checked(PoolContent((bad, good), (counter_set, GPU, replace(GPU))))
    assert made.content == PoolContent((good,), (GPU,))
    assert [left.name for left in made.left_out] == [counter_set.name, "gpu-0", "bad"]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("productName", "x" * 65, "has 65 bytes: at most 64"),
        ("productName", "é" * 33, "has 66 bytes"),
        ("serial", "\udcff", "is not Unicode"),
        ("driverVersion", Version("575.57.08"), "not a semantic version"),
        ("driverVersion", Version("v1.2.3"), "not a semantic version"),
        ("driverVersion", Version("1.2.3\n"), "not a semantic version"),
        ("uuid", 2**63, "beyond 64 bits"),
        ("pci-bus", "0000:41:00.0", "is not a C identifier"),
        ("Example.com/model", "x", "has a domain"),
        ("temperature", 36.6, "a float is none of"),
        ("ids", (), "list is empty"),
        ("ids", (True, 1), "mixes types"),
        ("ids", (1, -(2**63) - 1), "beyond 64 bits"),
    ],
)
def test_an_attribute_that_would_be_refused_is_dropped(name: str, value: Any, reason: str) -> None:
    device, warnings = fit(Device("gpu-0", attributes={"type": "gpu", name: value, "index": 0}))
    assert device.attributes == {"type": "gpu", "index": 0}
    (warning,) = warnings
    assert warning.startswith("device 'gpu-0': attribute ")
    assert reason in warning
    assert warning.isprintable()


def test_at_the_limit_nothing_is_dropped() -> None:
    attributes: dict[str, AttributeValue] = {f"a{n}": "x" * 64 for n in range(30)}
    device = Device(
        "gpu-0", attributes=attributes | {"l": (1,) * 18}, capacity={"memory": Capacity(amount("1"))}
    )
    assert fit(device) == (device, ())


def test_capacities_go_before_attributes_and_these_in_their_order() -> None:
    attributes: dict[str, AttributeValue] = {f"a{n}": n for n in range(40)}
    device, warnings = fit(Device("gpu-0", attributes=attributes, capacity={"m": Capacity(amount("1"))}))
    assert list(device.attributes) == [f"a{n}" for n in range(31)]
    assert len(warnings) == 9


def test_a_list_too_long_for_the_values_left_makes_way_for_what_fits() -> None:
    device, warnings = fit(Device("gpu-0", attributes={"a": (0,) * 40, "b": (0,) * 9, "c": (0,) * 8, "d": 1}))
    assert list(device.attributes) == ["a", "c"]
    assert ["'b'" in warnings[0], "'d'" in warnings[1]] == [True, True]


@pytest.mark.parametrize(
    "names",
    [
        ("GPU.dradriver.io", "node-a", "node-a/gpu"),
        ("../../etc", "node-a", "node-a/gpu"),
        ("gpu.dradriver.io", "node a", "node-a/gpu"),
        ("gpu.dradriver.io", "node-a", "node-a/../gpu"),
        ("gpu.dradriver.io", "node-a", "node-a/"),
    ],
)
def test_a_pool_has_names_that_the_server_accepts(names: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match="name"):
        Pool(*names)
