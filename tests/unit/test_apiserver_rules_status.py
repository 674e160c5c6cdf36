"""How the stand-in API server handles the status of claims: allocations, and what drivers say of their devices."""

from collections.abc import Mapping
from typing import Any

import pytest

from apirules import create, update
from dradriver.sim.apiserver.rules import ADMIN_LABEL, Gates, Refused

GATES = Gates.of("1.36")

CLAIM: Mapping[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
}
POD = {"resource": "pods", "name": "train", "uid": "6d9f8f34-4d76-4a57-9f3e-0d7b6f0d53c1"}


def result(device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": "gpu.example.com", "pool": "node-a", "device": device, **more}


def refused(call: Any) -> Refused:
    with pytest.raises(Refused) as found:
        call()
    return found.value


def with_status(claim: Mapping[str, Any], status: Mapping[str, Any], gates: Gates = GATES) -> dict[str, Any]:
    sent = {**claim, "status": status}
    return update("ResourceClaim", sent, claim, gates, "status").obj


def an_allocated_claim(*devices: str) -> dict[str, Any]:
    claim = create("ResourceClaim", CLAIM, GATES).obj
    results = [result(device) for device in devices or ("gpu-0",)]
    return with_status(claim, {"allocation": {"devices": {"results": results}}})


def test_each_side_of_a_claim_is_written_alone() -> None:
    claim = create("ResourceClaim", {**CLAIM, "status": {"reservedFor": [POD]}}, GATES).obj
    assert claim["status"] == {}
    allocated = an_allocated_claim()
    sent = {**CLAIM, "spec": {}, "status": {**allocated["status"], "reservedFor": [POD]}}
    reserved = update("ResourceClaim", sent, allocated, GATES, "status").obj
    assert reserved["spec"] == allocated["spec"]
    assert reserved["status"]["reservedFor"] == [POD]
    labelled = {**CLAIM, "metadata": {**CLAIM["metadata"], "labels": {"a": "b"}}, "status": {}}
    changed = update("ResourceClaim", labelled, reserved, GATES).obj
    assert changed["status"] == reserved["status"]
    assert changed["metadata"]["labels"] == {"a": "b"}


def test_an_allocation_stays_as_long_as_it_is_there() -> None:
    claim = an_allocated_claim()
    other = {"allocation": {"devices": {"results": [result("gpu-1")]}}}
    [cause] = refused(lambda: with_status(claim, other)).causes
    assert cause.field == "status.allocation"
    assert with_status(claim, {})["status"] == {}
    reserved = with_status(claim, {**claim["status"], "reservedFor": [POD]})
    [cause] = refused(lambda: with_status(reserved, {"reservedFor": [POD]})).causes
    assert (cause.field, cause.reason) == ("status.reservedFor", "FieldValueForbidden")


def test_what_a_driver_said_of_a_device_goes_with_its_allocation() -> None:
    claim = an_allocated_claim("gpu-0", "gpu-1")
    said = [{"driver": "gpu.example.com", "pool": "node-a", "device": name} for name in ("gpu-0", "gpu-1")]
    told = with_status(claim, {**claim["status"], "devices": said})
    assert [device["device"] for device in told["status"]["devices"]] == ["gpu-0", "gpu-1"]
    assert "devices" not in with_status(told, {"devices": said})["status"]
    [cause] = refused(
        lambda: with_status(claim, {**claim["status"], "devices": [{**said[0], "device": "gpu-7"}]})
    ).causes
    assert cause.field == "status.devices[0]"
    assert cause.message.endswith("must be an allocated device in the claim")
    off = Gates.of("1.36", {"DRAResourceClaimDeviceStatus": False})
    assert "devices" not in with_status(claim, {**claim["status"], "devices": said}, off)["status"]


def test_conditions_and_network_data_of_a_device_are_checked() -> None:
    claim = an_allocated_claim()
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Bound",
        "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    device = {
        "driver": "gpu.example.com",
        "pool": "node-a",
        "device": "gpu-0",
        "conditions": [ready, {**ready, "status": "Maybe"}, {"type": "Other", "observedGeneration": -1}],
        "data": {"firmware": "1.2"},
        "networkData": {"interfaceName": "e" * 257, "ips": ["10.0.0.1/24", "10.0.0.1", "10.0.0.1/24"]},
    }
    found = refused(lambda: with_status(claim, {**claim["status"], "devices": [device]}))
    place = "status.devices[0]"
    assert {(cause.field, cause.reason) for cause in found.causes} == {
        (f"{place}.conditions[1].type", "FieldValueDuplicate"),
        (f"{place}.conditions[1].status", "FieldValueNotSupported"),
        (f"{place}.conditions[2].status", "FieldValueNotSupported"),
        (f"{place}.conditions[2].observedGeneration", "FieldValueInvalid"),
        (f"{place}.conditions[2].lastTransitionTime", "FieldValueRequired"),
        (f"{place}.conditions[2].reason", "FieldValueRequired"),
        (f"{place}.networkData.interfaceName", "FieldValueTooLong"),
        (f"{place}.networkData.ips[1]", "FieldValueInvalid"),
        (f"{place}.networkData.ips[2]", "FieldValueDuplicate"),
    }


def test_admin_access_needs_a_labelled_namespace() -> None:
    exactly = {"deviceClassName": "gpu", "adminAccess": True}
    sent = {**CLAIM, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    [cause] = refused(lambda: create("ResourceClaim", sent, GATES)).causes
    assert cause.reason == "FieldValueForbidden"
    assert ADMIN_LABEL in cause.message
    assert create("ResourceClaim", sent, GATES, admin=True).obj["metadata"]["name"] == "train"
