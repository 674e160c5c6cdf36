"""The journal survives crashes, says clearly what is wrong with its file, and costs each claim the same."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import Phase
from dradriver.engine import (
    DeviceRecord,
    Journal,
    JournalError,
    Record,
    State,
    StepRecord,
    StepState,
    view_journal,
)
from dradriver.engine import open_journal as open_or_set_aside
from dradriver.engine.records import Hold
from dradriver.engine.schema import MIGRATIONS
from dradriver.model import Allocated, ClaimRef, NetworkData, Quantity


def record(uid: str = "uid-1", unit: str = "device:n1/lever:lever-0", amount: str = "1") -> Record:
    allocated = Allocated(
        "r/s", "d.example.com", "n1/lever", "lever-0", {"water": Quantity.parse("1Gi")}, "0a"
    )
    device = DeviceRecord(
        "lever",
        allocated,
        {"LeverConfig": {"steps": 2}},
        {"env": ["A=ü\u2028"]},
        {"v": {"version": "1.0.0"}},
        attributes={"v": {"version": "1.0.0"}, "numaNodes": {"ints": [0, 1]}},
        network=NetworkData("net1", ("10.9.8.7/24",), "02:00:00:00:00:01"),
    )
    step = StepRecord(
        "lever", "Pull", Phase.PREPARE, {"lever": "lever-0"}, StepState.APPLYING, {"id": 7}, "pull"
    )
    return Record(
        "d.example.com",
        ClaimRef(uid, "default", "a"),
        State.PREPARING,
        "boot-1",
        1234.5678,
        (device,),
        (step, replace(step, state=StepState.PLANNED, facts={})),
        (Hold(unit, 0, Quantity.parse(amount)),),
        pod_claim="gpus",
        generation=3,
    )


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[Journal]:
    journal = Journal(path, **options)
    try:
        yield journal
    finally:
        journal.close()


def test_what_is_written_is_read_back_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.db"
    with opened(path) as journal:
        journal.insert(record())
        journal.set_step_facts("d.example.com", "uid-1", 0, {"id": 8})
        journal.update(
            "d.example.com", "uid-1", state=State.PREPARED, steps=[(0, StepState.APPLIED)], message="m"
        )
        journal.set_fact("boot", "boot-1")
    with opened(path) as journal:
        expected = record()
        first = replace(expected.steps[0], state=StepState.APPLIED, facts={"id": 8})
        assert journal.records() == [
            replace(expected, state=State.PREPARED, message="m", steps=(first, expected.steps[1]))
        ]
        assert journal.fact("boot") == "boot-1"
        assert journal.get("d.example.com", "uid-2") is None
        journal.delete("d.example.com", "uid-1")
        assert journal.records() == []
        assert journal.taken("device:n1/lever:lever-0") == Quantity.parse("0")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "journal.db") as journal:
        with suppress(RuntimeError), journal.transaction():
            journal.insert(record("uid-1"))
            with journal.transaction():
                journal.insert(record("uid-2"))
            raise RuntimeError("no")
        assert journal.records() == []
        assert journal.taken("device:n1/lever:lever-0") == Quantity.parse("0")
        journal.insert(record("uid-1"))
        with pytest.raises(JournalError, match="UNIQUE"):
            journal.insert(record("uid-1"))
        assert journal.taken("device:n1/lever:lever-0") == Quantity.parse("1")


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_engine_journal import Journal, record
journal = Journal(Path(sys.argv[1]))
journal.insert(record("uid-1"))
with journal.transaction():
    journal.insert(record("uid-2"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    here = Path(__file__).resolve().parent
    done = subprocess.run([sys.executable, "-c", KILLED, path, here], check=False, timeout=60)
    assert done.returncode == -9
    journal, aside = open_or_set_aside(path)
    assert aside is None
    assert [found.ref.uid for found in journal.records()] == ["uid-1"]
    journal.close()


def test_a_later_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with opened(path) as journal:
        journal.insert(record())
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(JournalError, match="has schema 4, this version knows 3: run the newer version"):
        open_or_set_aside(path)
    with pytest.raises(JournalError, match="has schema 4, this version reads 3"):
        view_journal(path)
    assert [name.name for name in tmp_path.iterdir() if "unreadable" in name.name] == []


def test_an_earlier_schema_is_brought_forward_with_its_claims(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with opened(path) as journal:
        journal.insert(record())
    forward = (
        *MIGRATIONS,
        ("ALTER TABLE claim ADD COLUMN node TEXT NOT NULL DEFAULT 'n1'", "CREATE TABLE x (y)"),
    )
    with opened(path, migrations=forward) as journal:
        assert journal.records() == [record()]
        journal.insert(record("uid-2", "device:x"))
    with opened(path, migrations=forward) as journal:
        assert len(journal.records()) == 2


FIRST_DEVICE = {
    "backend": "lever",
    "allocated": {
        "request": "r",
        "driver": "lever.example.com",
        "pool": "n1/lever",
        "device": "lever-0",
        "consumed": {"water": "2Gi"},
        "share_id": None,
        "admin": False,
    },
    "configs": {},
    "edits": {"env": ["A=1"]},
    "metadata": {"note": {"string": "x"}},
    "base": False,
}
"""A device as the first version wrote it."""


def test_claims_of_the_first_schema_are_read_with_what_they_have(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal(path, MIGRATIONS[:1]).close()
    with closing(sqlite3.connect(path)) as db:
        row = (
            "lever.example.com",
            "uid-1",
            "default",
            "a",
            "prepared",
            "boot",
            1.5,
            json.dumps([FIRST_DEVICE]),
            "",
        )
        db.execute("INSERT INTO claim VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.commit()
    with opened(path) as journal:
        (found,) = journal.records()
        assert (found.pod_claim, found.generation) == ("", 1)
        (device,) = found.devices
        assert device.allocated.consumed == {"water": Quantity.parse("2Gi")}
        assert (device.metadata, device.attributes, device.network) == ({"note": {"string": "x"}}, {}, None)
        assert journal.told() == {("lever.example.com", "uid-1"): ""}


def test_what_the_api_server_was_told_is_kept_with_the_claim_and_forgotten_with_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with opened(path) as journal:
        journal.insert(record("uid-1"))
        journal.insert(record("uid-2", "device:x"))
        driver = record().driver
        journal.set_told({(driver, "uid-1"): "abc", (driver, "uid-3"): "gone"})
        assert journal.told() == {(driver, "uid-1"): "abc", (driver, "uid-2"): ""}
        assert journal.get(driver, "uid-1") == record("uid-1")
    with opened(path) as journal:
        assert journal.told()[driver, "uid-1"] == "abc"
        journal.delete(driver, "uid-1")
        journal.insert(record("uid-1"))
        assert journal.told()[driver, "uid-1"] == ""


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with opened(path) as journal:
        journal.insert(record())
    broken = (*MIGRATIONS, ("CREATE TABLE x (y)", "CREATE TABLE claim (z)"))
    with pytest.raises(JournalError, match="claim already exists"):
        Journal(path, broken)
    with opened(path) as journal:
        assert journal.records() == [record()]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"garbage" * 1000,
        lambda data: b"SQLite format 3\0" + b"\xff" * 4000,
        lambda data: data[: len(data) // 2],
        lambda data: data[:100],
        lambda data: data[:4096] + b"\0" * (len(data) - 4096),
        lambda data: data[:30] + b"\xff" * 40 + data[70:],
    ],
    ids=["garbage", "header only", "half", "first bytes", "zeroed", "damaged header"],
)
def test_an_unreadable_file_is_set_aside(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "journal.db"
    with opened(path) as journal:
        for n in range(50):
            journal.insert(record(f"uid-{n}", f"unit-{n}"))
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    for expected in (1, 2):
        journal, aside = open_or_set_aside(path)
        assert aside is not None
        assert aside.read_bytes() == damaged
        assert journal.records() == []
        assert journal.fact("boot") is None
        journal.insert(record())
        journal.close()
        assert len(
            [name for name in tmp_path.iterdir() if re.search(r"unreadable-\d{8}T\d{6}(-\d)?$", name.name)]
        ) == (expected)
        path.write_bytes(damaged)


def test_a_database_of_others_and_rows_of_nonsense_are_set_aside(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE claim (x)")
    db.close()
    journal, aside = open_or_set_aside(other)
    journal.close()
    assert aside is not None
    for change in (
        "UPDATE claim SET state = 'x'",
        "UPDATE step SET body = '{'",
        "UPDATE hold SET amount = 'x'",
    ):
        path = tmp_path / "journal.db"
        with opened(path) as journal:
            journal.insert(record())
        db = sqlite3.connect(path, isolation_level=None)
        db.execute(change)
        db.close()
        journal, aside = open_or_set_aside(path)
        assert journal.records() == []
        assert aside is not None
        journal.close()
        path.unlink()


@pytest.mark.parametrize("content", [b"", None])
def test_an_empty_or_absent_file_is_a_new_journal(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "journal.db"
    if content is not None:
        path.write_bytes(content)
    journal, aside = open_or_set_aside(path)
    assert (aside, journal.records(), journal.fact("boot")) == (None, [], None)
    journal.close()


def test_a_path_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    with pytest.raises(JournalError, match=r"journal .*/journal\.db cannot be opened: .*Is a directory"):
        open_or_set_aside(tmp_path / "journal.db")
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"cannot be opened"):
        open_or_set_aside(tmp_path / "file" / "journal.db")


def test_a_viewer_sees_whole_claims_while_the_daemon_writes(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with pytest.raises(JournalError, match="cannot be"):
        view_journal(path)
    with opened(path) as journal:
        journal.insert(record())
        view = view_journal(path)
        assert view.records() == [record()]
        with journal.transaction():
            journal.insert(record("uid-2"))
            assert [found.ref.uid for found in view.records()] == ["uid-1"]
        assert [found.ref.uid for found in view.records()] == ["uid-1", "uid-2"]
        assert len(view.holders("device:n1/lever:lever-0")) == 2
        assert view.taken("device:n1/lever:lever-0") == Quantity.parse("2")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            view._db.execute("DELETE FROM claim")
        view.close()
    view = view_journal(path)
    assert len(view.records()) == 2
    view.close()


def test_a_viewer_is_told_that_something_changed(tmp_path: Path) -> None:
    with opened(tmp_path / "journal.db") as journal, closing(view_journal(journal.path)) as view:
        versions = [view.version()]
        assert view.version() == versions[0]
        journal.insert(record())
        versions.append(view.version())
        journal.update("d.example.com", "uid-1", state=State.PREPARED)
        versions.append(view.version())
        assert view.states() == [("d.example.com", "uid-1", 1234.5678, "prepared")]
        with suppress(ZeroDivisionError), journal.transaction():
            journal.delete("d.example.com", "uid-1")
            1 / 0  # noqa: B018 - it fails
        assert view.version() == versions[-1]
        journal.delete("d.example.com", "uid-1")
        versions.append(view.version())
        assert len(set(versions)) == 4


def test_devices_are_those_of_the_driver_s_claims(tmp_path: Path) -> None:
    with opened(tmp_path / "journal.db") as journal:
        journal.insert(record())
        journal.insert(replace(record("uid-2"), driver="other.example.com"))
        journal.insert(replace(record("uid-3"), devices=()))
        allocated = [device.allocated for device in record().devices]
        assert journal.devices("d.example.com") == {(one.pool, one.device) for one in allocated}
        assert journal.devices("none.example.com") == frozenset()


RACER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_engine_journal import Journal, Quantity, record
journal = Journal(Path(sys.argv[1]))
won = 0
print("ready", flush=True)
sys.stdin.readline()
for n in range(50):
    with journal.transaction():
        unit = f"unit-{n}"
        if journal.taken(unit) == Quantity(0):
            journal.insert(record(f"uid-{n}-{sys.argv[3]}", unit))
            won += 1
        else:
            journal.insert(record(f"uid-{n}-{sys.argv[3]}", "shared"))
print(won)
"""


def test_two_processes_do_not_harm_each_other(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    here = Path(__file__).resolve().parent
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, path, here, str(n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    won = [int(racer.communicate("go\n", timeout=60)[0]) for racer in racers]
    assert sum(won) == 50
    journal, aside = open_or_set_aside(path)
    assert aside is None
    assert len(journal.records()) == 100
    assert journal.taken("shared") == Quantity.from_int(50)
    journal.close()


def test_no_statement_of_a_claim_reads_a_whole_table(tmp_path: Path) -> None:
    statements: list[str] = []
    with opened(tmp_path / "journal.db") as journal:
        journal._db.set_trace_callback(statements.append)
        journal.insert(record())
        journal.insert(record("uid-2"))
        journal.get("d.example.com", "uid-1")
        journal.taken("device:n1/lever:lever-0")
        journal.holders("device:n1/lever:lever-0")
        journal.held("plan:lever:")
        journal.update(
            "d.example.com", "uid-1", state=State.PREPARED, steps=[(0, StepState.APPLIED)], message="m"
        )
        journal.set_step_facts("d.example.com", "uid-1", 0, {"id": 8})
        journal.delete("d.example.com", "uid-1")
        journal._db.set_trace_callback(None)
        plans = {
            statement: [row[3] for row in journal._db.execute(f"EXPLAIN QUERY PLAN {statement}")]
            for statement in statements
            if statement.split()[0] in {"SELECT", "UPDATE", "DELETE", "INSERT"}
        }
    assert len(plans) > 12
    scans = {statement: steps for statement, steps in plans.items() if any("SCAN" in step for step in steps)}
    assert scans == {}
