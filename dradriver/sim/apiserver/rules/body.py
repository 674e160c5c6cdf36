"""JSON bodies as the API server reads them: numbers, duplicate keys, and the bytes of opaque parts kept.

A RawExtension (`opaque.parameters`, `data`) is limited, compared and stored by its bytes, so that those are kept
beside the parsed object: `RawObject` is a dict with the text it came from.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

import msgspec

from dradriver.sim.apiserver.rules.errors import Refused

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE: Final = re.compile("[\ud800-\udfff]")


class RawObject(dict[str, Any]):
    """An opaque JSON object, and the JSON text that it was sent as."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


class Number(float):
    """A JSON number with a fraction or an exponent, and its text: "2.0" is no integer to the API server."""

    text: str

    def __new__(cls, text: str) -> "Number":
        """Read `text`, which the JSON grammar has let through."""
        made = super().__new__(cls, text)
        made.text = text
        return made


@dataclass(frozen=True, slots=True)
class Body:
    """A request body: the object, keys that were there twice (the last one counts), and the text."""

    object: Mapping[str, Any]
    duplicates: tuple[str, ...] = ()
    text: bytes = b""

    @classmethod
    def parse(cls, text: bytes) -> "Body":
        """Read a JSON object; what is no UTF-8 in it becomes U+FFFD. Raises Refused (400) for anything else."""
        twice: list[str] = []

        def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
            made = dict(items)
            if len(made) != len(items):
                twice.append("")
            return made

        decoded = text.decode(errors="replace")
        try:
            value = json.loads(
                decoded, object_pairs_hook=pairs, parse_float=Number, parse_constant=_no_such_constant
            )
        except (ValueError, RecursionError) as error:
            raise Refused(
                400, "BadRequest", f"couldn't get version/kind; json parse error: {error}"
            ) from error
        if not isinstance(value, dict):
            raise Refused(
                400,
                "BadRequest",
                f"couldn't get version/kind; json parse error: json: cannot unmarshal {json_kind(value)} into Go "
                "value of type struct { APIVersion string; Kind string }",
            )
        if _SURROGATE.search(text):
            value = _replaced(value)
        return cls(value, _duplicates(decoded) if twice else (), text)


def compact(value: Any) -> str:
    """Return `value` as JSON without white space, in the order of its keys, as most clients send it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def raw_text(value: Any) -> str:
    """Return the JSON text of an opaque value: as it was sent where that is known."""
    return value.text if isinstance(value, RawObject) else compact(value)


_KINDS: Final = {str: "string", bool: "bool", dict: "object", list: "array", type(None): "null"}


def json_kind(value: Any) -> str:
    """Return what the server's JSON decoder calls a value of this kind."""
    for known, name in _KINDS.items():
        if isinstance(value, known):
            return name
    return "number"


def number_text(value: Any) -> str:
    """Return a JSON number as it was sent, as far as that is known."""
    return value.text if isinstance(value, Number) else str(value)


def with_raw(obj: Mapping[str, Any], text: bytes, places: Sequence[Sequence[str]]) -> Mapping[str, Any]:
    """Return `obj` with each object at one of `places` made a `RawObject` of its part of `text`.

    A place is a path of keys, with "*" for every item of a list; `obj` is what `text` says, and is not changed.
    Nothing is done to a text that is no UTF-8.
    """
    changed: Any = obj
    try:
        for place in places:
            if place[0] in obj:
                changed = _raw_below(changed, msgspec.Raw(text), place)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return obj
    return cast("Mapping[str, Any]", changed)


def _raw_below(value: Any, raw: msgspec.Raw, place: Sequence[str]) -> Any:
    if not place:
        return RawObject(value, bytes(raw).decode()) if isinstance(value, dict) else value
    if place[0] == "*":
        if not isinstance(value, list):
            return value
        parts = msgspec.json.decode(raw, type=list[msgspec.Raw])
        return [_raw_below(item, part, place[1:]) for item, part in zip(value, parts, strict=True)]
    if not isinstance(value, dict) or place[0] not in value:
        return value
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return value | {place[0]: _raw_below(value[place[0]], fields[place[0]], place[1:])}


def _replaced(value: Any) -> Any:
    """Replace the halves of surrogate pairs that stand alone."""
    match value:
        case str():
            return _LONE.sub("\ufffd", value)
        case dict():
            return {_LONE.sub("\ufffd", key): _replaced(item) for key, item in value.items()}
        case list():
            return [_replaced(item) for item in value]
        case _:
            return value


def _no_such_constant(text: str) -> NoReturn:
    raise ValueError(f"invalid character {text[0]!r} looking for beginning of value")


class _Pairs(list[tuple[str, Any]]):
    """The fields of an object as they stand in the text."""


def _duplicates(text: str) -> tuple[str, ...]:
    return tuple(_twice(json.loads(text, object_pairs_hook=_Pairs), ""))


def _twice(value: Any, path: str) -> list[str]:
    found: list[str] = []
    if isinstance(value, _Pairs):
        seen = set()
        for name, item in value:
            place = f"{path}.{name}" if path else name
            if name in seen:
                found.append(place)
            seen.add(name)
            found += _twice(item, place)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += _twice(item, f"{path}[{index}]")
    return found
