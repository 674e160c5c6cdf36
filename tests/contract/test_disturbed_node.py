"""What happens around the daemon: full and read-only disks, damaged journals, wiped directories, reboots, clocks.

The claims and the work are those of the crash points. After each disturbance every claim is wholly prepared or wholly
undone, what cannot be done is a clear error, and once the cause is gone the kubelet's repeat succeeds.
"""

import os
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from crashes import Bench, Scenario, Worker, directory, scenario, shares, some, worker
from dradriver.engine import JournalError
from dradriver.engine.schema import MIGRATIONS
from dradriver_fake import reboot
from waiting import eventually
from wholenode import Instance, active, cdi_files, check_nothing_left, hardware, tables

PAGE = 4096
SPLIT, GROUPED = scenario(grouped=False), scenario(grouped=True)
every_scenario = pytest.mark.parametrize("of", [SPLIT, GROUPED, shares()], ids=["split", "grouped", "shares"])


@pytest.fixture(scope="module")
def process() -> Iterator[Worker]:
    with worker() as made:
        yield made


@pytest.fixture
def root() -> Iterator[Path]:
    with directory() as made:
        yield made / "node"


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """Put a file system of 2 MiB on a directory; skip the test where that is not permitted."""
    directory.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(directory)]
    done = subprocess.run(mount, check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def remount(directory: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", directory], check=True)


def fill(directory: Path, pages: int) -> Path:
    """Leave so many pages free, after what was filled before."""
    ballast = directory / "ballast"
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(PAGE)):
            pass
    os.truncate(ballast, max(0, ballast.stat().st_size - pages * PAGE))
    return ballast


def stages(bench: Bench, *, every: bool, few: int = 4) -> Iterator[int]:
    """Put on the node what a process leaves that is killed after so many calls of the work, and yield that number."""
    numbers = range(len(bench.of.work) + 1)
    for number in numbers if every else some(numbers, few):
        bench.put_back(bench.fresh)
        bench.run(bench.of.work[:number], die=True)
        yield number


def calls(bench: Bench, instance: Instance, first: int = 0) -> list[str]:
    """Do the work from a call on; return the errors."""
    errors = []
    for verb, driver, names in bench.of.work[first:]:
        answers: dict[str, Any] = getattr(instance, verb)(driver, *names)
        doomed = {name for name in names if (driver, name) in bench.of.doomed}
        errors += [text for name, text in answers.items() if isinstance(text, str) and name not in doomed]
    return errors


def settle(bench: Bench, instance: Instance) -> None:
    """Assert that the engine finishes by itself what it could not do before."""

    def is_whole() -> bool:
        with suppress(AssertionError):
            bench.check_whole(instance)
            return True
        return False

    with instance.settling():
        eventually(is_whole)


NO_ROOM = "disk is full|No space left|disk I/O error"


@every_scenario
@pytest.mark.parametrize("when", ["before the start", "after the start"])
def test_a_disk_that_is_full_at_any_point_is_a_clear_error(
    of: Scenario, when: str, root: Path, process: Worker, everything: bool
) -> None:
    """The disk of journal and CDI files: with each page that is free, the work comes a little further."""
    with small_disk(root / "var"):
        bench = Bench(root, of, process)
        failed = 0
        for free in range(80) if everything else some(range(80), 3):
            bench.put_back(bench.fresh)
            ballast = fill(root / "var", free if when == "before the start" else 200)
            try:
                instance = Instance(bench.node).activate()
            except JournalError as error:
                errors = [str(error)]
            else:
                fill(root / "var", free)
                errors = calls(bench, instance)
                ballast.unlink()
                settle(bench, instance)
                instance.stop()
            ballast.unlink(missing_ok=True)
            failed += bool(errors)
            assert [error for error in errors if not re.search(NO_ROOM, error)] == []
            bench.check()
        assert failed


@every_scenario
def test_a_file_that_cannot_grow_at_any_point_is_a_clear_error(
    of: Scenario, root: Path, process: Worker, everything: bool
) -> None:
    """The same without root: the process may not write beyond a size."""
    bench = Bench(root, of, process)
    failed = 0
    for pages in range(1, 100) if everything else some(range(1, 100), 3):
        bench.put_back(bench.fresh)
        assert bench.run(of.work, file_limit=pages * PAGE)[0] == 0
        told = [answer for _, *key, answer in bench.told() if tuple(key) not in of.doomed]
        errors = [answer for answer in told if isinstance(answer, str)]
        failed += bool(errors)
        assert [error for error in errors if not re.search(f"{NO_ROOM}|File too large", error)] == []
        bench.check()
    assert failed


@every_scenario
def test_a_cdi_directory_that_becomes_read_only_is_a_clear_error(
    of: Scenario, root: Path, process: Worker, everything: bool
) -> None:
    with small_disk(root / "var" / "cdi"):
        bench = Bench(root, of, process)
        for number in stages(bench, every=everything):
            with active(bench.node) as instance:
                remount(bench.node.cdi, "ro")
                errors = calls(bench, instance, number)
                assert [error for error in errors if "Read-only file system" not in error] == []
                assert errors or number >= len(of.work) - 1, "the last call undoes what is not prepared"
                remount(bench.node.cdi, "rw")
                settle(bench, instance)
            bench.check()


@every_scenario
def test_a_state_directory_that_is_read_only_refuses_the_start(
    of: Scenario, root: Path, process: Worker, everything: bool
) -> None:
    with small_disk(root / "var" / "state"):
        bench = Bench(root, of, process)
        for number in stages(bench, every=everything):
            before = cdi_files(bench.node), hardware(bench.node)
            remount(bench.node.state, "ro")
            with pytest.raises(JournalError, match=r"Read-only file system|readonly database"):
                Instance(bench.node).activate()
            assert (cdi_files(bench.node), hardware(bench.node)) == before
            remount(bench.node.state, "rw")
            bench.check(of.work[:number])


def cut(keep: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * keep)]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "gone": lambda _: b"",
    "garbage": lambda data: b"garbage" * (len(data) // 7),
    "half": cut(0.5),
    "last byte": lambda data: data[:-1],
    "first page only": lambda data: data[:PAGE],
    "zeroed pages": lambda data: data[:PAGE] + bytes(len(data) - PAGE),
    "damaged page": lambda data: data[: 2 * PAGE] + b"\xff" * 200 + data[2 * PAGE + 200 :],
    "damaged header": lambda data: data[:30] + b"\xff" * 40 + data[70:],
}


@every_scenario
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_costs_no_claim(
    of: Scenario, damage: str, root: Path, process: Worker, everything: bool
) -> None:
    bench = Bench(root, of, process)
    for number in stages(bench, every=everything, few=2):
        journal = bench.node.state / "journal.db"
        with closing(sqlite3.connect(journal)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        journal.write_bytes(DAMAGES[damage](journal.read_bytes()))
        bench.check(of.work[:number])


@every_scenario
def test_a_journal_that_lost_its_latest_entries_costs_no_prepared_claim(
    of: Scenario, root: Path, process: Worker, everything: bool
) -> None:
    """It is a sound journal of an earlier time: what was prepared since is known from the CDI files."""
    bench = Bench(root, of, process)
    with active(bench.node):
        pass
    bench.fresh = bench.keep()
    preparing = [call for call in of.work if call[0] == "prepare"]
    for number in stages(bench, every=everything):
        if number <= len(preparing):
            for suffix in ("-wal", "-shm"):
                bench.node.state.joinpath(f"journal.db{suffix}").unlink(missing_ok=True)
            bench.check(of.work[:number])


@every_scenario
def test_a_journal_of_a_newer_schema_is_left_as_it_is(
    of: Scenario, root: Path, process: Worker, everything: bool
) -> None:
    bench = Bench(root, of, process)
    for number in stages(bench, every=everything):
        journal = bench.node.state / "journal.db"
        set_schema(journal, len(MIGRATIONS) + 1)
        before = cdi_files(bench.node), hardware(bench.node), tables(bench.node)
        with pytest.raises(JournalError, match="run the newer version again"):
            Instance(bench.node).activate()
        assert (cdi_files(bench.node), hardware(bench.node), tables(bench.node)) == before
        assert [file.name for file in bench.node.state.iterdir() if "unreadable" in file.name] == []
        set_schema(journal, len(MIGRATIONS))
        bench.check(of.work[:number])


def set_schema(journal: Path, version: int) -> None:
    with closing(sqlite3.connect(journal, isolation_level=None)) as db:
        db.execute(f"PRAGMA user_version = {version}")


@every_scenario
def test_a_wiped_cdi_directory_is_filled_again(
    of: Scenario, root: Path, process: Worker, everything: bool
) -> None:
    bench = Bench(root, of, process)
    for number in stages(bench, every=everything):
        bench.node.wipe_cdi()
        with active(bench.node) as instance:
            bench.check_promises(instance, of.work[:number])
            bench.check_whole(instance)
            bench.node.wipe_cdi()
            bench.check_repeat(instance)


@every_scenario
@pytest.mark.parametrize("wiped", [True, False])
def test_after_a_reboot_nothing_counts_as_prepared(
    of: Scenario, wiped: bool, root: Path, process: Worker, everything: bool
) -> None:
    """At any point of the work, not only between the calls."""
    bench = Bench(root, of, process)
    _, passed = bench.run(of.work)
    points = range(1, len(passed) + 1)
    for fatal in points if everything else some(points, 3):
        bench.put_back(bench.fresh)
        bench.run(of.work, fatal=fatal)
        reboot(bench.node.host_root)
        if wiped:
            bench.node.wipe_cdi()
        with active(bench.node) as instance:
            check_nothing_left(bench.node)
            bench.check_repeat(instance)


@every_scenario
def test_jumps_of_the_clock_change_nothing(
    of: Scenario, root: Path, process: Worker, everything: bool
) -> None:
    """By years, forward and back, before each call; the checks are made at the time that it is."""
    bench = Bench(root, of, process)
    bench.run(of.work)
    told = bench.told()
    years = [10, -30, 20, -5, 40, -50]
    jumping = [[*call, years[n % len(years)] * 365 * 86400.0] for n, call in enumerate(of.work)]
    bench.put_back(bench.fresh)
    _, passed = bench.run(jumping)
    assert bench.told() == told
    bench.check(jumping)
    points = range(1, len(passed) + 1)
    for fatal in points if everything else some(points, 3):
        bench.put_back(bench.fresh)
        bench.run(jumping, fatal=fatal)
        bench.check(jumping)
