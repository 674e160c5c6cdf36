"""Snapshots: the facts of a host in one file, which can be replayed as a host root anywhere.

The file is gzip-compressed JSON: files with their text, links with their targets, and directories that hold neither.
The same host gives the same bytes. Only the files of `dradriver.host.facts` are in it.
"""

import gzip
import json
import os
import posixpath
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from dradriver.host.facts import FACTS, Facts, process_files, reduced
from dradriver.host.identifiers import Identifiers
from dradriver.host.root import Host
from dradriver.model.text import shown

FORMAT = "dradriver.io/snapshot/v1"

MAX_TEXT = 64 << 10
"""Characters that a file may have; sysfs gives at most a page of 4 or 64 KiB."""

_MAX_BYTES = 64 << 20
_MAX_ENTRIES = 500_000
_MAX_LINKS = 40


class SnapshotError(Exception):
    """A file is no snapshot, or one that must not be unpacked; the message says what is wrong with it."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of a host. Paths are relative to its root.

    identifiers   "replaced" or "kept"
    files         path -> text, without white space at its ends
    links         path -> target, relative
    directories   those that hold nothing else
    """

    format: str = FORMAT
    identifiers: str = "replaced"
    directories: tuple[str, ...] = ()
    files: dict[str, str] = {}
    links: dict[str, str] = {}


def take_snapshot(host: Host, *, keep_identifiers: bool = False) -> Snapshot:
    """Read the facts of a host. Never raises for what the files hold.

    keep_identifiers   keep hardware addresses, GUIDs and UUIDs, the boot's too, instead of made-up ones
    """
    walk = _Walk(host)
    for facts in FACTS:
        walk.record(facts)
    files = dict(sorted({**walk.files, **process_files(host)}.items()))
    links = dict(sorted(walk.links.items()))
    directories = sorted(walk.directories.difference(*(_parents(path) for path in (*files, *links))))
    if keep_identifiers:
        return Snapshot(identifiers="kept", directories=tuple(directories), files=files, links=links)
    names = Identifiers()
    texts = [names.text(text) for text in files.values()]  # before paths, see Identifiers.path
    return Snapshot(
        directories=tuple(names.path(path) for path in directories),
        files=dict(zip(map(names.path, files), texts, strict=True)),
        links={names.path(path): names.path(target) for path, target in links.items()},
    )


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the content of the file: the same bytes for the same facts."""
    text = json.dumps(msgspec.to_builtins(snapshot), sort_keys=True, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def read_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file. Raises OSError, and SnapshotError for a file that is none."""
    with path.open("rb") as raw:
        try:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                text = unpacked.read(_MAX_BYTES + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise SnapshotError(
                f"{path}: not a snapshot: not compressed with gzip, or cut: {error}"
            ) from None
    if len(text) > _MAX_BYTES:
        raise SnapshotError(f"{path}: not a snapshot: more than {_MAX_BYTES >> 20} MiB when unpacked")
    try:
        found = msgspec.json.decode(text, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(f"{path}: not a snapshot: {error}") from None
    if found.format != FORMAT:
        raise SnapshotError(f"{path}: format {shown(found.format)}: this version reads {FORMAT}")
    return found


def replay(snapshot: Snapshot, directory: Path) -> Path:
    """Unpack a snapshot into `directory`, which is new or empty, and return it: a host root.

    Raises OSError, and SnapshotError for a path or a link that would lead out of the directory; nothing is left of
    it then.
    """
    _check(snapshot)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise SnapshotError(f"{directory}: is not empty: a snapshot is unpacked into a directory of its own")
    try:
        _unpack(snapshot, directory)
    except (OSError, SnapshotError):
        for entry in directory.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        raise
    return directory


def _check(snapshot: Snapshot) -> None:
    paths = (*snapshot.files, *snapshot.links, *snapshot.directories)
    if len(paths) > _MAX_ENTRIES:
        raise SnapshotError(f"the snapshot has more than {_MAX_ENTRIES} entries")
    if len(set(paths)) < len(paths):
        raise SnapshotError("the snapshot has a path as a file and as something else")
    leaves = {*snapshot.files, *snapshot.links}
    for path in paths:
        if any(part in {"", ".", ".."} for part in path.split("/")) or "\0" in path:
            raise SnapshotError(f"path {shown(path)}: one without '.', '..' and empty parts is expected")
        for parent in _parents(path):
            if parent in leaves:
                raise SnapshotError(
                    f"path {shown(path)}: leads through {shown(parent)}, which is no directory"
                )
    for path, target in snapshot.links.items():
        if not target or target.startswith("/") or "\0" in target:
            raise SnapshotError(f"link {shown(path)}: target {shown(target)} is not a relative path")


def _unpack(snapshot: Snapshot, directory: Path) -> None:
    """Write files while there is no link yet that could lead one of them elsewhere."""
    made: set[str] = set()
    for path in snapshot.directories:
        _make(directory, path, made)
    for path, text in snapshot.files.items():
        _make(directory, posixpath.dirname(path), made)
        (directory / path).write_text(f"{text}\n", encoding="utf-8", errors="replace")
    for path, target in snapshot.links.items():
        _make(directory, posixpath.dirname(path), made)
        (directory / path).symlink_to(target)
    root = os.path.realpath(directory)
    for path, target in snapshot.links.items():
        found = os.path.realpath(f"{root}/{path}")
        if found != root and not found.startswith(f"{root}/"):
            raise SnapshotError(f"link {shown(path)}: target {shown(target)} leads out of the snapshot")


def _make(directory: Path, path: str, made: set[str]) -> None:
    if path not in made:
        (directory / path).mkdir(parents=True, exist_ok=True)
        made.add(path)


def _parents(path: str) -> Iterator[str]:
    parent = posixpath.dirname(path)
    while parent:
        yield parent
        parent = posixpath.dirname(parent)


@dataclass(slots=True)
class _Walk:
    """Collects facts by the places where they are, and the links that lead there."""

    host: Host
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    _targets: dict[str, str | None] = field(default_factory=dict)

    def record(self, facts: Facts) -> None:
        """Record what there is of some facts."""
        for directory in self._matching(facts.directory):
            place = self._place(directory)
            if place is None or not self.host.path(place).is_dir():
                continue
            self.directories.add(place)
            for name in self.host.list_dir(place):
                if any(fnmatchcase(name, pattern) for pattern in facts.files):
                    self._file(f"{place}/{name}")
                elif any(fnmatchcase(name, pattern) for pattern in facts.links):
                    self._link(f"{place}/{name}")

    def _matching(self, pattern: str) -> list[str]:
        """Return the paths that match, links not resolved."""
        found = [""]
        for part in pattern.split("/"):
            if any(char in part for char in "*?["):
                names = [(path, name) for path in found for name in self.host.list_dir(path)]
                found = [f"{path}/{name}" for path, name in names if fnmatchcase(name, part)]
            else:
                found = [f"{path}/{part}" for path in found]
        return [path.lstrip("/") for path in found]

    def _file(self, path: str) -> None:
        place = self._place(path)
        if place is None or place in self.files:
            return
        text = self.host.read_text(place)
        if text is not None and len(text) <= MAX_TEXT:
            self.files[place] = reduced(place, text)

    def _place(self, path: str) -> str | None:
        """Return where a path leads, and record the links on the way; None for links in a circle."""
        pending = path.split("/")[::-1]
        done: list[str] = []
        followed = 0
        while pending:
            part = pending.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                del done[-1:]
                continue
            target = self._link("/".join((*done, part)))
            if target is None:
                done.append(part)
                continue
            followed += 1
            if followed > _MAX_LINKS:
                return None
            pending.extend(target.split("/")[::-1])
        return "/".join(done)

    def _link(self, path: str) -> str | None:
        """Return the target of a link, after recording it; None where there is no link at that place."""
        if path not in self._targets:
            target = self.host.read_link(path)
            self._targets[path] = _inside(path, target) if target else None
        found = self._targets[path]
        if found is not None:
            self.links[path] = found
        return found


def _inside(path: str, target: str) -> str:
    """Return a link's target, rewritten where it is absolute or leads above the root, which is as far as it gets."""
    parent = posixpath.dirname(path)
    depth = len(parent.split("/")) if parent else 0
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in {"", "."}
        if depth < 0:
            break
    if depth >= 0 and not target.startswith("/"):
        return target
    whole = posixpath.normpath(f"/{parent}/{target}" if not target.startswith("/") else target)
    return posixpath.relpath("/" + whole.lstrip("/"), f"/{parent}")
