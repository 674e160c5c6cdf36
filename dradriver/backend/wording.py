"""What the decoder says of a value that does not fit, in the words of the documentation.

The decoder (msgspec) speaks of Python and JSON types, and names that end of a range which was missed; people are told
what docs/configuration.md says of the field: a map, an integer from 1 to 1000.
"""

import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "object": "a map",
    "array": "a list",
    "null": "nothing (null)",
}
_PARTS = {"str": "characters", "array": "entries", "object": "entries"}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}

_EXPECTED = re.compile(r"^Expected `(?P<types>[a-z |]+)`(?P<rest>.*)$", re.DOTALL)
_GOT = re.compile(r"^, got `(?P<type>[a-z]+)`$")
_BOUND = re.compile(r"^ (?P<sign>[<>]=?) (?P<bound>[-+.e0-9]+)$")
_LENGTH = re.compile(r"^ of length (?P<sign>[<>]=)? ?(?P<bound>\d+)(?:, got (?P<got>\d+))?$")


def worded(reason: str, kind: Any, found: str | None = None) -> str:
    """Return what is expected and what was found.

    reason   the decoder's message, without the path; one that is of another form is kept
    kind     the type that is expected there
    found    the value, where it is worth showing
    """
    match = _EXPECTED.match(reason)
    types = match["types"].split(" | ") if match else []
    if match is None or any(name not in _WORDS for name in types):
        return _with(reason, found)
    what = " or ".join(_WORDS[name] for name in types if name != "null") or _WORDS["null"]
    got = _GOT.match(match["rest"])
    if got:
        known = _WORDS.get(got["type"], got["type"])
        if found is None or got["type"] == "null":
            return f"{what} is expected, found {known}"
        shown = found.strip("'").lower() if got["type"] == "bool" else f"{found}, {known}"
        return f"{what} is expected, found {shown}"
    length = _LENGTH.match(match["rest"])
    if length and types[0] in _PARTS:
        least = f"{_BOUNDS[length['sign']]} " if length["sign"] else ""
        text = f"{what} of {least}{length['bound']} {_PARTS[types[0]]}"
        found = found if length["got"] is None else length["got"]
    elif _BOUND.match(match["rest"]):
        text = f"{what}{_range(kind) or _bound(match['rest'])}"
    else:
        text = f"{what}{match['rest']}"
    return _with(f"{text} is expected", found)


def _with(text: str, found: str | None) -> str:
    return text if found is None else f"{text}, found {found}"


def _range(kind: Any) -> str:
    """Return the range of a numeric type, where it has both ends; empty where it has not."""
    for meta in _metas(kind):
        low = meta.ge if meta.ge is not None else meta.gt
        high = meta.le if meta.le is not None else meta.lt
        if low is None or high is None:
            continue
        if meta.ge is not None and meta.le is not None:
            return f" from {low} to {high}"
        lower = f" of at least {low}" if meta.ge is not None else f" above {low}"
        return f"{lower}, {'at most' if meta.le is not None else 'below'} {high}"
    return ""


def _metas(kind: Any) -> Iterator[msgspec.Meta]:
    for one in (kind, *get_args(kind)):
        yield from (meta for meta in getattr(one, "__metadata__", ()) if isinstance(meta, msgspec.Meta))


def _bound(rest: str) -> str:
    match = _BOUND.match(rest)
    return f" of {_BOUNDS[match['sign']]} {match['bound']}" if match else rest
