"""Real daemons in processes of their own, below a short directory, and claims for them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dradriver.model import ClaimRef
from dradriver.sim.kubelet import Kubelet
from waiting import PATIENCE, eventually

NODE = "node-a"


class Node:
    """A directory in which daemons run as on one node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubelet_root = directory / "kubelet"
        self.cdi = directory / "cdi"
        self.slices = directory / "slices"
        self.claims = directory / "claims"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._logs = 0

    def start(
        self,
        config: str = "",
        instance: str = "",
        environment: Mapping[str, str] | None = None,
        kubeconfig: Path | None = None,
        within: Sequence[str] = (),
        own_directory: bool = True,
    ) -> subprocess.Popen[bytes]:
        """Start a daemon; return at once.

        within          a command that becomes it, as `nsenter`
        own_directory   whether it keeps everything below the node's directory unasked (`--dir`)
        """
        (self.directory / "config.yaml").write_text(config)
        self._logs += 1
        log = (self.directory / f"log-{self._logs}").open("wb")
        arguments = [*within, sys.executable, "-m", "dradriver.daemon"]
        arguments += ["--dir", str(self.directory)] if own_directory else []
        arguments += ["--config", str(self.directory / "config.yaml")]
        arguments += ["--kubeconfig", str(kubeconfig)] if kubeconfig else []
        variables = {"NODE_NAME": NODE, **({"POD_UID": instance} if instance else {}), **(environment or {})}
        process = subprocess.Popen(
            arguments, env={**os.environ, **variables}, stderr=log, stdout=log, stdin=subprocess.DEVNULL
        )
        log.close()
        self.processes.append(process)
        return process

    def log(self) -> str:
        """Return what all daemons have logged."""
        return "".join((self.directory / f"log-{n + 1}").read_text() for n in range(self._logs))

    def ready(self, slices: int = 2) -> None:
        """Wait until a daemon is active and has published."""

        def check() -> bool:
            assert any(process.poll() is None for process in self.processes), self.log()
            return "active on node" in self.log() and len(self.published()) >= slices

        eventually(check, f"a daemon in {self.directory} is active")

    def published(self) -> list[dict[str, Any]]:
        """Return the specs of the published slices."""
        found = []
        for path in sorted(self.slices.glob("*.yaml")):
            try:
                found.append(yaml.load(path.read_text(), yaml.CSafeLoader)["spec"])
            except (OSError, TypeError):
                continue
        return found

    def devices(self) -> dict[str, dict[str, Any]]:
        """Return the published devices by name."""
        return {device["name"]: device for spec in self.published() for device in spec.get("devices", ())}

    def claim(
        self,
        name: str,
        results: Sequence[Mapping[str, Any]],
        config: Sequence[Mapping[str, Any]] = (),
        uid: str | None = None,
    ) -> ClaimRef:
        """Write an allocated claim; return its identity."""
        uid = uid or str(uuid.uuid4())
        self.write_claim(
            f"{name}.yaml",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default", "uid": uid},
                "status": {"allocation": {"devices": {"results": list(results), "config": list(config)}}},
            },
        )
        return ClaimRef(uid, "default", name)

    def write_claim(self, file: str, obj: Any) -> None:
        """Write a claim file as it is, at once."""
        self.claims.mkdir(exist_ok=True)
        temporary = self.claims / f".{file}"
        temporary.write_text(json.dumps(obj))
        temporary.rename(self.claims / file)

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def node() -> Iterator[Node]:
    """Give a node of one's own; socket paths must be short, so it is not below pytest's directory."""
    directory = Path(tempfile.mkdtemp(prefix="dra-"))
    made = Node(directory)
    try:
        yield made
    finally:
        made.end()
        print(made.log())  # noqa: T201 - shown with a test that failed
        shutil.rmtree(directory)


def kubelet(of: Node, call_seconds: float = 45.0) -> Kubelet:
    """Return a small kubelet of that node."""
    return Kubelet(of.kubelet_root, call_seconds)


def terminate(process: subprocess.Popen[bytes]) -> float:
    """Send SIGTERM; return the seconds until the end."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    return time.monotonic() - began


def cpu_result(amount: str, device: str = "cpu-numa-0", **more: Any) -> dict[str, Any]:
    """Return an allocation result for CPUs."""
    return {
        "request": "cpus",
        "driver": "cpu.dradriver.io",
        "pool": f"{NODE}/cpu",
        "device": device,
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": {"cpu": amount},
        **more,
    }


def memory_result(amount: str, device: str = "memory-numa-0", **more: Any) -> dict[str, Any]:
    """Return an allocation result for memory."""
    return {
        "request": "memory",
        "driver": "memory.dradriver.io",
        "pool": f"{NODE}/memory",
        "device": device,
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": {"memory": amount},
        **more,
    }
