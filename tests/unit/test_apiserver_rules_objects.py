"""How the stand-in API server reads, completes and replaces objects."""

import copy
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from apirules import create, update
from dradriver.sim.apiserver import rules
from dradriver.sim.apiserver.rules import KINDS, Body, Gates, RawObject, Refused, decode
from dradriver.sim.apiserver.store import encode

GATES = Gates.of("1.36")
NOW = datetime(2026, 5, 4, 12, 30, 15, 999999, tzinfo=UTC)

SLICE: Mapping[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "node-a-gpu"},
    "spec": {
        "driver": "gpu.example.com",
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    },
}
CLAIM: Mapping[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
}


def a_slice(**device: Any) -> dict[str, Any]:
    return {**SLICE, "spec": {**SLICE["spec"], "devices": [{"name": "gpu-0", **device}]}}


def refused(call: Any) -> Refused:
    with pytest.raises(Refused) as found:
        call()
    return found.value


# Reading


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "couldn't get version/kind; json parse error: "),
        ('{"spec": NaN}', "couldn't get version/kind; json parse error: "),
        ("[" * 100_000, "couldn't get version/kind; json parse error: "),
        ("[]", "json: cannot unmarshal array into Go value of type struct"),
        ('"text"', "json: cannot unmarshal string into Go value of type struct"),
        (b"\xff\xfe{", "couldn't get version/kind; json parse error: "),
    ],
)
def test_what_is_no_json_object_is_a_bad_request(text: str | bytes, message: str) -> None:
    found = refused(lambda: Body.parse(text if isinstance(text, bytes) else text.encode()))
    assert (found.code, found.reason) == (400, "BadRequest")
    assert message in found.message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "nodeName",
            1,
            "cannot unmarshal number into Go struct field ResourceSliceSpec.spec.nodeName of type string",
        ),
        (
            "allNodes",
            "true",
            "cannot unmarshal string into Go struct field ResourceSliceSpec.spec.allNodes of type bool",
        ),
        ("devices", {}, "ResourceSliceSpec.spec.devices of type []v1.Device"),
        ("pool", [], "ResourceSliceSpec.spec.pool of type v1.ResourcePool"),
        (
            "pool",
            {"generation": 2.0},
            "cannot unmarshal number 2.0 into Go struct field ResourcePool.spec.pool.generation",
        ),
        (
            "pool",
            {"generation": 2**63},
            "cannot unmarshal number 9223372036854775808 into Go struct field ResourcePool",
        ),
        (
            "pool",
            {"generation": True},
            "cannot unmarshal bool into Go struct field ResourcePool.spec.pool.generation",
        ),
    ],
)
def test_wrong_json_types_are_named_as_go_names_them(field: str, value: object, message: str) -> None:
    text = json.dumps({**SLICE, "spec": {**SLICE["spec"], field: value}})
    found = refused(lambda: create("ResourceSlice", Body.parse(text.encode()), GATES))
    assert found.code == 400
    assert found.message.startswith(
        'ResourceSlice in version "v1" cannot be handled as a ResourceSlice: json: cannot unmarshal '
    )
    assert message in found.message


def test_unknown_and_repeated_fields_are_warned_of_refused_or_ignored_as_asked() -> None:
    text = (
        b'{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":"a","name":"node-a-gpu","x":1},'
        b'"spec":{"driver":"gpu.example.com","nodeName":"node-a","Devices":[],'
        b'"pool":{"name":"node-a","generation":1,"resourceSliceCount":1},"devices":[{"name":"gpu-0","color":"red"}]}}'
    )
    wrong = (
        'duplicate field "metadata.name"',
        'unknown field "metadata.x"',
        'unknown field "spec.Devices"',
        'unknown field "spec.devices[0].color"',
    )
    warned = create("ResourceSlice", Body.parse(text), GATES)
    assert warned.warnings == wrong
    assert warned.obj["metadata"]["name"] == "node-a-gpu"
    assert warned.obj["spec"] == SLICE["spec"]
    ignored = create("ResourceSlice", Body.parse(text), GATES, validation="Ignore")
    assert ignored.warnings == ()
    assert ignored.obj["spec"] == SLICE["spec"]
    strict = refused(lambda: create("ResourceSlice", Body.parse(text), GATES, validation="Strict"))
    assert strict.code == 400
    assert strict.message.endswith(f"strict decoding error: {', '.join(wrong)}")


def test_null_is_nothing_and_an_empty_list_is_not_stored() -> None:
    sent = a_slice(attributes={}, taints=[], bindsToNode=None, capacity=None)
    sent["spec"]["nodeSelector"] = None
    assert create("ResourceSlice", sent, GATES).obj["spec"] == SLICE["spec"]


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("1000", "1k"),
        ("0.5", "500m"),
        ("1024Ki", "1Mi"),
        ("1.5Gi", "1536Mi"),
        (" 1Gi ", "1Gi"),
        ("+1", "+1"),
        ("1E3", "1E3"),
        ("1e3", "1e3"),
        ("01", "01"),
        ("0.1n", "1n"),
        ("Gi", "0"),
        (80, "80"),
        (1000, "1k"),
        (0.25, "250m"),
        (None, "0"),
    ],
)
def test_quantities_are_stored_in_the_servers_spelling(sent: object, stored: str) -> None:
    text = json.dumps(a_slice(capacity={"memory": {"value": sent}}))
    made = create("ResourceSlice", Body.parse(text.encode()), GATES).obj
    assert made["spec"]["devices"][0]["capacity"] == {"memory": {"value": stored}}


@pytest.mark.parametrize("sent", ["", "1 Gi", "1gi", "1e", "--1", True, [], {}, "\uff11"])
def test_what_is_no_quantity_is_a_bad_request(sent: object) -> None:
    text = json.dumps(a_slice(capacity={"memory": {"value": sent}}))
    found = refused(lambda: create("ResourceSlice", Body.parse(text.encode()), GATES))
    assert found.code == 400
    assert "quantit" in found.message


def test_taints_get_the_time_of_their_coming_and_whole_seconds() -> None:
    taints = [
        {"key": "example.com/a", "effect": "NoSchedule"},
        {"key": "example.com/b", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05.9+02:00"},
    ]
    made = create("ResourceSlice", a_slice(taints=taints), GATES, now=NOW).obj
    assert [taint["timeAdded"] for taint in made["spec"]["devices"][0]["taints"]] == [
        "2026-05-04T12:30:15Z",
        "2026-01-02T01:04:05Z",
    ]
    assert made["metadata"]["creationTimestamp"] == "2026-05-04T12:30:15Z"


# Opaque parts


def configured(parameters: str) -> bytes:
    config = f'[{{"opaque": {{"driver": "gpu.example.com", "parameters": {parameters}}}}}]'
    return f'{{"metadata": {{"name": "gpu"}}, "spec": {{"config": {config}}}}}'.encode()


def test_parameters_keep_the_bytes_they_were_sent_as() -> None:
    text = '{ "b": 1.0,  "a": "\\u00e9" }'
    made = create("DeviceClass", Body.parse(configured(text)), GATES).obj
    parameters = made["spec"]["config"][0]["opaque"]["parameters"]
    assert isinstance(parameters, RawObject)
    assert parameters.text == text
    assert parameters == {"b": 1, "a": "é"}
    assert copy.deepcopy(parameters).text == text
    assert json.loads(json.dumps(made)) == json.loads(encode(made)) == made


def test_other_bytes_of_the_same_parameters_are_a_change() -> None:
    old = create("DeviceClass", Body.parse(configured('{"a": 1}')), GATES).obj
    same = update("DeviceClass", Body.parse(configured('{"a": 1}')), old, GATES)
    other = update("DeviceClass", Body.parse(configured('{"a":1}')), old, GATES)
    assert (same.spec_changed, same.obj["metadata"]["generation"]) == (False, 1)
    assert (other.spec_changed, other.obj["metadata"]["generation"]) == (True, 2)


def test_the_limit_of_parameters_counts_the_bytes_as_sent() -> None:
    space = " " * 10 * 1024
    found = refused(lambda: create("DeviceClass", Body.parse(configured(f"{{{space}}}")), GATES))
    assert [(cause.field, cause.reason) for cause in found.causes] == [
        ("spec.config[0].opaque.parameters", "FieldValueTooLong")
    ]
    assert create("DeviceClass", Body.parse(configured("{" + space[2:] + "}")), GATES)
    # A class that has them may keep them.
    old = create("DeviceClass", Body.parse(configured("{}")), GATES).obj
    kept = json.loads(configured(f"{{{space}}}"))["spec"]["config"]
    kept[0]["opaque"]["parameters"] = RawObject({}, f"{{{space}}}")
    old["spec"]["config"] = kept
    assert update("DeviceClass", Body.parse(configured(f"{{{space}}}")), old, GATES).spec_changed is False


@pytest.mark.parametrize("value", ["1", '"text"', "[]", "true"])
def test_parameters_must_be_an_object(value: str) -> None:
    found = refused(lambda: create("DeviceClass", Body.parse(configured(value)), GATES))
    assert [cause.reason for cause in found.causes] == ["FieldValueInvalid"]


def test_texts_that_are_no_unicode_become_replacement_characters() -> None:
    escaped = configured('{"a": "\\ud800", "b": "\\ud83d\\ude00"}')
    made = create("DeviceClass", Body.parse(escaped), GATES).obj
    assert made["spec"]["config"][0]["opaque"]["parameters"] == {"a": "\ufffd", "b": "\U0001f600"}
    made = create("DeviceClass", Body.parse(configured('{"a": "?"}').replace(b"?", b"\xff")), GATES).obj
    assert made["spec"]["config"][0]["opaque"]["parameters"] == {"a": "\ufffd"}


# Metadata


def test_a_new_object_gets_a_name_a_time_and_a_generation() -> None:
    sent = {**SLICE, "metadata": {"generateName": "a" * 60, "uid": "mine", "generation": 7, "namespace": "x"}}
    meta = create("ResourceSlice", sent, GATES, now=NOW, suffix=lambda: "bcdfg").obj["metadata"]
    assert meta.pop("uid") != "mine"
    assert meta == {
        "generateName": "a" * 60,
        "name": "a" * 58 + "bcdfg",
        "creationTimestamp": "2026-05-04T12:30:15Z",
        "generation": 1,
    }
    assert sent["metadata"]["uid"] == "mine"


def test_names_of_the_url_and_the_body_must_agree() -> None:
    old = create("ResourceClaim", CLAIM, GATES).obj
    other = {**CLAIM, "metadata": {"name": "other", "namespace": "default"}}
    found = refused(lambda: update("ResourceClaim", other, old, GATES, namespace="default", name="train"))
    assert "the name of the object (other) does not match the name on the URL (train)" in found.message
    found = refused(lambda: create("ResourceClaim", CLAIM, GATES, namespace="elsewhere"))
    assert found.code == 400
    assert "the namespace of the provided object does not match" in found.message


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [("resourceVersion", "6", "the object has been modified"), ("uid", "other", "Precondition failed: UID")],
)
def test_an_update_of_another_version_or_object_is_a_conflict(field: str, value: str, why: str) -> None:
    old = create("ResourceSlice", SLICE, GATES).obj
    old["metadata"] |= {"resourceVersion": "5", "uid": "this"}
    sent = {**SLICE, "metadata": {"name": "node-a-gpu", field: value}}
    found = refused(lambda: update("ResourceSlice", sent, old, GATES))
    assert (found.code, found.reason) == (409, "Conflict")
    assert why in found.message


def test_labels_finalizers_and_owners_are_checked() -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u", "controller": True}
    meta = {
        "name": "node-a-gpu",
        "labels": {"a b": "x", "ok": "-"},
        "annotations": {"/x": ""},
        "finalizers": ["orphan", "foregroundDeletion", "mine"],
        "ownerReferences": [owner, {**owner, "uid": "v", "name": ""}],
    }
    found = refused(lambda: create("ResourceSlice", {**SLICE, "metadata": meta}, GATES))
    assert {cause.field for cause in found.causes} == {
        "metadata.labels",
        "metadata.annotations",
        "metadata.finalizers",
        "metadata.finalizers[2]",
        "metadata.ownerReferences",
        "metadata.ownerReferences.name",
    }


def test_nothing_is_finalized_newly_while_an_object_is_being_deleted() -> None:
    old = create("ResourceSlice", SLICE, GATES).obj
    old["metadata"] |= {"deletionTimestamp": "2026-05-04T12:30:15Z", "finalizers": ["example.com/a"]}
    sent = {**SLICE, "metadata": {"name": "node-a-gpu", "finalizers": ["example.com/a", "example.com/b"]}}
    found = refused(lambda: update("ResourceSlice", sent, old, GATES))
    assert {(cause.field, cause.reason) for cause in found.causes} == {
        ("metadata.finalizers", "FieldValueForbidden")
    }
    sent["metadata"]["finalizers"] = []
    assert "finalizers" not in update("ResourceSlice", sent, old, GATES).obj["metadata"]


# Updates


def test_the_generation_counts_changes_of_the_spec() -> None:
    old = create("ResourceSlice", SLICE, GATES).obj
    labelled = {**SLICE, "metadata": {"name": "node-a-gpu", "labels": {"a": "b"}}}
    same = update("ResourceSlice", labelled, old, GATES)
    changed = update("ResourceSlice", a_slice(attributes={"index": {"int": 0}}), old, GATES)
    assert (same.spec_changed, same.obj["metadata"]["generation"]) == (False, 1)
    assert (changed.spec_changed, changed.obj["metadata"]["generation"]) == (True, 2)
    assert old["metadata"]["generation"] == 1


def test_driver_node_and_pool_of_a_slice_stay() -> None:
    old = create("ResourceSlice", SLICE, GATES).obj
    spec = {
        **SLICE["spec"],
        "driver": "other.example.com",
        "nodeName": "node-b",
        "pool": {"name": "node-b", "generation": 2, "resourceSliceCount": 1},
    }
    found = refused(lambda: update("ResourceSlice", {**SLICE, "spec": spec}, old, GATES))
    assert [(cause.field, cause.message) for cause in found.causes] == [
        ("spec.pool.name", 'Invalid value: "node-b": field is immutable'),
        ("spec.driver", 'Invalid value: "other.example.com": field is immutable'),
        ("spec.nodeName", 'Invalid value: "node-b": field is immutable'),
    ]


def test_specs_of_claims_and_templates_stay() -> None:
    other = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}}
    old = create("ResourceClaim", CLAIM, GATES).obj
    found = refused(lambda: update("ResourceClaim", {**CLAIM, "spec": other}, old, GATES))
    [cause] = found.causes
    assert (cause.field, cause.message[-18:]) == ("spec", "field is immutable")
    sent = {
        "metadata": CLAIM["metadata"],
        "spec": {"metadata": {"labels": {"b": "1", "a": "2"}}, "spec": CLAIM["spec"]},
    }
    template = create("ResourceClaimTemplate", sent, GATES).obj
    same = update("ResourceClaimTemplate", sent, template, GATES)
    assert same.spec_changed is False
    changed = {**sent, "spec": {**sent["spec"], "spec": other}}
    [cause] = refused(lambda: update("ResourceClaimTemplate", changed, template, GATES)).causes
    assert cause.message.startswith(
        'Invalid value: {"labels":{"a":"2","b":"1"},"Spec":{"Devices":{"Requests":[{'
    )


def test_defaults_do_not_make_a_change() -> None:
    made = create("ResourceClaim", CLAIM, GATES).obj
    assert made["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
    assert update("ResourceClaim", CLAIM, made, GATES).obj["spec"] == made["spec"]


# Objects that have been read, and other kinds


def test_an_object_that_was_read_goes_on_with_the_metadata_it_is_given() -> None:
    read = decode("ResourceSlice", Body.parse(json.dumps({**SLICE, "more": 1}).encode()), GATES)
    assert read.warnings == ('unknown field "more"',)
    meta = {"name": "node-a-gpu", "uid": "u", "creationTimestamp": "2026-05-04T12:30:15Z", "generation": 1}
    made = rules.create("ResourceSlice", {**read.obj, "metadata": dict(meta)}, GATES)
    assert made.warnings == ()
    assert made.obj["metadata"] == meta
    changed = decode("ResourceSlice", a_slice(attributes={"index": {"int": 0}}), GATES).obj
    after = rules.update("ResourceSlice", {**changed, "metadata": dict(meta)}, made.obj, GATES)
    assert after.spec_changed
    assert after.obj["metadata"] == meta


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_has_at_least_its_metadata_checked(name: str) -> None:
    kind = KINDS[name]
    meta = {"name": "a_b", "labels": {"a": "/"}, **({"namespace": "default"} if kind.namespaced else {})}
    fields = [cause.field for cause in refused(lambda: create(name, {"metadata": meta}, GATES)).causes]
    assert fields.count("metadata.name") == 1
    assert fields.count("metadata.labels") == 1
    found = refused(lambda: create(name, {"apiVersion": "v7", "kind": name, "metadata": meta}, GATES))
    assert found.message == (
        f"the API version in the data (v7) does not match the expected API version ({kind.api_version})"
    )


def test_other_kinds_keep_what_they_are_sent_with() -> None:
    spec = {"providerID": "x", "unheardOf": {"a": [1, 2.5, None]}}
    node = create("Node", {"metadata": {"name": "node-a"}, "spec": spec, "status": {"addresses": []}}, GATES)
    assert node.warnings == ()
    assert node.obj["spec"] == spec
    assert node.obj["status"] == {"addresses": []}
    changed = update("Node", {"metadata": {"name": "node-a"}, "spec": {}, "status": {}}, node.obj, GATES)
    assert (changed.obj["spec"], changed.obj["status"]) == ({}, {"addresses": []})
    reported = {"metadata": {"name": "node-a", "labels": {"a": "b"}}, "status": {"capacity": {"cpu": "4"}}}
    status = update("Node", reported, node.obj, GATES, "status").obj
    assert (status["spec"], status["status"]) == (spec, reported["status"])
    found = refused(
        lambda: update("ResourceSlice", SLICE, create("ResourceSlice", SLICE, GATES).obj, GATES, "status")
    )
    assert (found.code, found.reason) == (404, "NotFound")


def test_a_namespace_is_active_from_the_start_and_has_its_name_as_a_label() -> None:
    made = create("Namespace", {"metadata": {"name": "default"}}, GATES).obj
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "default"}
    assert (made["spec"], made["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    [cause] = refused(lambda: create("Namespace", {"metadata": {"name": "a.b"}}, GATES)).causes
    assert cause.field == "metadata.name"


def test_kinds_without_rules_are_named() -> None:
    with pytest.raises(ValueError, match=r"^kind 'Secret': served are DeviceClass, "):
        create("Secret", {}, GATES)


def test_a_whole_slice_of_devices_says_all_that_is_wrong_at_once() -> None:
    devices = [{"name": f"GPU {index}", "attributes": {"a-b": {"int": 1}}} for index in range(64)]
    sent = {**SLICE, "spec": {**SLICE["spec"], "devices": devices}}
    found = refused(lambda: create("ResourceSlice", sent, GATES))
    assert len(found.causes) == 128
    sent["spec"]["devices"] = [{"name": f"gpu-{index}"} for index in range(129)]
    [cause] = refused(lambda: create("ResourceSlice", sent, GATES)).causes
    assert cause.message == "Too many: 129: must have at most 128 items"
