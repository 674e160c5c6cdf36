"""The stub NVML library over time: other processes, sudden deaths, events, faults, hangs."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvmlclients import refusal, session
from nvmlnodes import h100, mixed, t4
from nvmlstub import DOUBLE_BIT_ECC, MIG_CHANGE, RECOVERY_ACTION, XID, Fault, GpuState, Stub
from waiting import PATIENCE

PROGRAM = """
import ctypes, sys
import pynvml as nvml
nvml.nvmlLib = ctypes.CDLL(sys.argv[1])
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
def create(profile, start, size):
    placement = nvml.c_nvmlGpuInstancePlacement_t(start, size)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, ctypes.byref(placement))
"""

LOST, TIMEOUT, IN_USE, UNKNOWN = 15, 10, 19, 999


def run(stub: Stub, program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of the binding on the stub, to its end."""
    command = [sys.executable, "-c", PROGRAM + program, str(stub.library)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def running(stub: Stub, program: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a program in the background; it says that it is ready by a line."""
    command = [sys.executable, "-c", PROGRAM + program, str(stub.library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def output(process: "subprocess.Popen[str]") -> list[str]:
    """Wait for the program's end and return what it has printed."""
    out, _ = process.communicate(timeout=PATIENCE)
    return out.splitlines()


def mig_node(tmp_path: Path) -> Stub:
    stub = Stub(tmp_path / "stub", h100(2))
    stub.set_mig(0, enabled=True)
    return stub


# --- other processes


def test_what_one_process_makes_others_see(tmp_path: Path) -> None:
    stub = mig_node(tmp_path)
    assert run(stub, "nvml.nvmlGpuInstanceCreateComputeInstance(create(9, 4, 4), 2)").returncode == 0
    with session(stub.library) as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetGpuInstanceId(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)) == 2
    (instance,) = stub.state()[0].gpu_instances
    assert (instance.profile, instance.start) == (9, 4)


def test_a_placement_by_value_crashes_as_the_driver_does(tmp_path: Path) -> None:
    stub = mig_node(tmp_path)
    done = run(
        stub, "nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 9, nvml.c_nvmlGpuInstancePlacement_t(4, 4))"
    )
    assert done.returncode == -signal.SIGSEGV
    assert stub.state()[0].gpu_instances == ()


@pytest.mark.parametrize(
    ("function", "when", "instances"),
    [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "kill", (0, 0)),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "killafter", (1, 0)),
        ("nvmlGpuInstanceCreateComputeInstance", "kill", (1, 0)),
        ("nvmlGpuInstanceCreateComputeInstance", "killafter", (1, 1)),
    ],
)
def test_a_process_can_be_killed_in_a_call(
    tmp_path: Path, function: str, when: str, instances: tuple[int, int]
) -> None:
    stub = mig_node(tmp_path)
    stub.faults(Fault(function, when))
    done = run(stub, "nvml.nvmlGpuInstanceCreateComputeInstance(create(14, 2, 2), 1)")
    assert done.returncode == -signal.SIGKILL
    state = stub.state()[0]
    assert (len(state.gpu_instances), len(state.compute_instances)) == instances
    with session(stub.library) as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(1)
        assert nvml.nvmlDeviceSetMigMode(gpu, 1) == 0


def test_sudden_deaths_leave_a_state_that_makes_sense(tmp_path: Path) -> None:
    stub = mig_node(tmp_path)
    churn = """
import random, sys
print("ready", flush=True)
while True:
    profile, start, size, compute = random.choice([(19, s, 1, 0) for s in range(7)] + [(14, 2, 2, 1), (9, 4, 4, 2)])
    try:
        instance = create(profile, start, size)
        made = nvml.nvmlGpuInstanceCreateComputeInstance(instance, compute)
        nvml.nvmlComputeInstanceDestroy(made)
        nvml.nvmlGpuInstanceDestroy(instance)
    except nvml.NVMLError:
        pass
"""
    for _ in range(6):
        with running(stub, churn) as process, running(stub, churn):
            time.sleep(random.uniform(0.005, 0.03))
            process.kill()
            process.wait()
            check(stub.state()[0])
        state = stub.state()[0]
        check(state)
        with session(stub.library) as nvml:
            gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            for left in state.gpu_instances:
                instance = nvml.nvmlDeviceGetGpuInstanceById(gpu, left.id)
                for compute in state.compute_instances:
                    if compute.gpu_instance == left.id:
                        by_id = nvml.nvmlGpuInstanceGetComputeInstanceById(instance, compute.id)
                        nvml.nvmlComputeInstanceDestroy(by_id)
                nvml.nvmlGpuInstanceDestroy(instance)
        assert stub.state()[0] == GpuState(
            mig=True, mig_pending=True, compute_mode=0, persistence=0, gpu_instances=(), compute_instances=()
        )


def check(state: GpuState) -> None:
    taken = [slice_ for made in state.gpu_instances for slice_ in range(made.start, made.start + made.size)]
    assert len(taken) == len(set(taken))
    ids = {made.id for made in state.gpu_instances}
    assert {compute.gpu_instance for compute in state.compute_instances} <= ids


# --- events


WAIT = """
events = nvml.nvmlEventSetCreate()
for index in range(nvml.nvmlDeviceGetCount()):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlDeviceGetSupportedEventTypes(handle), events)
print("ready", flush=True)
for _ in range({count}):
    try:
        data = nvml.nvmlEventSetWait_v2(events, 10000)
        values = nvml.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData, data.gpuInstanceId
        print(*values, data.computeInstanceId)
    except nvml.NVMLError as error:
        print("error", error.value)
"""


def test_events_reach_a_waiting_process(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(2))
    stub.xid(0, 13)
    with running(stub, WAIT.format(count=4)) as process:
        stub.xid(1, 94)
        stub.xid(0, 48, instance=(3, 0))
        stub.event(1, DOUBLE_BIT_ECC)
        stub.ask_recovery(0, 2)
        nothing = 0xFFFFFFFF
        assert output(process) == [
            f"1 {XID} 94 {nothing} {nothing}",
            f"0 {XID} 48 3 0",
            f"1 {DOUBLE_BIT_ECC} 0 {nothing} {nothing}",
            f"0 {RECOVERY_ACTION} 2 {nothing} {nothing}",
        ]


def test_every_set_gets_what_it_registered_for(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", mixed(h100(1), t4(1)))
    with session(stub.library) as nvml:
        hopper, turing = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        both, xids = nvml.nvmlEventSetCreate(), nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(hopper, XID | DOUBLE_BIT_ECC, both)
        nvml.nvmlDeviceRegisterEvents(turing, XID, both)
        nvml.nvmlDeviceRegisterEvents(hopper, XID, xids)
        assert refusal(nvml.nvmlDeviceRegisterEvents, turing, XID | MIG_CHANGE, xids) == 3
        stub.event(0, DOUBLE_BIT_ECC)
        stub.xid(1, 31)
        stub.xid(0, 63)
        received = [nvml.nvmlEventSetWait_v2(both, 1000) for _ in range(3)]
        assert [(data.eventType, data.eventData) for data in received] == [
            (DOUBLE_BIT_ECC, 0),
            (XID, 31),
            (XID, 63),
        ]
        assert nvml.nvmlDeviceGetUUID(received[1].device) == stub.node.gpus[1].uuid
        assert nvml.nvmlEventSetWait_v2(xids, 1000).eventData == 63
        assert refusal(nvml.nvmlEventSetWait_v2, xids, 0) == TIMEOUT
        nvml.nvmlEventSetFree(both)
        assert refusal(nvml.nvmlEventSetWait_v2, both, 0) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_changes_of_the_partitions_are_events(tmp_path: Path) -> None:
    stub = mig_node(tmp_path)
    with session(stub.library) as nvml:
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), MIG_CHANGE, events)
        assert run(stub, "create(19, 0, 1)").returncode == 0
        assert nvml.nvmlEventSetWait_v2(events, 1000).eventType == MIG_CHANGE


def test_a_lost_gpu_ends_waits_until_it_is_found_or_left_out(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(2))
    with session(stub.library) as nvml:
        one, other = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        events = nvml.nvmlEventSetCreate()
        for gpu in (one, other):
            nvml.nvmlDeviceRegisterEvents(gpu, XID, events)
        waiting = Waiting(nvml, events)
        stub.lose(1)
        assert waiting.join() == (XID, 79)
        for _ in range(3):
            assert refusal(nvml.nvmlEventSetWait_v2, events, 10000) == LOST
        assert refusal(nvml.nvmlDeviceGetUUID, other) == LOST
        assert refusal(nvml.nvmlDeviceGetHandleByIndex, 1) == LOST
        assert nvml.nvmlDeviceGetCount() == 2
        assert nvml.nvmlDeviceGetIndex(one) == 0
        rest = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(one, XID, rest)
        assert refusal(nvml.nvmlEventSetWait_v2, rest, 0) == TIMEOUT
        stub.find(1)
        assert refusal(nvml.nvmlEventSetWait_v2, events, 0) == TIMEOUT
        assert nvml.nvmlDeviceGetUUID(other) == stub.node.gpus[1].uuid


def test_a_wait_notices_a_gpu_that_is_lost_without_an_event(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(1))
    with session(stub.library) as nvml:
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), XID, events)
        waiting = Waiting(nvml, events)
        stub.change(0, lost=1)
        assert waiting.join() == (LOST,)


class Waiting:
    """A thread in nvmlEventSetWait; the interpreter goes on beside it."""

    def __init__(self, nvml: Any, events: Any) -> None:
        self._result: tuple[int, ...] = ()
        self._thread = threading.Thread(target=self._wait, args=(nvml, events))
        self._thread.start()

    def _wait(self, nvml: Any, events: Any) -> None:
        try:
            data = nvml.nvmlEventSetWait_v2(events, 20000)
            self._result = data.eventType, data.eventData
        except pynvml.NVMLError as error:
            self._result = (error.value,)

    def join(self) -> tuple[int, ...]:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self._result


# --- faults


def test_the_nth_call_fails(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(2))
    with session(stub.library) as nvml:
        one, other = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        stub.fail("nvmlDeviceGetName", UNKNOWN, index=0, first=2, count=2)
        assert [refusal(nvml.nvmlDeviceGetName, one) for _ in range(5)] == [0, UNKNOWN, UNKNOWN, 0, 0]
        assert refusal(nvml.nvmlDeviceGetName, other) == 0
        assert stub.hits() == (5,)
        stub.faults(Fault("nvmlDeviceGet*", "fail", str(IN_USE), count=0))
        assert [refusal(nvml.nvmlDeviceGetIndex, other), refusal(nvml.nvmlDeviceGetUUID, one)] == [
            IN_USE,
            IN_USE,
        ]
        assert nvml.nvmlSystemGetDriverVersion() == stub.node.driver
        stub.faults()
        assert nvml.nvmlDeviceGetIndex(other) == 1


def test_calls_fail_for_some_time(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(1))
    with session(stub.library) as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        now = time.time()
        stub.faults(
            Fault("nvmlDeviceGetName", "fail", str(UNKNOWN), count=0, begin=now - 10, end=now + 0.3),
            Fault("nvmlDeviceGetIndex", "fail", str(UNKNOWN), count=0, begin=now + 3600),
        )
        assert refusal(nvml.nvmlDeviceGetName, gpu) == UNKNOWN
        assert refusal(nvml.nvmlDeviceGetIndex, gpu) == 0
        while time.time() < now + 0.3:
            time.sleep(0.01)
        assert refusal(nvml.nvmlDeviceGetName, gpu) == 0


def test_work_can_be_done_and_reported_as_failed(tmp_path: Path) -> None:
    stub = mig_node(tmp_path)
    stub.faults(Fault("nvmlDeviceCreateGpuInstance", "late", str(TIMEOUT)))
    with session(stub.library) as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert refusal(nvml.nvmlDeviceCreateGpuInstance, gpu, 9) == TIMEOUT
    assert [made.id for made in stub.state()[0].gpu_instances] == [2]


def test_a_failing_init(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(1))
    stub.fail("nvmlInitWithFlags", UNKNOWN)
    with pytest.raises(pynvml.NVMLError_Unknown), session(stub.library):
        pass
    with session(stub.library) as nvml:
        assert nvml.nvmlDeviceGetCount() == 1


def test_a_hanging_call_holds_up_nothing_else(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(2))
    stub.record()
    answers: list[int] = []
    with session(stub.library) as nvml:
        one, other = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        hung = threading.Thread(target=lambda: answers.append(nvml.nvmlDeviceGetMemoryInfo(one).total))
        with stub.hanging("nvmlDeviceGetMemoryInfo", index=0):
            hung.start()
            call = stub.wait_for_call("nvmlDeviceGetMemoryInfo")
            assert call.slot == 0
            assert nvml.nvmlDeviceGetMemoryInfo(other).total > 0
            assert nvml.nvmlDeviceGetName(one) == "NVIDIA H100 80GB HBM3"
            assert answers == []
        hung.join(PATIENCE)
        assert len(answers) == 1


def test_a_slow_answer_is_an_answer(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(1))
    stub.faults(Fault("nvmlDeviceGetName", "sleep", "50"))
    with session(stub.library) as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        begin = time.monotonic()
        assert nvml.nvmlDeviceGetName(gpu) == "NVIDIA H100 80GB HBM3"
        assert time.monotonic() - begin >= 0.05


def test_calls_are_recorded(tmp_path: Path) -> None:
    stub = Stub(tmp_path / "stub", h100(2))
    stub.record()
    stub.fail("nvmlDeviceGetUUID", LOST)
    with session(stub.library) as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(1)
        refusal(nvml.nvmlDeviceGetUUID, gpu)
    calls = stub.calls()
    assert [(call.function, call.slot, call.what, call.code) for call in calls] == [
        ("nvmlInitWithFlags", -1, "returned", 0),
        ("nvmlDeviceGetHandleByIndex_v2", 1, "returned", 0),
        ("nvmlDeviceGetUUID", 1, "returned", LOST),
        ("nvmlShutdown", -1, "returned", 0),
    ]
    assert calls == sorted(calls, key=lambda call: call.nanoseconds)
    stub.record(calls=False)
    with session(stub.library) as nvml:
        assert nvml.nvmlDeviceGetCount() == 2
    assert len(stub.calls()) == 4
