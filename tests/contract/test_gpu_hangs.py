"""Calls of NVML that hang: at one GPU the others are published, heard and given out; at the driver it is told so."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import nvmlnodes
from dradriver.backend import UnavailableError
from dradriver.model import Health
from dradriver_gpu import nvml, probe
from gpumachine import at_work
from gpunode import GpuNode
from gpuwatch import watching
from nvmlstub import Fault
from waiting import PATIENCE, eventually

SECONDS = 2
"""Long enough for a busy machine to answer in."""

FIRST, SECOND, THIRD = "gpu-0000-1b-00-0", "gpu-0000-43-00-0", "gpu-0000-52-00-0"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "GPU_SECONDS", SECONDS)
    monkeypatch.setattr(nvml, "PATIENCE_SECONDS", SECONDS)


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
            assert content.devices[1].health_message == f"NVML: it did not answer within {SECONDS} s"
            began = time.monotonic()
            for _ in range(4):
                watched.content()
            assert time.monotonic() - began < 4 * SECONDS, "it is not waited for again"
        watched.wait("a GPU answers again")
        assert not watched.taints()


def test_a_gpu_that_hangs_from_the_start_keeps_no_other_from_being_published(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    with node.backend({"mode": "whole"}) as backend, node.stub.hanging("nvmlDeviceGetPciInfo_v3", index=1):
        inventory = backend.probe()
        assert [device.name for device in backend.devices(inventory).devices] == [FIRST, THIRD]
        assert inventory.warnings == (
            f"the GPU at 0000:43:00.0 is left out: NVML: it did not answer within {SECONDS} s",
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


# --- the driver as a whole

LIBRARY = r"libnvidia-ml\.so\.580\.65\.06"


def test_a_driver_whose_start_hangs_is_told_of_and_served_once_it_answers(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with node.backend({"mode": "whole"}) as backend:
        with node.stub.hanging("nvmlInitWithFlags"):
            expected = f"the NVIDIA driver hangs: .*{LIBRARY}: nvmlInit did not return within {SECONDS} s"
            with pytest.raises(UnavailableError, match=expected):
                backend.probe()
            began = time.monotonic()
            for _ in range(4):
                with pytest.raises(UnavailableError, match=expected):
                    backend.probe()
                with pytest.raises(UnavailableError, match="nvmlInit did not return"), backend.nvml.session():
                    pass
                with pytest.raises(UnavailableError, match="nvmlInit did not return"), backend.nvml.closed():
                    pass
            assert time.monotonic() - began < 12 * SECONDS, "it is not waited for again"
        eventually(lambda: _reads(backend.probe), "it is read")
        assert len(backend.devices(backend.probe()).devices) == 2


def test_a_claim_is_refused_in_words_while_the_start_of_the_driver_hangs(tmp_path: Path) -> None:
    with at_work(tmp_path, nvmlnodes.h100(2), mig=False, mode="whole", closeWhenIdle=True) as (gpus, made):
        with gpus.stub.hanging("nvmlInitWithFlags"):
            assert f"nvmlInit did not return within {SECONDS} s" in made.refusal("a", FIRST)
            with pytest.raises(UnavailableError, match=r"the NVIDIA driver hangs: .*nvmlInit did not return"):
                made.gpu.probe()
        eventually(lambda: not isinstance(made.prepare(made.claim("b", FIRST)), str), "it is given out")


def test_the_watch_and_the_end_are_not_held_up_by_a_driver_whose_start_hangs(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    stop = threading.Event()
    with node.stub.hanging("nvmlInitWithFlags"), node.backend() as backend:
        thread = threading.Thread(target=backend.watch, args=(stop, lambda _why: None), daemon=True)
        thread.start()
        assert not _reads(backend.probe)
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    with node.backend() as backend:
        eventually(lambda: _reads(backend.probe), "it is read")
    with watching(node) as watched:
        node.stub.xid(1, 95)
        watched.wait(f"{SECOND}: XID 95")


def test_a_driver_whose_end_hangs_is_told_of_and_opened_again_once_it_has_ended(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with node.backend({"mode": "whole", "closeWhenIdle": True}) as backend:
        with node.stub.hanging("nvmlShutdown"):
            assert len(backend.probe().gpus) == 2
            with pytest.raises(
                UnavailableError, match=f"{LIBRARY}: nvmlShutdown did not return within {SECONDS} s"
            ):
                backend.probe()
            with pytest.raises(UnavailableError, match="nvmlShutdown did not return"), backend.nvml.closed():
                pass
        eventually(lambda: _reads(backend.probe), "it is read again")


@pytest.mark.parametrize("function", ["nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2"])
def test_a_driver_that_does_not_answer_is_told_of_and_read_once_it_answers(
    tmp_path: Path, function: str
) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with watching(node, {"mode": "whole"}) as watched:
        with node.stub.hanging(function):
            expected = f"the NVIDIA driver hangs: .*{LIBRARY}: nothing was answered within {SECONDS} s"
            with pytest.raises(UnavailableError, match=expected):
                watched.content()
            began = time.monotonic()
            for _ in range(6):
                with pytest.raises(UnavailableError, match=expected):
                    watched.content()
            assert time.monotonic() - began < 6 * SECONDS, "it is not waited for again"
            node.stub.xid(1, 95)
            watched.wait(f"{SECOND}: XID 95")
        watched.wait("the driver answers again")
        assert list(watched.taints()) == [SECOND]


def test_threads_that_come_while_the_start_hangs_are_told_with_the_first_one(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    told: list[str] = []

    def enter() -> None:
        try:
            with backend.nvml.session():
                pass
        except UnavailableError as error:
            told.append(str(error))

    with node.backend() as backend:
        node.stub.record()
        with node.stub.hanging("nvmlInitWithFlags"):
            threads = [threading.Thread(target=enter, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
            assert len(told) == 4
            assert all(f"did not return within {SECONDS} s" in text for text in told)
            begun = [call for call in node.stub.calls() if call.function == "nvmlInitWithFlags"]
            assert len(begun) == 1, "they wait together"
        eventually(lambda: _reads(backend.probe), "it is read")


def _reads(probe: Callable[[], object]) -> bool:
    try:
        probe()
    except UnavailableError:
        return False
    return True
