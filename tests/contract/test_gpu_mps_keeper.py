"""The keeper of MPS control daemons, a process of its own: they outlive the driver, and are found again after it."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

from crashes import some, worker
from dradriver.backend import BackendError, TransientError, UnavailableError
from dradriver.host import Host
from dradriver.model import ClaimRef
from dradriver_gpu.mps import KeptMps, Limits
from dradriver_gpu.mps.messages import MAX_BYTES
from gpumachine import GpuMachine, build, machine
from gputools import GpuTools, runs
from keeperprocess import RUN, KeeperProcess, keeping
from nvmlnodes import h100
from waiting import PATIENCE, eventually

GPU = "gpu-0000-1b-00-0"
MPS: Mapping[str, Any] = {"sharing": {"mps": {}}}
LIMITED: Mapping[str, Any] = {
    "sharing": {
        "mps": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi", "uid": 1000}
    }
}
UUID = "GPU-11111111-2222-3333-4444-555555555555"


class Bench:
    """A node with GPUs, keepers, and an engine that asks them."""

    def __init__(self, root: Path, keepers: KeeperProcess) -> None:
        self.root = root
        self.gpus = build(root, h100(2))
        self.tools = GpuTools(self.gpus.directory)
        self.keepers = keepers
        self.made = GpuMachine(root, {"mpsLauncher": "pod"})

    @property
    def host(self) -> Path:
        return self.root / "host"

    def mode(self) -> int:
        return self.gpus.stub.state()[0].compute_mode

    @property
    def left(self) -> list[str]:
        """What is kept of settings and daemons, beside the keeper's own."""
        names = [*self.host.glob("run/dradriver-gpu/settings/*"), *(self.host / "dev/shm").glob("*")]
        names += [path for path in (self.host / RUN).glob("*") if path.is_dir()]
        return [str(name.relative_to(self.host)) for name in names]

    def driver(self) -> KeptMps:
        """Return another driver's side of the socket."""
        return KeptMps(Host(self.host), "/run/dradriver-gpu")

    def show(self, process: int) -> None:
        """Have a process in the host's /proc, as it is now."""
        directory = self.host / f"proc/{process}"
        directory.mkdir(parents=True)
        shutil.copy(f"/proc/{process}/stat", directory / "stat")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """The path of a socket is short: not below pytest's directory."""
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        root = Path(name)
        with keeping(root / "host", root / "log") as keepers:
            made = Bench(root, keepers)
            try:
                yield made
            finally:
                made.made.close()
                keepers.end()
                made.tools.kill()


def gone(process: int) -> None:
    eventually(lambda: not runs(process), "a process is gone")


# --- at work


def test_the_keeper_runs_the_daemon_of_a_claim_and_ends_it(bench: Bench) -> None:
    bench.keepers.start()
    claim = bench.made.prepared("a", GPU, config=LIMITED)
    (daemon,) = bench.tools.daemons()
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert bench.tools.commands() == [
        "set_default_active_thread_percentage 50",
        "set_default_device_pinned_mem_limit 0 10240M",
        "start_server -uid 1000",
    ]
    assert bench.tools.environment() == {
        "CUDA_MPS_LOG_DIRECTORY": f"/{RUN}/claim-uid-a/log",
        "CUDA_MPS_PIPE_DIRECTORY": f"/{RUN}/claim-uid-a/pipe",
        "CUDA_VISIBLE_DEVICES": bench.gpus.stub.node.gpus[0].uuid,
    }
    assert (bench.host / "dev/shm/dradriver-mps-claim-uid-a/cuda.shm").exists()
    (edits,) = bench.made.edits(claim)
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    assert mounts["/tmp/nvidia-mps"] == f"/{RUN}/claim-uid-a/pipe"
    assert mounts["/dev/shm"] == "/dev/shm/dradriver-mps-claim-uid-a"
    bench.made.undone(claim)
    assert not runs(daemon)
    assert bench.tools.commands()[-1] == "quit"
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


def test_the_daemon_is_in_the_root_of_its_driver_with_a_shm_of_its_own(bench: Bench) -> None:
    bench.keepers.start()
    bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    assert Path(f"/proc/{daemon}/root").readlink() == bench.host
    assert Path(f"/proc/{daemon}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
    assert [path.name for path in Path(f"/proc/{daemon}/root/dev/shm").iterdir()] == ["cuda.shm"]
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{daemon}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["Umask"] == "0022"
    assert int(status["SigBlk"], 16) == 0
    assert not int(status["SigIgn"], 16) & 1 << signal.SIGPIPE - 1
    files = [str(path.readlink()) for path in Path(f"/proc/{daemon}/fd").iterdir()]
    assert not [target for target in files if "keeper" in target or "socket" in target]


def test_claims_of_shares_have_one_daemon_until_the_last_one_ends(bench: Bench) -> None:
    bench.keepers.start()
    bench.made = bench.made.restart(mode="shares")
    first, second = (bench.made.prepared(name, GPU, config=MPS, memory="1Gi") for name in ("a", "b"))
    (daemon,) = bench.tools.daemons()
    bench.made.undone(first)
    assert runs(daemon)
    bench.made.undone(second)
    assert not runs(daemon)
    assert bench.left == []


def test_what_a_daemon_says_that_cannot_start_is_told(bench: Bench) -> None:
    bench.keepers.start()
    bench.tools.set("mps-fails")
    reason = bench.made.refusal("a", GPU, config=MPS)
    assert "the MPS control daemon claim-uid-a ended at once: 'cannot start'" in reason
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


# --- what ends


def test_the_driver_ends_and_the_next_one_finds_the_daemon(bench: Bench) -> None:
    bench.keepers.start()
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    bench.made = bench.made.restart()
    assert not isinstance(bench.made.prepare(claim), str)
    assert bench.tools.daemons() == [daemon]
    bench.made.undone(claim)
    assert not runs(daemon)


def test_the_process_at_work_is_killed_and_the_next_one_keeps_the_daemon(bench: Bench) -> None:
    keeper = bench.keepers.start()
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    former = bench.keepers.worker(keeper)
    os.kill(former, signal.SIGKILL)
    bench.keepers.told("the process at work ended: signal 9")
    # A request right then waits for the next one.
    bench.made.undone(bench.made.prepared("b", "gpu-0000-43-00-0", config=MPS))
    assert "MPS control daemon claim-uid-a runs: kept" in bench.keepers.log()
    assert bench.keepers.worker(keeper) != former
    assert bench.tools.daemons() == [daemon]
    bench.made.undone(claim)
    assert not runs(daemon)


def test_the_keeper_is_killed_and_the_next_one_keeps_the_daemon(bench: Bench) -> None:
    keeper = bench.keepers.start()
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    worker = bench.keepers.worker(keeper)
    bench.keepers.kill(keeper)
    gone(worker)
    assert runs(daemon)
    bench.keepers.start()
    assert "MPS control daemon claim-uid-a runs: kept" in bench.keepers.log()
    bench.made = bench.made.restart()
    assert bench.tools.daemons() == [daemon]
    bench.made.undone(claim)
    assert not runs(daemon)
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


def test_a_keeper_that_is_stopped_ends_its_daemons(bench: Bench) -> None:
    keeper = bench.keepers.start()
    claims = [bench.made.prepared("a", GPU, config=MPS)]
    claims += [bench.made.prepared("b", "gpu-0000-43-00-0", config=MPS)]
    daemons = bench.tools.daemons()
    assert len(daemons) == 2
    bench.tools.set("mps-stubborn")
    assert bench.keepers.stop(keeper) == 0
    assert not [daemon for daemon in daemons if runs(daemon)]
    assert not bench.keepers.socket.exists()
    bench.made.undone(*claims)
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


def test_what_others_have_in_the_run_directory_stays(bench: Bench) -> None:
    """As the directories of daemons that are units of systemd."""
    keeper = bench.keepers.start()
    pipe = bench.host / RUN / "claim-of-a-unit/pipe"
    pipe.mkdir(parents=True)
    assert bench.keepers.stop(keeper) == 0
    assert pipe.exists()
    note = json.dumps({"process": os.getpid(), "started": 1})
    pipe.parent.joinpath("process.json").write_text(note)
    keeper = bench.keepers.start()
    assert "MPS control daemon claim-of-a-unit does not run any more" in bench.keepers.log()
    assert bench.keepers.stop(keeper) == 0, "another process that has the number is left alone"
    assert pipe.exists(), "a claim may have it still"
    assert not pipe.with_name("process.json").exists()


def test_a_daemon_that_dies_is_told_of_and_its_claim_is_prepared_anew(bench: Bench) -> None:
    bench.keepers.start()
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    os.kill(daemon, signal.SIGKILL)
    bench.keepers.told("WARNING dradriver.mps: MPS control daemon claim-uid-a ended: signal 9")
    assert not Path(f"/proc/{daemon}").exists(), "nobody is left as a zombie"
    assert not isinstance(bench.made.prepare(claim), str)
    (other,) = bench.tools.daemons()
    assert other != daemon
    bench.made.undone(claim)
    assert bench.left == []


def test_a_driver_that_is_killed_at_any_point_leaves_no_daemon_that_nobody_knows_of(
    bench: Bench, everything: bool
) -> None:
    bench.keepers.start()
    bench.made.claim("a", GPU, config=MPS)
    ref = ClaimRef("uid-a", "default", "a")
    bench.made.close()
    options = {"mpsLauncher": "pod"}
    case = {"root": str(bench.root), "options": options, "work": [["prepare", "a"], ["unprepare", "a"]]}
    with worker("gpuworker.py") as process:
        process.run(case)  # which makes the directories that stay
        ended, passed = process.run(case)
        assert ended == 0
        assert {"after apply of RunMps", "before revert of RunMps"} <= set(passed)
        points = range(1, len(passed) + 1)
        for fatal in points if everything else some(points, 8):
            ended, _ = process.run({**case, "fatal": fatal})
            assert ended == signal.SIGKILL or fatal > len(passed) * 3 // 4
            with machine(bench.root, **options) as made:
                assert not isinstance(made.prepare(ref), str), passed[fatal - 1]
                assert len(bench.tools.daemons()) == 1
                made.undone(ref)
            assert bench.tools.daemons() == []
            assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
            assert bench.left == []


# --- without a keeper


def test_without_a_keeper_a_claim_is_refused_with_what_to_do(bench: Bench) -> None:
    reason = bench.made.refusal("a", GPU, config=MPS)
    assert f"no keeper of MPS control daemons listens on /{RUN}/keeper.sock" in reason
    assert "access.gpu.mpsKeeper" in reason
    assert "docs/install.md" in reason
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []
    with pytest.raises(UnavailableError, match="no keeper"):
        bench.driver().start("claim-b", (UUID,), Limits(), -1, threading.Event())


def test_without_a_keeper_it_is_a_note_of_the_node_and_only_where_it_is_wanted(bench: Bench) -> None:
    def notes() -> list[str]:
        return [note for note in bench.made.pool.snapshot.content.notes if "keeper" in note]

    assert len(notes()) == 1
    bench.keepers.start()
    bench.made.refresh()
    assert notes() == []
    bench.keepers.end()
    bench.keepers.socket.unlink()
    bench.made = bench.made.restart(mpsLauncher="process")
    assert notes() == []


def test_a_claim_ends_without_a_keeper_where_its_daemon_does_not_run_any_more(bench: Bench) -> None:
    """As when its node was drained of the keeper by force: the daemons went with the container."""
    keeper = bench.keepers.start()
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    bench.keepers.kill(keeper)
    bench.show(daemon)
    bench.made = bench.made.restart()
    reason = bench.made.unprepare(claim)
    assert reason
    assert "the MPS control daemon claim-uid-a cannot be ended: no keeper" in reason
    assert runs(daemon)
    shutil.rmtree(bench.host / f"proc/{daemon}")
    os.kill(daemon, signal.SIGKILL)
    bench.made.undone(claim)
    assert bench.mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert bench.left == []


def test_a_prepared_claim_stays_while_the_keeper_is_away(bench: Bench) -> None:
    keeper = bench.keepers.start()
    claim = bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    bench.keepers.kill(keeper)
    bench.show(daemon)
    bench.made = bench.made.restart()
    assert not isinstance(bench.made.prepare(claim), str)
    assert bench.tools.daemons() == [daemon]


def test_a_keeper_that_says_nothing_is_not_waited_for_beyond_the_call(bench: Bench) -> None:
    (bench.host / RUN).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(bench.keepers.socket))
        mute.listen()
        stop = threading.Event()
        threading.Timer(0.3, stop.set).start()
        began = time.monotonic()
        with pytest.raises(TransientError, match="no whole line came in time"):
            bench.driver().start("claim-a", (UUID,), Limits(), -1, stop)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", "nothing came"),
        (b"{", "the connection ended within a line"),
        (b"null\n", "this is no answer"),
        (b'{"runs": "yes"}\n', "this is no answer"),
        (b"x" * (MAX_BYTES + 1), "at most 65536 bytes"),
    ],
)
def test_an_answer_that_is_none_is_an_error(bench: Bench, answer: bytes, expected: str) -> None:
    (bench.host / RUN).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(str(bench.keepers.socket))
        odd.listen()

        def serve() -> None:
            connection, _ = odd.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(TransientError, match=expected):
            bench.driver().start("claim-a", (UUID,), Limits(), -1, threading.Event())
        thread.join()


def test_a_later_keeper_may_say_more(bench: Bench) -> None:
    (bench.host / RUN).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as later:
        later.bind(str(bench.keepers.socket))
        later.listen()

        def serve() -> None:
            connection, _ = later.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b'{"runs": true, "since": 5}\n')

        thread = threading.Thread(target=serve)
        thread.start()
        assert bench.driver().runs("claim-a")
        thread.join()


# --- several at once


def test_two_drivers_at_once_get_one_daemon_of_a_name(bench: Bench) -> None:
    bench.keepers.start()
    bench.tools.set("mps-slow")
    failures: list[BackendError] = []

    def start(name: str) -> None:
        try:
            bench.driver().start(name, (UUID,), Limits(percentage=10), -1, threading.Event())
        except BackendError as error:
            failures.append(error)

    names = ["claim-a", "claim-b", "claim-a", "claim-b", "claim-a", "claim-c"]
    threads = [threading.Thread(target=start, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    daemons = bench.tools.daemons()
    assert len(daemons) == 3
    started = [call for call in bench.tools.calls("nvidia-cuda-mps-control") if call == ["-f"]]
    assert len(started) == 3
    for name in set(names):
        bench.driver().end(name)
    assert not [daemon for daemon in daemons if runs(daemon)]
    assert bench.left == []


def test_an_end_waits_for_a_start_whose_caller_died(bench: Bench) -> None:
    bench.keepers.start()
    bench.tools.set("mps-slow")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(bench.keepers.socket))
        caller.sendall(
            b'{"do": "start", "version": 1, "name": "claim-a", "devices": ["%s"]}\n' % UUID.encode()
        )
        eventually((bench.host / RUN / "claim-a").exists, "the keeper is at work")
    bench.driver().end("claim-a")
    assert bench.tools.daemons() == []
    assert bench.left == []
    assert [call for call in bench.tools.calls("nvidia-cuda-mps-control") if call == ["-f"]]


def test_a_second_keeper_waits_for_the_end_of_the_first(bench: Bench) -> None:
    first = bench.keepers.start()
    bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    second = bench.keepers.start(ready=False)
    bench.keepers.told("another keeper has")
    assert bench.driver().runs("claim-uid-a")
    bench.keepers.kill(first)
    bench.keepers.told("MPS control daemon claim-uid-a runs: kept")
    eventually(lambda: bench.driver().runs("claim-uid-a"), "the second one serves")
    third = bench.keepers.start(ready=False)
    eventually(lambda: bench.keepers.log().count("another keeper has") == 2, "a third one waits")
    assert bench.keepers.stop(third) == 0
    assert runs(daemon), "one that never served ends nothing"
    assert bench.keepers.stop(second) == 0
    assert not runs(daemon)


# --- hostile callers

HOSTILE = [
    b"",
    b"\n",
    b"\0" * 100 + b"\n",
    b"{",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b'"start"\n',
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xfe\n",
    b"[" * 60_000 + b"\n",
    b'{"a":' * 10_000 + b"\n",
    b"x" * (MAX_BYTES + 10),
    b'{"do": "start", "version": 1, "name": "claim-a"}\n',
    b'{"do": "start", "version": 2, "name": "claim-a", "devices": ["GPU-1"]}\n',
    b'{"do": "launch", "version": 1, "name": "claim-a"}\n',
    b'{"do": "runs", "version": 1, "name": "claim-a"}\n{"do": "runs", "version": 1, "name": "claim-a"}\n',
    b'{"do": "runs", "version": 1, "name": "claim-a"}',
    b'{"do": "end", "version": 1, "name": ".."}\n',
    b'{"do": "end", "version": 1, "name": "../settings"}\n',
    b'{"do": "end", "version": 1, "name": "/etc"}\n',
    b'{"do": "end", "version": 1, "name": "keeper.sock"}\n',
    b'{"do": "end", "version": 1, "name": "claim-a\\n"}\n',
    b'{"do": "end", "version": 1, "name": "claim-a\\u0000"}\n',
    b'{"do": "end", "version": 1, "name": ["claim-a"]}\n',
    b'{"do": "end", "version": 1, "name": "%s"}\n' % (b"a" * 200),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"program": "/bin/sh"}, "program"),
    ({"command": ["/bin/sh"]}, "command"),
    ({"environment": {"LD_PRELOAD": "/tmp/x.so"}}, "environment"),
    ({"root": "/tmp"}, "root"),
    ({"devices": []}, "devices"),
    ({"devices": UUID}, "devices"),
    ({"devices": [UUID] * 65}, "devices"),
    ({"devices": ["0"]}, "devices"),
    ({"devices": [f"{UUID},{UUID}"]}, "devices"),
    ({"devices": [f"{UUID}\n"]}, "devices"),
    ({"devices": [f"{UUID}\nLD_PRELOAD=/tmp/x.so"]}, "devices"),
    ({"devices": ["GPU-" + "1" * 100]}, "devices"),
    ({"percentage": 101}, "percentage"),
    ({"percentage": "50\nquit"}, "percentage"),
    ({"percentage": -1}, "percentage"),
    ({"memory": [1.5]}, "memory"),
    ({"memory": [-1]}, "memory"),
    ({"memory": [0] * 65}, "memory"),
    ({"user": -2}, "user"),
    ({"user": 1 << 32}, "user"),
]


def test_whatever_is_said_starts_and_ends_nothing(bench: Bench) -> None:
    keeper = bench.keepers.start()
    worker = bench.keepers.worker(keeper)
    bench.made.prepared("a", GPU, config=MPS)
    (daemon,) = bench.tools.daemons()
    before = sorted(path.name for path in (bench.host / RUN).iterdir())
    for data in HOSTILE:
        answer = bench.keepers.say(data)
        assert answer.get("trouble", "failed") == "failed", data[:80]
    for fields, named in REFUSED:
        answer = bench.keepers.ask("start", "claim-b", **{"devices": [UUID], **fields})
        assert answer["trouble"] == "failed", fields
        assert named in answer["error"], (answer, fields)
    assert bench.keepers.worker(keeper) == worker
    assert bench.tools.daemons() == [daemon]
    assert sorted(path.name for path in (bench.host / RUN).iterdir()) == before
    assert len([call for call in bench.tools.calls("nvidia-cuda-mps-control") if call == ["-f"]]) == 1
    assert bench.keepers.ask("runs", "claim-uid-a") == {"runs": True}
    assert all(line.isprintable() for line in bench.keepers.log().splitlines())
    assert max(map(len, bench.keepers.log().splitlines())) < 1000


def test_callers_who_are_slow_keep_nobody_waiting(bench: Bench) -> None:
    bench.keepers.start()
    slow = []
    for _ in range(8):
        slow.append(socket.socket(socket.AF_UNIX))
        slow[-1].connect(str(bench.keepers.socket))
        slow[-1].sendall(b'{"do"')
    began = time.monotonic()
    assert not bench.driver().runs("claim-a")
    assert time.monotonic() - began < 3
    for connection in slow:
        connection.settimeout(20)
        assert b"no whole line came in time" in connection.recv(1000)
        connection.close()
    assert not bench.driver().runs("claim-a")


def test_more_callers_than_are_served_at_once_take_turns(bench: Bench) -> None:
    bench.keepers.start()
    callers = [socket.socket(socket.AF_UNIX) for _ in range(30)]
    threads = [
        threading.Thread(target=lambda one=one: one.connect(str(bench.keepers.socket)), daemon=True)
        for one in callers
    ]
    for thread in threads:
        thread.start()
    assert not bench.driver().runs("claim-a")
    for caller in callers:
        caller.close()


def test_callers_who_leave_before_the_answer_hurt_nobody(bench: Bench) -> None:
    bench.keepers.start()
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(bench.keepers.socket))
            caller.sendall(b'{"do": "runs", "version": 1, "name": "claim-a"}\n')
    assert not bench.driver().runs("claim-a")
    assert "fault of the keeper" not in bench.keepers.log()


def test_the_socket_is_roots_alone(bench: Bench) -> None:
    bench.keepers.start()
    mode = bench.keepers.socket.stat()
    assert (stat.S_IMODE(mode.st_mode), mode.st_uid) == (0o600, 0)
    bench.root.chmod(0o755)
    script = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.connect(sys.argv[1])\n"
        "print(s.recv(1000).decode())\n"
    )

    def say() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", script, str(bench.keepers.socket)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    assert "PermissionError" in say().stderr
    bench.keepers.socket.chmod(0o666)
    assert "the keeper serves root only" in say().stdout
    bench.keepers.told("of user 65534 was turned away")


# --- in a pod

CONTROL = """#!/bin/sh
process=$CUDA_MPS_PIPE_DIRECTORY/process
if test "$1" = -f; then
    env > "$CUDA_MPS_LOG_DIRECTORY/environment"
    touch /dev/shm/cuda.shm
    touch "${0%/*}/changed" && echo yes > "$CUDA_MPS_LOG_DIRECTORY/writable"
    echo $$ > "$process"
    trap 'exit 0' TERM
    while :; do sleep 0.05; done
fi
kill -0 "$(cat "$process")" || exit 1
while read -r line; do test "$line" = quit && kill "$(cat "$process")"; done
exit 0
"""
MOUNTS = """
mount --rbind / "$1/host"
mount -o remount,bind,ro "$1/host"
mount --bind "$1/run" "$1/host$1/run"
shift
exec "$@"
"""


def test_it_works_with_the_mounts_that_the_chart_gives_it(tmp_path: Path) -> None:
    """The host below a directory, read-only but for the run directory and what is mounted below it, as /dev/shm."""
    if not Path("/dev/shm").is_mount():
        pytest.skip("/dev/shm is no file system of its own")
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        root = Path(name).resolve()
        for path in ("host", "run", "driver/bin"):
            (root / path).mkdir(parents=True)
        control = root / "driver/bin/nvidia-cuda-mps-control"
        control.write_text(CONTROL)
        control.chmod(0o755)
        script = [sys.executable, "-m", "dradriver_gpu.mps", f"--host-root={root}/host"]
        script += [f"--driver-root={root}/driver", f"--run-directory={root}/run"]
        log = tmp_path / "log"
        with log.open("wb") as output:
            keeper = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "--propagation",
                    "slave",
                    "sh",
                    "-ec",
                    MOUNTS,
                    "sh",
                    str(root),
                    *script,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        daemon_name = f"claim-{os.getpid()}"
        shm = Path(f"/dev/shm/dradriver-mps-{daemon_name}")
        try:
            eventually(lambda: "listening on" in log.read_text(), "it listens")
            driver = KeptMps(Host(), f"{root}/run")
            driver.start(daemon_name, (UUID,), Limits(), -1, threading.Event())
            home = root / "run/mps" / daemon_name
            environment = (home / "log/environment").read_text()
            assert f"CUDA_MPS_PIPE_DIRECTORY={home}/pipe\n" in environment
            assert f"CUDA_VISIBLE_DEVICES={UUID}\n" in environment
            assert (shm / "cuda.shm").exists()
            assert not (home / "log/writable").exists()
            process = int((home / "pipe/process").read_text())
            assert Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[1] == str(control).encode()
            driver.end(daemon_name)
            assert not runs(process)
            assert not home.exists()
            assert not shm.exists()
            keeper.terminate()
            assert keeper.wait(PATIENCE) == 0, log.read_text()
        finally:
            keeper.kill()
            keeper.wait()
            shutil.rmtree(shm, ignore_errors=True)


# --- the program


def test_the_program_tells_whether_a_keeper_answers(bench: Bench) -> None:
    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dradriver_gpu.mps", "--check", "--host-root", str(bench.host)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    absent = check()
    assert (absent.returncode, absent.stderr[:28]) == (1, "dradriver-gpu-mps: no keeper")
    bench.keepers.start()
    assert check().returncode == 0


@pytest.mark.parametrize(
    "words", [["--driver-root", "relative"], ["--run-directory", "/a/../b"], ["--nonsense"]]
)
def test_wrong_arguments_end_it_at_once(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dradriver_gpu.mps", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert words[0] in done.stderr


def test_a_run_directory_that_is_too_long_for_a_socket_is_told(bench: Bench) -> None:
    directory = "/run/" + 30 * "long/"
    words = ["--host-root", str(bench.host), "--run-directory", directory]
    keeper = subprocess.Popen(
        [sys.executable, "-m", "dradriver_gpu.mps", *words],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert keeper.stderr
    with keeper.stderr:
        line = keeper.stderr.readline()
        keeper.terminate()
        keeper.stderr.read()
    assert "AF_UNIX path too long (option runDirectory)" in line
    assert keeper.wait(PATIENCE) == 1
