"""Whether a CEL device selector compiles, as the API server tells when it is stored.

The expression is parsed, checked for types against the device variable of dynamic-resource-allocation/cel, and its
worst cost is estimated. It is not evaluated: "1/0 == 1" is right here, as it is there. What is simpler than in a real
server stands in the modules: nesting (`cel_syntax`), literals (`cel_check`), costs of rare functions (`cel_cost`).
"""

import functools
from typing import Final

from dradriver.sim.apiserver.rules import gates, names
from dradriver.sim.apiserver.rules.cel_check import Checker, Environment
from dradriver.sim.apiserver.rules.cel_cost import Estimator, Sized
from dradriver.sim.apiserver.rules.cel_library import functions
from dradriver.sim.apiserver.rules.cel_syntax import parse
from dradriver.sim.apiserver.rules.cel_tree import CelError
from dradriver.sim.apiserver.rules.cel_types import (
    ANY,
    BOOL,
    DEVICE,
    DYN,
    STRING,
    CelType,
    map_of,
)
from dradriver.sim.apiserver.rules.errors import Problems
from dradriver.sim.apiserver.rules.gates import Gates

MAX_LENGTH: Final = 10 * 1024
MAX_COST: Final = 1_000_000

_QUANTITY: Final = CelType("opaque", "kubernetes.Quantity")
_DOMAIN: Final = Sized(names.MAX_DOMAIN)
_IDENTIFIER: Final = Sized(names.MAX_IDENTIFIER)
_MOST_NAMES: Final = 32


def check(problems: Problems, field: str, expression: str, on: Gates) -> None:
    """Check the expression of a selector."""
    if names.size(expression) > MAX_LENGTH:
        problems.too_long(field, MAX_LENGTH)
        return
    wrong = _compiled(
        expression, on.minor, lists=gates.LIST_ATTRIBUTES in on, shared=gates.CONSUMABLE_CAPACITY in on
    )
    if wrong is None:
        return
    if wrong:
        problems.invalid(field, expression, wrong)
    else:
        problems.forbidden(field, "too complex, exceeds cost limit")


@functools.lru_cache(maxsize=1024)
def _compiled(expression: str, minor: int, *, lists: bool, shared: bool) -> str | None:
    """Return what is wrong with an expression, an empty text if it costs too much, None if nothing is wrong."""
    checker = Checker(_environment(minor, lists=lists, shared=shared))
    try:
        tree = parse(expression)
        result = checker.check(tree)
        cost = 0 if checker.errors else Estimator(_sizes()).cost(tree)
    except CelError as error:
        return _failed(expression, [error])
    except RecursionError:
        return _failed(expression, [CelError("expression recursion limit exceeded", 0)])
    if checker.errors:
        return _failed(expression, checker.errors)
    # An attribute has no type that is known, so that a selector may be one.
    if result not in ({BOOL, ANY, DYN} if lists else {BOOL, ANY}):
        return f"must evaluate to bool or the unknown type, not {result}"
    return "" if cost > MAX_COST else None


@functools.cache
def _environment(minor: int, *, lists: bool, shared: bool) -> Environment:
    attribute = DYN if lists else ANY
    device = {
        "driver": STRING,
        "attributes": map_of(STRING, map_of(STRING, attribute)),
        "capacity": map_of(STRING, map_of(STRING, _QUANTITY)),
    }
    if shared:
        device["allowMultipleAllocations"] = BOOL
    return Environment({"device": DEVICE}, {DEVICE.name: device}, functions(minor, lists=lists))


@functools.cache
def _sizes() -> dict[str, Sized]:
    """Return how large the parts of a device can be; a list has fewer items than a text has characters."""
    attributes = Sized(_MOST_NAMES, _IDENTIFIER, Sized(names.MAX_VALUE))
    capacities = Sized(_MOST_NAMES, _IDENTIFIER)
    fields = {
        "driver": Sized(names.MAX_DRIVER),
        "allowMultipleAllocations": Sized(1),
        "attributes": Sized(_MOST_NAMES, _DOMAIN, attributes),
        "capacity": Sized(_MOST_NAMES, _DOMAIN, capacities),
    }
    return {"device": Sized(0, fields=fields)}


def _failed(expression: str, errors: list[CelError]) -> str:
    # The server sorts by place, and shows the line with a mark below.
    ordered = sorted(errors, key=lambda error: error.position)
    return "compilation failed: " + "\n".join(_located(expression, error) for error in ordered)


def _located(expression: str, error: CelError) -> str:
    before = expression[: max(error.position, 0)]
    line = before.count("\n")
    column = len(before) - (before.rfind("\n") + 1)
    text = f"ERROR: <input>:{line + 1}:{column + 1 if error.position >= 0 else 0}: {error.message}"
    if error.position < 0:
        return text
    source = expression.split("\n")[line]
    return f"{text}\n | {source}\n | {'.' * column}^"
