"""The most that evaluating a device selector can cost, in CEL's units.

Only the upper bound is estimated, which is what the server limits. Sizes come from what the API limits: 32 attributes,
64 bytes of text. Functions of the libraries that no selector has a use for cost one unit here, while a real server
estimates each by the sizes of its arguments.

Facts: cel-go checker/cost.go, apiserver pkg/cel/library/cost.go, dynamic-resource-allocation/cel `sizeEstimator`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dradriver.sim.apiserver.rules.cel_tree import Call, Constant, Fold, Ident, ListOf, MapOf, Node, Select
from dradriver.sim.apiserver.rules.cel_types import BYTES, STRING, CelType, unwrapped

UNBOUNDED: Final = 2**64 - 1

_LIST: Final = 10
_MAP: Final = 30
_TRAVERSAL: Final = 0.1
_REGEX: Final = 0.25
_MAX_INCLUDED: Final = 48
_SCALARS: Final = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})
_COMPARED: Final = frozenset(
    {"equals", "not_equals"}
    | {
        f"{word}_{one}"
        for word in ("less", "less_equals", "greater", "greater_equals")
        for one in ("string", "bytes")
    }
)


@dataclass(frozen=True, slots=True)
class Sized:
    """What is known of the values below a variable: how large, and the parts of a map or list, or the fields."""

    most: int
    keys: "Sized | None" = None
    values: "Sized | None" = None
    fields: Mapping[str, "Sized"] = field(default_factory=dict)


Path = tuple[str, ...]


@dataclass(slots=True)
class _Variable:
    path: Path
    size: int | None


@dataclass
class Estimator:
    """Estimates a checked expression, given the sizes of its variables."""

    sizes: Mapping[str, Sized]
    _paths: dict[int, Path] = field(default_factory=dict)
    _computed: dict[int, int] = field(default_factory=dict)
    _entries: dict[int, int] = field(default_factory=dict)
    _scopes: dict[str, list[_Variable]] = field(default_factory=dict)

    def cost(self, node: Node) -> int:
        """Return the most that evaluating `node` can cost."""
        return min(self._cost(node), UNBOUNDED)

    def _cost(self, node: Node) -> int:
        cost = 0
        match node:
            case Ident():
                local = self._local(node.name)
                self._paths[id(node)] = (node.name,) if local is None else local.path
                cost = 1
            case Select():
                cost = self._select(node)
            case Call():
                cost = self._call(node)
            case ListOf():
                cost = _LIST + sum(self._cost(item) for item in node.items)
                self._entries[id(node)] = max((self._size(item) for item in node.items), default=0)
            case MapOf():
                parts = [part for key, value, _ in node.entries for part in (key, value)]
                cost = _MAP + sum(self._cost(part) for part in parts)
            case Fold():
                cost = self._bind(node) if _is_bind(node) else self._fold(node)
        return cost

    def _select(self, node: Select) -> int:
        cost = self._cost(node.operand)
        # Kubernetes counts no presence test (has).
        if node.test:
            return cost
        target = unwrapped(node.operand.type)[0]
        self._paths[id(node)] = (*self._path(node.operand), node.field_name)
        return cost + 1 if target.kind in {"map", "struct"} else cost

    def _call(self, node: Call) -> int:
        size: int | None = None
        if node.function == "dyn":
            cost = self._cost(node.args[0]) + 1
            size = self._known_size(node.args[0])
            if size is not None:
                self._computed[id(node)] = size
            return cost
        costs = [self._cost(arg) for arg in node.args]
        target = 0 if node.target is None else self._cost(node.target)
        most = 0
        for overload in node.overloads:
            cost, result = self._overload(node, overload, costs)
            most = max(most, cost)
            size = result if size is None else max(size, result or 0)
        for overload, place in (("index_list", "@items"), ("index_map", "@values")):
            if overload in node.overloads:
                self._paths[id(node)] = (*self._path(node.args[0]), place)
                size = self._entries.get(id(node.args[0]), self._known_size(node))
        if size is not None:
            self._computed[id(node)] = size
        return target + most

    def _overload(self, node: Call, overload: str, costs: Sequence[int]) -> tuple[int, int | None]:
        """Return the cost of one overload with its arguments, and the size of its result where that is known."""
        total, args = sum(costs), node.args
        if overload in {"logical_and", "logical_or"}:
            return total, None
        if overload == "conditional":
            return costs[0] + max(costs[1:]), max(self._size(args[1]), self._size(args[2]))
        if overload in _COMPARED:
            return total + _scaled(min(self._size(args[0]), self._size(args[1])), _TRAVERSAL), None
        if overload in {"add_string", "add_bytes", "add_list"}:
            both = self._size(args[0]) + self._size(args[1])
            return total + (1 if overload == "add_list" else _scaled(both, _TRAVERSAL)), both
        if overload == "in_list":
            return total + self._size(args[1]), None
        cost, size = self._function(node, overload)
        return total + cost, size

    def _function(self, node: Call, overload: str) -> tuple[int, int | None]:
        target = 0 if node.target is None else self._size(node.target)
        first = self._size(node.args[0]) if node.args else 0
        cost: int = 1
        size: int | None = None
        match node.function:
            case "startsWith" | "endsWith":
                cost = _scaled(first, _TRAVERSAL)
            case "contains":
                cost = _scaled(target, _TRAVERSAL) * _scaled(first, _TRAVERSAL)
            case "matches" | "find" | "findAll":
                text, pattern = (target, first) if node.target else (first, self._size(node.args[1]))
                cost = _scaled(text + 1, _TRAVERSAL) * _scaled(pattern, _REGEX)
                size = None if node.function == "matches" else text
            case "includes":
                cost = _MAX_INCLUDED
            case "lowerAscii" | "upperAscii" | "substring" | "trim":
                cost, size = _scaled(target, _TRAVERSAL), target
            case "replace" | "split":
                cost, size = _scaled(target, 2 * _TRAVERSAL), self._replaced(node, target)
            case "quantity" | "isQuantity" | "semver" | "isSemver" | "format":
                cost = _scaled(target or first, _TRAVERSAL)
            case "indexOf" | "lastIndexOf" | "isSorted" | "sum" | "min" | "max":
                cost = self._searched(node, target)
        return (_scaled(first, _TRAVERSAL), first * 4) if overload == "string_to_bytes" else (cost, size)

    def _replaced(self, node: Call, target: int) -> int:
        if node.function == "split":
            return target
        old, new = self._size(node.args[0]), self._size(node.args[1])
        return target if new <= old else (target + 1) * (new + 1)

    def _searched(self, node: Call, target: int) -> int:
        """Return the cost of going through a list once, each text in it included, or through a text."""
        assert node.target is not None  # noqa: S101 - methods only
        of = node.target.type
        if of.kind != "list":
            return _scaled(target, _TRAVERSAL)
        item = self._entries.get(id(node.target), UNBOUNDED) if of.parts[0] in {STRING, BYTES} else 0
        return target * (1 + _scaled(item, _TRAVERSAL))

    def _fold(self, node: Fold) -> int:
        cost = self._cost(node.range) + self._cost(node.start)
        path, of = self._path(node.range), node.range.type
        item = self._entries.get(id(node.range))
        is_list = of.kind == "list"
        with_values = "@items" if is_list else "@values"
        with_keys = "@indices" if is_list and node.second else "@items" if is_list else "@keys"
        self._push(node.accumulator, self._path(node.start), self._known_size(node.start))
        self._push(node.variable, (*path, with_keys), item)
        if node.second:
            self._push(node.second, (*path, with_values), item)
        step = self._cost(node.condition) + self._cost(node.step)
        self._scopes[node.variable].pop()
        if node.second:
            self._scopes[node.second].pop()
        cost += self._cost(node.result)
        self._scopes[node.accumulator].pop()
        count = self._size(node.range)
        if isinstance(node.start, Constant):
            self._computed[id(node)] = self._size(node.start)
        else:
            self._computed[id(node)] = count
        return cost + count * step

    def _bind(self, node: Fold) -> int:
        cost = self._cost(node.range) + self._cost(node.start)
        self._push(node.accumulator, self._path(node.start), self._known_size(node.start))
        cost += self._cost(node.result)
        self._scopes[node.accumulator].pop()
        size = self._known_size(node.result)
        if size is not None:
            self._computed[id(node)] = size
        return cost

    def _push(self, name: str, path: Path, size: int | None) -> None:
        self._scopes.setdefault(name, []).append(_Variable(path, size))

    def _local(self, name: str) -> _Variable | None:
        scope = self._scopes.get(name)
        return scope[-1] if scope else None

    def _path(self, node: Node) -> Path:
        if isinstance(node, Ident):
            local = self._local(node.name)
            if local is not None:
                return local.path
        return self._paths.get(id(node), ())

    def _size(self, node: Node) -> int:
        size = self._known_size(node)
        return UNBOUNDED if size is None else size

    def _known_size(self, node: Node) -> int | None:
        if id(node) in self._computed:
            return self._computed[id(node)]
        literal = _literal_size(node)
        if literal is not None:
            return literal
        known = self._declared(self._path(node))
        if known is not None:
            return known.most
        if _is_scalar(node.type):
            return 1
        if isinstance(node, Ident):
            local = self._local(node.name)
            if local is not None:
                return local.size
        return None

    def _declared(self, path: Path) -> Sized | None:
        known = self.sizes.get(path[0]) if path else None
        for name in path[1:]:
            if known is None:
                return None
            if name == "@keys":
                known = known.keys
            elif name in {"@items", "@values"}:
                known = known.values
            else:
                # A map of attributes is selected from by their names.
                known = known.fields.get(name) or known.values
        return known


def _is_bind(node: Fold) -> bool:
    return isinstance(node.range, ListOf) and not node.range.items and isinstance(node.condition, Constant)


def _literal_size(node: Node) -> int | None:
    match node:
        case Constant():
            return len(node.value) if node.of in {STRING, BYTES} else 1
        case ListOf():
            return len(node.items)
        case MapOf():
            return len(node.entries)
        case _:
            return None


def _is_scalar(one: CelType) -> bool:
    return unwrapped(one)[0].kind in _SCALARS


def _scaled(size: int, factor: float) -> int:
    """Return a size times a factor, rounded up."""
    return UNBOUNDED if size >= UNBOUNDED else math.ceil(size * factor)
