"""The stub NVML library in MIG mode, spoken to through the real binding: geometry, rules, instances, MIG devices."""

import ctypes
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvmlclients import Operator, create, handles, placements, refusal, session
from nvmlfacts import Node, Process, Profile
from nvmlnodes import MIB, a30, a100_40, a100_80, b200, gb200, h100, h200, mixed
from nvmlstub import Stub
from recorded import SHARED

MakeNode = Callable[..., Node]

WITH_MIG = (a100_40, a100_80, a30, h100, h200, b200, gb200)


def named(make: MakeNode) -> str:
    return make.__name__


def mig_node(tmp_path: Path, make: MakeNode, count: int = 1, **facts: int) -> Stub:
    stub = Stub(tmp_path / "stub", make(count).each(**facts))
    for index in range(count):
        stub.set_mig(index, enabled=True)
    return stub


# --- MIG mode


def test_hopper_changes_mig_mode_at_once_and_ampere_at_a_reset(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", mixed(h100(1), a100_40(1)))
    with session(stub.library) as nvml:
        hopper, ampere = handles(nvml)
        assert nvml.nvmlDeviceSetMigMode(hopper, 1) == 0
        assert nvml.nvmlDeviceGetMigMode(hopper) == [1, 1]
        assert nvml.nvmlDeviceSetMigMode(ampere, 1) == nvml.NVML_ERROR_RESET_REQUIRED
        assert nvml.nvmlDeviceGetMigMode(ampere) == [0, 1]
        assert refusal(nvml.nvmlDeviceCreateGpuInstance, ampere, 19) == nvml.NVML_ERROR_NOT_SUPPORTED
        stub.reset(1)
        assert nvml.nvmlDeviceGetMigMode(ampere) == [1, 1]
        nvml.nvmlDeviceCreateGpuInstance(ampere, 19)
        nvml.nvmlDeviceCreateGpuInstance(hopper, 19)
        stub.reboot()
        assert [nvml.nvmlDeviceGetMigMode(gpu) for gpu in (hopper, ampere)] == [[0, 0], [1, 1]]
        assert all(not state.gpu_instances for state in stub.state())


def test_a_gpu_in_use_keeps_its_mode(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(2))
    stub.replace(0, replace(stub.node.gpus[0], processes=(Process(4711, 512 * MIB),)))
    with session(stub.library) as nvml:
        busy, free = handles(nvml)
        assert nvml.nvmlDeviceSetMigMode(busy, 1) == nvml.NVML_ERROR_IN_USE
        assert nvml.nvmlDeviceGetMigMode(busy) == [0, 1]
        nvml.nvmlDeviceSetMigMode(free, 1)
        instance = nvml.nvmlDeviceCreateGpuInstance(free, 0)
        assert nvml.nvmlDeviceSetMigMode(free, 0) == nvml.NVML_ERROR_IN_USE
        nvml.nvmlGpuInstanceDestroy(instance)
        assert nvml.nvmlDeviceSetMigMode(free, 0) == 0


# --- MIG geometry


@pytest.mark.parametrize("make", WITH_MIG, ids=named)
def test_geometry_is_that_of_the_table(tmp_path: Path, make: MakeNode) -> None:
    stub = Stub(tmp_path / "stub", make(1))
    with session(stub.library) as nvml:
        gpu = handles(nvml)[0]
        found = []
        for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT + 1):
            if refusal(nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, index) == 0:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index)
                first = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, 1)
                by_id = nvml.nvmlDeviceGetGpuInstanceProfileInfoById(gpu, info.id)
                assert (first.id, first.memorySizeMB) == (by_id.id, by_id.memorySizeMB)
                found.append(read_profile(nvml, gpu, index, info))
        assert found == sorted(stub.node.gpus[0].profiles, key=lambda profile: profile.index)


def read_profile(nvml: Any, gpu: Any, index: int, info: Any) -> Profile:
    where = placements(nvml, gpu, info.id)
    (size,) = {size for _, size in where}
    return Profile(
        index=index,
        id=info.id,
        name=info.name,
        slices=info.sliceCount,
        instances=info.instanceCount,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpegs=info.jpegCount,
        ofas=info.ofaCount,
        memory_mib=info.memorySizeMB,
        size=size,
        starts=tuple(start for start, _ in where),
    )


@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED}: not there")
def test_indices_are_those_of_the_shared_table() -> None:
    table = json.loads((SHARED / "data/gpu/mig_profiles.json").read_text())["gpus"]
    for board, make in (
        ("A100-SXM4-40GB", a100_40),
        ("A100-80GB", a100_80),
        ("A30", a30),
        ("H100-SXM5-80GB", h100),
        ("H200-SXM-141GB", h200),
        ("B200-180GB", b200),
        ("GB200", gb200),
    ):
        listed = {(profile["enumIndex"], profile["profileId"]) for profile in table[board]["profiles"]}
        assert {(profile.index, profile.id) for profile in make(1).gpus[0].profiles} == listed


def test_profiles_are_told_without_mig_mode_only_where_the_gpu_can(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(1))
    with session(stub.library) as nvml:
        gpu = handles(nvml)[0]
        assert nvml.nvmlDeviceGetFieldValues(gpu, [199])[0].value.uiVal == 1
        assert nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0).id == 19
        stub.change(0, mig_query_always=0)
        assert refusal(nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 0) == nvml.NVML_ERROR_NOT_SUPPORTED
        assert len(placements(nvml, gpu, 19)) == 7


def compatible(one: tuple[Profile, int], other: tuple[Profile, int], whole: Profile) -> bool:
    """Return whether two instances can stand together: other slices, and engines for both."""
    (profile, start), (other_profile, other_start) = one, other
    if start < other_start + other_profile.size and other_start < start + profile.size:
        return False
    if profile == other_profile and profile.instances < 2:
        return False
    return all(
        getattr(profile, kind) + getattr(other_profile, kind) <= getattr(whole, kind)
        for kind in ("copy_engines", "decoders", "encoders", "jpegs", "ofas")
    )


@pytest.mark.parametrize("make", WITH_MIG, ids=named)
def test_two_instances_stand_together_if_slices_and_engines_allow(tmp_path: Path, make: MakeNode) -> None:
    stub = mig_node(tmp_path, make)
    profiles = stub.node.gpus[0].profiles
    whole = max(profiles, key=lambda profile: profile.size)
    every = [(profile, start) for profile in profiles for start in profile.starts]
    with session(stub.library) as nvml:
        gpu = handles(nvml)[0]
        for one, other in itertools.product(every, repeat=2):
            first = create(nvml, gpu, one[0].id, one[1], one[0].size)
            code = refusal(create, nvml, gpu, other[0].id, other[1], other[0].size)
            assert code == (0 if compatible(one, other, whole) else nvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
            nvml.nvmlGpuInstanceDestroy(first)
            if code == 0:
                (left,) = stub.state()[0].gpu_instances
                nvml.nvmlGpuInstanceDestroy(nvml.nvmlDeviceGetGpuInstanceById(gpu, left.id))
    assert stub.state()[0].gpu_instances == ()


@pytest.mark.parametrize("make", WITH_MIG, ids=named)
def test_engines_never_refuse_what_slices_allow_but_media_profiles(tmp_path: Path, make: MakeNode) -> None:
    stub = mig_node(tmp_path, make)
    profiles = [profile for profile in stub.node.gpus[0].profiles if not profile.name.endswith("+me")]
    with session(stub.library) as nvml:
        gpu = handles(nvml)[0]

        def fill(taken: int) -> int:
            """Put every instance at every free place, and so on with the rest; return how many layouts there were."""
            layouts = 0
            for profile in profiles:
                for start in profile.starts:
                    mask = ((1 << profile.size) - 1) << start
                    if mask > taken and not mask & taken:
                        instance = create(nvml, gpu, profile.id, start, profile.size)
                        layouts += 1 + fill(taken | mask)
                        nvml.nvmlGpuInstanceDestroy(instance)
            return layouts

        assert fill(0) > 20


def test_placements_that_are_none_are_refused(tmp_path: Path) -> None:
    with session(mig_node(tmp_path, a100_40).library) as nvml:
        gpu = handles(nvml)[0]
        for profile, start, size in ((19, 7, 1), (14, 1, 2), (9, 0, 3), (0, 0, 7), (1, 0, 1), (19, 0, 2)):
            assert refusal(create, nvml, gpu, profile, start, size) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_instances_land_and_are_numbered_as_on_real_gpus(tmp_path: Path) -> None:
    """As public listings of `nvidia-smi mig -cgi` and `-lgi` show it."""
    stub = mig_node(tmp_path, a100_40, 3)
    stub.change(2, swapped_halves=1)
    with session(stub.library) as nvml:
        one, two, swapped = handles(nvml)
        made = [nvml.nvmlDeviceCreateGpuInstance(one, profile) for profile in (19, 14, 5)]
        assert [where(nvml, instance) for instance in made] == [(13, 6, 1), (5, 4, 2), (1, 0, 4)]
        made = [nvml.nvmlDeviceCreateGpuInstance(two, 9) for _ in range(2)]
        assert [where(nvml, instance) for instance in made] == [(2, 4, 4), (1, 0, 4)]
        assert refusal(nvml.nvmlDeviceCreateGpuInstance, two, 19) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        made = [create(nvml, swapped, *at) for at in ((19, 2, 1), (19, 3, 1), (14, 0, 2), (9, 4, 4))]
        assert [where(nvml, instance)[0] for instance in made] == [13, 14, 5, 1]


def where(nvml: Any, instance: Any) -> tuple[int, int, int]:
    info = nvml.nvmlGpuInstanceGetInfo(instance)
    return info.id, info.placement.start, info.placement.size


def test_capacity_shrinks_with_what_is_there(tmp_path: Path) -> None:
    with session(mig_node(tmp_path, h100).library) as nvml:
        gpu = handles(nvml)[0]

        def left() -> list[int]:
            return [
                nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile)
                for profile in (19, 20, 15, 14, 9, 5, 0)
            ]

        assert left() == [7, 1, 4, 3, 2, 1, 1]
        create(nvml, gpu, 20, 6, 1)
        assert left() == [6, 0, 3, 3, 1, 1, 0]
        create(nvml, gpu, 9, 0, 4)
        assert left() == [2, 0, 1, 1, 0, 0, 0]


def test_the_lists_of_instances(tmp_path: Path) -> None:
    with session(mig_node(tmp_path, h100).library) as nvml:
        gpu = handles(nvml)[0]
        for at in ((19, 0, 1), (19, 1, 1), (14, 2, 2)):
            create(nvml, gpu, *at)
        found, count = (nvml.c_nvmlGpuInstance_t * 8)(), ctypes.c_uint()
        nvml.nvmlDeviceGetGpuInstances(gpu, 19, found, ctypes.byref(count))
        assert [where(nvml, found[i]) for i in range(count.value)] == [(7, 0, 1), (8, 1, 1)]
        assert where(nvml, nvml.nvmlDeviceGetGpuInstanceById(gpu, 4)) == (4, 2, 2)
        assert refusal(nvml.nvmlDeviceGetGpuInstanceById, gpu, 9) == nvml.NVML_ERROR_NOT_FOUND
        old = nvml.nvmlDeviceGetGpuInstanceById(gpu, 7)
        nvml.nvmlGpuInstanceDestroy(old)
        create(nvml, gpu, 19, 0, 1)
        assert refusal(nvml.nvmlGpuInstanceGetInfo, old) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_without_permission_instances_cannot_be_seen(tmp_path: Path) -> None:
    stub = mig_node(tmp_path, h100)
    stub.become(stub.node.having(permission=0))
    with session(stub.library) as nvml:
        gpu = handles(nvml)[0]
        nothing = nvml.NVML_ERROR_NO_PERMISSION
        assert refusal(nvml.nvmlDeviceCreateGpuInstance, gpu, 19) == nothing
        assert refusal(nvml.nvmlDeviceGetGpuInstanceById, gpu, 7) == nothing
        assert refusal(nvml.nvmlDeviceSetMigMode, gpu, 0) == nothing
        assert refusal(nvml.nvmlDeviceSetComputeMode, gpu, 3) == nothing
        assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]


# --- compute instances and MIG devices


def test_a_wide_single_slice_has_two_compute_profiles(tmp_path: Path) -> None:
    with session(mig_node(tmp_path, h100).library) as nvml:
        gpu = handles(nvml)[0]
        instance = create(nvml, gpu, 15, 0, 2)
        found = {
            index: nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0)
            for index in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
            if refusal(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, index, 0) == 0
        }
        assert {index: (info.name, info.multiprocessorCount) for index, info in found.items()} == {
            0: ("MIG 1c.1g.20gb", 16),
            7: ("MIG 1g.20gb", 26),
        }
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, found[7].id)
        device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        assert nvml.nvmlDeviceGetAttributes(device).multiprocessorCount == 26
        code = refusal(nvml.nvmlGpuInstanceCreateComputeInstance, instance, found[0].id)
        assert code == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES


def test_compute_instances_share_a_gpu_instance(tmp_path: Path) -> None:
    with session(mig_node(tmp_path, a100_40).library) as nvml:
        gpu = handles(nvml)[0]
        instance = create(nvml, gpu, 9, 4, 4)
        profiles = {
            index: nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0) for index in range(3)
        }
        assert [(info.id, info.name, info.instanceCount) for info in profiles.values()] == [
            (0, "MIG 1c.3g.20gb", 3),
            (1, "MIG 2c.3g.20gb", 1),
            (2, "MIG 3g.20gb", 1),
        ]
        made = [nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(3)]
        assert [nvml.nvmlComputeInstanceGetInfo(compute).id for compute in made] == [0, 1, 2]
        code = refusal(nvml.nvmlGpuInstanceCreateComputeInstance, instance, 0)
        assert code == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        assert refusal(nvml.nvmlGpuInstanceDestroy, instance) == nvml.NVML_ERROR_IN_USE
        nvml.nvmlComputeInstanceDestroy(made[1])
        again = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        info = nvml.nvmlComputeInstanceGetInfo(again)
        assert (info.id, info.placement.start) == (1, 1)
        for compute in (made[0], again, made[2]):
            nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(instance)


def test_mig_devices(tmp_path: Path) -> None:
    stub = mig_node(tmp_path, h100, 2)
    with session(stub.library) as nvml:
        gpu, _ = handles(nvml)
        assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7
        assert refusal(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 0) == nvml.NVML_ERROR_NOT_FOUND
        instance = create(nvml, gpu, 14, 2, 2)
        compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        assert nvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
        assert nvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 2g.20gb"
        assert nvml.nvmlDeviceGetGpuInstanceId(device) == 4
        assert nvml.nvmlDeviceGetComputeInstanceId(device) == 0
        assert nvml.nvmlDeviceGetMemoryInfo(device).total == 20096 * MIB
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        assert nvml.nvmlDeviceGetUUID(parent) == stub.node.gpus[0].uuid
        attributes = nvml.nvmlDeviceGetAttributes(device)
        assert (attributes.multiprocessorCount, attributes.gpuInstanceSliceCount) == (32, 2)
        assert (attributes.memorySizeMB, attributes.sharedDecoderCount) == (20096, 2)
        uuid = nvml.nvmlDeviceGetUUID(device)
        assert uuid.startswith("MIG-")
        assert len(uuid) == 40
        assert nvml.nvmlDeviceGetGpuInstanceId(nvml.nvmlDeviceGetHandleByUUID(uuid)) == 4
        info = nvml.nvmlComputeInstanceGetInfo(compute)
        assert nvml.nvmlDeviceGetUUID(info.device) == uuid
        assert refusal(nvml.nvmlDeviceGetMinorNumber, device) == nvml.NVML_ERROR_NOT_SUPPORTED
        assert refusal(nvml.nvmlDeviceGetUtilizationRates, gpu) == nvml.NVML_ERROR_NOT_SUPPORTED
        assert refusal(nvml.nvmlDeviceGetRemappedRows, gpu) == nvml.NVML_ERROR_NOT_SUPPORTED


def test_indices_of_mig_devices_have_holes_and_uuids_come_back(tmp_path: Path) -> None:
    stub = mig_node(tmp_path, h100)
    with session(stub.library) as nvml:
        gpu = handles(nvml)[0]
        uuids, computes = [], []
        for start in range(3):
            instance = create(nvml, gpu, 19, start, 1)
            computes.append((instance, nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)))
            uuids.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, start)))
        assert len(set(uuids)) == 3
        old = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        nvml.nvmlComputeInstanceDestroy(computes[0][1])
        nvml.nvmlGpuInstanceDestroy(computes[0][0])
        codes = [refusal(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index) for index in range(8)]
        assert codes == [6, 0, 0, 6, 6, 6, 6, 2]
        assert refusal(nvml.nvmlDeviceGetUUID, old) == nvml.NVML_ERROR_INVALID_ARGUMENT
        instance = create(nvml, gpu, 19, 0, 1)
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)) == uuids[0]


def test_an_instance_with_processes_stays(tmp_path: Path) -> None:
    stub = mig_node(tmp_path, h100)
    with session(stub.library) as nvml:
        gpu = handles(nvml)[0]
        instance = create(nvml, gpu, 14, 0, 2)
        compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        user = Process(4711, 512 * MIB, gpu_instance=3, compute_instance=0)
        stub.replace(0, replace(stub.node.gpus[0], processes=(user,)))
        assert refusal(nvml.nvmlComputeInstanceDestroy, compute) == nvml.NVML_ERROR_IN_USE
        device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        for handle in (gpu, device):
            (found,) = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            assert (found.pid, found.gpuInstanceId, found.computeInstanceId) == (4711, 3, 0)
        (found,) = nvml.nvmlDeviceGetRunningProcessDetailList(device, nvml.nvmlProcessDetailList_v1, 0)
        assert (found.pid, found.usedGpuMemory) == (4711, 512 * MIB)
        assert nvml.nvmlDeviceGetMemoryInfo(device).used == 512 * MIB
        assert nvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu) == []


def test_compute_mode(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(2))
    stub.set_mig(1, enabled=True)
    with session(stub.library) as nvml:
        whole, split = handles(nvml)
        exclusive = nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        nvml.nvmlDeviceSetComputeMode(whole, exclusive)
        assert nvml.nvmlDeviceGetComputeMode(whole) == stub.state()[0].compute_mode == exclusive
        assert refusal(nvml.nvmlDeviceSetComputeMode, whole, 1) == nvml.NVML_ERROR_NOT_SUPPORTED
        assert refusal(nvml.nvmlDeviceSetComputeMode, whole, 4) == nvml.NVML_ERROR_INVALID_ARGUMENT
        assert refusal(nvml.nvmlDeviceSetComputeMode, split, exclusive) == nvml.NVML_ERROR_NOT_SUPPORTED
        nvml.nvmlGpuInstanceCreateComputeInstance(create(nvml, split, 0, 0, 8), 4)
        device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(split, 0)
        nvml.nvmlDeviceSetComputeMode(device, exclusive)
        assert nvml.nvmlDeviceGetComputeMode(device) == exclusive
        assert stub.state()[1].compute_instances[0].compute_mode == exclusive


def test_another_client_makes_and_destroys_instances(tmp_path: Path) -> None:
    stub = mig_node(tmp_path, h200)
    operator = Operator(stub)
    with session(stub.library) as nvml:
        gpu = handles(nvml)[0]
        theirs = operator.create(0, 19, 5, compute_profile=0)
        assert theirs == 12
        assert refusal(create, nvml, gpu, 19, 5, 1) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        assert where(nvml, nvml.nvmlDeviceGetGpuInstanceById(gpu, theirs)) == (12, 5, 1)
        operator.destroy(0, theirs)
        assert refusal(nvml.nvmlDeviceGetGpuInstanceById, gpu, theirs) == nvml.NVML_ERROR_NOT_FOUND
