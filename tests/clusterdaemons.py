"""Real daemons on a small fake node, whose API server is a stand-in in the test's own process."""

import random
import socket
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import daemons
from daemons import NODE
from dradriver.model import ClaimRef
from dradriver.sim.allocate import Wish, allocation
from dradriver.sim.apiserver import ApiServer, LoggedRequest
from slicereader import visible
from waiting import eventually

FAKE = "fake: {node: small}\n"
DRIVERS = ("gpu.dradriver.io", "nic.dradriver.io", "cpu.dradriver.io", "memory.dradriver.io")
GPU, NIC, CPU, MEMORY = DRIVERS
POOLS = tuple(f"{NODE}/{driver.partition('.')[0]}" for driver in DRIVERS)
CARD = "gpu-0000-43-00-0"
"""The GPU of the node."""

Body = dict[str, Any]


class Cluster:
    """One node of a cluster."""

    def __init__(self, node: daemons.Node, server: ApiServer) -> None:
        self.node = node
        self.server = server
        self.kubeconfig = node.directory / "kubeconfig"
        server.write_kubeconfig(self.kubeconfig)

    def make_node(self) -> str:
        """Create the Node object; return its UID."""
        made = self.server.store.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        return str(made["metadata"]["uid"])

    def start(self, config: str = FAKE, instance: str = "") -> subprocess.Popen[bytes]:
        """Start a daemon; return at once."""
        return self.node.start(config, instance, kubeconfig=self.kubeconfig)

    def ready(self) -> None:
        """Wait until all pools are published whole."""

        def check() -> bool:
            assert any(process.poll() is None for process in self.node.processes), self.node.log()
            return all(self.offered(pool) is not None for pool in POOLS)

        eventually(check, f"all pools are published: {self.node.directory}")

    def watched(self) -> None:
        """Wait until the slices of all drivers are watched."""
        eventually(lambda: self.server.faults.watches.open == len(DRIVERS), "all slices are watched")

    def slices(self, pool: str = "") -> list[Body]:
        """Return the stored slices, by name."""
        return [
            one
            for one in self.server.store.list("ResourceSlice")
            if pool in {"", one["spec"]["pool"]["name"]}
        ]

    def offered(self, pool: str) -> dict[str, Any] | None:
        """Return the devices that the scheduler sees in a pool, by name; None while the pool is not complete."""
        return visible(one["spec"] for one in self.slices(pool))

    def specs(self) -> dict[str, Body]:
        """Return what all slices say, by name."""
        return {one["metadata"]["name"]: one["spec"] for one in self.slices()}

    def written(self) -> Counter[str]:
        """Return how many requests changed something since the log was cleared, by kind."""
        return self.server.requests.writes()

    def asked(self, verb: str, kind: str) -> list[LoggedRequest]:
        """Return the requests of a kind."""
        return self.server.requests.matching(verb=verb, kind=kind)

    def claim(self, name: str, *devices: str, **more: Any) -> ClaimRef:
        """Create a claim that is allocated to these devices, as `[DRIVER/]NAME[:CAPACITY=AMOUNT,...]`."""
        wishes = {f"request-{number}": [Wish.parse(text)] for number, text in enumerate(devices)}
        requests = [{"name": request, "exactly": {"deviceClassName": "any"}} for request in wishes]
        claim: Body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": requests, **more}},
        }
        specs = [one["spec"] for one in self.slices()]
        claim["status"] = {"allocation": allocation(claim, {"any": {"spec": {}}}, specs, wishes)}
        stored = self.server.store.create(claim)
        return ClaimRef(stored["metadata"]["uid"], "default", name)

    def told(self, ref: ClaimRef) -> dict[str, dict[str, Body]]:
        """Return the conditions of a claim's devices: device -> type -> condition."""
        status = self.server.store.get("ResourceClaim", ref.name)["status"]
        return {
            entry["device"]: {one["type"]: one for one in entry.get("conditions") or ()}
            for entry in status.get("devices") or ()
        }

    def log(self) -> str:
        """Return what all daemons have logged."""
        return self.node.log()


def no_claim(name: str = "absent") -> ClaimRef:
    """Return the identity of a claim that is not there."""
    return ClaimRef(str(uuid.uuid4()), "default", name)


def taints(devices: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Return the keys of the taints of the devices that have any."""
    return {
        name: [taint["key"] for taint in device["taints"]]
        for name, device in (devices or {}).items()
        if device.get("taints")
    }


def errors(answers: Mapping[str, Any]) -> list[str]:
    """Return the claims that could not be prepared, with the reasons."""
    return [answer for answer in answers.values() if isinstance(answer, str)]


@contextmanager
def cluster(*, node_object: bool = True, **options: Any) -> Iterator[Cluster]:
    """Give a node with its API server; `options` are the server's."""
    with ApiServer(**options) as server, daemons.node() as node:
        made = Cluster(node, server)
        if node_object:
            made.make_node()
        yield made


def prepared(answers: Mapping[str, Any], refs: Sequence[ClaimRef]) -> bool:
    """Return whether all these claims are prepared."""
    return all(answers[ref.uid] and not isinstance(answers[ref.uid], str) for ref in refs)


def free_port() -> int:
    """Return a TCP port of the loopback address that nobody has now, nor gets from the kernel unless he asks for it."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(min(10_000, first // 2), first)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
