"""A node of two sockets and eight CPUs: an engine for CPUs and memory, and a container runtime that it joins."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dradriver.backend import TransientError
from dradriver.claims import DirectoryClaims
from dradriver.config import Runtime
from dradriver.daemon.runtime import RuntimeSide
from dradriver.engine import CDIFiles, Engine, Pools, open_journal, refresh_all
from dradriver.host import Host
from dradriver.model import ClaimRef, PreparedDevice
from dradriver.nri import NriState
from dradriver_cdi import Store
from dradriver_cpu.backend import CpuBackend
from dradriver_cpu.config import CpuOptions
from dradriver_memory.backend import MemoryBackend
from dradriver_memory.config import MemoryOptions
from hosttree import HostTree, two_sockets
from nriruntime import NEW, Container, NriRuntime, Plugin, Pod, running, until

NODE = "node-a"
CPU, MEMORY = "cpu.dradriver.io", "memory.dradriver.io"


class Source(DirectoryClaims):
    """Claims from files, which may be out of reach.

    asked   how often one was asked for
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reachable = True
        self.asked = 0

    def get(self, ref: ClaimRef, deadline: float) -> Any:
        """Return the claim, while it can be reached."""
        self.asked += 1
        if not self.reachable:
            raise TransientError("the API server cannot be reached")
        return super().get(ref, deadline)


class RuntimeNode:
    """The node. `daemon` is one life of what dradriver has on it; the runtime outlives it."""

    def __init__(self, root: Path, version: str = NEW) -> None:
        self.root = root
        self.host = two_sockets(root / "host")
        self.claims = root / "claims"
        self.claims.mkdir()
        self.runtime = NriRuntime(root / "nri.sock", version)
        self.source = Source(self.claims)
        self.engine: Engine
        self.side: RuntimeSide

    @property
    def online(self) -> str:
        """The CPUs that dradriver takes to be online."""
        return str(self.side.shared.online)

    @contextmanager
    def daemon(self, reserved: str = "", *, joined: bool = True, join: bool = True) -> Iterator[None]:
        """Run what the daemon has of this, until the end; with `joined` wait for the runtime to be joined.

        join   whether it is on in the configuration
        """
        host = Host(self.host.root)
        pools = Pools(
            NODE,
            [
                (CPU, CpuBackend(host, CpuOptions(reserved=reserved))),
                (MEMORY, MemoryBackend(host, MemoryOptions())),
            ],
        )
        refresh_all(pools.all)
        with ExitStack() as stack:
            journal, _ = open_journal(self.root / "journal.db")
            stack.callback(journal.close)
            settings = Runtime(join=join, needed=True, socket=self.runtime.path, index="50")
            side = RuntimeSide(settings, journal.path, pools, host, self.source)
            stack.callback(side.close)
            self.side = side
            self.engine = Engine(
                pools,
                self.source,
                journal,
                CDIFiles(Store(self.root / "cdi")),
                "boot-1",
                prepared=side.prepared,
                admission=side.admission,
            )
            stack.callback(self.engine.close)
            self.engine.recover()
            side.attend(self.engine)
            before = list(self.runtime.plugins)
            for _, loop in side.loops():
                stack.enter_context(running(loop))
            if joined:
                self.joined(before)
            yield

    def joined(self, before: Sequence[Plugin] = ()) -> None:
        """Wait until the runtime is joined, and has done what it was asked for; `before` are other connections."""
        until(lambda: set(self.runtime.plugins) - set(before), "the runtime is joined")
        until(lambda: self.side.status.state is NriState.ACTIVE, "the plugin knows of it")

    def claim(
        self,
        name: str,
        *results: tuple[str, int],
        pods: Sequence[str] = (),
        consumers: Sequence[Mapping[str, str]] = (),
        namespace: str = "default",
        config: Mapping[str, Any] | None = None,
    ) -> ClaimRef:
        """Write a claim for (device, amount); it is reserved for the pods of these UIDs."""
        ref = ClaimRef(f"uid-{name}", namespace, name)
        reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]
        status = {
            "allocation": {
                "devices": {
                    "results": [self._result(n, *result) for n, result in enumerate(results)],
                    "config": [config] if config else [],
                }
            },
            "reservedFor": [*reserved, *consumers],
        }
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "uid": ref.uid},
            "status": status,
        }
        (self.claims / f"{name}.json").write_text(json.dumps(body))
        return ref

    @staticmethod
    def _result(number: int, device: str, amount: int) -> dict[str, Any]:
        kind = "cpu" if device.startswith("cpu") else "memory"
        capacity = {"cpu": "cpu", "memory": "memory", "hugepages": "hugepages"}[device.partition("-")[0]]
        return {
            "request": f"r{number}",
            "driver": f"{kind}.dradriver.io",
            "pool": f"{NODE}/{kind}",
            "device": device,
            "shareID": f"00000000-0000-4000-8000-{time.monotonic_ns() % 10**12:012d}",
            "consumedCapacity": {capacity: str(amount)},
        }

    def prepare(
        self, ref: ClaimRef, driver: str = CPU, seconds: float = 20.0
    ) -> tuple[PreparedDevice, ...] | str:
        """Prepare a claim of a driver."""
        return self.engine.prepare(driver, [ref], time.monotonic() + seconds)[ref.uid]

    def cdi(self, ref: ClaimRef, *drivers: str) -> list[str]:
        """Prepare a claim, and return the names of its CDI devices."""
        names = []
        for driver in drivers or (CPU,):
            devices = self.prepare(ref, driver)
            assert not isinstance(devices, str), devices
            names += [name for device in devices for name in device.cdi_ids]
        return names

    def env(self, ref: ClaimRef, *drivers: str) -> list[str]:
        """Return the variables that a runtime sets by the CDI devices of a prepared claim."""
        store = Store(self.root / "cdi")
        names = [name for name in store.names("") if ref.uid in name]
        found = [
            variable for name in names for device in store.read(name).devices for variable in device.edits.env
        ]
        assert found
        return found

    def unprepare(self, ref: ClaimRef, driver: str = CPU) -> None:
        """Undo a claim of a driver."""
        assert self.engine.unprepare(driver, [ref], time.monotonic() + 20)[ref.uid] is None

    def pod(self, name: str = "pod", namespace: str = "default") -> Pod:
        """Make a pod, whose UID is its name."""
        return self.runtime.run_pod(name, uid=name, namespace=namespace)

    def plain(self, pod: Pod | None = None) -> Container:
        """Make a container without a claim."""
        return self.runtime.create(pod or self.pod("plain"))

    def cpus(self, container: Container) -> str:
        """Return the CPUs that a container has."""
        return self.runtime.cpus(container)


@contextmanager
def runtime_node(root: Path, version: str = NEW) -> Iterator[RuntimeNode]:
    """Give a node whose runtime runs."""
    node = RuntimeNode(root, version)
    with node.runtime:
        yield node


__all__ = ["CPU", "MEMORY", "HostTree", "RuntimeNode", "runtime_node"]
