"""A whole daemon that joins a container runtime: claims over its sockets, containers by the runtime, kill -9."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import commandline
import daemons
from daemons import cpu_result
from dradriver.model import ClaimRef
from nriruntime import NEW, OLD, NriRuntime
from waiting import eventually

CPU = "cpu.dradriver.io"
CONFIG = "{fake: {node: small}, nri: {enabled: true}}"


@pytest.fixture
def node() -> Iterator[daemons.Node]:
    with daemons.node() as made:
        yield made


def start(node: daemons.Node) -> subprocess.Popen[bytes]:
    process = node.start(CONFIG)
    node.ready(slices=4)
    return process


def prepare(node: daemons.Node, *claims: ClaimRef) -> list[Any]:
    with daemons.kubelet(node) as kubelet:
        answers = kubelet.prepare(CPU, list(claims))
    return [answers[claim.uid] for claim in claims]


def check(node: daemons.Node) -> dict[str, str]:
    """Return what `dradriver check` says of NRI."""
    options = ("--dir", node.directory, "--config", node.directory / "config.yaml", "-o", "json")
    done = commandline.dradriver("check", *options)
    found: dict[str, str] = next(one for one in json.loads(done.stdout)["checks"] if one["name"] == "NRI")
    return found


@pytest.mark.parametrize("version", [OLD, NEW])
def test_claims_are_pinned_also_after_a_kill_of_the_daemon(node: daemons.Node, version: str) -> None:
    with NriRuntime(node.directory / "nri.sock", version) as runtime:
        process = start(node)
        first = runtime.plugin()
        eventually(lambda: check(node)["status"] == "ok", "the runtime is joined")
        plain = runtime.create(runtime.run_pod("plain"))
        claim = node.claim("c", [cpu_result("2")])
        body = json.loads((node.claims / "c.yaml").read_text())
        body["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "p"}]
        node.write_claim("c.yaml", body)
        (devices,) = prepare(node, claim)
        cdi = list(devices[0].cdi_ids)
        spec = json.loads(next(node.cdi.glob(f"*{claim.uid}*.json")).read_text())
        env = spec["devices"][0]["containerEdits"]["env"]
        pod = runtime.run_pod("p", uid="p")
        pinned = runtime.create(pod, cdi=cdi, env=env)
        mine = runtime.cpus(pinned)
        assert mine
        rest = runtime.cpus(plain)
        assert rest not in {"", mine}

        process.kill()
        process.wait()
        without = runtime.create(runtime.run_pod("while away"))
        assert runtime.cpus(without) == ""
        start(node)
        runtime.plugin(besides=first)
        assert (runtime.cpus(without), runtime.cpus(pinned), runtime.cpus(plain)) == (rest, mine, rest)
        runtime.end(pinned)
        assert runtime.cpus(runtime.create(pod, cdi=cdi, env=env)) == mine


def test_without_a_runtime_claims_for_cpus_are_refused_and_check_says_why(node: daemons.Node) -> None:
    start(node)
    socket = node.directory / "nri.sock"
    seen = f"there is no socket at {socket}: NRI is off in the container runtime"
    eventually(lambda: check(node)["seen"] == seen, "it is told by the daemon")
    told = check(node)
    assert told["status"] == "warning"
    assert "claims for CPUs and memory are refused" in told["mend"]
    (refusal,) = prepare(node, node.claim("c", [cpu_result("2")]))
    assert refusal.startswith("the container runtime must be asked to pin containers to CPUs ")
    with NriRuntime(socket) as runtime:
        runtime.plugin()
        eventually(lambda: check(node)["status"] == "ok", "it is joined")
        (devices,) = prepare(node, node.claim("d", [cpu_result("2")]))
        assert not isinstance(devices, str)


def test_a_daemon_by_itself_has_no_runtime(node: daemons.Node) -> None:
    node.start("fake: {node: small}")
    node.ready(slices=4)
    assert check(node)["seen"].startswith("not used: ")
    (devices,) = prepare(node, node.claim("c", [cpu_result("2")]))
    assert not isinstance(devices, str)
