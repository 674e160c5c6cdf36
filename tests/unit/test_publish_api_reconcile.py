"""Which writes bring the stored slices of a pool to what they should say, and in which order."""

import copy
import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dradriver.model import CounterSet, Device, PoolContent, Quantity, Taint, TaintEffect
from dradriver.publish.reconcile import MANAGED_BY, Memory, Owner, Plan, Sent, Write, plan
from dradriver.publish.stored import Stored
from dradriver.slices import ApiFeatures, Pool, same
from slicereader import visible

POOL = Pool("gpu.example.com", "node-a", "node-a/gpu")
OWNER = Owner("node-a", "uid-of-node-a")

Body = dict[str, Any]


def devices(count: int, **fields: Any) -> tuple[Device, ...]:
    return tuple(Device(f"gpu-{number:03}", **fields) for number in range(count))


class Cluster:
    """The slices of one pool, as an API server keeps them."""

    def __init__(self) -> None:
        self.objects: dict[str, Body] = {}
        self._numbers = itertools.count(1)

    @property
    def slices(self) -> list[Stored]:
        return [Stored.of(copy.deepcopy(body)) for body in self.objects.values()]

    @property
    def specs(self) -> list[Body]:
        return [body["spec"] for body in self.objects.values()]

    def put(self, body: Body) -> Body:
        body = copy.deepcopy(body)
        metadata, number = body["metadata"], next(self._numbers)
        name = metadata.setdefault("name", f"{metadata.pop('generateName', '')}{number:05}")
        old = self.objects.get(name)
        metadata["uid"] = old["metadata"]["uid"] if old else f"uid-{number}"
        metadata["generation"] = old["metadata"]["generation"] + (old["spec"] != body["spec"]) if old else 1
        metadata["resourceVersion"] = str(number)
        for device in body["spec"].get("devices", ()):
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", f"2026-01-01T00:00:{number:02}Z")
        self.objects[name] = body
        return copy.deepcopy(body)


class Process:
    """A publisher that carries plans out at once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.memory = Memory()
        self.features = ApiFeatures()
        self.owner = OWNER

    def plan(self, content: PoolContent) -> Plan:
        return plan(
            POOL,
            content,
            features=self.features,
            slices=self.cluster.slices,
            memory=self.memory,
            owner=self.owner,
        )

    def write(self, write: Write, *, heard: bool = True) -> None:
        answer = self.cluster.put(write.body)
        if heard:
            self.memory.written(write, self.owner, answer)

    def publish(self, content: PoolContent) -> Plan:
        planned = self.plan(content)
        self.memory.found(planned, self.owner)
        for write in planned.writes:
            self.write(write)
        for stored in planned.deletes:
            del self.cluster.objects[stored.name]
        self.memory.done(planned)
        return planned


def shape(planned: Plan) -> tuple[list[int], int]:
    """Return the numbers of the slices that are written, and how many are deleted."""
    return [write.number for write in planned.writes], len(planned.deletes)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def process(cluster: Cluster) -> Process:
    return Process(cluster)


def test_the_first_slices_belong_to_the_node_and_are_marked_as_ours(process: Process) -> None:
    planned = process.publish(PoolContent(devices(70)))
    assert shape(planned) == ([0, 1], 0)
    body = planned.writes[0].body
    assert body["metadata"] == {
        "generateName": "000-gpu.example.com-node-a-",
        "labels": {MANAGED_BY: "dradriver"},
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": OWNER.uid, "controller": True}
        ],
    }
    assert [write.body["spec"]["pool"] for write in planned.writes] == [
        {"name": "node-a/gpu", "generation": 1, "resourceSliceCount": 2}
    ] * 2


def test_every_object_is_one_that_the_official_client_knows(process: Process) -> None:
    client = pytest.importorskip("kubernetes.client")
    process.publish(PoolContent(devices(1)))
    planned = process.plan(PoolContent(devices(1, taints=(Taint("a", TaintEffect.NO_EXECUTE),))))
    (write,) = planned.writes
    assert client.V1ResourceSlice.from_dict(write.body).to_dict()["metadata"]["uid"] == "uid-1"
    loaded = client.V1ResourceSlice.from_dict(copy.deepcopy(write.body))
    assert client.ApiClient().sanitize_for_serialization(loaded) == write.body


def test_a_pool_without_devices_has_one_empty_slice(process: Process) -> None:
    process.publish(PoolContent())
    assert [set(spec) for spec in process.cluster.specs] == [{"driver", "nodeName", "pool"}]


def test_what_is_as_it_should_be_is_left_alone(process: Process) -> None:
    content = PoolContent(devices(200), (CounterSet("c", {"n": Quantity.from_int(1)}),))
    process.publish(content)
    assert shape(process.plan(content)) == ([], 0)


def test_another_process_finds_all_as_it_should_be(process: Process) -> None:
    content = PoolContent(devices(200))
    process.publish(content)
    assert shape(Process(process.cluster).plan(content)) == ([], 0)


def test_one_changed_device_is_one_write_in_the_same_generation(process: Process) -> None:
    process.publish(PoolContent(devices(200)))
    changed = list(devices(200))
    changed[100] = Device("gpu-100", attributes={"model": "b"})
    planned = process.publish(PoolContent(tuple(changed)))
    assert shape(planned) == ([1], 0)
    assert planned.writes[0].body["spec"]["pool"]["generation"] == 1
    assert planned.writes[0].body["metadata"]["resourceVersion"] == "2"


def test_changes_in_two_slices_raise_the_generation_of_all(process: Process) -> None:
    process.publish(PoolContent(devices(200)))
    planned = process.publish(PoolContent(devices(200, attributes={"model": "b"})))
    assert shape(planned) == ([0, 1, 2, 3], 0)
    assert {spec["pool"]["generation"] for spec in process.cluster.specs} == {2}


def test_a_deleted_slice_alone_is_made_again(process: Process) -> None:
    content = PoolContent(devices(200))
    process.publish(content)
    del process.cluster.objects["001-gpu.example.com-node-a-00002"]
    planned = process.publish(content)
    assert shape(planned) == ([1], 0)
    assert planned.writes[0].stored is None
    assert {spec["pool"]["generation"] for spec in process.cluster.specs} == {1}


def test_wiped_slices_are_made_again_as_they_were(process: Process) -> None:
    content = PoolContent(devices(200))
    process.publish(content)
    before = process.cluster.specs
    process.cluster.objects.clear()
    assert shape(process.publish(content)) == ([0, 1, 2, 3], 0)
    assert process.cluster.specs == before


def test_what_others_edit_is_put_right_one_write_for_each(process: Process) -> None:
    content = PoolContent(devices(200))
    process.publish(content)
    first, second, third, _ = process.cluster.objects.values()
    first["spec"]["devices"].pop()
    second["spec"]["pool"]["generation"] = 2**63 - 1
    third["metadata"]["ownerReferences"] = []
    for body in (first, second, third):
        body["metadata"]["resourceVersion"] += "0"
    assert shape(process.publish(content)) == ([0, 2, 1], 0)
    assert {spec["pool"]["generation"] for spec in process.cluster.specs} == {1}
    assert shape(process.plan(content)) == ([], 0)


def test_a_generation_out_of_reach_is_not_followed_by_a_new_process(process: Process) -> None:
    content = PoolContent(devices(70))
    process.publish(content)
    for spec in process.cluster.specs:
        spec["pool"]["generation"] = 2**63 - 1
    Process(process.cluster).publish(content)
    assert visible(process.cluster.specs) is not None
    assert all(spec["pool"]["generation"] < 10 for spec in process.cluster.specs)


def test_metadata_of_others_stays(process: Process) -> None:
    process.publish(PoolContent(devices(1)))
    (body,) = process.cluster.objects.values()
    body["metadata"] |= {"annotations": {"a": "b"}, "labels": {"team": "x"}, "finalizers": ["example.com/f"]}
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
    body["metadata"]["ownerReferences"].append(other)
    process.publish(PoolContent(devices(2)))
    (body,) = process.cluster.objects.values()
    assert body["metadata"]["annotations"] == {"a": "b"}
    assert body["metadata"]["labels"] == {"team": "x", MANAGED_BY: "dradriver"}
    assert body["metadata"]["finalizers"] == ["example.com/f"]
    assert body["metadata"]["ownerReferences"] == [OWNER.reference, other]


def test_slices_of_a_node_that_was_made_anew_get_the_new_owner(process: Process) -> None:
    content = PoolContent(devices(70))
    process.publish(content)
    process.owner = Owner("node-a", "another")
    assert shape(process.publish(content)) == ([0, 1], 0)
    for body in process.cluster.objects.values():
        assert body["metadata"]["ownerReferences"] == [process.owner.reference]


def test_a_number_that_stands_twice_is_reduced_to_the_one_that_is_ours(process: Process) -> None:
    content = PoolContent(devices(70))
    process.publish(content)
    (ours, *_) = process.cluster.objects.values()
    twin = copy.deepcopy(ours)
    twin["metadata"] |= {"name": "000-gpu.example.com-node-a-00000", "uid": "twin"}
    twin["spec"]["pool"]["generation"] = 7
    process.cluster.objects = {twin["metadata"]["name"]: twin} | process.cluster.objects
    planned = process.plan(content)
    assert shape(planned) == ([], 1)
    assert planned.deletes[0].uid == "twin"


def test_slices_of_other_names_in_our_pool_go(process: Process) -> None:
    content = PoolContent(devices(1))
    process.publish(content)
    foreign = copy.deepcopy(next(iter(process.cluster.objects.values())))
    foreign["metadata"] |= {"name": "made-by-hand", "uid": "other"}
    process.cluster.objects["made-by-hand"] = foreign
    assert [stored.name for stored in process.plan(content).deletes] == ["made-by-hand"]


def test_a_new_process_lets_empty_slices_at_the_end_go_and_deletes_them_last(process: Process) -> None:
    process.publish(PoolContent(devices(200)))
    assert shape(process.publish(PoolContent(devices(70)))) == ([0, 1, 2, 3], 0)
    planned = Process(process.cluster).publish(PoolContent(devices(70)))
    assert shape(planned) == ([0, 1], 2)
    assert {spec["pool"]["resourceSliceCount"] for spec in process.cluster.specs} == {2}


def test_a_pool_that_is_half_written_is_completed_in_its_generation(process: Process) -> None:
    process.publish(PoolContent(devices(200)))
    changed = PoolContent(devices(200, attributes={"model": "b"}))
    for write in process.plan(changed).writes[:2]:
        process.write(write)
    assert shape(process.plan(changed)) == ([2, 3], 0)
    assert shape(Process(process.cluster).plan(changed)) == ([2, 3], 0)
    # Changed once more, what is already of the new generation comes first: the pool stays incomplete meanwhile.
    again = PoolContent(devices(200, attributes={"model": "c"}))
    planned = process.publish(again)
    assert shape(planned) == ([0, 1, 2, 3], 0)
    assert {spec["pool"]["generation"] for spec in process.cluster.specs} == {2}


def test_what_the_server_stores_otherwise_is_adopted(process: Process) -> None:
    tainted = devices(1, attributes={"model": "a"})
    process.publish(PoolContent(tainted))
    (body,) = process.cluster.objects.values()
    del body["spec"]["devices"][0]["attributes"]
    process.memory.sent[0] = Sent(process.memory.sent[0].spec, OWNER, copy.deepcopy(body))
    assert shape(process.plan(PoolContent(tainted))) == ([], 0)
    body["metadata"]["resourceVersion"] = "900"
    assert shape(process.plan(PoolContent(tainted))) == ([], 0)
    body["spec"]["devices"][0]["attributes"] = {"model": {"string": "edited"}}
    assert shape(process.plan(PoolContent(tainted))) == ([0], 0)


def test_the_time_of_a_taint_survives_other_changes_of_its_slice(process: Process) -> None:
    taint = Taint("dradriver.io/unhealthy", TaintEffect.NO_EXECUTE)
    sick = Device("gpu-sick", taints=(taint,))
    process.publish(PoolContent((sick, *devices(1))))
    time = process.cluster.specs[0]["devices"][0]["taints"][0]["timeAdded"]
    process.publish(PoolContent((sick, *devices(2))))
    assert process.cluster.specs[0]["devices"][0]["taints"] == [
        {"key": taint.key, "effect": "NoExecute", "timeAdded": time}
    ]
    process.cluster.objects.clear()
    process.publish(PoolContent((sick, *devices(2))))
    assert process.cluster.specs[0]["devices"][0]["taints"][0]["timeAdded"] == time
    healed = PoolContent((Device("gpu-sick"), *devices(2)))
    process.publish(healed)
    process.publish(PoolContent((sick, *devices(2))))
    assert process.cluster.specs[0]["devices"][0]["taints"][0]["timeAdded"] != time


# Things of 40 devices, of which a slice holds one: pools of several slices from a few things.
steps = st.lists(
    st.tuples(
        st.sets(st.integers(0, 3)),  # things that are there
        st.integers(0, 2),  # what the first of them is like
        st.integers(0, 6),  # writes until the API server fails
        st.sampled_from(["heard", "lost", "refused", "restarted"]),
    ),
    min_size=1,
    max_size=6,
)


def some(things: set[int], state: int) -> PoolContent:
    return PoolContent(
        tuple(
            Device(
                f"gpu-{thing}-{number}", thing=f"gpu-{thing}", attributes={"state": state if thing < 2 else 0}
            )
            for thing in sorted(things)
            for number in range(40)
        )
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
@example([({0, 1, 2}, 0, 2, "heard"), (set(), 0, 0, "heard"), (set(), 0, 0, "lost")])
def test_readers_see_only_what_was_wanted_as_a_whole(todo: list[tuple[set[int], int, int, str]]) -> None:
    """Whatever fails in between: a pool that is complete says what one call wanted, and in the end the last."""
    cluster = Cluster()
    process = Process(cluster)
    wanted: list[dict[str, Any]] = []

    def look() -> None:
        seen = visible(cluster.specs)
        assert seen is None or any(same_devices(seen, one) for one in wanted)

    for things, state, until_failure, how in todo:
        content = some(things, state)
        planned = process.plan(content)
        process.memory.found(planned, process.owner)
        wanted.append({one["name"]: one for spec in planned.specs.specs for one in spec.get("devices", ())})
        for index, write in enumerate(planned.writes):
            if index == until_failure and how == "refused":
                break
            process.write(write, heard=index != until_failure or how != "lost")
            look()
            if index == until_failure:
                break
        else:
            process.publish(content)
            look()
        if how == "restarted":
            process = Process(cluster)
    last = some(*todo[-1][:2])
    process.publish(last)
    assert shape(process.plan(last)) == ([], 0)
    seen = visible(cluster.specs)
    assert seen is not None
    assert same_devices(seen, wanted[-1])


def same_devices(one: Any, other: Any) -> bool:
    head = {"driver": "d", "pool": {}}
    return same(
        head | {"devices": sorted(one.values(), key=lambda device: device["name"])},
        head | {"devices": sorted(other.values(), key=lambda device: device["name"])},
    )
