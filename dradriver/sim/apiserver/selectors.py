"""Label and field selectors. Pure.

Facts: the grammar of k8s.io/apimachinery/pkg/labels and pkg/fields; which fields a kind knows, and the texts of the
errors, as recorded of a 1.36 server (`list` in the validation vectors).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.kinds import RESOURCE, Kind, Path
from dradriver.sim.apiserver.rules import names

Body = Mapping[str, Any]
Predicate = Callable[[Body], bool]

_SET: Final = re.compile(r"^(?P<key>\S+)\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARE: Final = re.compile(r"^(?P<key>[^=!<>\s]+)\s*(?P<how>==|=|!=|<|>)\s*(?P<value>\S*)$")
_FIELD: Final = re.compile(r"^(?P<key>(?:[^=!]|!(?!=))*?)(?P<how>==|!=|=)(?P<value>.*)$")
_ESCAPED: Final = re.compile(r"\\([\\,=])")


@dataclass(frozen=True, slots=True)
class Selector:
    """What a list or a watch is limited to; `unlimited` where it is not."""

    predicates: tuple[Predicate, ...] = ()

    @property
    def unlimited(self) -> bool:
        """Whether everything matches."""
        return not self.predicates

    def matches(self, obj: Body) -> bool:
        """Whether the object is selected."""
        return all(predicate(obj) for predicate in self.predicates)


EVERYTHING: Final = Selector()


def selector(kind: Kind, labels: str = "", fields: str = "") -> Selector:
    """Return the selector of both parameters of a request. Raises ApiError (400)."""
    if not labels and not fields:
        return EVERYTHING
    return Selector((*_labels(labels), *_fields(kind, fields)))


def _labels(text: str) -> list[Predicate]:
    return [_requirement(term.strip(), text) for term in _split(text) if term.strip()]


def _split(text: str) -> list[str]:
    """Split at the commas that are not in parentheses."""
    terms, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "," and depth == 0:
            terms.append(text[start:position])
            start = position + 1
    return [*terms, text[start:]] if text else []


def _requirement(term: str, text: str) -> Predicate:
    if found := _SET.match(term):
        key, values = found["key"], frozenset(value.strip() for value in found["values"].split(","))
        _check(key, values, text)
        if found["how"] == "in":
            return lambda obj: _label(obj, key) in values
        return lambda obj: _label(obj, key) not in values
    if found := _COMPARE.match(term):
        return _comparison(found["key"], found["how"], found["value"], text)
    absent = term.startswith("!")
    key = term.removeprefix("!").strip()
    _check(key, frozenset(), text)
    return lambda obj: (_label(obj, key) is None) is absent


def _comparison(key: str, how: str, value: str, text: str) -> Predicate:
    if how in {"<", ">"}:
        _check(key, frozenset(), text)
        if not re.fullmatch(r"-?[0-9]+", value):
            raise _unreadable(text, f"for {how!r} operators, the value must be an integer")
        limit = int(value)
        return lambda obj: _compared(_label(obj, key), how, limit)
    _check(key, frozenset({value}), text)
    if how == "!=":
        return lambda obj: _label(obj, key) != value
    return lambda obj: _label(obj, key) == value


def _compared(label: str | None, how: str, limit: int) -> bool:
    if label is None or not re.fullmatch(r"-?[0-9]{1,19}", label):
        return False
    return int(label) > limit if how == ">" else int(label) < limit


def _label(obj: Body, key: str) -> str | None:
    return (obj["metadata"].get("labels") or {}).get(key)


def _check(key: str, values: frozenset[str], text: str) -> None:
    if names.label_key(key):
        raise _unreadable(text, f"{key!r} is not a label key")
    for value in values:
        if names.label_value(value):
            raise _unreadable(text, f"{value!r} is not a label value")


def _unreadable(text: str, why: str) -> ApiError:
    return ApiError(400, f"unable to parse requirement: {why} (in {text!r})")


def _fields(kind: Kind, text: str) -> list[Predicate]:
    terms = [term for term in re.split(r"(?<!\\),", text) if term]
    return [_field(kind, term, text) for term in terms]


def _field(kind: Kind, term: str, text: str) -> Predicate:
    found = _FIELD.match(term)
    if not found:
        raise ApiError(400, f"invalid selector: '{text}'; can't understand '{term}'")
    path = _path(kind, found["key"])
    wanted = _ESCAPED.sub(r"\1", found["value"])
    if found["how"] == "!=":
        return lambda obj: _value(obj, path) != wanted
    return lambda obj: _value(obj, path) == wanted


def _path(kind: Kind, key: str) -> Path:
    if key == "metadata.name":
        return ("metadata", "name")
    if key == "metadata.namespace" and kind.namespace_field:
        return ("metadata", "namespace")
    if key in kind.fields:
        return kind.fields[key]
    if kind.group == RESOURCE and kind.fields:
        raise ApiError(400, f"field label not supported for {kind.api_version}, Kind={kind.name}: {key}")
    if kind.fields:
        raise ApiError(400, f"field label not supported: {key}")
    raise ApiError(400, f'"{key}" is not a known field selector: only "metadata.name", "metadata.namespace"')


def _value(obj: Body, path: Path) -> str:
    value: Any = obj
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
