"""A driver that is replaced while claims are prepared: a container that is started again in place, without a Prepare,
gets the new driver's files, and the device node that its GPU has now."""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import daemons
import nvmlnodes
from dradriver.model import ClaimRef
from drivertree import COMPUTE, UBUNTU, DriverTree
from gpumachine import build
from gpunode import GpuNode
from nvmlfacts import Node, under_driver
from waiting import eventually

GPU = "gpu.dradriver.io"
OLD, NEW = "580.65.06", "590.44.01"
SECOND = "gpu-0000-43-00-0"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")


@pytest.fixture
def hardware(tmp_path: Path) -> GpuNode:
    return build(tmp_path, nvmlnodes.h100(2, OLD))


@pytest.fixture
def host() -> Iterator[daemons.Node]:
    with daemons.node() as made:
        yield made


def start(host: daemons.Node, hardware: GpuNode) -> None:
    host.start(
        f"""
hostRoot: {hardware.directory}
rescanSeconds: 3600
drivers: [{{name: {GPU}, backends: [gpu]}}]
backends: {{gpu: {{mode: whole}}}}
"""
    )


def prepared(host: daemons.Node, device: str) -> ClaimRef:
    result = {"request": "gpu", "driver": GPU, "pool": f"{daemons.NODE}/gpu", "device": device}
    ref = host.claim("a", [result])
    with daemons.kubelet(host) as kubelet:
        answer = kubelet.prepare(GPU, [ref])[ref.uid]
    assert not isinstance(answer, str), answer
    return ref


def replace(hardware: GpuNode) -> None:
    """Put another driver in the place of the old one; the GPUs change their minor numbers with it."""
    hardware.unload()
    for path in [*hardware.directory.rglob(f"*{OLD}*")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    first, second = under_driver(hardware.stub.node, NEW).gpus
    hardware.stub.become(Node(NEW, (first.having(minor=1), second.having(minor=0))))
    DriverTree(hardware.directory, dataclasses.replace(UBUNTU, links=()), NEW).install(COMPUTE)
    hardware.load()


def edits(host: daemons.Node, name: str) -> dict[str, Any]:
    spec = json.loads((host.cdi / f"{GPU}-{name}.json").read_text())
    edits: dict[str, Any] = spec["devices"][0]["containerEdits"]
    return edits


def driver_of(host: daemons.Node) -> set[str]:
    """Return the versions of the driver whose files containers get, and that are there."""
    mounts = [mount["hostPath"] for mount in edits(host, "base")["mounts"]]
    return {version for version in (OLD, NEW) if any(version in path for path in mounts)}


def is_new(host: daemons.Node, ref: ClaimRef) -> bool:
    if not (host.cdi / f"{GPU}-claim-{ref.uid}.json").exists():
        return False
    nodes = [node["path"] for node in edits(host, f"claim-{ref.uid}")["deviceNodes"]]
    return (driver_of(host), nodes) == ({NEW}, ["/dev/nvidia0"])


def test_a_driver_that_is_replaced_under_the_daemon(hardware: GpuNode, host: daemons.Node) -> None:
    start(host, hardware)
    host.ready(1)
    ref = prepared(host, SECOND)
    assert driver_of(host) == {OLD}
    assert [node["path"] for node in edits(host, f"claim-{ref.uid}")["deviceNodes"]] == ["/dev/nvidia1"]
    replace(hardware)
    hardware.stub.xid(0, 48)  # has the GPUs probed, as the kernel's uevents of the module do
    eventually(lambda: is_new(host, ref), "the claim's files are those of the new driver")
    with daemons.kubelet(host) as kubelet:
        assert kubelet.unprepare(GPU, [ref]) == {ref.uid: None}


def test_a_driver_that_is_replaced_while_no_daemon_runs(hardware: GpuNode, host: daemons.Node) -> None:
    start(host, hardware)
    host.ready(1)
    ref = prepared(host, SECOND)
    daemons.terminate(host.processes[-1])
    replace(hardware)
    start(host, hardware)
    eventually(lambda: is_new(host, ref), "the claim's files are those of the new driver")


def test_a_driver_that_is_there_only_after_the_start(hardware: GpuNode, host: daemons.Node) -> None:
    start(host, hardware)
    host.ready(1)
    ref = prepared(host, SECOND)
    daemons.terminate(host.processes[-1])
    hardware.unload()
    hardware.remove()
    start(host, hardware)
    eventually(lambda: host.log().count("active on node") == 2, "the second daemon is active")
    assert driver_of(host) == {OLD}, "what containers had stays while there is nothing else"
    replace(hardware)
    eventually(lambda: is_new(host, ref), "the claim's files are those of the new driver")


def test_device_nodes_that_come_after_the_driver_are_waited_for(
    hardware: GpuNode, host: daemons.Node
) -> None:
    start(host, hardware)
    host.ready(1)
    ref = prepared(host, SECOND)
    node = hardware.directory / "dev/nvidia0"
    node.rename(node.with_name("late"))
    replace(hardware)
    hardware.stub.xid(0, 48)
    eventually(lambda: "its CDI file is withdrawn: /dev/nvidia1 of device" in host.log(), "it is told")
    assert "device node /dev/nvidia0 is missing" in host.log()
    assert not (host.cdi / f"{GPU}-claim-{ref.uid}.json").exists(), "its node is another GPU's now"
    node.with_name("late").rename(node)
    eventually(lambda: is_new(host, ref), "the claim's files are those of the new driver")
