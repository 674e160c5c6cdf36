"""Calls of NVML that hang at one GPU: the others are published, heard and given out."""

import time
from pathlib import Path

import pytest

import nvmlnodes
from dradriver.backend import UnavailableError
from dradriver.model import Health
from dradriver_gpu import probe
from gpunode import GpuNode
from gpuwatch import watching
from nvmlstub import Fault
from waiting import eventually

FIRST, SECOND, THIRD = "gpu-0000-1b-00-0", "gpu-0000-43-00-0", "gpu-0000-52-00-0"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "GPU_SECONDS", 0.5)


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetTotalEccErrors",
    ],
)
def test_a_gpu_that_hangs_is_unhealthy_alone_until_it_answers(tmp_path: Path, function: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    with watching(node, {"mode": "whole"}) as watched:
        with node.stub.hanging(function, index=1):
            content = watched.content()
            assert [device.health for device in content.devices] == [
                Health.HEALTHY, Health.UNHEALTHY, Health.HEALTHY
            ]  # fmt: skip
            assert content.devices[1].health_message == "NVML: it did not answer within 0.5 s"
            began = time.monotonic()
            watched.content()
            assert time.monotonic() - began < 0.4, "it is not waited for again"
        watched.wait("a GPU answers again")
        assert not watched.taints()


def test_a_gpu_that_hangs_from_the_start_keeps_no_other_from_being_published(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    with node.backend({"mode": "whole"}) as backend, node.stub.hanging("nvmlDeviceGetPciInfo_v3", index=1):
        inventory = backend.probe()
        assert [device.name for device in backend.devices(inventory).devices] == [FIRST, THIRD]
        assert inventory.warnings == (
            "the GPU at 0000:43:00.0 is left out: NVML: it did not answer within 0.5 s",
        )


def test_the_library_is_not_closed_under_a_gpu_that_hangs(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with node.backend({"mode": "whole", "closeWhenIdle": True}) as backend:
        node.stub.record()
        with node.stub.hanging("nvmlDeviceGetUUID", index=1):
            backend.probe()
            with pytest.raises(UnavailableError, match="NVML is in use"), backend.nvml.closed(0.2):
                pass
            assert not [call for call in node.stub.calls() if call.function == "nvmlShutdown"]
        eventually(
            lambda: [call for call in node.stub.calls() if call.function == "nvmlShutdown"],
            "it is closed behind it",
        )


@pytest.mark.parametrize("function", ["nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"])
def test_a_gpu_that_hangs_keeps_no_other_from_being_heard(tmp_path: Path, function: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    with node.backend() as first:
        first.probe()
    with node.stub.hanging(function, index=1), watching(node) as watched:
        node.stub.xid(2, 95)
        watched.wait(f"{THIRD}: XID 95")
    with watching(node) as watched:
        with node.stub.hanging(function, index=1):
            node.stub.lose(0)
            watched.wait(f"{FIRST} lost")
            node.stub.xid(2, 95)
            watched.wait(f"{THIRD}: XID 95")
        watched.wait("GPU 1 answers again")
        node.stub.xid(1, 95)
        watched.wait(f"{SECOND}: XID 95")


def test_which_gpu_is_lost_is_found_though_another_hangs(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    with watching(node) as watched, node.stub.hanging("nvmlDeviceGetMemoryInfo", index=1):
        node.stub.lose(0)
        watched.wait(f"{FIRST} ")
        node.stub.xid(2, 95)
        watched.wait(f"{THIRD}: XID 95")


def test_a_gpu_that_is_lost_while_the_set_is_made_anew_is_told(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    with watching(node) as watched:
        node.stub.faults(Fault("nvmlEventSetCreate", "sleep", "500"))
        node.stub.change(0, lost=1)
        time.sleep(0.25)
        node.stub.change(1, lost=1)
        watched.wait(f"{FIRST} lost")
        watched.wait(f"{SECOND} lost")
