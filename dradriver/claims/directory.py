"""ResourceClaims from a directory of YAML or JSON files, as `kubectl get resourceclaim -o yaml` prints them.

A file may hold one claim, a `List`, or several documents. Files are found by what is in them, never by a name made
from a request, and are read again when they change. A file that is named like the claim is looked into first, and
those of a directory from small to large, so that a large one delays few.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from dradriver.backend import TransientError
from dradriver.claims.decode import ClaimError, claim_ref
from dradriver.claims.source import ClaimNotFoundError
from dradriver.documents import load_documents, read_plain
from dradriver.model import ClaimRef, shown

log = logging.getLogger(__name__)

SUFFIXES = (".yaml", ".yml", ".json")
MAX_FILE = 4 << 20
"""Bytes; the API server's own limit for an object is below 2 MiB."""

MAX_TOTAL = 16 << 20
"""Bytes of all files of the directory; the largest are left out beyond that. A claim has about 3 KiB."""

RECENT_NS = 1_000_000_000
"""A file that changed less than this before it was read may change again within the same time stamp."""

_Stamp = tuple[int, int, int, int]
_Claims = tuple[tuple[ClaimRef, Any], ...]


@dataclass(slots=True)
class _File:
    """What a file held when it had that stamp (None: it may change unseen), or why it could not be read.

    reading   held by the one thread that reads it
    """

    stamp: _Stamp | None = None
    claims: _Claims = ()
    error: str = ""
    reading: Lock = field(default_factory=Lock)


class DirectoryClaims:
    """The claims in one directory. Threads wait for each other only where they need the same file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = Lock()  # of the two below; never held while a file is read
        self._files: dict[str, _File] = {}
        self._places: dict[ClaimRef, str] = {}

    def get(self, ref: ClaimRef, deadline: float) -> Any:
        """Return the claim object of that namespace and name; of several, the one with the asked UID.

        Raises TransientError where `deadline` comes before all files are read; what was read is kept.
        """
        paths = self._paths()
        likely = self._likely(ref, paths)
        for path in likely:
            for found, obj in self._read(path, deadline):
                if found == ref:
                    return obj
        new = [path for path in paths if path not in self._files]
        for _, claims in self._each(new, deadline):
            for found, obj in claims:
                if found == ref:
                    return obj
        named = [
            (found, obj)
            for found, obj in self._scan(paths, deadline)
            if (found.namespace, found.name) == (ref.namespace, ref.name)
        ]
        if not named:
            raise ClaimNotFoundError(
                f"no such claim among the files in {self._directory}{self._unread(likely)}"
            )
        return next((obj for found, obj in named if found.uid == ref.uid), named[0][1])

    def all(self) -> list[tuple[ClaimRef, Any]]:
        """Return every claim that the directory holds now."""
        return self._scan(self._paths(), None)

    def _paths(self) -> list[str]:
        try:
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in entries if not entry.name.startswith(".")]
        except OSError:
            return []
        return [f"{self._directory}/{name}" for name in sorted(names) if name.endswith(SUFFIXES)]

    def _likely(self, ref: ClaimRef, paths: list[str]) -> list[str]:
        """Return the file that had the claim last, and those of the listing that are named like it."""
        stems = (f"{ref.namespace}.{ref.name}", ref.name)
        names = {f"{self._directory}/{stem}{suffix}" for stem in stems for suffix in SUFFIXES}
        place = self._places.get(ref)
        return [path for path in paths if path == place or path in names]

    def _unread(self, likely: list[str]) -> str:
        """Return which of the files that may be meant could not be read, as the end of a sentence."""
        errors = ((path, self._file(path).error) for path in likely)
        return "".join(
            f"; {shown(os.path.basename(path))} is left out: {shown(error, 200)}"  # noqa: PTH119
            for path, error in errors
            if error
        )

    def _scan(self, paths: list[str], deadline: float | None) -> list[tuple[ClaimRef, Any]]:
        """Return the claims of all files, in the order of their names."""
        found = dict(self._each(paths, deadline))
        with self._lock:
            self._files = {path: file for path, file in self._files.items() if path in found}
            self._places = {ref: path for path, claims in found.items() for ref, _ in claims}
        return [claim for path in paths for claim in found.get(path, ())]

    def _each(self, paths: Iterable[str], deadline: float | None) -> Iterator[tuple[str, _Claims]]:
        """Yield what each file holds, small files first."""
        total = 0
        for size, path in sorted((_size(path), path) for path in paths):
            total += size if size <= MAX_FILE else 0
            if total > MAX_TOTAL:
                yield path, self._left_out(path)
                continue
            if deadline is not None and time.monotonic() >= deadline:
                raise TransientError(f"the claim files in {self._directory} were not read in time")
            yield path, self._read(path, deadline)

    def _read(self, path: str, deadline: float | None) -> _Claims:
        """Return what the file holds now; nothing where it cannot be read, which is logged once."""
        file = self._file(path)
        if not file.reading.acquire(
            timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())
        ):
            raise TransientError(f"claim file {shown(path, 300)} was not read in time")
        try:
            began = time.time_ns()
            stamp = None
            try:
                stamp = _stamp(os.stat(path), began)  # noqa: PTH116 - a Path for each of a thousand files costs
                if stamp is not None and stamp == file.stamp:
                    return file.claims
                data, status = read_plain(path, MAX_FILE)
                stamp = _stamp(status, began)
                claims, error = tuple(_claims(load_documents(data), path)), ""
            except (OSError, ValueError) as problem:
                claims, error = (), str(problem)
            file.stamp, file.claims = stamp, claims
            self._note(path, file, error)
        finally:
            file.reading.release()
        with self._lock:
            self._places.update((ref, path) for ref, _ in claims)
        return claims

    def _file(self, path: str) -> _File:
        with self._lock:
            return self._files.setdefault(path, _File())

    def _left_out(self, path: str) -> _Claims:
        file = self._file(path)
        file.stamp, file.claims = None, ()
        self._note(path, file, f"the files of the directory have more than {MAX_TOTAL} bytes together")
        return ()

    @staticmethod
    def _note(path: str, file: _File, error: str) -> None:
        if error and error != file.error:
            log.warning("claim file %s is left out: %s", shown(path, 300), shown(error, 300))
        file.error = error


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - as above
    except OSError:
        return 0


def _stamp(status: os.stat_result, now_ns: int) -> _Stamp | None:
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    if now_ns - changed < RECENT_NS:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _claims(documents: list[Any], path: str) -> Iterator[tuple[ClaimRef, Any]]:
    for document in documents:
        items = document.get("items") if isinstance(document, dict) and "items" in document else [document]
        for item in items if isinstance(items, list) else []:
            try:
                yield claim_ref(item), item
            except ClaimError as error:
                log.warning("an object in %s is left out: %s", shown(path, 300), error)
