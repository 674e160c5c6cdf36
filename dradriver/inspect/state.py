"""Checks of the state directory: room, lock, journal, claims that wait."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from dradriver.engine import JournalError, Record, State, view_journal
from dradriver.inspect.files import can_write, exists, is_directory, mount_of, nearest, size_text
from dradriver.inspect.result import Check, counted, error, ok, unknown, warning

_TOO_LITTLE, _LITTLE = 1 << 20, 64 << 20
"""Bytes: a journal of a thousand claims and its log take some 10 MiB."""

# File systems that end with the container or with the boot.
_FLEETING = {"overlay": "the container", "tmpfs": "this boot", "ramfs": "this boot"}


def check_state_directory(state: Path, mountinfo: str, *, own_directory: bool) -> list[Check]:
    """Check that the state can be written, that there is room, and that it lasts."""
    name, place = "state directory", nearest(state)
    if not is_directory(place):
        return [error(name, f"{place}: is not a directory", "remove what is there, or name another as state")]
    if not can_write(place):
        return [
            error(
                name,
                f"{place}: cannot be written",
                "run as root, mount it writable, or name another as state",
            )
        ]
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    seen = f"{state}: {'can be written' if state == place else 'will be made'}, {size_text(free)} free"
    if free < _TOO_LITTLE or (room.f_files and not room.f_favail):
        return [error(name, f"{seen}, {room.f_favail} inodes free", "make room: claims cannot be journalled")]
    if free < _LITTLE:
        return [warning(name, seen, "make room: claims are refused once the journal cannot grow")]
    mount = mount_of(mountinfo, place)
    end = _FLEETING.get(mount.kind) if mount else None
    if mount and end and not own_directory:
        return [
            warning(
                name,
                f"{seen}, on {mount.kind}, which ends with {end}",
                f"mount a directory of the host at {state}: what is prepared must be known after a restart",
            )
        ]
    return [ok(name, seen)]


def check_lock(lock: Path) -> tuple[Check, bool | None]:
    """Check who is active; return whether anybody is, None where that cannot be told.

    The lock is taken for a moment, shared; a daemon that starts at this very moment tries again 50 ms later.
    """
    name = "active instance"
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ok(name, f"none: {lock} was never taken"), False
    except OSError as problem:
        return unknown(name, f"{lock}: {problem.strerror}", "run as root"), None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(fd)
        return ok(name, f"process {holder}" if holder else "a process that cannot be seen from here"), True
    except OSError as problem:
        return unknown(name, f"{lock}: {problem.strerror}", "use a file system with locks for state"), None
    finally:
        os.close(fd)
    return ok(name, f"none: nobody holds {lock}"), False


def _holder(fd: int) -> int | None:
    """Return the process that holds the lock on an open file, as /proc/locks tells (proc_locks(5))."""
    status = os.fstat(fd)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    rows = (line.split() for line in lines)
    return next(
        (int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == wanted), None
    )


def check_journal(path: Path, boot: str | None) -> tuple[list[Check], list[Record] | None]:
    """Check the journal from end to end; return the claims in it, None where it cannot be read.

    boot   id of this boot; None where unknown
    """
    name = "journal"
    if not exists(path):
        return [ok(name, f"{path}: none yet")], []
    try:
        view = view_journal(path)
        try:
            view.check()
            records = view.records()
            written = view.fact("boot")
        finally:
            view.close()
    except (JournalError, ValueError) as problem:
        return [
            error(
                name,
                f"{problem}",
                "a damaged file is set aside when the daemon starts, and rebuilt from CDI files; one of another "
                "schema needs the version that wrote it",
            )
        ], None
    # A claim has a record with each driver that has prepared it.
    seen = f"{path}: sound, {counted(len({record.ref.uid for record in records}), 'claim')}"
    if records and boot and written and written != boot:
        first = warning(name, f"{seen}, of an earlier boot", "start the daemon, which settles them")
    else:
        first = ok(name, seen)
    return [first, *_waiting(records)], records


def _waiting(records: Sequence[Record]) -> list[Check]:
    waiting = [record for record in records if record.state is not State.PREPARED]
    if not waiting:
        return [ok("claims that wait", "none")] if records else []
    return [
        warning(
            "claims that wait",
            f"{record.ref} of {record.driver}: {record.state.value}"
            + (f": {record.message}" if record.message else ""),
            "nothing where it is at work this moment; else see what it says, and the daemon's log",
        )
        for record in waiting
    ]
