"""Prepare and Unprepare over the socket: one entry for each claim, whatever the claim and the driver are like."""

import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dradriver.kubelet import unix_target
from dradriver.kubelet.plugin import CALL_WORKERS
from dradriver.kubelet.service import MAX_CALL_SECONDS
from dradriver.kubelet.streams import MAX_STREAMS
from dradriver.model import ClaimRef, PreparedDevice
from dradriver.sim.kubelet import Kubelet
from dradriver_protos import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from kubeletside import (
    DRIVER,
    Driver,
    PrepareAnswer,
    UnprepareAnswer,
    claim,
    device,
    kubelet_root,
    one_device_each,
    serving,
)

VERSIONS = {
    "v1": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}

HOSTILE_UIDS = [
    "",
    ".",
    "../../../etc/passwd",
    "a/b",
    "a\nb",
    "-rf",
    "{uid}%s",
    "\u202e\U0001f4a3",
    "u" * 10_000,
]


@pytest.fixture
def root() -> Iterator[Path]:
    with kubelet_root() as path:
        yield path


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Caller:
    """Calls one version of the service of a plugin with whatever a test wants to send."""

    def __init__(self, channel: grpc.Channel, version: str) -> None:
        self.messages, services = VERSIONS[version]
        self.stub: Any = services.DRAPluginStub(channel)

    def prepare(self, *claims: ClaimRef, timeout: float | None = 45) -> Any:
        return self.stub.NodePrepareResources(
            self.messages.NodePrepareResourcesRequest(claims=self._claims(claims)), timeout=timeout
        ).claims

    def unprepare(self, *claims: ClaimRef, timeout: float | None = 45) -> Any:
        return self.stub.NodeUnprepareResources(
            self.messages.NodeUnprepareResourcesRequest(claims=self._claims(claims)), timeout=timeout
        ).claims

    def _claims(self, claims: Sequence[ClaimRef]) -> list[Any]:
        return [self.messages.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name) for ref in claims]


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def caller(root: Path, driver: Driver, version: str) -> Iterator[Caller]:
    with serving(root, driver) as plugin, grpc.insecure_channel(unix_target(plugin.paths.service)) as channel:
        yield Caller(channel, version)


def test_devices_come_back_as_they_were_prepared(caller: Caller, driver: Driver) -> None:
    prepared = PreparedDevice(
        ("left", "right"), "node-1/gpu", "gpu-0", ("example.com/claim=a", "example.com/base=b")
    )
    driver.on_prepare = lambda claims: {claims[0].uid: (prepared, device(1)), claims[1].uid: ()}
    answer = caller.prepare(claim(0), claim(1))
    first, second = answer[claim(0).uid].devices
    assert list(first.request_names) == ["left", "right"]
    assert (first.pool_name, first.device_name) == ("node-1/gpu", "gpu-0")
    assert list(first.cdi_device_ids) == ["example.com/claim=a", "example.com/base=b"]
    assert second.device_name == "gpu-1"
    assert not answer[claim(1).uid].devices
    assert not any(entry.error for entry in answer.values())
    assert driver.asked == [claim(0), claim(1)]


def test_a_share_id_is_told_in_v1_alone_and_only_if_there_is_one(root: Path) -> None:
    share = "3f5a9f4e-0000-4000-8000-000000000001"
    driver = Driver(lambda claims: {claims[0].uid: (device(0, share), device(1))})
    with serving(root, driver) as plugin, grpc.insecure_channel(unix_target(plugin.paths.service)) as channel:
        first, second = Caller(channel, "v1").prepare(claim())[claim().uid].devices
        assert first.share_id == share
        assert not second.HasField("share_id")
        old = Caller(channel, "v1beta1").prepare(claim())[claim().uid].devices
        assert [entry.device_name for entry in old] == ["gpu-0", "gpu-1"]


def test_unprepare_tells_success_and_errors_apart(caller: Caller, driver: Driver) -> None:
    driver.on_unprepare = lambda claims: {claims[0].uid: None, claims[1].uid: "the partition is busy"}
    answer = caller.unprepare(claim(0), claim(1))
    assert {uid: entry.error for uid, entry in answer.items()} == {
        claim(0).uid: "",
        claim(1).uid: "the partition is busy",
    }


def test_a_call_without_claims_is_answered_without_asking(caller: Caller, driver: Driver) -> None:
    assert len(caller.prepare()) == 0
    assert len(caller.unprepare()) == 0
    assert driver.deadlines == []


def test_a_thousand_claims_in_one_call(caller: Caller) -> None:
    claims = [claim(number) for number in range(1000)]
    answer = caller.prepare(*claims)
    assert set(answer) == {one.uid for one in claims}
    assert answer[claims[999].uid].devices[0].device_name == "gpu-999"
    assert set(caller.unprepare(*claims)) == {one.uid for one in claims}


@pytest.mark.parametrize("uid", HOSTILE_UIDS)
def test_a_uid_that_is_none_never_reaches_the_driver(caller: Caller, driver: Driver, uid: str) -> None:
    hostile = ClaimRef(uid, "team-a", "claim")
    prepared = caller.prepare(hostile, claim())
    assert set(prepared) == {uid, claim().uid}
    assert "is not a UID" in prepared[uid].error
    assert not prepared[claim().uid].error
    unprepared = caller.unprepare(hostile, claim())
    assert {key: entry.error for key, entry in unprepared.items()} == {uid: "", claim().uid: ""}
    assert driver.asked == [claim(), claim()]


@pytest.mark.parametrize("field", ["namespace", "name"])
@pytest.mark.parametrize("value", ["", "../secrets/x", "a b", "a\nb", "x" * 10_000])
def test_hostile_names_are_refused_in_prepare_and_do_not_hinder_unprepare(
    caller: Caller, driver: Driver, field: str, value: str
) -> None:
    hostile = ClaimRef(claim().uid, **{"namespace": "team-a", "name": "claim", field: value})
    [entry] = caller.prepare(hostile).values()
    assert f"{field} of the claim" in entry.error
    assert entry.error.isprintable()
    assert driver.asked == []
    assert caller.unprepare(hostile)[hostile.uid].error == ""
    assert driver.asked == [hostile]


def test_a_claim_named_twice_is_asked_for_once(caller: Caller, driver: Driver) -> None:
    assert set(caller.prepare(claim(), claim(), claim())) == {claim().uid}
    assert set(caller.unprepare(claim(), claim())) == {claim().uid}
    assert driver.asked == [claim(), claim()]


def test_one_uid_for_two_claims_is_refused(caller: Caller, driver: Driver) -> None:
    other = ClaimRef(claim().uid, "team-b", "other")
    answer = caller.prepare(claim(), other, claim(), claim(1))
    assert "two claims with this UID" in answer[claim().uid].error
    assert not answer[claim(1).uid].error
    assert driver.asked == [claim(1)]


def test_a_claim_that_the_driver_leaves_out_becomes_an_error(caller: Caller, driver: Driver) -> None:
    driver.on_prepare = lambda claims: one_device_each(claims[:1])
    driver.on_unprepare = lambda claims: {claims[0].uid: None}
    for answer in (caller.prepare(claim(0), claim(1)), caller.unprepare(claim(0), claim(1))):
        assert not answer[claim(0).uid].error
        assert "left the claim out" in answer[claim(1).uid].error


def test_an_answer_for_a_claim_that_nobody_asked_for_is_dropped(caller: Caller, driver: Driver) -> None:
    driver.on_prepare = lambda claims: one_device_each([*claims, claim(7)])
    assert set(caller.prepare(claim())) == {claim().uid}


def test_an_exception_becomes_an_error_whose_id_finds_the_log(
    caller: Caller, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    def crash(claims: Sequence[ClaimRef]) -> Any:
        raise ZeroDivisionError("secret of the driver")

    driver.on_prepare = driver.on_unprepare = crash
    for answer in (caller.prepare(claim(0), claim(1)), caller.unprepare(claim(0), claim(1))):
        assert set(answer) == {claim(0).uid, claim(1).uid}
        errors = {entry.error for entry in answer.values()}
        assert len(errors) == 1
        text = errors.pop()
        assert "secret" not in text
        ident = re.search(r"[0-9a-f]{8}$", text)
        assert ident is not None
        [record] = [record for record in caplog.records if ident.group() in record.getMessage()]
        assert record.levelno == logging.ERROR
        assert "secret of the driver" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        7,
        [device()],
        (device(), "gpu-1"),
        (PreparedDevice(("req",), "pool\udc80", "gpu", ()),),
        (PreparedDevice(("req",), 5, "gpu", ()),),  # type: ignore[arg-type]
    ],
)
def test_an_answer_of_a_wrong_kind_becomes_an_error_of_that_claim_alone(
    caller: Caller, driver: Driver, wrong: Any
) -> None:
    driver.on_prepare = lambda claims: {claims[0].uid: wrong, claims[1].uid: (device(),)}
    answer = caller.prepare(claim(0), claim(1))
    assert "internal error" in answer[claim(0).uid].error
    assert not answer[claim(0).uid].devices
    assert answer[claim(1).uid].devices[0].device_name == "gpu-0"


@pytest.mark.parametrize("answer", [None, 7, "text", []])
def test_an_answer_that_is_no_mapping_becomes_an_error(caller: Caller, driver: Driver, answer: Any) -> None:
    driver.on_prepare = driver.on_unprepare = lambda claims: answer
    assert caller.prepare(claim())[claim().uid].error
    assert caller.unprepare(claim())[claim().uid].error


def test_an_error_without_words_is_still_an_error(caller: Caller, driver: Driver) -> None:
    driver.on_prepare = lambda claims: {claims[0].uid: ""}
    driver.on_unprepare = lambda claims: {claims[0].uid: "\n"}
    assert caller.prepare(claim())[claim().uid].error == "the driver gave no reason"
    assert caller.unprepare(claim())[claim().uid].error == "the driver gave no reason"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{claim()} wants too much", "the claim wants too much"),
        ("an older team-a/claim-0 (uid-old) holds it", "an older team-a/claim-0 (uid-old) holds it"),
        ("first\nsecond\x00\u202e", "first second\\x00\\u202e"),
        ("not\udc80utf-8", "not\\udc80utf-8"),
    ],
)
def test_an_error_is_one_printable_line_without_the_claims_name(
    caller: Caller, driver: Driver, said: str, told: str
) -> None:
    driver.on_prepare = lambda claims: {claims[0].uid: said}
    assert caller.prepare(claim())[claim().uid].error == told


def test_a_long_error_is_cut(caller: Caller, driver: Driver) -> None:
    driver.on_prepare = lambda claims: {claims[0].uid: "no " * 10_000}
    error = caller.prepare(claim())[claim().uid].error
    assert error.endswith("... (30000 characters)")
    assert len(error) <= 1000


def test_the_driver_gets_the_callers_deadline_with_a_margin(caller: Caller, driver: Driver) -> None:
    begin = time.monotonic()
    caller.prepare(claim(), timeout=30)
    caller.unprepare(claim(), timeout=30)
    for deadline in driver.deadlines:
        assert begin < deadline < begin + 30


def test_no_deadline_and_a_long_one_are_bounded(caller: Caller, driver: Driver) -> None:
    caller.prepare(claim(), timeout=None)
    caller.unprepare(claim(), timeout=1000)
    for deadline in driver.deadlines:
        assert deadline <= time.monotonic() + MAX_CALL_SECONDS


uids = st.text(st.characters(codec="utf-8"), max_size=80) | st.uuids().map(str)
claims_of_a_call = st.lists(
    st.builds(ClaimRef, uids, st.sampled_from(["team-a", "..", ""]), st.sampled_from(["claim", "a/b"])),
    max_size=8,
)
outcomes = st.sampled_from([(), (device(),), "error", "", None, 3])


@given(claims=claims_of_a_call, outcome=outcomes, left_out=st.integers(0, 8))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_there_is_always_one_entry_for_each_uid(
    caller: Caller, driver: Driver, claims: list[ClaimRef], outcome: Any, left_out: int
) -> None:
    def answer(asked: Sequence[ClaimRef]) -> Any:
        return {one.uid: outcome for one in asked[left_out:]}

    driver.on_prepare = driver.on_unprepare = answer
    uids_of_call = {one.uid for one in claims}
    prepared = caller.prepare(*claims)
    assert set(prepared) == uids_of_call
    assert all(entry.error or outcome in ((), (device(),)) for entry in prepared.values())
    assert set(caller.unprepare(*claims)) == uids_of_call


def test_a_call_that_waited_until_its_caller_gave_up_is_not_run(root: Path) -> None:
    workers = CALL_WORKERS + MAX_STREAMS
    go_on, busy = threading.Event(), threading.Semaphore(0)

    def block(claims: Sequence[ClaimRef]) -> PrepareAnswer:
        busy.release()
        go_on.wait()
        return one_device_each(claims)

    driver = Driver(block)
    with (
        serving(root, driver) as plugin,
        grpc.insecure_channel(unix_target(plugin.paths.service)) as channel,
        ThreadPoolExecutor(workers) as pool,
    ):
        caller = Caller(channel, "v1")
        calls = [pool.submit(caller.prepare, claim(number)) for number in range(workers)]
        for _ in calls:
            busy.acquire()
        with pytest.raises(grpc.RpcError) as failure:
            caller.unprepare(claim(0), timeout=0.2)
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        driver.asked.clear()
        go_on.set()
        for call in calls:
            call.result()
        caller.unprepare(claim(1))
        assert driver.asked == [claim(1)]


def test_both_versions_share_one_driver(root: Path) -> None:
    prepared: set[str] = set()

    def prepare(claims: Sequence[ClaimRef]) -> PrepareAnswer:
        prepared.update(one.uid for one in claims)
        return one_device_each(claims)

    def unprepare(claims: Sequence[ClaimRef]) -> UnprepareAnswer:
        prepared.difference_update(one.uid for one in claims)
        return {one.uid: None for one in claims}

    with (
        serving(root, Driver(prepare, unprepare)) as plugin,
        grpc.insecure_channel(unix_target(plugin.paths.service)) as channel,
    ):
        Caller(channel, "v1").prepare(claim())
        Caller(channel, "v1beta1").unprepare(claim())
    assert prepared == set()


def test_the_kubelets_round_trip(root: Path) -> None:
    claims = [claim(0), claim(1)]
    with serving(root), Kubelet(root) as kubelet:
        assert kubelet.prepare(DRIVER, claims) == {claim(0).uid: (device(0),), claim(1).uid: (device(1),)}
        assert kubelet.unprepare(DRIVER, claims) == {claim(0).uid: None, claim(1).uid: None}
