"""Claims are read from the API server: once before the answer, again while that helps, and never for long."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusternode import GPU, VF, ClusterNode, cluster_node
from dradriver.claims import ClaimError, ClaimNotFoundError, api
from dradriver.claims.api import ApiClaims
from dradriver.model import ClaimRef
from waiting import PATIENCE

CPU = "cpu.dradriver.io"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterNode]:
    with cluster_node(tmp_path) as made:
        yield made


def cpus(node: ClusterNode, name: str = "a", amount: str = "1") -> ClaimRef:
    return node.claim(name, [node.result(0, "cpu-numa-0", amount)])


def test_one_get_goes_before_the_answer_and_one_before_each_repeat(node: ClusterNode) -> None:
    ref = cpus(node)
    (first,) = node.prepare(ref, CPU)
    assert not isinstance(first, str)
    assert [(entry.method, entry.path) for entry in node.server.requests] == [
        ("GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/a")
    ]
    assert node.prepare(ref, CPU) == [first]
    assert len(node.server.requests) == 2
    node.unprepare(ref)
    assert len(node.server.requests) == 2, "Unprepare needs no API server"


def test_each_driver_of_a_claim_reads_it_once(node: ClusterNode) -> None:
    answers = node.prepare(node.all_kinds())
    assert all(not isinstance(answer, str) for answer in answers)
    assert node.asked("GET") == 4


def test_several_claims_are_read_at_once(node: ClusterNode) -> None:
    refs = [cpus(node, f"c{number}") for number in range(6)]
    node.server.faults.latency = 0.5
    answers = node.running.gate.prepare(CPU, refs, time.monotonic() + 20)
    assert all(not isinstance(answer, str) for answer in answers.values())
    times = [entry.time for entry in node.server.requests]
    assert len(times) == 6
    assert max(times) - min(times) < 0.5, "all were asked before the first was answered"


@pytest.mark.parametrize("code", [429, 500, 503, 504, 408])
def test_a_passing_refusal_is_asked_again(node: ClusterNode, code: int) -> None:
    node.server.faults.fail(code, times=2, method="GET")
    (answer,) = node.prepare(cpus(node), CPU)
    assert not isinstance(answer, str)
    assert node.asked("GET") == 3


@pytest.mark.parametrize("fault", ["drop", "truncate", "hang"])
def test_an_answer_that_does_not_come_whole_is_asked_for_again(
    node: ClusterNode, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "GET_SECONDS", 0.5)
    getattr(node.server.faults, fault)(times=1, method="GET")
    (answer,) = node.prepare(cpus(node), CPU)
    assert not isinstance(answer, str)


def test_a_server_that_is_gone_fails_the_claim_in_time_and_leaves_the_prepared_alone(
    node: ClusterNode,
) -> None:
    ref, late = cpus(node), cpus(node, "late")
    (first,) = node.prepare(ref, CPU)
    node.server.faults.refuse()
    began = time.monotonic()
    (answer,) = node.prepare(late, CPU, seconds=1.0)
    assert isinstance(answer, str)
    assert answer.startswith("the claim cannot be read now: ")
    assert time.monotonic() - began < 10
    assert node.prepare(ref, CPU) == [first]
    node.unprepare(ref)
    node.server.faults.accept()
    (answer,) = node.prepare(late, CPU)
    assert not isinstance(answer, str)


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (
            403,
            'User "x" cannot get',
            "does not let dradriver read claims: it needs the verb get on resourceclaims of",
        ),
        (401, "Unauthorized", "the credentials are wrong or outdated"),
        (400, "no", "refuses to give out the claim"),
        (418, "short and stout", "refuses to give out the claim"),
    ],
)
def test_a_refusal_that_stays_is_told_at_once(
    node: ClusterNode, code: int, message: str, expected: str
) -> None:
    node.server.faults.fail(code, times=100, method="GET", message=message)
    (answer,) = node.prepare(cpus(node), CPU)
    assert isinstance(answer, str)
    assert expected in answer
    assert message in answer
    assert node.asked("GET") <= 2, "at most once more with credentials read anew"


def test_a_claim_that_is_gone_or_another_is_told(node: ClusterNode) -> None:
    ref = cpus(node)
    node.server.store.delete("ResourceClaim", "a")
    assert node.prepare(ref, CPU) == ["the API server has no such claim (any more)"]
    other = cpus(node)
    (answer,) = node.prepare(ref, CPU)
    assert answer == f"claim was replaced: its uid is now '{other.uid}'"


def test_a_claim_of_many_drivers_gives_each_its_own_and_no_foreign_result_is_in_the_way(
    node: ClusterNode,
) -> None:
    foreign = {
        "request": "r9",
        "driver": "gpu.example.com",
        "pool": "elsewhere/9",
        "device": "gpu-7",
        "consumedCapacity": {"memory": "80GB", "gpu.example.com/memory": "1"},
    }
    ref = node.claim(
        "a", [foreign, node.result(0, GPU), foreign, node.result(1, VF), node.result(2, "cpu-numa-0", "1")]
    )
    names = []
    for answer in node.prepare(ref):
        assert not isinstance(answer, str)
        names += [device.device for device in answer]
    assert names == [GPU, VF, "cpu-numa-0"]


def test_the_source_by_itself(node: ClusterNode) -> None:
    claims = ApiClaims(node.reading)
    ref = cpus(node)
    assert claims.get(ref, time.monotonic() + 5)["metadata"]["uid"] == ref.uid
    with pytest.raises(ClaimNotFoundError):
        claims.get(ClaimRef("u", "default", "b"), time.monotonic() + 5)
    node.server.faults.fail(403)
    with pytest.raises(ClaimError, match="get on resourceclaims"):
        claims.get(ref, time.monotonic() + 5)


def test_a_repeat_waits_little_for_a_server_that_does_not_answer(
    node: ClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver.engine.engine.COMPARE_SECONDS", 0.3)
    ref = cpus(node)
    (first,) = node.prepare(ref, CPU)
    node.server.faults.hang(times=1)
    done = threading.Event()
    answers = []

    def repeat() -> None:
        answers.extend(node.prepare(ref, CPU))
        done.set()

    threading.Thread(target=repeat).start()
    assert done.wait(PATIENCE)
    assert answers == [first]
