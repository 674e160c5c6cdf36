"""The macros of CEL: calls that stand for something else, comprehensions most of them.

Facts: cel-go parser/macro.go, ext/comprehensions.go, cel/library.go (optMap), ext/bindings.go; apiserver cel/library
(sortBy).
"""

from collections.abc import Callable, Mapping
from typing import Final

from dradriver.sim.apiserver.rules.cel_tree import (
    ACCUMULATOR,
    Call,
    CelError,
    Constant,
    Fold,
    Ident,
    ListOf,
    MapOf,
    Node,
    Select,
)
from dradriver.sim.apiserver.rules.cel_types import BOOL, INT

_UNUSED: Final = "#unused"


def expanded(call: Call) -> Node:
    """Return what a call stands for: itself, unless it is a macro."""
    if call.target is None:
        return _has(call) if call.function == "has" and len(call.args) == 1 else call
    if isinstance(call.target, Ident) and call.target.name == "cel" and call.function == "bind":
        return _bind(call) if len(call.args) == 3 else call
    macro = _MACROS.get((call.function, len(call.args)))
    return call if macro is None else macro(call)


def _has(call: Call) -> Node:
    operand = call.args[0]
    if not isinstance(operand, Select) or operand.test:
        raise CelError("invalid argument to has() macro", operand.position)
    return Select(operand.position, operand.operand, operand.field_name, test=True)


def _variable(node: Node) -> str:
    if not isinstance(node, Ident) or node.name.startswith("."):
        raise CelError("argument must be a simple name", node.position)
    return node.name


def _bound(position: int, name: str, value: Node, result: Node) -> Fold:
    """Return a variable with a value: a comprehension over nothing."""
    nothing = ListOf(position, [])
    return Fold(
        position, nothing, _UNUSED, "", name, value, _bool(position, False), Ident(position, name), result
    )


def _bind(call: Call) -> Node:
    return _bound(call.position, _variable(call.args[0]), call.args[1], call.args[2])


def _bool(position: int, value: bool) -> Constant:
    return Constant(position, BOOL, value)


def _fold(call: Call, start: Node, condition: Node, step: Node, result: Node, *, variables: int = 1) -> Fold:
    assert call.target is not None  # noqa: S101 - macros with a receiver only
    names = [_variable(arg) for arg in call.args[:variables]]
    second = names[1] if variables == 2 else ""
    return Fold(call.position, call.target, names[0], second, ACCUMULATOR, start, condition, step, result)


def _quantifier(call: Call, *, exists: bool) -> Node:
    at, accumulator = call.position, Ident(call.position, ACCUMULATOR)
    going = Call(at, "!_", None, [accumulator]) if exists else accumulator
    condition = Call(at, "@not_strictly_false", None, [going])
    step = Call(at, "_||_" if exists else "_&&_", None, [Ident(at, ACCUMULATOR), call.args[-1]])
    start = _bool(at, not exists)
    return _fold(call, start, condition, step, Ident(at, ACCUMULATOR), variables=len(call.args) - 1)


def _exists_one(call: Call) -> Node:
    at = call.position
    more = Call(at, "_+_", None, [Ident(at, ACCUMULATOR), Constant(at, INT, 1)])
    step = Call(at, "_?_:_", None, [call.args[-1], more, Ident(at, ACCUMULATOR)])
    result = Call(at, "_==_", None, [Ident(at, ACCUMULATOR), Constant(at, INT, 1)])
    return _fold(call, Constant(at, INT, 0), _bool(at, True), step, result, variables=len(call.args) - 1)


def _collect(call: Call, item: Node, wanted: Node | None, variables: int = 1) -> Node:
    at = call.position
    step: Node = Call(at, "_+_", None, [Ident(at, ACCUMULATOR), ListOf(at, [item])])
    if wanted is not None:
        step = Call(at, "_?_:_", None, [wanted, step, Ident(at, ACCUMULATOR)])
    return _fold(call, ListOf(at, []), _bool(at, True), step, Ident(at, ACCUMULATOR), variables=variables)


def _map_macro(call: Call) -> Node:
    return _collect(call, call.args[-1], call.args[1] if len(call.args) == 3 else None)


def _filter(call: Call) -> Node:
    return _collect(call, Ident(call.args[0].position, _variable(call.args[0])), call.args[1])


def _transform_list(call: Call) -> Node:
    return _collect(call, call.args[-1], call.args[2] if len(call.args) == 4 else None, 2)


def _transform_map(call: Call) -> Node:
    at = call.position
    args = [Ident(at, ACCUMULATOR), call.args[-1]]
    if call.function == "transformMap":
        args.insert(1, Ident(at, _variable(call.args[0])))
    step: Node = Call(at, "cel.@mapInsert", None, args)
    if len(call.args) == 4:
        step = Call(at, "_?_:_", None, [call.args[2], step, Ident(at, ACCUMULATOR)])
    return _fold(call, MapOf(at, []), _bool(at, True), step, Ident(at, ACCUMULATOR), variables=2)


def _opt_map(call: Call) -> Node:
    at, target = call.position, call.target
    assert target is not None  # noqa: S101 - macros with a receiver only
    name = _variable(call.args[0])
    value = Call(at, "value", target, [])
    result = _bound(at, name, value, call.args[1])
    made = result if call.function == "optFlatMap" else Call(at, "optional.of", None, [result])
    present = Call(at, "hasValue", target, [])
    return Call(at, "_?_:_", None, [present, made, Call(at, "optional.none", None, [])])


def _sort_by(call: Call) -> Node:
    at = call.position
    keys = _collect(call, call.args[1], None)
    assert call.target is not None  # noqa: S101 - macros with a receiver only
    return Call(at, "@sortByAssociatedKeys", call.target, [keys])


_MACROS: Final[Mapping[tuple[str, int], Callable[[Call], Node]]] = {
    **{("all", count): lambda call: _quantifier(call, exists=False) for count in (2, 3)},
    **{("exists", count): lambda call: _quantifier(call, exists=True) for count in (2, 3)},
    **{(name, count): _exists_one for name in ("exists_one", "existsOne") for count in (2, 3)},
    ("map", 2): _map_macro,
    ("map", 3): _map_macro,
    ("filter", 2): _filter,
    ("transformList", 3): _transform_list,
    ("transformList", 4): _transform_list,
    **{(name, count): _transform_map for name in ("transformMap", "transformMapEntry") for count in (3, 4)},
    ("optMap", 2): _opt_map,
    ("optFlatMap", 2): _opt_map,
    ("sortBy", 2): _sort_by,
}
