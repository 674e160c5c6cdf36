"""A root directory in which the driver's files are looked for."""

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dradriver.host import Host

_SETTLED_NANOSECONDS = 1_000_000_000
"""Age from which on the time of a directory's last change tells of every later change: clocks tick coarsely."""

_Seen = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class File:
    """Something that was found, all links followed inside the root directory.

    host_path   where the container runtime finds it: absolute, on the host
    path        where this process finds it
    status      what stat(2) says of it
    """

    host_path: str
    path: Path
    status: os.stat_result

    @property
    def is_plain(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_program(self) -> bool:
        """Whether it is a file that can be executed."""
        return self.is_plain and bool(self.status.st_mode & 0o111)


class Tree:
    """The files below a root directory, links followed as if it were `/`, so that none leads out of it.

    It remembers what it was asked for, and so can tell at the price of a few stat(2) whether anything of that changed.
    """

    def __init__(self, host: Host, root: str = "/") -> None:
        """Look at `root` on the host; it need not be there."""
        self._host = host
        self._root = root
        self._begun = time.time_ns()
        self._place = self._find()
        self._inside = host if self._is_host else Host(Path(host.root, self._place or root.lstrip("/")))
        self._directories: dict[str, str | None] = {}
        self._seen: dict[str, _Seen] = {}

    @property
    def _is_host(self) -> bool:
        return not self._root.strip("/")

    def _find(self) -> str | None:
        return "" if self._is_host else self._host.resolve(self._root)

    def directory(self, path: str) -> str | None:
        """Return a directory's path below the root, links followed; None where there is none."""
        if self._place is None or any(self._directories.get(above, "") is None for above in _above(path)):
            return None
        if path not in self._directories:
            seen = self._look(path)
            found = self._inside.resolve(path) if seen else None
            self._directories[path] = found if found is not None and self._at(found).is_dir() else None
        return self._directories[path]

    def names(self, directory: str) -> tuple[str, ...]:
        """Return the sorted names in a directory; none where there is no such directory."""
        return self._inside.list_dir(directory) if self.directory(directory) is not None else ()

    def find(self, path: str, *, alone: bool = False) -> File | None:
        """Return what is at a path; None where nothing is.

        alone   whether it is the only thing looked for in a directory in which much comes and goes
        """
        if alone:
            self._look(path)
        elif self.directory(path.rpartition("/")[0]) is None:
            return None
        found = self._inside.resolve(path)
        if found is None:
            if self._inside.read_link(path) is not None:
                self._look(path)  # what it points to may come
            return None
        self._look(path)
        return self._file(found)

    def within(self, directory: str, name: str) -> File | None:
        """Return the regular file of that name in a directory whose names were asked for: its change tells of this."""
        found = self._inside.resolve(f"{directory}/{name}")
        file = self._file(found) if found is not None and self._place is not None else None
        return file if file and file.is_plain else None

    def _file(self, found: str) -> File | None:
        path = self._at(found)
        host_path = "/".join(("", *filter(None, (self._place, found))))
        try:
            host_path.encode()  # bytes that are no text have no place in a CDI file
            return File(host_path, path, path.stat())
        except (OSError, UnicodeEncodeError):
            return None

    def is_link(self, path: str) -> bool:
        """Return whether the last part of a path is a symbolic link."""
        return self._inside.read_link(path) is not None

    def file(self, path: str) -> File | None:
        """Return the regular file at a path."""
        found = self.find(path)
        return found if found and found.is_plain else None

    def relative(self, path: Path) -> str | None:
        """Return a path of this process as one below the root; None for one that is not there."""
        base = Path(self._at(""))
        return str(path.relative_to(base)) if path.is_relative_to(base) else None

    def changed(self) -> bool:
        """Return whether something of what was asked for is, or may be, otherwise now."""
        if self._place != self._find():
            return True
        newest = self._begun - _SETTLED_NANOSECONDS
        for path, seen in self._seen.items():
            if seen is not None and seen[2] > newest:
                return True
            if self._status(path) != seen:
                return True
        return False

    def _look(self, path: str) -> _Seen:
        if path not in self._seen:
            self._seen[path] = self._status(path)
        return self._seen[path]

    def _status(self, path: str) -> _Seen:
        try:
            status = os.stat(self._inside.path(path))  # noqa: PTH116 - faster, and asked dozens of times a probe
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def _at(self, found: str) -> Path:
        return Path(self._inside.root, found)


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a path: in one that is not there nothing need be looked for."""
    while path:
        path = path.rpartition("/")[0]
        yield path
