"""Strict reading of JSON objects: every key is asked for by name and type, and what is left is refused."""

from collections.abc import Callable
from typing import TypeVar

from dradriver_cdi.errors import CDIError, shown

T = TypeVar("T")


class Fields:
    """The keys of one JSON object at the path `at`, taken one by one; call `end` when all are taken.

    Every method raises CDIError naming the path of the value if it is of another type. JSON null is of no
    type that a CDI spec has. An absent optional key gives the empty value of its type, or None for a number.
    """

    def __init__(self, value: object, at: str) -> None:
        if not isinstance(value, dict):
            raise CDIError(at or "(root)", value, "must be an object")
        self._left: dict[object, object] = dict(value)
        self._at = at

    def path(self, key: str) -> str:
        """Return the path of `key` in this object."""
        return f"{self._at}.{key}" if self._at else key

    def required(self, key: str) -> str:
        """Take a string that must be there."""
        if key not in self._left:
            raise CDIError(self.path(key), None, "is required")
        return self.text(key)

    def text(self, key: str) -> str:
        """Take an optional string."""
        value = self._left.pop(key, "")
        if not isinstance(value, str):
            raise CDIError(self.path(key), value, "must be a string")
        return value

    def integer(self, key: str) -> int | None:
        """Take an optional integer (true, 1.0 and the like are none)."""
        if key not in self._left:
            return None
        return _integer(self._left.pop(key), self.path(key))

    def flag(self, key: str) -> bool:
        """Take an optional boolean."""
        value = self._left.pop(key, False)
        if not isinstance(value, bool):
            raise CDIError(self.path(key), value, "must be true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Take an optional list of strings."""
        return self.items(key, _text)

    def integers(self, key: str) -> tuple[int, ...]:
        """Take an optional list of integers."""
        return self.items(key, _integer)

    def items(self, key: str, decode: Callable[[object, str], T]) -> tuple[T, ...]:
        """Take an optional list; `decode` gets each item and its path."""
        value = self._left.pop(key, [])
        if not isinstance(value, list):
            raise CDIError(self.path(key), value, "must be a list")
        return tuple(decode(item, f"{self.path(key)}[{index}]") for index, item in enumerate(value))

    def item(self, key: str, decode: Callable[[object, str], T]) -> T | None:
        """Take an optional object; `decode` gets it and its path."""
        if key not in self._left:
            return None
        return decode(self._left.pop(key), self.path(key))

    def table(self, key: str) -> dict[str, str]:
        """Take an optional object of strings."""
        value = self._left.pop(key, {})
        if not isinstance(value, dict):
            raise CDIError(self.path(key), value, "must be an object")
        table = {}
        for name, text in value.items():
            at = f"{self.path(key)}[{shown(name)}]"
            table[_text(name, at)] = _text(text, at)
        return table

    def end(self, known: str) -> None:
        """Refuse the keys that nobody took; `known` lists for the message what could have been there."""
        for key in self._left:
            raise CDIError(self._at or "(root)", key, f"unknown key; known are {known}")


def _text(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise CDIError(at, value, "must be a string")
    return value


def _integer(value: object, at: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CDIError(at, value, "must be an integer")
    return value
