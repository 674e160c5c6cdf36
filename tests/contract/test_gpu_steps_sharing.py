"""How the processes of a claim share a GPU: time slices, compute modes and MPS control daemons, set and put back."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dradriver.backend import BackendError
from dradriver_gpu.mps import Systemd
from dradriver_gpu.tools import Tools
from gpumachine import GpuMachine, build, gpu_config, machine
from gpunode import GpuNode
from gputools import GpuTools, runs
from nvmlclients import Operator
from nvmlfacts import Node
from nvmlnodes import h100, t4
from waiting import eventually

GPU, OTHER = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
PART = f"{GPU}-mig-2g-20gb-4"

Fields = Mapping[str, Any]

LONG: Fields = {"sharing": {"timeSlicing": {"interval": "Long"}}}
EXCLUSIVE: Fields = {"sharing": {"exclusive": True}}
MPS: Fields = {"sharing": {"mps": {}}}

EXCLUSIVE_PROCESS = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


class Bench:
    """A node, the programs of its driver, and an engine."""

    def __init__(self, root: Path, gpus: GpuNode, tools: GpuTools, made: GpuMachine) -> None:
        self.root = root
        self.gpus = gpus
        self.tools = tools
        self.made = made

    def uuid(self, index: int = 0) -> str:
        return self.gpus.stub.node.gpus[index].uuid

    def mode(self, index: int = 0) -> int:
        return self.gpus.stub.state()[index].compute_mode

    @property
    def left(self) -> list[str]:
        """What is kept of settings and daemons."""
        run = self.root / "host/run/dradriver-gpu"
        shm = self.root / "host/dev/shm"
        names = [*run.glob("settings/*"), *run.glob("mps/*"), *shm.glob("*")]
        return [str(name.relative_to(self.root)) for name in names]

    def restart(self, **options: Any) -> None:
        self.made = self.made.restart(**options)


AtWork = Callable[..., Bench]


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[AtWork]:
    """Build a node with GPUs and programs, and put an engine on it."""
    benches: list[Bench] = []

    def start(node: Node | None = None, *, mig: bool = False, **options: Any) -> Bench:
        gpus = build(tmp_path, node or h100(2))
        if mig:
            gpus.stub.set_mig(0, enabled=True)
        tools = GpuTools(gpus.directory)
        made = GpuMachine(tmp_path, {"mpsLauncher": "process", **options})
        benches.append(Bench(tmp_path, gpus, tools, made))
        return benches[-1]

    yield start
    for bench in benches:
        bench.made.close()
        bench.tools.kill()


@contextmanager
def still_running(process: int) -> Iterator[None]:
    assert runs(process)
    yield
    assert runs(process)


# --- time slices


def test_a_time_slice_is_set_and_put_back(at_work: AtWork) -> None:
    bench = at_work()
    claim = bench.made.prepared("a", GPU, config=LONG)
    assert bench.made.steps(claim) == [
        f"set the time slice of {GPU} to Long",
    ]
    assert (bench.tools.timeslice(bench.uuid()), bench.tools.timeslice(bench.uuid(1))) == (3, 0)
    assert bench.tools.calls("nvidia-smi")[-1] == [
        "compute-policy",
        "-i",
        bench.uuid(),
        "--set-timeslice",
        "3",
    ]
    bench.made.undone(claim)
    assert bench.tools.timeslice(bench.uuid()) == 0
    assert bench.left == []


def test_the_former_time_slice_is_put_back(at_work: AtWork) -> None:
    bench = at_work()
    (bench.tools.state / f"timeslice-{bench.uuid()}").write_text("2")
    bench.made.undone(bench.made.prepared("a", GPU, config=LONG))
    assert bench.tools.timeslice(bench.uuid()) == 2


def test_a_default_asks_nothing_of_a_gpu(at_work: AtWork) -> None:
    bench = at_work(t4(1))
    (gpu,) = bench.made.devices
    defaults: list[Fields] = [
        {},
        {"sharing": {}},
        {"sharing": {"timeSlicing": {}}},
        {"sharing": {"exclusive": False}},
    ]
    for config in defaults:
        claim = bench.made.prepared("a", gpu, config=config)
        assert bench.made.steps(claim) == []
        bench.made.undone(claim)
    assert bench.tools.calls("nvidia-smi") == []


def test_a_program_that_fails_is_quoted(at_work: AtWork) -> None:
    bench = at_work()
    bench.tools.set("smi-fails")
    reason = bench.made.refusal("a", GPU, config=LONG)
    assert "nvidia-smi compute-policy -i" in reason
    assert "exit code 3: 'Not Supported'" in reason


def test_a_program_that_is_not_there_is_named_with_where_it_was_looked_for(at_work: AtWork) -> None:
    bench = at_work()
    bench.tools.remove("nvidia-smi")
    bench.tools.remove("nvidia-cuda-mps-control")
    for name, config in (("nvidia-smi", LONG), ("nvidia-cuda-mps-control", MPS)):
        reason = bench.made.refusal("a", GPU, config=config)
        assert f"{name} is not below the driver root {bench.gpus.directory}" in reason
        assert "looked in usr/bin, usr/sbin" in reason
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    gpus = build(tmp_path, t4(1))
    slow = gpus.directory / "usr/bin/nvidia-smi"
    slow.unlink()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    with pytest.raises(BackendError, match=r"nvidia-smi did not end within 0\.2 s"):
        Tools(gpus.host, "/").run("nvidia-smi", seconds=0.2)


def test_a_lost_gpu_needs_no_putting_back(at_work: AtWork) -> None:
    bench = at_work()
    claims = [
        bench.made.prepared("a", GPU, config=LONG),
        bench.made.prepared("b", OTHER, config=EXCLUSIVE),
    ]
    bench.gpus.stub.lose(0)
    bench.gpus.stub.lose(1)
    bench.made.undone(*claims)
    assert bench.left == []


# --- compute modes


def test_a_gpu_is_exclusive_for_a_claim_and_as_before_after_it(at_work: AtWork) -> None:
    bench = at_work()
    claim = bench.made.prepared("a", GPU, config=EXCLUSIVE)
    assert (bench.mode(), bench.mode(1)) == (EXCLUSIVE_PROCESS, pynvml.NVML_COMPUTEMODE_DEFAULT)
    bench.made.undone(claim)
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    with bench.made.gpu.nvml.session() as session:
        pynvml.nvmlDeviceSetComputeMode(session.gpu("0000:1b:00.0"), EXCLUSIVE_PROCESS)
    bench.made.undone(bench.made.prepared("b", GPU, config=EXCLUSIVE))
    assert bench.mode() == EXCLUSIVE_PROCESS


def test_the_mode_is_put_back_even_where_the_record_of_settings_is_lost(at_work: AtWork) -> None:
    bench = at_work()
    claim = bench.made.prepared("a", GPU, config=EXCLUSIVE)
    (record,) = (bench.root / "host/run/dradriver-gpu/settings").iterdir()
    record.unlink()
    bench.restart()
    bench.made.undone(claim)
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT


# --- MPS


def test_a_claim_has_a_control_daemon_of_its_own(at_work: AtWork) -> None:
    bench = at_work()
    config = {
        "sharing": {
            "mps": {
                "defaultActiveThreadPercentage": 50,
                "defaultPinnedDeviceMemoryLimit": "10Gi",
                "defaultPerDevicePinnedMemoryLimit": {"1": "1500M"},
                "uid": 1000,
            }
        }
    }
    claim = bench.made.prepared("a", GPU, OTHER, config=config)
    assert bench.made.steps(claim) == [
        f"set the compute mode of {GPU} to Exclusive_Process",
        f"set the compute mode of {OTHER} to Exclusive_Process",
        f"run MPS control daemon claim-uid-a for {GPU}, {OTHER}",
    ]
    assert bench.mode() == bench.mode(1) == EXCLUSIVE_PROCESS
    assert bench.tools.commands() == [
        "set_default_active_thread_percentage 50",
        "set_default_device_pinned_mem_limit 0 10240M",
        "set_default_device_pinned_mem_limit 1 1430M",
        "start_server -uid 1000",
    ]
    host = bench.gpus.directory
    assert bench.tools.environment() == {
        "CUDA_MPS_LOG_DIRECTORY": "/run/dradriver-gpu/mps/claim-uid-a/log",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/dradriver-gpu/mps/claim-uid-a/pipe",
        "CUDA_VISIBLE_DEVICES": f"{bench.uuid()},{bench.uuid(1)}",
    }
    for edits in bench.made.edits(claim):
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in edits["env"]
        mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
        assert mounts["/tmp/nvidia-mps"] == "/run/dradriver-gpu/mps/claim-uid-a/pipe"
        assert mounts["/dev/shm"] == "/dev/shm/dradriver-mps-claim-uid-a"
    assert (host / "dev/shm/dradriver-mps-claim-uid-a/cuda.shm").exists(), "daemon and clients share memory"
    (daemon,) = bench.tools.daemons()
    bench.made.undone(claim)
    assert not runs(daemon)
    assert bench.tools.commands()[-1] == "quit"
    assert bench.mode() == bench.mode(1) == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


def test_a_daemon_outlives_ours_and_is_found_again(at_work: AtWork) -> None:
    bench = at_work()
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    with still_running(daemon):
        bench.restart()
        assert not isinstance(bench.made.prepare(claim), str)
        assert bench.tools.daemons() == [daemon]
    bench.made.undone(claim)
    assert not runs(daemon)


def test_a_daemon_that_died_has_its_claim_prepared_anew(at_work: AtWork) -> None:
    bench = at_work()
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: not runs(daemon))
    assert not isinstance(bench.made.prepare(claim), str)
    (other,) = bench.tools.daemons()
    assert other != daemon
    bench.made.undone(claim)
    assert bench.left == []


def test_another_process_with_the_number_of_a_daemon_that_died_is_left_alone(at_work: AtWork) -> None:
    bench = at_work()
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    note = bench.root / "host/run/dradriver-gpu/mps/claim-uid-a/process.json"
    assert json.loads(note.read_text())["process"] == daemon
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: not runs(daemon))
    note.write_text(json.dumps({"process": os.getpid(), "started": 1}))
    bench.made.undone(claim)
    assert bench.left == []


def test_servers_that_a_daemon_left_behind_end_with_its_claim(at_work: AtWork) -> None:
    bench = at_work()
    bench.tools.set("mps-servers")
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    eventually(lambda: len(session(daemon)) > 1, "the daemon has started another process")
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: not runs(daemon), "the daemon is gone")
    left = session(daemon)
    assert left
    bench.made.undone(claim)
    assert not [process for process in left if runs(process)]


def session(leader: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if file.read_text().rpartition(")")[2].split()[3] == str(leader):
                found.append(int(file.parent.name))
    return [process for process in found if runs(process)]


def test_a_daemon_that_does_not_listen_is_killed(at_work: AtWork) -> None:
    bench = at_work()
    claim = bench.made.prepared("a", GPU, config=MPS)
    bench.tools.set("mps-stubborn")
    (daemon,) = bench.tools.daemons()
    bench.made.undone(claim)
    assert not runs(daemon)


def test_a_daemon_that_takes_its_time_is_waited_for(at_work: AtWork) -> None:
    bench = at_work()
    bench.tools.set("mps-slow")
    claim = bench.made.prepared("a", GPU, config=MPS)
    assert len(bench.tools.daemons()) == 1
    bench.made.undone(claim)
    assert bench.tools.daemons() == []
    assert bench.left == []


def test_a_daemon_that_cannot_start_is_quoted_and_all_is_put_back(at_work: AtWork) -> None:
    bench = at_work()
    bench.tools.set("mps-fails")
    reason = bench.made.refusal("a", GPU, config=MPS)
    assert "the MPS control daemon claim-uid-a ended at once: 'cannot start'" in reason
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


def test_a_partition_has_a_daemon_too_and_keeps_its_compute_mode(at_work: AtWork) -> None:
    bench = at_work(mig=True, mode="partitions")
    claim = bench.made.prepared("a", PART, config=MPS)
    record = bench.made.record(claim)
    assert record
    assert [step.type for step in record.steps] == ["CreatePartition", "RunMps"]
    assert bench.tools.environment()["CUDA_VISIBLE_DEVICES"] == record.steps[0].facts["uuid"]
    bench.made.undone(claim)
    assert bench.gpus.stub.state()[0].gpu_instances == ()
    assert bench.left == []


def test_a_standing_mig_device_has_a_daemon_too(at_work: AtWork) -> None:
    bench = at_work(mig=True)
    Operator(bench.gpus.stub).create(0, 14, 4, compute_profile=1)
    bench.made.refresh()
    claim = bench.made.prepared("a", PART, config=MPS)
    uuid = bench.made.devices[PART].attributes["uuid"]
    assert bench.tools.environment()["CUDA_VISIBLE_DEVICES"] == uuid
    bench.made.undone(claim)


# --- shared GPUs


def test_claims_that_share_a_gpu_share_its_daemon_and_each_has_its_limits(at_work: AtWork) -> None:
    bench = at_work(mode="shares")
    first = bench.made.prepared("first", GPU, config=MPS, memory="10Gi")
    (daemon,) = bench.tools.daemons()
    percentage = {
        "sharing": {"mps": {"defaultActiveThreadPercentage": 30, "defaultPinnedDeviceMemoryLimit": "4Gi"}}
    }
    second = bench.made.prepared("second", GPU, config=percentage, memory="20Gi")
    assert bench.tools.daemons() == [daemon]
    (edits,) = bench.made.edits(first)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M" in edits["env"]
    (edits,) = bench.made.edits(second)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M" in edits["env"]
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30" in edits["env"]
    assert bench.tools.commands() == [], "what one claim wants does not bind the other"
    with still_running(daemon):
        bench.made.undone(first)
        assert bench.mode() == EXCLUSIVE_PROCESS
    bench.made.undone(second)
    assert not runs(daemon)
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


def test_equal_shares_come_to_equal_parts_of_the_gpu(at_work: AtWork) -> None:
    bench = at_work(mode="shares", shares=4)
    claim = bench.made.prepared("a", GPU, config=MPS, shares="1")
    (edits,) = bench.made.edits(claim)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in edits["env"]
    total = int(bench.gpus.stub.node.gpus[0].facts["memory-total"]) >> 20
    assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={total // 4}M" in edits["env"]


def test_a_plain_share_is_a_device_node(at_work: AtWork) -> None:
    bench = at_work(mode="shares")
    claim = bench.made.prepared("a", GPU, memory="10Gi")
    assert bench.made.steps(claim) == []
    (edits,) = bench.made.edits(claim)
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidia0"]


def test_claims_that_share_a_gpu_must_share_it_alike(at_work: AtWork) -> None:
    bench = at_work(mode="shares")
    short = {"sharing": {"timeSlicing": {"interval": "Short"}}}
    mps = bench.made.prepared("mps", GPU, config=MPS, memory="1Gi")
    for name, config in (("plain", None), ("slices", LONG)):
        reason = bench.made.refusal(name, GPU, config=config, memory="1Gi")
        assert f"claim {mps} shares this GPU by mps" in reason
    bench.made.undone(mps)
    long = bench.made.prepared("long", GPU, config=LONG, memory="1Gi")
    plain = bench.made.prepared("plain", GPU, memory="1Gi")
    assert "timeSlicing:Short is asked" in bench.made.refusal("short", GPU, config=short, memory="1Gi")
    assert "mps is asked" in bench.made.refusal("mps", GPU, config=MPS, memory="1Gi")
    again = bench.made.prepared("again", GPU, config=LONG, memory="1Gi")
    bench.made.undone(long)
    assert bench.tools.timeslice(bench.uuid()) == 3
    bench.made.undone(again, plain)
    assert bench.tools.timeslice(bench.uuid()) == 0


def test_settings_of_a_shared_gpu_last_over_a_restart(at_work: AtWork) -> None:
    bench = at_work(mode="shares")
    first, second = (bench.made.prepared(name, GPU, config=MPS, memory="1Gi") for name in ("a", "b"))
    (daemon,) = bench.tools.daemons()
    bench.restart()
    bench.made.undone(first)
    assert runs(daemon)
    assert bench.mode() == EXCLUSIVE_PROCESS
    bench.made.undone(second)
    assert not runs(daemon)
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT


# --- what does not fit


@pytest.mark.parametrize(
    ("device", "config", "reason"),
    [
        (PART, LONG, "GpuConfig.sharing.timeSlicing: time slices are set of whole GPUs"),
        (PART, EXCLUSIVE, "GpuConfig.sharing.exclusive: compute modes are of whole GPUs"),
        (
            PART,
            {"sharing": {"mps": {"defaultPinnedDeviceMemoryLimit": "30Gi"}}},
            "a limit of 30720 MiB is asked, it has 20096 MiB",
        ),
        (
            PART,
            {"sharing": {"mps": {"defaultPerDevicePinnedMemoryLimit": {"1": "1Gi"}}}},
            "'1' is none of the claim's GPUs: numbers 0 to 0",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_words(
    at_work: AtWork, device: str, config: Any, reason: str
) -> None:
    bench = at_work(mig=True, mode="partitions")
    assert reason in bench.made.refusal("a", device, config=config)
    assert bench.gpus.stub.state()[0].gpu_instances == ()


def test_two_daemons_are_refused_to_one_claim(at_work: AtWork) -> None:
    bench = at_work(mig=True, mode="partitions")
    answer = bench.made.refusal("a", PART, f"{GPU}-mig-1g-10gb-0", config=MPS)
    assert "one MPS control daemon serves whole GPUs, or one part or share of a GPU" in answer
    bench.restart(mode="whole")
    bench.gpus.stub.set_mig(0, enabled=False)
    bench.made.refresh()
    half = {"sharing": {"mps": {"defaultActiveThreadPercentage": 50}}}
    configs = [gpu_config(MPS, "r0"), gpu_config(half, "r1")]
    assert "a claim has one" in bench.made.refusal("b", GPU, OTHER, configs=configs)


def test_exclusive_use_of_a_share_and_changes_by_admin_access_are_refused(at_work: AtWork) -> None:
    bench = at_work(mode="shares")
    answer = bench.made.refusal("a", GPU, config=EXCLUSIVE, memory="1Gi")
    assert "GpuConfig.sharing.exclusive: other claims share this GPU" in answer
    answer = bench.made.refusal("b", GPU, config=LONG, admin=True)
    assert "GpuConfig.sharing.timeSlicing: admin access changes nothing of a device" in answer


# --- who keeps the daemons


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the node's directory for the root of this machine, where alone systemd can be asked."""
    monkeypatch.setattr(Systemd, "_is_elsewhere", lambda self: False)


@pytest.mark.usefixtures("here")
def test_systemd_keeps_daemons_as_transient_units(at_work: AtWork) -> None:
    bench = at_work(mpsLauncher="systemd")
    claim = bench.made.prepared("a", GPU, config=MPS)
    (call,) = bench.tools.calls("systemd-run")
    unit = "dradriver-mps-claim-uid-a.service"
    assert {f"--unit={unit}", "--collect", f"--setenv=CUDA_VISIBLE_DEVICES={bench.uuid()}"} <= set(call)
    assert "--property=BindPaths=/dev/shm/dradriver-mps-claim-uid-a:/dev/shm" in call
    assert call[call.index("--") :] == ["--", "/usr/bin/nvidia-cuda-mps-control", "-f"]
    (daemon,) = bench.tools.daemons()
    with still_running(daemon):
        bench.restart()
        assert bench.tools.calls("systemd-run") == [call]
    bench.made.undone(claim)
    assert ["stop", unit] in bench.tools.calls("systemctl")
    assert not runs(daemon)
    assert bench.left == []


@pytest.mark.usefixtures("here")
def test_without_systemd_it_says_so(at_work: AtWork) -> None:
    bench = at_work(mpsLauncher="systemd")
    bench.tools.remove("systemctl")
    bench.tools.remove("systemd-run")
    reason = bench.made.refusal("a", GPU, config=MPS)
    assert "systemd-run is not on this host" in reason
    assert "option mpsLauncher" in reason
    bench.tools.booted.rmdir()
    assert "systemd does not run here" in bench.made.refusal("b", GPU, config=MPS)
    assert bench.left == []


def test_in_a_pod_systemd_is_not_asked(at_work: AtWork) -> None:
    bench = at_work(mpsLauncher="systemd")
    reason = bench.made.refusal("a", GPU, config=MPS)
    assert f"the host is seen below {bench.gpus.directory} (option hostRoot)" in reason
    assert "option mpsLauncher: pod" in reason
    assert bench.tools.calls("systemctl") == []
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


def test_the_launcher_of_a_claim_stays_when_the_option_changes(at_work: AtWork) -> None:
    bench = at_work(mpsLauncher="process")
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    bench.restart(mpsLauncher="systemd")
    assert runs(daemon)
    bench.made.undone(claim)
    assert not runs(daemon)


def test_layers_of_configuration(tmp_path: Path) -> None:
    build(tmp_path, h100(1))
    with machine(tmp_path) as made:
        reason = made.refusal("a", GPU, config={"sharing": {"timeSlicing": {"interval": "long"}}})
        assert "sharing.timeSlicing.interval: 'long' is not one of Default, Short, Medium, Long" in reason
        reason = made.refusal("b", GPU, config={"sharing": {"timeSlicing": {}, "mps": {}}})
        assert "one of timeSlicing, mps, exclusive is allowed, found timeSlicing and mps" in reason
