"""What was changed of GPUs for claims before a reboot: gone with it, and what stands there now is left alone."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpumachine import GpuMachine, at_work, build, machine
from gpunode import GpuNode
from gputools import GpuTools
from nvmlclients import Operator
from nvmlnodes import a100_80, h100
from pcibus import Bus

GPU, AMPERE = "gpu-0000-1b-00-0", "gpu-0000-07-00-0"
FIRST = "0000:1b:00.0"
RUN = "run/dradriver-gpu"
MODE_ON: dict[str, Any] = {"mode": "partitions"}
SWITCH: dict[str, Any] = {"mode": "partitions", "migMode": "switch"}

wiping = pytest.mark.parametrize("wiped", [True, False], ids=["wiped", "kept"])
"""/run is empty after a reboot; a directory elsewhere, which the options may name, is not."""


def boot(gpus: GpuNode, wiped: bool) -> None:
    """Start the machine anew, whose daemon has ended."""
    gpus.stub.reboot()
    gpus.tree.write("proc/sys/kernel/random/boot_id", "boot-2")
    if wiped:
        shutil.rmtree(gpus.host.path(RUN), ignore_errors=True)


@contextmanager
def started_again(made: GpuMachine, options: Mapping[str, Any]) -> Iterator[GpuMachine]:
    """Give the engine of the daemon that starts after the reboot, which has undone all claims."""
    with machine(made.root, **options) as again:
        assert again.journal.records() == []
        assert not list(again.gpu.host.path(RUN).glob("settings/*"))
        yield again


@wiping
def test_an_instance_that_somebody_made_in_the_place_of_ours_stands(tmp_path: Path, wiped: bool) -> None:
    part = f"{AMPERE}-mig-2g-20gb-4"
    with at_work(tmp_path, a100_80(1), **MODE_ON) as (gpus, made):
        claim = made.prepared("a", part)
        (ours,) = gpus.stub.state()[0].gpu_instances
        made.close()
        boot(gpus, wiped)
        number = Operator(gpus.stub).create(0, ours.profile, ours.start, compute_profile=1)
        assert number == ours.id
        with started_again(made, MODE_ON) as again:
            assert [one.id for one in gpus.stub.state()[0].gpu_instances] == [number]
            assert again.gpu.owned.places == frozenset()
            assert part not in again.devices
            Operator(gpus.stub).destroy(0, number)
            again.refresh()
            assert not isinstance(again.prepare(claim), str)


@wiping
def test_mig_mode_that_was_switched_at_boot_stays(tmp_path: Path, wiped: bool) -> None:
    with at_work(tmp_path, h100(1), mig=False, **SWITCH) as (gpus, made):
        made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        made.close()
        boot(gpus, wiped)
        assert not gpus.stub.state()[0].mig
        gpus.stub.set_mig(0, enabled=True)
        with started_again(made, SWITCH):
            assert gpus.stub.state()[0].mig


@wiping
def test_a_mode_that_was_set_at_boot_stays(tmp_path: Path, wiped: bool) -> None:
    options = {"mpsLauncher": "process"}
    gpus = build(tmp_path, h100(2))
    tools = GpuTools(gpus.directory)
    with machine(tmp_path, **options) as made:
        made.prepared("a", GPU, config={"sharing": {"exclusive": True}})
        made.prepared("b", "gpu-0000-43-00-0", config={"sharing": {"timeSlicing": {"interval": "Long"}}})
        made.close()
        boot(gpus, wiped)
        with made.gpu.nvml.session() as session:
            pynvml.nvmlDeviceSetComputeMode(session.gpu(FIRST), pynvml.NVML_COMPUTEMODE_PROHIBITED)
        slices = tools.state / f"timeslice-{gpus.stub.node.gpus[1].uuid}"
        slices.write_text("1")
        calls = len(tools.calls("nvidia-smi"))
        with started_again(made, options):
            assert gpus.stub.state()[0].compute_mode == pynvml.NVML_COMPUTEMODE_PROHIBITED
            assert len(tools.calls("nvidia-smi")) == calls


@wiping
def test_a_control_daemon_is_ended_by_the_reboot_only(tmp_path: Path, wiped: bool) -> None:
    options = {"mpsLauncher": "process"}
    gpus = build(tmp_path, h100(1))
    tools = GpuTools(gpus.directory)
    with machine(tmp_path, **options) as made:
        claim = made.prepared("a", GPU, config={"sharing": {"mps": {}}})
        made.close()
        tools.kill()
        boot(gpus, wiped)
        commands = tools.commands()
        with started_again(made, options) as again:
            assert tools.commands() == commands
            assert not isinstance(again.prepare(claim), str)
            again.undone(claim)
        tools.kill()


def test_a_gpu_keeps_the_driver_that_it_has_after_the_reboot(tmp_path: Path) -> None:
    """Even where the one that it had is not loaded."""
    options: dict[str, Any] = {"passthrough": True, "mode": "whole"}
    gpus = build(tmp_path, h100(2))
    with Bus(gpus).serving() as bus, machine(tmp_path, **options) as made:
        made.prepared("vm", f"{GPU}-vfio")
        assert bus.driver(FIRST) == "vfio-pci"
        made.close()
        boot(gpus, wiped=True)
        log = list(bus.log)
        shutil.rmtree(gpus.directory / "sys/bus/pci/drivers/nvidia")
        with started_again(made, options):
            assert (bus.log, bus.driver(FIRST)) == (log, "vfio-pci")
