"""GPUs that others change behind the daemon's back: nothing is given out twice, and no claim gets another one's GPU."""

from pathlib import Path

import pytest

import nvmlnodes
from dradriver.claims import ClaimError
from gpumachine import DRIVER, GpuMachine, at_work
from gpunode import GpuNode
from nvmlclients import Operator

FIRST, SECOND = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"


def mig_device(gpus: GpuNode, made: GpuMachine) -> str:
    """Have MIG mode on and an instance made from outside; return its device."""
    gpus.stub.set_mig(0, enabled=True)
    Operator(gpus.stub).create(0, 19, 0, compute_profile=0)
    made.refresh()
    return next(name for name in made.devices if name.startswith(f"{FIRST}-mig-"))


def test_the_mig_devices_of_a_gpu_that_a_claim_has_whole_are_refused(tmp_path: Path) -> None:
    with at_work(tmp_path, nvmlnodes.h100(2), mig=False, mode="static") as (gpus, made):
        whole = made.prepared("a", FIRST)
        part = mig_device(gpus, made)
        assert "its GPU is held by claim default/a" in made.refusal("b", part)
        made.prepared("look", part, admin=True)
        made.undone(whole)
        made.prepared("c", part)


def test_the_gpu_of_a_mig_device_that_a_claim_has_is_refused(tmp_path: Path) -> None:
    with at_work(tmp_path, nvmlnodes.h100(2), mig=False, mode="static") as (gpus, made):
        part = made.prepared("a", mig_device(gpus, made))
        gpus.stub.reset(0)
        gpus.stub.set_mig(0, enabled=False)
        made.refresh()
        assert "its GPU is held by claim default/a" in made.refusal("b", FIRST)
        made.undone(part)
        made.prepared("c", FIRST)


def test_a_gpu_whose_mig_mode_is_on_since_the_last_probe_is_not_given_out_whole(tmp_path: Path) -> None:
    with at_work(tmp_path, nvmlnodes.h100(2), mig=False, mode="static") as (gpus, made):
        gpus.stub.set_mig(0, enabled=True)
        assert f"{FIRST}: MIG mode of its GPU is on now" in made.refusal("a", FIRST)
        gpus.stub.set_mig(0, enabled=False)
        made.prepared("b", FIRST)


def swap(gpus: GpuNode) -> None:
    """Have both GPUs change their minor numbers, and nothing else."""
    gpus.stub.change(0, minor=1)
    gpus.stub.change(1, minor=0)


def node_of(made: GpuMachine, ref: object) -> list[str]:
    return [node["path"] for node in made.edits(ref)[0]["deviceNodes"]]  # type: ignore[arg-type]


def test_minor_numbers_that_move_between_two_probes_are_seen(tmp_path: Path) -> None:
    with at_work(tmp_path, nvmlnodes.h100(2), mig=False, mode="whole") as (gpus, made):
        ref = made.prepared("a", SECOND)
        assert not made.pool.refresh()
        swap(gpus)
        assert made.pool.refresh(), "claims' files are to be rendered anew"
        made.prepare(ref)
        assert node_of(made, ref) == ["/dev/nvidia0"]


@pytest.mark.parametrize("restarted", [False, True])
def test_the_file_of_a_gpu_that_is_lost_never_leads_to_another_one(
    tmp_path: Path, *, restarted: bool
) -> None:
    with at_work(tmp_path, nvmlnodes.h100(2), mig=False, mode="whole") as (gpus, made):
        ref = made.prepared("a", SECOND)
        file = tmp_path / f"cdi/{DRIVER}-claim-{ref.uid}.json"
        gpus.stub.lose(1)
        made.refresh()
        made.prepare(ref)
        assert file.exists(), "its number is nobody else's"
        gpus.stub.change(0, minor=1)
        if restarted:
            made = made.restart()  # noqa: PLW2901 - another engine on the same node
        else:
            made.refresh()
            record = made.record(ref)
            assert record
            with pytest.raises(
                ClaimError, match=f"withdrawn: /dev/nvidia1 of device {SECOND} is {FIRST} now"
            ):
                made.engine._lifecycle.repeat(record)
        assert not file.exists()
        gpus.stub.change(0, minor=0)
        gpus.stub.find(1)
        made.refresh()
        assert not isinstance(made.prepare(ref), str)
        assert file.exists()
        made.close()


def test_a_claim_of_many_shares_of_many_gpus_is_prepared_and_undone(tmp_path: Path) -> None:
    with at_work(tmp_path, nvmlnodes.gb200(16), mig=False, mode="shares", shares=8) as (_, made):
        names = [name for name in made.devices for _ in range(8)]
        assert len(names) == 128
        ref = made.prepared("a", *names, shares="1")
        assert len(made.edits(ref)) == 128
        made.refusal("b", names[0], shares="1")
        made.undone(ref)
        made.prepared("b", names[0], shares="1")
