"""An engine on a fake node, for tests: claims for its GPUs and network cards, and looks at what they leave behind."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dradriver.backend import NoOptions
from dradriver.claims import DirectoryClaims
from dradriver.engine import CDIFiles, Engine, MetadataFiles, Pool, Pools, open_journal, refresh_all
from dradriver.host import Host
from dradriver.model import ClaimRef, Device, PreparedDevice
from dradriver_cdi import Store
from dradriver_fake import FakeGpuBackend, FakeNicBackend, FakeNode, complaints, leftovers
from dradriver_fake.facts import NodeFacts
from dradriver_fake.node import read_facts

NODE = "n1"
DATA = Path(__file__).parents[1] / "backends/dradriver_fake/data/nodes"
SHARED = Path(__file__).parents[2] / "shared/data"

Answer = tuple[PreparedDevice, ...] | str


def facts_of(node: str) -> NodeFacts:
    """Return the facts of a node that is shipped."""
    return read_facts((DATA / f"{node}.yaml").read_bytes(), node)


def node_with_board(pci_device: str, memory_mib: int, node: str = "small") -> NodeFacts:
    """Return the facts of a small node whose GPU is another board."""
    facts = facts_of(node)
    devices = tuple(
        msgspec.structs.replace(
            device, device=pci_device, gpu=msgspec.structs.replace(device.gpu, memory_mib=memory_mib)
        )
        if device in facts.gpus
        else device
        for device in facts.devices
    )
    return msgspec.structs.replace(facts, devices=devices)


class Machine:
    """A fake node with an engine. `restart` puts a new engine on what the last one left there."""

    def __init__(self, root: Path, node: str | NodeFacts = "small", **options: Any) -> None:
        self.root = root
        self.options = options
        if isinstance(node, NodeFacts):
            file = root / "facts.json"
            root.mkdir(exist_ok=True)
            file.write_bytes(msgspec.json.encode(node))
            node = str(file)
        self.node = node
        built = FakeNode.of({"node": node, **options}, root)
        built.build()
        self.host_root = built.host_root
        host = Host(built.host_root)
        self.gpu = FakeGpuBackend(host, NoOptions())
        self.nic = FakeNicBackend(host, NoOptions())
        self.pools = Pools(NODE, [(f"{b.kind}.dradriver.io", b) for b in (self.gpu, self.nic)])
        refresh_all(self.pools.all)
        (root / "claims").mkdir(exist_ok=True)
        self.journal, _ = open_journal(root / "journal.db")
        self.engine = Engine(
            self.pools,
            DirectoryClaims(root / "claims"),
            self.journal,
            CDIFiles(Store(root / "cdi"), MetadataFiles(root / "kubelet")),
            host.boot_id() or "",
        )
        self.engine.recover()

    def close(self) -> None:
        self.engine.close()
        self.journal.close()

    def restart(self) -> "Machine":
        self.close()
        return Machine(self.root, self.node, **self.options)

    def pool(self, kind: str) -> Pool:
        return next(pool for pool in self.pools.all if pool.backend.kind == kind)

    def refresh(self) -> None:
        refresh_all(self.pools.all)

    def devices(self, kind: str) -> dict[str, Device]:
        return {device.name: device for device in self.pool(kind).snapshot.content.devices}

    def claim(self, name: str, *devices: str, **amounts: str) -> ClaimRef:
        """Write a claim for devices; with amounts it has a share of each."""
        ref = ClaimRef(f"uid-{name}", "default", name)
        share = {"consumedCapacity": amounts} if amounts else {}
        results: list[Mapping[str, Any]] = [
            {
                "request": f"r{index}",
                "driver": f"{device.partition('-')[0]}.dradriver.io",
                "pool": f"{NODE}/{device.partition('-')[0]}",
                "device": device,
                **share,
                **({"shareID": f"{name}-{index}"} if amounts else {}),
            }
            for index, device in enumerate(devices)
        ]
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": ref.uid},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        (self.root / "claims" / f"{name}.json").write_text(json.dumps(body))
        return ref

    def prepare(self, ref: ClaimRef, kind: str = "gpu", seconds: float = 20.0) -> Answer:
        return self.engine.prepare(f"{kind}.dradriver.io", [ref], time.monotonic() + seconds)[ref.uid]

    def unprepare(self, ref: ClaimRef, kind: str = "gpu", seconds: float = 20.0) -> str | None:
        return self.engine.unprepare(f"{kind}.dradriver.io", [ref], time.monotonic() + seconds)[ref.uid]

    def metadata(self, ref: ClaimRef, kind: str, request: str) -> Path:
        """Return the file from which containers learn of the devices of a request."""
        claims = self.root / f"kubelet/plugins/{kind}.dradriver.io/dra-device-metadata"
        return claims / f"{ref.namespace}_{ref.name}/{request}/metadata.json"

    @property
    def leftovers(self) -> tuple[str, ...]:
        return leftovers(self.host_root)

    @property
    def complaints(self) -> tuple[str, ...]:
        return complaints(self.host_root)

    def specs(self, kind: str = "gpu") -> dict[str, Any]:
        """Return the CDI files of a driver, by what follows its name."""
        prefix = f"{kind}.dradriver.io-"
        return {
            path.stem.removeprefix(prefix): json.loads(path.read_text())
            for path in (self.root / "cdi").glob(f"{prefix}*.json")
        }

    def edits(self, ref: ClaimRef, kind: str = "gpu") -> list[dict[str, Any]]:
        """Return the container edits of a claim's devices."""
        spec = self.specs(kind)[f"claim-{ref.uid}"]
        return [device["containerEdits"] for device in spec["devices"]]


@contextmanager
def machine(root: Path, node: str | NodeFacts = "small", **options: Any) -> Iterator[Machine]:
    """Give a machine, and end it."""
    made = Machine(root, node, **options)
    try:
        yield made
    finally:
        made.close()


def environment(edits: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of container edits."""
    return dict(entry.split("=", 1) for entry in edits.get("env", ()))


def names(devices: Sequence[Device]) -> list[str]:
    return [device.name for device in devices]
