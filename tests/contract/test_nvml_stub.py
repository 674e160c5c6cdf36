"""The stub NVML library, spoken to through the real binding: facts, drivers, MIG geometry and rules."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvmlbuild import build, functions, missing_in
from nvmlclients import handles, refusal, session
from nvmlfacts import Gpu, Node
from nvmlnodes import a30, a100_40, a100_80, b200, gb200, h100, h200, l4, l40s, mixed, t4
from nvmlstub import MULTIARCH, Stub

MakeNode = Callable[..., Node]

ALL = (a100_40, a100_80, a30, h100, h200, b200, gb200, t4, l4, l40s)


def named(make: MakeNode) -> str:
    return make.__name__


# --- facts


@pytest.mark.parametrize("make", ALL, ids=named)
def test_a_gpu_is_what_its_facts_say(tmp_path: Path, make: MakeNode) -> None:
    node = make()
    with session(Stub(tmp_path / "stub", node).library) as nvml:
        assert nvml.nvmlSystemGetDriverVersion() == "580.65.06"
        assert nvml.nvmlSystemGetNVMLVersion() == "13.580.65.06"
        assert nvml.nvmlSystemGetCudaDriverVersion_v2() == 13000
        gpus = handles(nvml)
        assert len(gpus) == len(node.gpus)
        for index, (handle, gpu) in enumerate(zip(gpus, node.gpus, strict=True)):
            check_identity(nvml, handle, gpu, index)
            check_resources(nvml, handle, gpu)


def check_identity(nvml: Any, handle: Any, gpu: Gpu, index: int) -> None:
    facts = gpu.facts
    assert nvml.nvmlDeviceGetIndex(handle) == index
    assert nvml.nvmlDeviceGetUUID(handle) == gpu.uuid
    assert nvml.nvmlDeviceGetName(handle) == facts["name"]
    assert nvml.nvmlDeviceGetMinorNumber(handle) == facts["minor"]
    assert nvml.nvmlDeviceGetSerial(handle) == facts["serial"]
    assert nvml.nvmlDeviceGetBoardPartNumber(handle) == facts["board-part"]
    assert nvml.nvmlDeviceGetVbiosVersion(handle) == facts["vbios"]
    assert nvml.nvmlDeviceGetBrand(handle) == nvml.NVML_BRAND_NVIDIA
    assert nvml.nvmlDeviceGetArchitecture(handle) == facts["architecture"]
    major, minor = map(int, str(facts["compute-capability"]).split("."))
    assert nvml.nvmlDeviceGetCudaComputeCapability(handle) == (major, minor)
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    assert pci.busId.lower() == f"0000{gpu.bus_id}"
    assert pci.domain == int(gpu.bus_id[:4], 16)
    assert pci.pciDeviceId == int(str(facts["pci-device"]), 16)
    assert pci.pciSubSystemId == int(str(facts["pci-subsystem"]), 16)
    for address in (gpu.bus_id, pci.busId, f"0000{gpu.bus_id.upper()}"):
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByPciBusId(address)) == gpu.uuid
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)) == index
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleBySerial(str(facts["serial"]))) == index
    assert nvml.nvmlDeviceIsMigDeviceHandle(handle).value == 0


def check_resources(nvml: Any, handle: Any, gpu: Gpu) -> None:
    facts = gpu.facts
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    precise = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    assert memory.total == precise.total == facts["memory-total"]
    assert memory.used == precise.reserved == facts["memory-reserved"]
    assert precise.used == 0
    assert nvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total == facts["bar1-total"]
    assert nvml.nvmlDeviceGetNumGpuCores(handle) == facts["cores"]
    assert nvml.nvmlDeviceGetEccMode(handle) == [1, 1]
    assert nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0) == 0
    assert nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1] == facts["power-max-limit"]
    assert nvml.nvmlDeviceGetSupportedEventTypes(handle) == facts["event-types"]
    assert nvml.nvmlDeviceGetVirtualizationMode(handle) == nvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    numa = nvml.nvmlDeviceGetMemoryAffinity(handle, 4, nvml.NVML_AFFINITY_SCOPE_NODE)
    assert numa[0] == 1 << int(facts["numa-node"])
    cpus = nvml.nvmlDeviceGetCpuAffinity(handle, 32)
    assert bits(cpus) == numbers(str(facts["cpus"]))


def bits(words: Any) -> set[int]:
    return {64 * index + bit for index, word in enumerate(words) for bit in range(64) if word >> bit & 1}


def numbers(text: str) -> set[int]:
    bounds = [(part.split("-") + part.split("-"))[:2] for part in text.split(",")]
    return {number for first, last in bounds for number in range(int(first), int(last) + 1)}


def test_what_a_board_does_not_have_is_not_supported(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", mixed(t4(1), h100(1), gb200(1)))
    with session(stub.library) as nvml:
        turing, hopper, grace = handles(nvml)
        nothing = nvml.NVML_ERROR_NOT_SUPPORTED
        fabric = nvml.c_nvmlGpuFabricInfoV_t()
        assert refusal(nvml.nvmlDeviceGetMigMode, turing) == nothing
        assert refusal(nvml.nvmlDeviceSetMigMode, turing, 1) == nothing
        assert nvml.nvmlDeviceGetMaxMigDeviceCount(turing) == 0
        assert refusal(nvml.nvmlDeviceGetGpuInstanceProfileInfo, turing, 0) == nothing
        assert refusal(nvml.nvmlDeviceGetRemappedRows, turing) == nothing
        assert nvml.nvmlDeviceGetRetiredPages(turing, 0) == []
        assert refusal(nvml.nvmlDeviceGetGpuFabricInfoV, turing, ctypes.byref(fabric)) == nothing
        assert refusal(nvml.nvmlDeviceGetNvLinkState, turing, 0) == nothing
        assert refusal(nvml.nvmlDeviceGetGspFirmwareVersion, turing) == nothing
        assert nvml.nvmlDeviceGetRemappedRows(hopper) == (0, 0, 0, 0)
        assert refusal(nvml.nvmlDeviceGetRetiredPages, hopper, 0) == nothing
        assert refusal(nvml.nvmlDeviceGetNumaNodeId, hopper) == nothing
        assert nvml.nvmlDeviceGetGspFirmwareVersion(hopper) == b"580.65.06"
        assert nvml.nvmlDeviceGetAddressingMode(hopper) == nvml.NVML_DEVICE_ADDRESSING_MODE_HMM
        assert nvml.nvmlDeviceGetAddressingMode(grace) == nvml.NVML_DEVICE_ADDRESSING_MODE_ATS
        assert nvml.nvmlDeviceGetNumaNodeId(grace) == 1


def test_an_nvlink_domain_shows(tmp_path: Path) -> None:
    node = gb200(4)
    with session(Stub(tmp_path / "stub", node).library) as nvml:
        gpu = handles(nvml)[3]
        for fabric in (nvml.c_nvmlGpuFabricInfo_v2_t(), nvml.c_nvmlGpuFabricInfo_v3_t()):
            nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(fabric))
            assert fabric.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED
            assert fabric.cliqueId == 1
            assert bytes(fabric.clusterUuid).hex() == str(node.gpus[3].facts["fabric-cluster"]).replace(
                "-", ""
            )
        fabric.version = 0x04000040
        assert refusal(nvml.nvmlDeviceGetGpuFabricInfoV, gpu, ctypes.byref(fabric)) == 25
        platform = nvml.c_nvmlPlatformInfo_v2_t()
        nvml.nvmlDeviceGetPlatformInfo(gpu, ctypes.byref(platform))
        assert platform.chassisSerialNumber == "1820325191003"
        assert [nvml.nvmlDeviceGetNvLinkState(gpu, link) for link in range(18)] == [1] * 18
        assert nvml.nvmlDeviceGetNvLinkVersion(gpu, 0) == nvml.NVML_NVLINK_VERSION_5_0
        assert refusal(nvml.nvmlDeviceGetNvLinkState, gpu, 18) == nvml.NVML_ERROR_NOT_SUPPORTED


def test_distances_between_gpus(tmp_path: Path) -> None:
    with session(Stub(tmp_path / "stub", a100_40()).library) as nvml:
        gpus = handles(nvml)
        levels = [nvml.nvmlDeviceGetTopologyCommonAncestor(gpus[0], other) for other in gpus[1:4]]
        assert levels == [nvml.NVML_TOPOLOGY_SINGLE, nvml.NVML_TOPOLOGY_SYSTEM, nvml.NVML_TOPOLOGY_SYSTEM]
        assert nvml.nvmlDeviceGetP2PStatus(gpus[0], gpus[7], nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0


def test_field_values_follow_the_facts_and_the_driver(tmp_path: Path) -> None:
    ids = [91, 142, 230, 143, 9999]
    for driver, last in (("580.65.06", (0, 2)), ("535.183.01", (2, None))):
        stub = Stub(tmp_path / driver, h100(1, driver))
        if driver == "580.65.06":
            stub.change(0, rows_corrected=3, recovery_action=2)
        else:
            stub.change(0, rows_corrected=3)
        with session(stub.library) as nvml:
            values = nvml.nvmlDeviceGetFieldValues(handles(nvml)[0], ids)
            assert [value.nvmlReturn for value in values] == [0, 0, last[0], 0, 2]
            assert [value.value.uiVal for value in values[:2]] == [18, 3]
            if last[1] is not None:
                assert values[2].value.uiVal == last[1]


def test_a_gpu_that_answers_oddly_is_the_only_one(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(3))
    stub.answer(1, nvmlDeviceGetMemoryInfo=999, nvmlDeviceGetUUID=17)
    with session(stub.library) as nvml:
        gpus = handles(nvml)
        assert [refusal(nvml.nvmlDeviceGetMemoryInfo, gpu) for gpu in gpus] == [0, 999, 0]
        assert [refusal(nvml.nvmlDeviceGetUUID, gpu) for gpu in gpus] == [0, 17, 0]
        stub.answer(1, nvmlDeviceGetHandleByIndex_v2=15)
        assert [refusal(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(4)] == [0, 15, 0, 2]


def test_errors_have_the_texts_of_the_driver(tmp_path: Path) -> None:
    with session(Stub(tmp_path / "stub", t4(1)).library) as nvml:
        assert nvml.nvmlErrorString(23) == "Insufficient Resources"
        assert str(nvml.NVMLError(19)) == "In use by another client"


# --- drivers


@pytest.mark.parametrize("driver", ["450.248.02", "535.183.01", "580.65.06", "610.43.02"])
def test_a_driver_lacks_what_came_later(tmp_path: Path, driver: str) -> None:
    node = a100_40(1, driver)
    library = ctypes.CDLL(str(Stub(tmp_path / "stub", node).library))
    missing = missing_in(driver)
    assert {name for name in functions() if not hasattr(library, name)} == missing
    assert ("nvmlDeviceCreateGpuInstanceWithPlacement" in missing) == driver.startswith("450")
    assert ("nvmlDeviceGetAddressingMode" in missing) == driver.startswith(("450", "535"))
    assert "nvmlDeviceGetMigDeviceHandleByIndex" not in missing


def test_missing_functions_reach_the_binding_as_such(tmp_path: Path) -> None:
    with session(Stub(tmp_path / "stub", a100_40(1, "450.248.02")).library) as nvml:
        gpu = handles(nvml)[0]
        assert nvml.nvmlDeviceGetName(gpu) == "A100-SXM4-40GB"
        assert refusal(nvml.nvmlDeviceGetModuleId, gpu) == nvml.NVML_ERROR_FUNCTION_NOT_FOUND
        with pytest.raises(pynvml.NVMLLibraryMismatchError):
            nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        assert refusal(nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 0) == nvml.NVML_ERROR_FUNCTION_NOT_FOUND
    stub = Stub(tmp_path / "other", h100(1), missing=["nvmlDeviceGetUUID"])
    with session(stub.library) as nvml:
        assert refusal(nvml.nvmlDeviceGetUUID, handles(nvml)[0]) == nvml.NVML_ERROR_FUNCTION_NOT_FOUND


def test_an_old_driver_knows_fewer_profiles_and_names_mig_devices_otherwise(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", a100_40(1, "450.248.02"))
    stub.set_mig(0, enabled=True)
    with session(stub.library) as nvml:
        gpu = handles(nvml)[0]
        codes = [refusal(nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, index, 1) for index in range(6)]
        assert codes == [0, 0, 0, 0, 0, nvml.NVML_ERROR_INVALID_ARGUMENT]
        instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
        device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        uuid = nvml.nvmlDeviceGetUUID(device)
        assert uuid == f"MIG-{stub.node.gpus[0].uuid}/2/0"
        assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)) == 0


def test_functions_that_do_not_exist_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="nvmlNo"):
        build(["nvmlNo"])


def test_a_driver_comes_goes_and_changes(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(2).without_driver())
    library = stub.install(tmp_path / "root")
    assert library == tmp_path / "root/usr/lib" / MULTIARCH / "libnvidia-ml.so.1"
    nvml = pynvml
    with pytest.raises(nvml.NVMLError_DriverNotLoaded), session(library):
        pass
    stub.become(h100(2))
    with session(library) as nvml:
        assert nvml.nvmlDeviceGetCount() == 2
        stub.become(h100(3))
        assert nvml.nvmlDeviceGetCount() == 2
    with session(library) as nvml:
        assert nvml.nvmlDeviceGetCount() == 3
    stub.become(h100(3).without_driver(18))
    with pytest.raises(nvml.NVMLError_LibRmVersionMismatch), session(library):
        pass


def test_sessions_are_counted_and_old_handles_refused(tmp_path: Path) -> None:
    with session(Stub(tmp_path / "stub", h100(1)).library) as nvml:
        nvml.nvmlInit()
        gpu = handles(nvml)[0]
        nvml.nvmlShutdown()
        assert nvml.nvmlDeviceGetIndex(gpu) == 0
        nvml.nvmlShutdown()
        assert refusal(nvml.nvmlDeviceGetIndex, gpu) == nvml.NVML_ERROR_UNINITIALIZED
        assert refusal(nvml.nvmlShutdown) == nvml.NVML_ERROR_UNINITIALIZED
        nvml.nvmlInit()
        assert refusal(nvml.nvmlDeviceGetIndex, gpu) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_two_driver_roots_are_two_machines(tmp_path: Path) -> None:
    one = Stub(tmp_path / "one", h100(1)).install(tmp_path / "root-1")
    other = Stub(tmp_path / "other", t4(2)).install(tmp_path / "root-2", "usr/lib64")
    with session(one) as nvml:
        assert nvml.nvmlDeviceGetName(handles(nvml)[0]) == "NVIDIA H100 80GB HBM3"
    with session(other) as nvml:
        assert [nvml.nvmlDeviceGetName(gpu) for gpu in handles(nvml)] == ["Tesla T4", "Tesla T4"]
