"""Faults of a fake node: each happens as the script says, and nothing of it is left behind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import BackendError, ConfigError, TransientError, UnavailableError
from dradriver.model import Health
from dradriver.slices import Pool, pool_specs
from dradriver_fake import FakeNode, clear_faults, pull_out, put_in, set_fault, set_faults
from dradriver_fake.faults import decode_faults
from dradriver_fake.hardware import Hardware
from dradriver_fake.script import Script
from fakenode import Machine, environment, machine
from waiting import eventually

GPU = "gpu-0000-43-00-0"
HALF, QUARTER = f"{GPU}-mig-2g-12gb-2", f"{GPU}-mig-1g-6gb-0"
PF, VF = "nic-0000-44-00-0", "nic-0000-44-00-3"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path) as made:
        yield made


def refusal(made: Machine, device: str, name: str = "a", kind: str = "gpu") -> str:
    answer = made.prepare(made.claim(name, device), kind)
    assert isinstance(answer, str)
    return answer


def prepared(made: Machine, device: str, name: str = "a", kind: str = "gpu") -> bool:
    return not isinstance(made.prepare(made.claim(name, device), kind), str)


def test_a_gpu_vanishes_with_all_its_variants_and_comes_back_empty(small: Machine) -> None:
    claim = small.claim("a", HALF)
    small.prepare(claim)
    set_fault(small.host_root, GPU, "vanish")
    small.refresh()
    assert not small.devices("gpu")
    assert small.devices("nic"), "others are not concerned"
    assert "is not on this node" in refusal(small, QUARTER, "b")
    assert not small.leftovers, "what fell off the bus has lost its partitions"
    clear_faults(small.host_root)
    small.refresh()
    assert len(small.devices("gpu")) == 14
    assert not isinstance(small.prepare(claim), str), "the partition is made anew"
    assert small.unprepare(claim) is None
    assert not small.leftovers
    assert not small.complaints


def test_a_claim_ends_though_its_gpu_is_gone(small: Machine) -> None:
    claim = small.claim("a", HALF)
    small.prepare(claim)
    set_fault(small.host_root, GPU, "vanish")
    assert small.unprepare(claim) is None
    clear_faults(small.host_root)
    assert not small.leftovers
    assert not small.complaints


def test_what_vanishes_before_the_next_probe_fails_as_it_is_used(small: Machine) -> None:
    set_fault(small.host_root, "gpu-*", "vanish")
    assert "GPU is lost" in refusal(small, HALF)
    set_fault(small.host_root, PF, "vanish")
    assert "no such device" in refusal(small, VF, "b", "nic")
    assert not small.complaints


def test_a_single_part_vanishes_alone(small: Machine) -> None:
    claim = small.claim("a", HALF)
    small.prepare(claim)
    set_faults(
        small.host_root,
        decode_faults([{"device": HALF, "does": "vanish"}, {"device": VF, "does": "vanish"}], "faults"),
    )
    small.refresh()
    assert HALF not in small.devices("gpu")
    assert QUARTER in small.devices("gpu")
    assert VF not in small.devices("nic")
    assert not small.leftovers
    assert small.unprepare(claim) is None


def test_a_device_is_pulled_out_and_put_in(small: Machine) -> None:
    claim = small.claim("a", VF)
    small.prepare(claim, "nic")
    pull_out(small.host_root, "nics", VF)
    small.refresh()
    assert VF not in small.devices("nic")
    assert small.unprepare(claim, "nic") is None
    put_in(small.host_root, "nics", VF)
    small.refresh()
    assert VF in small.devices("nic")
    assert prepared(small, VF, kind="nic")


def test_a_restart_waits_for_a_gpu_that_is_gone(small: Machine) -> None:
    claim = small.claim("a", HALF)
    small.prepare(claim)
    set_fault(small.host_root, GPU, "vanish")
    again = small.restart()
    assert "claim-uid-a" in again.specs(), "nothing is known of it, so nothing is undone"
    clear_faults(again.host_root)
    again.refresh()
    assert not isinstance(again.prepare(claim), str)
    assert again.unprepare(claim) is None
    assert not again.leftovers
    again.close()


def test_sick_hardware_is_unhealthy_in_all_its_variants_and_no_other(small: Machine) -> None:
    set_fault(small.host_root, GPU, "sick", message="XID 79: the GPU has fallen off the bus")
    small.refresh()
    states = {(device.health, device.health_message) for device in small.devices("gpu").values()}
    assert states == {(Health.UNHEALTHY, "XID 79: the GPU has fallen off the bus")}
    assert {device.health for device in small.devices("nic").values()} == {Health.HEALTHY}
    set_fault(small.host_root, VF, "sick")
    small.refresh()
    unhealthy = [device.name for device in small.devices("nic").values() if device.health is Health.UNHEALTHY]
    assert unhealthy == [VF]
    assert {device.health for device in small.devices("gpu").values()} == {Health.HEALTHY}


def test_an_odd_gpu_degrades_alone(tmp_path: Path) -> None:
    odd = "gpu-0000-1b-00-0"
    with machine(tmp_path, "dgx-h100", gpuMode="whole", faults=[{"device": odd, "does": "odd"}]) as made:
        pool = made.pool("gpu")
        specs = pool_specs(Pool(pool.driver, "n1", pool.name), pool.snapshot.content)
        assert not specs.left_out
        (warning,) = specs.warnings
        assert "productName" in warning
        assert "120 bytes: at most 64 are allowed" in warning
        devices = made.devices("gpu")
        assert len(devices) == 8
        assert [name for name, device in devices.items() if device.health is Health.UNHEALTHY] == [odd]
        assert "answers oddly" in devices[odd].health_message


def test_a_creation_that_fails_is_undone(small: Machine) -> None:
    set_fault(small.host_root, HALF, "fail", message="out of luck")
    assert refusal(small, HALF) == f"{HALF}: create: out of luck"
    assert prepared(small, QUARTER, "b"), "only that one fails"
    assert refusal(small, HALF).endswith("out of luck"), "again and again"
    clear_faults(small.host_root)
    assert prepared(small, HALF)


@pytest.mark.parametrize("at", ["create", "unrecorded", "half", "created"])
def test_a_partition_that_fails_half_way_leaves_nothing(at: str, small: Machine) -> None:
    set_fault(small.host_root, GPU, "fail", at=at, times=1)
    assert f"{HALF}: {at}: fails" in refusal(small, HALF)
    assert not small.leftovers
    assert prepared(small, HALF), "once only"
    assert not small.complaints


def test_what_is_busy_is_tried_again_within_the_call(small: Machine) -> None:
    set_faults(
        small.host_root,
        decode_faults(
            [
                {"device": GPU, "does": "busy", "times": 2},
                {"device": GPU, "does": "busy", "at": "half", "times": 1},
                {"device": GPU, "does": "busy", "at": "destroy", "times": 1},
            ],
            "faults",
        ),
    )
    claim = small.claim("a", HALF)
    assert not isinstance(small.prepare(claim), str)
    assert len(small.gpu.gpu(GPU).instances()) == 1
    assert small.unprepare(claim) is None
    assert not small.leftovers
    assert not small.complaints


def test_the_nth_use_of_any_card_fails(tmp_path: Path) -> None:
    fault = {"device": "nic-*", "does": "fail", "nth": 3, "times": 1}
    with machine(tmp_path, faults=[fault]) as made:
        assert prepared(made, "nic-0000-44-00-2", "a", "nic")
        assert prepared(made, VF, "b", "nic")
        again = made.restart()
        assert "fails" in refusal(again, "nic-0000-44-00-4", "c", "nic"), "counted over restarts"
        assert prepared(again, "nic-0000-44-00-4", "c", "nic")
        again.close()


def test_a_call_that_hangs_costs_its_own_claim_only(small: Machine) -> None:
    set_fault(small.host_root, HALF, "hang")
    claim = small.claim("a", HALF)
    answer = small.prepare(claim, seconds=2.0)
    assert isinstance(answer, str)
    assert "did not answer in time" in answer
    assert prepared(small, QUARTER, "b")
    assert prepared(small, VF, "c", "nic")
    clear_faults(small.host_root)
    stop = threading.Event()
    settling = threading.Thread(target=small.engine.run, args=(stop,))
    settling.start()
    eventually(lambda: [one.start for one in small.gpu.gpu(GPU).instances()] == [0])
    stop.set()
    settling.join()
    eventually(lambda: not isinstance(small.prepare(claim), str))
    assert not small.complaints


def test_a_hang_ends_after_its_time(small: Machine) -> None:
    set_faults(small.host_root, decode_faults([{"device": GPU, "does": "hang", "for": 0.05}], "faults"))
    assert prepared(small, HALF)


def test_hardware_that_cannot_be_read_keeps_its_last_inventory(small: Machine) -> None:
    set_fault(small.host_root, GPU, "fail", at="probe")
    small.refresh()
    assert small.pool("gpu").snapshot.error == f"{GPU}: probe: fails, as the fault script says"
    assert len(small.devices("gpu")) == 14
    assert not small.pool("nic").snapshot.error
    set_fault(small.host_root, PF, "sick", at="probe")
    small.refresh()
    assert small.devices("nic")[VF].health is Health.UNHEALTHY, "started by the probe itself"
    assert not small.pool("gpu").snapshot.error


def test_a_gpu_vanishes_once_its_second_partition_stands(tmp_path: Path) -> None:
    fault = {"device": GPU, "does": "vanish", "at": "created", "nth": 2}
    with machine(tmp_path, faults=[fault]) as made:
        assert prepared(made, HALF)
        assert prepared(made, QUARTER, "b")
        made.refresh()
        assert not made.devices("gpu")
        assert not made.leftovers


CRASHING = """
import sys
from pathlib import Path
from fakenode import Machine
made = Machine(Path(sys.argv[1]))
claim = made.claim("a", *sys.argv[2].split(","))
print(made.prepare(claim, sys.argv[3]), flush=True)
print(made.unprepare(claim, sys.argv[3]), flush=True)
"""


def crash(root: Path, devices: str, kind: str) -> None:
    """Prepare and unprepare a claim in a process of its own, which the fault script kills."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", CRASHING, str(root), devices, kind],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        *(("gpu", at) for at in ("create", "unrecorded", "half", "created", "destroy", "destroyed")),
        *(("nic", at) for at in ("create", "unrecorded", "created", "destroy", "destroyed")),
    ],
)
def test_a_daemon_that_dies_half_way_leaves_nothing(kind: str, at: str, tmp_path: Path) -> None:
    devices = {"gpu": (HALF, QUARTER), "nic": (VF, "nic-0000-44-00-4")}[kind]
    made = Machine(tmp_path)
    set_faults(
        made.host_root,
        decode_faults([{"device": devices[1], "does": "crash", "at": at, "times": 1}], "faults"),
    )
    made.close()
    crash(tmp_path, ",".join(devices), kind)
    after = Machine(tmp_path)
    assert not after.leftovers, "the claim was not answered, or was to end"
    claim = after.claim("a", *devices)
    assert not isinstance(after.prepare(claim, kind), str)
    assert after.unprepare(claim, kind) is None
    assert not after.leftovers
    assert not after.complaints
    after.close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def script(tmp_path: Path, *faults: dict[str, Any]) -> tuple[Script, Clock, Path]:
    node = FakeNode.of({"node": "small", "faults": list(faults)}, tmp_path)
    node.build()
    clock = Clock()
    return Script(Hardware(node.host_root), clock), clock, node.host_root


def test_faults_come_and_go_by_time(tmp_path: Path) -> None:
    made, clock, root = script(tmp_path, {"device": GPU, "does": "vanish", "after": 10, "for": 5})

    def is_there() -> bool:
        return made.ailments().of((HALF, GPU), "vanish") is not None

    seen, signatures = [], []
    for now in (100.0, 109.9, 110.0, 114.9, 115.0, 200.0):
        clock.now = now
        seen.append(is_there())
        signatures.append(made.signature())
    assert seen == [False, False, True, True, False, False]
    assert [one == signatures[0] for one in signatures] == [not there for there in seen], (
        "so watching notices"
    )
    later = Script(Hardware(root), clock)
    assert later.ailments() == made.ailments(), "the time goes on over a restart of the daemon"
    clock.now = 3.0
    assert not is_there()
    clock.now = 14.0
    assert is_there(), "after a restart of the machine it begins anew"


def test_an_operation_fails_in_its_time_only(tmp_path: Path) -> None:
    made, clock, _ = script(tmp_path, {"device": VF, "does": "fail", "after": 1, "for": 2})
    made.reach("create", (VF, PF))
    clock.now = 101.0
    with pytest.raises(BackendError, match=f"{VF}: create: fails"):
        made.reach("create", (VF, PF))
    made.reach("create", (PF,))
    made.reach("destroy", (VF, PF))
    clock.now = 103.0
    made.reach("create", (VF, PF))


def test_each_way_to_fail_has_its_error(tmp_path: Path) -> None:
    made, _, root = script(tmp_path)
    set_fault(root, "*", "busy")
    with pytest.raises(TransientError, match="is busy"):
        made.reach("create", (GPU,))
    set_fault(root, "*", "fail", at="observe")
    with pytest.raises(UnavailableError):
        made.reach("observe", (GPU,))
    made.reach("create", (GPU,))


def test_a_file_that_is_written_anew_counts_anew(tmp_path: Path) -> None:
    made, _, root = script(tmp_path)
    for _ in range(2):
        set_fault(root, GPU, "fail", times=1)
        with pytest.raises(BackendError):
            made.reach("create", (GPU,))
        made.reach("create", (GPU,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "- {device: gpu-0, does: explode}",
            r"\[0\]\.does: 'explode' is not one of vanish, sick, odd, unready, fail",
        ),
        (
            "- {device: gpu-0, does: fail, at: noon}",
            r"\[0\]\.at: 'noon' is not one of probe, observe, create",
        ),
        ("- {device: gpu-0, does: fail, nth: 0}", r"\[0\]\.nth: "),
        (
            "- {device: gpu-0, does: sick, times: 2}",
            r"times: a device that is sick is so for a time: use for",
        ),
        (
            "- {device: gpu-0, does: sick, untl: 2}",
            r"\[0\]\.untl: unknown field 'untl'; allowed are after, at, ",
        ),
        ("- {device: ../x, does: sick}", r"\[0\]\.device: "),
        ("device: gpu-0", "a list is expected, found a map"),
        ("- {device: gpu-0, does: [}", "not valid YAML"),
    ],
)
def test_a_script_that_is_wrong_is_no_silent_success(text: str, expected: str, small: Machine) -> None:
    file = small.host_root / "fake" / "faults.yaml"
    file.write_text(text)
    small.refresh()
    with pytest.raises(UnavailableError, match=expected):
        small.gpu.script.ailments()
    assert "faults.yaml" in small.pool("gpu").snapshot.error
    assert "the fault script cannot be read" in refusal(small, HALF)
    file.write_text("")
    small.refresh()
    assert not small.pool("gpu").snapshot.error
    assert prepared(small, HALF)


def test_faults_are_set_strictly(small: Machine) -> None:
    with pytest.raises(ConfigError, match="'until'"):
        set_fault(small.host_root, GPU, "sick", until=3)


def test_watching_notices_faults_and_devices_that_come_or_go(small: Machine) -> None:
    heard: list[str] = []
    stop = threading.Event()
    watching = threading.Thread(target=small.gpu.watch, args=(stop, heard.append))
    watching.start()

    def hear(change: Callable[[], None]) -> None:
        before = len(heard)
        change()
        eventually(lambda: len(heard) > before)

    eventually(lambda: heard)
    hear(lambda: set_fault(small.host_root, GPU, "sick"))
    hear(lambda: clear_faults(small.host_root))
    hear(lambda: pull_out(small.host_root, "gpus", GPU))
    hear(lambda: put_in(small.host_root, "gpus", GPU))
    stop.set()
    watching.join()


def test_the_environment_of_a_claim_tells_of_the_partition_that_was_made_last(small: Machine) -> None:
    set_fault(small.host_root, GPU, "fail", at="created", times=1)
    claim = small.claim("a", HALF)
    assert isinstance(small.prepare(claim), str)
    assert not isinstance(small.prepare(claim), str)
    (instance,) = small.gpu.gpu(GPU).instances()
    (edits,) = small.edits(claim)
    assert environment(edits)["DRA_GPU_uid_a_0"] == instance.compute[0].uuid


def test_a_fault_of_the_file_that_can_never_happen_is_a_warning_of_its_kind(small: Machine) -> None:
    faults = [
        {"device": GPU, "does": "sick"},
        {"device": "gpu-0", "does": "fail"},
        {"device": "nic-9", "does": "fail"},
        {"device": GPU, "does": "unready"},
        {"device": "cpu-numa-0", "does": "sick"},
    ]
    set_faults(small.host_root, decode_faults(faults, "faults"))
    small.refresh()
    file = small.host_root / "fake" / "faults.yaml"
    for kind, expected in (("gpu", "[1].device [3].does [4].device"), ("nic", "[2].device [4].device")):
        warnings = small.pool(kind).snapshot.content.warnings
        assert [text.split(": ")[0] for text in warnings] == [f"{file}{where}" for where in expected.split()]
        assert all(text.endswith("; nothing comes of this fault") for text in warnings)
    clear_faults(small.host_root)
    small.refresh()
    assert not small.pool("gpu").snapshot.content.warnings
