"""The stand-in API server over HTTP: creating, reading, changing and deleting objects, as a real one does it."""

import re
import threading
from collections.abc import Iterator

import pytest

from apiserverside import CLAIMS, CLASSES, NODES, SLICES, Api, allocation, claim_body, node_body, slice_body
from dradriver.sim.apiserver import ApiServer, User


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def api(server: ApiServer) -> Iterator[Api]:
    with Api(server) as client:
        yield client


def test_a_new_object_gets_what_only_the_server_knows(api: Api) -> None:
    sent = slice_body(uid="mine", generation=7, creationTimestamp="2001-01-01T00:00:00Z")
    answer = api.post(SLICES, sent)
    assert answer.status == 201
    metadata = answer.body["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["generation"] == 1
    assert re.fullmatch(r"20[2-9]\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert metadata["resourceVersion"].isdigit()
    [entry] = metadata["managedFields"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == (
        "test",
        "Update",
        "resource.k8s.io/v1",
    )
    assert entry["fieldsV1"]["f:spec"]["f:devices"] == {}
    assert answer.body["spec"] == sent["spec"]
    assert api.get(f"{SLICES}/s1").body == answer.body


def test_generated_names_keep_58_characters_and_add_five(api: Api) -> None:
    body = slice_body()
    body["metadata"] = {"generateName": "a" * 60}
    names = {api.post(SLICES, body).body["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(re.fullmatch(r"a{58}[a-z0-9]{5}", name) for name in names)


def test_what_is_refused_is_said_in_the_servers_words(api: Api) -> None:
    api.post(SLICES, slice_body())
    taken = api.post(SLICES, slice_body())
    assert taken.status == 409
    assert taken.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'resourceslices.resource.k8s.io "s1" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "s1", "group": "resource.k8s.io", "kind": "resourceslices"},
        "code": 409,
    }
    missing = api.get(f"{NODES}/nope")
    assert (missing.status, missing.body["message"]) == (404, 'nodes "nope" not found')
    assert api.get("/apis/resource.k8s.io/v1beta9/resourceslices").body["reason"] == "NotFound"
    assert api.put(f"{SLICES}/s1/status", slice_body()).status == 404
    assert api.request("PUT", SLICES, slice_body()).status == 405
    assert api.post("/apis/resource.k8s.io/v1/resourceclaims", claim_body()).status == 405
    in_earnest = api.post(SLICES, slice_body("s2", resourceVersion="1"))
    assert in_earnest.status == 500
    assert api.post(f"{SLICES}?dryRun=All", slice_body("s2", resourceVersion="1")).status == 201


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'"x"', b"", b'{"metadata": 1}', b'{"metadata": {"name": 7}}', b"[" * 100_000]
)
def test_what_is_no_object_is_refused(api: Api, body: bytes) -> None:
    assert api.request("POST", SLICES, body).status in {400, 422}
    assert api.get(SLICES).body["items"] == []


def test_bodies_are_json_or_yaml_and_limited(api: Api) -> None:
    text = b"apiVersion: v1\nkind: Node\nmetadata: {name: node-b}\n"
    assert api.request("POST", NODES, text, "application/yaml").status == 201
    assert api.request("POST", NODES, text, "application/vnd.kubernetes.protobuf").status == 415
    assert api.request("POST", NODES, text, "text/html").status == 415
    assert api.get(NODES, Accept="text/html").status == 406
    assert api.request("POST", NODES, b" " * (3 * 1024 * 1024 + 1)).status == 413


def test_a_namespace_must_be_there_and_takes_its_objects_along(api: Api) -> None:
    path = CLAIMS.replace("default", "team")
    missing = api.post(path, claim_body())
    assert (missing.status, missing.body["message"]) == (404, 'namespaces "team" not found')
    api.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    assert api.post(path, claim_body()).status == 201
    other = api.post(CLAIMS, claim_body(namespace="team"))
    assert (other.status, other.body["reason"]) == (400, "BadRequest")
    assert len(api.get("/apis/resource.k8s.io/v1/resourceclaims").body["items"]) == 1
    api.delete("/api/v1/namespaces/team")
    assert api.get("/apis/resource.k8s.io/v1/resourceclaims").body["items"] == []


def test_an_update_of_an_old_version_conflicts(api: Api) -> None:
    old = api.post(SLICES, slice_body()).body
    changed = {**old, "spec": {**old["spec"], "devices": []}}
    del changed["spec"]["devices"]
    assert api.put(f"{SLICES}/s1", changed).status == 200
    conflict = api.put(f"{SLICES}/s1", old)
    assert (conflict.status, conflict.body["reason"]) == (409, "Conflict")
    assert "the object has been modified" in conflict.body["message"]
    # These kinds may be updated without a version, but not under another UID.
    assert api.put(f"{SLICES}/s1", slice_body()).status == 200
    assert api.put(f"{SLICES}/s1", slice_body(uid="another")).status == 409
    assert api.put(f"{SLICES}/s1", slice_body(resourceVersion="abc")).status == 500
    assert api.put(f"{SLICES}/s1", slice_body("s2")).status == 400
    assert api.put(f"{SLICES}/s2", slice_body("s2")).status == 404


def test_the_generation_counts_changes_of_the_spec(api: Api) -> None:
    first = api.post(SLICES, slice_body()).body
    labelled = api.put(f"{SLICES}/s1", slice_body(labels={"a": "b"})).body
    assert labelled["metadata"]["generation"] == 1
    assert labelled["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    changed = slice_body()
    changed["spec"]["pool"]["generation"] = 2
    assert api.put(f"{SLICES}/s1", changed).body["metadata"]["generation"] == 2
    claim = api.post(CLAIMS, claim_body()).body
    assert "generation" not in claim["metadata"]


def test_an_update_that_changes_nothing_is_not_written(api: Api, server: ApiServer) -> None:
    first = api.post(SLICES, slice_body()).body
    again = api.put(f"{SLICES}/s1", slice_body()).body
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert server.requests.writes() == {"ResourceSlice": 1}


def test_spec_and_status_are_written_apart(api: Api) -> None:
    body = claim_body()
    body["status"] = {"allocation": allocation("gpu-0")}
    created = api.post(CLAIMS, body).body
    assert not created.get("status")
    written = api.put(f"{CLAIMS}/c1/status", {**body, "metadata": {"name": "c1", "labels": {"a": "b"}}}).body
    assert written["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
    assert "labels" not in written["metadata"]
    again = api.put(f"{CLAIMS}/c1", claim_body(labels={"a": "b"})).body
    assert again["status"] == written["status"]
    assert again["metadata"]["labels"] == {"a": "b"}
    assert api.get(f"{CLAIMS}/c1/status").body == again


def test_a_dry_run_answers_and_stores_nothing(api: Api, server: ApiServer) -> None:
    tried = api.post(f"{SLICES}?dryRun=All", slice_body())
    assert tried.status == 201
    assert "resourceVersion" not in tried.body["metadata"]
    assert api.get(f"{SLICES}/s1").status == 404
    api.post(SLICES, slice_body())
    version = server.store.version
    changed = slice_body()
    changed["spec"]["pool"]["generation"] = 9
    assert api.put(f"{SLICES}/s1?dryRun=All", changed).body["metadata"]["generation"] == 2
    assert api.delete(f"{SLICES}/s1?dryRun=All").status == 200
    assert api.delete(f"{SLICES}/s1", {"dryRun": ["All"]}).status == 200
    assert api.get(f"{SLICES}/s1").body["spec"]["pool"]["generation"] == 1
    assert server.store.version == version
    assert api.post(f"{SLICES}?dryRun=Some", slice_body("s2")).status == 422


def test_unknown_fields_warn_or_are_refused_as_asked(api: Api) -> None:
    body = slice_body()
    body["spec"]["colour"] = "red"
    strict = api.post(f"{SLICES}?fieldValidation=Strict", body)
    assert strict.status == 400
    assert 'strict decoding error: unknown field "spec.colour"' in strict.body["message"]
    ignored = api.post(f"{SLICES}?fieldValidation=Ignore&dryRun=All", body)
    assert "warning" not in ignored.headers
    warned = api.post(SLICES, body)
    assert warned.headers["warning"] == '299 - "unknown field \\"spec.colour\\""'
    assert "colour" not in warned.body["spec"]
    patched = api.patch(f"{SLICES}/s1", {"spec": {"colour": "red"}})
    assert patched.headers["warning"] == '299 - "unknown field \\"spec.colour\\""'
    assert api.post(f"{SLICES}?fieldValidation=Maybe", body).status == 422


def test_patches_of_three_kinds(api: Api) -> None:
    api.post(SLICES, slice_body(labels={"a": "b", "c": "d"}))
    merged = api.patch(f"{SLICES}/s1", {"metadata": {"labels": {"a": None, "e": "f"}}})
    assert merged.body["metadata"]["labels"] == {"c": "d", "e": "f"}
    operations = [
        {"op": "test", "path": "/spec/devices/0/name", "value": "gpu-0"},
        {"op": "add", "path": "/spec/devices/-", "value": {"name": "gpu-1"}},
        {"op": "copy", "from": "/spec/devices/0", "path": "/spec/devices/1"},
        {"op": "replace", "path": "/spec/devices/1/name", "value": "gpu-2"},
        {"op": "remove", "path": "/metadata/labels/c"},
    ]
    answer = api.patch(f"{SLICES}/s1", operations, "application/json-patch+json")
    assert [device["name"] for device in answer.body["spec"]["devices"]] == ["gpu-0", "gpu-2", "gpu-1"]
    assert answer.body["metadata"]["labels"] == {"e": "f"}
    failing = [{"op": "test", "path": "/spec/devices/0/name", "value": "other"}]
    assert api.patch(f"{SLICES}/s1", failing, "application/json-patch+json").status == 422
    replaced = api.patch(
        f"{SLICES}/s1",
        {"spec": {"devices": [{"name": "gpu-9"}]}},
        "application/strategic-merge-patch+json",
    )
    assert replaced.body["spec"]["devices"] == [{"name": "gpu-9"}]
    assert api.patch(f"{SLICES}/s1", {}, "application/json").status == 415
    stale = {"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}}
    assert api.patch(f"{SLICES}/s1", stale).status == 409


def test_a_strategic_patch_of_a_node_merges_by_key(api: Api) -> None:
    node = node_body()
    node["status"] = {
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "Full", "status": "False"}]
    }
    api.post(NODES, node)
    patch = {
        "status": {
            "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "Full"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"$patch": "delete", "type": "Full"}],
        }
    }
    answer = api.patch(f"{NODES}/node-a/status", patch, "application/strategic-merge-patch+json")
    assert answer.body["status"]["conditions"] == [{"type": "Ready", "status": "True"}]


def test_deleting_with_preconditions_and_finalizers(api: Api) -> None:
    created = api.post(CLAIMS, claim_body(finalizers=["example.com/hold"])).body
    wrong = api.delete(f"{CLAIMS}/c1", {"preconditions": {"uid": "another"}})
    assert (wrong.status, wrong.body["reason"]) == (409, "Conflict")
    assert api.delete(f"{CLAIMS}/c1", {"preconditions": {"resourceVersion": "1"}}).status == 409
    marked = api.delete(f"{CLAIMS}/c1", {"preconditions": {"uid": created["metadata"]["uid"]}})
    assert marked.status == 200
    assert marked.body["metadata"]["deletionTimestamp"]
    assert api.get(f"{CLAIMS}/c1").body["metadata"]["finalizers"] == ["example.com/hold"]
    let_go = api.patch(f"{CLAIMS}/c1", {"metadata": {"finalizers": None}})
    assert let_go.status == 200
    assert api.get(f"{CLAIMS}/c1").status == 404
    api.post(NODES, node_body())
    gone = api.delete(f"{NODES}/node-a").body
    assert (gone["kind"], gone["status"], gone["details"]["name"]) == ("Status", "Success", "node-a")


def test_deleting_a_collection_by_selectors(api: Api) -> None:
    for name, node, driver in (("s1", "a", "x.io"), ("s2", "a", "y.io"), ("s3", "b", "x.io")):
        api.post(SLICES, slice_body(name, node, driver))
    gone = api.delete(f"{SLICES}?fieldSelector=spec.nodeName%3Da,spec.driver%3Dx.io")
    assert [item["metadata"]["name"] for item in gone.body["items"]] == ["s1"]
    left = api.get(SLICES).body["items"]
    assert [item["metadata"]["name"] for item in left] == ["s2", "s3"]


def test_what_a_node_owns_goes_with_it(api: Api) -> None:
    uid = api.post(NODES, node_body()).body["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid, "controller": True}
    assert api.post(SLICES, slice_body("s1", ownerReferences=[owner])).status == 201
    assert api.post(SLICES, slice_body("s2")).status == 201
    assert api.get(f"{SLICES}/s1").status == 200
    api.delete(f"{NODES}/node-a")
    assert [item["metadata"]["name"] for item in api.get(SLICES).body["items"]] == ["s2"]
    # The owner is gone: the garbage collector takes the new one as well, though it was stored.
    assert api.post(SLICES, slice_body("s3", ownerReferences=[owner])).status == 201
    assert api.get(f"{SLICES}/s3").status == 404


def test_lists_by_selectors(api: Api) -> None:
    api.post(SLICES, slice_body("s1", "a", "x.io", labels={"tier": "one", "size": "5"}))
    api.post(SLICES, slice_body("s2", "b", "x.io", labels={"tier": "two"}))
    api.post(SLICES, slice_body("s3", "b", "y.io"))

    def names(query: str) -> list[str]:
        answer = api.get(f"{SLICES}?{query}")
        assert answer.status == 200, answer.body
        return [item["metadata"]["name"] for item in answer.body["items"]]

    assert names("fieldSelector=spec.nodeName=b") == ["s2", "s3"]
    assert names("fieldSelector=spec.driver=x.io,spec.nodeName!=b") == ["s1"]
    assert names("fieldSelector=metadata.name==s3") == ["s3"]
    assert names("labelSelector=tier") == ["s1", "s2"]
    assert names("labelSelector=!tier") == ["s3"]
    assert names("labelSelector=tier%20in%20(one,three)") == ["s1"]
    assert names("labelSelector=tier%20notin%20(one)") == ["s2", "s3"]
    assert names("labelSelector=tier!=two,size%3E4") == ["s1"]
    unknown = api.get(f"{SLICES}?fieldSelector=spec.pool.name=x")
    assert unknown.body["message"] == (
        "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.pool.name"
    )
    assert api.get(f"{SLICES}?fieldSelector=spec.nodeName%20in%20(b)").status == 400
    assert api.get(f"{SLICES}?labelSelector=a%20is%20b").status == 400
    assert api.get(f"{CLAIMS}?fieldSelector=spec.nodeName=b").status == 400


def test_items_of_lists_have_no_kind(api: Api) -> None:
    api.post(SLICES, slice_body())
    listed = api.get(SLICES).body
    assert (listed["kind"], listed["apiVersion"]) == ("ResourceSliceList", "resource.k8s.io/v1")
    assert listed["items"][0].keys() == {"metadata", "spec"}


def test_lists_in_pages_are_of_one_moment(api: Api, server: ApiServer) -> None:
    for number in range(5):
        api.post(SLICES, slice_body(f"s{number}"))
    first = api.get(f"{SLICES}?limit=2").body
    assert first["metadata"]["remainingItemCount"] == 3
    token = first["metadata"]["continue"]
    api.delete(f"{SLICES}/s3")
    api.post(SLICES, slice_body("s9"))
    second = api.get(f"{SLICES}?limit=9&continue={token}").body
    assert [item["metadata"]["name"] for item in second["items"]] == ["s2", "s3", "s4"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]
    server.faults.forget_history()
    expired = api.get(f"{SLICES}?limit=2&continue={token}")
    assert (expired.status, expired.body["reason"]) == (410, "Expired")
    inconsistent = api.get(f"{SLICES}?continue={expired.body['metadata']['continue']}").body
    assert [item["metadata"]["name"] for item in inconsistent["items"]] == ["s2", "s4", "s9"]
    assert api.get(f"{SLICES}?continue=rubbish").status == 400
    future = api.get(f"{SLICES}?resourceVersion=999999999")
    assert (future.status, future.headers["retry-after"]) == (504, "1")


def test_tables_for_kubectl(api: Api) -> None:
    api.post(SLICES, slice_body())
    api.post(CLAIMS, claim_body())
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    slices = api.get(SLICES, Accept=accept).body
    assert [column["name"] for column in slices["columnDefinitions"]] == [
        "Name",
        "Node",
        "Driver",
        "Pool",
        "Age",
    ]
    assert slices["rows"][0]["cells"][:4] == ["s1", "node-a", "gpu.dradriver.io", "node-a/gpu"]
    assert slices["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    claim = api.get(f"{CLAIMS}/c1?includeObject=Object", Accept=accept).body
    assert claim["rows"][0]["cells"][:2] == ["c1", "pending"]
    assert claim["rows"][0]["object"]["kind"] == "ResourceClaim"
    assert api.get(f"{SLICES}?includeObject=Some", Accept=accept).status == 400


def test_who_may_ask(server: ApiServer) -> None:
    del server
    node = User("system:serviceaccount:kube-system:dradriver", extra={"node": ("node-a",)})
    seen = []

    def admit(user: User, verb: str, new: object, old: object) -> str | None:
        seen.append((user.name, verb, new is None, old is None))
        return "only administrators may delete" if verb == "DELETE" and user is node else None

    with ApiServer(token="secret", users={"other": node}, admit=admit) as guarded:
        with Api(guarded) as nobody:
            assert nobody.get(SLICES).status == 401
            assert nobody.get("/healthz").status == 200
        with Api(guarded, "other") as driver, Api(guarded, "secret") as admin:
            assert driver.post(SLICES, slice_body()).status == 201
            refused = driver.delete(f"{SLICES}/s1")
            assert refused.status == 422
            assert "only administrators may delete" in refused.body["message"]
            changed = slice_body(labels={"a": "b"})
            assert admin.put(f"{SLICES}/s1", changed).status == 200
            assert admin.delete(f"{SLICES}/s1").status == 200
    assert seen == [
        (node.name, "CREATE", False, True),
        (node.name, "DELETE", True, False),
        ("kubernetes-admin", "UPDATE", False, False),
        ("kubernetes-admin", "DELETE", True, False),
    ]


def test_the_log_tells_reads_from_writes(api: Api, server: ApiServer) -> None:
    api.post(
        CLASSES, {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
    )
    api.post(f"{SLICES}?dryRun=All", slice_body())
    api.post(SLICES, slice_body())
    api.post(SLICES, slice_body())
    api.get(f"{SLICES}?fieldSelector=spec.nodeName=a")
    api.delete(f"{SLICES}/s1")
    assert server.requests.writes() == {"DeviceClass": 1, "ResourceSlice": 2}
    listed = server.requests.matching(verb="list")
    assert [(entry.path, dict(entry.query), entry.user_agent) for entry in listed] == [
        (SLICES, {"fieldSelector": "spec.nodeName=a"}, "test/1.0")
    ]
    statuses = [entry.status for entry in server.requests.matching("POST", "slices$")]
    assert statuses == [201, 201, 409]
    assert {entry.verb for entry in server.requests.matching("POST")} == {"create"}
    server.requests.clear()
    assert len(server.requests) == 0


def test_the_store_is_open_to_whoever_plays_another_part(api: Api, server: ApiServer) -> None:
    made = server.store.create(claim_body(namespace="team"))
    assert made["metadata"]["uid"]
    path = f"{CLAIMS.replace('default', 'team')}/c1"
    made["status"] = {"allocation": allocation("gpu-0")}
    server.store.replace(made)
    assert api.get(path).body["status"]["allocation"] == allocation("gpu-0")
    assert server.store.get("ResourceClaim", "c1", "team")["status"] == made["status"]
    assert [claim["metadata"]["name"] for claim in server.store.list("ResourceClaim")] == ["c1"]
    server.store.delete("ResourceClaim", "c1", "team")
    assert api.get(path).status == 404
    with pytest.raises(KeyError):
        server.store.get("ResourceClaim", "c1", "team")


def test_an_event_stands_with_its_object(api: Api) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e1", "namespace": "kube-system"},
        "involvedObject": {"kind": "Node", "name": "node-a"},
    }
    refused = api.post("/api/v1/namespaces/kube-system/events", event)
    assert refused.status == 422
    assert "does not match event.namespace" in refused.body["message"]
    event["metadata"] = {"name": "e1"}
    assert api.post("/api/v1/namespaces/default/events", event).status == 201
    found = api.get("/api/v1/events?fieldSelector=involvedObject.name=node-a,involvedObject.kind=Node").body
    assert len(found["items"]) == 1


def test_many_writers_at_once(api: Api, server: ApiServer) -> None:
    api.post(SLICES, slice_body(labels={"count": "0"}))
    conflicts = []

    def count() -> None:
        with Api(server) as own:
            for _ in range(20):
                while True:
                    current = own.get(f"{SLICES}/s1").body
                    labels = current["metadata"]["labels"]
                    labels["count"] = str(int(labels["count"]) + 1)
                    status = own.put(f"{SLICES}/s1", current).status
                    if status == 200:
                        break
                    conflicts.append(status)

    with api.watch(f"{SLICES}?resourceVersion={server.store.version}") as events:
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        seen = [events.next()[1]["metadata"] for _ in range(80)]
    assert [metadata["labels"]["count"] for metadata in seen] == [str(number) for number in range(1, 81)]
    versions = [int(metadata["resourceVersion"]) for metadata in seen]
    assert versions == sorted(versions)
    assert set(conflicts) <= {409}


def test_objects_that_came_past_the_api_can_be_odd(api: Api, server: ApiServer) -> None:
    odd = claim_body("odd")
    odd["spec"] = {"devices": {"requests": [{"name": "a"}]}, "more": 1}
    server.store.create(odd)
    assert api.get(f"{CLAIMS}/odd").body["spec"] == odd["spec"]
    path = f"{CLAIMS}/odd/status"
    assert api.patch(path, {"status": {"allocation": allocation("gpu-0")}}).status in {200, 422}
    worse = claim_body("worse")
    worse["spec"] = "nonsense"
    server.store.create(worse)
    assert api.patch(f"{CLAIMS}/worse/status", {"status": {}}).status == 400
    assert len(api.get(CLAIMS).body["items"]) == 2


def test_two_writers_never_overwrite_each_other(api: Api) -> None:
    api.post(SLICES, slice_body(labels={"count": "0"}))
    for _ in range(10):
        current = api.get(f"{SLICES}/s1").body
        current["metadata"]["labels"]["count"] = str(int(current["metadata"]["labels"]["count"]) + 1)
        assert api.put(f"{SLICES}/s1", current).status == 200
        assert api.put(f"{SLICES}/s1", current).status == 409
    assert api.get(f"{SLICES}/s1").body["metadata"]["labels"] == {"count": "10"}
