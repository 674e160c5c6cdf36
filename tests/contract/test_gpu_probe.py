"""What probing finds on the stub driver: all facts under drivers old and new, and GPUs that fail alone."""

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

import nvmlnodes
from dradriver.model import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, PCIE_SWITCH, SOCKET_ID, Health, Version
from dradriver_gpu.inventory import DriverState, Fabric, MigMode, Passthrough, RemappedRows
from gpunode import GpuNode
from hosttree import two_sockets
from nvmlbuild import functions
from nvmlclients import Operator

UNKNOWN, LOST, RESET = (
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
)


# --- facts


def test_everything_is_read_of_a_gpu(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.gb200(4))
    with node.backend() as backend:
        inventory = backend.probe()
    driver = inventory.driver
    assert (driver.state, driver.version, driver.cuda, driver.root) == (
        DriverState.READY, "580.65.06", (13, 0), "/"
    )  # fmt: skip
    assert driver.library
    assert driver.library.name == "libnvidia-ml.so.580.65.06"
    found, facts = inventory.gpus[1], node.stub.node.gpus[1].facts
    assert len(inventory.gpus) == 4
    assert found.name == "gpu-0009-01-00-0"
    assert (found.address, found.uuid, found.index, found.minor) == ("0009:01:00.0", facts["uuid"], 1, 1)
    assert (found.product, found.brand, found.architecture) == ("NVIDIA GB200", "Nvidia", "Blackwell")
    assert (found.compute_capability, found.memory_bytes) == ((10, 0), 189471 << 20)
    assert found.mig == MigMode(enabled=False, pending=False, switchable=True)
    assert found.geometry
    assert [profile.name for profile in found.geometry.profiles] == [
        "1g.23gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb", "1g.23gb+me", "1g.47gb"
    ]  # fmt: skip
    assert found.fabric == Fabric(str(facts["fabric-cluster"]), 1)
    assert (found.module_id, found.memory_node, found.addressing) == (2, facts["memory-numa-node"], "ATS")
    assert (found.virtualization, found.compute_mode, found.recovery) == (0, 0, 0)
    assert (found.ecc_enabled, found.ecc_pending) == (True, True)
    assert found.rows == RemappedRows(0, 0, pending=False, failed=False)
    assert found.event_types == facts["event-types"]
    assert found.passthrough == Passthrough("nvidia", 21, 0x10DE, 0x2941)
    assert not inventory.notes
    assert not inventory.warnings


def test_the_place_is_that_which_the_kernel_shows(tmp_path: Path) -> None:
    facts = {"pci_path": "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0", "bus_id": "0000:18:00.0"}
    node = GpuNode(tmp_path, nvmlnodes.h200(1).each(numa_node=1, **facts))
    two_sockets(node.directory)
    with node.backend() as backend:
        (device,) = backend.devices(backend.probe()).devices
    assert {name: value for name, value in device.attributes.items() if "/" in name} == {
        PCIE_ROOT: "pci0000:15",
        PCI_BUS_ID: "0000:18:00.0",
        PCIE_SWITCH: "0000:16:00.0",
        NUMA_NODE: 1,
        SOCKET_ID: 1,
    }


def test_an_unknown_numa_node_is_left_out(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h200(1).each(numa_node=-1))
    with node.backend() as backend:
        (device,) = backend.devices(backend.probe()).devices
    assert NUMA_NODE not in device.attributes
    assert SOCKET_ID not in device.attributes


def test_instances_are_read_with_their_compute_instances(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.a100_40(2).each(mig_at_start=1))
    operator = Operator(node.stub)
    whole = operator.create(0, 9, 4, compute_profile=2)
    empty = operator.create(0, 19, 0)
    with node.backend() as backend:
        inventory = backend.probe()
    first, second = inventory.gpus[0].instances
    assert (first.id, first.profile_id, first.start, first.size, first.ours) == (whole, 9, 4, 4, False)
    assert first.placement
    assert first.placement.suffix == "mig-3g-20gb-4"
    (compute,) = first.compute
    assert compute.uuid
    assert compute.uuid.startswith("MIG-")
    assert compute.resources
    assert (compute.resources.multiprocessors, compute.resources.memory_mib) == (
        42,
        19968,
    )
    assert (second.id, second.compute) == (empty, ())
    assert inventory.gpus[0].mig == MigMode(enabled=True, pending=True, switchable=False)
    assert inventory.gpus[1].instances == ()


def test_what_the_fabric_has_not_joined_yet_has_no_clique(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.gb200(1).each(fabric_state=2))
    with node.backend() as backend:
        assert backend.probe().gpus[0].fabric is None
        node.stub.change(0, fabric_state=3)
        inventory = backend.probe()
        assert inventory.gpus[0].fabric == Fabric(str(node.stub.node.gpus[0].facts["fabric-cluster"]), 1)
        (device,) = backend.devices(inventory).devices
        assert str(device.attributes["fabricClique"]).endswith(".1")


# --- drivers


@pytest.mark.parametrize("driver", ["450.51.06", "470.57.02", "535.104.05", "550.54.15", "595.58.03"])
def test_what_old_drivers_do_not_know_is_left_out(tmp_path: Path, driver: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.a100_40(2, driver).each(mig_at_start=1))
    with node.backend({"mode": "partitions"}) as backend:
        inventory = backend.probe()
        content = backend.devices(inventory)
    branch = int(driver[:3])
    found = inventory.gpus[0]
    assert (found.product, found.memory_bytes) == (
        "NVIDIA A100-SXM4-40GB" if branch >= 470 else "A100-SXM4-40GB", 40 << 30
    )  # fmt: skip
    knows_addressing = branch >= functions()["nvmlDeviceGetAddressingMode"]
    assert (found.addressing is not None) == knows_addressing
    assert (found.recovery is None) == (branch < 570)
    assert found.geometry
    assert [profile.name for profile in found.geometry.profiles] == [
        "1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb",
        *(["1g.5gb+me"] if branch >= 470 else []), *(["1g.10gb"] if branch >= 525 else []),
    ]  # fmt: skip
    assert not inventory.warnings
    assert not inventory.notes
    if branch < 460:
        assert not content.devices
        assert content.warnings[0].endswith("the driver cannot create instances at a given place")
        return
    assert len(content.devices) == 2 * {470: 21, 535: 25, 550: 25, 595: 25}[branch]
    assert content.devices[0].attributes["driverVersion"] == {
        470: Version("470.57.2"), 535: Version("535.104.5"), 550: Version("550.54.15"), 595: Version("595.58.3")
    }[branch]  # fmt: skip
    assert ("addressingMode" in content.devices[0].attributes) == knows_addressing


def test_geometry_that_is_told_in_mig_mode_only_is_read_when_it_is_told(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(1, "535.104.05"))
    with node.backend({"mode": "partitions", "migMode": "switch"}) as backend:
        content = backend.devices(backend.probe())
        assert [device.attributes["type"] for device in content.devices] == ["gpu"]
        assert content.warnings == (
            "gpu-0000-1b-00-0 has no partitions: the driver does not tell its MIG profiles while MIG mode is off",
        )
        node.stub.set_mig(0, enabled=True)
        content = backend.devices(backend.probe())
        assert [device.attributes["type"] for device in content.devices] == ["mig"] * 25 + ["gpu"]
        node.stub.set_mig(0, enabled=False)
        assert len(backend.devices(backend.probe()).devices) == 26, "what was told once is known"


def test_a_function_that_a_driver_lacks_costs_its_fact_only(tmp_path: Path) -> None:
    optional = {
        "nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture", "nvmlDeviceGetName", "nvmlDeviceGetModuleId",
        "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetEccMode",
        "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues", "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceGetVirtualizationMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetCudaComputeCapability",
        "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo",
    }  # fmt: skip
    node = GpuNode(tmp_path, nvmlnodes.h100(1), missing=optional)
    with node.backend() as backend:
        inventory = backend.probe()
        content = backend.devices(inventory)
    (device,) = content.devices
    assert {name for name in device.attributes if "/" not in name} == {
        "type", "uuid", "driverVersion", "addressingMode"
    }  # fmt: skip
    assert not device.capacity
    assert not content.notes
    assert not content.warnings


# --- GPUs that fail


def test_a_lost_gpu_is_unhealthy_and_no_other_is(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(8))
    with node.backend({"mode": "partitions", "migMode": "switch"}) as backend:
        before = backend.devices(backend.probe())
        node.stub.lose(3)
        inventory = backend.probe()
        content = backend.devices(inventory)
        assert [device.name for device in content.devices] == [device.name for device in before.devices]
        assert content.counter_sets == before.counter_sets
        sick = [device for device in content.devices if device.health is Health.UNHEALTHY]
        assert {device.thing for device in sick} == {inventory.gpus[3].name}
        assert len(sick) == 26
        assert {device.health_message for device in sick} == {"nvmlDeviceGetHandleByIndex: GPU is lost"}
        node.stub.find(3)
        assert backend.devices(backend.probe()) == before


@pytest.mark.parametrize("code", [LOST, RESET])
@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetPciInfo_v3",
    ],
)
def test_a_gpu_is_lost_whichever_function_says_so(tmp_path: Path, function: str, code: int) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    with node.backend() as backend:
        before = backend.devices(backend.probe())
        backend._prober._fixed.clear()
        node.stub.answer(1, **{function: code})
        after = backend.devices(backend.probe()).devices
        assert [device.health for device in after] == [Health.HEALTHY, Health.UNHEALTHY, Health.HEALTHY]
        assert replace(after[1], health=Health.HEALTHY, health_message="", taints=()) == before.devices[1]
        assert after[1].health_message.startswith(function)


def test_a_gpu_that_was_never_well_is_left_out_with_a_warning(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    node.stub.lose(1)
    with node.backend() as backend:
        inventory = backend.probe()
        assert [found.address for found in inventory.gpus] == ["0000:1b:00.0", "0000:52:00.0"]
        assert inventory.warnings == (
            "the GPU at 0000:43:00.0 is left out: nvmlDeviceGetHandleByIndex: GPU is lost",
        )


@pytest.mark.parametrize("code", [UNKNOWN, pynvml.NVML_ERROR_TIMEOUT, 4711])
def test_an_odd_answer_costs_its_fact_only(tmp_path: Path, code: int) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    node.stub.answer(
        0,
        nvmlDeviceGetName=code,
        nvmlDeviceGetBrand=code,
        nvmlDeviceGetMemoryInfo=code,
        nvmlDeviceGetArchitecture=code,
        nvmlDeviceGetMinorNumber=code,
        nvmlDeviceGetGpuInstanceProfileInfoV=code,
        nvmlDeviceGetFieldValues=code,
        nvmlDeviceGetGpuFabricInfoV=code,
    )
    with node.backend() as backend:
        inventory = backend.probe()
        odd, well = backend.devices(inventory).devices
    assert "productName" not in odd.attributes
    assert odd.attributes["uuid"] == node.stub.node.gpus[0].uuid
    assert odd.health is Health.HEALTHY
    assert well.attributes["productName"] == "NVIDIA H100 80GB HBM3"
    assert any(
        note.startswith("GPU 0000:1b:00.0: Name is not known: nvmlDeviceGetName: ")
        for note in inventory.notes
    )
    assert not any("0000:43:00.0" in note for note in inventory.notes)


@pytest.mark.parametrize(
    "facts",
    [
        {"uuid": "GPU-nonsense"},
        {"uuid": "GPU-\xff\xfe"},
        {"bus_id": "nowhere"},
    ],
)
def test_a_gpu_that_does_not_say_who_it_is_is_left_out(tmp_path: Path, facts: dict[str, str]) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    node.stub.change(1, **facts)
    with node.backend() as backend:
        inventory = backend.probe()
    assert [found.address for found in inventory.gpus] == ["0000:1b:00.0", "0000:52:00.0"]
    assert any("0000:43:00.0 is left out" in warning for warning in inventory.warnings)


def test_a_name_that_is_no_text_is_left_out(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(1).each(name="\xff\xff"))
    node.stub.directory.joinpath("facts").write_bytes(node.stub.node.text().encode("latin-1"))
    with node.backend() as backend:
        inventory = backend.probe()
    assert inventory.gpus[0].product is None
    assert inventory.notes[0].startswith(
        "GPU 0000:1b:00.0: Name is not known: nvmlDeviceGetName: an answer that"
    )


def test_two_gpus_of_one_identity_are_taken_once(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    node.stub.change(2, uuid=node.stub.node.gpus[0].uuid)
    with node.backend() as backend:
        inventory = backend.probe()
    assert [found.address for found in inventory.gpus] == ["0000:1b:00.0", "0000:43:00.0"]
    assert inventory.warnings[0].startswith(
        "gpu-0000-52-00-0 is left out: NVML gives it the UUID of gpu-0000-1b-00-0, GPU-"
    )


def test_an_instance_that_goes_while_it_is_read_fails_nothing(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.a100_40(1).each(mig_at_start=1))
    Operator(node.stub).create(0, 19, 0, compute_profile=0)
    with node.backend() as backend:
        node.stub.fail("nvmlGpuInstanceGetInfo", pynvml.NVML_ERROR_INVALID_ARGUMENT)
        inventory = backend.probe()
        assert len(inventory.gpus[0].instances) == 1
        assert inventory.gpus[0].fault == ""
        node.stub.fail("nvmlGpuInstanceGetInfo", UNKNOWN, count=0)
        assert backend.probe().gpus[0].fault == "nvmlGpuInstanceGetInfo: Unknown Error"
