"""A whole fake node whose claims are at a stand-in API server, for tests of what is read there and what is told."""

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dradriver.claims.api import ApiClaims
from dradriver.claimstatus import ClaimStatusWriter
from dradriver.clock import SYSTEM, Clock
from dradriver.engine import Record
from dradriver.kube import Client, Connection
from dradriver.model import ClaimRef
from dradriver.sim.apiserver import ApiServer
from waiting import eventually
from wholenode import Answer, Instance, WholeNode

GPU = "gpu-0000-43-00-0-mig-1g-6gb-0"
VF = "nic-0000-44-00-2"


class ClusterNode:
    """A node, an API server, and a daemon's way between them. `restart` puts a new instance on what is left."""

    def __init__(self, root: Path, server: ApiServer, clock: Clock = SYSTEM, **options: Any) -> None:
        self.node = WholeNode(root, **options)
        self.server = server
        self.clock = clock
        self.client = Client(Connection(server.url), qps=1000, burst=1000, clock=clock)
        self.reading = Client(Connection(server.url), qps=1000, burst=1000)
        self.instance: Instance | None = None
        self.writer: ClaimStatusWriter
        self.start()

    def start(self) -> None:
        """Start an instance."""
        self.instance = Instance(self.node, self.instance).activate(ApiClaims(self.reading), self._prepared)
        self.writer = ClaimStatusWriter(
            self.client, self.instance.journal, self.instance.pools.drivers, clock=self.clock
        )

    def _prepared(self, record: Record, claim: object) -> None:
        self.writer.prepared(record, claim)

    @property
    def running(self) -> Instance:
        """The active instance."""
        assert self.instance
        return self.instance

    def restart(self) -> None:
        """End in order, and start anew."""
        self.running.stop()
        self.start()

    def close(self) -> None:
        """End."""
        self.running.stop()
        self.client.close()
        self.reading.close()

    def result(self, number: int, device: str, amount: str = "", **more: Any) -> dict[str, Any]:
        """Return an allocation result; a share where an amount is given."""
        result = self.node.result(device, number, "any", amount, **more)
        if amount:
            result["shareID"] = str(uuid.uuid4())
        return result

    def claim(
        self,
        name: str,
        results: Sequence[Mapping[str, Any]],
        *,
        other: Sequence[Mapping[str, Any]] = (),
        **metadata: Any,
    ) -> ClaimRef:
        """Create an allocated claim. `other` are entries of status.devices that are there already."""
        obj = self.server.store.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default", **metadata},
                "spec": {
                    "devices": {
                        "requests": [
                            {"name": base, "exactly": {"deviceClassName": "any"}}
                            for base in dict.fromkeys(result["request"].split("/")[0] for result in results)
                        ]
                    }
                },
                "status": {
                    "allocation": {"devices": {"results": list(results)}},
                    **({"devices": list(other)} if other else {}),
                },
            }
        )
        return ClaimRef(obj["metadata"]["uid"], "default", name)

    def all_kinds(self, name: str = "all", **more: Any) -> ClaimRef:
        """Create a claim with a device of each driver."""
        devices = ((GPU, ""), (VF, ""), ("cpu-numa-0", "2"), ("memory-numa-0", "4Mi"))
        return self.claim(name, [self.result(n, *device) for n, device in enumerate(devices)], **more)

    def prepare(self, ref: ClaimRef, *drivers: str, seconds: float = 20.0) -> list[Answer]:
        """Let the drivers prepare a claim one after the other, as the kubelet does; all of them without any."""
        return [
            self.running.gate.prepare(driver, [ref], time.monotonic() + seconds)[ref.uid]
            for driver in drivers or self.node.drivers
        ]

    def unprepare(self, ref: ClaimRef) -> None:
        """Let all drivers unprepare a claim."""
        for driver in self.node.drivers:
            assert self.running.gate.unprepare(driver, [ref], time.monotonic() + 20)[ref.uid] is None

    def asked(self, method: str, path: str = "resourceclaims") -> int:
        """Return how many requests of a method there were."""
        return len(self.server.requests.matching(method, path))

    def told(self, ref: ClaimRef) -> list[dict[str, Any]]:
        """Return the status.devices of a claim."""
        status = self.server.store.get("ResourceClaim", ref.name)["status"]
        return list(status.get("devices") or [])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let the writer run."""
        stop = threading.Event()
        runner = threading.Thread(target=self.writer.run, args=(stop,))
        runner.start()
        try:
            yield
        finally:
            stop.set()
            runner.join()

    def idle(self) -> None:
        """Wait until the writer has nothing left to do."""
        eventually(lambda: self.writer.waiting == 0)


@contextmanager
def cluster_node(root: Path, clock: Clock = SYSTEM, **options: Any) -> Iterator[ClusterNode]:
    """Give a node with its API server, and end both."""
    with ApiServer() as server:
        made = ClusterNode(root, server, clock, **options)
        try:
            yield made
        finally:
            made.close()
