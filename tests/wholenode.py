"""A whole fake node with its engine, for tests: GPU partitions, network functions, CPUs, memory and huge pages.

All that a node is stands below one root: `host` (the hardware), `var/state`, `var/cdi`, `var/kubelet` and `claims`. An
`Instance` is what a daemon has of it in memory. `check_agreement` compares what is left behind without the help of what
made it.
"""

import json
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dradriver.backend import Backend
from dradriver.claims import ClaimSource, DirectoryClaims
from dradriver.daemon.active import Gate, acquire
from dradriver.engine import (
    CDIFiles,
    Engine,
    Journal,
    Lane,
    MetadataFiles,
    Pool,
    Pools,
    Record,
    open_journal,
    refresh_all,
)
from dradriver.filelock import FileLock
from dradriver.host import Host
from dradriver.model import ClaimRef, PreparedDevice, Quantity
from dradriver_cdi import Store
from dradriver_cpu import CpuBackend
from dradriver_fake import FakeGpuBackend, FakeNicBackend, FakeNode, complaints
from dradriver_memory import MemoryBackend

NODE = "n1"
BACKENDS: tuple[type[Backend[Any, Any]], ...] = (FakeGpuBackend, FakeNicBackend, CpuBackend, MemoryBackend)
GROUPED = "node.dradriver.io"
API_VERSION = "dradriver.io/v1alpha1"

Answer = tuple[PreparedDevice, ...] | str


def kind_of(device: str) -> str:
    """Return the backend that has a device of that name."""
    kind = device.partition("-")[0]
    return "memory" if kind == "hugepages" else kind


class WholeNode:
    """A node below `root`; built unless it is there. `grouped`: one driver for all kinds instead of one for each."""

    def __init__(self, root: Path, *, grouped: bool = False, **options: Any) -> None:
        self.root = root
        self.grouped = grouped
        self.host_root = root / "host"
        self.state = root / "var" / "state"
        self.cdi = root / "var" / "cdi"
        self.kubelet = root / "var" / "kubelet"
        self.claims = root / "claims"
        self.claims.mkdir(parents=True, exist_ok=True)
        FakeNode.of({"node": "small", "directory": str(self.host_root), **options}, root).build()
        self.host = Host(self.host_root)
        self.backends = [kind(self.host, kind.options_type()) for kind in BACKENDS]
        self.lanes = {kind.kind: Lane(kind.kind) for kind in BACKENDS}

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers of the node."""
        return tuple(dict.fromkeys(self.driver(backend.kind) for backend in BACKENDS))

    def driver(self, kind: str) -> str:
        """Return the driver that has the devices of a kind."""
        return GROUPED if self.grouped else f"{kind}.dradriver.io"

    def drivers_of(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Return the drivers that a claim of these devices needs."""
        return tuple(dict.fromkeys(self.driver(kind_of(device)) for device in devices))

    def result(self, device: str, number: int, claim: str, amount: str = "", **more: Any) -> dict[str, Any]:
        """Return an allocation result; a share where an amount is given."""
        kind = kind_of(device)
        capacity = {"nic": "bandwidth", "gpu": "memory"}.get(kind, device.partition("-")[0])
        share = {"shareID": f"{claim}-{number}", "consumedCapacity": {capacity: amount}} if amount else {}
        return {
            "request": f"r{number}",
            "driver": self.driver(kind),
            "pool": f"{NODE}/{kind}",
            "device": device,
            **share,
            **more,
        }

    def claim(
        self, name: str, results: Sequence[Mapping[str, Any]], config: Sequence[Mapping[str, Any]] = ()
    ) -> ClaimRef:
        """Write an allocated claim, at once; `uid-<name>` is its UID."""
        ref = ref_of(name)
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": ref.namespace, "uid": ref.uid},
            "status": {"allocation": {"devices": {"results": list(results), "config": list(config)}}},
        }
        temporary = self.claims / f".{name}.json"
        temporary.write_text(json.dumps(body))
        temporary.rename(self.claims / f"{name}.json")
        return ref

    def config(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return an opaque configuration for the driver of a kind: `CpuConfig` for "cpu"."""
        parameters = {"apiVersion": API_VERSION, "kind": f"{kind.title()}Config", **fields}
        return {
            "source": "FromClaim",
            "requests": [],
            "opaque": {"driver": self.driver(kind), "parameters": parameters},
        }

    def wipe_cdi(self) -> None:
        """Lose the CDI directory, as a reboot does."""
        shutil.rmtree(self.cdi, ignore_errors=True)


def ref_of(name: str) -> ClaimRef:
    """Return the identity of the claim of that name."""
    return ClaimRef(f"uid-{name}", "default", name)


class Instance:
    """What one daemon has in memory: pools, and once it is active, the journal and the engine.

    CPUs and memory never change here: what an instance `before` saw of them is taken from it. Lanes are the node's:
    their threads end with the process only.
    """

    def __init__(self, node: WholeNode, before: "Instance | None" = None) -> None:
        self.node = node
        self.pools = Pools(NODE, [(node.driver(backend.kind), backend) for backend in node.backends])
        for pool in self.pools.all:
            pool.lane = node.lanes[pool.backend.kind]
        if before:
            for kind in ("cpu", "memory"):
                self._pool(kind).snapshot = before._pool(kind).snapshot
        refresh_all(pool for pool in self.pools.all if not pool.snapshot.probed)
        self.gate = Gate(lambda: True, lambda _: None)
        self._lock = FileLock(node.root / "serialize.lock")
        self._journal: Journal | None = None

    def _pool(self, kind: str) -> Pool:
        pool = self.pools.of_kind(kind)
        assert pool
        return pool

    def look(self) -> None:
        """Probe what may have changed, as the daemon does at each event."""
        refresh_all((self._pool("gpu"), self._pool("nic")))

    @property
    def journal(self) -> Journal:
        """The journal of an active instance."""
        assert self._journal is not None
        return self._journal

    @property
    def engine(self) -> Engine:
        """The engine of an active instance."""
        assert self.gate.engine is not None
        return self.gate.engine

    def activate(
        self, claims: ClaimSource | None = None, prepared: Callable[[Record, object], None] = lambda *_: None
    ) -> "Instance":
        """Become the active instance, as the daemon does; raises what it would meet.

        claims     where claims are read from; the node's files without it
        prepared   told of prepared claims
        """
        assert acquire(self._lock, threading.Event())
        try:
            self._journal, _ = open_journal(self.node.state / "journal.db")
            engine = Engine(
                self.pools,
                claims or DirectoryClaims(self.node.claims),
                self._journal,
                CDIFiles(Store(self.node.cdi), MetadataFiles(self.node.kubelet)),
                self.node.host.boot_id() or "",
                prepared=prepared,
            )
            engine.recover()
        except BaseException:
            self.drop()
            raise
        self.gate.open(engine)
        return self

    def stop(self) -> None:
        """End in order."""
        self.gate.close()
        self.engine.close()
        self.drop()

    def drop(self) -> None:
        """Let go of files and of the lock, and of nothing else."""
        if self._journal:
            self._journal.close()
        self._lock.release()

    def prepare(self, driver: str, *names: str, seconds: float = 20.0) -> dict[str, Answer]:
        """Prepare claims; return what is answered by claim name."""
        answers = self.gate.prepare(driver, [ref_of(name) for name in names], time.monotonic() + seconds)
        return {uid.removeprefix("uid-"): answer for uid, answer in answers.items()}

    def unprepare(self, driver: str, *names: str, seconds: float = 20.0) -> dict[str, str | None]:
        """Unprepare claims; return what is answered by claim name."""
        answers = self.gate.unprepare(driver, [ref_of(name) for name in names], time.monotonic() + seconds)
        return {uid.removeprefix("uid-"): answer for uid, answer in answers.items()}

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Let the engine settle what it could not settle before, as the daemon does all the time."""
        stop = threading.Event()
        runner = threading.Thread(target=self.engine.run, args=(stop,))
        runner.start()
        try:
            yield
        finally:
            stop.set()
            runner.join()


@contextmanager
def active(node: WholeNode) -> Iterator[Instance]:
    """Give an active instance, and end it."""
    instance = Instance(node).activate()
    try:
        yield instance
    finally:
        instance.stop()


def hardware(node: WholeNode) -> list[tuple[Any, ...]]:
    """Return what is created on the hardware, sorted; a GPU instance says how many compute instances it has."""
    made: list[tuple[Any, ...]] = []
    for file in (node.host_root / "fake").glob("*/*/*.json"):
        body = json.loads(file.read_text())
        what, thing, number = file.name.partition("-")[0], file.parent.name, int(file.stem.split("-")[-1])
        if what == "gi":
            compute = [
                json.loads(other.read_text())["gpuInstance"] for other in file.parent.glob("ci-*.json")
            ]
            made.append((thing, what, body["profile"], body["start"], compute.count(number)))
        elif what != "ci":
            made.append((thing, what, body["claim"], body["index"]))
    return sorted(made)


def cdi_files(node: WholeNode) -> dict[str, Any]:
    """Return the content of every file in the CDI directory."""
    if not node.cdi.is_dir():
        return {}
    return {path.name: json.loads(path.read_text()) for path in sorted(node.cdi.iterdir())}


def metadata_files(node: WholeNode) -> dict[tuple[str, str], str]:
    """Return (driver, directory of claim and request) -> UID of the claim, of all that lies where metadata lies."""
    found: dict[tuple[str, str], str] = {}
    for root in node.kubelet.glob("plugins/*/dra-device-metadata"):
        for path in root.rglob("*"):
            place = path.parent if path.name == "metadata.json" else path
            key = root.parent.name, str(place.relative_to(root))
            if path.is_file():
                found[key] = json.loads(path.read_text().splitlines()[0])["metadata"]["uid"]
            elif not any(path.iterdir()):
                found[key] = "nothing"
    return found


def metadata_of(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """Return what `metadata_files` should find of prepared claims."""
    return {
        (
            record.driver,
            f"{record.ref.namespace}_{record.ref.name}/{device.allocated.base_request}",
        ): record.ref.uid
        for record in records
        for device in record.devices
    }


def tables(node: WholeNode) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the journal, as they are on disk; none where there is no journal."""
    names = ("claim", "step", "hold", "unit")
    path = node.state / "journal.db"
    if not path.exists():
        return {name: [] for name in names}
    with closing(sqlite3.connect(path)) as db:
        return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names}


def check_agreement(
    node: WholeNode, journal: Journal, without_cdi: frozenset[tuple[str, str]] = frozenset()
) -> None:
    """Assert that journal, ledger, CDI files and hardware tell the same of claims that are all wholly prepared.

    without_cdi   (driver, claim UID) of claims whose files were taken away by others
    """
    records = journal.records()
    assert {record.state.value for record in records} <= {"prepared"}
    expected: list[tuple[Any, ...]] = []
    for record in records:
        for _, step in record.host_steps:
            body = step.body
            if step.type == "CreatePartition":
                expected.append((body["gpu"], "gi", body["profile"], body["start"], 1))
            else:
                what = {"UseGPU": "use", "MoveNIC": "pod", "AddLink": "link"}[step.type]
                expected.append((body["device"], what, record.ref.uid, body["index"]))
    assert hardware(node) == sorted(expected)
    check_ledger(journal)
    files = cdi_files(node)
    claims = {name for name in files if "-claim-" in name}
    names = {
        (record.driver, record.ref.uid): f"{record.driver}-claim-{record.ref.uid}.json" for record in records
    }
    assert claims >= {name for key, name in names.items() if key not in without_cdi}
    assert claims <= set(names.values())
    assert metadata_files(node) == metadata_of(records)
    for record in records:
        devices = files.get(names[record.driver, record.ref.uid], {"devices": record.devices})["devices"]
        assert len(devices) == len(record.devices)
        if any(device.base for device in record.devices) and not without_cdi:
            assert f"{record.driver}-base.json" in files
    assert all(re.fullmatch(r"[a-z.-]+-(base|claim-[a-z0-9-]+)\.json", name) for name in files), (
        "no left-overs"
    )


def check_ledger(journal: Journal) -> None:
    """Assert that the sums of the ledger are those of its parts, and nothing exclusive is given twice."""
    totals: dict[str, Quantity] = {}
    for record in journal.records():
        for hold in record.holds:
            totals[hold.unit] = totals.get(hold.unit, Quantity(0)) + hold.amount
    rows = {unit: int(nano) for unit, nano in journal._db.execute("SELECT unit, nano FROM unit")}
    assert rows == {unit: total.nano for unit, total in totals.items() if total.nano}
    for unit, total in totals.items():
        if unit.startswith("plan:"):
            assert total == Quantity.from_int(1), unit
        if unit.startswith("device:"):
            assert total <= Quantity.from_int(1), unit


def check_nothing_left(node: WholeNode) -> None:
    """Assert that of no claim anything is left anywhere."""
    assert hardware(node) == []
    assert [name for name in cdi_files(node) if not name.endswith("-base.json")] == []
    assert metadata_files(node) == {}
    assert [rows for rows in tables(node).values() if rows] == []
    assert complaints(node.host_root) == (), "the hardware was asked for what it must never be"
