"""The types of CEL expressions, and when one will do for another.

Facts: cel-go checker/types.go (unification, "more general"), checker/format.go and common/types (how types are shown).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CelType:
    """A type: its kind, the name of an opaque type, a struct or a parameter, and what it is made of."""

    kind: str
    name: str = ""
    parts: tuple["CelType", ...] = ()

    def __str__(self) -> str:
        """As cel-go's Type.String() shows it."""
        return _shown(self, _NAMES)

    def described(self) -> str:
        """As cel-go's type checker shows it in errors."""
        return _shown(self, _ERROR_NAMES)


BOOL: Final = CelType("bool")
INT: Final = CelType("int")
UINT: Final = CelType("uint")
DOUBLE: Final = CelType("double")
STRING: Final = CelType("string")
BYTES: Final = CelType("bytes")
NULL: Final = CelType("null")
TIMESTAMP: Final = CelType("timestamp")
DURATION: Final = CelType("duration")
DYN: Final = CelType("dyn")
ANY: Final = CelType("any")
ERROR: Final = CelType("error")
DEVICE: Final = CelType("struct", "kubernetes.DRADevice")

_SIMPLE: Final = {
    one.kind: one for one in (BOOL, INT, UINT, DOUBLE, STRING, BYTES, NULL, TIMESTAMP, DURATION, DYN, ANY)
}
_NAMES: Final = {
    "null": "null_type",
    "any": "google.protobuf.Any",
    "timestamp": "google.protobuf.Timestamp",
    "duration": "google.protobuf.Duration",
}
_ERROR_NAMES: Final = {"error": "!error!"}

Substitutions = Mapping[CelType, CelType]


def list_of(item: CelType) -> CelType:
    """Return the type of a list."""
    return CelType("list", "", (item,))


def map_of(key: CelType, value: CelType) -> CelType:
    """Return the type of a map."""
    return CelType("map", "", (key, value))


def optional_of(value: CelType) -> CelType:
    """Return the type of an optional value."""
    return CelType("opaque", "optional_type", (value,))


def is_dyn(one: CelType) -> bool:
    """Whether a type is known at run time only."""
    return one.kind in {"dyn", "any"}


def unwrapped(one: CelType) -> tuple[CelType, bool]:
    """Return the type in an optional one, and whether it was optional."""
    return (one.parts[0], True) if one.kind == "opaque" and one.name == "optional_type" else (one, False)


_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*|[(),]")


def type_of(text: str) -> CelType:
    """Read a type as the tables write it: "map(string, list(A))"; one capital letter is a type parameter."""
    words = _WORD.findall(text)
    made, rest = _read(words)
    if rest:
        raise ValueError(f"CEL type {text!r}: {''.join(rest)} is too much")
    return made


def _read(words: Sequence[str]) -> tuple[CelType, Sequence[str]]:
    name, rest, parts = words[0], words[1:], []
    if rest and rest[0] == "(":
        while rest[0] != ")":
            part, rest = _read(rest[1:])
            parts.append(part)
        rest = rest[1:]
    if name in _SIMPLE:
        return _SIMPLE[name], rest
    if len(name) == 1:
        return CelType("param", name), rest
    if name in {"list", "map", "type"}:
        return CelType(name, "", tuple(parts)), rest
    if name == "optional":
        return optional_of(parts[0]), rest
    return CelType("opaque", name, tuple(parts)), rest


def substituted(known: Substitutions, one: CelType, *, finally_dyn: bool = False) -> CelType:
    """Return a type with its parameters replaced; unknown ones are dyn in the end."""
    found = known.get(one)
    if found is not None:
        return substituted(known, found, finally_dyn=finally_dyn)
    if one.kind == "param":
        return DYN if finally_dyn else one
    if not one.parts:
        return one
    parts = tuple(substituted(known, part, finally_dyn=finally_dyn) for part in one.parts)
    return one if parts == one.parts else CelType(one.kind, one.name, parts)


def unified(
    known: Substitutions, given: Iterable[CelType], wanted: Iterable[CelType]
) -> dict[CelType, CelType] | None:
    """Return the substitutions with which each given type will do for the wanted one, or None."""
    given, wanted, tried = tuple(given), tuple(wanted), dict(known)
    if len(given) != len(wanted):
        return None
    return tried if all(_fits(tried, one, other) for one, other in zip(given, wanted, strict=True)) else None


def most_general(one: CelType, other: CelType) -> CelType:
    """Return the more general of two types that unify."""
    return one if _less_specific(one, other) else other


def _shown(one: CelType, names: Mapping[str, str]) -> str:
    name = names.get(one.kind) or one.name or one.kind
    if not one.parts:
        return name
    return f"{name}({', '.join(_shown(part, names) for part in one.parts)})"


def _wild(one: CelType) -> bool:
    return one.kind in {"dyn", "any", "error"}


def _fits(known: dict[CelType, CelType], one: CelType, other: CelType) -> bool:
    if other.kind == "param":
        valid, found = _substitutes(known, one, other)
        if valid or found:
            return valid
    if one.kind == "param":
        return _substitutes(known, other, one)[0]
    if _wild(one) or _wild(other):
        return True
    if "null" in {one.kind, other.kind}:
        nullable = {"opaque", "struct", "any", "duration", "timestamp", "null"}
        return one.kind in nullable and other.kind in nullable
    if one.kind in {"list", "map", "opaque"}:
        return (one.kind, one.name, len(one.parts)) == (other.kind, other.name, len(other.parts)) and all(
            _fits(known, part, wanted) for part, wanted in zip(one.parts, other.parts, strict=True)
        )
    return one.kind == other.kind == "type" or one == other


def _substitutes(known: dict[CelType, CelType], one: CelType, param: CelType) -> tuple[bool, bool]:
    """Return whether `one` can stand for a parameter, and whether something does already."""
    if one == param:
        return True, True
    found = known.get(param)
    if found is not None:
        if one == found:
            return True, True
        if _fits(known, one, found):
            general = most_general(one, found)
            if not _occurs(known, param, general):
                known[param] = general
            return True, True
        return False, True
    if _occurs(known, param, one):
        return False, False
    known[param] = one
    return True, False


def _occurs(known: Substitutions, param: CelType, within: CelType) -> bool:
    if param == within:
        return True
    if within.kind == "param":
        found = known.get(within)
        return found is not None and _occurs(known, param, found)
    return any(_occurs(known, param, part) for part in within.parts)


def _less_specific(one: CelType, other: CelType) -> bool:
    if is_dyn(one) or one.kind == "param":
        return True
    if is_dyn(other) or other.kind == "param":
        return False
    if one.kind != other.kind:
        return False
    if one.kind in {"list", "map", "opaque"}:
        return (one.name, len(one.parts)) == (other.name, len(other.parts)) and all(
            _less_specific(part, against) for part, against in zip(one.parts, other.parts, strict=True)
        )
    return one.kind == "type" or one == other
