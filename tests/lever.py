"""A backend whose hardware is a directory of files, and which fails on command: for tests of the rooms above it.

Each `lever-*` file is a device; a prepared claim has a file `pulled-<lever>` for each lever that it pulled. A file
`<lever>.<fault>` makes the lever's step misbehave: `fail`, `hang` and `busy` when applied, `jammed` and `sticky` when
reverted, `dark` when it is looked at; or its check, by `shut`, `stuck` and `stiff`. `busy`, `sticky` and `stiff` pass
after as many tries as the file has lines, and never where it is empty. A file `unplugged` hides all levers. A file
`tank-<name>` is a device that claims share.

`Node` puts the engine on top of it, with claims in files.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dradriver.backend import (
    Backend,
    BackendError,
    Check,
    ClaimConfig,
    ContainerEdits,
    HostStep,
    Observed,
    Plan,
    PlannedDevice,
    Request,
    Strict,
    TransientError,
    UnavailableError,
    Work,
)
from dradriver.claims import DirectoryClaims
from dradriver.claims.decode import POD_CLAIM
from dradriver.engine import (
    CDIFiles,
    Engine,
    Journal,
    MetadataFiles,
    Pools,
    Record,
    open_journal,
    refresh_all,
)
from dradriver.host import Host
from dradriver.model import (
    NUMA_NODE,
    Capacity,
    ClaimRef,
    CounterSet,
    Device,
    Peer,
    PoolContent,
    PreparedDevice,
    Quantity,
    RequestPolicy,
)
from dradriver_cdi import Store

DRIVER = "lever.example.com"
BOOT = "boot-1"


class LeverOptions(Strict, frozen=True, kw_only=True):
    """`base` is an edit for every container with a lever; `rail` puts all levers on one rail of so many slots."""

    directory: str
    base: str = ""
    rail: int = 0


class LeverConfig(ClaimConfig, frozen=True, kw_only=True):
    """`steps` parts are pulled for each lever, also after they fell where `mends`; `cogs` names things below levers.

    Levers are looked at before where `checked`.
    """

    steps: int = 1
    mends: bool = False
    checked: bool = False
    note: str = ""
    cogs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps: 0 or more are expected, found {self.steps}")


class RatchetConfig(ClaimConfig, frozen=True, kw_only=True):
    """The configuration of another kind of hardware."""

    teeth: int = 8


@dataclass(frozen=True)
class Look(Check["LeverBackend"]):
    """See that a lever can be pulled."""

    lever: str

    def describe(self) -> str:
        return f"see that lever {self.lever} can be pulled"

    def look(self, backend: "LeverBackend") -> None:
        backend.log.append(("look", self.lever))
        file = backend.directory / self.lever
        while file.with_suffix(".stuck").exists():
            time.sleep(0.02)
        if is_met(file.with_suffix(".stiff")):
            raise TransientError(f"lever {self.lever} is stiff")
        if file.with_suffix(".shut").exists():
            raise BackendError(f"lever {self.lever} is shut in")


def is_met(fault: Path) -> bool:
    """Return whether a fault is there still, which passes after as many tries as its file has lines."""
    try:
        lines = fault.read_text().splitlines()
    except FileNotFoundError:
        return False
    if len(lines) == 1:
        fault.unlink()
    elif lines:
        fault.write_text("\n".join(lines[1:]) + "\n")
    return True


@dataclass(frozen=True)
class Pull(HostStep["LeverBackend"]):
    """Make a file, as a driver would make a partition: its id is known only afterwards."""

    lever: str
    claim: str

    def _fault(self, backend: "LeverBackend", name: str) -> bool:
        return (backend.directory / f"{self.lever}.{name}").exists()

    def _is_busy(self, backend: "LeverBackend", name: str) -> bool:
        return is_met(backend.directory / f"{self.lever}.{name}")

    def apply(self, backend: "LeverBackend", work: Work) -> None:
        backend.log.append(("apply", self.lever))
        if self._is_busy(backend, "busy"):
            raise TransientError(f"lever {self.lever} is busy")
        while self._fault(backend, "hang"):
            time.sleep(0.02)
        file = backend.directory / f"pulled-{self.lever}"
        if file.exists() and file.read_text() != self.claim:
            raise RuntimeError(f"lever {self.lever} is pulled by {file.read_text()}")
        file.write_text(self.claim)
        work.record({"inode": file.stat().st_ino})
        if self._fault(backend, "fail"):
            raise OSError(f"lever {self.lever} is stuck")

    def revert(self, backend: "LeverBackend", work: Work) -> None:
        backend.log.append(("revert", self.lever))
        backend.reverted_with.append(dict(work.facts))
        backend.reverted_after_reboot.append(work.rebooted)
        if self._fault(backend, "dark"):
            raise UnavailableError(f"lever {self.lever} cannot be seen")
        if self._fault(backend, "jammed"):
            raise OSError(f"lever {self.lever} does not come back")
        if self._is_busy(backend, "sticky"):
            raise TransientError(f"lever {self.lever} comes back slowly")
        (backend.directory / f"pulled-{self.lever}").unlink(missing_ok=True)

    def observe(self, backend: "LeverBackend", work: Work) -> Observed:
        if self._fault(backend, "dark"):
            raise UnavailableError(f"lever {self.lever} cannot be seen")
        file = backend.directory / f"pulled-{self.lever}"
        return Observed.DONE if file.exists() and file.read_text() == self.claim else Observed.UNDONE


@dataclass(frozen=True)
class Lean(Pull):
    """The same of what may fall by itself."""

    mends: ClassVar[bool] = True


class LeverBackend(Backend[tuple[str, ...], LeverOptions]):
    kind = "lever"
    options_type = LeverOptions
    config_types: ClassVar[tuple[type[ClaimConfig], ...]] = (LeverConfig,)
    step_types = (Pull, Lean)

    def __init__(self, host: Host, options: LeverOptions) -> None:
        super().__init__(host, options)
        self.log: list[tuple[str, str]] = []
        self.reverted_with: list[dict[str, Any]] = []
        self.reverted_after_reboot: list[bool] = []
        self.probes = 0

    @property
    def directory(self) -> Path:
        return Path(self.options.directory)

    def probe(self) -> tuple[str, ...]:
        self.probes += 1
        if (self.directory / "unplugged").exists():
            raise UnavailableError("the levers are unplugged")
        names = (path.name for path in self.directory.iterdir() if "." not in path.name)
        return tuple(sorted(name for name in names if name.startswith(("lever-", "tank-"))))

    def devices(self, inventory: tuple[str, ...]) -> PoolContent:
        devices = tuple(
            self._tank(name) if name.startswith("tank-") else self._lever(name) for name in inventory
        )
        slots = Quantity.from_int(self.options.rail)
        return PoolContent(devices, (CounterSet("rail", {"slots": slots}),) if self.options.rail else ())

    def _lever(self, name: str) -> Device:
        width = Quantity.from_int(2 if name.endswith("-wide") else 1)
        return Device(
            name=name,
            attributes={NUMA_NODE: 0},
            capacity={"force": Capacity(Quantity.parse("10"))},
            consumes={"rail": {"slots": width}} if self.options.rail else {},
        )

    def _tank(self, name: str) -> Device:
        one = Quantity.parse("1Gi")
        return Device(
            name=name,
            capacity={
                "water": Capacity(Quantity.parse("8Gi"), RequestPolicy(default=one)),
                "taps": Capacity(Quantity.parse("4"), RequestPolicy(default=Quantity.parse("1"))),
            },
            shared=True,
        )

    def plan(
        self,
        request: Request,
        inventory: tuple[str, ...],
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        devices, steps, checks = [], [], []
        cogs: list[str] = []
        for requested in request.devices:
            config = requested.config(LeverConfig)
            lever = requested.allocated.device
            edits = ContainerEdits(env=(f"LEVER_{requested.index}={lever}{config.note}",))
            devices.append(PlannedDevice(requested.allocated, edits, {"note": config.note}))
            names = [f"{lever}-part-{n}" if n else lever for n in range(config.steps)]
            if not requested.allocated.admin and not lever.startswith("tank-"):
                kind = Lean if config.mends else Pull
                steps += [kind(name, request.claim.uid) for name in names]
            cogs += config.cogs
            checks += [Look(lever)] if config.checked else []
        return Plan(tuple(devices), tuple(steps), frozenset(cogs), tuple(checks))

    def render(
        self,
        request: Request,
        plan: Plan,
        facts: tuple[Mapping[str, Any], ...],
        inventory: tuple[str, ...],
    ) -> tuple[PlannedDevice, ...]:
        inodes = ":".join(str(fact["inode"]) for fact in facts)
        known = ContainerEdits(env=(f"INODES={inodes}",))
        rendered = []
        for planned, requested in zip(plan.devices, request.devices, strict=True):
            note = requested.config(LeverConfig).note
            edits = ContainerEdits(env=(f"LEVER_{requested.index}={planned.allocated.device}{note}",))
            rendered.append(
                PlannedDevice(planned.allocated, edits + known if facts else edits, planned.metadata)
            )
        return tuple(rendered)

    def base_edits(self, inventory: tuple[str, ...]) -> ContainerEdits:
        return ContainerEdits(env=(f"BASE={self.options.base}",)) if self.options.base else ContainerEdits()


class RatchetBackend(LeverBackend):
    """Another kind, with no devices of its own."""

    kind = "ratchet"
    config_types: ClassVar[tuple[type[ClaimConfig], ...]] = (RatchetConfig,)

    def probe(self) -> tuple[str, ...]:
        return ()


Answer = tuple[PreparedDevice, ...] | str


class Node:
    """An engine over levers below one directory. `restart` puts a new one on what the last one left there."""

    def __init__(
        self, root: Path, levers: int = 4, boot: str = BOOT, metadata: bool = True, **options: Any
    ) -> None:
        self.root = root
        self.hardware = root / "hardware"
        self.files = root / "claims"
        self.cdi = root / "cdi"
        self.kubelet = root / "kubelet"
        self.state = root / "state" / "journal.db"
        if not self.hardware.exists():
            self.hardware.mkdir(parents=True)
            self.files.mkdir()
            for n in range(levers):
                (self.hardware / f"lever-{n}").touch()
        self.options = LeverOptions(directory=str(self.hardware), **options)
        self.backend = LeverBackend(Host(), self.options)
        self.ratchet = RatchetBackend(Host(), self.options)
        self.pools = Pools("n1", [(DRIVER, self.backend), (DRIVER, self.ratchet)])
        refresh_all(self.pools.all)
        self.aside: Path | None = None
        self.journal: Journal
        self.journal, self.aside = open_journal(self.state)
        self.told: list[tuple[Record, Any]] = []
        self.engine = Engine(
            self.pools,
            DirectoryClaims(self.files),
            self.journal,
            CDIFiles(Store(self.cdi), MetadataFiles(self.kubelet, enabled=metadata)),
            boot,
            prepared=lambda record, obj: self.told.append((record, obj)),
        )
        self.engine.recover()

    def restart(self, boot: str = BOOT, *, metadata: bool = True) -> "Node":
        self.close()
        return Node(self.root, boot=boot, metadata=metadata, base=self.options.base, rail=self.options.rail)

    def close(self) -> None:
        self.engine.close()
        self.journal.close()

    def fault(self, name: str, text: str = "") -> Path:
        file = self.hardware / name
        file.write_text(text)
        return file

    def claim(
        self, name: str, *devices: Any, config: Sequence[Any] = (), uid: str = "", pod_claim: str = ""
    ) -> ClaimRef:
        """Write a claim to which those devices are allocated: names, or results in full."""
        ref = ClaimRef(uid or f"uid-{name}", "default", name)
        obj = claim_object(ref, devices, config)
        if pod_claim:
            obj["metadata"]["annotations"] = {POD_CLAIM: pod_claim}
        (self.files / f"{name}.json").write_text(json.dumps(obj))
        return ref

    def prepare(self, ref: ClaimRef, seconds: float = 20.0) -> Answer:
        return self.engine.prepare(DRIVER, [ref], time.monotonic() + seconds)[ref.uid]

    def unprepare(self, ref: ClaimRef, seconds: float = 20.0) -> str | None:
        return self.engine.unprepare(DRIVER, [ref], time.monotonic() + seconds)[ref.uid]

    @property
    def pulled(self) -> dict[str, str]:
        """Lever -> the claim UID that pulled it."""
        prefix = "pulled-"
        return {
            path.name.removeprefix(prefix): path.read_text()
            for path in sorted(self.hardware.iterdir())
            if path.name.startswith(prefix)
        }

    @property
    def specs(self) -> dict[str, str]:
        """CDI file name -> content."""
        return (
            {path.name: path.read_text() for path in sorted(self.cdi.iterdir())} if self.cdi.exists() else {}
        )

    @property
    def prepared(self) -> set[str]:
        """The UIDs in the journal."""
        return {record.ref.uid for record in self.journal.records()}

    def check_whole(self) -> None:
        """Assert that journal, ledger, CDI files and hardware tell the same."""
        check_whole(self.journal, self.specs, self.pulled)


@contextmanager
def settling(node: Node) -> Iterator[None]:
    """Let the engine settle what it could not settle before, as the daemon does all the time."""
    stop = threading.Event()
    runner = threading.Thread(target=node.engine.run, args=(stop,))
    runner.start()
    try:
        yield
    finally:
        stop.set()
        runner.join()


def check_whole(journal: Journal, specs: Mapping[str, str], pulled: Mapping[str, str]) -> None:
    """Assert that journal, ledger, CDI files and levers tell the same."""
    records = journal.records()
    assert {record.state.value for record in records} <= {"prepared"}
    assert {f"{DRIVER}-claim-{record.ref.uid}.json" for record in records} == {
        name for name in specs if not name.endswith("-base.json")
    }
    levers = {step.body["lever"]: record.ref.uid for record in records for _, step in record.host_steps}
    assert levers == pulled
    holds: dict[str, Quantity] = {}
    for record in records:
        for hold in record.holds:
            holds[hold.unit] = holds.get(hold.unit, Quantity(0)) + hold.amount
    assert {unit: journal.taken(unit) for unit in holds} == holds


def result(device: str, request: str = "r", **fields: Any) -> dict[str, Any]:
    return {"request": request, "driver": DRIVER, "pool": "n1/lever", "device": device} | fields


def config(
    parameters: Any, requests: Sequence[str] = (), source: str = "FromClaim", driver: str = DRIVER
) -> dict[str, Any]:
    return {
        "source": source,
        "requests": list(requests),
        "opaque": {"driver": driver, "parameters": parameters},
    }


def lever_config(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "dradriver.io/v1alpha1", "kind": "LeverConfig"} | fields


def claim_object(ref: ClaimRef, devices: Sequence[Any], config: Sequence[Any] = ()) -> dict[str, Any]:
    results = [result(device) if isinstance(device, str) else device for device in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        "status": {"allocation": {"devices": {"results": results, "config": list(config)}}},
    }
