"""Partitions of GPUs made ready for claims, and undone, by the real backend on the stub driver."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dradriver.model import Quantity
from gpumachine import at_work, build, machine
from nvmlclients import Operator
from nvmlfacts import Node, Process, under_driver
from nvmlnodes import a30, a100_40, a100_80, b200, gb200, h100, h200
from nvmlstub import Fault

MakeNode = Callable[..., Node]

GPU = "gpu-0000-1b-00-0"
AMPERE = "gpu-0000-07-00-0"
OTHER = "gpu-0000-43-00-0"
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
MODE_ON: dict[str, Any] = {"mode": "partitions"}


# --- made and undone


def test_a_partition_is_made_for_a_claim_and_undone_with_it(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        before = gpus.stub.state()
        claim = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        (gpu,) = gpus.stub.state()
        (instance,) = gpu.gpu_instances
        assert (instance.profile, instance.start, instance.size) == (14, 4, 2)
        (compute,) = gpu.compute_instances
        assert (compute.gpu_instance, compute.size) == (instance.id, 2)
        record = made.record(claim)
        assert record
        assert record.steps[0].facts["gpuInstance"] == instance.id
        uuid = record.steps[0].facts["uuid"]
        assert uuid.startswith("MIG-")
        assert record.devices[0].metadata == {"uuid": {"string": uuid}}
        capability = (0 * 15 + instance.id) * 8
        assert [node["path"] for node in made.edits(claim)[0]["deviceNodes"]] == [
            "/dev/nvidia0",
            f"/dev/nvidia-caps/nvidia-cap{capability}",
            f"/dev/nvidia-caps/nvidia-cap{capability + 1}",
        ]
        made.undone(claim)
        assert gpus.stub.state() == before


@pytest.mark.parametrize(
    "make", [a30, a100_40, a100_80, h100, h200, b200, gb200], ids=lambda make: make.__name__
)
def test_every_partition_has_what_was_published_of_it(tmp_path: Path, make: MakeNode) -> None:
    """An H100's 1g.20gb, too: the plain compute instance of one slice has fewer multiprocessors than it."""
    with at_work(tmp_path, make(1), **MODE_ON) as (gpus, made):
        parts = [device for name, device in made.devices.items() if "-mig-" in name]
        assert len(parts) > 10
        for device in parts:
            claim = made.prepared(device.name, device.name)
            with made.gpu.nvml.session() as session:
                (handle,) = _mig_devices(session.gpu(gpus.stub.node.gpus[0].bus_id))
                attributes = pynvml.nvmlDeviceGetAttributes_v2(handle)
            published = {name: capacity.value for name, capacity in device.capacity.items()}
            assert published["multiprocessors"] == Quantity.from_int(attributes.multiprocessorCount)
            assert published["memory"] == Quantity.from_int(attributes.memorySizeMB << 20)
            made.undone(claim)
        assert gpus.stub.state()[0].gpu_instances == ()


def _mig_devices(gpu: Any) -> list[Any]:
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
        except pynvml.NVMLError_NotFound:
            continue
    return found


@pytest.mark.parametrize("make", [a30, a100_40, h100, h200, b200], ids=lambda make: make.__name__)
def test_every_pair_that_nvml_allows_is_prepared_together(
    tmp_path: Path, make: MakeNode, everything: bool
) -> None:
    if not everything and make is not a30:
        pytest.skip("the smallest stands for the others; --all runs all")
    with at_work(tmp_path, make(1), **MODE_ON) as (gpus, made):
        profiles = {profile.name.removeprefix("MIG "): profile for profile in gpus.stub.node.gpus[0].profiles}
        parts = [device for name, device in made.devices.items() if "-mig-" in name]
        first_claims = {device.name: made.claim(f"a-{device.name}", device.name) for device in parts}
        second_claims = {device.name: made.claim(f"b-{device.name}", device.name) for device in parts}
        operator = Operator(gpus.stub)
        together = 0
        for first in parts:
            assert not isinstance(made.prepare(first_claims[first.name]), str)
            for second in parts:
                start = int(second.name.rpartition("-")[2])
                profile = profiles[str(second.attributes["profile"])]
                try:
                    number = operator.create(0, profile.id, start)
                except pynvml.NVMLError:
                    assert isinstance(made.prepare(second_claims[second.name]), str), (
                        "never what NVML refuses"
                    )
                    continue
                operator.destroy(0, number)
                answer = made.prepare(second_claims[second.name])
                assert not isinstance(answer, str), (first.name, second.name, answer)
                made.undone(second_claims[second.name])
                together += 1
            made.undone(first_claims[first.name])
        assert together > 20
        assert gpus.stub.state()[0].gpu_instances == ()


def test_several_partitions_of_one_claim_are_made_in_turn_and_undone_in_reverse(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        gpus.stub.record()
        claim = made.prepared("a", f"{GPU}-mig-1g-10gb-0", f"{GPU}-mig-3g-40gb-4", f"{GPU}-mig-1g-20gb-2")
        assert [
            one.start for one in sorted(gpus.stub.state()[0].gpu_instances, key=lambda one: one.start)
        ] == [0, 2, 4]
        made.undone(claim)
        calls = [call.function for call in gpus.stub.calls()]
        assert calls.count("nvmlGpuInstanceDestroy") == calls.count("nvmlComputeInstanceDestroy") == 3


# --- what goes wrong


@pytest.mark.parametrize("function", [CREATE, "nvmlGpuInstanceCreateComputeInstance"])
@pytest.mark.parametrize("action", ["fail", "late"])
def test_what_fails_half_way_is_undone(tmp_path: Path, function: str, action: str) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        before = gpus.stub.state()

        gpus.stub.faults(Fault(function, action, "999"))
        reason = made.refusal("a", f"{GPU}-mig-2g-20gb-4")
        assert function in reason
        assert gpus.stub.state() == before
        made.prepared("b", f"{GPU}-mig-2g-20gb-4")


def test_a_busy_gpu_is_tried_again_within_the_call(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        gpus.stub.fail("nvmlGpuInstanceCreateComputeInstance", pynvml.NVML_ERROR_IN_USE, count=2)
        claim = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        assert len(gpus.stub.state()[0].gpu_instances) == 1
        gpus.stub.faults()
        gpus.stub.fail("nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE, count=2)
        made.undone(claim)
        assert gpus.stub.state()[0].gpu_instances == ()


def test_a_partition_in_use_waits_for_the_end_of_its_processes(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        claim = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        (instance,) = gpus.stub.state()[0].gpu_instances
        idle = gpus.stub.node.gpus[0]
        running = Process(4711, gpu_instance=instance.id, compute_instance=0)
        gpus.stub.replace(0, replace(idle, processes=(running,)))
        answer = made.unprepare(claim, seconds=3.0)
        assert answer
        assert "In use" in answer
        assert made.refusal("b", f"{GPU}-mig-2g-20gb-4").startswith("device")
        gpus.stub.replace(0, idle)
        made.undone(claim)
        assert gpus.stub.state()[0].gpu_instances == ()


def test_a_smaller_compute_instance_than_published_is_refused(tmp_path: Path) -> None:
    node = h100(1)
    (gpu,) = node.gpus
    (small,) = [one for one in gpu.compute_profiles if one.gpu_profile == 15 and one.index == 0]
    lacking = tuple(one for one in gpu.compute_profiles if one.gpu_profile != 15 or one is small)
    with at_work(tmp_path, node.with_gpu(0, replace(gpu, compute_profiles=lacking)), **MODE_ON) as (
        gpus,
        made,
    ):
        reason = made.refusal("a", f"{GPU}-mig-1g-20gb-2")
        assert "has 16 multiprocessors, 26 were published" in reason
        assert gpus.stub.state()[0].gpu_instances == ()


def test_less_memory_than_published_is_refused(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        gpu = gpus.stub.node.gpus[0]
        rounded = tuple(replace(one, memory_mib=one.memory_mib - 128) for one in gpu.profiles)
        gpus.stub.replace(0, replace(gpu, profiles=rounded))
        made.undone(made.prepared("a", f"{GPU}-mig-1g-10gb-0"))
        halved = tuple(replace(one, memory_mib=one.memory_mib // 2) for one in gpu.profiles)
        gpus.stub.replace(0, replace(gpu, profiles=halved))
        reason = made.refusal("b", f"{GPU}-mig-1g-10gb-0")
        assert "it has 4992 MiB of memory, 9984 were published" in reason
        assert gpus.stub.state()[0].gpu_instances == ()


def test_device_nodes_that_come_late_are_waited_for(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        tree = gpus.directory / "proc/driver/nvidia/capabilities/gpu0/mig/gi5/access"
        text = tree.read_text()
        tree.unlink()
        late = threading.Timer(0.3, lambda: tree.write_text(text))
        late.start()
        made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        late.join()
        made.undone(made.claim("a", f"{GPU}-mig-2g-20gb-4"))
        tree.unlink()
        reason = made.refusal("b", f"{GPU}-mig-2g-20gb-4", seconds=3.0)
        assert "nvidia-cap" in reason
        assert gpus.stub.state()[0].gpu_instances == ()


# --- instances of others


def test_an_instance_that_was_there_before_is_not_touched(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        Operator(gpus.stub).create(0, 14, 4, compute_profile=1)
        before = gpus.stub.state()
        reason = made.refusal("a", f"{GPU}-mig-2g-20gb-4")
        assert "GPU instance 5 is there already, and was not made for a claim" in reason
        reason = made.refusal("b", f"{GPU}-mig-1g-10gb-5")
        assert "GPU instance 5 (profile 14) has memory slices of it" in reason
        assert gpus.stub.state() == before
        made.refresh()
        assert f"{GPU}-mig-2g-20gb-4" not in made.devices
        assert f"{GPU}-mig-1g-10gb-5" not in made.devices
        made.prepared("c", f"{GPU}-mig-3g-40gb-0")


def test_an_instance_in_the_way_is_destroyed_where_that_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON, foreignInstances="destroy") as (gpus, made):
        operator = Operator(gpus.stub)
        operator.create(0, 14, 4, compute_profile=1)
        operator.create(0, 19, 6, compute_profile=0)
        other = made.prepared("other", f"{GPU}-mig-1g-10gb-0")
        made.refresh()
        claim = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        assert "GPU instance 5 (profile 14 at 4), which no claim made, is destroyed" in caplog.text
        starts = {one.start for one in gpus.stub.state()[0].gpu_instances}
        assert starts == {0, 4, 6}, "only what is in the way"
        made.undone(claim, other)
        assert {one.start for one in gpus.stub.state()[0].gpu_instances} == {6}


def test_a_partition_that_somebody_destroyed_is_prepared_anew(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        claim = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        Operator(gpus.stub).destroy(0, gpus.stub.state()[0].gpu_instances[0].id)
        assert not isinstance(made.prepare(claim), str)
        assert len(gpus.stub.state()[0].gpu_instances) == 1
        Operator(gpus.stub).destroy(0, gpus.stub.state()[0].gpu_instances[0].id)
        made.undone(claim)
        assert gpus.stub.state()[0].gpu_instances == ()


def test_another_profile_in_the_place_of_a_lost_partition_is_somebody_elses(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        claim = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        operator = Operator(gpus.stub)
        operator.destroy(0, gpus.stub.state()[0].gpu_instances[0].id)
        operator.create(0, 9, 4, compute_profile=2)
        made.undone(claim)
        assert [one.profile for one in gpus.stub.state()[0].gpu_instances] == [9]


# --- hardware that is gone


def test_unprepare_works_without_the_gpu_and_without_the_driver(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(2), **MODE_ON) as (gpus, made):
        lost = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        unloaded = made.prepared("b", f"{OTHER}-mig-2g-20gb-4")
        gpus.stub.lose(0)
        made.undone(lost)
        gpus.stub.become(gpus.stub.node.without_driver())
        gpus.unload()
        made.undone(unloaded)
        assert [made.record(claim) for claim in (lost, unloaded)] == [None, None]
        assert list((made.root / "cdi").glob("*-claim-*")) == []


def test_unprepare_waits_for_a_driver_that_cannot_be_read_while_its_module_is_there(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        claim = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        gpus.remove()
        answer = made.unprepare(claim, seconds=3.0)
        assert answer
        assert "libnvidia-ml.so.1" in answer
        gpus.install()
        made.undone(claim)
        assert gpus.stub.state()[0].gpu_instances == ()


def test_a_claim_of_a_lost_gpu_stays_as_it_is_over_a_restart(tmp_path: Path) -> None:
    gpus = build(tmp_path, h100(1))
    gpus.stub.set_mig(0, enabled=True)
    with machine(tmp_path, **MODE_ON) as made:
        claim = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
    gpus.stub.change(0, lost=1)
    with machine(tmp_path, **MODE_ON) as made:
        record = made.record(claim)
        assert record
        assert record.state.value == "prepared"
        gpus.stub.find(0)
        made.refresh()
        assert not isinstance(made.prepare(claim), str)
        assert len(gpus.stub.state()[0].gpu_instances) == 1


def test_a_gpu_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        gpus.stub.lose(0)
        made.refresh()
        assert "the GPU cannot be used: " in made.refusal("a", f"{GPU}-mig-2g-20gb-4")


# --- instances that stand


def test_a_standing_mig_device_is_given_out_as_it_is(tmp_path: Path) -> None:
    gpus = build(tmp_path, a100_80(1))
    gpus.stub.set_mig(0, enabled=True)
    number = Operator(gpus.stub).create(0, 9, 4, compute_profile=2)
    before = gpus.stub.state()
    with machine(tmp_path) as made:
        (name,) = made.devices
        claim = made.prepared("a", name)
        uuid = made.devices[name].attributes["uuid"]
        assert made.steps(claim) == [f"use {uuid}, in GPU instance {number} of {AMPERE}"]
        paths = [node["path"] for node in made.edits(claim)[0]["deviceNodes"]]
        assert paths[1] == f"/dev/nvidia-caps/nvidia-cap{number * 8}"
        made.undone(claim)
        assert gpus.stub.state() == before
        Operator(gpus.stub).destroy(0, number)
        assert f"the MIG device {uuid} is gone" in made.refusal("b", name)


def test_a_claim_whose_mig_device_is_gone_is_undone_at_the_next_start(tmp_path: Path) -> None:
    gpus = build(tmp_path, a100_80(1))
    gpus.stub.set_mig(0, enabled=True)
    number = Operator(gpus.stub).create(0, 9, 4, compute_profile=2)
    with machine(tmp_path) as made:
        (name,) = made.devices
        claim = made.prepared("a", name)
    Operator(gpus.stub).destroy(0, number)
    with machine(tmp_path) as made:
        assert made.record(claim) is None


# --- admin access


def test_admin_access_looks_at_a_partition_and_holds_nothing(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        name = f"{GPU}-mig-2g-20gb-4"
        assert "this partition is not" in made.refusal("monitor", name, admin=True)
        claim = made.prepared("a", name)
        made.refresh()
        monitor = made.prepared("monitor", name, admin=True)
        assert made.steps(monitor) == []
        assert made.edits(monitor)[0]["deviceNodes"] == made.edits(claim)[0]["deviceNodes"]
        made.undone(monitor)
        assert len(gpus.stub.state()[0].gpu_instances) == 1


# --- drivers


@pytest.mark.parametrize(
    "driver", ["460.106.00", "470.256.02", "510.108.03", "535.183.06", "570.86.10", "595.58.03"]
)
def test_partitions_are_made_under_old_and_new_drivers(tmp_path: Path, driver: str) -> None:
    with at_work(tmp_path, under_driver(a100_40(1), driver), **MODE_ON) as (gpus, made):
        parts = [name for name in made.devices if "-mig-" in name]
        claim = made.prepared("a", f"{AMPERE}-mig-2g-10gb-2", f"{AMPERE}-mig-3g-20gb-4")
        assert len(parts) > 10
        assert len(gpus.stub.state()[0].compute_instances) == 2
        made.undone(claim)
        assert gpus.stub.state()[0].gpu_instances == ()


def test_a_driver_that_cannot_place_instances_gives_out_those_that_stand(tmp_path: Path) -> None:
    gpus = build(tmp_path, under_driver(a100_40(1), "450.248.02"))
    gpus.stub.set_mig(0, enabled=True)
    Operator(gpus.stub).create(0, 9, 4, compute_profile=2)
    with machine(tmp_path, mode="partitions") as made:
        (name,) = made.devices
        claim = made.prepared("a", name)
        assert "/0" in str(made.devices[name].attributes["uuid"])
        made.undone(claim)
        assert len(gpus.stub.state()[0].gpu_instances) == 1


def test_the_log_tells_what_happens_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dradriver_gpu")
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        gpus.stub.fail("nvmlGpuInstanceCreateComputeInstance", pynvml.NVML_ERROR_IN_USE, count=3)
        made.undone(made.prepared("a", f"{GPU}-mig-2g-20gb-4"))
    assert [record for record in caplog.records if record.name.startswith("dradriver_gpu")] == []
