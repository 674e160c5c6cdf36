"""Strict decoding of what users write: options of a backend and the opaque configuration of a claim.

Types are `msgspec.Struct`s; fields are written in camelCase. An error names the path of the field, what stood
there and what is allowed.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from dradriver.backend.wording import worded
from dradriver.model.text import shown

API_VERSION = "dradriver.io/v1alpha1"

T = TypeVar("T")

_Key = tuple[str, str]
"""A step of a path: the name of a field and "", the key of a map and _MAP, or "" and an index."""

_MAP = "{}"
_MAPS = (dict, Mapping)
_LISTS = (list, tuple, Sequence)

_AT = re.compile(r" - at (?P<key>`key` in )?`(?P<at>\$[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The base of every configuration type: frozen, camelCase, nothing unknown."""


class ClaimConfig(Strict, frozen=True, kw_only=True):
    """The base of the opaque claim configuration of a backend; `kind` is the class name.

    In a claim or a DeviceClass it is written as
    `{apiVersion: dradriver.io/v1alpha1, kind: <class name>, ...fields}`.
    """


class NoOptions(Strict, frozen=True, kw_only=True):
    """The options of a backend that has none."""


class ConfigError(ValueError):
    """A field of a configuration is wrong. `path` says which."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def decode(kind: type[T], value: object, path: str) -> T:
    """Return `value` (plain JSON types) as a `kind`, or raise ConfigError with the field's path below `path`."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(kind, value, path, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(path, _line(str(error))) from None


def _explain(kind: Any, value: object, path: str, message: str) -> ConfigError:
    match = _AT.search(message)
    where = match["at"] if match else "$"
    reason = message[: match.start()] if match else message
    parts = [part for part in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", where) if any(part)]
    keys = _named(kind, value, parts)
    full = path + "".join(_step(name, index) for name, index in keys)
    unknown = _UNKNOWN.match(reason)
    if unknown:
        owner = _owner(kind, keys)
        allowed = f"; allowed are {', '.join(sorted(owner))}" if owner else ""
        name = unknown["name"]
        at = f"{full}.{name}" if _PLAIN.fullmatch(name) else full
        return ConfigError(at, f"unknown field {shown(name)}{allowed}")
    if reason.startswith("Invalid enum value"):
        values = ", ".join(_choices(_type_at(kind, keys)))
        return ConfigError(full, f"{_found(value, keys)} is not one of {values}")
    if match and match["key"]:
        return ConfigError(full, f"a key: {_line(worded(reason, None))}")
    return ConfigError(full, _line(worded(reason, _type_at(kind, keys), _found(value, keys))))


def _named(kind: Any, value: Any, parts: Sequence[_Key]) -> list[_Key]:
    """Return the path with the keys of maps, of which msgspec says no more than `[...]`."""
    keys: list[_Key] = []
    for name, index in parts:
        key: _Key = (name, index)
        if index == "..." and isinstance(value, Mapping):
            inner = _type_at(kind, [key])
            wrong = (
                name for name, inside in value.items() if isinstance(name, str) and not _fits(inner, inside)
            )
            key = next(((name, _MAP) for name in wrong), key)
        kind, value = _type_at(kind, [key]), _inner(value, key)
        keys.append(key)
    return keys


def _fits(kind: Any, value: object) -> bool:
    """Return whether a value is of a type; anything is where that is not one type."""
    try:
        msgspec.convert(value, Any if kind is None else kind, strict=True)
    except (ValueError, RecursionError):
        return False
    return True


def _step(name: str, index: str) -> str:
    """Return one step of a path: the key of a map is quoted where it does not read like a field."""
    if index == _MAP and not _PLAIN.fullmatch(name):
        return f"[{shown(name)}]"
    return f".{name}" if name or index == _MAP else f"[{index}]"


def _line(reason: str) -> str:
    """Return a reason, which may quote what the user wrote, as one line of bounded length."""
    line = reason if reason.isprintable() else ascii(reason)[1:-1]
    return line if len(line) <= 300 else f"{line[:300]}... ({len(line)} characters)"


def _found(value: Any, keys: Sequence[_Key]) -> str | None:
    """Return what stands at the path, where it is a scalar that is worth showing, as text."""
    for key in keys:
        value = _inner(value, key)
    return shown(value) if isinstance(value, str | int | float | bool) else None


def _inner(value: Any, key: _Key) -> Any:
    """Return what stands one step below `value`, None where nothing does."""
    name, index = key
    if isinstance(value, Mapping):
        return value.get(name)
    if index.isdigit() and isinstance(value, Sequence) and int(index) < len(value):
        return value[int(index)]
    return None


def _choices(kind: Any) -> list[str]:
    """Return what an enum, a Literal or an optional one of them admits."""
    choices: list[str] = []
    for candidate in [kind, *get_args(kind)]:
        if isinstance(candidate, type) and issubclass(candidate, Enum):
            choices += [str(member.value) for member in candidate]
        elif candidate is bool:
            choices += ["true", "false"]
        elif isinstance(candidate, str | int) and not isinstance(candidate, bool):
            choices.append(str(candidate))
        else:
            choices += [str(value) for value in get_args(candidate) if isinstance(value, str | int)]
    return list(dict.fromkeys(choices))


def _type_at(kind: Any, keys: Sequence[_Key]) -> Any:
    """Return the type that is expected at the path below `kind`; None where that is not one type."""
    for name, index in keys:
        kinds = [kind, *get_args(kind)]
        if name and index != _MAP:
            fields = [f for k in kinds if _is_struct(k) for f in msgspec.structs.fields(k)]
            kind = next((f.type for f in fields if f.encode_name == name), None)
        else:
            # Of an optional or annotated list or map too: the type of its items, or of its values.
            containers = _LISTS if index.isdigit() else _MAPS
            container = next((k for k in kinds if get_origin(k) in containers), None)
            kind = next((item for item in reversed(get_args(container)) if item is not Ellipsis), None)
    return kind


def _owner(kind: Any, keys: Sequence[_Key]) -> tuple[str, ...]:
    """Return the field names that are allowed at the path below `kind`, empty where that is not one type."""
    kind = _type_at(kind, keys)
    for candidate in [kind, *get_args(kind)]:
        if _is_struct(candidate):
            return tuple(f.encode_name for f in msgspec.structs.fields(candidate))
    return ()


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
