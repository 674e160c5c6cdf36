"""Real daemons whose host is a network namespace of its own, with cards in it, an API server and a container runtime.

The daemon runs in that namespace, as a pod with `hostNetwork` does, and nothing of this machine's own is touched. Pods
have real network namespaces; what the kubelet does for them is done over the daemon's sockets.
"""

import contextlib
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import daemons
from daemons import NODE
from dradriver.model import ClaimRef, PreparedDevice
from dradriver.sim.allocate import Wish, allocation
from dradriver.sim.apiserver import ApiServer
from dradriver.sim.kubelet import Kubelet
from dradriver_nic.netns import inside
from netns import Namespace, namespace
from nicclaims import cable
from nriruntime import Container, NriRuntime
from nriruntime import Pod as Sandbox
from waiting import eventually

DRIVER = "nic.dradriver.io"
POOL = f"{NODE}/nic"

Body = dict[str, Any]


@dataclass
class Pod:
    """A pod, as the kubelet and the runtime see it.

    space     its network namespace
    claims    prepared for it, with the names of their CDI devices
    """

    uid: str
    space: Namespace
    claims: dict[ClaimRef, list[str]] = field(default_factory=dict)
    sandbox: Sandbox = field(default_factory=Sandbox)

    @property
    def cdi(self) -> list[str]:
        """The CDI devices of all its claims."""
        return [name for names in self.claims.values() for name in names]


class NicHost:
    """The node.

    host, wire   network namespaces: of the node, and of what its cards are cabled to
    starts       how often a daemon was started
    """

    def __init__(
        self, node: daemons.Node, host: Namespace, wire: Namespace, server: ApiServer, runtime: NriRuntime
    ) -> None:
        self.node = node
        self.host = host
        self.wire = wire
        self.server = server
        self.runtime = runtime
        self.kubeconfig = node.directory / "kubeconfig"
        self.kubelet = Kubelet(node.kubelet_root)
        self.starts = 0
        for name in ("plugins", "plugins_registry"):
            (node.kubelet_root / name).mkdir(parents=True)
        server.write_kubeconfig(self.kubeconfig)
        server.store.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})

    # --- the daemon

    def config(self, **nri: Any) -> str:
        """Return the configuration of the daemon."""
        nic = {
            "virtualLinks": ["veth"],
            "modes": {"share*": "shares"},
            "bandwidths": {"share*": "100G"},
            "runDirectory": str(self.node.directory / "run"),
        }
        return yaml.safe_dump(
            {
                "kubeletRoot": str(self.node.kubelet_root),
                "state": str(self.node.directory / "state"),
                "cdi": str(self.node.cdi),
                "drivers": [{"name": DRIVER, "backends": ["nic"]}],
                "backends": {"nic": nic},
                "nri": {"socket": str(self.runtime.path), **nri},
            }
        )

    def start(self, cards: int, **nri: Any) -> subprocess.Popen[bytes]:
        """Start a daemon, and wait until it has published that many cards, and joined the runtime where it may."""
        joined = len(self.runtime.connections)
        process = self.node.start(
            self.config(**nri),
            kubeconfig=self.kubeconfig,
            within=["nsenter", f"--net={self.host.path}"],
            own_directory=False,
        )

        def is_ready() -> bool:
            assert process.poll() is None, self.node.log()
            return len(self.devices()) == cards and self.node.log().count("active on node") == self.starts

        self.starts += 1
        eventually(is_ready, "the daemon is active and has published")
        if nri.get("enabled", True):
            eventually(lambda: self.runtime.plugins and self.runtime.connections[joined:], "it has joined")
        return process

    def devices(self) -> dict[str, Body]:
        """Return the published devices by name."""
        slices = self.server.store.list("ResourceSlice")
        return {device["name"]: device for one in slices for device in one["spec"].get("devices") or ()}

    # --- claims

    def claim(
        self,
        name: str,
        *devices: str,
        pods: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> ClaimRef:
        """Create a claim that is allocated to these devices, as `NAME[:CAPACITY=AMOUNT,...]`, and reserved for pods."""
        wishes = {f"r{number}": [Wish.parse(text)] for number, text in enumerate(devices)}
        requests = [{"name": request, "exactly": {"deviceClassName": "any"}} for request in wishes]
        claim: Body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": requests, **({"config": [opaque(config)]} if config else {})}},
        }
        specs = [one["spec"] for one in self.server.store.list("ResourceSlice")]
        claim["status"] = {
            "allocation": allocation(claim, {"any": {"spec": {}}}, specs, wishes),
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in pods],
        }
        stored = self.server.store.create(claim)
        return ClaimRef(stored["metadata"]["uid"], "default", name)

    def prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...] | str:
        """Prepare a claim."""
        return self.kubelet.prepare(DRIVER, [ref])[ref.uid]

    def unprepare(self, ref: ClaimRef) -> str | None:
        """Undo a claim."""
        return self.kubelet.unprepare(DRIVER, [ref])[ref.uid]

    def told(self, ref: ClaimRef) -> dict[str, Body]:
        """Return what the claim's status says of its devices, by device."""
        status = self.server.store.get("ResourceClaim", ref.name)["status"]
        return {entry["device"]: entry for entry in status.get("devices") or ()}

    def ready(self, ref: ClaimRef) -> set[tuple[str, str]]:
        """Return status and reason of the condition Ready of all devices of a claim."""
        return {
            (one["status"], one["reason"])
            for entry in self.told(ref).values()
            for one in entry["conditions"]
            if one["type"] == "Ready"
        }

    def becomes(self, status: str, reason: str, *claims: ClaimRef) -> None:
        """Wait until the condition Ready of all devices of these claims says so."""
        for ref in claims:
            eventually(lambda ref=ref: self.ready(ref) == {(status, reason)}, f"{ref} is told {reason}")  # type: ignore[misc]

    # --- pods

    def pod(self, uid: str = "", *claims: ClaimRef) -> Pod:
        """Do what the kubelet does first: prepare the claims of a pod, whose network namespace is made then."""
        pod = Pod(uid or str(uuid.uuid4()), Namespace())
        for ref in claims:
            devices = self.prepare(ref)
            assert not isinstance(devices, str), devices
            pod.claims[ref] = [name for device in devices for name in device.cdi_ids]
        return pod

    def run(self, pod: Pod) -> Container:
        """Run the sandbox of a pod, and a container in it. Raises Refused."""
        self.run_sandbox(pod)
        return self.runtime.create(pod.sandbox, cdi=pod.cdi)

    def run_sandbox(self, pod: Pod) -> None:
        """Run the sandbox of a pod. Raises Refused."""
        pod.sandbox = self.runtime.run_pod(pod.uid, uid=pod.uid, network=str(pod.space.path))

    def end(self, pod: Pod) -> None:
        """Stop and remove the sandbox of a pod, and undo its claims."""
        self.runtime.stop_pod(pod.sandbox)
        self.runtime.remove_pod(pod.sandbox)
        pod.space.close()
        for ref in pod.claims:
            assert self.unprepare(ref) is None

    def specs(self) -> list[Path]:
        """Return the CDI files of claims."""
        return sorted(self.node.cdi.glob("*.json"))


def opaque(fields: Mapping[str, Any]) -> Body:
    """Return an entry of a claim's configuration."""
    parameters = {"apiVersion": "dradriver.io/v1alpha1", "kind": "NicConfig", **fields}
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


@contextlib.contextmanager
def nic_host(shares: Sequence[str] = (), whole: Sequence[str] = ()) -> Iterator[NicHost]:
    """Give a node with these cards, whose daemon is yet to be started."""
    with contextlib.ExitStack() as stack:
        host, wire = stack.enter_context(namespace()), stack.enter_context(namespace())
        for number, card in enumerate([*shares, *whole]):
            cable(host, card, wire, f"wire{number}")
        server = ApiServer()
        stack.callback(server.stop)
        inside(host.path, server.start)
        node = stack.enter_context(daemons.node())
        runtime = stack.enter_context(NriRuntime(node.directory / "nri.sock"))
        made = NicHost(node, host, wire, server, runtime)
        stack.callback(made.kubelet.close)
        yield made
