"""A daemon that is killed at any point of its work on GPUs leaves every claim wholly prepared or wholly undone.

A process of its own works on a node with GPUs: it is killed by the stub driver before or after each call that changes
something, or kills itself at each point at which something outlives it. Then the node must be in order, what was
answered must hold, and Unprepare leaves NVML exactly as it was. Some of the points in every run, all with `--all`.
"""

import json
import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from crashes import Worker, directory, some, worker
from dradriver.engine.records import State
from dradriver.model import ClaimRef
from dradriver_gpu.inventory import gpu_name
from gpumachine import GpuMachine, build, machine
from gpunode import GpuNode
from gputools import GpuTools
from nvmlclients import Operator
from nvmlfacts import Node
from nvmlnodes import a100_80, h100, mixed
from nvmlstub import Fault, GpuState
from pcibus import Bus

CHANGES = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceSetComputeMode",
)
HOPPER, AMPERE = "gpu-0000-1b-00-0", "gpu-0000-07-00-0"
EXCLUSIVE = {"sharing": {"exclusive": True}}


@pytest.fixture(scope="module")
def process() -> Iterator[Worker]:
    with worker("gpuworker.py") as made:
        yield made


@pytest.fixture
def root() -> Iterator[Path]:
    with directory() as made:
        yield made


@dataclass
class Bench:
    """A node on which processes work and die, and what must be true of it.

    strangers   places (GPU, profile, start) of instances that somebody else made
    """

    root: Path
    node: Node
    worker: Worker
    options: Mapping[str, Any]
    claims: Mapping[str, Mapping[str, Any]]
    strangers: Sequence[tuple[int, int, int]] = ()
    gpus: GpuNode = field(init=False)
    before: tuple[GpuState, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.gpus = build(self.root, self.node)
        for index, gpu in enumerate(self.node.gpus):
            if not int(gpu.facts.get("mig-without-reset", 0)):
                self.gpus.stub.set_mig(index, enabled=True)
        for index, profile, start in self.strangers:
            self.gpus.stub.set_mig(index, enabled=True)
            Operator(self.gpus.stub).create(index, profile, start, compute_profile=0)
        self.before = self.gpus.stub.state()
        with machine(self.root, **self.options) as made:
            for name, claim in self.claims.items():
                made.claim(name, *claim["devices"], config=claim.get("config"), **claim.get("amounts", {}))

    def run(self, *work: tuple[str, str], **more: Any) -> tuple[int, list[str]]:
        """Let a process work; return the signal that ended it, and the points that were passed."""
        (self.root / "answers").unlink(missing_ok=True)
        return self.worker.run(
            {"root": str(self.root), "options": self.options, "work": [list(one) for one in work], **more}
        )

    def die(self, fatal: int, passed: Sequence[str], *work: tuple[str, str]) -> None:
        """Let a process work until a point, of those that another one passed.

        How often something is asked until it is ready varies, and with it the number of points.
        """
        ended, _ = self.run(*work, fatal=fatal)
        assert ended == signal.SIGKILL or fatal > len(passed) * 3 // 4, passed[fatal - 1]

    def _told(self, work: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
        """Return the last answer for each claim, verb and error; none of the one whose call was cut off."""
        file = self.root / "answers"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        told = {name: (verb, error) for verb, name, error in lines}
        if len(lines) < len(work):
            told.pop(work[len(lines)][1], None)
        return told

    def check(self, made: GpuMachine, *work: tuple[str, str]) -> list[str]:
        """Assert that all is in order after a restart; return the names of the claims that are prepared.

        work   what the last process was to do
        """
        records = {record.ref.name: record for record in made.journal.records()}
        assert all(record.state is State.PREPARED for record in records.values())
        for name, (verb, error) in self._told(work).items():
            assert (name in records) == (verb == "prepare" and not error), (name, verb, error)
        wanted = set(self.strangers)
        for record in records.values():
            for step in record.steps:
                if step.type == "CreatePartition":
                    index = [gpu_name(gpu.bus_id) for gpu in self.node.gpus].index(step.body["gpu"])
                    wanted.add((index, step.body["profile_id"], step.body["start"]))
        state = self.gpus.stub.state()
        there = {(n, one.profile, one.start) for n, gpu in enumerate(state) for one in gpu.gpu_instances}
        assert there == wanted
        assert sum(len(gpu.compute_instances) for gpu in state) == len(wanted)
        for name in records:
            assert not isinstance(made.prepare(ref(name)), str)
        return sorted(records)

    def check_back(self, *work: tuple[str, str]) -> None:
        """Assert that all is in order, the kubelet's repeat succeeds, and Unprepare leaves all as it was."""
        with machine(self.root, **self.options) as made:
            self.check(made, *work)
            for name in self.claims:
                answer = made.prepare(ref(name))
                assert not isinstance(answer, str), answer
            made.undone(*map(ref, self.claims))
            assert made.journal.records() == []
        assert self.gpus.stub.state() == self.before
        assert not list((self.root / "host/run/dradriver-gpu").glob("settings/*"))


def ref(name: str) -> ClaimRef:
    return ClaimRef(f"uid-{name}", "default", name)


def two_kinds() -> Node:
    """A Hopper, which changes MIG mode at once, and an Ampere, which is in it."""
    return mixed(h100(1), a100_80(1))


CLAIMS: Mapping[str, Mapping[str, Any]] = {
    "parts": {
        "devices": [f"{HOPPER}-mig-1g-10gb-6", f"{AMPERE}-mig-3g-40gb-4", f"{HOPPER}-mig-1g-20gb-2"],
    },
    "other": {"devices": [f"{HOPPER}-mig-2g-20gb-4"]},
}
WORK = [("prepare", "parts"), ("prepare", "other"), ("unprepare", "parts"), ("unprepare", "other")]
OPTIONS = {"mode": "partitions", "migMode": "switch"}


def test_a_kill_before_and_after_each_change_of_a_gpu(root: Path, process: Worker, everything: bool) -> None:
    bench = Bench(root, two_kinds(), process, OPTIONS, CLAIMS, strangers=[(1, 19, 0)])
    stub = bench.gpus.stub
    stub.record()
    ended, _ = bench.run(*WORK)
    assert ended == 0
    calls = [call.function for call in stub.calls() if call.function in CHANGES]
    stub.record(calls=False)
    assert set(calls) >= set(CHANGES[:5])
    faults = [
        Fault(function, action, first=first)
        for function in dict.fromkeys(calls)
        for first in range(1, calls.count(function) + 1)
        for action in ("kill", "killafter")
    ]
    for fault in faults if everything else faults[:: len(faults) // 8]:
        stub.faults(fault)
        ended, _ = bench.run(*WORK)
        assert ended == signal.SIGKILL
        stub.faults()
        bench.check_back(*WORK)


def test_a_kill_at_any_point_of_the_work(root: Path, process: Worker, everything: bool) -> None:
    claims = {**CLAIMS, "whole": {"devices": ["gpu-0000-43-00-0"], "config": EXCLUSIVE}}
    node = mixed(h100(2), a100_80(1))
    bench = Bench(root, node, process, OPTIONS, claims, strangers=[(2, 19, 0)])
    work = [("prepare", "whole"), *WORK, ("unprepare", "whole")]
    bench.run(*work)  # which makes the directories that stay
    ended, passed = bench.run(*work)
    assert ended == 0
    assert {
        f"after apply of {step}" for step in ("SwitchMigMode", "CreatePartition", "SetComputeMode")
    } <= set(passed)
    points = range(1, len(passed) + 1)
    for fatal in points if everything else some(points, 12):
        bench.die(fatal, passed, *work)
        bench.check_back(*work)


def test_a_kill_at_any_point_of_the_way_back(root: Path, process: Worker, everything: bool) -> None:
    bench = Bench(root, two_kinds(), process, OPTIONS, CLAIMS)
    bench.run(*WORK)
    _, passed = bench.run(*WORK)
    for first in some(range(1, len(passed) + 1), 20 if everything else 4):
        assert bench.run(*WORK, fatal=first)[0] == signal.SIGKILL
        for second in range(3, 60, 2 if everything else 14):
            if bench.run(fatal=second)[0] == 0:
                break
        bench.check_back()


def test_a_kill_at_any_point_of_sharing(tmp_path: Path, process: Worker, everything: bool) -> None:
    """Two claims that share a GPU by MPS, one with a GPU to itself whose processes run in turn.

    Not in /dev/shm, which control daemons see another one of.
    """
    root = tmp_path / "node"
    mps: Mapping[str, Any] = {
        "devices": [HOPPER],
        "config": {"sharing": {"mps": {}}},
        "amounts": {"memory": "1Gi"},
    }
    slices = {"sharing": {"timeSlicing": {"interval": "Long"}}}
    claims = {"one": mps, "two": mps, "slices": {"devices": ["gpu-0000-43-00-0"], "config": slices}}
    options = {"mode": "shares", "modes": {"gpu-0000-43-00-0": "whole"}, "mpsLauncher": "process"}
    bench = Bench(root, h100(2), process, options, claims)
    tools = GpuTools(root / "host")
    work = [
        ("prepare", "one"),
        ("prepare", "two"),
        ("prepare", "slices"),
        *(("unprepare", name) for name in claims),
    ]
    try:
        bench.run(*work)
        _, passed = bench.run(*work)
        assert {f"after revert of {step}" for step in ("RunMps", "SetComputeMode", "SetTimeSlice")} <= set(
            passed
        )
        points = range(1, len(passed) + 1)
        for fatal in points if everything else some(points, 8):
            bench.die(fatal, passed, *work)
            bench.check_back(*work)
            assert tools.daemons() == []
            assert tools.timeslice(bench.node.gpus[1].uuid) == 0
            assert not list((root / "host/run/dradriver-gpu/mps").iterdir())
    finally:
        tools.kill()


def test_a_kill_at_any_point_of_passing_through(root: Path, process: Worker, everything: bool) -> None:
    options = {"mode": "whole", "passthrough": True}
    claims = {"vm": {"devices": [f"{HOPPER}-vfio"]}, "whole": {"devices": ["gpu-0000-43-00-0"]}}
    bench = Bench(root, h100(2), process, options, claims)
    address = bench.node.gpus[0].bus_id
    work = [(verb, name) for verb in ("prepare", "unprepare") for name in claims]
    with Bus(bench.gpus).serving() as bus:
        bench.run(*work)
        _, passed = bench.run(*work)
        assert {"after apply of BindVfio", "after revert of BindVfio"} <= set(passed)
        assert ("bind", address, "vfio-pci") in bus.log
        points = range(1, len(passed) + 1)
        for fatal in points if everything else some(points, 8):
            bench.die(fatal, passed, *work)
            bench.check_back(*work)
            assert (bus.driver(address), bus.override(address)) == ("nvidia", "")


def test_random_work_and_crashes_leave_nvml_as_it_was(root: Path, process: Worker, everything: bool) -> None:
    """Eight GPUs: partitions of four, one with a stranger; whole ones with a compute mode; one shared."""
    node = mixed(h100(5), a100_80(3))
    options = {
        "mode": "partitions",
        "migMode": "switch",
        "modes": {"gpu-0000-5d-00-0": "whole", "gpu-0000-43-00-0": "shares"},
        "shares": 4,
    }
    with directory() as other:
        build(other, node)
        with machine(other, **options) as made:
            devices = [name for name in made.devices if name != "gpu-0000-43-00-0"]
    dice = random.Random(20)
    claims: dict[str, Mapping[str, Any]] = {}
    for number in range(24):
        chosen = dice.sample(devices, dice.choice([1, 1, 2]))
        config = EXCLUSIVE if all("mig" not in name for name in chosen) else None
        claims[f"c{number}"] = {"devices": chosen, "config": config}
    bench = Bench(root, node, process, options, claims, strangers=[(1, 9, 4), (6, 14, 2)])
    cut_off = served = 0
    lives = 1000 if everything else 20
    for _ in range(lives):
        prepared: list[str] = []
        rounds = dice.choice([1, 2, 3])
        for number in range(rounds):
            work = [
                ("unprepare" if name in prepared or dice.random() < 0.2 else "prepare", name)
                for name in dice.sample(sorted(claims), dice.choice([2, 3, 4]))
            ]
            if dice.random() < 0.3:
                action = dice.choice(["kill", "killafter"])
                bench.gpus.stub.faults(Fault(dice.choice(CHANGES), action, first=dice.randint(1, 3)))
            ended, _ = bench.run(*work, fatal=dice.choice([0, dice.randint(1, 200)]))
            bench.gpus.stub.faults()
            cut_off += ended == signal.SIGKILL
            with machine(root, **options) as made:
                prepared = bench.check(made, *work)
                served += len(prepared)
                if number == rounds - 1:
                    made.undone(*map(ref, prepared))
                    assert made.journal.records() == []
        assert bench.gpus.stub.state() == bench.before
    assert cut_off > lives // 3
    assert served > lives
