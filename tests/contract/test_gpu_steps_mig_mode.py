"""MIG mode switched for claims, where that takes no reset, and put back behind the last of them."""

import time
from pathlib import Path
from typing import Any

import pynvml

from gpumachine import at_work
from nvmlclients import Operator
from nvmlnodes import a100_80, h100

GPU, AMPERE = "gpu-0000-1b-00-0", "gpu-0000-07-00-0"
MODE_ON: dict[str, Any] = {"mode": "partitions"}
SWITCH: dict[str, Any] = {"mode": "partitions", "migMode": "switch"}


def test_mig_mode_goes_on_with_the_first_partition_and_off_with_the_last(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), mig=False, **SWITCH) as (gpus, made):
        before = gpus.stub.state()
        first = made.prepared("first", f"{GPU}-mig-2g-20gb-4")
        second = made.prepared("second", f"{GPU}-mig-1g-10gb-0")
        made.undone(first)
        assert gpus.stub.state()[0].mig
        made.undone(second)
        assert gpus.stub.state() == before


def test_mig_mode_that_was_on_stays_on(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **SWITCH) as (gpus, made):
        made.undone(made.prepared("a", f"{GPU}-mig-2g-20gb-4"))
        assert gpus.stub.state()[0].mig


def test_mig_mode_is_off_for_a_whole_gpu_and_then_on_again(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **SWITCH) as (gpus, made):
        claim = made.prepared("a", GPU)
        assert made.steps(claim) == [f"switch MIG mode of {GPU} off"]
        assert not gpus.stub.state()[0].mig
        made.undone(claim)
        assert gpus.stub.state()[0].mig


def test_mig_mode_stays_where_somebody_made_instances_meanwhile(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), mig=False, **SWITCH) as (gpus, made):
        claim = made.prepared("a", f"{GPU}-mig-2g-20gb-4")
        number = Operator(gpus.stub).create(0, 19, 0)
        made.undone(claim)
        state = gpus.stub.state()[0]
        assert state.mig
        assert len(state.gpu_instances) == 1
        Operator(gpus.stub).destroy(0, number)
        made.refresh()
        made.undone(made.prepared("b", f"{GPU}-mig-2g-20gb-4"))
        assert not gpus.stub.state()[0].mig, "as it was before the first of ours"


def test_mig_mode_that_needs_a_reset_is_a_clear_error_and_nothing_stays_pending(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), mig=False, **SWITCH) as (gpus, made):
        before = gpus.stub.state()
        gpus.stub.change(0, mig_activation=pynvml.NVML_ERROR_RESET_REQUIRED)
        reason = made.refusal("a", f"{GPU}-mig-2g-20gb-4")
        assert "needs a reset of the GPU, which is not done unasked" in reason
        assert gpus.stub.state() == before


def test_mig_mode_of_a_gpu_in_use_is_tried_again_and_nothing_stays_pending(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), mig=False, **SWITCH) as (gpus, made):
        before = gpus.stub.state()
        gpus.stub.change(0, busy=1)
        began = time.monotonic()
        reason = made.refusal("a", f"{GPU}-mig-2g-20gb-4", seconds=3.0)
        assert "MIG mode cannot be switched on: the GPU is in use" in reason
        assert time.monotonic() - began > 0.2
        assert gpus.stub.state() == before
        gpus.stub.change(0, busy=None)
        made.prepared("b", f"{GPU}-mig-2g-20gb-4")


def test_without_leave_to_switch_a_gpu_is_offered_as_it_stands(tmp_path: Path) -> None:
    with at_work(tmp_path, h100(1), **MODE_ON) as (gpus, made):
        gpus.stub.set_mig(0, enabled=False)
        reason = made.refusal("a", f"{GPU}-mig-2g-20gb-4")
        assert f"MIG mode of {GPU} is off" in reason
        made.refresh()
        assert list(made.devices) == [GPU]


def test_an_ampere_keeps_its_mode(tmp_path: Path) -> None:
    with at_work(tmp_path, a100_80(1), **SWITCH) as (gpus, made):
        assert AMPERE not in made.devices
        claim = made.prepared("a", f"{AMPERE}-mig-3g-40gb-4")
        assert made.steps(claim) == [f"create 3g.40gb at memory slice 4 of {AMPERE}"]
        made.undone(claim)
        assert gpus.stub.state()[0].mig
