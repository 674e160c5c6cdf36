"""An engine on a node with GPUs: the real backend on the stub driver, with the driver's files and device nodes.

`GpuMachine.build` makes the node below a directory; `GpuMachine` puts an engine on one that is there, as a daemon that
starts does, in this process or in another.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dradriver.backend import decode
from dradriver.claims import DirectoryClaims
from dradriver.engine import CDIFiles, Engine, MetadataFiles, Pools, open_journal, refresh_all
from dradriver.engine.records import Record
from dradriver.host import Host
from dradriver.model import ClaimRef, Device, PreparedDevice
from dradriver_cdi import Store
from dradriver_gpu import GpuBackend, GpuOptions
from dradriver_gpu.cdi import ContainerEditor
from drivertree import COMPUTE, UBUNTU, DriverTree, Layout, numbers
from gpunode import GpuNode
from nvmlfacts import Node

NODE = "n1"
DRIVER = "gpu.dradriver.io"
BOOT = "boot-1"

Answer = tuple[PreparedDevice, ...] | str


def build(root: Path, node: Node, *, layout: Layout = UBUNTU, missing: Sequence[str] = ()) -> GpuNode:
    """Build a node with the driver, its device nodes, and the capabilities of all instances that can be."""
    made = GpuNode(root, node, root=layout.root, missing=missing)
    tree = DriverTree(made.directory, layout, node.driver)
    tree.install(COMPUTE).kernel().nodes(len(node.gpus))
    made.tree.write("proc/sys/kernel/random/boot_id", BOOT)
    for gpu in node.gpus if any(gpu.profiles for gpu in node.gpus) else ():
        for instance in range(15):
            minor = (gpu.slot * 15 + instance) * 8
            tree.capability(gpu.slot, f"gi{instance}", minor)
            for compute in range(2):
                tree.capability(gpu.slot, f"gi{instance}/ci{compute}", minor + 1 + compute)
    return made


class GpuMachine:
    """An engine with the GPU backend on a node that was built below `root`."""

    def __init__(self, root: Path, options: Mapping[str, Any] | None = None) -> None:
        self.root = root
        self._options = dict(options or {})
        host = Host(root / "host")
        decoded = decode(GpuOptions, self._options, "backends.gpu")
        self.gpu = GpuBackend(host, decoded)
        self.gpu.editor = ContainerEditor(
            host, decoded.driver_root, decoded.driver_capabilities, numbers=numbers
        )
        self.pools = Pools(NODE, [(DRIVER, self.gpu)])
        self.pool = self.pools.all[0]
        self.refresh()
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
        if self.journal.records():
            self.refresh()  # whose instances stand is known only now

    def close(self) -> None:
        self.engine.close()
        self.journal.close()
        self.gpu.close()

    def restart(self, **options: Any) -> "GpuMachine":
        self.close()
        return GpuMachine(self.root, {**self._options, **options})

    def refresh(self) -> None:
        refresh_all(self.pools.all)

    @property
    def devices(self) -> dict[str, Device]:
        return {device.name: device for device in self.pool.snapshot.content.devices}

    def claim(
        self,
        name: str,
        *devices: str,
        config: Mapping[str, Any] | None = None,
        configs: Sequence[Mapping[str, Any]] = (),
        request: str = "",
        admin: bool = False,
        **amounts: str,
    ) -> ClaimRef:
        """Write a claim for devices, each for a request of its own where none is named.

        config    fields of the GpuConfig for all of them; `configs` those for single requests, in the claim's form
        amounts   of the capacities of each device, which is then shared
        """
        ref = ClaimRef(f"uid-{name}", "default", name)
        share = {"consumedCapacity": amounts} if amounts else {}
        results: list[Mapping[str, Any]] = [
            {
                "request": request or f"r{index}",
                "driver": DRIVER,
                "pool": f"{NODE}/gpu",
                "device": device,
                **share,
                **({"shareID": f"{name}-{index}"} if amounts else {}),
                **({"adminAccess": True} if admin else {}),
            }
            for index, device in enumerate(devices)
        ]
        entries = [*configs, *([gpu_config(config)] if config is not None else [])]
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": ref.uid},
            "status": {"allocation": {"devices": {"results": results, "config": entries}}},
        }
        (self.root / "claims" / f"{name}.json").write_text(json.dumps(body))
        return ref

    def prepare(self, ref: ClaimRef, seconds: float = 20.0) -> Answer:
        return self.engine.prepare(DRIVER, [ref], time.monotonic() + seconds)[ref.uid]

    def unprepare(self, ref: ClaimRef, seconds: float = 20.0) -> str | None:
        return self.engine.unprepare(DRIVER, [ref], time.monotonic() + seconds)[ref.uid]

    def prepared(self, name: str, *devices: str, **more: Any) -> ClaimRef:
        """Write a claim and prepare it, which must succeed."""
        ref = self.claim(name, *devices, **more)
        answer = self.prepare(ref)
        assert not isinstance(answer, str), answer
        return ref

    def undone(self, *refs: ClaimRef) -> None:
        """Unprepare claims, which must succeed."""
        for ref in refs:
            assert self.unprepare(ref) is None

    def refusal(self, name: str, *devices: str, seconds: float = 20.0, **more: Any) -> str:
        """Write a claim and prepare it, which must fail; return why. Nothing of it is left."""
        ref = self.claim(name, *devices, **more)
        answer = self.prepare(ref, seconds)
        assert isinstance(answer, str), answer
        assert self.record(ref) is None
        return answer

    def record(self, ref: ClaimRef) -> Record | None:
        return self.journal.get(DRIVER, ref.uid)

    def steps(self, ref: ClaimRef) -> list[str]:
        """Return the steps of a claim, for people."""
        record = self.record(ref)
        assert record
        return [step.text for step in record.steps]

    def edits(self, ref: ClaimRef) -> list[dict[str, Any]]:
        """Return the container edits of a claim's devices."""
        spec = json.loads((self.root / "cdi" / f"{DRIVER}-claim-{ref.uid}.json").read_text())
        return [device["containerEdits"] for device in spec["devices"]]


def gpu_config(fields: Mapping[str, Any], *requests: str) -> dict[str, Any]:
    """Return an entry of a claim's configuration."""
    parameters = {"apiVersion": "dradriver.io/v1alpha1", "kind": "GpuConfig", **fields}
    return {
        "source": "FromClaim",
        "requests": list(requests),
        "opaque": {"driver": DRIVER, "parameters": parameters},
    }


@contextlib.contextmanager
def machine(root: Path, **options: Any) -> Iterator[GpuMachine]:
    """Give an engine on the node below `root`, and end it."""
    made = GpuMachine(root, options)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def at_work(
    root: Path, node: Node, *, mig: bool = True, **options: Any
) -> Iterator[tuple[GpuNode, GpuMachine]]:
    """Build a node, with MIG mode on where `mig`, and give it with an engine on it."""
    gpus = build(root, node)
    for index in range(len(node.gpus)) if mig else ():
        gpus.stub.set_mig(index, enabled=True)
    with machine(root, **options) as made:
        yield gpus, made
