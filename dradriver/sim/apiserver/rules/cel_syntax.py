"""The parser for CEL: the grammar of cel-go 0.26, optional syntax included, with its macros expanded.

The package cel-python is not used for this: its grammar has no optional syntax (`a[?"b"]`, `a.?b`), and its trees do
not tell the places that the server names in its messages.

Fact: cel-go parser/gen/CEL.g4.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dradriver.sim.apiserver.rules.cel_macros import expanded
from dradriver.sim.apiserver.rules.cel_tree import (
    Call,
    CelError,
    Constant,
    Ident,
    ListOf,
    MapOf,
    Message,
    Node,
    Select,
)
from dradriver.sim.apiserver.rules.cel_types import BOOL, BYTES, DOUBLE, INT, NULL, STRING, UINT

MAX_DEPTH: Final = 120
"""Nested expressions; a real server reads 250."""

_TOKEN: Final = re.compile(
    r"""
    (?P<space>[\t \r\n\f]+|//[^\n]*)
  | (?P<bytes>[bB](?P<bq>[rR]?(?:\"\"\"|'''|"|')))
  | (?P<string>(?P<sq>[rR]?(?:\"\"\"|'''|"|')))
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
  | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
  | (?P<escaped>`[A-Za-z0-9_.\-/ ]+`)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<op>==|!=|<=|>=|&&|\|\||[<>\[\]{}().,\-!?:+*/%])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\"'\\?`])|([0-3][0-7][0-7])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))",
    re.ASCII,
)
_SIMPLE_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_EXPECTED: Final = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, "
    "IDENTIFIER}"
)
_RESERVED: Final = frozenset(
    {
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    }
)
_LITERALS: Final = frozenset({"int", "uint", "float", "string", "bytes"})
_INT64: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int
    value: str = ""


def parse(text: str) -> Node:
    """Return the tree of an expression. Raises CelError."""
    return _Parser(_tokens(text)).whole()


def _tokens(text: str) -> list[_Token]:
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CelError(f"Syntax error: token recognition error at: '{text[position]}'", position)
        kind = match.lastgroup or ""
        if kind in {"bq", "sq"} or match["string"] or match["bytes"]:
            kind = "bytes" if match["bytes"] else "string"
            quote = match["bq"] or match["sq"]
            end, value = _quoted(text, match.end(), quote, position)
            found.append(_Token(kind, text[position:end], position, value))
            position = end
            continue
        if kind != "space":
            found.append(_Token(kind, match.group(), position))
        position = match.end()
    # The lexer names the place behind the last character; of an empty text it names none.
    found.append(_Token("end", "<EOF>", len(text) if text else -1))
    return found


def _quoted(text: str, start: int, quote: str, position: int) -> tuple[int, str]:
    """Return the end of a string literal that begins before `start`, and its value."""
    raw, mark = quote[0] in "rR", quote.lstrip("rR")
    parts: list[str] = []
    place = start
    while place < len(text):
        if text.startswith(mark, place):
            return place + len(mark), "".join(parts)
        if not raw and text[place] == "\\":
            escape = _ESCAPE.match(text, place)
            if escape is None:
                break
            parts.append(_unescaped(escape))
            place = escape.end()
            continue
        if len(mark) == 1 and text[place] in "\r\n":
            break
        parts.append(text[place])
        place += 1
    raise CelError(f"Syntax error: token recognition error at: '{text[position : place + 1]}'", position)


def _unescaped(escape: re.Match[str]) -> str:
    simple, octal, *codes = escape.groups()
    if simple:
        return _SIMPLE_ESCAPES.get(simple, simple)
    code = int(octal, 8) if octal else int(next(code for code in codes if code), 16)
    return chr(code) if code < 0x110000 else "\ufffd"


_BINARY: Final[Mapping[str, tuple[int, str]]] = {
    **{op: (1, f"_{op}_") for op in ("<", "<=", ">=", ">", "==", "!=")},
    "in": (1, "@in"),
    "+": (2, "_+_"),
    "-": (2, "_-_"),
    "*": (3, "_*_"),
    "/": (3, "_/_"),
    "%": (3, "_%_"),
}


class _Parser:
    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._brackets = {"(": self._group, "[": self._list, "{": self._map}

    def whole(self) -> Node:
        made = self._expression()
        if self._peek.kind != "end":
            raise self._unexpected("<EOF>")
        return made

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _accept(self, op: str) -> _Token | None:
        token = self._peek
        if token.text == op and token.kind in {"op", "name"}:
            self._at += 1
            return token
        return None

    def _expect(self, op: str) -> _Token:
        token = self._accept(op)
        if token is None:
            raise self._unexpected(f"'{op}'")
        return token

    def _unexpected(self, expected: str = _EXPECTED) -> CelError:
        token = self._peek
        return CelError(f"Syntax error: mismatched input '{token.text}' expecting {expected}", token.position)

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CelError(f"expression recursion limit exceeded: {MAX_DEPTH}", 0)
        made = self._chain("||", self._conjunction)
        question = self._accept("?")
        if question is not None:
            then = self._chain("||", self._conjunction)
            self._expect(":")
            made = Call(question.position, "_?_:_", None, [made, then, self._expression()])
        self._depth -= 1
        return made

    def _conjunction(self) -> Node:
        return self._chain("&&", self._relation)

    def _relation(self) -> Node:
        return self._binary(1)

    def _chain(self, op: str, part: Callable[[], Node]) -> Node:
        terms, places = [part()], []
        while (token := self._accept(op)) is not None:
            places.append(token.position)
            terms.append(part())
        return _balanced(f"_{op}_", terms, places)

    def _binary(self, least: int) -> Node:
        made = self._unary()
        while True:
            token = self._peek
            rank, function = _BINARY.get(token.text, (0, "")) if token.kind in {"op", "name"} else (0, "")
            if rank < least:
                return made
            self._next()
            made = Call(token.position, function, None, [made, self._binary(rank + 1)])

    def _unary(self) -> Node:
        token = self._peek
        if token.kind != "op" or token.text not in "!-":
            return self._member(self._primary())
        count = 0
        while self._accept(token.text) is not None:
            count += 1
        number = self._peek
        if token.text == "-" and number.kind in {"int", "float"}:
            self._next()
            literal = _number(number, token.position, negative=True)
            made = self._member(literal)
            count -= 1
        else:
            made = self._member(self._primary())
        # An even number of them is none, as cel-go's parser has it.
        if count % 2 == 0:
            return made
        return Call(token.position, f"{token.text}_", None, [made])

    def _member(self, made: Node) -> Node:
        while True:
            if (token := self._accept(".")) is not None:
                made = self._selected(made, token)
            elif (token := self._accept("[")) is not None:
                optional = self._accept("?")
                index = self._expression()
                self._expect("]")
                made = Call(token.position, "_[?_]" if optional else "_[_]", None, [made, index])
            else:
                return made

    def _selected(self, operand: Node, dot: _Token) -> Node:
        optional = self._accept("?")
        token = self._peek
        if token.kind not in {"name", "escaped"} or token.text in {"in", "true", "false", "null"}:
            raise self._unexpected("IDENTIFIER")
        self._next()
        name = token.text.strip("`")
        if optional is not None:
            return Call(dot.position, "_?._", None, [operand, Constant(token.position, STRING, name)])
        if token.kind == "name" and (opening := self._accept("(")) is not None:
            args = self._arguments()
            return expanded(Call(opening.position, name, operand, args))
        return Select(dot.position, operand, name)

    def _arguments(self) -> list[Node]:
        args: list[Node] = []
        if self._accept(")") is not None:
            return args
        while True:
            args.append(self._expression())
            if self._accept(")") is not None:
                return args
            self._expect(",")

    def _primary(self) -> Node:
        token = self._peek
        if token.kind in _LITERALS or token.text in {"true", "false", "null"}:
            self._next()
            return _literal(token)
        if token.kind == "op" and token.text in self._brackets:
            self._next()
            return self._brackets[token.text](token)
        dot = self._accept(".")
        token = self._peek
        if token.kind != "name" or token.text == "in":
            raise self._unexpected()
        return self._named(self._next(), absolute=dot is not None)

    def _group(self, token: _Token) -> Node:
        del token
        made = self._expression()
        self._expect(")")
        return made

    def _named(self, token: _Token, *, absolute: bool) -> Node:
        name = f".{token.text}" if absolute else token.text
        if (opening := self._accept("(")) is not None:
            return expanded(Call(opening.position, name, None, self._arguments()))
        if token.text in _RESERVED:
            raise CelError(f"reserved identifier: {token.text}", token.position)
        parts, start = [name], self._at
        while self._accept(".") is not None and self._peek.kind == "name":
            parts.append(self._next().text)
        if self._accept("{") is not None:
            return self._message(".".join(parts), token)
        self._at = start
        return Ident(token.position, name)

    def _message(self, name: str, token: _Token) -> Node:
        while self._accept("}") is None:
            self._accept("?")
            if self._peek.kind not in {"name", "escaped"}:
                raise self._unexpected("IDENTIFIER")
            self._next()
            self._expect(":")
            self._expression()
            if self._accept(",") is None and self._peek.text != "}":
                raise self._unexpected("'}'")
        return Message(token.position, name)

    def _list(self, token: _Token) -> Node:
        items: list[Node] = []
        optional = set()
        while self._accept("]") is None:
            if self._accept("?") is not None:
                optional.add(len(items))
            items.append(self._expression())
            if self._accept(",") is None and self._peek.text != "]":
                raise self._unexpected("']'")
        return ListOf(token.position, items, frozenset(optional))

    def _map(self, token: _Token) -> Node:
        entries = []
        while self._accept("}") is None:
            optional = self._accept("?") is not None
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression(), optional))
            if self._accept(",") is None and self._peek.text != "}":
                raise self._unexpected("'}'")
        return MapOf(token.position, entries)


def _balanced(function: str, terms: Sequence[Node], places: Sequence[int]) -> Node:
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    left = _balanced(function, terms[:middle], places[: middle - 1])
    right = _balanced(function, terms[middle:], places[middle:])
    return Call(places[middle - 1], function, None, [left, right])


def _literal(token: _Token) -> Constant:
    match token.kind:
        case "string":
            return Constant(token.position, STRING, token.value)
        case "bytes":
            return Constant(token.position, BYTES, token.value)
        case "name":
            return Constant(token.position, NULL if token.text == "null" else BOOL, token.text == "true")
        case _:
            return _number(token, token.position)


def _number(token: _Token, position: int, *, negative: bool = False) -> Constant:
    if token.kind == "float":
        return Constant(position, DOUBLE, float(token.text))
    if token.kind == "uint":
        value = int(token.text[:-1], 0) if "x" in token.text else int(token.text[:-1])
        if value >= 2**64:
            raise CelError("invalid uint literal", position)
        return Constant(position, UINT, value)
    value = int(token.text, 0) if "x" in token.text else int(token.text)
    if (-value if negative else value) not in _INT64:
        raise CelError("invalid int literal", position)
    return Constant(position, INT, -value if negative else value)
