"""Real kubectl against the stand-in API server."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apiserverside import allocation, claim_body, node_body, slice_body
from dradriver.sim.apiserver import ApiServer
from waiting import PATIENCE, eventually

PROGRAM = shutil.which("kubectl")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="kubectl is not there")

Kubectl = Callable[..., str]

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.dradriver.io"'}}]},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "job"},
    "spec": {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "c1"}],
    },
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubectl")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def kubectl(server: ApiServer, home: Path, tmp_path: Path) -> Kubectl:
    config = tmp_path / "kubeconfig"
    server.write_kubeconfig(config)

    def run(*arguments: str, code: int = 0, stdin: object = None) -> str:
        done = subprocess.run(
            [str(PROGRAM), f"--kubeconfig={config}", *arguments],
            input=None if stdin is None else json.dumps(stdin),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "KUBECTL_EXTERNAL_DIFF": "diff -u"},
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def listed(*objects: object) -> object:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def everything() -> object:
    return listed(node_body(), slice_body(), CLASS, claim_body(namespace="default"), POD)


def test_it_finds_out_what_is_served(kubectl: Kubectl) -> None:
    assert "Server Version: v1.36.0" in kubectl("version")
    served = kubectl("api-resources")
    for line in (
        r"resourceslices +resource.k8s.io/v1 +false +ResourceSlice",
        r"resourceclaims +resource.k8s.io/v1 +true +ResourceClaim",
        r"nodes +no +v1 +false +Node",
    ):
        assert re.search(line, served), served
    assert "resource.k8s.io/v1" in kubectl("api-versions").split()
    assert kubectl("get", "--raw", "/readyz") == "ok"
    assert "ResourceSlice" in kubectl("explain", "resourceslices")


def test_it_creates_and_gets_as_from_a_real_server(kubectl: Kubectl, server: ApiServer) -> None:
    made = kubectl("create", "-f", "-", stdin=everything())
    assert made.count("created") == 5
    claim = server.store.get("ResourceClaim", "c1")
    claim["status"] = {"allocation": allocation("gpu-0"), "reservedFor": [{"name": "job", "uid": "u"}]}
    server.store.replace(claim)
    table = kubectl("get", "resourceslices,resourceclaims,deviceclasses,nodes,pods", "-A")
    for line in (
        r"^NAME +NODE +DRIVER +POOL +AGE$",
        r"^resourceslice.resource.k8s.io/s1 +node-a +gpu.dradriver.io +node-a/gpu +\d+s$",
        r"^NAMESPACE +NAME +STATE +AGE$",
        r"^default +resourceclaim.resource.k8s.io/c1 +allocated,reserved +\d+s$",
        r"^ +deviceclass.resource.k8s.io/gpu +\d+s$",
        r"^ +node/node-a +Unknown +<none> +\d+s +$",
        r"^default +pod/job +0/1 +Pending +0 +\d+s$",
    ):
        assert re.search(line, table, re.MULTILINE), table
    assert "CONTAINER-RUNTIME" in kubectl("get", "nodes", "-o", "wide")
    wide = kubectl("get", "resourceslices", "-o", "wide")
    assert wide.split()[:5] == ["NAME", "NODE", "DRIVER", "POOL", "AGE"]
    got = json.loads(kubectl("get", "resourceslice", "s1", "-o", "json"))
    assert got["spec"] == slice_body()["spec"]
    assert "gpu.dradriver.io" in kubectl("get", "resourceslices", "-o", "yaml")
    assert kubectl("get", "resourceslices", "-o", "name") == "resourceslice.resource.k8s.io/s1\n"
    one = kubectl("get", "resourceslices", "--field-selector", "spec.nodeName=other")
    assert one == "No resources found\n"
    assert 'resourceslices.resource.k8s.io "s9" not found' in kubectl("get", "resourceslice", "s9", code=1)


def test_it_describes_with_events(kubectl: Kubectl, server: ApiServer) -> None:
    kubectl("create", "-f", "-", stdin=everything())
    uid = server.store.get("ResourceClaim", "c1")["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "c1.1", "namespace": "default"},
        "involvedObject": {"kind": "ResourceClaim", "namespace": "default", "name": "c1", "uid": uid},
        "type": "Warning",
        "reason": "Unlucky",
        "message": "no device",
        "source": {"component": "test"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    }
    kubectl("create", "-f", "-", stdin=event)
    described = kubectl("describe", "resourceslice", "s1")
    assert re.search(r"Node Name: +node-a", described)
    assert re.search(r"Events: +<none>", described)
    assert re.search(r"Warning +Unlucky +.* no device", kubectl("describe", "resourceclaim", "c1"))
    assert re.search(r"Warning +Unlucky +resourceclaim/c1 +no device", kubectl("get", "events"))
    assert "Unschedulable" in kubectl("describe", "node", "node-a")
    assert "Pending" in kubectl("describe", "pod", "job")


def test_it_applies_from_the_client_and_from_the_server(kubectl: Kubectl, server: ApiServer) -> None:
    first = kubectl("apply", "-f", "-", stdin=everything())
    assert first.count("created") == 5
    assert "warning" not in first.lower()
    version = server.store.version
    # For the claim kubectl sends a patch again, as lists of requests are replaced with what was defaulted in them.
    assert kubectl("apply", "-f", "-", stdin=everything()).count("unchanged") == 4
    assert server.store.version == version
    changed = slice_body(labels={"a": "b"})
    changed["spec"]["devices"].append({"name": "gpu-1"})
    differing = kubectl("diff", "-f", "-", stdin=changed, code=1)
    assert "+    name: gpu-1" in differing or "+  - name: gpu-1" in differing
    assert "configured" in kubectl("apply", "-f", "-", stdin=changed)
    assert server.store.get("ResourceSlice", "s1")["metadata"]["generation"] == 2
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", stdin=changed)
    fewer = slice_body()
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", stdin=fewer)
    stored = server.store.get("ResourceSlice", "s1")
    assert stored["spec"] == fewer["spec"]
    assert "labels" not in stored["metadata"]
    other = slice_body()
    other["spec"]["pool"]["generation"] = 7
    conflict = kubectl("apply", "--server-side", "--field-manager=other", "-f", "-", stdin=other, code=1)
    assert ".spec.pool.generation" in conflict
    kubectl("apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-", stdin=other)
    assert server.store.get("ResourceSlice", "s1")["spec"]["pool"]["generation"] == 7


def test_it_says_what_is_wrong_with_an_object(kubectl: Kubectl) -> None:
    wrong = slice_body()
    wrong["spec"]["colour"] = "red"
    assert 'unknown field "spec.colour"' in kubectl("create", "-f", "-", stdin=wrong, code=1)
    assert "created" in kubectl("create", "--validate=ignore", "-f", "-", stdin=wrong)
    bad = slice_body("s2")
    bad["spec"]["devices"][0]["name"] = "GPU:0"
    assert "spec.devices[0].name: Invalid value" in kubectl("create", "-f", "-", stdin=bad, code=1)


def test_it_changes_and_deletes(kubectl: Kubectl, server: ApiServer) -> None:
    kubectl("create", "-f", "-", stdin=everything())
    assert "labeled" in kubectl("label", "node", "node-a", "zone=one")
    assert "annotated" in kubectl("annotate", "resourceslice", "s1", "note=text")
    assert "tainted" in kubectl("taint", "node", "node-a", "key=value:NoSchedule")
    assert "cordoned" in kubectl("cordon", "node-a")
    node = server.store.get("Node", "node-a")
    assert node["metadata"]["labels"] == {"zone": "one"}
    assert {taint["key"] for taint in node["spec"]["taints"]} >= {"key"}
    patch = '[{"op": "replace", "path": "/spec/pool/generation", "value": 5}]'
    kubectl("patch", "resourceslice", "s1", "--type=json", "-p", patch)
    assert server.store.get("ResourceSlice", "s1")["spec"]["pool"]["generation"] == 5
    assert "replaced" in kubectl("replace", "-f", "-", stdin=slice_body())
    assert "(server dry run)" in kubectl("delete", "resourceslice", "s1", "--dry-run=server")
    for what in (("resourceclaim", "c1"), ("pod", "job"), ("node", "node-a")):
        assert "deleted" in kubectl("delete", *what)
    assert kubectl("delete", "resourceslices", "--all").count("deleted") == 1
    assert "created" in kubectl("create", "namespace", "team")
    assert "created" in kubectl("create", "-n", "team", "-f", "-", stdin=claim_body())
    assert "c1" in kubectl("get", "resourceclaims", "-n", "team")
    assert "deleted" in kubectl("delete", "namespace", "team")
    assert not server.store.list("ResourceClaim")


def test_it_watches(server: ApiServer, home: Path, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    server.write_kubeconfig(config)
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [str(PROGRAM), f"--kubeconfig={config}", "get", "resourceclaims", "-w"],
            stdout=file,
            stderr=file,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        )
    try:
        eventually(lambda: server.faults.watches.open == 1)
        claim = server.store.create(claim_body(namespace="default"))
        claim["status"] = {"allocation": allocation("gpu-0")}
        server.store.replace(claim)
        end = time.monotonic() + PATIENCE
        while output.read_text().count("c1") < 2 and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait(PATIENCE)
    lines = [line.split() for line in output.read_text().splitlines()]
    assert lines[0] == ["NAME", "STATE", "AGE"]
    assert [line[:2] for line in lines[1:3]] == [["c1", "pending"], ["c1", "allocated"]]


def test_with_tls_and_a_token(home: Path, tmp_path: Path) -> None:
    with ApiServer(tls=True, token="secret") as server:
        good, bad = tmp_path / "good", tmp_path / "bad"
        server.write_kubeconfig(good)
        server.write_kubeconfig(bad, token="wrong")
        environment = {"HOME": str(home / "tls"), "PATH": "/usr/bin:/bin"}

        def nodes(config: Path) -> subprocess.CompletedProcess[str]:
            command = [str(PROGRAM), f"--kubeconfig={config}", "get", "nodes"]
            return subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=False, env=environment
            )

        assert "No resources found" in nodes(good).stderr
        refused = nodes(bad)
        assert refused.returncode == 1
        assert "must be logged in" in refused.stderr or "Unauthorized" in refused.stderr
