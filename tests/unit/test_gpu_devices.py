"""What is offered of GPUs in each mode, what is not and why, and which devices fall ill with what."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nvmlnodes
from apirules import create
from dradriver.backend import decode
from dradriver.model import Device, Health, PoolContent, Quantity, Version
from dradriver.sim.apiserver.rules import Gates
from dradriver.slices import Pool, pool_specs
from dradriver_gpu import GpuOptions
from dradriver_gpu.devices import content_of, semantic_version
from dradriver_gpu.geometry import Geometry, Profile, Resources, profile_name
from dradriver_gpu.inventory import (
    GPU,
    Ailment,
    ComputeInstance,
    Driver,
    DriverState,
    GPUInstance,
    GPUInventory,
    MigMode,
    Passthrough,
    address_of,
)
from gpunode import GpuNode

NAME = "gpu-0000-41-00-0"
DRIVER = Driver(DriverState.READY, "/", "580.65.06", (13, 0))


def profile(
    index: int, number: int, name: str, slices: int, starts: Iterable[int], size: int, most: int
) -> Profile:
    amounts = Resources(10 * slices, slices, slices, 0, 0, int("+me" in name), 1000 * size)
    return Profile(index, number, name, slices, most, amounts, tuple(starts), size)


SMALL = Geometry(
    (
        profile(0, 19, "1g.5gb", 1, range(4), 1, 4),
        profile(1, 14, "2g.10gb", 2, (0, 2), 2, 2),
        profile(4, 0, "4g.20gb", 4, (0,), 4, 1),
    )
)
"""Half of an A100, as it were."""

ON, OFF, FIXED_ON, FIXED_OFF = (
    MigMode(enabled, enabled, switchable) for switchable in (True, False) for enabled in (True, False)
)

PLAIN = GPU("0000:41:00.0", "GPU-1", 0, 0, product="NVIDIA L40S", memory_bytes=48 << 30)
MIG = replace(PLAIN, product="NVIDIA A100", mig=OFF, geometry=SMALL)
BINDABLE = Passthrough("nvidia", 7, 0x10DE, 0x26B9)


def options(**written: Any) -> GpuOptions:
    return decode(GpuOptions, written, "backends.gpu")


def offered(gpu: GPU, *ailments: Ailment, **written: Any) -> PoolContent:
    chosen = options(**written)
    return content_of(GPUInventory(DRIVER, (gpu,), ailments), chosen, chosen.filter())


def names(content: PoolContent) -> list[str]:
    return [device.name.removeprefix(NAME).removeprefix("-") for device in content.devices]


PARTS = [
    "mig-1g-5gb-0", "mig-1g-5gb-1", "mig-1g-5gb-2", "mig-1g-5gb-3", "mig-2g-10gb-0", "mig-2g-10gb-2", "mig-4g-20gb-0"
]  # fmt: skip


# --- modes


@pytest.mark.parametrize("mode", ["static", "whole", "partitions"])
def test_a_gpu_without_mig_is_offered_whole(mode: str) -> None:
    content = offered(PLAIN, mode=mode)
    assert names(content) == [""]
    (device,) = content.devices
    assert device.attributes["type"] == "gpu"
    assert device.capacity["memory"].value == Quantity.parse("48Gi")
    assert (device.consumes, device.shared, content.counter_sets, content.warnings) == ({}, False, (), ())


@pytest.mark.parametrize(
    ("mode", "mig_mode", "mig", "expected", "warning"),
    [
        ("static", "leave", OFF, [""], ""),
        (
            "static", "leave", ON, [],
            f"{NAME} is not offered: its MIG mode is on, and mode static makes no compute instances (option mode)",
        ),
        ("whole", "leave", OFF, [""], ""),
        ("whole", "leave", ON, [], f"{NAME} is not offered: its MIG mode is on (option migMode)"),
        ("whole", "switch", ON, [""], ""),
        *(
            (
                "whole", mig_mode, FIXED_ON, [],
                f"{NAME} is not offered: its MIG mode is on, and goes off by a reset only (nvidia-smi -mig 0)",
            )
            for mig_mode in ("leave", "switch")
        ),
        ("shares", "leave", ON, [], f"{NAME} is not offered: its MIG mode is on (option migMode)"),
        ("partitions", "leave", ON, PARTS, ""),
        ("partitions", "leave", OFF, [""], f"{NAME} has no partitions: its MIG mode is off (option migMode)"),
        ("partitions", "switch", ON, [*PARTS, ""], ""),
        ("partitions", "switch", OFF, [*PARTS, ""], ""),
        ("partitions", "switch", FIXED_ON, PARTS, ""),
        *(
            (
                "partitions", mig_mode, FIXED_OFF, [""],
                f"{NAME} has no partitions: its MIG mode is off, and goes on by a reset only (nvidia-smi -mig 1)",
            )
            for mig_mode in ("leave", "switch")
        ),
    ],
)  # fmt: skip
def test_mig_mode_is_changed_only_where_that_is_wanted_and_takes_no_reset(
    mode: str, mig_mode: str, mig: MigMode, expected: list[str], warning: str
) -> None:
    content = offered(replace(MIG, mig=mig), mode=mode, migMode=mig_mode)
    assert names(content) == expected
    assert content.warnings == ((warning,) if warning else ())


def test_partitions_and_the_whole_draw_on_one_counter_set() -> None:
    content = offered(MIG, mode="partitions", migMode="switch")
    (counter_set,) = content.counter_sets
    assert counter_set.name == NAME
    assert {name: str(amount) for name, amount in counter_set.counters.items()} == {
        "multiprocessors": "40", "copy-engines": "4", "decoders": "4", "encoders": "0", "jpeg-engines": "0",
        "ofa-engines": "0", "memory": "4000Mi",
        "memory-slice-0": "1", "memory-slice-1": "1", "memory-slice-2": "1", "memory-slice-3": "1",
    }  # fmt: skip
    part, *_, whole = content.devices
    assert {name: str(amount) for name, amount in part.consumes[NAME].items()} == {
        "multiprocessors": "10", "copy-engines": "1", "decoders": "1", "memory": "1000Mi", "memory-slice-0": "1"
    }  # fmt: skip
    assert part.attributes == {
        "type": "mig", "profile": "1g.5gb", "parentUUID": "GPU-1", "productName": "NVIDIA A100",
        "driverVersion": Version("580.65.6"), "cudaDriverVersion": Version("13.0.0"),
    }  # fmt: skip
    assert whole.consumes[NAME] == {
        name: amount for name, amount in counter_set.counters.items() if amount.nano
    }
    assert {device.thing for device in content.devices} == {NAME}


def test_instances_that_stand_are_offered_with_their_uuids_and_draw_on_nothing() -> None:
    small, large = SMALL.placements[3], SMALL.placements[4]
    instances = (
        GPUInstance(
            5, 14, 0, 2, large, (ComputeInstance(0, "MIG-b", None, 1), ComputeInstance(1, "MIG-c", None, 1))
        ),
        GPUInstance(7, 19, 3, 1, small, (ComputeInstance(0, "MIG-a", Resources(9, 1, 1, 0, 0, 0, 900), 1),)),
        GPUInstance(8, 19, 2, 1, SMALL.placements[2], ()),
    )
    content = offered(replace(MIG, mig=FIXED_ON, instances=instances))
    assert [
        (device.name, device.attributes["uuid"], device.attributes["profile"]) for device in content.devices
    ] == [
        (f"{NAME}-mig-1g-5gb-3", "MIG-a", "1g.5gb"),
        (f"{NAME}-mig-2g-10gb-0-ci-0", "MIG-b", "1c.2g.10gb"),
        (f"{NAME}-mig-2g-10gb-0-ci-1", "MIG-c", "1c.2g.10gb"),
    ]
    assert content.devices[0].capacity["multiprocessors"].value == Quantity.from_int(9), (
        "as the instance says"
    )
    assert not any(device.consumes for device in content.devices)
    assert content.notes == (f"{NAME}: GPU instance 8 (1g.5gb at memory slice 2) has no compute instance",)


def test_what_foreign_instances_take_is_not_offered() -> None:
    foreign = GPUInstance(7, 19, 1, 1, SMALL.placements[1])
    content = offered(replace(MIG, mig=ON, instances=(foreign,)), mode="partitions", migMode="switch")
    assert names(content) == ["mig-1g-5gb-0", "mig-1g-5gb-2", "mig-1g-5gb-3", "mig-2g-10gb-2"]
    (counter_set,) = content.counter_sets
    assert (counter_set.counters["multiprocessors"], counter_set.counters["memory-slice-1"]) == (
        Quantity.from_int(30), Quantity(0)
    )  # fmt: skip
    assert content.warnings == (
        f"{NAME}: GPU instance 7 (1g.5gb at memory slice 1) was not made here: what it takes is not offered",
    )
    odd = replace(foreign, profile_id=99, start=0, size=2, placement=None)
    content = offered(replace(MIG, mig=ON, instances=(odd,)), mode="partitions")
    assert names(content) == ["mig-1g-5gb-2", "mig-1g-5gb-3", "mig-2g-10gb-2"]
    content = offered(replace(MIG, mig=ON, instances=(replace(foreign, ours=True),)), mode="partitions")
    assert names(content) == PARTS
    assert not offered(replace(MIG, mig=ON, instances=(foreign,)), mode="whole", migMode="switch").devices


@pytest.mark.parametrize(
    ("gpu", "warning"),
    [
        (replace(MIG, mig=ON, geometry=None), "the driver does not tell its MIG profiles"),
        (replace(MIG, geometry=None), "the driver does not tell its MIG profiles while MIG mode is off"),
        (replace(MIG, mig=ON, creatable=False), "the driver cannot create instances at a given place"),
    ],
)
def test_a_driver_that_makes_no_partitions_leaves_what_there_is(gpu: GPU, warning: str) -> None:
    content = offered(gpu, mode="partitions", migMode="switch")
    assert names(content) == ([] if gpu.mig == ON else [""])
    assert content.warnings == (f"{NAME} has no partitions: {warning}",)


# --- shares


def test_memory_is_shared_out_in_bytes() -> None:
    (device,) = offered(PLAIN, mode="shares").devices
    memory = device.capacity["memory"]
    assert device.shared
    assert memory.policy
    assert memory.policy.valid_range
    assert (str(memory.value), str(memory.policy.default)) == ("48Gi", "1Gi")
    assert (str(memory.policy.valid_range.min), str(memory.policy.valid_range.step)) == ("1Mi", "1Mi")


@pytest.mark.parametrize("shares", [1, 2, 10])
def test_a_gpu_is_divided_into_equal_shares(shares: int) -> None:
    content = offered(PLAIN, mode="shares", shares=shares)
    (device,) = content.devices
    assert str(device.capacity["shares"].value) == str(shares)
    assert device.capacity["shares"].policy
    assert str(device.capacity["shares"].policy.default) == "1"
    assert str(device.capacity["memory"].value) == "48Gi"
    assert not published(content)


# --- passing through


def test_a_gpu_can_be_offered_to_virtual_machines_beside_or_instead() -> None:
    gpu = replace(PLAIN, passthrough=BINDABLE)
    content = offered(gpu, mode="passthrough")
    assert names(content) == ["vfio"]
    assert not content.counter_sets
    assert content.devices[0].attributes == {
        "type": "vfio", "uuid": "GPU-1", "productName": "NVIDIA L40S", "vendorID": "0x10de", "deviceID": "0x26b9"
    }  # fmt: skip
    content = offered(gpu, passthrough=True)
    assert names(content) == ["", "vfio"]
    assert [device.consumes for device in content.devices] == [{NAME: {"gpu": Quantity.from_int(1)}}] * 2
    content = offered(
        replace(MIG, passthrough=BINDABLE), passthrough=True, mode="partitions", migMode="switch"
    )
    assert names(content) == [*PARTS, "", "vfio"]
    assert content.devices[-1].consumes == content.devices[-2].consumes
    assert not published(content)


def test_a_gpu_that_cannot_be_passed_through_is_offered_otherwise() -> None:
    gpu = replace(PLAIN, passthrough=replace(BINDABLE, iommu_group=None))
    content = offered(gpu, passthrough=True)
    assert names(content) == [""]
    assert not content.counter_sets
    assert content.warnings == (f"{NAME} is not offered for passing through: it is in no IOMMU group",)
    assert not offered(gpu, mode="passthrough").devices
    mig = replace(MIG, mig=FIXED_ON, passthrough=BINDABLE)
    assert names(offered(mig, passthrough=True, mode="partitions")) == PARTS
    assert names(offered(replace(PLAIN, passthrough=BINDABLE), passthrough=True, mode="shares")) == [""]


@pytest.mark.parametrize(
    ("mig_mode", "mig", "trouble"),
    [
        ("leave", ON, "its MIG mode is on (option migMode)"),
        ("switch", ON, ""),
        ("switch", FIXED_ON, "its MIG mode is on, and goes off by a reset only (nvidia-smi -mig 0)"),
    ],
)
def test_a_gpu_in_mig_mode_is_passed_through_only_where_that_may_be_switched_off(
    mig_mode: str, mig: MigMode, trouble: str
) -> None:
    gpu = replace(MIG, mig=mig, passthrough=BINDABLE)
    content = offered(gpu, mode="passthrough", migMode=mig_mode)
    assert names(content) == ([] if trouble else ["vfio"])
    expected = (f"{NAME} is not offered for passing through: {trouble}",) if trouble else ()
    assert content.warnings == expected
    bound = replace(gpu, visible=False, passthrough=replace(BINDABLE, driver="vfio-pci"))
    assert names(offered(bound, mode="passthrough", migMode=mig_mode)) == ["vfio"]


# --- health


ILL = GPUInstance(
    7, 14, 2, 2, SMALL.placements[5], (ComputeInstance(0, "MIG-a"), ComputeInstance(1, "MIG-b"))
)


def sick(content: PoolContent) -> list[str]:
    return [name for name, device in zip(names(content), content.devices, strict=True) if is_sick(device)]


def is_sick(device: Device) -> bool:
    assert (device.health is Health.UNHEALTHY) == bool(device.health_message)
    return device.health is Health.UNHEALTHY


def test_what_ails_a_gpu_ails_all_of_its_variants() -> None:
    gpu = replace(MIG, mig=ON, passthrough=BINDABLE)
    every = {"mode": "partitions", "migMode": "switch", "passthrough": True}
    assert sick(offered(gpu, **every)) == []
    assert sick(offered(replace(gpu, fault="GPU is lost"), **every)) == [*PARTS, "", "vfio"]
    content = offered(replace(gpu, fault="GPU is lost"), Ailment(NAME, "XID 79"), **every)
    assert sick(content) == [*PARTS, "", "vfio"]
    assert content.devices[0].health_message == "GPU is lost; XID 79"
    assert sick(offered(gpu, Ailment("gpu-0000-42-00-0", "XID 79"), **every)) == []


def test_what_ails_an_instance_ails_nothing_else() -> None:
    gpu = replace(MIG, mig=ON, instances=(replace(ILL, ours=True),))
    every = {"mode": "partitions", "migMode": "switch"}
    assert sick(offered(gpu, Ailment(NAME, "XID 94", 7, 0), **every)) == ["mig-2g-10gb-2"]
    assert sick(offered(gpu, Ailment(NAME, "XID 94", 6, 0), **every)) == []
    gpu = replace(gpu, mig=FIXED_ON)
    assert sick(offered(gpu, Ailment(NAME, "XID 94", 7, 1))) == ["mig-2g-10gb-2-ci-1"]
    assert sick(offered(gpu, Ailment(NAME, "XID 94", 7))) == ["mig-2g-10gb-2-ci-0", "mig-2g-10gb-2-ci-1"]


# --- the filter


def test_the_filter_leaves_out_devices_and_counters_of_which_none_is_left() -> None:
    own = 'device.attributes["gpu.dradriver.io"]'
    inventory = GPUInventory(DRIVER, (MIG, replace(PLAIN, address="0000:42:00.0", uuid="GPU-2")))
    chosen = options(mode="partitions", migMode="switch", devices=f'{own}.profile.startsWith("2g")')
    content = content_of(inventory, chosen, chosen.filter())
    assert names(content) == ["mig-2g-10gb-0", "mig-2g-10gb-2"]
    assert len(content.counter_sets) == 1
    assert len(content.warnings) == 1
    assert content.warnings[0].startswith(f"devices: {NAME} is left out, as maybe others: ")
    chosen = options(mode="partitions", migMode="switch", devices=f'{own}.type == "vfio"')
    assert content_of(inventory, chosen, chosen.filter()) == PoolContent()


# --- names


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("595.58.03", "595.58.3"),
        ("580.65.06", "580.65.6"),
        ("12.8", "12.8.0"),
        ("450.00.00", "450.0.0"),
        ("", None),
        ("535.104.05-beta", None),
        ("1.2.3.4", None),
        ("v1.2", None),
    ],
)
def test_versions_are_made_semantic(text: str, version: str | None) -> None:
    assert semantic_version(text) == (Version(version) if version else None)


def test_old_drivers_profiles_are_named_as_new_ones_name_them() -> None:
    for node in (
        nvmlnodes.a100_40(1),
        nvmlnodes.a100_80(1),
        nvmlnodes.a30(1),
        nvmlnodes.h100(1),
        nvmlnodes.h200(1),
    ):
        (gpu,) = node.gpus
        total = int(gpu.facts["memory-total"])
        named = {
            one.name: f"MIG {profile_name(one.index, one.slices, one.memory_mib, total)}"
            for one in gpu.profiles
        }
        assert named == {name: name for name in named}


def test_a_gpu_is_named_by_its_address() -> None:
    assert address_of(NAME) == "0000:41:00.0"
    assert address_of("gpu-0008-01-00-0") == "0008:01:00.0"
    assert address_of(f"{NAME}-mig-1g-5gb-0") is None
    assert address_of("../etc") is None


def test_a_profile_that_the_counters_admit_too_often_is_counted() -> None:
    twins = Geometry(
        (
            *SMALL.profiles,
            profile(7, 20, "1g.5gb+me", 1, range(4), 1, 1),
            profile(10, 30, "1g.5gb+gfx", 1, range(4), 1, 2),
        )
    )
    assert [name for name in twins.counters if name.startswith("instances-")] == ["instances-1g-5gb-gfx"]
    gfx = next(one for one in twins.placements if one.profile.id == 30)
    assert twins.drawn(gfx)["instances-1g-5gb-gfx"] == Quantity.from_int(1)


def test_memory_that_is_rounded_up_forbids_nothing() -> None:
    generous = [
        replace(one, resources=replace(one.resources, memory_mib=1010 * one.size))
        for one in SMALL.profiles[:2]
    ]
    assert str(Geometry((*generous, SMALL.profiles[2])).counters["memory"]) == "4040Mi"


# --- slices


def published(content: PoolContent) -> tuple[Any, ...]:
    """Return what is left out of the slices; each slice is what an API server of 1.36 stores as it is."""
    specs = pool_specs(Pool("gpu.dradriver.io", "node-1", "node-1/gpu"), content)
    for number, spec in enumerate(specs.specs):
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"slice-{number}"},
            "spec": spec,
        }
        stored = create("ResourceSlice", body, Gates.of("1.36", {}), validation="Strict")
        assert stored.obj["spec"] == spec
    return (*specs.left_out, *specs.warnings)


@pytest.mark.parametrize("mode", ["whole", "partitions", "shares"])
def test_sixteen_gpus_publish_within_the_limits_of_slices(tmp_path: Path, mode: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.gb200(16))
    passthrough = mode != "shares"
    with node.backend({"mode": mode, "migMode": "switch", "passthrough": passthrough}) as backend:
        content = backend.devices(backend.probe())
    assert len(content.devices) == 16 * {"whole": 2, "partitions": 27, "shares": 1}[mode]
    assert published(content) == ()
    specs = pool_specs(Pool("gpu.dradriver.io", "node-1", "node-1/gpu"), content).specs
    assert all(len(spec.get("devices", ())) <= 64 for spec in specs)
    assert all(len(spec.get("sharedCounters", ())) <= 8 for spec in specs)
    assert len(specs) == {"whole": 3, "partitions": 10, "shares": 1}[mode]
