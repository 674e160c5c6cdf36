"""CEL expressions as trees: what the parser makes, and what the checker and the estimate of costs walk."""

from dataclasses import dataclass, field
from typing import Any, Final

from dradriver.sim.apiserver.rules.cel_types import ERROR, CelType

ACCUMULATOR: Final = "@result"
"""The variable in which a comprehension gathers its result."""


class CelError(Exception):
    """An expression that does not compile: what is wrong, and at which character."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.message = message
        self.position = position


@dataclass(slots=True, eq=False)
class Node:
    """A part of an expression. `type` and `overloads` are filled in by the type checker."""

    position: int
    type: CelType = field(default=ERROR, init=False)
    overloads: list[str] = field(default_factory=list, init=False)


@dataclass(slots=True, eq=False)
class Constant(Node):
    """A literal; `value` as far as anybody asks."""

    of: CelType
    value: Any


@dataclass(slots=True, eq=False)
class Ident(Node):
    """A variable."""

    name: str


@dataclass(slots=True, eq=False)
class Select(Node):
    """A field of something, or the question whether it is there (`test`)."""

    operand: Node
    field_name: str
    test: bool = False


@dataclass(slots=True, eq=False)
class Call(Node):
    """A function or an operator, with or without a receiver."""

    function: str
    target: Node | None
    args: list[Node]


@dataclass(slots=True, eq=False)
class ListOf(Node):
    """A list literal; `optional` are the indices of items that may be left out."""

    items: list[Node]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class MapOf(Node):
    """A map literal: keys, values, and whether the entry may be left out."""

    entries: list[tuple[Node, Node, bool]]


@dataclass(slots=True, eq=False)
class Message(Node):
    """A message literal. No message type can be made in a device selector."""

    name: str


@dataclass(slots=True, eq=False)
class Fold(Node):
    """A comprehension: what every looping macro becomes."""

    range: Node
    variable: str
    second: str
    accumulator: str
    start: Node
    condition: Node
    step: Node
    result: Node
