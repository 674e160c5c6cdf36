"""The stand-in API server answers as a real one did, request by request, over HTTP."""

import functools
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3

from apiserverside import MERGE, RESOURCE, Answer, Api
from dradriver.sim.apiserver import ApiServer
from recorded import SHARED

FILE = SHARED / "vectors" / "validation" / "vectors.json"
PLURALS = {
    "ResourceSlice": "resourceslices",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
}
AGREEING = 0.98
"""The share of answers that must be the recorded ones, down to causes, warnings, and what is stored."""

Vector = Mapping[str, Any]


@functools.cache
def recorded() -> dict[str, Any]:
    if not FILE.exists():
        pytest.skip(f"{FILE} is not there")
    document: dict[str, Any] = json.loads(FILE.read_text())
    return document


@pytest.fixture
def api() -> Iterator[Api]:
    gates = {"DRAListTypeAttributes": True, "DRANodeAllocatableResources": True, "DRADeviceTaintRules": True}
    with ApiServer(gates=gates) as server, Api(server) as client:
        for name, labels in recorded()["meta"]["namespaces"].items():
            namespace = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": labels},
            }
            assert client.post("/api/v1/namespaces", namespace).status == 201
        yield client


def collection(vector: Vector, obj: Mapping[str, Any]) -> str:
    plural = PLURALS[vector["kind"]]
    if vector["kind"] in {"ResourceClaim", "ResourceClaimTemplate"}:
        namespace = obj.get("metadata", {}).get("namespace", "vectors")
        return f"{RESOURCE}/namespaces/{namespace}/{plural}"
    return f"{RESOURCE}/{plural}"


def stored(api: Api, vector: Vector, obj: Mapping[str, Any]) -> dict[str, Any]:
    """Put what was there before the request, through the API."""
    path = collection(vector, obj)
    deleting = "deletionTimestamp" in obj["metadata"]
    kept = {name: value for name, value in obj["metadata"].items() if not name.startswith("deletion")}
    obj = {**obj, "metadata": kept}
    answer = api.post(path, obj)
    assert answer.status == 201, answer.body
    if "status" in obj and vector["kind"] == "ResourceClaim":
        answer = api.put(f"{path}/{obj['metadata']['name']}/status", obj)
        assert answer.status == 200, answer.body
    if deleting:
        answer = api.delete(f"{path}/{obj['metadata']['name']}")
    body: dict[str, Any] = answer.body
    return body


def filled(obj: Any, existing: Mapping[str, Any]) -> Any:
    text = json.dumps(obj)
    metadata = existing.get("metadata", {})
    for placeholder, name in (("<current-rv>", "resourceVersion"), ("<current-uid>", "uid")):
        text = text.replace(placeholder, metadata.get(name, ""))
    return json.loads(text)


def asked(api: Api, vector: Vector) -> Answer | None:
    """Send the request of a vector; None where the connection is closed without an answer."""
    sent = vector.get("object") or {}
    before = vector.get("existing")
    existing: dict[str, Any] = {}
    paths: list[str] = []
    if before is not None:
        for obj in before if isinstance(before, list) else [before]:
            existing = stored(api, vector, obj)
            paths.append(f"{collection(vector, obj)}/{obj['metadata']['name']}")
    try:
        return _sent(api, vector, filled(sent, existing), existing)
    except urllib3.exceptions.ProtocolError:
        return None
    finally:
        for path in paths:
            api.patch(path, {"metadata": {"finalizers": None}})
            api.delete(path)


def _sent(api: Api, vector: Vector, sent: Any, existing: Mapping[str, Any]) -> Answer:
    verb = vector["verb"]
    query = dict(vector.get("query", {}))
    if verb != "list" and not vector.get("real"):
        query["dryRun"] = "All"
    path = vector.get("path") or collection(vector, sent if verb == "create" else existing)
    more = f"?{urlencode(query)}" if query else ""
    body = vector["raw_body"].encode() if "raw_body" in vector else sent
    if verb == "create":
        answer = api.request("POST", path + more, body)
        if vector.get("real") and answer.status == 201:
            api.delete(f"{path}/{answer.body['metadata']['name']}")
        return answer
    if verb == "list":
        return api.get(path + more)
    absent = vector["status"] == 404 and not vector["verb"].endswith("-status")
    name = (sent if absent else existing)["metadata"]["name"]
    path = f"{path}/{name}{'/status' if verb.endswith('-status') else ''}{more}"
    if verb.startswith("patch"):
        return api.patch(path, sent, vector.get("contentType", MERGE))
    return api.request("PUT", path, body)


def difference(vector: Vector, answer: Answer | None) -> str:
    """Return in what the answer differs from the recorded one; empty where it does not."""
    if answer is None:
        return "" if vector["status"] is None else "the connection was closed"
    if answer.status != vector["status"]:
        return f"status {answer.status} and not {vector['status']}: {answer.body}"
    if vector["verb"] == "list" and vector["accepted"]:
        names = sorted(item["metadata"]["name"] for item in answer.body["items"])
        return "" if names == sorted(vector["items"]) else f"items {names}"
    if vector["accepted"]:
        return _stored_difference(vector, answer)
    if vector["causes"]:
        causes = sorted((cause["field"], cause["message"]) for cause in answer.body["details"]["causes"])
        expected = sorted((cause["field"], cause["message"]) for cause in vector["causes"])
        return "" if _starred(causes) == _starred(expected) else f"causes {causes}, and not {expected}"
    same = (answer.body.get("reason", ""), answer.body["message"]) == (vector["reason"], vector["message"])
    return "" if same else f"message {answer.body['message']}"


def _starred(causes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Leave out what random names say."""
    return [(field, "" if field == "metadata.name" else message) for field, message in causes]


def _stored_difference(vector: Vector, answer: Answer) -> str:
    generation = answer.body["metadata"].get("generation")
    if generation != vector.get("generation"):
        return f"generation {generation} and not {vector.get('generation')}"
    warnings = [text[7:-1].replace('\\"', '"') for text in _warnings(answer)]
    if warnings != vector.get("warnings", []):
        return f"warnings {warnings}"
    part = "status" if vector["verb"].endswith("-status") else "spec"
    if "stored" in vector:
        got, expected = json.dumps(answer.body[part], sort_keys=True), vector["stored"]
        wanted = json.dumps(expected, sort_keys=True)
        return "" if "<now>" in wanted or got == wanted else f"stored {got}, and not {wanted}"
    return ""


def _warnings(answer: Answer) -> list[str]:
    headers: Any = answer.headers
    return list(headers.getlist("warning"))


def test_the_recorded_requests_are_answered_as_recorded(api: Api) -> None:
    vectors = recorded()["vectors"]
    differences = {}
    for vector in vectors:
        if found := difference(vector, asked(api, vector)):
            differences[vector["name"]] = found
    for name, found in differences.items():
        sys.stdout.write(f"{name}: {found[:300]}\n")
    assert len(differences) <= (1 - AGREEING) * len(vectors)


def test_without_the_alpha_gates_as_recorded() -> None:
    vectors = recorded()["vectors_default_gates"]
    differences = {}
    with ApiServer() as server, Api(server) as api:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vectors"}}
        assert api.post("/api/v1/namespaces", namespace).status == 201
        for vector in vectors:
            if found := difference(vector, asked(api, vector)):
                differences[vector["name"]] = found
    for name, found in differences.items():
        sys.stdout.write(f"{name}: {found[:300]}\n")
    assert len(differences) <= (1 - AGREEING) * len(vectors)
