"""What the API server says when it refuses a request: `Refused` with its causes, in the server's own words.

The texts are those of k8s.io/apimachinery `util/validation/field` and `api/errors` (1.36).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_SHORT_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of `details.causes` of a Status: `reason` is a CauseType such as FieldValueInvalid."""

    field: str
    reason: str
    message: str


class Refused(Exception):  # noqa: N818 - an answer of the server, not a fault of ours
    """The answer to a request without success.

    `code` is the HTTP status and `reason` the Status's; code 0 stands for a handler that panicked: the server
    closes the connection without an answer.
    """

    def __init__(self, code: int, reason: str, message: str, causes: Iterable[Cause] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)


def panicked(why: str) -> Refused:
    """Return the end of a request whose handler panics in a real server: no answer, the connection is closed."""
    return Refused(0, "", f"connection closed without a response ({why})")


@dataclass(frozen=True, slots=True)
class Literal:
    """A bad value whose JSON text is already made, to be shown as it is."""

    text: str


class Problems:
    """The errors that the validation of one object has found, in the order of finding."""

    def __init__(self) -> None:
        self._found: list[Cause] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[Cause]:
        return iter(self._found)

    def required(self, field: str, detail: str = "") -> None:
        """Report a value that is missing or empty."""
        self._add(field, "FieldValueRequired", "Required value", detail)

    def invalid(self, field: str, value: object, detail: str) -> None:
        """Report a malformed value."""
        self._add(field, "FieldValueInvalid", f"Invalid value: {shown(value)}", detail)

    def unsupported(self, field: str, value: str, supported: Iterable[str]) -> None:
        """Report a value that is none of an enumeration's."""
        values = ", ".join(quoted(one) for one in supported)
        self._add(
            field,
            "FieldValueNotSupported",
            f"Unsupported value: {shown(value)}",
            f"supported values: {values}",
        )

    def forbidden(self, field: str, detail: str) -> None:
        """Report a value that other values or a policy do not allow."""
        self._add(field, "FieldValueForbidden", "Forbidden", detail)

    def duplicate(self, field: str, value: object) -> None:
        """Report a second value where each may be there once."""
        self._add(field, "FieldValueDuplicate", f"Duplicate value: {shown(value)}")

    def not_found(self, field: str, value: object) -> None:
        """Report a reference to nothing."""
        self._add(field, "FieldValueNotFound", f"Not found: {shown(value)}")

    def too_long(self, field: str, limit: int) -> None:
        """Report a text of more than `limit` bytes."""
        self._add(field, "FieldValueTooLong", "Too long", f"may not be more than {limit} bytes")

    def too_many(self, field: str, count: int, limit: int) -> None:
        """Report a list or map of more than `limit` items."""
        self._add(field, "FieldValueTooMany", f"Too many: {count}", f"must have at most {limit} items")

    def invalid_for(self, field: str, value: object, details: Iterable[str]) -> None:
        """Report `value` once for each of `details`."""
        for detail in details:
            self.invalid(field, value, detail)

    def refuse(self, kind: str, group: str, name: str) -> None:
        """Raise `Refused` (422) if anything was found."""
        if not self._found:
            return
        qualified = f"{kind}.{group}" if group else kind
        texts = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in self._found))
        summary = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        raise Refused(422, "Invalid", f"{qualified} {quoted(name)} is invalid: {summary}", self._found)

    def _add(self, field: str, reason: str, *parts: str) -> None:
        self._found.append(Cause(field, reason, ": ".join(part for part in parts if part)))


def shown(value: object) -> str:
    """Return a bad value as the server prints it: a string quoted, a bool or number plain, the rest as JSON."""
    match value:
        case Literal():
            return value.text
        case str():
            return quoted(value)
        case _:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def quoted(text: str) -> str:
    """Return `text` quoted as Go's %q does."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    short = _SHORT_ESCAPES.get(character)
    if short is not None:
        return short
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
