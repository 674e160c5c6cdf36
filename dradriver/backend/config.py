"""Strict decoding of what users write: options of a backend and the opaque configuration of a claim.

Types are `msgspec.Struct`s; fields are written in camelCase. An error names the path of the field, what stood
there and what is allowed.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar, get_args

import msgspec

from dradriver.model.text import shown

API_VERSION = "dradriver.io/v1alpha1"

T = TypeVar("T")

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
    keys = [part for part in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", where) if any(part)]
    full = path + "".join(f".{name}" if name else f"[{index}]" for name, index in keys)
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
        return ConfigError(full, f"a key: {_line(reason)}")
    found = _found(value, keys)
    return ConfigError(full, _line(reason) + (f", found {found}" if found is not None else ""))


def _line(reason: str) -> str:
    """Return a reason, which may quote what the user wrote, as one line of bounded length."""
    line = reason if reason.isprintable() else ascii(reason)[1:-1]
    return line if len(line) <= 300 else f"{line[:300]}... ({len(line)} characters)"


def _found(value: Any, keys: Sequence[tuple[str, str]]) -> str | None:
    """Return what stands at the path, where it is a scalar that is worth showing, as text."""
    for name, index in keys:
        if name and isinstance(value, Mapping):
            value = value.get(name)
        elif index.isdigit() and isinstance(value, Sequence) and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return shown(value) if isinstance(value, str | int | float | bool) else None


def _choices(kind: Any) -> list[str]:
    """Return what an enum, a Literal or an optional one of them admits."""
    choices: list[str] = []
    for candidate in [kind, *get_args(kind)]:
        if isinstance(candidate, type) and issubclass(candidate, Enum):
            choices += [str(member.value) for member in candidate]
        elif isinstance(candidate, str | int) and not isinstance(candidate, bool):
            choices.append(str(candidate))
        else:
            choices += [str(value) for value in get_args(candidate) if isinstance(value, str | int)]
    return list(dict.fromkeys(choices))


def _type_at(kind: Any, keys: Sequence[tuple[str, str]]) -> Any:
    """Return the type that is expected at the path below `kind`; None where that is not one type."""
    for name, _ in keys:
        kinds = [kind, *get_args(kind)]
        if name:
            fields = [f for k in kinds if _is_struct(k) for f in msgspec.structs.fields(k)]
            kind = next((f.type for f in fields if f.encode_name == name), None)
        else:
            items = [k for k in get_args(kind) if k is not Ellipsis]
            kind = items[-1] if items else None
    return kind


def _owner(kind: Any, keys: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the field names that are allowed at the path below `kind`, empty where that is not one type."""
    kind = _type_at(kind, keys)
    for candidate in [kind, *get_args(kind)]:
        if _is_struct(candidate):
            return tuple(f.encode_name for f in msgspec.structs.fields(candidate))
    return ()


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
