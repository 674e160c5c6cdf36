"""A daemon tells containers of their devices in files, unless it is told not to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemons import Node, cpu_result, kubelet, node, terminate
from waiting import eventually

CPU = "cpu.dradriver.io"


@pytest.fixture
def host() -> Iterator[Node]:
    with node() as made:
        yield made


def mounts(of: Node) -> list[dict[str, Any]]:
    """Return what the devices of the one claim mount."""
    (file,) = of.cdi.glob(f"{CPU}-claim-*.json")
    devices = json.loads(file.read_text())["devices"]
    return [mount for device in devices for mount in device["containerEdits"].get("mounts", ())]


def files(of: Node) -> list[Path]:
    """Return the files that lie where metadata lies."""
    return [
        path for path in (of.kubelet_root / f"plugins/{CPU}/dra-device-metadata").rglob("*") if path.is_file()
    ]


def test_containers_are_told_of_their_devices_unless_that_is_switched_off(host: Node) -> None:
    first = host.start("deviceMetadata: true\n")
    host.ready()
    with kubelet(host) as small:
        plugin = small.plugin(CPU)
        device = next(name for name in host.devices() if name.startswith("cpu-"))
        ref = host.claim("a", [cpu_result("1", device)])
        answer = small.prepare(plugin, [ref])[ref.uid]
        assert not isinstance(answer, str), answer
        (mount,) = mounts(host)
        (file,) = files(host)
        assert mount["hostPath"] == str(file)
        assert mount["containerPath"].endswith(f"/resourceclaims/a/cpus/{CPU}-metadata.json")
        told = json.loads(file.read_text().splitlines()[0])
        assert told["metadata"]["uid"] == ref.uid
        assert set(told["requests"][0]["devices"][0]["attributes"]) >= {"cpus", "numCPUs"}
    terminate(first)
    host.start("deviceMetadata: false\n")
    eventually(lambda: host.log().count("active on node") == 2, "the next daemon is active")
    with kubelet(host) as small:
        plugin = small.plugin(CPU)
        assert small.prepare(plugin, [ref])[ref.uid] == answer
        assert mounts(host) == []
        assert small.unprepare(plugin, [ref])[ref.uid] is None
        assert files(host) == []
