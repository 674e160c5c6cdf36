"""A driver that is absent, comes late, is half there, is replaced or goes; and GPUs that come and go on the PCI bus."""

import threading
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

import nvmlnodes
from dradriver.backend import UnavailableError
from dradriver_gpu import GpuBackend
from dradriver_gpu.inventory import DriverState, GPUInventory
from gpunode import GpuNode
from nvmlbuild import LIBRARY
from nvmlfacts import Node, under_driver
from nvmlstub import MULTIARCH, Fault
from waiting import PATIENCE

UNKNOWN, LOST, RESET = (
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
)


# --- the driver root


@pytest.mark.parametrize(
    ("root", "directory"),
    [
        ("/", f"usr/lib/{MULTIARCH}"),
        ("/", "usr/lib64"),
        ("/run/nvidia/driver", f"usr/lib/{MULTIARCH}"),
        ("/home/kubernetes/bin/nvidia", "lib64"),
        ("/", f"usr/lib/{MULTIARCH}/nvidia/current"),
    ],
)
def test_the_library_is_found_below_the_driver_root(tmp_path: Path, root: str, directory: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.t4(1), root=root, driver=False)
    node.stub.install(node.directory / root.strip("/"), directory)
    with node.backend() as backend:
        inventory = backend.probe()
    assert (
        inventory.driver.library == node.directory / root.strip("/") / directory / "libnvidia-ml.so.580.65.06"
    )
    assert inventory.driver.root == root
    assert len(inventory.gpus) == 1


def test_links_are_followed_inside_the_driver_root(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.t4(1), root="/run/nvidia/driver", driver=False)
    root = node.directory / "run/nvidia/driver"
    link = node.stub.install(root, "opt/nvidia")
    link.unlink()
    (root / "usr/lib64").mkdir(parents=True)
    (root / "usr/lib64/libnvidia-ml.so.1").symlink_to("/opt/nvidia/libnvidia-ml.so.580.65.06")
    with node.backend() as backend:
        assert len(backend.probe().gpus) == 1


def test_a_library_that_does_not_load_is_passed_over_for_one_that_does(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.t4(1))
    node.tree.write("usr/lib64/libnvidia-ml.so.1", "no ELF file")
    node.tree.write("lib64/libnvidia-ml.so.1", "no ELF file")
    with node.backend() as backend:
        assert len(backend.probe().gpus) == 1


# --- states


def test_without_a_driver_there_are_no_gpus_and_a_note(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2), driver=False)
    with node.backend() as backend:
        inventory = backend.probe()
        content = backend.devices(inventory)
    assert inventory.driver.state is DriverState.ABSENT
    assert not content.devices
    assert not content.warnings
    assert content.notes == (f"no NVIDIA driver: no libnvidia-ml.so.1 below {node.directory}",)


def test_a_driver_that_is_installed_later_is_found(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2), root="/run/nvidia/driver", driver=False)
    with node.backend() as backend:
        assert not backend.probe().gpus
        node.install()
        inventory = backend.probe()  # the stub answers without a module; a real driver would not
        assert len(inventory.gpus) == 2


def test_a_half_installed_driver_is_a_state_with_a_warning(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2), driver=False)
    with node.backend() as backend:
        node.tree.write("sys/module/nvidia/version", "580.65.06")
        inventory = backend.probe()
        assert inventory.driver.state is DriverState.PARTIAL
        assert inventory.warnings[0] == (
            f"the kernel module of NVIDIA driver 580.65.06 is loaded, but there is no {LIBRARY} below "
            f"{node.directory} (option driverRoot)"
        )

        node.tree.remove("sys/module/nvidia/version")
        broken = node.tree.write("usr/lib64/libnvidia-ml.so.1", "no ELF file").root
        inventory = backend.probe()
        assert inventory.driver.state is DriverState.PARTIAL
        assert "invalid ELF header" in inventory.driver.reason or "file too short" in inventory.driver.reason
        (broken / "usr/lib64/libnvidia-ml.so.1").unlink()

        (node.directory / "usr/lib64/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.65.06")
        assert backend.probe().driver.state is DriverState.ABSENT, "the link leads nowhere"

        node.stub.become(node.stub.node.having(init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
        node.install()
        inventory = backend.probe()
        assert inventory.driver.state is DriverState.PARTIAL
        assert inventory.driver.reason.endswith("Driver Not Loaded (no kernel module is loaded)")
        node.tree.write("sys/module/nvidia/version", "570.86.15")
        node.stub.become(node.stub.node.having(init_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))
        assert backend.probe().driver.reason.endswith("version mismatch. (kernel module 570.86.15)")
        node.stub.become(node.stub.node.having(init_error=UNKNOWN))
        assert backend.probe().driver.reason.endswith("Unknown Error (kernel module 570.86.15)")

        node.stub.become(node.stub.node.having(init_error=None))
        assert len(backend.probe().gpus) == 2


@pytest.mark.parametrize("function", ["nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2"])
def test_a_driver_that_does_not_even_count_its_gpus_is_half_there(tmp_path: Path, function: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    node.stub.fail(function, UNKNOWN, count=2)
    with node.backend() as backend:
        assert backend.probe().driver.state is DriverState.PARTIAL
        assert backend.probe().warnings[0].endswith(": Unknown Error")
        assert len(backend.probe().gpus) == 2
        node.stub.fail(function, UNKNOWN)
        with pytest.raises(UnavailableError, match=r"was here and is not now: nvml.*: Unknown Error"):
            backend.probe()


def test_a_driver_without_gpus_is_ready(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, Node("580.65.06", ()))
    with node.backend() as backend:
        inventory = backend.probe()
    assert inventory.driver.state is DriverState.READY
    assert not inventory.gpus


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, UNKNOWN]
)
def test_a_driver_that_goes_away_is_unavailable_until_it_is_back(tmp_path: Path, code: int) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with node.backend() as backend:
        assert len(backend.probe().gpus) == 2
        well = node.stub.node
        node.stub.become(well.having(init_error=code))
        node.stub.faults(Fault("nvmlSystemGetDriverVersion", "fail", str(pynvml.NVML_ERROR_UNINITIALIZED)))
        for _ in range(2):
            with pytest.raises(UnavailableError, match="the NVIDIA driver was here and is not now"):
                backend.probe()
        node.stub.become(well)
        assert len(backend.probe().gpus) == 2


def test_a_driver_that_is_taken_away_is_unavailable(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with node.backend() as backend:
        backend.probe()
        node.unload()
        node.remove()
        with pytest.raises(UnavailableError, match=r"is not now: no NVIDIA driver: no libnvidia-ml\.so\.1"):
            backend.probe()
        node.load()
        assert len(backend.probe().gpus) == 2


@pytest.mark.parametrize("close", [True, False])
def test_a_driver_that_is_replaced_is_opened_anew(tmp_path: Path, close: bool) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2, "550.54.15"))
    with node.backend({"closeWhenIdle": close}) as backend:
        assert backend.probe().driver.version == "550.54.15"
        node.unload()
        node.remove()
        node.stub.become(under_driver(nvmlnodes.h100(2), "595.58.03"))
        node.load()
        inventory = backend.probe()
        assert (inventory.driver.version, inventory.driver.cuda) == ("595.58.03", (13, 2))
        assert inventory.driver.library
        assert inventory.driver.library.name == "libnvidia-ml.so.595.58.03"
        assert inventory.gpus[0].event_types == 0xFF9F


def test_a_file_in_the_place_of_the_library_is_opened_anew(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(1), missing={"nvmlDeviceGetBrand"})
    with node.backend() as backend:
        assert backend.probe().gpus[0].brand is None
        library = node.directory / f"usr/lib/{MULTIARCH}/libnvidia-ml.so.580.65.06"
        other = GpuNode(tmp_path / "other", nvmlnodes.h100(1))
        new = other.directory / f"usr/lib/{MULTIARCH}/libnvidia-ml.so.580.65.06"
        new.rename(library)
        backend._prober._fixed.clear()
        assert backend.probe().gpus[0].brand == "Nvidia"


def test_nvml_is_shut_down_when_it_is_idle_where_that_is_wanted(tmp_path: Path) -> None:
    for close in (True, False):
        node = GpuNode(tmp_path / str(close), nvmlnodes.h100(1))
        node.stub.record()
        with node.backend({"closeWhenIdle": close}) as backend:
            backend.probe()
            backend.probe()
            functions = [call.function for call in node.stub.calls()]
            assert functions.count("nvmlInitWithFlags") == (2 if close else 1)
            assert functions.count("nvmlShutdown") == (2 if close else 0)
        assert [call.function for call in node.stub.calls()][-1] == "nvmlShutdown"


# --- the bus


def test_a_gpu_that_is_taken_off_the_bus_is_lost(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    with node.backend() as backend:
        backend.probe()
        full = node.stub.node
        node.stub.become(replace(full, gpus=(full.gpus[0], full.gpus[2])))
        node.unplug("0000:43:00.0")
        inventory = backend.probe()
        assert [found.lost for found in inventory.gpus] == [False, True, False]
        assert inventory.gpus[1].fault == "it is off the PCI bus"
        assert inventory.warnings == ("the GPU at 0000:43:00.0 is gone",)

        node.stub.become(full)
        node.plug(full.gpus[1])
        node.bind("0000:43:00.0", "nvidia")
        inventory = backend.probe()
        assert len(inventory.gpus) == 3
        assert not inventory.warnings


def test_a_gpu_that_is_unbound_is_unhealthy_and_one_that_never_was_bound_is_left_out(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    full = node.stub.node
    node.stub.become(replace(full, gpus=full.gpus[:2]))
    node.bind("0000:52:00.0", "nouveau")
    with node.backend() as backend:
        inventory = backend.probe()
        assert inventory.notes == (
            "the GPU at 0000:52:00.0 is left out: it is bound to the driver 'nouveau', and not shown by NVML",
        )
        node.stub.become(replace(full, gpus=full.gpus[:1]))
        node.unbind("0000:43:00.0")
        inventory = backend.probe()
        assert inventory.gpus[1].fault == "it is bound to no driver"


def test_a_gpu_that_is_passed_through_is_known_from_the_bus(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with node.backend({"passthrough": True}) as backend:
        before = backend.devices(backend.probe())
        assert [device.attributes["type"] for device in before.devices] == ["gpu", "vfio"] * 2
        full = node.stub.node
        node.stub.become(replace(full, gpus=full.gpus[:1]))
        node.bind("0000:43:00.0", "vfio-pci")
        inventory = backend.probe()
        assert not inventory.gpus[1].visible
        assert not inventory.gpus[1].fault
        assert [device.name for device in backend.devices(inventory).devices] == [
            device.name for device in before.devices
        ]
        assert backend.devices(inventory) == before
    with node.backend({"passthrough": True}) as after_a_restart:
        content = after_a_restart.devices(after_a_restart.probe())
        assert [device.name for device in content.devices] == [
            "gpu-0000-1b-00-0", "gpu-0000-1b-00-0-vfio", "gpu-0000-43-00-0-vfio"
        ]  # fmt: skip
        assert content.devices[2].attributes["deviceID"] == "0x2330"
    with node.backend() as no_passthrough:
        content = no_passthrough.devices(no_passthrough.probe())
        assert [device.name for device in content.devices] == ["gpu-0000-1b-00-0"]
        assert content.notes == ("gpu-0000-43-00-0 is not offered: it is bound to vfio-pci",)


def test_gpus_of_no_driver_can_be_passed_through_without_one(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2), driver=False)
    for known in node.stub.node.gpus:
        node.bind(known.bus_id, "vfio-pci")
    with node.backend({"mode": "passthrough"}) as backend:
        content = backend.devices(backend.probe())
    assert [device.name for device in content.devices] == ["gpu-0000-1b-00-0-vfio", "gpu-0000-43-00-0-vfio"]
    assert not content.counter_sets


def test_a_host_without_a_pci_bus_keeps_a_lost_gpu_too(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with node.backend() as backend:
        (node.directory / "sys/bus").rename(node.directory / "sys/no-bus")
        backend.probe()
        node.stub.lose(1)
        assert backend.probe().gpus[1].fault == "nvmlDeviceGetHandleByIndex: GPU is lost"


# --- threads


def test_a_session_of_another_thread_is_told_that_it_is_over(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(1, "550.54.15"))
    with node.backend() as backend:
        ends = threading.Event()
        began = threading.Event()

        def watch(backend: GpuBackend) -> None:
            with backend.nvml.session() as session:
                began.set()
                while not session.is_over and not ends.wait(0.01):
                    pass

        thread = threading.Thread(target=watch, args=(backend,), daemon=True)
        thread.start()
        assert began.wait(PATIENCE)
        backend.probe()
        assert thread.is_alive()
        node.remove()
        node.stub.become(nvmlnodes.h100(1))
        node.load()
        assert backend.probe().driver.version == "580.65.06"
        thread.join(PATIENCE)
        assert not thread.is_alive()
        ends.set()


def test_nvml_is_kept_closed_while_a_gpu_is_taken_from_its_driver(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(1))
    node.stub.record()
    with node.backend() as backend:
        backend.probe()
        with backend.nvml.closed():
            assert node.stub.calls()[-1].function == "nvmlShutdown"
            waits = threading.Thread(target=backend.probe, daemon=True)
            waits.start()
            waits.join(0.1)
            assert waits.is_alive()
        waits.join(PATIENCE)
        assert not waits.is_alive()
        with (
            backend.nvml.session(),
            pytest.raises(UnavailableError, match=r"was not closed within 0\.05 s"),
            backend.nvml.closed(0.05),
        ):
            pytest.fail("it is in use")
        assert node.stub.calls()[-1].function == "nvmlShutdown"


def test_many_threads_probe_at_once(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(8))
    with node.backend({"closeWhenIdle": True}) as backend:
        found: list[GPUInventory] = []
        threads = [threading.Thread(target=lambda: found.append(backend.probe())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(found) == 8
        assert all(inventory == found[0] for inventory in found)
