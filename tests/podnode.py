"""A node with plugs, which go into the network namespaces of pods, and a container runtime that it joins.

A plug is in a pod where a file says so, with the number of the namespace. Namespaces are files, too. What is in a pod
is not seen on the host: a step tells the backend of it, where it moves it, and once more in another process.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dradriver.backend import (
    Backend,
    ContainerEdits,
    HostStep,
    Observed,
    Phase,
    Plan,
    PlannedDevice,
    Request,
    Step,
    Strict,
    TransientError,
    Work,
)
from dradriver.config import Runtime
from dradriver.daemon.runtime import RuntimeSide
from dradriver.engine import CDIFiles, Engine, Journal, Pools, Record, refresh_all
from dradriver.host import Host
from dradriver.model import ClaimRef, Device, Peer, PoolContent, PreparedDevice
from dradriver.nri import NriState
from dradriver_cdi import Store
from nriruntime import NEW, NriRuntime, Pod, running, until
from runtimenode import Source

DRIVER = "plug.example.com"


class Killed(BaseException):
    """What no code of ours catches: it ends as a process that is killed does."""


class PlugOptions(Strict, frozen=True, kw_only=True):
    """Where the plugs are."""

    directory: str


def _fault(backend: "PlugBackend", name: str) -> bool:
    return (backend.directory / name).exists()


@dataclass(frozen=True)
class Fix(HostStep["PlugBackend"]):
    """Fix a plug on the host, at Prepare."""

    plug: str

    def apply(self, backend: "PlugBackend", work: Work) -> None:
        assert work.netns == ""
        (backend.directory / f"fixed-{self.plug}").touch()

    def revert(self, backend: "PlugBackend", work: Work) -> None:
        assert not list(backend.directory.glob(f"in-{self.plug}-*")), "it comes out before"
        (backend.directory / f"fixed-{self.plug}").unlink(missing_ok=True)

    def observe(self, backend: "PlugBackend", work: Work) -> Observed:
        return Observed.DONE if _fault(backend, f"fixed-{self.plug}") else Observed.UNDONE


@dataclass(frozen=True)
class PutIn(HostStep["PlugBackend"]):
    """Put a part of a plug into a pod's network namespace."""

    phase = Phase.SANDBOX

    plug: str
    part: int

    def describe(self) -> str:
        return f"put {self.plug}-{self.part} into the pod"

    def _file(self, backend: "PlugBackend") -> Path:
        return backend.directory / f"in-{self.plug}-{self.part}"

    def apply(self, backend: "PlugBackend", work: Work) -> None:
        backend.log.append(("apply", self.plug, work.netns))
        if backend.dies == ("before", self.part):
            raise Killed
        if _fault(backend, f"{self.plug}.busy"):
            raise TransientError(f"plug {self.plug} is busy")
        while _fault(backend, f"{self.plug}.hang") and not work.stop.is_set():
            time.sleep(0.01)
        number = os.stat(work.netns).st_ino  # noqa: PTH116 - a link of procfs
        file = self._file(backend)
        if file.exists() and file.read_text() != str(number):
            raise RuntimeError(f"plug {self.plug} is in {file.read_text()}, and not in {number}")
        file.write_text(str(number))
        if backend.dies == ("within", self.part):
            raise Killed
        work.record({"number": number})
        backend.away.add(self.plug)
        if self.part and _fault(backend, f"{self.plug}.fail"):
            raise OSError(f"plug {self.plug} does not fit")
        if backend.dies == ("after", self.part):
            raise Killed

    def revert(self, backend: "PlugBackend", work: Work) -> None:
        backend.log.append(("revert", self.plug, work.netns))
        if _fault(backend, f"{self.plug}.jammed"):
            raise OSError(f"plug {self.plug} does not come out")
        if _fault(backend, f"{self.plug}.stuck"):
            raise TransientError(f"plug {self.plug} is stuck")
        self._file(backend).unlink(missing_ok=True)
        backend.away.discard(self.plug)
        if backend.dies == ("back", self.part):
            raise Killed

    def observe(self, backend: "PlugBackend", work: Work) -> Observed:
        file = self._file(backend)
        if not file.exists():
            return Observed.UNDONE
        return Observed.DONE if file.read_text() == str(work.facts.get("number")) else Observed.PARTIAL

    def recall(self, backend: "PlugBackend", work: Work) -> bool:
        backend.away.add(self.plug)
        return True


class PlugBackend(Backend[tuple[str, ...], PlugOptions]):
    """Eighty plugs of two parts each.

    log    what was done: verb, plug, file of the namespace
    away   what is in pods, as far as steps have told
    dies   where it ends as if it were killed: when, and at which part
    """

    kind = "plug"
    options_type = PlugOptions
    step_types: ClassVar[tuple[type[Step[Any]], ...]] = (Fix, PutIn)

    def __init__(self, host: Host, options: PlugOptions) -> None:
        super().__init__(host, options)
        self.log: list[tuple[str, str, str]] = []
        self.away: set[str] = set()
        self.dies: tuple[str, int] | None = None

    @property
    def directory(self) -> Path:
        return Path(self.options.directory)

    def probe(self) -> tuple[str, ...]:
        away = {file.name.split("-", 1)[1].rpartition("-")[0] for file in self.directory.glob("in-*")}
        return tuple(name for name in (f"plug-{n}" for n in range(80)) if name not in away - self.away)

    def devices(self, inventory: tuple[str, ...]) -> PoolContent:
        return PoolContent(tuple(Device(name=name) for name in inventory), ())

    def plan(
        self,
        request: Request,
        inventory: tuple[str, ...],
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        names = [requested.allocated.device for requested in request.devices]
        return Plan(
            tuple(PlannedDevice(requested.allocated, ContainerEdits()) for requested in request.devices),
            tuple(step for name in names for step in (PutIn(name, 0), Fix(name), PutIn(name, 1))),
            frozenset(),
        )

    def render(
        self,
        request: Request,
        plan: Plan,
        facts: tuple[Mapping[str, Any], ...],
        inventory: tuple[str, ...],
    ) -> tuple[PlannedDevice, ...]:
        numbers = ":".join(str(fact["number"]) for fact in facts if "number" in fact)
        edits = ContainerEdits(env=(f"NUMBERS={numbers}",))
        return tuple(PlannedDevice(requested.allocated, edits) for requested in request.devices)


class DyingJournal(Journal):
    """A journal whose process is killed before, or after, one of its next transactions.

    left    how many are written before that; None for all
    """

    def __init__(self, path: Path) -> None:
        self.left: int | None = None
        self.after = False
        super().__init__(path)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._inside or self.left is None:
            with super().transaction():
                yield
            return
        self.left -= 1
        if self.left < 0 and not self.after:
            raise Killed
        with super().transaction():
            yield
        if self.left < 0:
            raise Killed


class PodNode:
    """The node. `daemon` is one life of what dradriver has on it; the runtime outlives it."""

    def __init__(self, root: Path, version: str = NEW) -> None:
        self.root = root
        self.plugs, self.netns, self.claims = (root / name for name in ("plugs", "netns", "claims"))
        for directory in (self.plugs, self.netns, self.claims):
            directory.mkdir()
        self.runtime = NriRuntime(root / "nri.sock", version)
        self.source = Source(self.claims)
        self.told: list[Record] = []
        self.engine: Engine
        self.side: RuntimeSide
        self.journal: DyingJournal
        self.backend: PlugBackend
        self.pools: Pools

    @contextmanager
    def daemon(
        self, boot: str = "boot-1", *, joined: bool = True, join: bool = True, settles: bool = True
    ) -> Iterator[None]:
        """Run what the daemon has of this; with `joined` wait for the runtime to be joined."""
        host = Host(self.root)
        self.backend = PlugBackend(host, PlugOptions(directory=str(self.plugs)))
        self.pools = pools = Pools("node-a", [(DRIVER, self.backend)])
        refresh_all(pools.all)
        with ExitStack() as stack:
            self.journal = DyingJournal(self.root / "journal.db")
            stack.callback(self.journal.close)
            settings = Runtime(join=join, needed=True, socket=self.runtime.path, index="50")
            self.side = side = RuntimeSide(settings, self.journal.path, pools, host, self.source)
            stack.callback(side.close)
            self.engine = Engine(
                pools,
                self.source,
                self.journal,
                CDIFiles(Store(self.root / "cdi")),
                boot,
                prepared=self._prepared,
                admission=side.admission,
            )
            stack.callback(self.engine.close)
            self.engine.recover()
            side.attend(self.engine)
            before = list(self.runtime.plugins)
            if settles:
                stack.enter_context(running(self.engine.run))
            if join:
                for _, loop in side.loops():
                    stack.enter_context(running(loop))
            if joined:
                until(lambda: set(self.runtime.plugins) - set(before), "the runtime is joined")
                until(lambda: side.status.state is NriState.ACTIVE, "the plugin knows of it")
            yield

    def _prepared(self, record: Record, obj: object) -> None:
        self.told.append(record)
        self.side.prepared(record, obj)

    def claim(
        self,
        name: str,
        *plugs: int,
        pods: Sequence[str] = (),
        groups: Sequence[str] = (),
        template: bool = False,
        admin: bool = False,
    ) -> ClaimRef:
        """Write a claim for plugs; it is reserved for the pods of these UIDs."""
        ref = ClaimRef(f"uid-{name}", "default", name)
        results = [
            {
                "request": f"r{n}",
                "driver": DRIVER,
                "pool": "node-a/plug",
                "device": f"plug-{plug}",
                "adminAccess": admin,
            }
            for n, plug in enumerate(plugs)
        ]
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": ref.uid},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [
                    *({"resource": "pods", "name": uid, "uid": uid} for uid in pods),
                    *(
                        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "uid": uid}
                        for uid in groups
                    ),
                ],
            },
        }
        if template:
            body["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "c"}  # type: ignore[index]
        (self.claims / f"{name}.json").write_text(json.dumps(body))
        return ref

    def prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...] | str:
        """Prepare a claim."""
        return self.engine.prepare(DRIVER, [ref], time.monotonic() + 20)[ref.uid]

    def cdi(self, ref: ClaimRef) -> list[str]:
        """Prepare a claim, and return the names of its CDI devices."""
        devices = self.prepare(ref)
        assert not isinstance(devices, str), devices
        return [name for device in devices for name in device.cdi_ids]

    def unprepare(self, ref: ClaimRef) -> None:
        """Undo a claim."""
        assert self.engine.unprepare(DRIVER, [ref], time.monotonic() + 20)[ref.uid] is None

    def namespace(self, name: str) -> Path:
        """Make a namespace."""
        path = self.netns / name
        path.write_text(name)
        return path

    def pod(self, uid: str, netns: str = "") -> Pod:
        """Make a pod, whose UID is its name, in a new namespace."""
        path = self.namespace(netns or f"{uid}-{time.monotonic_ns()}")
        return self.runtime.run_pod(uid, uid=uid, network=str(path))

    def fault(self, name: str) -> Path:
        """Make a fault happen until the file is removed."""
        path = self.plugs / name
        path.touch()
        return path

    def number(self, pod: Pod) -> str:
        """Return the number of a pod's namespace."""
        return str(Path(pod.linux.namespaces[0].path).stat().st_ino)

    @property
    def inside(self) -> dict[str, str]:
        """The parts of plugs that are in a namespace, and its number."""
        found = {}
        for path in sorted(self.plugs.glob("in-*")):
            with contextlib.suppress(FileNotFoundError):  # taken out meanwhile
                found[path.name.removeprefix("in-")] = path.read_text()
        return found

    @property
    def specs(self) -> dict[str, str]:
        """The CDI files."""
        directory = self.root / "cdi"
        return {path.name: path.read_text() for path in sorted(directory.glob("*.json"))}

    def states(self, ref: ClaimRef) -> list[str]:
        """Return the states of a claim's steps of phase sandbox, and of the sandbox: in it or not."""
        record = self.journal.get(DRIVER, ref.uid)
        assert record
        assert record.sandbox
        return [
            *(step.state.value for _, step in record.steps_of(Phase.SANDBOX)),
            "in" if record.sandbox.id else "out",
        ]

    def open_namespaces(self) -> list[str]:
        """Return the files of namespaces that this process has open."""
        found = []
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - not a directory of files
            try:
                target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
            except OSError:
                continue
            if target.startswith(str(self.netns)):
                found.append(target)
        return sorted(found)

    def is_out(self, ref: ClaimRef) -> bool:
        """Return whether a claim is in no pod, and its namespace let go of."""
        return self.states(ref)[-1] == "out" and not self.open_namespaces()

    def check_out(self, ref: ClaimRef) -> None:
        """Assert that a prepared claim is in no pod, and that nothing is left of one."""
        assert self.states(ref) == ["planned", "planned", "out"]
        assert (self.inside, self.specs, self.open_namespaces()) == ({}, {}, [])

    def check_in(self, ref: ClaimRef, plug: int, number: str) -> None:
        """Assert that a claim is wholly in a namespace."""
        assert self.states(ref) == ["applied", "applied", "in"]
        assert self.inside == {f"plug-{plug}-0": number, f"plug-{plug}-1": number}
        (spec,) = self.specs.values()
        assert f"NUMBERS={number}:{number}" in spec


@contextmanager
def pod_node(root: Path, version: str = NEW) -> Iterator[PodNode]:
    """Give a node whose runtime runs."""
    node = PodNode(root, version)
    with node.runtime:
        yield node


def at_once(works: Sequence[Any]) -> None:
    """Do several things at once."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
