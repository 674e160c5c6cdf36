"""What claims are told of their prepared devices: once, after the answer, and until the server has it."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusternode import GPU, VF, ClusterNode, cluster_node
from dradriver.claimstatus import writer
from dradriver.clock import Clock
from dradriver.kube.errors import MAX_RETRY_AFTER_SECONDS
from dradriver.model import ClaimRef
from publishing import Hurried
from waiting import eventually

CPU, NIC = "cpu.dradriver.io", "nic.dradriver.io"
FOREIGN = {"request": "r9", "driver": "gpu.example.com", "pool": "elsewhere", "device": "gpu-7"}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterNode]:
    # No answer is late, however slow the machine is: it would be asked for again.
    monkeypatch.setattr(writer, "REQUEST_SECONDS", 600.0)
    with cluster_node(tmp_path, Clock(speed=10)) as made:
        yield made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the other drivers of a claim be waited for, however slow the machine is."""
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 600.0)


def cpus(node: ClusterNode, name: str = "a", **more: Any) -> ClaimRef:
    return node.claim(name, [node.result(0, "cpu-numa-0", "1")], **more)


def by_device(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["device"]: entry for entry in entries}


def test_all_drivers_of_a_claim_are_told_in_one_apply_after_the_answers(
    node: ClusterNode, patient: None
) -> None:
    ref = node.all_kinds()
    with node.writing():
        answers = node.prepare(ref)
        assert all(not isinstance(answer, str) for answer in answers)
        node.idle()
    (patch,) = node.server.requests.matching("PATCH")
    assert patch.path.endswith("/namespaces/default/resourceclaims/all/status")
    assert (patch.verb, patch.status) == ("apply", 200)
    assert dict(patch.query) == {"fieldManager": "dradriver", "force": "true"}
    told = by_device(node.told(ref))
    assert set(told) == {GPU, VF, "cpu-numa-0", "memory-numa-0"}
    allocated = node.server.store.get("ResourceClaim", "all")["status"]["allocation"]["devices"]["results"]
    for result in allocated:
        entry = told[result["device"]]
        assert (entry["driver"], entry["pool"]) == (result["driver"], result["pool"])
        assert entry.get("shareID") == result.get("shareID")
        (condition,) = entry["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "Prepared")
    (record,) = [found for found in node.running.journal.records() if found.driver == CPU]
    assert told["cpu-numa-0"]["data"] == {"cpus": record.devices[0].metadata["cpus"]["string"]}
    assert told["memory-numa-0"]["data"] == {"memory": 4 << 20}
    assert told[GPU]["data"]["uuid"].startswith("MIG-")
    network = told[VF]["networkData"]
    assert network["interfaceName"] == "enp68s0v0"
    assert network["ips"][0].startswith("fe80::")


def test_no_entry_of_others_is_touched_and_none_of_theirs_is_ours(node: ClusterNode) -> None:
    theirs = {"driver": "gpu.example.com", "pool": "elsewhere", "device": "gpu-7", "data": {"their": "own"}}
    ref = node.claim("a", [FOREIGN, node.result(0, "cpu-numa-0", "1")], other=[theirs])
    with node.writing():
        node.prepare(ref)
        node.idle()
    told = by_device(node.told(ref))
    assert told["gpu-7"]["data"] == {"their": "own"}
    assert set(told) == {"gpu-7", "cpu-numa-0"}


def test_news_of_a_claim_that_was_not_read_forgets_none_of_its_drivers(
    node: ClusterNode, patient: None
) -> None:
    ref = node.all_kinds()
    with node.writing():
        node.prepare(ref, CPU)
        (record,) = node.running.journal.records()
        node.writer.prepared(record, None)
        time.sleep(0.5)
        assert node.told(ref) == [], "the other drivers are waited for"
        node.prepare(ref)
        node.idle()
    assert node.asked("PATCH") == 1


def test_a_driver_that_comes_later_takes_nothing_away(node: ClusterNode) -> None:
    ref = node.all_kinds()
    with node.writing():
        node.prepare(ref, CPU)
        node.idle()
        assert set(by_device(node.told(ref))) == {"cpu-numa-0"}
        node.prepare(ref, NIC)
        node.idle()
    assert set(by_device(node.told(ref))) == {"cpu-numa-0", VF}
    assert node.asked("PATCH") == 2


def test_repeats_and_restarts_write_nothing_that_is_there(node: ClusterNode, patient: None) -> None:
    ref = node.all_kinds()
    with node.writing():
        node.prepare(ref)
        node.idle()
        told = node.told(ref)
        node.prepare(ref)
        node.idle()
    assert node.asked("PATCH") == 1
    node.server.requests.clear()
    node.restart()
    with node.writing():
        node.idle()
        time.sleep(0.3)
        assert len(node.server.requests) == 0, "nor is anything asked"
        node.prepare(ref)
        node.idle()
    assert node.asked("PATCH") == 0
    assert node.told(ref) == told


def test_what_was_not_written_before_the_end_is_written_after_the_start(node: ClusterNode) -> None:
    refs = [cpus(node, f"c{number}") for number in range(3)]
    for ref in refs:
        node.prepare(ref, CPU)
    node.unprepare(refs[1])
    node.restart()
    with node.writing():
        eventually(lambda: node.told(refs[0]) and node.told(refs[2]))
        node.idle()
    assert [bool(node.told(ref)) for ref in refs] == [True, False, True]
    assert node.asked("PATCH") == 2


def test_a_status_that_is_lost_is_written_again_at_the_next_repeat(node: ClusterNode) -> None:
    """The server drops it with the allocation; another pod then got the same device."""
    ref = cpus(node)
    with node.writing():
        node.prepare(ref, CPU)
        node.idle()
        told = node.told(ref)
        claim = node.server.store.get("ResourceClaim", "a")
        del claim["status"]["devices"]
        node.server.store.replace(claim)
        node.prepare(ref, CPU)
        node.idle()
    assert node.told(ref) == told, "with the same time: it is prepared since then"


def gone(node: ClusterNode) -> None:
    node.server.store.delete("ResourceClaim", "a")


def replaced(node: ClusterNode) -> None:
    gone(node)
    cpus(node)


def deallocated(node: ClusterNode) -> None:
    claim = node.server.store.get("ResourceClaim", "a")
    del claim["status"]["allocation"]
    node.server.store.replace(claim)


@pytest.mark.parametrize("fate", [gone, replaced, deallocated])
def test_a_claim_that_is_no_longer_there_ends_it_without_a_word(
    node: ClusterNode, fate: Callable[[ClusterNode], None], caplog: pytest.LogCaptureFixture
) -> None:
    ref, other = cpus(node), cpus(node, "b")
    node.prepare(ref, CPU)
    fate(node)
    node.prepare(other, CPU)
    caplog.clear()
    with node.writing():
        node.idle()
    assert node.told(other)
    assert node.asked("PATCH") == 2
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.INFO] == []
    if fate is not gone:
        assert node.told(ref) == [], "what took its place is not touched"


def test_passing_failures_are_tried_again_and_said_once(
    node: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=writer.__name__)
    ref = cpus(node)
    faults = node.server.faults
    faults.fail(429, method="PATCH", retry_after=1)
    faults.fail(500, method="PATCH")
    faults.drop(method="PATCH")
    faults.fail(409, method="PATCH", message="the object has been modified")
    node.prepare(ref, CPU)
    with node.writing():
        node.idle()
    assert node.told(ref)
    messages = [entry.getMessage() for entry in caplog.records if entry.name == writer.__name__]
    assert len(messages) == 2
    assert messages[0].startswith("the status of claims cannot be written, and is tried again: 429")
    assert messages[1] == "the status of claims is written again"


def test_an_answer_that_is_lost_is_no_second_write(node: ClusterNode) -> None:
    ref = cpus(node)
    node.server.faults.drop(method="PATCH", after=True)
    node.prepare(ref, CPU)
    with node.writing():
        node.idle()
    version = node.server.store.get("ResourceClaim", "a")["metadata"]["resourceVersion"]
    assert node.told(ref)
    assert node.asked("PATCH") == 2
    assert [entry.changed for entry in node.server.requests.matching("PATCH")] == [True, False]
    assert version


def test_one_claim_that_always_fails_does_not_keep_the_others(node: ClusterNode) -> None:
    bad, good = cpus(node), [cpus(node, f"c{number}") for number in range(3)]
    node.server.faults.fail(500, times=1000, method="PATCH", path="/a/status")
    for ref in (bad, *good):
        node.prepare(ref, CPU)
    with node.writing():
        eventually(lambda: all(node.told(ref) for ref in good))
        assert not node.told(bad)
        node.server.faults.clear()
        node.idle()
    assert node.told(bad)


def test_a_claim_that_is_refused_in_passing_is_told_and_nothing_is_said(
    node: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    ref = cpus(node)
    node.server.faults.fail(400, method="PATCH")
    node.server.faults.fail(422, times=2, method="PATCH", message="a webhook that errs")
    node.prepare(ref, CPU)
    with node.writing():
        node.idle()
    assert node.told(ref)
    assert node.asked("PATCH") == 4
    assert [entry for entry in caplog.records if entry.name == writer.__name__] == []


def test_a_server_that_wants_to_be_left_for_an_hour_is_left_for_half_a_minute_and_by_one_claim_only(
    node: ClusterNode,
) -> None:
    busy, other = cpus(node), cpus(node, "b")
    node.server.faults.fail(429, method="PATCH", path="/a/status", retry_after=3600)
    for ref in (busy, other):
        node.prepare(ref, CPU)
    began = node.clock.now()
    with node.writing():
        eventually(lambda: node.told(other))
        assert not node.told(busy)
        assert node.writer.waiting >= 1
        later = cpus(node, "c")
        node.prepare(later, CPU)
        eventually(lambda: node.told(later))
        assert node.writer.trouble.startswith("the status of claims cannot be written: 429")
        node.idle()
    assert node.told(busy)
    assert node.clock.now() - began >= MAX_RETRY_AFTER_SECONDS
    assert node.writer.trouble == ""


def test_a_busy_server_that_refuses_all_is_asked_again_within_a_minute(node: ClusterNode) -> None:
    refs = [cpus(node, f"c{number}") for number in range(5)]
    node.server.faults.fail(503, times=4, method="PATCH", retry_after=3600)
    for ref in refs:
        node.prepare(ref, CPU)
    with node.writing():
        node.idle()
    assert all(node.told(ref) for ref in refs)


def test_a_claim_that_is_refused_for_good_is_sent_a_few_times_and_that_is_said_once(
    node: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    ref = cpus(node)
    node.server.faults.fail(400, times=1000, method="PATCH", message="no such field")
    node.prepare(ref, CPU)
    with node.writing():
        node.idle()
    assert node.asked("PATCH") == writer.MAX_REFUSALS
    (entry,) = [entry for entry in caplog.records if entry.name == writer.__name__]
    assert "is not written: 400 BadRequest: no such field" in entry.getMessage()
    node.restart()
    with node.writing():
        time.sleep(0.3)
        node.idle()
    assert node.asked("PATCH") == writer.MAX_REFUSALS


def test_rights_that_come_later_are_used(
    node: ClusterNode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FORBIDDEN_WAIT", 0.1)
    ref = cpus(node)
    node.server.faults.fail(403, times=2, method="PATCH", message="needs associated-node:patch")
    node.prepare(ref, CPU)
    with node.writing():
        node.idle()
    assert node.told(ref)
    (entry,) = [
        entry
        for entry in caplog.records
        if entry.name == writer.__name__ and entry.levelno >= logging.WARNING
    ]
    assert "needs associated-node:patch" in entry.getMessage()


def test_more_claims_than_may_wait_are_all_written(
    node: ClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING", 2)
    monkeypatch.setattr(writer, "PACE_SECONDS", 0.0)
    refs = [cpus(node, f"c{number}") for number in range(5)]
    for ref in refs:
        node.prepare(ref, CPU)
    assert node.writer.waiting == 2
    with node.writing():
        eventually(lambda: all(node.told(ref) for ref in refs))
        node.idle()
    assert node.asked("PATCH") == 5


def test_an_hour_without_the_server_is_caught_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=writer.__name__)
    clock = Hurried()
    with cluster_node(tmp_path, clock) as node:
        refs = [cpus(node, f"c{number}") for number in range(4)]
        for ref in refs:
            node.prepare(ref, CPU)
        node.server.faults.refuse()
        with node.writing():
            began = clock.now()
            clock.run_at(1800)
            eventually(lambda: clock.now() - began > 3600)
            clock.run_at(1)  # else an answer that takes some milliseconds comes too late
            node.unprepare(refs[3])
            node.server.faults.accept()
            node.idle()
        assert [bool(node.told(ref)) for ref in refs] == [True, True, True, False]
        assert node.asked("PATCH") == 3
    messages = [entry.getMessage() for entry in caplog.records if entry.name == writer.__name__]
    assert len(messages) == 2, messages
