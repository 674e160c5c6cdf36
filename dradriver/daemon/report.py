"""What the active daemon tells of its publishing to whoever looks at this node: `<state>/status.json`."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dradriver.daemon.publishing import Published
from dradriver.documents import read_plain
from dradriver.nri import NriStatus

FILE = "status.json"
_MAX_BYTES = 4 << 20

_Mark = tuple[int, int, int, int]
"""Device, inode, time of the last change of the content, and size of a file."""


@dataclass(frozen=True, slots=True)
class Report:
    """One state of affairs.

    server     URL of the API server; empty where there is none
    troubles   what else does not work as it should
    runtime    how it stands with the container runtime; None where none is meant
    """

    node: str
    server: str
    pools: tuple[Published, ...]
    troubles: tuple[str, ...] = ()
    runtime: NriStatus | None = None


class Reporter:
    """Writes the report where it changed, or its file was changed or removed by somebody else."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        self._written: Report | None = None
        self._mark: _Mark | None = None

    def write(self, report: Report) -> None:
        """Write the report beside and rename it into place. Raises OSError."""
        if report == self._written and self._mark is not None and self._mark == _mark(self._path):
            return
        draft = self._path.with_name(f".{FILE}.tmp")
        try:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
            mark = _mark(draft)
            draft.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        self._written, self._mark = report, mark


def _mark(path: Path) -> _Mark | None:
    """Return what is another where the file was written to or replaced; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read_report(state: Path) -> Report | None:
    """Return the last report, None where there is none. Raises OSError or ValueError where it cannot be read."""
    try:
        data, _ = read_plain(state / FILE, _MAX_BYTES)
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=Report)
