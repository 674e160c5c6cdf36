"""A claim with MPS through the life of its node: a real daemon, a real keeper, and the kubelet's calls."""

import os
import signal
from collections.abc import Iterator

import pynvml
import pytest

import daemons
from dradriver.model import ClaimRef
from gpumachine import build, gpu_config
from gpunode import GpuNode
from gputools import GpuTools, runs
from keeperprocess import RUN, KeeperProcess, keeping
from nvmlnodes import h100
from waiting import eventually

DRIVER = "gpu.dradriver.io"
GPU = "gpu-0000-1b-00-0"


class Scene:
    """A node with GPUs, below whose directory a daemon and a keeper work."""

    def __init__(self, node: daemons.Node, gpus: GpuNode, tools: GpuTools, keepers: KeeperProcess) -> None:
        self.node = node
        self.gpus = gpus
        self.tools = tools
        self.keepers = keepers

    def start(self, instance: str = "") -> None:
        """Start a daemon, and wait until it serves."""
        self.node.start(
            f"""
hostRoot: {self.gpus.directory}
drivers: [{{name: {DRIVER}, backends: [gpu]}}]
backends: {{gpu: {{mpsLauncher: pod}}}}
""",
            instance,
        )

    def claim(self) -> ClaimRef:
        result = {"request": "gpu", "driver": DRIVER, "pool": f"{daemons.NODE}/gpu", "device": GPU}
        return self.node.claim("mps", [result], [gpu_config({"sharing": {"mps": {}}})])

    def prepare(self, claim: ClaimRef) -> str:
        """Return why a claim cannot be prepared; empty where it is."""
        with daemons.kubelet(self.node) as kubelet:
            answer = kubelet.prepare(DRIVER, [claim])[claim.uid]
        return answer if isinstance(answer, str) else ""

    def prepared(self, instance: str = "") -> tuple[ClaimRef, int]:
        """Start a daemon that prepares a claim; return that, and the process of its control daemon."""
        self.start(instance)
        self.node.ready(1)
        claim = self.claim()
        assert self.prepare(claim) == ""
        (control,) = self.tools.daemons()
        return claim, control

    def unprepare(self, claim: ClaimRef) -> str:
        with daemons.kubelet(self.node) as kubelet:
            return kubelet.unprepare(DRIVER, [claim])[claim.uid] or ""

    def next_control(self, last: int) -> int:
        """Wait until another control daemon runs than the last one; return its process."""
        found: set[int] = eventually(lambda: set(self.tools.daemons()) - {last}, "the next one runs")
        return found.pop()

    @property
    def mode(self) -> int:
        return self.gpus.stub.state()[0].compute_mode


@pytest.fixture
def scene() -> Iterator[Scene]:
    if os.geteuid() != 0:
        pytest.skip("device nodes and mount namespaces take root")
    with daemons.node() as node:
        gpus = build(node.directory / "machine", h100(1))
        tools = GpuTools(gpus.directory)
        with keeping(gpus.directory, node.directory / "keeper.log") as keepers:
            try:
                yield Scene(node, gpus, tools, keepers)
            finally:
                keepers.end()
                tools.kill()


def test_a_control_daemon_outlives_a_killed_driver_and_a_killed_keeper(scene: Scene) -> None:
    keeper = scene.keepers.start()
    claim, control = scene.prepared()
    assert scene.mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS

    scene.node.processes[-1].kill()
    scene.node.processes[-1].wait()
    assert runs(control)
    scene.start()
    eventually(lambda: scene.node.log().count("active on node") == 2, "the next daemon is active")
    assert scene.prepare(claim) == ""
    assert scene.tools.daemons() == [control]

    scene.keepers.kill(keeper)
    scene.keepers.start()
    assert scene.prepare(claim) == ""
    assert scene.tools.daemons() == [control]

    assert scene.unprepare(claim) == ""
    assert not runs(control)
    assert scene.mode == pynvml.NVML_COMPUTEMODE_DEFAULT
    left = [path.name for path in (scene.gpus.directory / RUN).iterdir()]
    assert sorted(left) == ["keeper.lock", "keeper.sock"]


def test_a_control_daemon_that_dies_runs_again_beneath_its_containers(scene: Scene) -> None:
    keeper = scene.keepers.start()
    claim, control = scene.prepared()
    (pipe,) = (scene.gpus.directory / RUN).glob("*/pipe")
    seen_by_containers = pipe.stat().st_ino

    os.kill(control, signal.SIGKILL)
    second = scene.next_control(control)
    assert pipe.stat().st_ino == seen_by_containers
    assert "has ended by itself" in scene.node.log()

    # As a pod ends, with all that runs in it.
    assert scene.keepers.stop(keeper) == 0
    assert not runs(second)
    eventually(lambda: "no keeper of MPS control daemons listens" in scene.node.log(), "it is tried")
    scene.keepers.start()
    third = scene.next_control(second)

    scene.node.processes[-1].kill()
    scene.node.processes[-1].wait()
    os.kill(third, signal.SIGKILL)
    scene.start()
    eventually(lambda: scene.node.log().count("active on node") == 2, "the next daemon is active")
    fourth = scene.next_control(third)
    assert pipe.stat().st_ino == seen_by_containers
    assert "undone" not in scene.node.log()
    assert scene.prepare(claim) == ""
    assert scene.tools.daemons() == [fourth]
    assert scene.unprepare(claim) == ""
    assert not runs(fourth)
    assert scene.mode == pynvml.NVML_COMPUTEMODE_DEFAULT


def test_a_control_daemon_outlives_an_update_of_the_driver(scene: Scene) -> None:
    """As in a rolling update: the new daemon is there before the old one ends."""
    scene.keepers.start()
    claim, control = scene.prepared("11111111-1111-1111-1111-111111111111")
    scene.start("22222222-2222-2222-2222-222222222222")
    daemons.terminate(scene.node.processes[0])
    eventually(lambda: scene.node.log().count("active on node") == 2, "the new daemon is active")
    assert scene.prepare(claim) == ""
    assert scene.tools.daemons() == [control]
    assert scene.unprepare(claim) == ""
    assert not runs(control)


def test_without_a_keeper_the_kubelet_is_told_what_to_do(scene: Scene) -> None:
    scene.start()
    scene.node.ready(1)
    claim = scene.claim()
    reason = scene.prepare(claim)
    assert f"no keeper of MPS control daemons listens on /{RUN}/keeper.sock" in reason
    assert "docs/install.md" in reason
    assert scene.mode == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert scene.unprepare(claim) == ""
    scene.keepers.start()
    assert scene.prepare(claim) == ""
    assert scene.unprepare(claim) == ""
