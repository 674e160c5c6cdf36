"""Types of API fields: decoding with the server's errors, pruning, what is left out when stored, comparison.

A decoded value is plain JSON in the server's spelling. A field that is null or missing is missing; a field that the
server always writes (no `omitempty` in its Go type) has its zero value. Empty lists and strings stay until
`Struct.finish`, since validation tells `[]` from nothing.

Everything here is a table that is built once per server version; a body is decoded in one pass without paths, and only
a body with something wrong or unknown in it is walked again for the paths.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dradriver.sim.apiserver.rules import quantities
from dradriver.sim.apiserver.rules.body import RawObject, json_kind, number_text, raw_text
from dradriver.sim.apiserver.rules.errors import quoted
from dradriver.sim.apiserver.rules.times import parse_time

_INT64: Final = range(-(2**63), 2**63)


class DecodeError(Exception):
    """A value that the server cannot decode; the message is its own."""


class MismatchError(DecodeError):
    """A JSON value of the wrong kind. The fields that lead to it are added on the way out."""

    def __init__(self, value: str, go: str) -> None:
        super().__init__()
        self.value = value
        self.go = go
        self.struct = ""
        self.path: list[str] = []

    def __str__(self) -> str:
        path = ".".join(reversed(self.path))
        return (
            f"json: cannot unmarshal {self.value} into Go struct field {self.struct}.{path} of type {self.go}"
        )


@dataclass(slots=True)
class Notes:
    """What decoding has come across: anything unknown, and anything empty that is not stored."""

    unknown: bool = False
    empty: bool = False


class Type:
    """How values of one Go type are read, stored, compared and shown. `go` is its name in messages."""

    go: str = ""
    opaque: bool = False
    """Whether equality needs more than that of the JSON values: quantities, raw bytes."""
    unfinished: bool = False
    """Whether there may be something empty below that is not stored."""

    def decode(self, value: Any, notes: Notes) -> Any:
        """Return a JSON value, which is not null, as the server keeps it. Raises DecodeError."""
        raise NotImplementedError

    def zero(self) -> Any:
        """Return the zero value, which null stands for."""
        return None

    def same(self, one: Any, other: Any) -> bool:
        """Whether two decoded values mean the same (apimachinery `Semantic.DeepEqual`)."""
        return bool(one == other)

    def internal(self, value: Any) -> Any:
        """Return what the JSON of the server's internal type would be, which some messages show."""
        return value

    def finish(self, value: Any) -> None:
        """Remove from a decoded value what is not stored because it is empty."""

    def unknown(self, value: Any, path: str) -> Iterator[str]:
        """Yield the paths of the fields in a JSON value that this type does not have."""
        del value, path
        return iter(())


class String(Type):
    """A string, or a Go type that is one."""

    def __init__(self, go: str = "string") -> None:
        self.go = go

    def decode(self, value: Any, notes: Notes) -> Any:
        del notes
        if isinstance(value, str):
            return value
        raise MismatchError(json_kind(value), self.go)

    def zero(self) -> Any:
        return ""


class Boolean(Type):
    """A bool."""

    go = "bool"

    def decode(self, value: Any, notes: Notes) -> Any:
        del notes
        if isinstance(value, bool):
            return value
        raise MismatchError(json_kind(value), self.go)

    def zero(self) -> Any:
        return False


class Integer(Type):
    """An int64: no fraction and no exponent in its text."""

    go = "int64"

    def decode(self, value: Any, notes: Notes) -> Any:
        del notes
        if type(value) is int and value in _INT64:
            return value
        kind = json_kind(value)
        raise MismatchError(f"number {number_text(value)}" if kind == "number" else kind, self.go)

    def zero(self) -> Any:
        return 0


class QuantityType(Type):
    """A resource.Quantity, kept as the text that the server stores."""

    go = "resource.Quantity"
    opaque = True

    def decode(self, value: Any, notes: Notes) -> Any:
        del notes
        try:
            return quantities.stored(value)
        except ValueError as error:
            raise DecodeError(str(error)) from None

    def zero(self) -> Any:
        return "0"

    def same(self, one: Any, other: Any) -> bool:
        if one == other:
            return True
        if one is None or other is None:
            return False
        return quantities.amount(one) == quantities.amount(other)


class Time(Type):
    """A metav1.Time: RFC 3339, whole seconds, UTC."""

    go = "string"

    def decode(self, value: Any, notes: Notes) -> Any:
        del notes
        if not isinstance(value, str):
            raise MismatchError(json_kind(value), self.go)
        try:
            return parse_time(value)
        except ValueError as error:
            raise DecodeError(str(error)) from None


class Raw(Type):
    """A runtime.RawExtension: any JSON value, taken as bytes."""

    go = "runtime.RawExtension"
    opaque = True

    def decode(self, value: Any, notes: Notes) -> Any:
        del notes
        if isinstance(value, RawObject) or not isinstance(value, dict):
            return value
        return RawObject(value, raw_text(value))

    def same(self, one: Any, other: Any) -> bool:
        return raw_text(one) == raw_text(other)


class Anything(Type):
    """A part that is stored as it comes."""

    go = "interface {}"

    def decode(self, value: Any, notes: Notes) -> Any:
        del notes
        return value


class ListOf(Type):
    """A list; an item that is null is the zero value of its type."""

    def __init__(self, item: Type) -> None:
        self.item = item
        self.go = f"[]{item.go}"
        self.opaque = item.opaque
        self._decode = item.decode
        self.unfinished = item.unfinished

    def decode(self, value: Any, notes: Notes) -> Any:
        if not isinstance(value, list):
            raise MismatchError(json_kind(value), self.go)
        decode, zero = self._decode, self.item.zero
        return [zero() if item is None else decode(item, notes) for item in value]

    def same(self, one: Any, other: Any) -> bool:
        one, other = one or [], other or []
        if len(one) != len(other):
            return False
        return (not self.opaque and one == other) or all(map(self.item.same, one, other))

    def internal(self, value: Any) -> Any:
        return None if value is None else [self.item.internal(item) for item in value]

    def finish(self, value: Any) -> None:
        if self.unfinished:
            for item in value:
                self.item.finish(item)

    def unknown(self, value: Any, path: str) -> Iterator[str]:
        for index, item in enumerate(value):
            if item is not None:
                yield from self.item.unknown(item, f"{path}[{index}]")


class MapOf(Type):
    """A map with keys of the user's; a value that is null is the zero value of its type."""

    def __init__(self, value: Type, key: str = "string") -> None:
        self.value = value
        self.go = f"map[{key}]{value.go}"
        self.opaque = value.opaque
        self.unfinished = value.unfinished
        self._decode = value.decode

    def decode(self, value: Any, notes: Notes) -> Any:
        if not isinstance(value, dict):
            raise MismatchError(json_kind(value), self.go)
        decode, zero = self._decode, self.value.zero
        return {key: zero() if item is None else decode(item, notes) for key, item in value.items()}

    def same(self, one: Any, other: Any) -> bool:
        one, other = one or {}, other or {}
        if one.keys() != other.keys():
            return False
        same = self.value.same
        return (not self.opaque and one == other) or all(same(item, other[key]) for key, item in one.items())

    def internal(self, value: Any) -> Any:
        return None if value is None else {key: self.value.internal(value[key]) for key in sorted(value)}

    def finish(self, value: Any) -> None:
        if self.unfinished:
            for item in value.values():
                self.value.finish(item)

    def unknown(self, value: Any, path: str) -> Iterator[str]:
        for key, item in value.items():
            if item is not None:
                yield from self.value.unknown(item, f"{path}.{key}")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct.

    pointer   missing is something else than the zero value (a Go pointer)
    always    written even when empty (no `omitempty`), or a struct, for which Go's omitempty does nothing
    go        the field's name in Go, where it is not the JSON name with a capital
    inline    the internal type embeds it: its JSON is among that of the fields beside it
    """

    name: str
    type: Type
    pointer: bool = False
    always: bool = False
    go: str = ""
    inline: bool = False

    @property
    def go_name(self) -> str:
        """The name in Go."""
        return self.go or self.name[:1].upper() + self.name[1:]

    @property
    def omitted(self) -> bool:
        """Whether an empty value is left out when stored."""
        return not self.always and not self.pointer


class Struct(Type):
    """An object with fields that are known. An `open` one keeps what it does not know."""

    def __init__(self, go: str, fields: Sequence[Field], *, open: bool = False) -> None:  # noqa: A002 - a word
        self.go = go
        self.fields = fields
        self.open = open
        self.opaque = any(one.type.opaque for one in fields)
        self._types = {one.name: one.type for one in fields}
        self._decoders = {one.name: one.type.decode for one in fields}
        self._zeros = [(one.name, _nothing if one.pointer else one.type.zero) for one in fields if one.always]
        self._omitted = frozenset(one.name for one in fields if one.omitted)
        self._deep = [one for one in fields if one.type.unfinished]
        self.unfinished = bool(self._omitted or self._deep)

    @property
    def name(self) -> str:
        """The name without its package."""
        return self.go.rpartition(".")[2]

    def field_type(self, name: str) -> "Any":
        """Return the type of a field that is there."""
        return self._types[name]

    def decode(self, value: Any, notes: Notes) -> Any:
        if not isinstance(value, dict):
            raise MismatchError(json_kind(value), self.go)
        decoders, omitted, made = self._decoders, self._omitted, {}
        name = ""
        try:
            for name, item in value.items():
                decode = decoders.get(name)
                if decode is None:
                    if self.open:
                        made[name] = item
                    else:
                        notes.unknown = True
                elif item is not None:
                    decoded = made[name] = decode(item, notes)
                    if not decoded and name in omitted:
                        notes.empty = True
        except MismatchError as error:
            error.struct = error.struct or self.name
            error.path.append(name)
            raise
        for name, zero in self._zeros:
            if name not in made:
                made[name] = zero()
        return made

    def zero(self) -> Any:
        return self.decode({}, Notes())

    def same(self, one: Any, other: Any) -> bool:
        if one is None or other is None:
            return one is other
        if not self.opaque and one == other:
            return True
        return all(_same_field(known, one.get(known.name), other.get(known.name)) for known in self.fields)

    def internal(self, value: Any) -> Any:
        shown: dict[str, Any] = {}
        for known in self.fields:
            item = value.get(known.name)
            if item is None and not known.pointer:
                nothing = isinstance(known.type, ListOf | MapOf)
                item = None if nothing else known.type.zero()
            if known.inline and isinstance(known.type, Struct):
                shown |= known.type.written(item)
            else:
                shown[known.go_name] = None if item is None else known.type.internal(item)
        return shown

    def written(self, value: Any) -> Any:
        """Return the JSON of an API type: in the order of its fields, without the empty ones, maps sorted."""
        return {
            known.name: dict(sorted(item.items())) if isinstance(known.type, MapOf) else item
            for known in self.fields
            if (item := value.get(known.name))
        }

    def finish(self, value: Any) -> None:
        if not self.unfinished:
            return
        for name in [name for name, item in value.items() if not item and name in self._omitted]:
            del value[name]
        for known in self._deep:
            item = value.get(known.name)
            if item:
                known.type.finish(item)

    def unknown(self, value: Any, path: str) -> Iterator[str]:
        for name, item in value.items():
            place = f"{path}.{name}" if path else name
            if name in self._types:
                if item is not None:
                    yield from self._types[name].unknown(item, place)
            elif not self.open:
                yield place


def _nothing() -> None:
    return None


def _same_field(known: Field, one: Any, other: Any) -> bool:
    if one is None or other is None:
        if known.pointer:
            return one is other
        if not one and not other:
            return True
        zero = known.type.zero()
        one, other = (zero if one is None else one), (zero if other is None else other)
    return known.type.same(one, other)


def unknown_fields(struct: Struct, value: Mapping[str, Any]) -> list[str]:
    """Return the paths of the fields of a body that its kind does not have, in their order."""
    return [f"unknown field {quoted(path)}" for path in struct.unknown(value, "")]


def present(fields: Iterable[Field | None]) -> list[Field]:
    """Return the fields without those that a version does not have (None)."""
    return [one for one in fields if one is not None]
