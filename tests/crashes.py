"""Cases for the crash tests: a node whose state can be put back, processes that die on it, and what must hold after."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wholenode import (
    Answer,
    Instance,
    WholeNode,
    active,
    cdi_files,
    check_agreement,
    check_nothing_left,
    kind_of,
)

TESTS = Path(__file__).resolve().parent
GPU = "gpu-0000-43-00-0"
KEPT = ("var", "claims", "host/fake", "answers")

Files = dict[str, tuple[int, bytes]]
"""By path: mode and content; a directory where the path ends in a slash."""

Key = tuple[str, str]
"""Driver and claim name."""


@dataclass(frozen=True)
class Scenario:
    """Claims, and the calls of the kubelet for them. What is `doomed` cannot be prepared."""

    grouped: bool
    claims: Mapping[str, Sequence[tuple[str, str]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    doomed: frozenset[Key] = frozenset()
    work: Sequence[Sequence[Any]] = ()

    def calls(self, verb: str, *names: str) -> list[list[Any]]:
        """Return the calls for claims, one for each of their drivers."""
        return [[verb, driver, [name]] for name in names for driver in self.drivers(name)]

    def drivers(self, name: str) -> tuple[str, ...]:
        """Return the drivers that a claim needs."""
        kinds = dict.fromkeys(kind_of(device) for device, _ in self.claims[name])
        return ("node.dradriver.io",) if self.grouped else tuple(f"{kind}.dradriver.io" for kind in kinds)

    @property
    def keys(self) -> list[Key]:
        """Each driver's part of each claim that can be prepared."""
        every = [(driver, name) for name in self.claims for driver in self.drivers(name)]
        return [key for key in every if key not in self.doomed]


def scenario(*, grouped: bool) -> Scenario:
    """Return claims over all kinds: prepared, repeated, refused, undone."""
    claims = {
        "whole": [
            (f"{GPU}-mig-1g-6gb-0", ""),
            ("nic-0000-44-00-2", ""),
            ("cpu-numa-0", "2"),
            (f"{GPU}-mig-2g-12gb-2", ""),
            ("memory-numa-0", "1Gi"),
            ("hugepages-2mi-numa-0", "4Mi"),
        ],
        "plain": [("nic-0000-44-00-3", ""), ("cpu-numa-0", "1")],
        "doomed": [("nic-0000-44-00-4", ""), (f"{GPU}-mig-1g-6gb-1", "")],
    }
    options = {"faults": [{"device": f"{GPU}-mig-1g-6gb-1", "does": "fail", "at": "half"}]}
    doomed = frozenset({("node.dradriver.io" if grouped else "gpu.dradriver.io", "doomed")})
    made = Scenario(grouped, claims, options, doomed)
    work = [*made.calls("prepare", "whole", "plain", "doomed"), *made.calls("prepare", "whole")]
    return replace(made, work=[*work, *made.calls("unprepare", "whole", "plain", "doomed")])


def shares() -> Scenario:
    """Return claims that share a GPU and a card."""
    claims = {
        name: [(GPU, "2Gi"), ("nic-0000-44-00-0", "1G"), ("memory-numa-0", "1Gi")] for name in ("one", "two")
    }
    work = [[verb, "node.dradriver.io", ["one", "two"]] for verb in ("prepare", "unprepare")]
    return Scenario(True, claims, {"gpuMode": "shares", "nicMode": "shares"}, work=work)


class Worker:
    """The process of `crashworker`, or of a script like it, started once for many cases."""

    def __init__(self, script: str = "crashworker.py") -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(TESTS / script)],
            env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, case: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Run a case; return the signal that ended it, 0 for none, and the points that were passed."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        status, _, passed = self._process.stdout.readline().partition(" ")
        code = os.waitstatus_to_exitcode(int(status))
        assert code <= 0, f"the worker failed on {case}"
        return -code, json.loads(passed)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


class Bench:
    """One node on which cases run one after the other, each from a state that was kept."""

    def __init__(self, root: Path, of: Scenario, worker: Worker) -> None:
        self.of = of
        self.root = root
        self.node = WholeNode(root, grouped=of.grouped, **of.options)
        self._worker = worker
        for name, devices in of.claims.items():
            results = [
                self.node.result(device, n, name, amount) for n, (device, amount) in enumerate(devices)
            ]
            self.node.claim(name, results)
        Instance(self.node)  # the first look at the hardware starts the clock of its faults
        self.fresh = self.keep()
        self.full: dict[Key, Any] = {}
        self.answers: dict[Key, Answer] = {}
        self._learn()

    def _learn(self) -> None:
        """Prepare each claim without a fault, to know what it is to be."""
        with active(self.node) as instance:
            for driver, name in self.of.keys:
                self.answers[driver, name] = instance.prepare(driver, name)[name]
                assert not isinstance(self.answers[driver, name], str), self.answers[driver, name]
            self.full = sights(self.node, instance)
        self.put_back(self.fresh)

    def keep(self) -> Files:
        """Return all that changes on the node."""
        kept: Files = {}
        for top in KEPT:
            path = self.root / top
            for file in [path, *path.rglob("*")]:
                if file.is_file():
                    kept[str(file.relative_to(self.root))] = (file.stat().st_mode, file.read_bytes())
        for directory in self.node.kubelet.rglob("*"):
            if directory.is_dir():
                kept[f"{directory.relative_to(self.root)}/"] = (directory.stat().st_mode, b"")
        return kept

    def put_back(self, kept: Files) -> None:
        """Bring the node to what `keep` returned."""
        for top in KEPT:
            for file in (self.root / top).rglob("*"):
                if file.is_file() and str(file.relative_to(self.root)) not in kept:
                    file.unlink()
        (self.root / "answers").unlink(missing_ok=True)
        if not any(name.startswith("var/cdi/") for name in kept):
            shutil.rmtree(self.node.cdi, ignore_errors=True)
        shutil.rmtree(self.node.kubelet, ignore_errors=True)
        for name, (mode, content) in kept.items():
            file = self.root / name
            if name.endswith("/"):
                file.mkdir(parents=True, exist_ok=True)
            elif not (name.startswith("host/") and file.is_file() and file.read_bytes() == content):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                file.chmod(mode)

    def run(self, work: Sequence[Any], **more: Any) -> tuple[int, list[str]]:
        """Let a process work on the node; return the signal that ended it, and the points that were passed."""
        return self._worker.run(
            {
                "root": str(self.root),
                "grouped": self.of.grouped,
                "options": self.of.options,
                "work": list(work),
                **more,
            }
        )

    def told(self) -> list[list[Any]]:
        """Return the answers that a process gave before its end: verb, driver, claim name, answer."""
        file = self.root / "answers"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def check_promises(self, instance: Instance, work: Sequence[Any]) -> None:
        """Assert that what was answered holds, where no later call was cut off."""
        told = self.told()
        latest = {(driver, name): (verb, answer) for verb, driver, name, answer in told}
        left = len(told)
        for _, driver, names, *_ in work:
            if left < len(names):  # this call was cut off: its answers may never have come
                latest = {
                    key: last for key, last in latest.items() if key[0] != driver or key[1] not in names
                }
                break
            left -= len(names)
        known = {(record.driver, record.ref.name) for record in instance.journal.records()}
        for (driver, name), (verb, answer) in latest.items():
            prepared = verb == "prepare" and not isinstance(answer, str)
            assert ((driver, name) in known) == prepared, (driver, name, verb, answer)

    def check_whole(self, instance: Instance) -> None:
        """Assert that each claim is wholly prepared or wholly undone."""
        check_agreement(self.node, instance.journal)
        for key, sight in sights(self.node, instance).items():
            assert sight == self.full[key], key

    def check_repeat(self, instance: Instance) -> None:
        """Assert that the kubelet's repeat succeeds, and that Unprepare leaves nothing."""
        for driver, name in self.of.keys:
            assert instance.prepare(driver, name)[name] == self.answers[driver, name]
        assert sights(self.node, instance) == self.full
        check_agreement(self.node, instance.journal)
        for driver, name in self.of.doomed:
            assert isinstance(instance.prepare(driver, name)[name], str)
        for name in self.of.claims:
            for driver in self.of.drivers(name):
                assert instance.unprepare(driver, name) == {name: None}
        check_nothing_left(self.node)

    def check(self, work: Sequence[Any] | None = None) -> None:
        """Assert all of it, after a restart. `work` is what the last process was to do, where one worked last."""
        with active(self.node) as instance:
            if work is not None:
                self.check_promises(instance, work)
            self.check_whole(instance)
            self.check_repeat(instance)


def sights(node: WholeNode, instance: Instance) -> dict[Key, Any]:
    """Return what journal and CDI files say of each claim, without what is another at each Prepare."""
    files = cdi_files(node)
    found = {}
    for record in instance.journal.records():
        file = files.get(f"{record.driver}-claim-{record.ref.uid}.json", {})
        found[record.driver, record.ref.name] = {
            "state": record.state.value,
            "holds": [(hold.unit, hold.index, str(hold.amount)) for hold in record.holds],
            "steps": [(step.type, step.body, step.state.value, sorted(step.facts)) for step in record.steps],
            "devices": [
                (device.allocated, device.base, sorted(device.metadata)) for device in record.devices
            ],
            "cdi": [device["name"] for device in file.get("devices", ())],
            "base": files.get(f"{record.driver}-base.json"),
            "told": [(sorted(device.attributes), device.network is not None) for device in record.devices],
        }
    return found


@contextmanager
def directory() -> Iterator[Path]:
    """Give a directory; in memory where there is such a file system: a kill loses nothing that was written."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@contextmanager
def worker(script: str = "crashworker.py") -> Iterator[Worker]:
    """Give a worker, and end it."""
    made = Worker(script)
    try:
        yield made
    finally:
        made.close()


def some(points: Sequence[int], count: int) -> list[int]:
    """Return that many of the points, evenly spread, the first and the last among them."""
    if len(points) <= count:
        return list(points)
    return [points[round(n * (len(points) - 1) / (count - 1))] for n in range(count)]
