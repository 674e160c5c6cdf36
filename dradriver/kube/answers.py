"""Reading JSON as the API server sends it.

Opaque parameters of claims and the data of a device's status are passed on as somebody wrote them (Go's
`runtime.RawExtension`): with half of a surrogate pair, bytes that are no UTF-8, numbers beyond all bounds, thousands of
arrays in each other. None of it may stand in the way of other objects.
"""

import json
import re
from typing import Any

import msgspec

from dradriver.kube.errors import MalformedError, one_line

MAX_DEPTH = 100
"""How deep something may be nested where the rest is cut off. The types of the API go down to some fifteen."""

_MAX_DIGITS = 300
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
_FAILURES = (msgspec.DecodeError, ValueError, RecursionError)


def decode(data: bytes) -> Any:
    """Return the value of a JSON text; what is no Unicode shows as surrogates by themselves.

    Raises MalformedError, also where it is nested too deeply.
    """
    try:
        return msgspec.json.decode(data)
    except _FAILURES:
        # It is stricter than the server.
        pass
    try:
        text = data.decode("utf-8", "surrogateescape")
        return json.loads(text, parse_int=_integer, parse_constant=_refuse)
    except RecursionError:
        raise _TooDeepError("the answer's JSON is nested too deeply") from None
    except ValueError as error:
        raise MalformedError(f"the answer is not JSON: {one_line(str(error), 200)}") from None


def decode_cut(data: bytes) -> Any:
    """Return the value of a JSON text as `decode` does, but for what is nested too deeply: there it has null."""
    try:
        return decode(data)
    except _TooDeepError:
        return decode(_cut(data))


class _TooDeepError(MalformedError):
    """JSON that is nested too deeply."""


def _cut(data: bytes) -> bytes:
    """Return the JSON text with null in place of all that is deeper than `MAX_DEPTH`."""
    pieces: list[bytes] = []
    depth, kept = 0, 0
    for token in _TOKEN.finditer(data):
        if token[0] in {b"[", b"{"}:
            depth += 1
            if depth == MAX_DEPTH + 1:
                pieces += (data[kept : token.start()], b"null")
        elif token[0] in {b"]", b"}"}:
            if depth == MAX_DEPTH + 1:
                kept = token.end()
            depth -= 1
        elif token[0] == b'"':
            break
    return b"".join([*pieces, data[kept:]])


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _MAX_DIGITS else float(text)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no number")
