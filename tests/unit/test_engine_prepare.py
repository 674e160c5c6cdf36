"""A claim is prepared wholly or not at all, once however often it is asked for, and undone without a trace."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dradriver.model import ClaimRef
from lever import DRIVER, Node, config, lever_config, result, settling
from waiting import eventually


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


THREE = (config(lever_config(steps=3)),)


def test_a_claim_gets_its_levers_a_cdi_file_and_an_answer(node: Node) -> None:
    ref = node.claim("a", "lever-0", "lever-1", config=THREE)
    answer = node.prepare(ref)
    assert not isinstance(answer, str)
    assert [(device.device, device.requests, device.cdi_ids) for device in answer] == [
        ("lever-0", ("r",), (f"{DRIVER}/claim=uid-a-0",)),
        ("lever-1", ("r",), (f"{DRIVER}/claim=uid-a-1",)),
    ]
    assert set(node.pulled) == {f"lever-{n}{part}" for n in (0, 1) for part in ("", "-part-1", "-part-2")}
    (spec,) = map(json.loads, node.specs.values())
    inodes = [(node.hardware / f"pulled-{lever}").stat().st_ino for lever in node.pulled]
    env = spec["devices"][0]["containerEdits"]["env"]
    assert env[0].startswith("DRADRIVER_LEVER_EXAMPLE_COM_UID_A_0=lever-0")
    assert env[1:] == ["LEVER_0=lever-0", f"INODES={':'.join(map(str, inodes))}"]
    node.check_whole()
    assert node.unprepare(ref) is None
    assert (node.pulled, node.specs, node.prepared) == ({}, {}, set())


def test_a_repeat_gives_the_same_answer_and_the_same_file_and_does_nothing(node: Node) -> None:
    ref = node.claim("a", "lever-1", "lever-0", config=[config(lever_config(steps=2, cogs=["b", "a"]))])
    answer, specs = node.prepare(ref), node.specs
    done = list(node.backend.log)
    assert node.prepare(ref) == answer
    assert node.specs == specs
    assert node.backend.log == done
    again = node.restart()
    assert again.prepare(ref) == answer
    assert again.specs == specs
    again.close()


def test_concurrent_calls_for_one_claim_do_one_work(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=THREE)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(node.prepare, [ref] * 16))
    assert not isinstance(answers[0], str)
    assert all(answer == answers[0] for answer in answers)
    assert [verb for verb, _ in node.backend.log] == ["apply"] * 3
    node.check_whole()


def test_claims_of_one_call_are_independent(node: Node) -> None:
    refs = [node.claim(f"c{n}", f"lever-{n}") for n in range(4)]
    node.fault("lever-2.fail")
    lost = ClaimRef("uid-lost", "default", "lost")
    answers = node.engine.prepare(DRIVER, [*refs, lost], time.monotonic() + 20)
    assert [uid for uid, answer in answers.items() if isinstance(answer, str)] == ["uid-c2", "uid-lost"]
    assert answers["uid-c2"] == "lever lever-2 is stuck"
    assert "no such claim" in str(answers["uid-lost"])
    assert node.prepared == {"uid-c0", "uid-c1", "uid-c3"}
    node.check_whole()
    undone = node.engine.unprepare(DRIVER, [*refs, lost], time.monotonic() + 20)
    assert set(undone.values()) == {None}
    assert (node.pulled, node.specs, node.prepared) == ({}, {}, set())


@pytest.mark.parametrize("failing", ["lever-0", "lever-0-part-1", "lever-1-part-2"])
def test_a_step_that_fails_has_all_steps_before_it_undone_in_reverse(node: Node, failing: str) -> None:
    ref = node.claim("a", "lever-0", "lever-1", config=THREE)
    fault = node.fault(f"{failing}.fail")
    assert node.prepare(ref) == f"lever {failing} is stuck"
    assert (node.pulled, node.specs, node.prepared) == ({}, {}, set())
    applied = [lever for verb, lever in node.backend.log if verb == "apply"]
    assert [lever for verb, lever in node.backend.log if verb == "revert"] == applied[::-1]
    fault.unlink()
    assert not isinstance(node.prepare(ref), str)
    node.check_whole()


def test_a_busy_device_is_tried_again_within_the_call(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=THREE)
    node.fault("lever-0-part-1.busy", "once\ntwice\n")
    assert not isinstance(node.prepare(ref), str)
    assert node.backend.log.count(("apply", "lever-0-part-1")) == 3
    node.check_whole()


def test_a_device_that_stays_busy_until_the_deadline_leaves_nothing(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=THREE)
    node.fault("lever-0-part-2.busy")
    assert node.prepare(ref, seconds=2.0) == "lever lever-0-part-2 is busy"
    assert (node.pulled, node.specs, node.prepared) == ({}, {}, set())


def test_a_call_whose_time_is_over_does_nothing(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    assert "time of the call was over" in str(node.prepare(ref, seconds=-1.0))
    assert node.backend.log == []
    assert node.prepared == set()


@pytest.mark.parametrize("steps", [0, 3])
def test_a_check_is_made_before_all_steps_and_never_again(node: Node, steps: int) -> None:
    ref = node.claim("a", "lever-0", config=(config(lever_config(steps=steps, checked=True)),))
    node.fault("lever-0.stiff", "once\n")
    answer = node.prepare(ref)
    assert not isinstance(answer, str)
    assert [verb for verb, _ in node.backend.log] == ["look", "look"] + ["apply"] * steps
    assert node.prepare(ref) == answer
    assert node.unprepare(ref) is None
    assert node.backend.log.count(("look", "lever-0")) == 2


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shut", "lever lever-0 is shut in"),
        ("stiff", "lever lever-0 is stiff"),
        ("stuck", "see that lever lever-0 can be pulled"),
    ],
)
def test_a_claim_whose_check_fails_is_refused_and_leaves_nothing(
    node: Node, fault: str, message: str, steps: int
) -> None:
    ref = node.claim("a", "lever-0", config=(config(lever_config(steps=steps, checked=True)),))
    file = node.fault(f"lever-0.{fault}")
    assert message in str(node.prepare(ref, seconds=2.0))
    assert (node.pulled, node.specs) == ({}, {})
    file.unlink()
    eventually(lambda: not isinstance(node.prepare(ref), str))
    node.check_whole()
    assert node.unprepare(ref) is None
    assert (node.pulled, node.specs, node.prepared) == ({}, {}, set())


def test_a_hanging_step_is_left_alone_until_it_ends_and_then_settled(node: Node) -> None:
    ref, other = node.claim("a", "lever-0", config=THREE), node.claim("b", "lever-1")
    hang = node.fault("lever-0-part-1.hang")
    assert "did not answer in time" in str(node.prepare(ref, seconds=2.0))
    assert "still running" in str(node.prepare(ref))
    assert "still running" in str(node.unprepare(ref))
    assert "lever-0 is held by claim default/a (uid-a)" in str(node.prepare(node.claim("c", "lever-0")))
    assert not isinstance(node.prepare(other), str)
    hang.unlink()
    eventually(lambda: "lever-0-part-1" in node.pulled)
    with settling(node):
        eventually(lambda: "uid-a" not in node.prepared)
    node.check_whole()
    # The fact that the step recorded late was there when it was undone.
    assert all("inode" in facts for facts in node.backend.reverted_with)
    assert not isinstance(node.prepare(ref), str)
    node.check_whole()


def test_when_the_last_step_hung_the_repeat_prepares_anew(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    hang = node.fault("lever-0.hang")
    assert "did not answer in time" in str(node.prepare(ref, seconds=2.0))
    hang.unlink()
    eventually(lambda: not isinstance(node.prepare(ref), str))
    assert [verb for verb, _ in node.backend.log] == ["apply", "revert", "apply"]
    node.check_whole()


def test_unprepare_after_a_hang_undoes_everything(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=THREE)
    hang = node.fault("lever-0-part-2.hang")
    assert "did not answer in time" in str(node.prepare(ref, seconds=2.0))
    hang.unlink()
    eventually(lambda: node.unprepare(ref) is None)
    assert (node.pulled, node.specs, node.prepared) == ({}, {}, set())


def test_what_cannot_be_undone_stays_held_until_it_can(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=THREE)
    node.fault("lever-0-part-2.fail")
    jam = node.fault("lever-0.jammed")
    assert node.prepare(ref) == "lever lever-0-part-2 is stuck"
    assert node.pulled == {"lever-0": "uid-a"}
    assert node.specs == {}
    (record,) = node.journal.records()
    assert (record.state.value, record.message) == ("unpreparing", "lever lever-0 does not come back")
    other = node.claim("b", "lever-0")
    assert node.prepare(other) == "device lever-0 is held by claim default/a (uid-a)"
    assert node.unprepare(ref) == "lever lever-0 does not come back"
    jam.unlink()
    with settling(node):
        eventually(lambda: node.prepared == set())
    assert node.pulled == {}
    assert not isinstance(node.prepare(other), str)
    node.check_whole()


def test_retries_of_one_claim_leave_the_others_alone(node: Node) -> None:
    """A pod that runs must not lose its device because another claim could not be undone."""
    running, jammed = node.claim("a", "lever-0"), node.claim("b", "lever-1")
    assert not isinstance(node.prepare(running), str)
    assert not isinstance(node.prepare(jammed), str)
    jam = node.fault("lever-1.jammed")
    assert "does not come back" in str(node.unprepare(jammed))
    (node.hardware / "pulled-lever-0").unlink()
    jam.unlink()
    with settling(node):
        eventually(lambda: "uid-b" not in node.prepared)
    assert node.prepared == {"uid-a"}
    assert ("revert", "lever-0") not in node.backend.log


def test_a_slow_way_back_is_tried_again_within_the_call(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    assert not isinstance(node.prepare(ref), str)
    node.fault("lever-0.sticky", "once\n")
    assert node.unprepare(ref) is None
    assert node.pulled == {}


def test_an_unexpected_failure_of_a_backend_is_named_and_undone(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=THREE)
    (node.hardware / "pulled-lever-0-part-1").write_text("somebody")
    assert node.prepare(ref) == "internal error (RuntimeError), see the log of dradriver"
    assert node.prepared == set()
    assert node.specs == {}


def test_a_repeat_after_the_cdi_directory_was_wiped_writes_the_file_again(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    answer, specs = node.prepare(ref), node.specs
    shutil.rmtree(node.cdi)
    assert node.prepare(ref) == answer
    assert node.specs == specs


def test_a_repeat_that_finds_the_lever_gone_prepares_anew(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=THREE)
    answer = node.prepare(ref)
    (node.hardware / "pulled-lever-0-part-1").unlink()
    assert node.prepare(ref) == answer
    assert node.backend.log.count(("apply", "lever-0")) == 2
    node.check_whole()


def test_a_repeat_while_the_hardware_cannot_be_read_is_refused_and_changes_nothing(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    answer, specs = node.prepare(ref), node.specs
    dark = node.fault("lever-0.dark")
    assert node.prepare(ref) == "lever lever-0 cannot be seen"
    assert node.specs == specs
    dark.unlink()
    assert node.prepare(ref) == answer
    node.check_whole()


def test_a_repeat_for_a_device_that_is_gone_is_an_error_and_unprepare_still_works(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    assert not isinstance(node.prepare(ref), str)
    (node.hardware / "lever-0").unlink()
    for pool in node.pools.all:
        pool.refresh()
    assert node.prepare(ref) == "device 'lever-0' of pool n1/lever is no longer on this node"
    (node.files / "a.json").unlink()
    assert node.unprepare(ref) is None
    assert (node.pulled, node.specs, node.prepared) == ({}, {}, set())


def test_a_repeat_does_not_depend_on_the_claims_source(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    answer = node.prepare(ref)
    (node.files / "a.json").unlink()
    assert node.prepare(ref) == answer


def test_a_claim_that_was_allocated_anew_gets_its_new_device(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    assert not isinstance(node.prepare(ref), str)
    answer = node.prepare(node.claim("a", "lever-1"))
    assert not isinstance(answer, str)
    assert [device.device for device in answer] == ["lever-1"]
    assert node.pulled == {"lever-1": "uid-a"}
    node.check_whole()


def test_a_uid_belongs_to_one_claim(node: Node) -> None:
    assert not isinstance(node.prepare(node.claim("a", "lever-0")), str)
    stranger = ClaimRef("uid-a", "elsewhere", "b")
    assert node.prepare(stranger) == "uid uid-a was prepared for another claim, default/a (uid-a)"
    assert node.prepared == {"uid-a"}


def test_unprepare_of_a_claim_never_seen_is_a_success(node: Node) -> None:
    assert node.unprepare(ClaimRef("uid-x", "default", "x")) is None
    assert node.unprepare(ClaimRef("../../etc/passwd\n", "default", "x")) is None
    assert node.unprepare(ClaimRef("x" * 10_000, "", "\ud800")) is None


@pytest.mark.parametrize(
    "ref",
    [
        ClaimRef("../../etc", "default", "a"),
        ClaimRef("", "default", "a"),
        ClaimRef("uid", "../x", "a"),
        ClaimRef("uid", "default", "a\nb"),
        ClaimRef("uid", "default", "x" * 10_000),
        ClaimRef("\ud800", "default", "a"),
    ],
)
def test_names_that_no_claim_has_are_refused_in_a_short_line(node: Node, ref: ClaimRef) -> None:
    answer = node.prepare(ref)
    assert isinstance(answer, str)
    assert answer.isprintable()
    assert len(answer) < 300
    assert node.prepared == set()
    assert not node.cdi.exists()


def test_a_device_that_appeared_since_the_last_probe_is_found_by_looking_once(node: Node) -> None:
    told: list[str] = []
    node.engine._changed = lambda pool: told.append(pool.name)
    (node.hardware / "lever-9").touch()
    probes = node.backend.probes
    assert not isinstance(node.prepare(node.claim("a", "lever-9")), str)
    assert node.backend.probes == probes + 1
    assert told == ["n1/lever"]


def test_a_device_that_is_nowhere_is_an_error_after_looking_once(node: Node) -> None:
    probes = node.backend.probes
    ref = node.claim("a", "lever-77", "lever-78")
    assert node.prepare(ref) == "device 'lever-77' of pool n1/lever is not on this node"
    assert node.backend.probes == probes + 1
    node.fault("unplugged")
    assert node.prepare(ref) == (
        "device 'lever-77' of pool n1/lever is not on this node (the levers are unplugged)"
    )


def test_a_wrong_configuration_costs_no_probe(node: Node) -> None:
    probes = node.backend.probes
    answer = node.prepare(node.claim("a", "lever-0", config=[config(lever_config(bad=1))]))
    assert "unknown field 'bad'" in str(answer)
    assert node.backend.probes == probes


def test_results_of_other_drivers_are_passed_over(node: Node) -> None:
    foreign = result("gpu-0", driver="gpu.example.com", pool="elsewhere")
    ref = node.claim("a", foreign, "lever-0", result("x" * 10_000, driver="other"))
    answer = node.prepare(ref)
    assert not isinstance(answer, str)
    assert [device.device for device in answer] == ["lever-0"]
    assert node.prepare(node.claim("b", foreign)) == ()
    assert node.unprepare(node.claim("b", foreign)) is None
    node.check_whole()


def test_a_pool_of_another_node_is_refused(node: Node) -> None:
    answer = node.prepare(node.claim("a", result("lever-0", pool="n2/lever")))
    assert answer == "pool 'n2/lever' is not one of this node's, which are n1/lever, n1/ratchet"


def test_what_is_prepared_is_passed_on_with_the_claim_as_it_was_read(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=THREE)
    node.prepare(ref)
    ((record, obj),) = node.told
    assert record == node.journal.get(DRIVER, ref.uid)
    assert obj["metadata"]["uid"] == ref.uid
    node.prepare(ref)
    (node.files / "a.json").unlink()
    node.prepare(ref)
    assert [found for found, _ in node.told] == [record] * 3
    assert [read is None for _, read in node.told] == [False, False, True]
    node.fault("lever-1.fail")
    node.prepare(node.claim("b", "lever-1"))
    node.prepare(node.claim("c"))
    node.unprepare(ref)
    assert len(node.told) == 3


def test_a_claim_that_says_nothing_now_is_passed_on_as_it_was_read(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    answer = node.prepare(ref)
    body = json.loads((node.files / "a.json").read_text())
    (node.files / "a.json").write_text(json.dumps(body | {"status": {}}))
    assert node.prepare(ref) == answer
    assert [obj["status"] for _, obj in node.told] == [body["status"], {}]


def test_whoever_it_is_passed_on_to_cannot_fail_the_claim(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(record: object, obj: object) -> None:
        raise RuntimeError("no")

    node.engine._prepared = fail
    assert not isinstance(node.prepare(node.claim("a", "lever-0")), str)
    assert "is prepared, and not passed on" in caplog.text


def test_share_ids_and_alternatives_are_answered_as_the_kubelet_wants_them(node: Node) -> None:
    (node.hardware / "tank-0").touch()
    share = result("tank-0", request="big/second", shareID="0b7f", consumedCapacity={"water": "2Gi"})
    answer = node.prepare(node.claim("a", share))
    assert not isinstance(answer, str)
    assert (answer[0].requests, answer[0].share_id) == (("big",), "0b7f")
    assert node.prepare(node.claim("a", share)) == answer


@pytest.mark.parametrize("request_name", ["", "a/b/c", "../x", "a\nb", "x" * 10_000, "r/", "\ud800"])
def test_hostile_request_names_are_refused(node: Node, request_name: str) -> None:
    answer = node.prepare(node.claim("a", result("lever-0", request=request_name)))
    assert isinstance(answer, str)
    assert answer.isprintable()
    assert len(answer) < 400
    assert node.prepared == set()


def test_after_close_calls_are_refused_with_a_reason(node: Node) -> None:
    node.engine.close()
    assert node.prepare(node.claim("a", "lever-0")) == "dradriver is stopping on this node"


def test_a_step_that_waits_hears_that_the_daemon_stops(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    node.fault("lever-0.busy")
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(node.prepare, ref)
        eventually(lambda: node.backend.log)
        node.engine.close()
        assert call.result(10) == "lever lever-0 is busy"
    assert node.prepared == set()


def test_the_base_file_holds_what_every_container_needs(tmp_path: Path) -> None:
    node = Node(tmp_path, base="one")
    ref = node.claim("a", "lever-0")
    answer = node.prepare(ref)
    assert not isinstance(answer, str)
    assert answer[0].cdi_ids == (f"{DRIVER}/claim=uid-a-0", f"{DRIVER}/base=lever")
    base = f"{DRIVER}-base.json"
    assert "BASE=one" in node.specs[base]
    # The answer stays, and what it names stays, when the hardware is not there after a restart.
    node.fault("unplugged")
    again = node.restart()
    assert "BASE=one" in again.specs[base]
    assert again.prepare(ref) == answer
    assert again.unprepare(ref) is None
    (tmp_path / "hardware" / "unplugged").unlink()
    again.options = type(again.options)(directory=str(again.hardware))
    last = again.restart()
    assert last.specs == {}
    last.close()
