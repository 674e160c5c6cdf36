"""A kill at any point of a pod's start, or of its end, leaves nothing on the host that was not there before.

A process of its own runs the steps in real network namespaces, and is killed with SIGKILL at one point of its work: the
points are counted in a first run. What it had recorded is all that the next process knows. Some of the points in every
run, all of them with `--all`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crashes import Worker, some, worker
from dradriver.backend import Observed, Phase
from dradriver_nic import NicBackend
from netns import Namespace, namespace, needs_namespaces
from netstate import State, assert_same, state_of
from nicclaims import Life, backend_on, busy_card, claimed, needs_shares

pytestmark = [needs_namespaces, needs_shares]

CARD = "nic-link-card0"
KILL = 9
MANY, FEW = 1000, 5

CONFIG: dict[str, Any] = {
    "interface": {
        "name": "net1",
        "addresses": ["10.9.0.2/24", "2001:db8:9::2/64"],
        "mtu": 1300,
        "hardwareAddr": "02:00:00:00:00:01",
    },
    "routes": [{"destination": "10.99.0.0/16", "gateway": "10.9.0.1"}],
    "rules": [{"source": "10.9.0.0/24", "table": 1000, "priority": 500}],
}
FEATURES = {"ethtool": {"features": {"tso": False}}}

MODES = {"a link is moved": "vf", "a share": "shares"}
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@pytest.fixture(scope="module")
def process() -> Iterator[Worker]:
    with worker("nicworker.py") as made:
        yield made


@dataclass
class Bench:
    """A host with a card, and a process that works on it and dies."""

    directory: Path
    host: Namespace
    mode: str
    worker: Worker

    def __post_init__(self) -> None:
        with namespace() as wire:
            # The wire lives on with the card's other end in it only as long as the host has it open.
            self._wire = wire.path.open("rb")
            busy_card(self.host, wire)
        self.before = state_of(self.host)

    def close(self) -> None:
        self._wire.close()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "virtualLinks": ["veth"],
            "networkNamespace": str(self.host.path),
            "runDirectory": str(self.directory / "run"),
            "mode": self.mode,
        }

    def backend(self) -> NicBackend:
        return backend_on(self.host, self.directory, mode=self.mode)

    def claimed(self) -> Life:
        """Plan the claim, and start its record anew."""
        # Those of a macvlan link are the card's, and cannot be changed.
        config = CONFIG if self.mode == "shares" else {**CONFIG, **FEATURES}
        return claimed(self.backend(), CARD, config=config)

    def run(self, life: Life, verb: str, pod: Namespace, fatal: int = 0) -> tuple[int, list[str]]:
        """Have the process run all steps; what it recorded is then what the claim knows."""
        file = self.directory / "facts"
        file.write_text(json.dumps(life.facts))
        numbers = [number for number, _ in enumerate(life.records)]
        steps = [
            (verb, number, msgspec.to_builtins(life.records[number]))
            for number in (reversed(numbers) if verb == "revert" else numbers)
            if life.records[number].phase is not Phase.CONTAINER
        ]
        case = {
            "options": self.options,
            "facts": str(file),
            "steps": steps,
            "netns": str(pod.path),
            "fatal": fatal,
        }
        ended, passed = self.worker.run(case)
        life.facts = json.loads(file.read_text())
        return ended, passed

    def check(self, pod: Namespace, empty: State) -> None:
        """See that nothing is left."""
        assert_same(self.host, self.before)
        assert_same(pod, empty)
        assert not [*(self.directory / "run" / "settings").glob("*.json")]


@pytest.fixture
def bench(tmp_path: Path, mode: str, process: Worker) -> Iterator[Bench]:
    with namespace() as host:
        made = Bench(tmp_path, host, mode, process)
        yield made
        made.close()


def chosen(passed: list[str], everything: bool) -> list[int]:
    assert len(passed) > 10
    return some(range(1, len(passed) + 1), MANY if everything else FEW)


@every_mode
def test_a_kill_while_a_pod_starts_is_undone(bench: Bench, everything: bool) -> None:
    with namespace() as pod:
        empty = state_of(pod)
        ended, passed = bench.run(life := bench.claimed(), "apply", pod)
        assert ended == 0
        life.unprepare()
        for fatal in chosen(passed, everything):
            life = bench.claimed()
            ended, _ = bench.run(life, "apply", pod, fatal)
            assert ended == KILL, passed[fatal - 1]
            life.unprepare()
            bench.check(pod, empty)


@every_mode
def test_a_kill_while_a_pod_starts_is_repaired(bench: Bench, everything: bool) -> None:
    """By doing it again, as when the pod is still there once the daemon is back."""
    with namespace() as pod:
        empty = state_of(pod)
        _, passed = bench.run(life := bench.claimed(), "apply", pod)
        life.unprepare()
        for fatal in chosen(passed, everything):
            life = bench.claimed()
            bench.run(life, "apply", pod, fatal)
            life.prepare().start(pod)
            assert set(life.observe(pod)) == {Observed.DONE}
            life.unprepare()
            bench.check(pod, empty)


@every_mode
def test_a_kill_while_a_pod_stops(bench: Bench, everything: bool) -> None:
    with namespace() as pod:
        empty = state_of(pod)
        life = bench.claimed().prepare().start(pod)
        ended, passed = bench.run(life, "revert", pod)
        assert ended == 0
        bench.check(pod, empty)
        for fatal in chosen(passed, everything):
            life = bench.claimed().prepare().start(pod)
            ended, _ = bench.run(life, "revert", pod, fatal)
            assert ended == KILL, passed[fatal - 1]
            life.unprepare()
            bench.check(pod, empty)


@pytest.mark.parametrize("mode", ["shares"], ids=["a share"])
def test_a_kill_and_a_namespace_that_is_gone(bench: Bench, everything: bool) -> None:
    """A pod that was deleted by force while the daemon was dead."""
    with namespace() as pod:
        _, passed = bench.run(life := bench.claimed(), "apply", pod)
        life.unprepare()
    for fatal in chosen(passed, everything):
        life = bench.claimed()
        with namespace() as pod:
            bench.run(life, "apply", pod, fatal)
        life.unprepare()
        assert_same(bench.host, bench.before)


@pytest.mark.parametrize("mode", ["vf"], ids=["a link is moved"])
def test_a_kill_and_hardware_that_came_home_by_itself(bench: Bench, everything: bool) -> None:
    """As the kernel brings hardware back, which is a veth here that must be moved for it."""
    with namespace() as pod:
        _, passed = bench.run(life := bench.claimed(), "apply", pod)
        life.unprepare()
    for fatal in chosen(passed, everything):
        life = bench.claimed()
        with namespace() as pod:
            bench.run(life, "apply", pod, fatal)
            there = [name for name in ("net1", "card0") if f" {name}@" in pod.call("ip", "link")]
            for name in there:
                pod.run(f"link set {name} netns {bench.host.path}")
        life.unprepare()
        assert_same(bench.host, bench.before)
