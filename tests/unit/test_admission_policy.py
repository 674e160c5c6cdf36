"""The admission policy of the chart: who may write which slices.

cel-python knows no optional syntax: the expressions do without. An error of an expression is a denial in a cluster
(failurePolicy: Fail), and a failure here.
"""

import json
from typing import Any

import pytest

from chart import ACCOUNT, MANIFESTS, objects, only
from policy import NODE_KEY, POLICY, decide

CPU = "cpu.dradriver.io"
SPEC = POLICY["spec"]


def user(node: str | None = "node-a", name: str = ACCOUNT) -> dict[str, Any]:
    extra = {} if node is None else {"extra": {NODE_KEY: [node], "example.com/other": ["x"]}}
    return {"username": name, "uid": "1", "groups": ["system:authenticated"], **extra}


def slice_of(node: str | None = "node-a", driver: str = CPU, **spec: Any) -> dict[str, Any]:
    of_node = {} if node is None else {"nodeName": node}
    return {
        "metadata": {"name": "a"},
        "spec": {"driver": driver, "pool": {"name": "p"}, **of_node, **spec},
    }


def write(operation: str, obj: Any, userinfo: Any) -> dict[str, Any]:
    request = {"operation": operation, "userInfo": userinfo}
    if operation != "DELETE":
        request["object"] = obj
    if operation != "CREATE":
        request["oldObject"] = obj
    return request


OPERATIONS = ("CREATE", "UPDATE", "DELETE")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("driver", [CPU, "memory.dradriver.io"])
def test_a_daemon_may_write_the_slices_of_its_node(operation: str, driver: str) -> None:
    assert decide(write(operation, slice_of(driver=driver), user())) == []


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "node", ["node-b", "node-A", "node-a.example.com", "", None], ids=lambda node: f"node-{node}"
)
def test_no_slice_of_another_node(operation: str, node: str | None) -> None:
    (message,) = decide(write(operation, slice_of(node), user())) or ["let through"]
    assert message == f"dradriver on node node-a may write slices of that node only, not of {node or 'none'}"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "spec",
    [
        {"allNodes": True},
        {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": []}]}},
        {"perDeviceNodeSelection": True, "devices": [{"name": "d", "nodeName": "node-a"}]},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_no_slice_that_is_not_of_one_node(operation: str, spec: dict[str, Any]) -> None:
    (message,) = decide(write(operation, slice_of(None, **spec), user())) or ["let through"]
    assert message.endswith("not of none")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("driver", ["gpu.nvidia.com", "cpu.dradriver.io.example.com", "dradriver.io", ""])
def test_no_slice_of_another_driver(operation: str, driver: str) -> None:
    (message,) = decide(write(operation, slice_of(driver=driver), user())) or ["let through"]
    assert message == f"dradriver may write slices of its own drivers only, not of {driver}"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "userinfo",
    [
        user(None),
        {**user(), "extra": {}},
        {**user(), "extra": {NODE_KEY: []}},
        {**user(), "extra": {NODE_KEY: ["node-a", "node-b"]}},
        {**user(), "extra": {NODE_KEY: [""]}},
        {**user(), "extra": {NODE_KEY.upper(): ["node-a"]}},
    ],
    ids=["no extra", "empty extra", "no node", "two nodes", "empty node", "another key"],
)
def test_a_token_of_no_node_may_write_nothing(operation: str, userinfo: dict[str, Any]) -> None:
    for node in ("node-a", "", None):
        (message, *_) = decide(write(operation, slice_of(node), userinfo)) or ["let through"]
        assert message.startswith("the token names no node"), node


@pytest.mark.parametrize(
    "name",
    [
        "system:node:node-a",
        "system:admin",
        "system:serviceaccount:dradriver:other",
        "system:serviceaccount:other:dradriver",
        "system:serviceaccount:dradriver:dradriver2",
        "x system:serviceaccount:dradriver:dradriver",
    ],
)
def test_others_are_not_looked_at(name: str) -> None:
    for operation in OPERATIONS:
        assert decide(write(operation, slice_of("node-b", "gpu.nvidia.com"), user(name=name))) is None


@pytest.mark.parametrize("other", [slice_of("node-b"), slice_of(None), slice_of(driver="gpu.nvidia.com")])
def test_a_slice_is_neither_taken_from_others_nor_given_to_them(other: dict[str, Any]) -> None:
    """The API server itself lets neither driver nor node change; the policy does not rely on that."""
    request = write("UPDATE", slice_of(), user())
    assert decide(request) == []
    assert decide(request | {"object": other})
    assert decide(request | {"oldObject": other})


def test_whatever_is_asked_the_answer_is_a_decision() -> None:
    """Not an error, which would be a denial with a message that helps nobody."""
    for operation in OPERATIONS:
        for userinfo in (user(), user(None)):
            for obj in (slice_of(None), slice_of(None, "x"), slice_of("b", "y", devices=[])):
                assert decide(write(operation, obj, userinfo)), json.dumps([operation, userinfo, obj])


def test_it_covers_every_way_to_write_slices() -> None:
    (rule,) = SPEC["matchConstraints"]["resourceRules"]
    assert rule["apiGroups"] == ["resource.k8s.io"]
    assert rule["apiVersions"] == ["*"]
    assert set(rule["operations"]) == set(OPERATIONS)
    assert rule["resources"] == ["resourceslices"]
    assert SPEC["failurePolicy"] == "Fail"


def test_it_is_in_force() -> None:
    everything = objects([(MANIFESTS / "dradriver.yaml").read_text()])
    binding = only(everything, "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": POLICY["metadata"]["name"], "validationActions": ["Deny"]}


def test_it_is_for_the_account_that_the_daemon_has() -> None:
    everything = objects([(MANIFESTS / "dradriver.yaml").read_text()])
    account = only(everything, "ServiceAccount")["metadata"]
    pod = only(everything, "DaemonSet")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["name"]
    assert f"system:serviceaccount:{account['namespace']}:{account['name']}" == ACCOUNT
    assert decide(write("CREATE", slice_of(), user())) == []
