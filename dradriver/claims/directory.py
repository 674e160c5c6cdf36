"""ResourceClaims from a directory of YAML or JSON files, as `kubectl get resourceclaim -o yaml` prints them.

A file may hold one claim, a `List`, or several documents. Files are found by what is in them, never by a name made
from a request, and are read again when they change.
"""

import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import yaml

from dradriver.claims.decode import ClaimError, claim_ref
from dradriver.claims.source import ClaimNotFoundError
from dradriver.model import ClaimRef, shown

log = logging.getLogger(__name__)

SUFFIXES = (".yaml", ".yml", ".json")
MAX_FILE = 4 << 20
"""Bytes; the API server's own limit for an object is below 2 MiB."""

MAX_NODES = 500_000
"""Values in one file, counted wherever they are referred to: aliases make endless documents out of few bytes."""

MAX_FLOW = 5_000
"""Openings of flow or compact nesting in one YAML file: libyaml needs quadratic time for them."""

RECENT_NS = 1_000_000_000
"""A file that changed less than this before it was read may change again within the same time stamp."""

_Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _File:
    """What a file held when it had that stamp (None: it may change unseen), or why it could not be read."""

    stamp: _Stamp | None
    claims: tuple[tuple[ClaimRef, Any], ...] = ()
    error: str = ""


class DirectoryClaims:
    """The claims in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = Lock()
        self._files: dict[str, _File] = {}
        self._places: dict[ClaimRef, str] = {}

    def get(self, ref: ClaimRef, deadline: float) -> Any:
        """Return the claim object of that namespace and name; of several, the one with the asked UID."""
        del deadline
        with self._lock:
            for path in self._likely(ref):
                for found, obj in self._read(path).claims:
                    if found == ref:
                        return obj
            named = [
                (found, obj)
                for found, obj in self._scan()
                if (found.namespace, found.name) == (ref.namespace, ref.name)
            ]
        if not named:
            raise ClaimNotFoundError(f"no such claim among the files in {self._directory}")
        return next((obj for found, obj in named if found.uid == ref.uid), named[0][1])

    def all(self) -> list[tuple[ClaimRef, Any]]:
        """Return every claim that the directory holds now."""
        with self._lock:
            return self._scan()

    def _likely(self, ref: ClaimRef) -> Iterator[str]:
        """Yield the file that had the claim last, then those that are new: most of a full directory is neither."""
        if ref in self._places:
            yield self._places[ref]
        yield from (path for path in self._paths() if path not in self._files)

    def _scan(self) -> list[tuple[ClaimRef, Any]]:
        self._files = {path: self._read(path) for path in self._paths()}
        self._places = {ref: path for path, file in self._files.items() for ref, _ in file.claims}
        return [claim for file in self._files.values() for claim in file.claims]

    def _paths(self) -> list[str]:
        try:
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in entries if not entry.name.startswith(".")]
        except OSError:
            return []
        return [f"{self._directory}/{name}" for name in sorted(names) if name.endswith(SUFFIXES)]

    def _read(self, path: str) -> _File:
        """Return what the file holds now; nothing where it cannot be read, which is logged once."""
        known = self._files.get(path, _File(None))
        stamp = None
        try:
            stamp = _stamp(os.stat(path))  # noqa: PTH116 - a Path for each of a thousand files costs
            if stamp is not None and stamp == known.stamp:
                return known
            stamp, text = _text(path)
            file = _File(stamp, tuple(_claims(text, path)))
        except (OSError, ValueError) as error:
            file = _File(stamp, error=str(error))
            if file.error != known.error:
                log.warning("claim file %s is left out: %s", shown(path, 300), shown(error, 300))
        self._files[path] = file
        self._places |= {ref: path for ref, _ in file.claims}
        return file


def _stamp(status: os.stat_result) -> _Stamp | None:
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    if time.time_ns() - changed < RECENT_NS:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _text(path: str) -> tuple[_Stamp | None, str]:
    """Read a plain file of sane size, behind symbolic links too; never wait for a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a plain file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE:
        raise ValueError(f"larger than {MAX_FILE} bytes")
    return _stamp(status), data.decode()


def _claims(text: str, path: str) -> Iterator[tuple[ClaimRef, Any]]:
    for document in load_documents(text):
        items = document.get("items") if isinstance(document, dict) and "items" in document else [document]
        for item in items if isinstance(items, list) else []:
            try:
                yield claim_ref(item), item
            except ClaimError as error:
                log.warning("an object in %s is left out: %s", shown(path, 300), error)


def load_documents(text: str) -> list[Any]:
    """Return the YAML or JSON documents of a text as plain JSON types, empty ones left out.

    Raises ValueError where it is neither, or holds what JSON cannot say.
    """
    try:
        documents = _loaded(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from None
    except (TypeError, AttributeError, OverflowError, RecursionError) as error:
        # What the loader's constructors raise on tags and numbers that they cannot make sense of.
        raise ValueError(f"not YAML: {type(error).__name__}") from None
    _check_plain(documents)
    return [document for document in documents if document is not None]


def _loaded(text: str) -> list[Any]:
    if text.lstrip().startswith("{"):
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass  # perhaps YAML in flow style
    if sum(map(text.count, ("[", "{", "- -", "? ?"))) > MAX_FLOW:
        raise ValueError(
            f"more than {MAX_FLOW} openings of nested values: write it in block style or as JSON"
        )
    return list(yaml.load_all(text, Loader=_Loader))


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Kubernetes reads it: what looks like a time is a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def _check_plain(documents: list[Any]) -> None:
    """Raise ValueError unless all is of JSON's types, and of a size that ends."""
    left = MAX_NODES
    pending: list[Any] = [documents]
    while pending:
        value = pending.pop()
        left -= 1
        if left < 0:
            raise ValueError(f"more than {MAX_NODES} values, aliases counted wherever they stand")
        match value:
            case dict():
                if not all(isinstance(key, str) for key in value):
                    raise ValueError("a key that is not a string")
                pending.extend(value.values())
            case list():
                pending.extend(value)
            case None | str() | bool() | int() | float():
                pass
            case _:
                raise ValueError(f"a value of type {type(value).__name__}, which JSON does not have")
