"""The rules of the stand-in API server against what a Kubernetes 1.36 API server answered, request by request."""

import functools
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from apirules import create, update
from dradriver.sim.apiserver.rules import Body, Gates, Refused, Result
from recorded import SHARED

FILE = SHARED / "vectors" / "validation" / "vectors.json"

Vector = Mapping[str, Any]

# What the rules agree in with the server, as shares of the vectors that are about it.
LEAST = {"verdict": 1.0, "causes": 1.0, "message": 1.0, "stored": 1.0, "generation": 1.0, "warnings": 1.0}

SUFFIX = "bcdfg"
VERSION, UID = "1234", "a3b0ce43-5f0d-4c4e-9c1c-2d7f8f3a9b01"

# Answers of the router and of the storage, which the rules are between; the contract test over HTTP has them.
ELSEWHERE = {
    "slice/metadata/unserved-path": "no such path",
    "slice/update/not-found": "nothing is stored",
    "slice/real/already-exists": "the name is taken",
    "slice/metadata/already-exists-dry-run": "the name is taken",
    "claim/metadata/namespace-not-found": "no such namespace",
}


class Answer(NamedTuple):
    """What the rules made of a request; `code` is None where the server would have closed the connection."""

    code: int | None
    result: Result | None
    refused: Refused | None


@functools.cache
def recorded() -> dict[str, Any]:
    if not FILE.exists():
        pytest.skip(f"{FILE} is not there")
    document: dict[str, Any] = json.loads(FILE.read_text())
    return document


def vectors() -> Iterator[tuple[Vector, Gates]]:
    alpha = {"DRAListTypeAttributes": True, "DRANodeAllocatableResources": True, "DRADeviceTaintRules": True}
    for group, gates in (
        ("vectors", Gates.of("1.36", alpha)),
        ("vectors_default_gates", Gates.of("1.36", {"DRADeviceTaintRules": True})),
    ):
        for vector in recorded()[group]:
            if vector["verb"] in {"create", "update", "update-status"} and vector["name"] not in ELSEWHERE:
                yield vector, gates


def filled(value: Any) -> Any:
    """Put in what the storage gave the existing object."""
    return json.loads(json.dumps(value).replace("<current-rv>", VERSION).replace("<current-uid>", UID))


def answer(vector: Vector, gates: Gates) -> Answer:
    sent, existing = filled(vector.get("object")), filled(vector.get("existing"))
    text = vector.get("raw_body") or json.dumps(sent, separators=(",", ":"), ensure_ascii=False)
    namespace = _namespace(vector, existing or sent)
    admin = bool(recorded()["meta"]["namespaces"].get(namespace))
    validation = vector.get("query", {}).get("fieldValidation", "Warn")
    try:
        body = Body.parse(text.encode())
        if vector["verb"] == "create":
            made = create(
                vector["kind"],
                body,
                gates,
                namespace=namespace,
                admin=admin,
                validation=validation,
                suffix=lambda: SUFFIX,
            )
            return Answer(201, made, None)
        existing["metadata"] |= {"resourceVersion": VERSION, "uid": UID}
        part = vector["verb"].removeprefix("update").removeprefix("-")
        made = update(
            vector["kind"],
            body,
            existing,
            gates,
            part,
            namespace=namespace,
            admin=admin,
            validation=validation,
        )
        return Answer(200, made, None)
    except Refused as refused:
        return Answer(refused.code or None, None, refused)


def _namespace(vector: Vector, obj: Any) -> str:
    if "/namespaces/" in vector.get("path", ""):
        return str(vector["path"].split("/namespaces/")[1].split("/")[0])
    return str((obj.get("metadata") or {}).get("namespace", "")) if isinstance(obj, dict) else ""


def differences(vector: Vector, got: Answer) -> Iterator[tuple[str, bool]]:
    """Yield each matter that the vector is about, and whether the answer is the recorded one in it."""
    yield "verdict", got.code == vector["status"]
    if got.code != vector["status"]:
        return
    if got.refused is not None:
        causes = [(cause.field, cause.reason, cause.message) for cause in got.refused.causes]
        wanted = [(cause["field"], cause["reason"], cause["message"]) for cause in vector["causes"]]
        yield "causes", sorted(starred(causes)) == sorted(wanted)
        if vector.get("message") and got.code:
            yield "message", got.refused.message.replace(SUFFIX, "*****") == vector["message"]
    if got.result is None:
        return
    yield "warnings", list(got.result.warnings) == vector.get("warnings", [])
    if "generation" in vector:
        yield "generation", got.result.obj["metadata"].get("generation") == vector["generation"]
    sent = vector["object"]
    part = "status" if vector["verb"].endswith("status") else "spec"
    wanted = vector.get("stored", sent.get(part) if isinstance(sent, dict) else None)
    yield "stored", now_named(json.loads(json.dumps(got.result.obj.get(part)))) == wanted


def starred(causes: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return [(field, reason, message.replace(SUFFIX, "*****")) for field, reason, message in causes]


def now_named(value: Any) -> Any:
    """Replace times of just now, as the recording does."""
    if isinstance(value, dict):
        return {key: _now(item) if key == "timeAdded" else now_named(item) for key, item in value.items()}
    return [now_named(item) for item in value] if isinstance(value, list) else value


def _now(text: str) -> str:
    return "<now>" if abs(datetime.now(UTC) - datetime.fromisoformat(text)) < timedelta(minutes=5) else text


def test_the_rules_decide_as_the_server_did() -> None:
    matters: dict[str, list[bool]] = {name: [] for name in LEAST}
    disagreeing = []
    for vector, gates in vectors():
        for matter, agrees in differences(vector, answer(vector, gates)):
            matters[matter].append(agrees)
            if not agrees:
                disagreeing.append(f"{matter}: {vector['name']}")
    shares = {matter: sum(agreed) / len(agreed) for matter, agreed in matters.items()}
    counts = [f"{matter}: {sum(agreed)} of {len(agreed)}" for matter, agreed in matters.items()]
    sys.stdout.write("\n  ".join(["\nagreeing with the recorded server", *counts, *disagreeing, ""]))
    assert all(shares[matter] >= least for matter, least in LEAST.items()), disagreeing
    assert len(matters["verdict"]) > 800
