"""Server-side apply at the stand-in API server: several managers, conflicts, force, and fields that are given up."""

from collections.abc import Iterator
from typing import Any

import pytest

from apiserverside import CLAIMS, NODES, SLICES, Api, allocation, claim_body, node_body, slice_body
from dradriver.sim.apiserver import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def api(server: ApiServer) -> Iterator[Api]:
    with Api(server) as client:
        yield client


@pytest.fixture
def claim(api: Api, server: ApiServer) -> str:
    """Return the path of a claim to which two devices are allocated."""
    body = server.store.create(claim_body(namespace="default"))
    body["status"] = {"allocation": allocation("gpu-0", "gpu-1")}
    server.store.replace(body)
    return f"{CLAIMS}/c1"


def device(name: str, **fields: Any) -> dict[str, Any]:
    return {"driver": "gpu.dradriver.io", "pool": "node-a/gpu", "device": name, **fields}


def configuration(*devices: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c1"},
        "status": {"devices": list(devices)},
    }


def condition(kind: str, status: str = "True") -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": "Said",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def names(body: Any) -> list[str]:
    return [entry["device"] for entry in body["status"].get("devices") or []]


def test_two_managers_keep_their_own_devices_of_one_claim(api: Api, claim: str) -> None:
    first = api.apply(f"{claim}/status", configuration(device("gpu-0", data={"a": 1})), "one")
    assert first.status == 200
    second = api.apply(f"{claim}/status", configuration(device("gpu-1")), "two")
    assert names(second.body) == ["gpu-0", "gpu-1"]
    assert second.body["status"]["allocation"] == allocation("gpu-0", "gpu-1")
    again = api.apply(
        f"{claim}/status",
        configuration(device("gpu-0", networkData={"interfaceName": "net1"})),
        "one",
        force="true",
    )
    assert names(again.body) == ["gpu-0", "gpu-1"]
    ours = again.body["status"]["devices"][0]
    assert "data" not in ours
    assert ours["networkData"] == {"interfaceName": "net1"}


def test_what_a_manager_does_not_apply_any_more_is_removed(api: Api, claim: str) -> None:
    both = configuration(device("gpu-0"), device("gpu-1"))
    api.apply(f"{claim}/status", both, "one")
    api.apply(f"{claim}/status", configuration(device("gpu-1")), "two")
    left = api.apply(f"{claim}/status", configuration(device("gpu-0")), "one")
    # The other manager has applied it as well, so that it stays.
    assert names(left.body) == ["gpu-0", "gpu-1"]
    gone = api.apply(f"{claim}/status", configuration(), "two")
    assert names(gone.body) == ["gpu-0"]
    nothing = api.apply(f"{claim}/status", configuration(), "one")
    assert names(nothing.body) == []
    assert nothing.body["status"]["allocation"] == allocation("gpu-0", "gpu-1")
    managers = [entry["manager"] for entry in nothing.body["metadata"].get("managedFields", [])]
    assert "one" not in managers


def test_shares_of_one_device_are_told_apart_by_their_ids(api: Api, server: ApiServer) -> None:
    one, other = "3b2f0c8e-6c1d-4f52-9a77-0d1e2f3a4b5c", "8a1f0c8e-6c1d-4f52-9a77-0d1e2f3a4b5d"
    body = server.store.create(claim_body(namespace="default"))
    body["status"] = {"allocation": allocation("nic-0", "nic-0")}
    for result, share in zip(body["status"]["allocation"]["devices"]["results"], (one, other), strict=True):
        result["shareID"] = share
    server.store.replace(body)
    sent = configuration(device("nic-0", shareID=one), device("nic-0", shareID=other, data={"a": 1}))
    applied = api.apply(f"{CLAIMS}/c1/status", sent)
    assert applied.status == 200
    assert [entry["shareID"] for entry in applied.body["status"]["devices"]] == [one, other]
    twice = api.apply(f"{CLAIMS}/c1/status", configuration(device("nic-0"), device("nic-0")))
    assert (twice.status, twice.body["reason"]) == (500, "InternalError")
    assert "duplicate entries for key" in twice.body["message"]


def test_conditions_merge_by_type(api: Api, claim: str) -> None:
    ready = configuration(device("gpu-0", conditions=[condition("Ready")]))
    api.apply(f"{claim}/status", ready, "one")
    warm = configuration(device("gpu-0", conditions=[condition("Warm")]))
    both = api.apply(f"{claim}/status", warm, "two")
    kinds = [one["type"] for one in both.body["status"]["devices"][0]["conditions"]]
    assert kinds == ["Ready", "Warm"]
    left = api.apply(f"{claim}/status", configuration(device("gpu-0")), "one")
    assert [one["type"] for one in left.body["status"]["devices"][0]["conditions"]] == ["Warm"]


def test_another_managers_field_conflicts_unless_forced(api: Api, claim: str) -> None:
    api.apply(f"{claim}/status", configuration(device("gpu-0", networkData={"interfaceName": "net1"})), "one")
    other = configuration(device("gpu-0", networkData={"interfaceName": "net2"}))
    refused = api.apply(f"{claim}/status", other, "two")
    assert (refused.status, refused.body["reason"]) == (409, "Conflict")
    [cause] = refused.body["details"]["causes"]
    assert cause["reason"] == "FieldManagerConflict"
    assert 'conflict with "one"' in cause["message"]
    assert cause["field"] == (
        '.status.devices[device="gpu-0",driver="gpu.dradriver.io",pool="node-a/gpu"].networkData.interfaceName'
    )
    forced = api.apply(f"{claim}/status", other, "two", force="true")
    assert forced.body["status"]["devices"][0]["networkData"]["interfaceName"] == "net2"
    # The same value is no conflict: the field then has two owners.
    assert api.apply(f"{claim}/status", other, "one").status == 200
    assert api.apply(f"{claim}/status", configuration(device("gpu-0")), "two").status == 200
    kept = api.get(claim).body["status"]["devices"][0]
    assert kept["networkData"]["interfaceName"] == "net2"


def test_updates_own_fields_too(api: Api, claim: str) -> None:
    api.patch(
        f"{claim}/status?fieldManager=updater",
        {"status": {"devices": [device("gpu-0", networkData={"interfaceName": "net1"})]}},
    )
    other = configuration(device("gpu-0", networkData={"interfaceName": "net2"}))
    refused = api.apply(f"{claim}/status", other)
    assert refused.status == 409
    assert '"updater"' in refused.body["message"]


def test_applying_the_same_again_writes_nothing(api: Api, claim: str, server: ApiServer) -> None:
    sent = configuration(device("gpu-0", conditions=[condition("Ready")], data={"a": [1, 2]}))
    api.apply(f"{claim}/status", sent)
    before = server.store.version
    assert api.apply(f"{claim}/status", sent).status == 200
    assert server.store.version == before


def test_applying_makes_what_is_not_there(api: Api) -> None:
    made = api.apply(f"{SLICES}/s1", slice_body(labels={"a": "b"}))
    assert made.status == 201
    [entry] = made.body["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("tester", "Apply")
    assert entry["fieldsV1"]["f:metadata"] == {"f:labels": {"f:a": {}}}
    changed = slice_body()
    changed["spec"]["devices"] = [{"name": "gpu-1"}]
    again = api.apply(f"{SLICES}/s1", changed)
    # The list of devices is replaced as a whole, and the label that is not applied any more goes.
    assert again.body["spec"]["devices"] == [{"name": "gpu-1"}]
    assert "labels" not in again.body["metadata"]
    assert again.body["metadata"]["generation"] == 2
    assert again.body["metadata"]["uid"] == made.body["metadata"]["uid"]
    assert api.apply(f"{SLICES}/s2", slice_body("s2", uid="some")).status == 409
    assert api.apply(f"{CLAIMS}/none/status", configuration()).status in {400, 404}


def test_what_an_apply_request_must_say(api: Api, claim: str) -> None:
    unnamed = api.patch(f"{claim}/status", configuration(), "application/apply-patch+yaml")
    assert unnamed.status == 422
    assert unnamed.body["details"]["causes"] == [
        {
            "reason": "FieldValueRequired",
            "message": "Required value: is required for apply patch",
            "field": "fieldManager",
        }
    ]
    managed = configuration()
    managed["metadata"]["managedFields"] = [{"manager": "x"}]
    assert api.apply(f"{claim}/status", managed).status == 400
    stale = configuration(device("gpu-0"))
    stale["metadata"]["resourceVersion"] = "1"
    assert api.apply(f"{claim}/status", stale).status == 409
    yaml = b"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata:\n  labels: {a: b}\n"
    labelled = api.request("PATCH", f"{claim}?fieldManager=y", yaml, "application/apply-patch+yaml")
    assert labelled.body["metadata"]["labels"] == {"a": "b"}
    assert api.patch(f"{claim}?force=true", {}).status == 422


def test_unknown_fields_cannot_be_applied(api: Api, claim: str) -> None:
    refused = api.apply(f"{claim}/status", configuration(device("gpu-0", colour="red")))
    assert refused.status == 500
    assert ".status.devices[0].colour: field not declared in schema" in refused.body["message"]


def test_what_was_there_before_the_first_apply_stays(api: Api, server: ApiServer) -> None:
    api.post(NODES, node_body(labels={"theirs": "x"}))
    cleared = api.patch(f"{NODES}/node-a", {"metadata": {"managedFields": [{}]}})
    assert not cleared.body["metadata"]["managedFields"]
    ours = {"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"ours": "y"}}}
    applied = api.apply(f"{NODES}/node-a", ours)
    managers = {entry["manager"] for entry in applied.body["metadata"]["managedFields"]}
    assert managers == {"before-first-apply", "tester"}
    api.apply(f"{NODES}/node-a", {**ours, "metadata": {}})
    assert server.store.get("Node", "node-a")["metadata"]["labels"] == {"theirs": "x"}


def test_labels_and_the_status_of_a_node_have_owners_of_their_own(api: Api) -> None:
    api.post(NODES, node_body(labels={"theirs": "x"}))
    ours = {"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"ours": "y"}}}
    applied = api.apply(f"{NODES}/node-a", ours)
    assert applied.body["metadata"]["labels"] == {"theirs": "x", "ours": "y"}
    empty = api.apply(f"{NODES}/node-a", {**ours, "metadata": {}})
    assert empty.body["metadata"]["labels"] == {"theirs": "x"}
    assert empty.body["metadata"]["name"] == "node-a"
