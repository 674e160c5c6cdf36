"""Files that people and other programs write: read safely, and understood as JSON would understand them.

A document is JSON, or YAML without what JSON cannot say. Of YAML's plain scalars `null`, `true`, `false`, `~`,
nothing at all and JSON's numbers have a meaning of their own. All others are strings: `yes`, `1:30`, `0644` and
`2026-01-02` too, about which readers of YAML differ. Keys are strings and stand once. There are no tags and no
merge keys; aliases are read, as often as the size of the whole admits.
"""

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from dradriver.model.text import shown

MAX_DEPTH = 100
"""Lists and objects within each other."""

MAX_NODES = 500_000
"""Values of one text, counted wherever aliases repeat them: few bytes can make endless documents."""

MAX_DIGITS = 1000
"""Of an integer. Beyond some thousands, Python refuses to read and to print them."""

_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_SURROGATE = re.compile("[\ud800-\udfff]")
# The parser compares each of these with all before it; of what they declare nothing is read.
_TAG_DIRECTIVE = re.compile(r"^%TAG", re.MULTILINE)


def read_plain(path: Path | str, limit: int, *, follow: bool = True) -> tuple[bytes, os.stat_result]:
    """Return what a plain file of at most `limit` bytes holds, and its status as it was before it was read.

    A pipe or a device is neither opened nor waited for. Symbolic links are followed only where `follow` is set.
    Raises OSError, or ValueError where it is no plain file or a larger one.
    """
    _check_plain_file(os.stat(path, follow_symlinks=follow), limit)  # noqa: PTH116 - the path may be a string
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        # What was looked at may have been replaced by something else since.
        status = os.fstat(file.fileno())
        _check_plain_file(status, limit)
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"larger than {limit} bytes")
    return data, status


def _check_plain_file(status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a plain file")
    if status.st_size > limit:
        raise ValueError(f"larger than {limit} bytes")


def read_documents(path: Path | str, limit: int) -> list[Any]:
    """Return the documents of a file. Raises OSError, or ValueError as `read_plain` and `load_documents` do."""
    return load_documents(read_plain(path, limit)[0])


def load_documents(text: str | bytes) -> list[Any]:
    """Return the documents of a text, empty ones left out, as plain JSON types that end and can be written as UTF-8.

    Raises ValueError: one line that says what is wrong and, of YAML, where.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}"
            ) from None
    if text.lstrip()[:1] in {"{", "["}:
        try:
            value = json.loads(
                text,
                object_pairs_hook=_object,
                parse_int=_integer,
                parse_float=_real,
                parse_constant=_no_constant,
            )
        except (ValueError, RecursionError):
            pass  # perhaps YAML in flow style; if not, that parser says where the mistake is
        else:
            _check(value)
            return [value]
    if _TAG_DIRECTIVE.search(text):
        raise ValueError("%TAG is not read")
    try:
        return _built(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{line}not valid YAML: {_printable(error.problem or error.context)}") from None
    except yaml.reader.ReaderError as error:
        line_number = text.encode()[: error.position].count(b"\n") + 1
        raise ValueError(f"line {line_number}: not valid YAML: {_printable(error.reason)}") from None
    except UnicodeEncodeError:
        raise ValueError("not Unicode text: there is a surrogate by itself") from None


def _printable(text: str | None) -> str:
    return ascii(text or "")[1:-1][:200]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits: at most {MAX_DIGITS} are read")
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"number {shown(text)} is too large")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _scalar(text: str) -> str | int | float | bool | None:
    """Return what a plain scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    return _real(text) if number["fraction"] else _integer(text)


def _check(value: Any) -> None:
    """Raise ValueError where a decoded JSON value is too deep, too large or no Unicode text."""
    nodes, depth, level = 0, 0, [value]
    while level:
        nodes += len(level)
        if nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} values")
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict | list) and depth == MAX_DEPTH:
                raise ValueError(f"nested more than {MAX_DEPTH} deep")
            if isinstance(one, dict):
                below.extend(one.values())
                for key in one:
                    _check_text(key)
            elif isinstance(one, list):
                below.extend(one)
            elif isinstance(one, str):
                _check_text(one)
        level = below
        depth += 1


def _check_text(text: str) -> None:
    if not text.isascii() and _SURROGATE.search(text):
        raise ValueError(f"{shown(text)} is not Unicode text: there is a surrogate by itself")


@dataclass(slots=True)
class _Open:
    """A list or an object whose end is still to come.

    start   values that were counted before it
    key     where the next value of an object goes, once that is known
    """

    value: dict[str, Any] | list[Any]
    anchor: str | None
    start: int
    key: str | None = None


class _Builder:
    """Makes values of the parser's events: nothing waits on a stack of calls, nothing is made that is too large."""

    def __init__(self) -> None:
        self.documents: list[Any] = []
        self._open: list[_Open] = []
        self._anchored: dict[str, tuple[Any, int]] = {}
        self._nodes = 0

    def take(self, event: yaml.Event) -> None:
        """Take the next event. Raises ValueError."""
        match event:
            case yaml.ScalarEvent():
                self._no_tag(event.tag)
                self._count(1)
                value = _scalar(event.value) if event.implicit[0] else event.value
                if event.anchor is not None:
                    self._anchored[event.anchor] = (value, 1)
                self._put(value)
            case yaml.CollectionStartEvent():
                self._no_tag(event.tag)
                self._count(1)
                made: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
                self._put(made)
                if len(self._open) == MAX_DEPTH:
                    raise ValueError(f"nested more than {MAX_DEPTH} deep")
                # An anchor that is not closed is not known: an alias within it would have no end.
                if event.anchor is not None:
                    self._anchored.pop(event.anchor, None)
                self._open.append(_Open(made, event.anchor, self._nodes - 1))
            case yaml.CollectionEndEvent():
                closed = self._open.pop()
                if closed.anchor is not None:
                    self._anchored[closed.anchor] = (closed.value, self._nodes - closed.start)
            case yaml.AliasEvent():
                if event.anchor not in self._anchored:
                    raise ValueError(f"alias {shown(event.anchor)} is of nothing that ends before it")
                value, size = self._anchored[event.anchor]
                self._count(size)
                self._put(value)
            case yaml.DocumentStartEvent():
                self._anchored.clear()

    def _put(self, value: Any) -> None:
        if not self._open:
            self.documents.append(value)
            return
        top = self._open[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is not None:
            top.value[top.key] = value
            top.key = None
        elif isinstance(value, dict | list):
            raise ValueError("a key that is a list or an object")
        elif not isinstance(value, str):
            raise ValueError(f"key {json.dumps(value)[:64]} is not a string: quote it")
        elif value in top.value:
            raise ValueError(f"key {shown(value)} stands twice")
        elif value == "<<":
            raise ValueError("merge keys (<<) are not read")
        else:
            top.key = value

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} values, aliases counted wherever they stand")

    @staticmethod
    def _no_tag(tag: str | None) -> None:
        if tag not in {None, "!"}:
            short = str(tag).replace("tag:yaml.org,2002:", "!!")
            raise ValueError(f"tag {shown(short)} is not read: write the value as JSON has it")


def _built(text: str) -> list[Any]:
    builder = _Builder()
    for event in _events(text):
        try:
            builder.take(event)
        except ValueError as error:
            raise ValueError(f"line {event.start_mark.line + 1}: {error}") from None
    return [document for document in builder.documents if document is not None]


def _events(text: str) -> Iterator[Any]:
    yield from yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
