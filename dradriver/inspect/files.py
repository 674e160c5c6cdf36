"""What checks ask of directories and mounts."""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo (proc_pid_mountinfo(5)): `root` of its file system is seen at `point`."""

    root: PurePosixPath
    point: PurePosixPath
    kind: str


def mount_of(mountinfo: str, path: Path) -> Mount | None:
    """Return the mount that holds `path`; None where the text names none. Later mounts hide earlier ones."""
    found: Mount | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.partition(" ")[0]
        if len(fields) < 6 or not kind:
            continue
        point = PurePosixPath(_unescaped(fields[4]))
        if path.is_relative_to(point) and (found is None or point.is_relative_to(found.point)):
            found = Mount(PurePosixPath(_unescaped(fields[3])), point, kind)
    return found


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def exists(path: Path) -> bool:
    """Return whether something is there; nothing is where this process may not look."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists() raises there


def is_directory(path: Path) -> bool:
    """Return whether a directory is there, as `exists` does."""
    return os.path.isdir(path)  # noqa: PTH112 - as above


def nearest(path: Path) -> Path:
    """Return `path`, or the nearest directory above it that exists."""
    while not exists(path) and path != path.parent:
        path = path.parent
    return path


def can_write(directory: Path) -> bool:
    """Return whether this process may make files in a directory; a read-only file system counts."""
    return os.access(directory, os.W_OK | os.X_OK)


def size_text(size: int | None) -> str:
    """Return a number of bytes for people, as `7.5 GiB`."""
    if size is None:
        return "unknown"
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.1f} {unit}" if amount % 1 >= 0.05 and unit != "B" else f"{round(amount)} {unit}"
