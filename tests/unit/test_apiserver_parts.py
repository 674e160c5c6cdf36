"""The pure parts of the stand-in API server: patches, ages, sets of fields, routes."""

from datetime import timedelta
from typing import Any

import pytest

from dradriver.sim.apiserver import kinds, protobuf
from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.fieldsets import difference, fields_of, from_json, shown_path, to_json, without
from dradriver.sim.apiserver.patches import merged, patched
from dradriver.sim.apiserver.routes import Route, route
from dradriver.sim.apiserver.shapes import shape_of
from dradriver.sim.apiserver.tables import human_duration

CLAIM = shape_of("ResourceClaim")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (135, "2m15s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (51 * 3600, "2d3h"),
        (8 * 86400, "8d"),
        (400 * 86400, "400d"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_are_shown_as_kubectl_knows_them(seconds: int, shown: str) -> None:
    assert human_duration(timedelta(seconds=seconds)) == shown


def test_a_merge_patch_as_in_its_rfc() -> None:
    target = {"a": "b", "c": {"d": "e", "f": "g"}}
    assert merged(target, {"a": "z", "c": {"f": None}}) == {"a": "z", "c": {"d": "e"}}
    assert merged({"a": [{"b": "c"}]}, {"a": [1]}) == {"a": [1]}
    assert merged({}, {"a": {"bb": {"ccc": None}}}) == {"a": {"bb": {}}}
    assert merged({"a": "foo"}, ["c"]) == ["c"]
    assert target == {"a": "b", "c": {"d": "e", "f": "g"}}


@pytest.mark.parametrize(
    ("operations", "result"),
    [
        ([{"op": "add", "path": "/foo/1", "value": "x"}], {"foo": ["a", "x", "b"]}),
        ([{"op": "add", "path": "/b~1r", "value": 1}], {"foo": ["a", "b"], "b/r": 1}),
        ([{"op": "move", "from": "/foo/0", "path": "/foo/1"}], {"foo": ["b", "a"]}),
        ([{"op": "remove", "path": "/foo/0"}], {"foo": ["b"]}),
        ([{"op": "replace", "path": "", "value": {"new": 1}}], {"new": 1}),
        ([{"op": "copy", "from": "/foo", "path": "/bar"}], {"foo": ["a", "b"], "bar": ["a", "b"]}),
    ],
)
def test_a_json_patch_as_in_its_rfc(operations: Any, result: Any) -> None:
    before = {"foo": ["a", "b"]}
    assert patched(before, operations) == result
    assert before == {"foo": ["a", "b"]}


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ({}, 400),
        (["x"], 400),
        ([{"op": "jump", "path": "/foo"}], 422),
        ([{"op": "add", "path": "foo", "value": 1}], 422),
        ([{"op": "remove", "path": "/nope"}], 422),
        ([{"op": "add", "path": "/foo/7", "value": 1}], 422),
        ([{"op": "add", "path": "/foo/x", "value": 1}], 422),
        ([{"op": "replace", "path": "/foo/²", "value": 1}], 422),
        ([{"op": "test", "path": "/foo", "value": []}], 422),
        ([{"op": "move", "path": "/a"}], 422),
        ([{"op": "test", "path": "/foo", "value": 1}] * 10_001, 413),
    ],
)
def test_a_json_patch_that_cannot_be_applied(operations: Any, code: int) -> None:
    with pytest.raises(ApiError) as error:
        patched({"foo": ["a", "b"]}, operations)
    assert error.value.code == code


def claim(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": {"a": "b"}}, "status": {"devices": list(devices)}}


def test_fields_are_told_by_the_keys_of_their_lists() -> None:
    one = {"driver": "d", "pool": "p", "device": "x", "data": {"deep": [1]}}
    fields = fields_of(claim(one), CLAIM)
    assert sorted(map(shown_path, fields)) == [
        ".metadata.labels.a",
        '.status.devices[device="x",driver="d",pool="p"]',
        '.status.devices[device="x",driver="d",pool="p"].data',
        '.status.devices[device="x",driver="d",pool="p"].device',
        '.status.devices[device="x",driver="d",pool="p"].driver',
        '.status.devices[device="x",driver="d",pool="p"].pool',
    ]
    assert from_json(to_json(fields)) == fields
    assert without(claim(one), fields, CLAIM) is None


def test_a_difference_names_what_came_went_and_changed() -> None:
    old = claim({"driver": "d", "pool": "p", "device": "x", "data": 1}, {"driver": "d", "device": "y"})
    new = claim({"driver": "d", "device": "z"}, {"driver": "d", "pool": "p", "device": "x", "data": True})
    changes = difference(old, new, CLAIM)
    assert [shown_path(path) for path in changes.modified] == [
        '.status.devices[device="x",driver="d",pool="p"].data'
    ]
    assert {shown_path(path)[:37] for path in changes.added} == {'.status.devices[device="z",driver="d"'}
    assert {shown_path(path)[:37] for path in changes.removed} == {'.status.devices[device="y",driver="d"'}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/api/v1/nodes", Route(kinds.NODE)),
        ("/api/v1/nodes/a", Route(kinds.NODE, "", "a")),
        ("/api/v1/nodes/a/status", Route(kinds.NODE, "", "a", "status")),
        ("/api/v1/namespaces", Route(kinds.NAMESPACE)),
        ("/api/v1/namespaces/a", Route(kinds.NAMESPACE, "", "a")),
        ("/api/v1/namespaces/a/status", Route(kinds.NAMESPACE, "", "a", "status")),
        ("/api/v1/namespaces/a/pods", Route(kinds.POD, "a")),
        ("/api/v1/pods", Route(kinds.POD)),
        ("/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/b", Route(kinds.CLAIM, "a", "b")),
        ("/api/v1/pods/a", None),
        ("/api/v1/namespaces/a/nodes", None),
        ("/api/v1/namespaces//pods", None),
        ("/api/v1/nodes/", None),
        ("/api/v1/nodes/a/b", None),
        ("/api/v1/nodes/a/status/c", None),
        ("/api/v2/nodes", None),
        ("/apis/resource.k8s.io/v1", None),
        ("/", None),
        ("", None),
    ],
)
def test_paths_lead_to_objects(path: str, found: Route | None) -> None:
    assert route(path, kinds.ALL) == found


def test_a_namespace_in_protobuf() -> None:
    # As kubectl 1.32 sends it for `kubectl create namespace team`.
    metadata = b"\x0a\x04team" + b"\x5a\x06\x0a\x01a\x12\x01b"
    inner = b"\x0a" + bytes([len(metadata)]) + metadata + b"\x12\x00\x1a\x00"
    body = (
        b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12" + bytes([len(inner)]) + inner + b"\x1a\x00\x22\x00"
    )
    assert protobuf.namespace(body) == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "team", "labels": {"a": "b"}},
    }
    for wrong in (b"", b"k8s\x00", body[:-20], body.replace(b"Namespace", b"Namespice"), b"k8s\x00\xff\xff"):
        with pytest.raises(ValueError, match=r"."):
            protobuf.namespace(wrong)
