"""Sets of fields of an object: which there are, which differ, how they are written in managedFields. Pure.

A field is a path of elements in the notation of fieldsV1: `f:name` for a field, `k:{"type":"Ready"}` for an item of a
list with keys, `v:"text"` for a value of a set.

Facts: sigs.k8s.io/structured-merge-diff (fieldpath, typed: ToFieldSet, Compare, RemoveItems).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from dradriver.sim.apiserver.shapes import PLAIN, Merge, Shape

Path = tuple[str, ...]
Fields = frozenset[Path]

NONE: Final[Fields] = frozenset()
_MAX_DEPTH: Final = 100


class FieldsError(ValueError):
    """A list that cannot be matched by its keys, or a managedFields entry that cannot be read."""


class Difference(NamedTuple):
    """The fields in which two objects differ."""

    added: Fields
    modified: Fields
    removed: Fields


def element(item: Any, shape: Shape) -> str:
    """Return the path element of a list's item. Raises FieldsError."""
    if shape.merge is Merge.SET:
        return f"v:{_json(item)}"
    if not isinstance(item, Mapping):
        raise FieldsError("associative list with keys may not have non-map elements")
    key = {name: item[name] for name in shape.keys if name in item}
    if not key:
        raise FieldsError(
            f"associative list with keys has an element that omits all of {', '.join(shape.keys)}"
        )
    return f"k:{_json(key)}"


def items(values: Any, shape: Shape, where: Path = ()) -> dict[str, Any]:
    """Return the items of a list by path element. Raises FieldsError for items that cannot be told apart."""
    found: dict[str, Any] = {}
    for item in values or ():
        name = element(item, shape)
        if name in found:
            raise FieldsError(f"{shown_path(where)}: duplicate entries for key {shown_path((name,))}")
        found[name] = item
    return found


def fields_of(value: Any, shape: Shape) -> Fields:
    """Return all fields that a value sets. Raises FieldsError."""
    return frozenset(_walk(value, shape, ()))


def _walk(value: Any, shape: Shape, path: Path) -> Iterator[Path]:
    if isinstance(value, Mapping) and shape.merge in {Merge.FIELDS, Merge.ENTRIES}:
        for name, child in value.items():
            below = (*path, f"f:{name}")
            yield from _walk(child, shape.child(name, child), below)
            if child == {}:
                yield below
    elif isinstance(value, list) and shape.merge in {Merge.KEYED, Merge.SET}:
        for name, item in items(value, shape, path).items():
            below = (*path, name)
            yield below
            if shape.merge is Merge.KEYED:
                yield from _walk(item, shape.item, below)
    elif path:
        yield path


def difference(old: Any, new: Any, shape: Shape) -> Difference:
    """Return the fields in which `new` differs from `old`. Raises FieldsError."""
    added: set[Path] = set()
    modified: set[Path] = set()
    removed: set[Path] = set()
    _compare(old, new, shape, (), (added, modified, removed))
    return Difference(frozenset(added), frozenset(modified), frozenset(removed))


def _compare(
    old: Any, new: Any, shape: Shape, path: Path, found: tuple[set[Path], set[Path], set[Path]]
) -> None:
    added, modified, removed = found
    olds, news = _children(old, shape, path), _children(new, shape, path)
    if olds is None or news is None:
        if not same(old, new):
            modified.add(path)
        return
    for name in olds.keys() | news.keys():
        below = (*path, name)
        if name not in news:
            removed.add(below)
            removed.update(_walk(olds[name], _below(shape, name, olds[name]), below))
        elif name not in olds:
            added.add(below)
            added.update(_walk(news[name], _below(shape, name, news[name]), below))
        elif shape.merge is not Merge.SET:
            _compare(olds[name], news[name], _below(shape, name, news[name]), below, found)


def _children(value: Any, shape: Shape, path: Path) -> dict[str, Any] | None:
    """Return what is merged one by one, by path element; None where it is a plain value."""
    if isinstance(value, Mapping) and shape.merge in {Merge.FIELDS, Merge.ENTRIES}:
        return {f"f:{name}": child for name, child in value.items()}
    if isinstance(value, list) and shape.merge in {Merge.KEYED, Merge.SET}:
        return items(value, shape, path)
    return None


def _below(shape: Shape, name: str, value: Any) -> Shape:
    return shape.child(name[2:], value) if name.startswith("f:") else shape.item


def same(old: Any, new: Any) -> bool:
    """Whether two values are equal as JSON, where `1` and `true` differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(same, old, new))
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def without(value: Any, gone: Fields, shape: Shape) -> Any:
    """Return `value` without the fields in `gone`; objects and lists that become empty on the way go too."""
    return _without(value, gone, {path[:length] for path in gone for length in range(len(path))}, shape, ())


def _without(value: Any, gone: Fields, touched: set[Path], shape: Shape, path: Path) -> Any:
    children = _children(value, shape, path) if path in touched else None
    if children is None:
        return value
    kept: dict[str, Any] = {}
    for name, child in children.items():
        below = (*path, name)
        if below in gone:
            continue
        kept[name] = child
        if below in touched:
            kept[name] = _without(child, gone, touched, _below(shape, name, child), below)
    if isinstance(value, list):
        return [child for child in kept.values() if child is not None] or None
    return {name[2:]: child for name, child in kept.items() if not _emptied(children[name], child)} or None


def _emptied(before: Any, after: Any) -> bool:
    return after is None and before is not None


def with_parents(paths: Fields, shape: Shape) -> Fields:
    """Return the fields together with the objects that they are fields of; not the items of lists."""
    found = set(paths)
    for path in paths:
        current = shape
        for depth, name in enumerate(path[:-1]):
            data = current.merge is Merge.ENTRIES
            current = current.fields.get(name[2:], PLAIN) if name.startswith("f:") else current.item
            if name.startswith("f:") and not data:
                found.add(path[: depth + 1])
    return frozenset(found)


def below(paths: Fields, tops: Iterable[Path]) -> Fields:
    """Return the fields that are, or are below, one of `tops`."""
    starts = tuple(tops)
    return frozenset(path for path in paths if any(path[: len(top)] == top for top in starts))


def to_json(paths: Fields) -> dict[str, Any]:
    """Return the fields as in `fieldsV1`."""
    tree: dict[str, Any] = {}
    for path in sorted(paths):
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node["."] = {}
    return _pruned(tree)


def _pruned(tree: dict[str, Any]) -> dict[str, Any]:
    """A leaf needs no dot to be a member; an inner node does."""
    return {
        name: {} if name == "." or child.keys() == {"."} else _pruned(child) for name, child in tree.items()
    }


def from_json(tree: Any) -> Fields:
    """Return the fields behind `fieldsV1`. Raises FieldsError."""
    return frozenset(_members(tree, ()))


def _members(tree: Any, path: Path) -> Iterator[Path]:
    if not isinstance(tree, Mapping) or len(path) > _MAX_DEPTH:
        raise FieldsError("fieldsV1 is an object of objects")
    if path and (not tree or "." in tree):
        yield path
    for name, child in tree.items():
        if name == ".":
            continue
        if not isinstance(name, str) or name[:2] not in {"f:", "k:", "v:", "i:"}:
            raise FieldsError(f"fieldsV1: {name!r} is not a path element")
        yield from _members(child, (*path, name))


def shown_path(path: Path) -> str:
    """Return a path as people read it: `.status.conditions[type="Ready"]`."""
    return "".join(map(_shown, path))


def _shown(name: str) -> str:
    if name.startswith("f:"):
        return f".{name[2:]}"
    if name.startswith("k:"):
        return f"[{','.join(f'{key}={_json(value)}' for key, value in json.loads(name[2:]).items())}]"
    return f"[{name[2:]}]"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
