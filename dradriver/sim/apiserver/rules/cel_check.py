"""The type checker for CEL device selectors.

It finds what cel-go's checker finds, in its words: undeclared names, fields that the device does not have, calls
without an overload. A real server also looks into literals of durations, timestamps and regular expressions.

Facts: cel-go checker/checker.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dradriver.sim.apiserver.rules.cel_library import Overload
from dradriver.sim.apiserver.rules.cel_tree import (
    Call,
    CelError,
    Constant,
    Fold,
    Ident,
    ListOf,
    MapOf,
    Message,
    Node,
    Select,
)
from dradriver.sim.apiserver.rules.cel_types import (
    BOOL,
    DYN,
    ERROR,
    INT,
    STRING,
    CelType,
    is_dyn,
    list_of,
    map_of,
    most_general,
    optional_of,
    substituted,
    unified,
    unwrapped,
)

_TYPE_NAMES: Final = (
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
)


@dataclass(frozen=True)
class Environment:
    """What an expression can refer to: variables, the fields of structs, functions."""

    variables: Mapping[str, CelType]
    structs: Mapping[str, Mapping[str, CelType]]
    functions: Mapping[str, Sequence[Overload]]


@dataclass
class Checker:
    """Gives every node its type and the overloads it may mean; `errors` says what is wrong."""

    environment: Environment
    errors: list[CelError] = field(default_factory=list)
    _scopes: list[dict[str, CelType]] = field(default_factory=list)
    _known: dict[CelType, CelType] = field(default_factory=dict)
    _fresh: int = 0

    def check(self, node: Node) -> CelType:
        """Check a whole expression and return the type of its value."""
        self._check(node)
        _finish(node, self._known)
        return node.type

    def _error(self, node: Node, message: str) -> None:
        self.errors.append(CelError(message, node.position))

    def _check(self, node: Node) -> CelType:
        match node:
            case Constant():
                node.type = node.of
            case Ident():
                node.type = self._ident(node)
            case Select():
                node.type = self._select(node)
            case Call():
                node.type = self._call(node)
            case ListOf():
                node.type = self._list(node)
            case MapOf():
                node.type = self._map(node)
            case Fold():
                node.type = self._fold(node)
            case Message():
                self._undeclared(node, node.name)
        return node.type

    def _undeclared(self, node: Node, name: str) -> None:
        self._error(node, f"undeclared reference to '{name}' (in container '')")

    def _lookup(self, name: str) -> CelType | None:
        if not name.startswith("."):
            for scope in reversed(self._scopes):
                if name in scope:
                    return scope[name]
        bare = name.removeprefix(".")
        if bare in _TYPE_NAMES:
            return CelType("type")
        return self.environment.variables.get(bare)

    def _ident(self, node: Ident) -> CelType:
        found = self._lookup(node.name)
        if found is None:
            self._undeclared(node, node.name)
            return ERROR
        return found

    def _select(self, node: Select) -> CelType:
        qualified = None if node.test else _qualified(node)
        if qualified is not None:
            found = self._lookup(qualified)
            if found is not None:
                return found
        result = self._field(node, node.operand, node.field_name)
        return BOOL if node.test else result

    def _field(self, node: Node, operand: Node, name: str, *, optional: bool = False) -> CelType:
        target, was_optional = unwrapped(substituted(self._known, self._check(operand)))
        result = DYN
        if target.kind == "map":
            result = target.parts[1]
        elif target.kind == "struct":
            result = self.environment.structs[target.name].get(name, ERROR)
            if result is ERROR:
                self._error(node, f"undefined field '{name}'")
        elif target.kind == "param":
            self._assignable(DYN, target)
        elif not is_dyn(target) and target is not ERROR:
            self._error(node, f"type '{target.described()}' does not support field selection")
        return optional_of(result) if optional or was_optional else substituted(self._known, result)

    def _call(self, node: Call) -> CelType:
        if node.function == "_?._":
            node.overloads.append("select_optional_field")
            name = node.args[1]
            name.type = STRING
            text = str(name.value) if isinstance(name, Constant) else ""
            return self._field(node, node.args[0], text, optional=True)
        for arg in node.args:
            self._check(arg)
        functions = self.environment.functions
        if node.target is not None:
            prefix = _qualified(node.target)
            namespaced = functions.get(f"{prefix}.{node.function}") if prefix else None
            if namespaced is not None:
                node.function, node.target = f"{prefix}.{node.function}", None
                return self._resolve(node, namespaced)
            self._check(node.target)
        found = functions.get(node.function.removeprefix("."))
        if found is None:
            self._undeclared(node, node.function)
            return ERROR
        return self._resolve(node, found)

    def _resolve(self, node: Call, overloads: Sequence[Overload]) -> CelType:
        given = [arg.type for arg in node.args]
        if node.function in {"_&&_", "_||_"}:
            return self._logical(node, overloads[0].id)
        if node.target is not None:
            given.insert(0, node.target.type)
        result: CelType | None = None
        for overload in overloads:
            if overload.member is not (node.target is not None):
                continue
            fresh: dict[str, CelType] = {}
            wanted = [self._instance(arg, fresh) for arg in overload.args]
            known = unified(self._known, given, wanted)
            if known is None:
                continue
            self._known = known
            node.overloads.append(overload.id)
            this = substituted(known, self._instance(overload.result, fresh))
            if result is None:
                result = this
            elif not is_dyn(result) and this != result:
                result = DYN
        if result is None:
            self._no_overload(node, given)
            return ERROR
        return result

    def _logical(self, node: Call, identity: str) -> CelType:
        node.overloads.append(identity)
        wrong = False
        for arg in node.args:
            if not self._assignable(arg.type, BOOL):
                self._mismatch(arg, BOOL, arg.type)
                wrong = True
        return ERROR if wrong else BOOL

    def _no_overload(self, node: Call, given: Sequence[CelType]) -> None:
        shown = [substituted(self._known, one, finally_dyn=True).described() for one in given]
        receiver = f"{shown.pop(0)}." if node.target is not None else ""
        self._error(
            node,
            f"found no matching overload for '{node.function}' applied to '{receiver}({', '.join(shown)})'",
        )

    def _mismatch(self, node: Node, wanted: CelType, given: CelType) -> None:
        self._error(node, f"expected type '{wanted.described()}' but found '{given.described()}'")

    def _list(self, node: ListOf) -> CelType:
        joined: CelType | None = None
        for index, item in enumerate(node.items):
            joined = self._joined(item, joined, self._item(item, optional=index in node.optional))
        return list_of(self._variable() if joined is None else joined)

    def _map(self, node: MapOf) -> CelType:
        keys: CelType | None = None
        values: CelType | None = None
        for key, value, optional in node.entries:
            keys = self._joined(key, keys, self._check(key))
            values = self._joined(value, values, self._item(value, optional=optional))
        if keys is None or values is None:
            return map_of(self._variable(), self._variable())
        return map_of(keys, values)

    def _item(self, node: Node, *, optional: bool) -> CelType:
        given = self._check(node)
        if not optional:
            return given
        inner, was_optional = unwrapped(given)
        if not was_optional and not is_dyn(inner):
            self._mismatch(node, optional_of(inner), inner)
        return inner

    def _joined(self, node: Node, before: CelType | None, this: CelType) -> CelType:
        """Return the type of a literal's items so far, which must be of one type."""
        if before is None:
            return this
        if self._assignable(before, this):
            return most_general(before, this)
        self._mismatch(node, before, this)
        return ERROR

    def _fold(self, node: Fold) -> CelType:
        self._check(node.range)
        start = self._check(node.start)
        over = substituted(self._known, node.range.type)
        first, second = self._loop_types(node, over)
        self._scopes.append({node.accumulator: start})
        self._scopes.append({node.variable: first} | ({node.second: second} if node.second else {}))
        self._check(node.condition)
        self._assert(node.condition, BOOL)
        self._check(node.step)
        self._assert(node.step, start)
        self._scopes.pop()
        self._check(node.result)
        self._scopes.pop()
        return substituted(self._known, node.result.type)

    def _loop_types(self, node: Fold, over: CelType) -> tuple[CelType, CelType]:
        if over.kind == "list":
            return (INT, over.parts[0]) if node.second else (over.parts[0], DYN)
        if over.kind == "map":
            return over.parts[0], over.parts[1]
        if over.kind in {"dyn", "error", "param"}:
            self._assignable(DYN, over)
            return DYN, DYN
        self._error(
            node.range,
            f"expression of type '{over.described()}' cannot be range of a comprehension (must be list, map, or "
            "dynamic)",
        )
        return ERROR, ERROR

    def _assert(self, node: Node, wanted: CelType) -> None:
        if not self._assignable(wanted, node.type):
            self._mismatch(node, wanted, node.type)

    def _assignable(self, one: CelType, other: CelType) -> bool:
        known = unified(self._known, [one], [other])
        if known is None:
            return False
        self._known = known
        return True

    def _variable(self) -> CelType:
        self._fresh += 1
        return CelType("param", f"_var{self._fresh}")

    def _instance(self, one: CelType, fresh: dict[str, CelType]) -> CelType:
        """Return a declared type with type parameters of this call alone."""
        if one.kind == "param":
            if one.name not in fresh:
                fresh[one.name] = self._variable()
            return fresh[one.name]
        if not one.parts:
            return one
        return CelType(one.kind, one.name, tuple(self._instance(part, fresh) for part in one.parts))


def children(node: Node) -> list[Node]:
    """Return the parts of a node."""
    match node:
        case Select():
            return [node.operand]
        case Call():
            return [*node.args, *([node.target] if node.target is not None else [])]
        case ListOf():
            return node.items
        case MapOf():
            return [part for key, value, _ in node.entries for part in (key, value)]
        case Fold():
            return [node.range, node.start, node.condition, node.step, node.result]
        case _:
            return []


def _finish(node: Node, known: Mapping[CelType, CelType]) -> None:
    node.type = substituted(known, node.type, finally_dyn=True)
    for part in children(node):
        _finish(part, known)


def _qualified(node: Node) -> str | None:
    """Return `a.b.c` of selections below a variable, else None."""
    names = []
    while isinstance(node, Select) and not node.test:
        names.append(node.field_name)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    return ".".join([node.name, *reversed(names)])
