"""Slices at an API server that is slow, fails, goes away, or becomes another one."""

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dradriver.kube import Client, KubeError
from dradriver.model import Device, PoolContent, Taint, TaintEffect
from dradriver.publish import ApiPublisher
from dradriver.sim.apiserver import ApiServer
from publishing import (
    DRIVER,
    NODE,
    POOL,
    Daemon,
    Hurried,
    client_of,
    gpus,
    make_node,
    names,
    offered,
    slices,
    until,
    writes,
)
from waiting import PATIENCE

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
def publisher(client: Client) -> ApiPublisher:
    return ApiPublisher(client, NODE, [DRIVER])


def insist(publisher: ApiPublisher, *devices: Device) -> None:
    """Publish again and again, as the daemon does, until it has success."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            publisher.publish(DRIVER, NODE, POOL, PoolContent(devices))
        except KubeError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


# Answers that are lost.


@pytest.mark.parametrize("how", ["fail", "drop", "truncate"])
def test_a_create_whose_answer_is_lost_leaves_no_duplicate(
    server: ApiServer, publisher: ApiPublisher, how: str
) -> None:
    publisher.publish(DRIVER, NODE, "node-a/other", PoolContent())
    match how:
        case "fail":
            server.faults.fail(500, method="POST", after=True)
        case "drop":
            server.faults.drop(method="POST", after=True)
        case _:
            server.faults.truncate(method="POST")
    insist(publisher, *gpus(100))
    assert len(slices(server)) == 2
    assert writes(server) == 3
    assert names(server) == {device.name for device in gpus(100)}


def test_an_update_whose_answer_is_lost_is_not_written_twice(
    server: ApiServer, publisher: ApiPublisher
) -> None:
    publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(100)))
    server.requests.clear()
    server.faults.fail(503, method="PUT", after=True)
    insist(publisher, *gpus(101))
    assert writes(server) == 1
    assert len(server.requests.matching("PUT")) == 1


def test_a_delete_whose_answer_is_lost_counts(server: ApiServer, publisher: ApiPublisher) -> None:
    publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(200)))
    server.faults.fail(500, method="DELETE", after=True)
    with pytest.raises(KubeError):
        publisher.withdraw(DRIVER, NODE, POOL)
    until(lambda: _withdrawn(publisher))
    assert slices(server) == []
    assert len(server.requests.matching("DELETE")) == 4


def _withdrawn(publisher: ApiPublisher) -> bool:
    try:
        publisher.withdraw(DRIVER, NODE, POOL)
    except KubeError:
        return False
    return True


# Waiting.


def test_retry_after_is_honoured(server: ApiServer, publisher: ApiPublisher) -> None:
    server.faults.fail(429, method="POST", path="resourceslices", retry_after=1)
    start = time.monotonic()
    with pytest.raises(KubeError):
        publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(1)))
    asked = len(server.requests)
    while time.monotonic() - start < 0.9:
        with pytest.raises(KubeError):
            publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(1)))
    assert len(server.requests) == asked
    insist(publisher, *gpus(1))
    assert names(server) == {"gpu-0000"}


def test_a_failing_server_is_not_asked_at_every_call(server: ApiServer, publisher: ApiPublisher) -> None:
    server.faults.fail(500, 999)
    errors = []
    for _ in range(200):
        with pytest.raises(KubeError) as caught:
            publisher.publish(DRIVER, NODE, POOL, PoolContent(gpus(1)))
        errors.append(caught.value)
    assert len(set(errors)) == len(server.requests) < 5


def test_an_outage_of_an_hour_ends_in_the_right_state(server: ApiServer) -> None:
    """Hardware changes before it ends, and others edit and delete slices that this node does not see."""
    clock, other = Hurried(), "nic.example.com"
    with (
        client_of(server, clock=clock) as client,
        Daemon(client, drivers=(DRIVER, other), clock=clock, period=1.0) as daemon,
    ):
        daemon.want(*gpus(200))
        daemon.want(Device("nic-0"), driver=other, pool="node-a/nic")
        until(lambda: daemon.settled)
        before = slices(server)
        server.faults.refuse()
        clock.run_at(1800)
        start, round_ = clock.now(), 0
        while clock.now() - start < 3600:
            round_ += 1
            daemon.want(*gpus(200)[:190], Device(f"gpu-new-{round_}"))
            time.sleep(0.05)
        clock.run_at(1)
        server.store.delete("ResourceSlice", before[0]["metadata"]["name"])
        edited = server.store.get("ResourceSlice", before[1]["metadata"]["name"])
        edited["spec"]["devices"].pop()
        server.store.replace(edited)
        server.store.delete("ResourceSlice", slices(server, "node-a/nic")[0]["metadata"]["name"])
        last = (*gpus(200)[:190], Device("gpu-last", taints=(SICK,)))
        daemon.want(*last)
        calls = daemon.calls
        until(lambda: daemon.calls > calls)  # what it began before is not what is wanted now
        server.requests.clear()
        server.faults.accept()
        wanted = {device.name for device in last}
        until(lambda: names(server) == wanted and names(server, "node-a/nic") == {"nic-0"}, 40)
        took = time.time() - next(iter(server.requests)).time
        assert took < 5.0
        assert writes(server) == 5  # one generation of four slices, and one slice


def test_two_thousand_devices_through_a_hundred_changes(server: ApiServer) -> None:
    """At 20 ms and 5 % errors: each change is one write, and what is stored is right in the end."""
    count, changes = 2000, 100
    server.faults.latency, server.faults.error_rate = 0.02, 0.05
    chance = random.Random(2)
    there = {device.name: device for device in gpus(count, attributes={"model": "a", "memory": 80})}
    gone: list[str] = []
    with client_of(server) as client, Daemon(client) as daemon:
        daemon.want(*there.values())
        until(lambda: daemon.settled, 60)
        assert writes(server) == -(-count // 64)
        for number in range(1, changes + 1):
            _change(there, gone, chance)
            server.requests.clear()
            daemon.want(*there.values())
            until(lambda: daemon.settled, 60)
            assert writes(server) == 1, f"change {number}"
        seen = offered(server)
        assert seen is not None
        assert {name: _facts(device) for name, device in seen.items()} == {
            device.name: (device.attributes["model"], bool(device.taints)) for device in there.values()
        }
        assert {one["spec"]["pool"]["generation"] for one in slices(server)} == {1}
        server.requests.clear()
        calls = daemon.calls
        until(lambda: daemon.calls >= calls + 2)
        assert writes(server) == 0


def _change(there: dict[str, Device], gone: list[str], chance: random.Random) -> None:
    """Let one physical thing fall ill or heal, go or come, or change an attribute."""
    name = chance.choice(list(there))
    match chance.choice(["health", "vanish", "appear", "attribute"]):
        case "health":
            sick = there[name].taints
            there[name] = replace(there[name], taints=() if sick else (SICK,))
        case "appear" if gone:
            name = gone.pop()
            there[name] = Device(name, attributes={"model": "new"})
        case "vanish":
            del there[name]
            gone.append(name)
        case _:
            there[name] = replace(there[name], attributes={"model": f"m{chance.random()}"})


def _facts(device: dict[str, Any]) -> tuple[str, bool]:
    return device["attributes"]["model"]["string"], bool(device.get("taints"))


# The server becomes another one.


def test_what_a_server_can_after_an_upgrade_is_used(server: ApiServer) -> None:
    server.upgrade(gates={"DRADeviceTaints": False})
    sick = (Device("gpu-0", taints=(SICK,)), Device("gpu-1"))
    with client_of(server) as client, Daemon(client) as daemon:
        daemon.want(*sick)
        until(lambda: daemon.settled and server.faults.watches.open)
        assert names(server) == {"gpu-1"}
        assert daemon.results[POOL].reductions
        server.upgrade(gates={})
        server.faults.expire_watches()
        until(lambda: names(server) == {"gpu-0", "gpu-1"})
        until(lambda: not daemon.results[POOL].reductions)
        assert [entry.status for entry in server.requests.matching("PUT")] == [200]


def test_another_version_is_noticed_in_time_though_the_watch_goes_on(server: ApiServer) -> None:
    clock = Hurried()
    server.upgrade("1.36", {"DRADeviceTaints": False})
    with client_of(server) as client, Daemon(client, clock=clock) as daemon:
        daemon.want(Device("gpu-0", taints=(SICK,)), Device("gpu-1"))
        until(lambda: daemon.settled and server.faults.watches.open)
        server.upgrade("1.37", {})
        clock.run_at(1000)
        until(lambda: names(server) == {"gpu-0", "gpu-1"})
        clock.run_at(1)


def test_a_gate_that_is_switched_off_is_noticed_when_the_watch_is_interrupted(server: ApiServer) -> None:
    """Though the version is the same, and nothing is to be written."""
    with client_of(server) as client, Daemon(client) as daemon:
        daemon.want(Device("gpu-0", taints=(SICK,)), Device("gpu-1"))
        until(lambda: daemon.settled and server.faults.watches.open)
        server.upgrade(gates={"DRADeviceTaints": False})
        server.faults.watches.close()
        until(lambda: names(server) == {"gpu-1"})
        until(lambda: daemon.results[POOL].reductions)


def test_interruptions_that_come_often_do_not_cost_probes_each(server: ApiServer) -> None:
    with client_of(server) as client, Daemon(client) as daemon:
        daemon.want(*gpus(2))
        until(lambda: daemon.settled and server.faults.watches.open)
        for _ in range(4):
            server.requests.clear()
            server.faults.watches.close()
            until(lambda: server.requests.matching(verb="watch") and server.faults.watches.open)
            until(lambda: server.requests.matching(path="/version"))
        calls = daemon.calls
        until(lambda: daemon.calls >= calls + 2)
        assert server.requests.matching("POST") == []


def test_a_server_that_is_back_with_an_empty_store_gets_all_slices(server: ApiServer) -> None:
    """Its versions are lower than those of before: nothing would ever be heard of it by watching on."""
    with client_of(server) as client, Daemon(client) as daemon:
        daemon.want(*gpus(100))
        until(lambda: daemon.settled and server.faults.watches.open)
        port = int(server.url.rsplit(":", 1)[1])
        server.stop()
        with ApiServer(port=port) as other:
            make_node(other)
            until(lambda: names(other) == {device.name for device in gpus(100)})


def test_thousands_of_slices_of_strangers_do_not_keep_ours_waiting(server: ApiServer) -> None:
    with client_of(server) as client, Daemon(client, period=0.05) as daemon:
        daemon.want(*gpus(2))
        until(lambda: daemon.settled and server.faults.watches.open)
        daemon.publisher.withdraw_others([(DRIVER, POOL)])
        (own,) = slices(server)
        for number in range(1000):
            pool = {"name": "stranger", "generation": 1, "resourceSliceCount": 1000}
            server.store.create(
                {key: own[key] for key in ("apiVersion", "kind")}
                | {"metadata": {"name": f"stranger-{number}"}, "spec": own["spec"] | {"pool": pool}}
            )
        until(lambda: len(slices(server, "stranger")) < 1000)
        server.store.delete("ResourceSlice", own["metadata"]["name"])
        until(lambda: names(server) == {"gpu-0000", "gpu-0001"})
        assert len(slices(server, "stranger")) > 500, "most of them are still to be removed"
        until(lambda: not slices(server, "stranger"), 60)


def test_what_a_server_cannot_any_more_is_noticed_at_the_next_write(server: ApiServer) -> None:
    with client_of(server) as client, Daemon(client) as daemon:
        daemon.want(*gpus(2))
        until(lambda: daemon.settled)
        server.upgrade(gates={"DRADeviceTaints": False})
        daemon.want(Device("gpu-0000", taints=(SICK,)), Device("gpu-0001"))
        until(lambda: names(server) == {"gpu-0001"})
        until(lambda: daemon.settled)
        assert daemon.results[POOL].reductions
        server.requests.clear()
        calls = daemon.calls
        until(lambda: daemon.calls >= calls + 2)
        assert writes(server) == 0
