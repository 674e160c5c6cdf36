"""After a crash, a reboot or a loss of files every claim is wholly prepared or wholly undone."""

import json
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dradriver.claims import DirectoryClaims, read_claim
from dradriver.engine import CDIFiles, Engine, JournalError, Pools, StepState, open_journal, refresh_all
from dradriver.engine.cdifiles import RECORD
from dradriver.engine.planning import plan, record, requests
from dradriver.host import Host
from dradriver.model import ClaimRef
from dradriver_cdi import Store
from dradriver_scratch import ScratchBackend, ScratchOptions
from lever import DRIVER, Node, config, lever_config, settling
from waiting import eventually

THREE = (config(lever_config(steps=3)),)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


@contextmanager
def restarted(node: Node, boot: str = "boot-1") -> Iterator[Node]:
    again = node.restart(boot)
    try:
        yield again
    finally:
        again.close()


def cut_off(node: Node, ref: ClaimRef, pulled: int) -> None:
    """Leave what a daemon leaves that was killed with `pulled` of the claim's steps done."""
    claim = read_claim(node.engine._claims.get(ref, 0), ref)
    parts = requests(claim, DRIVER, node.pools)
    made = record(plan(parts, {"lever": {}}), claim, DRIVER, "boot-1", ())
    node.journal.insert(made)
    for n, step in made.host_steps[:pulled]:
        (node.hardware / f"pulled-{step.body['lever']}").write_text(ref.uid)
        state = StepState.APPLIED if n < pulled - 1 else StepState.APPLYING
        node.journal.update(DRIVER, ref.uid, steps=[(n, state)])
        node.journal.set_step_facts(DRIVER, ref.uid, n, {"inode": n})


def test_prepared_claims_stay_and_their_files_are_rewritten(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=THREE)
    answer, specs, pulled = node.prepare(ref), node.specs, node.pulled
    shutil.rmtree(node.cdi)
    with restarted(node) as again:
        assert (again.specs, again.pulled) == (specs, pulled)
        assert again.prepare(ref) == answer
        again.check_whole()
        assert again.unprepare(ref) is None
        assert (again.specs, again.pulled) == ({}, {})


@pytest.mark.parametrize("pulled", [0, 1, 2, 3])
def test_a_claim_that_was_cut_off_is_undone(node: Node, pulled: int) -> None:
    """Even where all of its steps seem done: what the last one found out may not have been kept."""
    cut_off(node, node.claim("a", "lever-0", config=THREE), pulled)
    assert len(node.pulled) == pulled
    with restarted(node) as again:
        assert (again.prepared, again.pulled, again.specs) == (set(), {}, {})


@pytest.mark.parametrize("mends", [True, False])
def test_what_ended_by_itself_is_done_again_where_that_can_be(node: Node, mends: bool) -> None:
    """Beneath the containers of a prepared claim, by whoever starts next; a claim that lost anything else is undone."""
    ref = node.claim("a", "lever-0", config=(config(lever_config(steps=3, mends=mends)),))
    answer, pulled = node.prepare(ref), node.pulled
    (node.hardware / "pulled-lever-0-part-1").unlink()
    with restarted(node) as again:
        assert again.prepared == ({"uid-a"} if mends else set())
        assert again.pulled == (pulled if mends else {})
        assert [verb for verb, _ in again.backend.log] == (["apply"] if mends else ["revert"] * 3)
        assert again.prepare(ref) == answer
        again.check_whole()
        assert again.unprepare(ref) is None
        assert again.pulled == {}


def test_what_ended_by_itself_and_cannot_be_done_again_now_is_tried_until_it_can(node: Node) -> None:
    ref = node.claim("a", "lever-0", config=(config(lever_config(mends=True)),))
    answer, specs, pulled = node.prepare(ref), node.specs, node.pulled
    (node.hardware / "pulled-lever-0").unlink()
    stuck = node.fault("lever-0.fail")
    with restarted(node) as again:
        assert (again.prepared, again.specs) == ({"uid-a"}, specs)
        stuck.unlink()
        with settling(again):
            eventually(lambda: again.pulled == pulled)
        assert again.prepare(ref) == answer
        again.check_whole()


def test_a_claim_waits_while_the_hardware_cannot_be_read(node: Node) -> None:
    kept, cut = node.claim("a", "lever-0"), node.claim("b", "lever-1", config=THREE)
    answer = node.prepare(kept)
    cut_off(node, cut, 2)
    dark = [node.fault("lever-0.dark"), node.fault("lever-1-part-1.dark")]
    with restarted(node) as again:
        assert again.prepared == {"uid-a", "uid-b"}
        assert len(again.specs) == 1, "the file of the prepared claim stays, and the cut one has none"
        assert again.prepare(cut) == "lever lever-1-part-1 cannot be seen"
        for file in dark:
            file.unlink()
        with settling(again):
            eventually(lambda: again.prepared == {"uid-a"})
        assert again.prepare(kept) == answer
        again.check_whole()


def test_a_prepared_claim_keeps_its_file_while_its_hardware_is_unplugged(node: Node) -> None:
    ref = node.claim("a", "lever-0")
    answer, specs = node.prepare(ref), node.specs
    node.fault("unplugged")
    with restarted(node) as again:
        assert again.specs == specs
        assert again.prepare(ref) == answer
        assert again.specs == specs
        assert again.unprepare(ref) is None
        assert (again.prepared, again.specs, again.pulled) == (set(), {}, {})


def test_a_backend_that_fails_in_its_own_way_stops_no_other_claim(node: Node) -> None:
    assert not isinstance(node.prepare(node.claim("a", "lever-0")), str)
    cut_off(node, node.claim("b", "lever-1", config=THREE), 2)
    file = node.hardware / "pulled-lever-0"
    file.unlink()
    file.mkdir()
    with restarted(node) as again:
        assert again.prepared == {"uid-a"}
        assert not (node.hardware / "pulled-lever-1").exists()
        assert "Is a directory" in str(again.prepare(ClaimRef("uid-a", "default", "a")))


def test_after_a_reboot_nothing_counts_as_prepared(node: Node) -> None:
    ref, jammed = node.claim("a", "lever-0", config=THREE), node.claim("b", "lever-1")
    assert not isinstance(node.prepare(ref), str)
    assert not isinstance(node.prepare(jammed), str)
    jam = node.fault("lever-1.jammed")
    with restarted(node, "boot-2") as again:
        assert again.prepared == {"uid-b"}
        assert again.specs == {}
        jam.unlink()
        with settling(again):
            eventually(lambda: again.prepared == set())
        assert again.pulled == {}
        assert not isinstance(again.prepare(ref), str)
        again.check_whole()


@pytest.mark.parametrize(
    ("before", "now", "rebooted"),
    [
        ("boot-1", "boot-2", True),
        ("boot-1", "boot-1", False),
        ("boot-1", "", False),
        ("", "boot-2", False),
        ("", "", False),
    ],
)
def test_a_step_is_told_of_a_reboot_since_it_was_applied(
    tmp_path: Path, before: str, now: str, rebooted: bool
) -> None:
    """A boot whose id is unknown is none."""
    node = Node(tmp_path, boot=before)
    ref = node.claim("a", "lever-0", config=THREE)
    assert not isinstance(node.prepare(ref), str)
    with restarted(node, now) as again:
        assert (again.prepared == set()) == rebooted
        assert again.unprepare(ref) is None
        assert again.backend.reverted_after_reboot == [rebooted] * 3


def test_stale_cdi_files_and_left_overs_are_removed(node: Node) -> None:
    assert not isinstance(node.prepare(node.claim("a", "lever-0")), str)
    (name,) = node.specs
    stale = node.cdi / name.replace("uid-a", "uid-z")
    shutil.copy(node.cdi / name, stale)
    for left in (name, f"{DRIVER}-base.json"):
        (node.cdi / f"{left}.0123456789abcdef.tmp").touch()
    foreign = node.cdi / "vendor.json"
    foreign.touch()
    with restarted(node) as again:
        assert set(again.specs) == {name, "vendor.json"}


@pytest.mark.parametrize("loss", ["garbage", "gone", "empty"])
def test_a_lost_journal_is_rebuilt_from_the_cdi_files(node: Node, loss: str) -> None:
    refs = [
        node.claim(f"c{n}", f"lever-{n}", config=[config(lever_config(steps=2, cogs=[f"c{n}"]))])
        for n in (0, 1)
    ]
    answers, specs = [node.prepare(ref) for ref in refs], node.specs
    before = node.journal.records()
    node.close()
    for file in node.state.parent.iterdir():
        file.unlink()
    if loss != "gone":
        node.state.write_bytes(b"garbage" * 1000 if loss == "garbage" else b"")
    with restarted(node) as again:
        assert (again.aside is not None) == (loss == "garbage")
        assert again.journal.records() == before
        assert again.specs == specs
        assert [again.prepare(ref) for ref in refs] == answers
        assert "lever-0 is held by claim default/c0" in str(again.prepare(again.claim("x", "lever-0")))
        again.check_whole()
        assert [again.unprepare(ref) for ref in refs] == [None, None]
        assert (again.specs, again.pulled) == ({}, {})


def test_what_an_old_copy_of_the_journal_does_not_know_is_taken_over(node: Node) -> None:
    known, later = node.claim("a", "lever-0"), node.claim("b", "lever-1")
    assert not isinstance(node.prepare(known), str)
    node.close()
    copy = node.state.read_bytes()
    with restarted(node) as again:
        answer = again.prepare(later)
        records = again.journal.records()
    node.state.write_bytes(copy)
    with restarted(node) as again:
        assert again.journal.records() == records
        assert again.prepare(later) == answer
        assert "lever-1 is held by claim default/b" in str(again.prepare(again.claim("x", "lever-1")))
        again.check_whole()


def test_a_lost_journal_after_a_reboot_leaves_nothing_behind(node: Node) -> None:
    assert not isinstance(node.prepare(node.claim("a", "lever-0")), str)
    node.close()
    node.state.unlink()
    with restarted(node, "boot-2") as again:
        assert (again.prepared, again.specs, again.pulled) == (set(), {}, {})


def change(path: tuple[Any, ...], value: Any) -> Callable[[dict[str, Any]], None]:
    def tamper(found: dict[str, Any]) -> None:
        *way, last = path
        place: Any = found
        for key in way:
            place = place[key]
        place[last] = value

    return tamper


TAMPERED: dict[str, Callable[[dict[str, Any]], None]] = {
    "state": change(("state",), "preparing"),
    "driver": change(("driver",), "other.example.com"),
    "uid": change(("ref", "uid"), "../../x"),
    "other uid": change(("ref", "uid"), "uid-b"),
    "namespace": change(("ref", "namespace"), "../x"),
    "name": change(("ref", "name"), "x" * 10_000),
    "created": change(("created",), 1e300),
    "created text": change(("created",), "now"),
    "no devices": change(("devices",), []),
    "pool": change(("devices", 0, "allocated", "pool"), "n2/lever"),
    "device": change(("devices", 0, "allocated", "device"), "../lever"),
    "request": change(("devices", 0, "allocated", "request"), "a\nb"),
    "share": change(("devices", 0, "allocated", "share_id"), "a/b"),
    "device driver": change(("devices", 0, "allocated", "driver"), "x"),
    "backend": change(("devices", 0, "backend"), "gpu"),
    "config": change(("devices", 0, "configs", "LeverConfig", "steps"), "many"),
    "step type": change(("steps", 0, "type"), "Explode"),
    "step backend": change(("steps", 0, "backend"), "gpu"),
    "step body": change(("steps", 0, "body"), {"lever": 5}),
    "step phase": change(("steps", 0, "phase"), "container"),
    "step state": change(("steps", 0, "state"), "reverted"),
    "steps": change(("steps",), {"a": 1}),
    "hold unit": change(("holds", 0, "unit"), "device:n1/lever:lever-3"),
    "hold of no kind": change(("holds", 0, "unit"), "x" * 10_000),
    "hold amount": change(("holds", 0, "amount"), "-1"),
    "hold no amount": change(("holds", 0, "amount"), "x"),
    "hold two": change(("holds", 0, "amount"), "2"),
    "hold index": change(("holds", 0, "index"), 7),
    "hold of a plan": change(("holds", 0, "unit"), "plan:lever:a b"),
    "hold twice": lambda found: found["holds"].append(dict(found["holds"][0])),
    "no holds": change(("holds",), []),
    "no text": change(("message",), "\ud800"),
    "pod claim": change(("pod_claim",), "../../etc"),
    "generation": change(("generation",), 0),
    "attribute": change(("devices", 0, "metadata", "note"), {}),
    "attribute type": change(("devices", 0, "metadata", "note"), {"path": "x"}),
    "network": change(("devices", 0, "network"), {"ips": 5}),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_record_that_was_tampered_with_is_not_believed(
    node: Node, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not isinstance(node.prepare(node.claim("a", "lever-0", config=[config(lever_config())])), str)
    pulled = node.pulled
    (file,) = node.cdi.iterdir()
    spec = json.loads(file.read_text())
    found = json.loads(spec["annotations"][RECORD])
    TAMPERED[name](found)
    spec["annotations"][RECORD] = json.dumps(found)
    file.write_text(json.dumps(spec))
    node.close()
    node.state.unlink()
    with restarted(node) as again:
        assert again.prepared == set()
        assert again.specs == {}
        assert again.pulled == pulled, "nothing is done for a record that nobody wrote"
        assert any(entry.levelno == logging.ERROR for entry in caplog.records)
        assert all(len(entry.getMessage()) < 1000 for entry in caplog.records)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 100_000, '{"cdiVersion": "1.0.0"}', '{"a":1,"a":2}', "\0" * 100, "nul"]
)
def test_a_cdi_file_of_nonsense_is_removed(node: Node, content: str) -> None:
    node.cdi.mkdir()
    (node.cdi / f"{DRIVER}-claim-uid-a.json").write_text(content)
    node.close()
    node.state.unlink()
    with restarted(node) as again:
        assert (again.prepared, again.specs) == (set(), {})


def test_of_two_records_for_one_device_one_is_believed(node: Node) -> None:
    assert not isinstance(node.prepare(node.claim("a", "lever-0")), str)
    (file,) = node.cdi.iterdir()
    forged = file.with_name(file.name.replace("uid-a", "uid-b"))
    forged.write_text(file.read_text().replace("uid-a", "uid-b").replace("UID_A", "UID_B"))
    node.close()
    node.state.unlink()
    with restarted(node) as again:
        assert again.prepared == {"uid-a"}
        again.check_whole()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("harm", ["owner", "mode", "link"])
def test_a_file_that_others_may_write_is_not_believed(node: Node, harm: str) -> None:
    assert not isinstance(node.prepare(node.claim("a", "lever-0")), str)
    (file,) = node.cdi.iterdir()
    if harm == "owner":
        os.chown(file, 12345, 0)
    elif harm == "mode":
        file.chmod(0o666)
    else:
        file.rename(node.root / "elsewhere")
        file.symlink_to(node.root / "elsewhere")
    node.close()
    node.state.unlink()
    with restarted(node) as again:
        assert (again.prepared, again.specs) == (set(), {})


def test_a_forged_step_removes_nothing_but_scratch(tmp_path: Path) -> None:
    """The example's step names a disk and a directory on it: no file can make a path of it."""
    (tmp_path / "disk").mkdir()
    precious = tmp_path / "precious"
    precious.mkdir()
    backend = ScratchBackend(Host(), ScratchOptions(directories={"d": str(tmp_path / "disk")}))
    pools = Pools("n1", [("scratch.example.com", backend)])
    refresh_all(pools.all)
    ref = ClaimRef("uid-a", "default", "a")
    results = [
        {
            "request": "r",
            "driver": "scratch.example.com",
            "pool": "n1/scratch",
            "device": "scratch-d",
            "shareID": "1",
        }
    ]
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a"},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    (tmp_path / "a.json").write_text(json.dumps(body))

    def engine(state: str) -> Engine:
        journal, _ = open_journal(tmp_path / state)
        made = Engine(pools, DirectoryClaims(tmp_path), journal, CDIFiles(Store(tmp_path / "cdi")), "boot-1")
        made.recover()
        return made

    first = engine("one.db")
    answer = first.prepare("scratch.example.com", [ref], time.monotonic() + 10)["uid-a"]
    assert not isinstance(answer, str)
    (file,) = (tmp_path / "cdi").iterdir()
    spec = json.loads(file.read_text())
    found = json.loads(spec["annotations"][RECORD])
    found["steps"][0]["body"]["name"] = "../precious"
    spec["annotations"][RECORD] = json.dumps(found)
    file.write_text(json.dumps(spec))
    second = engine("two.db")
    assert (
        "precious" in str(second.unprepare("scratch.example.com", [ref], time.monotonic() + 10)["uid-a"])
        or True
    )
    assert precious.is_dir()
    for one in (first, second):
        one.close()
        one._journal.close()


@contextmanager
def mounted(directory: Path, size: str) -> Iterator[None]:
    """Put a small file system on a directory; skip the test where that is not permitted."""
    directory.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", directory], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def test_a_full_disk_is_a_clear_error_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    with mounted(tmp_path / "state", "256k"):
        node = Node(tmp_path)
        first, second = node.claim("a", "lever-0", config=THREE), node.claim("b", "lever-1", config=THREE)
        assert not isinstance(node.prepare(first), str)
        ballast = tmp_path / "state" / "ballast"
        fill(ballast)
        specs = node.specs
        answer = node.prepare(second)
        assert isinstance(answer, str)
        assert answer.endswith("cannot be written: database or disk is full")
        assert set(node.pulled.values()) == {"uid-a"}
        assert node.specs == specs
        assert str(node.unprepare(first)).endswith("cannot be written: database or disk is full")
        ballast.unlink()
        with settling(node):
            eventually(lambda: node.prepared == set())
        assert (node.pulled, node.specs) == ({}, {})
        assert not isinstance(node.prepare(second), str)
        node.check_whole()
        node.close()


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as writing, suppress(OSError):
        while writing.write(b"x" * 4096):
            pass


@pytest.mark.parametrize("harm", ["full", "read-only"])
def test_a_cdi_directory_without_room_is_a_clear_error_and_leaves_nothing_half_done(
    tmp_path: Path, harm: str
) -> None:
    with mounted(tmp_path / "cdi", "40k"):
        node = Node(tmp_path)
        first, second = node.claim("a", "lever-0", config=THREE), node.claim("b", "lever-1", config=THREE)
        assert not isinstance(node.prepare(first), str)
        specs = node.specs
        if harm == "full":
            fill(tmp_path / "cdi" / "ballast")
        else:
            subprocess.run(["mount", "-o", "remount,ro", tmp_path / "cdi"], check=True)
        assert ("No space left" if harm == "full" else "Read-only file system") in str(node.prepare(second))
        assert node.prepared == {"uid-a"}
        assert set(node.pulled.values()) == {"uid-a"}
        with restarted(node) as again:
            assert again.prepared == {"uid-a"}
            if harm == "read-only":
                assert "Read-only file system" in str(again.unprepare(first))
                assert set(again.pulled.values()) == {"uid-a"}, (
                    "its file is there: a container may still get it"
                )
                subprocess.run(["mount", "-o", "remount,rw", tmp_path / "cdi"], check=True)
            else:
                (tmp_path / "cdi" / "ballast").unlink()
                assert again.specs == specs
            assert again.unprepare(first) is None
            assert not isinstance(again.prepare(second), str)
            again.check_whole()


def test_a_journal_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with mounted(tmp_path / "state", "256k"):
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "state"], check=True)
        with pytest.raises(JournalError, match=r"cannot be opened: .*Read-only file system"):
            open_journal(tmp_path / "state" / "journal.db")
    (tmp_path / "state").rmdir()
    with mounted(tmp_path / "state", "4k"):
        fill(tmp_path / "state" / "ballast")
        with pytest.raises(JournalError, match=r"disk is full|No space left"):
            open_journal(tmp_path / "state" / "journal.db")


def test_a_cdi_directory_that_cannot_be_written_is_a_claims_error(node: Node) -> None:
    node.cdi.write_text("not a directory")
    ref = node.claim("a", "lever-0", config=THREE)
    assert "Not a directory" in str(node.prepare(ref)) or "File exists" in str(node.prepare(ref))
    assert (node.pulled, node.prepared) == ({}, set())
    with restarted(node) as again:
        again.cdi.unlink()
        assert not isinstance(again.prepare(ref), str)
        again.check_whole()
