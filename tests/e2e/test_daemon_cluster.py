"""A real daemon and a stand-in API server: slices published and kept, and claims prepared, through faults of both."""

import shutil
import threading
import time
from collections.abc import Iterator, Mapping

import pytest

import daemons
from clusterdaemons import (
    CARD,
    CPU,
    DRIVERS,
    GPU,
    POOLS,
    Cluster,
    cluster,
    errors,
    no_claim,
    prepared,
    taints,
)
from daemons import NODE
from dradriver.claimstatus.writer import PATIENCE_SECONDS
from dradriver.sim.kubelet import Kubelet
from dradriver.sim.watcher import EventKind, RegistrationWatcher
from dradriver_fake import clear_faults, set_fault
from waiting import PATIENCE, eventually

GPU_POOL = POOLS[0]
PARTITION = f"{CARD}-mig-1g-6gb-0"
ALL_KINDS = (PARTITION, "nic-0000-44-00-2", "cpu-numa-0:cpu=2", "memory-numa-0:memory=4Mi")


@pytest.fixture
def fresh() -> Iterator[Cluster]:
    """A cluster whose node has no daemon yet."""
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """A cluster with a running daemon, which is well after each test."""
    with cluster() as made:
        made.start()
        made.ready()
        yield made
        assert "Traceback" not in made.log()


@pytest.fixture
def kubelet(running: Cluster) -> Iterator[Kubelet]:
    with daemons.kubelet(running.node) as small:
        yield small


def test_a_start_registers_and_publishes_and_a_second_one_changes_nothing(fresh: Cluster) -> None:
    with RegistrationWatcher(fresh.node.kubelet_root) as watcher:
        process = fresh.start()
        fresh.ready()
        watcher.wait(EventKind.REGISTERED, len(DRIVERS))
        assert {plugin.name for plugin in watcher.registered} == set(DRIVERS)
    uid = fresh.server.store.get("Node", NODE, "")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": True}
    assert [one["metadata"]["ownerReferences"] for one in fresh.slices()] == [[owner]] * 5
    assert fresh.written() == {"ResourceSlice": 5}
    before = fresh.slices()

    daemons.terminate(process)
    assert fresh.slices() == before
    fresh.server.requests.clear()
    fresh.start()
    eventually(lambda: fresh.log().count("active on node") == 2, "the second is active")
    fresh.watched()
    time.sleep(1.5)
    assert fresh.written() == {}
    assert fresh.slices() == before


def test_slices_follow_a_node_object_that_comes_late() -> None:
    with cluster(node_object=False) as late:
        late.start()
        eventually(lambda: f"there is no Node '{NODE}'" in late.log(), "the reason is logged")
        with daemons.kubelet(late.node) as kubelet:
            assert sorted(plugin.name for plugin in kubelet.plugins()) == sorted(DRIVERS)
        assert late.slices() == []
        eventually(lambda: late.log().count("there is no Node") == len(POOLS), "it is said for each pool")
        time.sleep(1.5)
        assert late.log().count("there is no Node") == len(POOLS), "said once for each pool, not at each try"
        late.make_node()
        late.ready()


def test_an_api_server_that_is_down_at_the_start_is_found_when_it_is_up(fresh: Cluster) -> None:
    fresh.server.faults.refuse()
    fresh.start()
    eventually(lambda: "are not as they should be" in fresh.log(), "the reason is logged")
    unknown = no_claim()
    with daemons.kubelet(fresh.node) as kubelet:
        assert sorted(plugin.name for plugin in kubelet.plugins()) == sorted(DRIVERS)
        assert kubelet.unprepare(CPU, [unknown]) == {unknown.uid: None}
    for text, number in (("are not as they should be", len(POOLS)), ("cannot be watched", len(DRIVERS))):
        eventually(lambda text=text, number=number: fresh.log().count(text) == number, text)  # type: ignore[misc]
    before = fresh.log()
    time.sleep(1.5)
    assert fresh.log() == before, "nothing is said of a retry"
    fresh.server.faults.accept()
    fresh.ready()


def test_an_outage_harms_nothing_that_is_prepared_and_slices_catch_up(running: Cluster) -> None:
    server, hardware = running.server, running.node.directory / "state/hardware"
    kept = running.claim("kept", *ALL_KINDS)
    gone = running.claim("gone", "cpu-numa-0:cpu=1")
    late = running.claim("late", "cpu-numa-0:cpu=1")
    with daemons.kubelet(running.node, call_seconds=6.0) as kubelet:
        answers = {driver: kubelet.prepare(driver, [kept]) for driver in DRIVERS}
        assert all(prepared(answer, [kept]) for answer in answers.values()), answers
        assert prepared(kubelet.prepare(CPU, [gone]), [gone])
        server.faults.refuse()
        try:
            assert {driver: kubelet.prepare(driver, [kept]) for driver in DRIVERS} == answers
            assert kubelet.unprepare(CPU, [gone]) == {gone.uid: None}
            (refusal,) = errors(kubelet.prepare(CPU, [late]))
            assert "the claim cannot be read now" in refusal
            assert "connection refused" in refusal
            set_fault(hardware, CARD, "sick", message="XID 79")
            eventually(lambda: "slices of pool node-a/gpu are not as they should be" in running.log(), "said")
        finally:
            server.faults.accept()
        eventually(lambda: len(taints(running.offered(GPU_POOL))) == 14, "the slices catch up")
        clear_faults(hardware)
        eventually(lambda: not taints(running.offered(GPU_POOL)), "the GPU is well")
        assert prepared(kubelet.prepare(CPU, [late]), [late])
        assert kubelet.unprepare(CPU, [late]) == {late.uid: None}
        for driver in DRIVERS:
            assert kubelet.unprepare(driver, [kept]) == {kept.uid: None}
    running.watched()


def test_a_kubelet_that_restarts_finds_drivers_and_slices_again(running: Cluster) -> None:
    running.watched()
    before = running.specs()
    with RegistrationWatcher(running.node.kubelet_root) as watcher:
        watcher.wait(EventKind.REGISTERED, len(DRIVERS))
        # A kubelet deletes the slices of its node at its start, and the directory may be on a tmpfs.
        assert running.server.faults.wipe_slices(node=NODE) == 5
        shutil.rmtree(running.node.kubelet_root / "plugins_registry")
        watcher.restart()
        began = time.monotonic()
        running.ready()
        watcher.wait(EventKind.REGISTERED, 2 * len(DRIVERS))
        assert time.monotonic() - began < 10.0, "2 s are promised"
    assert sorted(map(content, running.specs().values())) == sorted(map(content, before.values()))


def content(spec: Mapping[str, object]) -> str:
    """Return what a slice says, whatever its generation."""
    return repr({**spec, "pool": {**spec["pool"], "generation": 0}})  # type: ignore[dict-item]


def test_slices_that_others_delete_edit_or_add_to_are_restored(running: Cluster) -> None:
    running.watched()
    store, before = running.server.store, sorted(map(content, running.specs().values()))

    def is_as_before() -> bool:
        return sorted(map(content, running.specs().values())) == before

    victim = running.slices(POOLS[2])[0]
    store.delete("ResourceSlice", victim["metadata"]["name"], "")
    eventually(lambda: running.offered(POOLS[2]) is not None, "the deleted one is back")
    assert is_as_before()
    edited = running.slices(GPU_POOL)[-1]
    edited["spec"]["devices"] = edited["spec"]["devices"][:3]
    store.replace(edited)
    eventually(is_as_before, "the edited one is as it was")
    name = f"099-{GPU}-{NODE}-x"
    foreign = {
        **edited,
        "metadata": {"name": name},
        "spec": {**edited["spec"], "pool": {**edited["spec"]["pool"]}},
    }
    store.create(foreign)
    eventually(is_as_before, "one that is too many is removed")
    foreign["spec"]["pool"]["name"] = f"{NODE}/other"
    store.create(foreign)
    eventually(is_as_before, "one of a pool that is not configured is removed")


def test_a_gpu_that_turns_sick_costs_one_write_and_one_when_it_is_well(running: Cluster) -> None:
    hardware = running.node.directory / "state/hardware"
    assert not taints(running.offered(GPU_POOL))
    running.server.requests.clear()
    set_fault(hardware, CARD, "sick", message="XID 48: double bit ECC error")
    eventually(lambda: taints(running.offered(GPU_POOL)), "the taint is published")
    assert len(taints(running.offered(GPU_POOL))) == 14, "the GPU and all its partitions"
    clear_faults(hardware)
    eventually(lambda: not taints(running.offered(GPU_POOL)), "the taint is gone")
    time.sleep(1.2)
    assert running.written() == {"ResourceSlice": 2}


def test_a_gpu_that_vanishes_is_withdrawn_and_its_counters_with_it(running: Cluster) -> None:
    hardware = running.node.directory / "state/hardware"
    running.server.requests.clear()
    set_fault(hardware, CARD, "vanish")
    eventually(lambda: running.offered(GPU_POOL) == {}, "the GPU is withdrawn")
    clear_faults(hardware)
    eventually(lambda: len(running.offered(GPU_POOL) or ()) == 14, "the GPU is back")


def test_prepare_costs_one_get_and_the_status_is_written_by_one_patch(
    running: Cluster, kubelet: Kubelet
) -> None:
    claim = running.claim("all-kinds", *ALL_KINDS)
    running.server.requests.clear()
    began = time.monotonic()
    for number, driver in enumerate(DRIVERS, 1):
        assert prepared(kubelet.prepare(driver, [claim]), [claim])
        assert len(running.asked("get", "ResourceClaim")) == number
    in_time = (
        time.monotonic() - began < PATIENCE_SECONDS
    )  # else those that are prepared are told of before the rest
    names = {PARTITION, "nic-0000-44-00-2", "cpu-numa-0", "memory-numa-0"}
    eventually(lambda: running.told(claim).keys() == names, "all devices are in the status")
    told = running.told(claim)
    assert {name: told[name]["Ready"]["status"] for name in names} == dict.fromkeys(names, "True")
    time.sleep(0.5)
    assert len(running.asked("get", "ResourceClaim")) == len(DRIVERS)
    assert not in_time or len(running.asked("apply", "ResourceClaim")) == 1
    assert not in_time or running.written() == {"ResourceClaim": 1}
    running.server.requests.clear()
    for driver in DRIVERS:
        assert kubelet.prepare(driver, [claim])
        assert kubelet.unprepare(driver, [claim]) == {claim.uid: None}
    time.sleep(0.5)
    assert running.written() == {}


def test_the_claims_of_one_call_are_read_beside_each_other(running: Cluster, kubelet: Kubelet) -> None:
    claims = [running.claim(f"many-{number}", "memory-numa-0:memory=2Mi") for number in range(8)]
    warm = running.claim("warm", "memory-numa-0:memory=2Mi")
    memory = DRIVERS[3]
    assert prepared(kubelet.prepare(memory, [warm]), [warm])
    running.server.requests.clear()
    running.server.faults.latency = 0.3
    try:
        began = time.monotonic()
        answers = kubelet.prepare(memory, claims)
        seconds = time.monotonic() - began
    finally:
        running.server.faults.latency = 0.0
    assert prepared(answers, claims), answers
    assert len(running.asked("get", "ResourceClaim")) == len(claims)
    assert seconds < 0.3 * len(claims), "less than one after the other"
    for claim in (*claims, warm):
        assert kubelet.unprepare(memory, [claim]) == {claim.uid: None}


def test_a_claim_that_is_replaced_or_gone_is_refused(running: Cluster, kubelet: Kubelet) -> None:
    absent = no_claim()
    replaced = running.claim("replaced", "cpu-numa-0:cpu=1")
    running.server.store.delete("ResourceClaim", "replaced")
    now = running.claim("replaced", "cpu-numa-0:cpu=1")
    answers = kubelet.prepare(CPU, [absent, replaced])
    assert answers[absent.uid] == "the API server has no such claim (any more)"
    assert answers[replaced.uid] == f"claim was replaced: its uid is now '{now.uid}'"


def test_an_api_server_that_is_silent_does_not_hold_up_the_end(fresh: Cluster) -> None:
    process = fresh.start()
    fresh.ready()
    fresh.server.faults.hang(100)
    set_fault(fresh.node.directory / "state/hardware", CARD, "sick")
    eventually(lambda: fresh.server.faults.pending() < 100, "a request hangs")
    assert daemons.terminate(process) < 15.0
    assert process.returncode == 0
    assert "still at work" not in fresh.log()


@pytest.mark.parametrize("withdraw", [False, True])
def test_slices_stay_at_the_end_unless_the_configuration_says_otherwise(
    fresh: Cluster, withdraw: bool
) -> None:
    process = fresh.start(f"fake: {{node: small}}\nkubernetes: {{withdrawAtStop: {str(withdraw).lower()}}}\n")
    fresh.ready()
    daemons.terminate(process)
    assert process.returncode == 0
    assert len(fresh.slices()) == (0 if withdraw else 5)


def test_the_one_that_stands_by_writes_nothing_and_neither_does_it_after_the_hand_over(
    fresh: Cluster,
) -> None:
    old = fresh.start(instance="old-pod")
    fresh.ready()
    fresh.watched()
    before = fresh.slices()
    fresh.server.requests.clear()
    fresh.start(instance="new-pod")
    eventually(lambda: "standing by" in fresh.log(), "the new one stands by")
    time.sleep(1.5)
    assert list(fresh.server.requests) == [], "nothing is asked of the API server"
    daemons.terminate(old)
    eventually(lambda: fresh.log().count("active on node") == 2, "the new one is active")
    fresh.watched()
    time.sleep(1.5)
    assert fresh.written() == {}
    assert fresh.slices() == before


def test_calls_that_come_at_once_ask_no_more_than_there_are(running: Cluster, kubelet: Kubelet) -> None:
    """Two pods of one claim, as the kubelet starts them: each call reads the claim, one of them prepares it."""
    claim = running.claim("twice", PARTITION)
    running.server.requests.clear()
    answers: list[object] = []
    workers = [
        threading.Thread(target=lambda: answers.append(kubelet.prepare(GPU, [claim]))) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert answers[0] == answers[1]
    assert len(running.asked("get", "ResourceClaim")) == 2
    assert kubelet.unprepare(GPU, [claim]) == {claim.uid: None}


def test_credentials_that_are_not_there_end_the_start(fresh: Cluster) -> None:
    fresh.kubeconfig.unlink()
    assert fresh.start().wait(PATIENCE) == 2
    (line,) = fresh.log().splitlines()
    assert str(fresh.kubeconfig) in line
    assert (
        fresh.node.start("kubernetes: {}\n", environment={"KUBERNETES_SERVICE_HOST": ""}).wait(PATIENCE) == 2
    )
    (_, line) = fresh.log().splitlines()
    assert "config.yaml: kubernetes: " in line
    assert "KUBERNETES_SERVICE_HOST" in line
