"""The chart against an API server: its objects are taken, and what it lets the daemon do is what the daemon does."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import daemons
from chart import ACCOUNT, MANIFESTS, Object, classes, helm, objects, only, render
from dradriver.kube import Client, from_kubeconfig
from dradriver.model import ClaimRef
from dradriver.sim.apiserver import ApiServer, User
from policy import NODE_KEY, POLICY, decide
from waiting import eventually

CPU = "cpu.dradriver.io"
TOKEN, OTHER_TOKEN, ADMINISTRATOR = "token-of-node-a", "token-of-node-b", "token-of-an-administrator"
DEPLOYED = objects([(MANIFESTS / "dradriver.yaml").read_text()])
RESOURCES = {
    "ResourceSlice": "resourceslices",
    "ResourceClaim": "resourceclaims",
    "Node": "nodes",
    "Event": "events",
}


def admit(
    user: User, operation: str, new: Mapping[str, Any] | None, old: Mapping[str, Any] | None
) -> str | None:
    """Decide by the chart's policy, for what it is about."""
    kind = (new or old or {})["kind"]
    if kind != "ResourceSlice":
        return None
    extra = {key: list(values) for key, values in user.extra.items()}
    userinfo = {"username": user.name, "groups": list(user.groups), **({"extra": extra} if extra else {})}
    denials = decide(
        {"operation": operation, "userInfo": userinfo, "object": new, "oldObject": old}, policy=POLICY
    )
    return "; ".join(denials) if denials else None


@pytest.fixture
def server() -> Iterator[ApiServer]:
    users = {
        TOKEN: User(ACCOUNT, ("system:authenticated",), {NODE_KEY: (daemons.NODE,)}),
        OTHER_TOKEN: User(ACCOUNT, ("system:authenticated",), {NODE_KEY: ("node-b",)}),
        ADMINISTRATOR: User("admin", ("system:masters", "system:authenticated")),
    }
    guard = threading.Lock()

    def one_by_one(*request: Any) -> str | None:
        with guard:
            return admit(*request)

    with ApiServer(version="1.36", tls=True, users=users, admit=one_by_one) as made:
        yield made


@pytest.fixture
def host() -> Iterator[daemons.Node]:
    with daemons.node() as node:
        yield node


def start(server: ApiServer, host: daemons.Node, token: str, deployed: list[Object] = DEPLOYED) -> None:
    """Start a daemon with the deployed configuration, and the token in place of the pod's."""
    kubeconfig = host.directory / "kubeconfig"
    server.write_kubeconfig(kubeconfig, token)
    config = yaml.safe_load(only(deployed, "ConfigMap")["data"]["config.yaml"])
    config["kubernetes"]["kubeconfig"] = str(kubeconfig)
    host.start(yaml.safe_dump(config), instance="11111111-2222-3333-4444-555555555555")


def administrator(server: ApiServer, directory: Path) -> Client:
    path = directory / "administrator"
    server.write_kubeconfig(path, ADMINISTRATOR)
    return Client(from_kubeconfig(path), user_agent="test", qps=1000, burst=1000)


def test_the_classes_are_taken_as_they_are(tmp_path: Path) -> None:
    for version in ("1.34", "1.36"):
        with ApiServer(version=version) as server:
            path = tmp_path / "kubeconfig"
            server.write_kubeconfig(path)
            client = Client(from_kubeconfig(path), qps=1000, burst=1000)
            try:
                for one in classes(objects([(MANIFESTS / "deviceclasses.yaml").read_text()])).values():
                    strict = {"fieldValidation": "Strict"}
                    stored = client.create("/apis/resource.k8s.io/v1/deviceclasses", one, strict)
                    assert stored["spec"] == one["spec"]
            finally:
                client.close()


@pytest.mark.parametrize("binding", [False, True], ids=["usual", "binding conditions"])
def test_a_daemon_needs_what_its_role_allows_and_nothing_else(
    server: ApiServer, host: daemons.Node, binding: bool
) -> None:
    """Published, deleted by somebody and restored, prepared, its status told, unprepared, stopped."""
    deployed = DEPLOYED
    if binding:
        helm()
        deployed = render({"config": {"kubernetes": {"bindingConditions": True}}})
    server.store.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": daemons.NODE}})
    start(server, host, TOKEN, deployed)
    slices = eventually(
        lambda: found if len(found := server.store.list("ResourceSlice")) >= 2 else None,
        "slices are published",
    )
    assert {one["spec"]["nodeName"] for one in slices} == {daemons.NODE}
    cpus = next(one for one in slices if one["spec"]["driver"] == CPU)
    device = cpus["spec"]["devices"][0]["name"]
    allocated = {
        "metadata": {"name": "one", "namespace": "default"},
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "cpus",
                        "exactly": {"deviceClassName": CPU, "allocationMode": "ExactCount", "count": 1},
                    }
                ]
            }
        },
        "status": {"allocation": {"devices": {"results": [daemons.cpu_result("1", device)]}}},
    }
    client = administrator(server, host.directory)
    try:
        claim = server.store.create(allocated)
        ref = ClaimRef(claim["metadata"]["uid"], "default", "one")
        with daemons.kubelet(host) as kubelet:
            assert not isinstance(kubelet.prepare(CPU, [ref])[ref.uid], str), host.log()
            eventually(
                lambda: server.store.get("ResourceClaim", "one")["status"].get("devices"),
                "the claim's status tells of its devices",
            )
            client.delete(f"/apis/resource.k8s.io/v1/resourceslices/{cpus['metadata']['name']}")
            eventually(
                lambda: any(one["spec"]["driver"] == CPU for one in server.store.list("ResourceSlice")),
                "the slice is restored",
            )
            assert kubelet.unprepare(CPU, [ref]) == {ref.uid: None}
    finally:
        client.close()
    daemons.terminate(host.processes[0])

    rules = only(deployed, "ClusterRole")["rules"]
    in_default = only(deployed, "Role")["rules"]
    asked = set()
    for entry in server.requests:
        if entry.user != ACCOUNT or not entry.kind:
            continue
        assert entry.status not in {401, 403}, entry
        resource = RESOURCES[entry.kind] + (f"/{entry.subresource}" if entry.subresource else "")
        verb = "patch" if entry.verb == "apply" else entry.verb
        held = rules + (in_default if "/namespaces/default/" in entry.path else [])
        assert any(resource in rule["resources"] and verb in rule["verbs"] for rule in held), entry
        asked.add((resource, verb))
    assert {
        ("resourceslices", "create"),
        ("resourceslices", "watch"),
        ("resourceclaims", "get"),
        ("resourceclaims/status", "patch"),
        ("nodes", "get"),
    } <= asked
    assert (("resourceclaims", "watch") in asked) == binding
    assert all(
        entry.path == f"/api/v1/nodes/{daemons.NODE}" for entry in server.requests if entry.kind == "Node"
    )


def test_a_token_of_another_node_publishes_nothing(server: ApiServer, host: daemons.Node) -> None:
    server.store.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": daemons.NODE}})
    start(server, host, OTHER_TOKEN)
    said = "dradriver on node node-b may write slices of that node only, not of node-a"
    eventually(lambda: said in host.log(), "the refusal is told")
    assert server.store.list("ResourceSlice") == []
