"""Slices at an API server: published, kept as they should be, and given back."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dradriver.kube import Client, Connection
from dradriver.model import (
    BindingConditions,
    Capacity,
    CounterSet,
    Device,
    NodeAllocatable,
    PoolContent,
    Quantity,
    RequestPolicy,
    Taint,
    TaintEffect,
)
from dradriver.publish import ApiPublisher
from dradriver.sim.apiserver import ApiServer
from publishing import (
    DRIVER,
    NODE,
    POOL,
    Daemon,
    client_of,
    gpus,
    make_node,
    names,
    slices,
    until,
    writes,
)

RESTORED_SECONDS = 4.0  # it is to be within 2; this machine may be busy

ONE = Quantity.from_int(1)
SICK = Taint("dradriver.io/unhealthy", TaintEffect.NO_EXECUTE)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        make_node(server)
        yield server


@pytest.fixture
def client(server: ApiServer) -> Iterator[Client]:
    with client_of(server) as client:
        yield client


@pytest.fixture
def daemon(client: Client) -> Iterator[Daemon]:
    with Daemon(client) as daemon:
        yield daemon


def published(
    server: ApiServer, daemon: Daemon, *devices: Device, content: PoolContent | None = None
) -> None:
    """Publish, and wait until it is done and watched."""
    daemon.want(*devices, content=content)
    until(lambda: daemon.settled and server.faults.watches.open)
    wanted = {device.name for device in (content.devices if content else devices)}
    assert names(server) == wanted
    server.requests.clear()


# What is stored.


def test_slices_belong_to_the_node(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(100))
    uid = server.store.get("Node", NODE)["metadata"]["uid"]
    first, second = slices(server)
    for one in (first, second):
        assert one["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": True}
        ]
        assert one["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "dradriver"}
    assert first["metadata"]["name"].startswith("000-gpu.example.com-node-a-")
    assert second["metadata"]["name"].startswith("001-gpu.example.com-node-a-")
    assert first["spec"]["nodeName"] == NODE
    assert first["spec"]["pool"] == {"name": POOL, "generation": 1, "resourceSliceCount": 2}


def test_a_pool_without_devices_has_one_empty_slice(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon)
    assert len(slices(server)) == 1


def test_several_pools_of_one_driver_do_not_touch_each_other(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(2))
    daemon.want(Device("nic-0"), pool=f"{NODE}/nic")
    until(lambda: names(server, f"{NODE}/nic") == {"nic-0"})
    assert writes(server) == 1
    assert names(server) == {"gpu-0000", "gpu-0001"}


def test_nothing_is_asked_while_nothing_changes(server: ApiServer, client: Client, daemon: Daemon) -> None:
    published(server, daemon, *gpus(100))
    until(lambda: daemon.publisher.verify() is not None and not server.requests.matching(verb="get"))
    server.requests.clear()
    for _ in range(5):
        daemon.publisher.verify()
    daemon.want(*gpus(100))
    until(lambda: daemon.settled)
    assert [entry for entry in server.requests if entry.verb != "watch"] == []


def test_one_change_is_one_write(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(200))
    for index, device in enumerate(
        (Device("gpu-0100", taints=(SICK,)), Device("gpu-0100"), Device("gpu-9999"))
    ):
        daemon.want(*gpus(100), device, *gpus(200)[101:])
        until(lambda: daemon.settled)
        assert writes(server) == index + 1
        assert device.name in (names(server) or ())
    assert {one["spec"]["pool"]["generation"] for one in slices(server)} == {1}


def test_a_pool_that_grows_gets_a_new_generation(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(64))
    published(server, daemon, *gpus(65))
    assert [one["spec"]["pool"]["generation"] for one in slices(server)] == [2, 2]


def test_a_new_process_goes_on_from_what_is_stored(server: ApiServer, client: Client, daemon: Daemon) -> None:
    published(server, daemon, *gpus(200))
    again = ApiPublisher(client, NODE, [DRIVER])
    result = again.publish(DRIVER, NODE, POOL, PoolContent(gpus(200)))
    assert (result.written, result.removed) == ((), ())
    assert writes(server) == 0


def test_the_time_of_a_taint_survives_other_changes(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, Device("gpu-0000", taints=(SICK,)), Device("gpu-0001"))
    (one,) = slices(server)
    one["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-02T03:04:05Z"
    server.store.replace(one)
    daemon.want(Device("gpu-0000", taints=(SICK,)), Device("gpu-0001"), Device("gpu-0002"))
    until(lambda: names(server) == {"gpu-0000", "gpu-0001", "gpu-0002"})
    (one,) = slices(server)
    assert one["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-02T03:04:05Z"


def test_names_that_are_none_of_ours_are_refused(client: Client) -> None:
    publisher = ApiPublisher(client, NODE, [DRIVER])
    with pytest.raises(ValueError, match="node 'node-b' is another"):
        publisher.publish(DRIVER, "node-b", "node-b/gpu", PoolContent())
    with pytest.raises(ValueError, match=r"driver 'x\.example\.com' is none"):
        publisher.publish("x.example.com", NODE, POOL, PoolContent())


# What others do.


def test_deleted_slices_are_restored(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(200))
    server.store.delete("ResourceSlice", slices(server)[1]["metadata"]["name"])
    assert until(lambda: names(server) == {device.name for device in gpus(200)}) < RESTORED_SECONDS
    assert writes(server) == 1


def test_slices_wiped_by_the_kubelet_are_restored(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(200))
    for one in slices(server):
        server.store.delete("ResourceSlice", one["metadata"]["name"])
    assert until(lambda: names(server) == {device.name for device in gpus(200)}) < RESTORED_SECONDS
    until(lambda: daemon.restored)
    assert len(slices(server)) == 4


def _without_devices(one: dict[str, Any]) -> None:
    one["spec"]["devices"] = one["spec"]["devices"][:1]


def _of_another_generation(one: dict[str, Any]) -> None:
    one["spec"]["pool"]["generation"] = 7


def _without_owner(one: dict[str, Any]) -> None:
    del one["metadata"]["ownerReferences"]


def _without_label(one: dict[str, Any]) -> None:
    del one["metadata"]["labels"]


@pytest.mark.parametrize("edit", [_without_devices, _of_another_generation, _without_owner, _without_label])
def test_edited_slices_are_restored(server: ApiServer, daemon: Daemon, edit: Any) -> None:
    published(server, daemon, *gpus(100))
    before = slices(server)
    edited = copy.deepcopy(before[1])
    edit(edited)
    server.store.replace(edited)
    assert until(lambda: _meaning(slices(server)) == _meaning(before)) < RESTORED_SECONDS
    assert writes(server) == 1


def _meaning(objects: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (one["spec"], one["metadata"].get("labels"), one["metadata"].get("ownerReferences"))
        for one in objects
    ]


def test_an_edit_that_changes_nothing_is_left_alone(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, Device("gpu-0000", capacity={"memory": Capacity(Quantity.parse("1Gi"))}))
    (one,) = slices(server)
    one["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1024Mi"
    one["metadata"]["annotations"] = {"team": "x"}
    calls = daemon.calls
    server.store.replace(one)
    until(lambda: daemon.calls >= calls + 2)
    assert writes(server) == 0


def test_foreign_slices_in_our_pool_go(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(100))
    first = slices(server)[0]
    for name, generation in (("000-gpu.example.com-node-a-twin0", 1), ("by-hand", 9)):
        foreign = copy.deepcopy(first)
        foreign["metadata"] = {"name": name}
        foreign["spec"]["pool"]["generation"] = generation
        server.store.create(foreign)
    assert until(lambda: len(slices(server)) == 2) < RESTORED_SECONDS
    assert names(server) == {device.name for device in gpus(100)}


def test_slices_in_a_pool_that_is_not_configured_go(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(1))
    old = copy.deepcopy(slices(server)[0])
    for driver, pool, managed in (
        (DRIVER, f"{NODE}/old", False),
        ("old.example.com", f"{NODE}/gpu", True),
        ("other.example.com", f"{NODE}/gpu", False),
        (DRIVER, f"{NODE}/late", False),
    ):
        old["metadata"] = {"name": f"{driver}-{pool.rpartition('/')[2]}"}
        if managed:
            old["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "dradriver"}
        old["spec"] |= {"driver": driver, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}
        server.store.create(old)
    result = daemon.publisher.withdraw_others([(DRIVER, POOL), (DRIVER, f"{NODE}/late")])
    assert sorted(result.removed) == ["gpu.example.com-old", "old.example.com-gpu"]
    old["metadata"] = {"name": "again"}
    old["spec"]["pool"] = {"name": f"{NODE}/old", "generation": 1, "resourceSliceCount": 1}
    server.store.create(old)
    until(lambda: slices(server, f"{NODE}/old") == [])
    assert len(server.store.list("ResourceSlice")) == 3


def test_a_withdrawn_pool_is_forgotten(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(100))
    assert len(daemon.publisher.withdraw(DRIVER, NODE, POOL).removed) == 2
    assert slices(server) == []
    calls = daemon.calls
    until(lambda: daemon.calls >= calls + 2)
    assert slices(server) == []


def test_slices_of_other_nodes_and_drivers_are_left_alone(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, *gpus(1))
    other = slices(server)[0]
    for name, changes in (("a", {"nodeName": "node-b"}), ("b", {"driver": "nic.example.com"})):
        server.store.create({**other, "metadata": {"name": name}, "spec": {**other["spec"], **changes}})
    calls = daemon.calls
    until(lambda: daemon.calls >= calls + 2)
    assert len(server.store.list("ResourceSlice")) == 3


def test_two_that_restore_against_each_other_come_to_rest(server: ApiServer, daemon: Daemon) -> None:
    published(server, daemon, Device("gpu-a"))
    with client_of(server) as client, Daemon(client) as other:
        other.want(Device("gpu-b"))
        until(lambda: any("again and again" in error for error in (*daemon.errors, *other.errors)))
        server.requests.clear()
        calls = daemon.calls
        until(lambda: daemon.calls >= calls + 4)
        assert writes(server) <= 4


# The node.


def test_without_a_node_object_slices_wait_for_it(server: ApiServer, daemon: Daemon) -> None:
    server.store.delete("Node", NODE)
    daemon.want(*gpus(1))
    until(lambda: len(daemon.errors) >= 2)
    assert set(daemon.errors) == {"there is no Node 'node-a': slices are published once it is there"}
    assert slices(server) == []
    make_node(server)
    until(lambda: names(server) == {"gpu-0000"})


def test_slices_collected_with_their_node_come_back_under_the_new_one(
    server: ApiServer, daemon: Daemon
) -> None:
    published(server, daemon, *gpus(100))
    server.store.delete("Node", NODE)
    until(lambda: slices(server) == [])
    until(lambda: daemon.errors)
    uid = make_node(server)
    until(lambda: names(server) == {device.name for device in gpus(100)})
    assert {one["metadata"]["ownerReferences"][0]["uid"] for one in slices(server)} == {uid}


def test_slices_of_a_node_that_was_made_anew_get_its_uid_though_nobody_collects_them() -> None:
    with ApiServer(garbage_collection=False) as server, client_of(server) as client, Daemon(client) as daemon:
        make_node(server)
        published(server, daemon, *gpus(100))
        server.store.delete("Node", NODE)
        uid = make_node(server)
        server.faults.expire_watches()
        until(lambda: {one["metadata"]["ownerReferences"][0]["uid"] for one in slices(server)} == {uid})
        assert writes(server) == 2


# What the API server does not store.


FULL = PoolContent(
    (
        Device("gpu-0", consumes={"card-0": {"memory": ONE}}),
        Device("gpu-0-half", thing="gpu-0", consumes={"card-0": {"memory": ONE}}),
        Device(
            "gpu-1",
            shared=True,
            capacity={"memory": Capacity(Quantity.from_int(4), RequestPolicy(ONE))},
        ),
        Device("gpu-2", taints=(SICK,)),
        Device("gpu-3", attributes={"nodes": (0, 1)}),
        Device("gpu-4", binding=BindingConditions(("Attached",), ("AttachFailed",))),
        Device("gpu-5", node_allocatable=(NodeAllocatable("cpu", multiplier=ONE),)),
    ),
    (CounterSet("card-0", {"memory": ONE}),),
)


@pytest.mark.parametrize(
    ("gate", "feature", "gone"),
    [
        ("DRADeviceBindingConditions", "binding conditions", set()),
        ("DRAPartitionableDevices", "counters", {"gpu-0-half"}),
        ("DRAConsumableCapacity", "consumable capacity", set()),
        ("DRADeviceTaints", "taints", {"gpu-2"}),
        ("DRAListTypeAttributes", "list attributes", set()),
    ],
)
def test_where_a_gate_is_off_the_reduced_form_is_published_once(
    gate: str, feature: str, gone: set[str]
) -> None:
    gates = {"DRAListTypeAttributes": True, "DRANodeAllocatableResources": True} | {gate: False}
    with ApiServer(gates=gates) as server, client_of(server) as client, Daemon(client) as daemon:
        make_node(server)
        daemon.want(content=FULL)
        until(lambda: daemon.settled)
        assert names(server) == {device.name for device in FULL.devices} - gone
        result = daemon.results[POOL]
        assert [feature in line and gate in line for line in result.reductions] == [True]
        assert result.warnings == ()
        server.requests.clear()
        again = ApiPublisher(client, NODE, [DRIVER]).publish(DRIVER, NODE, POOL, FULL)
        assert (again.written, again.removed) == ((), ())
        daemon.want(content=FULL)
        until(lambda: daemon.settled)
        assert writes(server) == 0


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_every_version_gets_what_it_stores(version: str) -> None:
    with ApiServer(version=version) as server, client_of(server) as client:
        make_node(server)
        publisher = ApiPublisher(client, NODE, [DRIVER])
        result = publisher.publish(DRIVER, NODE, POOL, FULL)
        assert "gpu-0" in (names(server) or ())
        assert result.warnings == ()
        assert writes(server) == len(slices(server))
        assert publisher.publish(DRIVER, NODE, POOL, FULL).written == ()


class Recorder(Client):
    """Keeps what is sent."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(Connection(server.url))
        self.slices: list[Any] = []
        self.options: list[Any] = []

    def create(self, path: str, body: Any, *args: Any, **kwargs: Any) -> Any:
        self.slices.append(body)
        return super().create(path, body, *args, **kwargs)

    def replace(self, path: str, body: Any, *args: Any, **kwargs: Any) -> Any:
        self.slices.append(body)
        return super().replace(path, body, *args, **kwargs)

    def delete(self, path: str, *args: Any, body: Any = None, **kwargs: Any) -> Any:
        self.options.append(body)
        return super().delete(path, *args, body=body, **kwargs)


def test_every_body_is_one_that_the_official_client_knows() -> None:
    known = pytest.importorskip("kubernetes.client")
    gates = {"DRAListTypeAttributes": True, "DRANodeAllocatableResources": True}
    with ApiServer(version="1.37", gates=gates) as server:
        make_node(server)
        recorder = Recorder(server)
        publisher = ApiPublisher(recorder, NODE, [DRIVER])
        publisher.publish(DRIVER, NODE, POOL, FULL)
        publisher.publish(DRIVER, NODE, POOL, replace(FULL, devices=FULL.devices[1:]))
        publisher.withdraw(DRIVER, NODE, POOL)
        recorder.close()
    # The 1.36 field is tried, too, which newer versions have no more.
    bodies = [body for body in recorder.slices if "nodeAllocatableResourceMappings" not in json.dumps(body)]
    assert len(bodies) >= 8
    for body in bodies:
        assert json.loads(known.V1ResourceSlice.from_dict(body).to_json()) == body
    assert len(recorder.options) == 2
    for options in recorder.options:
        assert json.loads(known.V1DeleteOptions.from_dict(options).to_json()) == options


def test_a_conflict_is_settled_with_the_newest_object(server: ApiServer, client: Client) -> None:
    publisher = ApiPublisher(client, NODE, [DRIVER])
    publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(1)))
    (one,) = slices(server)
    one["metadata"]["annotations"] = {"by": "others"}
    server.store.replace(one)
    result = publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(2)))
    assert len(result.written) == 1
    (one,) = slices(server)
    assert one["metadata"]["annotations"] == {"by": "others"}
    assert names(server) == {"gpu-0000", "gpu-0001"}


def test_a_slice_that_is_gone_is_made_anew(server: ApiServer, client: Client) -> None:
    publisher = ApiPublisher(client, NODE, [DRIVER])
    publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(1)))
    server.store.delete("ResourceSlice", slices(server)[0]["metadata"]["name"])
    publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(2)))
    assert names(server) == {"gpu-0000", "gpu-0001"}
