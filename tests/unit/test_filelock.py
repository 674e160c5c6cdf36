"""Locks on files: who has them, and when they guard nothing any more."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from dradriver.filelock import FileLock


def test_one_at_a_time(tmp_path: Path) -> None:
    one, other = (FileLock(tmp_path / "lock") for _ in range(2))
    assert one.try_acquire()
    assert one.try_acquire(), "it is held already"
    assert not other.try_acquire()
    one.release()
    assert (one.held(), other.try_acquire()) == (False, True)


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        f"from dradriver.filelock import FileLock; from pathlib import Path; import time; "
        f"lock = FileLock(Path({str(path)!r})); print(lock.try_acquire(), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not FileLock(path).try_acquire()
        holder.kill()
    assert FileLock(path).try_acquire()


def test_a_lock_whose_file_is_gone_or_another_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path)
    assert lock.try_acquire()
    path.unlink()
    assert not lock.held()
    assert FileLock(path).try_acquire(), "nobody else is locked out"


def test_a_lock_on_a_file_that_its_last_holder_has_removed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, next_one = (FileLock(tmp_path / "lock") for _ in range(2))
    assert holder.try_acquire()
    flock = fcntl.flock

    def late(fd: int, operation: int) -> None:
        holder.release(remove=True)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert next_one.try_acquire()
    assert next_one.held()
    next_one.release(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_made_where_none_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "lock").try_acquire(create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        FileLock(tmp_path / "lock").try_acquire()
