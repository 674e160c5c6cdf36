"""GPUs whose driver tells what no GPU is: numbers without sense, names and numbers that two have, hostile strings."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nvmlnodes
from dradriver.model import Device, Health
from dradriver_gpu.geometry import label
from dradriver_gpu.health import HealthBook
from gpumachine import at_work
from gpunode import GpuNode
from nvmlclients import Operator
from nvmlfacts import Node
from pcibus import Bus

FIRST, SECOND, THIRD = "gpu-0000-1b-00-0", "gpu-0000-43-00-0", "gpu-0000-52-00-0"
PARTITIONS = {"mode": "partitions", "migMode": "switch"}
HUGE = 2**32 - 1


def of(devices: tuple[Device, ...], gpu: str) -> list[Device]:
    return [device for device in devices if device.thing == gpu]


def having(profile: int, **changes: Any) -> Node:
    """Three GPUs, of which the driver tells something else of one profile of the second."""
    node = nvmlnodes.h100(3)
    gpu = node.gpus[1]
    profiles = list(gpu.profiles)
    profiles[profile] = replace(profiles[profile], **changes)
    return node.with_gpu(1, replace(gpu, profiles=tuple(profiles)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"instances": HUGE}, "4294967295 instances of MIG profile 1g.10gb"),
        ({"instances": 0}, "0 instances of MIG profile 1g.10gb"),
        ({"size": 0}, "at memory slices 0:0, 1:0"),
        ({"size": HUGE}, "at memory slices 0:4294967295"),
        ({"starts": (HUGE,)}, "at memory slices 4294967295:1"),
        ({"name": "MIG 2g.20gb"}, "MIG profile 2g.20gb (id 14) is listed twice"),
    ],
)
def test_a_profile_without_sense_costs_the_partitions_of_its_gpu_alone(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    node = GpuNode(tmp_path, having(0, **changes))
    with node.backend(PARTITIONS) as backend:
        began = time.monotonic()
        inventory = backend.probe()
        content = backend.devices(inventory)
        assert time.monotonic() - began < 5
    assert [device.name for device in of(content.devices, SECOND)] == [SECOND]
    assert {len(of(content.devices, gpu)) for gpu in (FIRST, THIRD)} == {26}
    assert any(told in note for note in inventory.notes), inventory.notes


@pytest.mark.parametrize("count", [HUGE, 10**6])
def test_a_number_of_mig_devices_without_sense_takes_no_time(tmp_path: Path, count: int) -> None:
    node = GpuNode(tmp_path, nvmlnodes.a100_40(1).each(mig_at_start=1))
    Operator(node.stub).create(0, 19, 0, compute_profile=0)
    gpu = node.stub.node.gpus[0]
    most = replace(gpu.profiles[0], instances=count)
    node.stub.replace(0, replace(gpu, profiles=(*gpu.profiles[1:], most)))
    with node.backend() as backend:
        began = time.monotonic()
        backend.probe()
        assert time.monotonic() - began < 5


def test_profiles_with_and_without_media_engines_have_names_of_their_own() -> None:
    names = ["1g.24gb", "1g.24gb+me", "1g.24gb-me", "1g.24gb+me.all", "1g.24gb+gfx"]
    assert len({label(name) for name in names}) == len(names)


def test_gpus_of_one_minor_number_are_given_to_nobody(tmp_path: Path) -> None:
    node = nvmlnodes.h100(3)
    with at_work(tmp_path, node.with_gpu(1, node.gpus[1].having(minor=0)), mig=False, mode="whole") as (
        gpus,
        made,
    ):
        health = {name: device.health for name, device in made.devices.items()}
        assert health == {FIRST: Health.UNHEALTHY, SECOND: Health.UNHEALTHY, THIRD: Health.HEALTHY}
        told = f"NVML gives it the minor number of {FIRST}: /dev/nvidia0 is one of them"
        assert made.devices[SECOND].health_message == told
        for number, name in enumerate((FIRST, SECOND)):
            assert "cannot be used: NVML gives it the minor number" in made.refusal(f"a{number}", name)
        made.prepared("well", THIRD)
        gpus.stub.change(1, minor=1)
        made.refresh()
        (edits,) = made.edits(made.prepared("again", SECOND))
        assert edits["deviceNodes"][0]["path"] == "/dev/nvidia1"


@pytest.mark.parametrize("memory", [0, 2**64 - 1, None])
def test_a_gpu_that_does_not_tell_its_memory_is_not_shared_out_without_end(
    tmp_path: Path, memory: int | None
) -> None:
    node = nvmlnodes.h100(2)
    with at_work(
        tmp_path, node.with_gpu(0, node.gpus[0].having(memory_total=memory)), mode="shares", mig=False
    ) as (
        _,
        made,
    ):
        assert set(made.devices) == {SECOND}
        (warning,) = made.pool.snapshot.content.warnings
        assert warning.startswith(f"{FIRST} is not offered: the driver does not tell how much memory it has")


@pytest.mark.parametrize("uuid", ["MIG-../../etc", "MIG-;reboot", "GPU-", "MIG-" + "a" * 80])
def test_a_mig_device_without_a_uuid_is_given_to_nobody(tmp_path: Path, uuid: str) -> None:
    with at_work(tmp_path, nvmlnodes.a100_40(1)) as (gpus, made):
        Operator(gpus.stub).create(0, 19, 0, compute_profile=0)
        made.refresh()
        assert len(made.devices) == 1
        gpus.stub.change(0, mig_uuid=uuid)
        made.refresh()
        assert not made.devices


@pytest.mark.parametrize("uuid", ["MIG-../../etc", "GPU-"])
def test_a_partition_that_gets_no_uuid_is_undone(tmp_path: Path, uuid: str) -> None:
    with at_work(tmp_path, nvmlnodes.a100_40(1), mode="partitions") as (gpus, made):
        before = gpus.stub.state()
        gpus.stub.change(0, mig_uuid=uuid)
        refusal = made.refusal("a", "gpu-0000-07-00-0-mig-1g-5gb-0")
        assert refusal == f"nvmlDeviceGetUUID: '{uuid}' is no UUID of a MIG device"
        assert gpus.stub.state() == before


def test_an_odd_answer_of_a_gpu_that_comes_back_from_a_virtual_machine_is_shown(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with node.backend({"mode": "whole"}) as backend:
        backend.probe()
        node.bind("0000:43:00.0", "vfio-pci")
        full = node.stub.node
        node.stub.become(Node(full.driver, full.gpus[:1]))
        assert [device.name for device in backend.devices(backend.probe()).devices] == [FIRST]
        node.bind("0000:43:00.0", "nvidia")
        node.stub.become(full.with_gpu(1, full.gpus[1].having(uuid="GPU-nonsense")))
        back = backend.devices(backend.probe()).device(SECOND)
        assert back
        assert back.health is Health.UNHEALTHY
        assert "is no UUID" in back.health_message


def test_what_events_tell_of_a_gpu_ends_somewhere_and_the_worst_stays() -> None:
    book = HealthBook()
    began = time.monotonic()
    book.xid("0000:1b:00.0", 79)
    for number in range(20_000):
        book.xid("0000:1b:00.0", 1_000 + number, gpu_instance=number % 7)
    assert time.monotonic() - began < 10
    events = book._records["0000:1b:00.0"].events
    assert len(events) <= 64
    assert events[0].trouble.value == "79"


def test_a_driver_whose_name_cannot_be_written_back_is_not_taken_from_its_function(tmp_path: Path) -> None:
    options = {"mode": "whole", "passthrough": True}
    with (
        at_work(tmp_path, nvmlnodes.h100(1), mig=False, **options) as (gpus, made),
        Bus(gpus).serving() as bus,
    ):
        bus.add("0000:1b:00.1", "a driver", 20)
        refusal = made.refusal("vm", f"{FIRST}-vfio")
        assert "'0000:1b:00.1' cannot be bound back to the driver 'a driver'" in refusal
        assert (bus.driver("0000:1b:00.0"), bus.log) == ("nvidia", [])
