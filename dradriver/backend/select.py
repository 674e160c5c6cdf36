"""A filter of devices in a backend's options: a CEL expression in the form of a DeviceClass's selectors.

`device.attributes["gpu.dradriver.io"].productName` and `device.capacity["gpu.dradriver.io"].memory` are the device's
own, whatever its driver is called here; attributes with another domain stand under that. `device.name` is the name.
Not among what `dradriver.backend` exports, and to be imported where there is a filter only: so is cel-python then.
Facts: the language, and the types of attributes, are those of k8s.io/dynamic-resource-allocation/cel (1.36).
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import celpy
from celpy import celtypes
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError, base_functions

from dradriver.model import Device, Quantity, Version, shown

_SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
)
_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})
_BUILT_IN = frozenset(base_functions) | {"has", "dyn"}


class Semver:
    """A version value. Ordered as semantic versions are, as far as releases go before their pre-releases."""

    def __init__(self, text: str) -> None:
        """Raises ValueError."""
        match = _SEMVER.fullmatch(text)
        if match is None:
            raise ValueError(f"{shown(text)} is no semantic version")
        self.numbers = (int(match[1]), int(match[2]), int(match[3]))
        self._rank = (self.numbers, match[4] is None, match[4] or "")

    def __eq__(self, other: object) -> bool:
        return self._rank == other._rank if isinstance(other, Semver) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._rank)

    def __lt__(self, other: "Semver") -> bool:
        return self._rank < other._rank


class _Domains(celtypes.MapType):
    """Attributes or capacities by domain: one that is not there is empty."""

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except KeyError:
            return celtypes.MapType()

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key]

    def __contains__(self, key: object) -> bool:
        return True


class Filter:
    """A compiled expression."""

    def __init__(self, expression: str, own_domain: str) -> None:
        """`own_domain` is where a device's own attributes stand, as `gpu.dradriver.io`.

        Raises ValueError where it cannot be read, or uses what there is not.
        """
        environment = _environment()
        try:
            tree = environment.compile(expression)
        except CELParseError as error:
            raise ValueError(f"{shown(expression)} is no CEL expression: {_line(error)}") from None
        for what, name in _unknown(tree):
            raise ValueError(f"{shown(expression)}: there is no {what} {shown(name)}")
        self._program = environment.program(tree, functions=_functions())
        self._expression = expression
        self._own = own_domain
        self._verdicts: dict[str, tuple[_Seen, bool | None, str]] = {}
        try:
            self._evaluate(Device("none"))
        except _NoBoolError as error:
            raise ValueError(str(error)) from None
        except ValueError:
            pass  # that device has no attributes

    def admits(self, device: Device) -> bool:
        """Return whether the expression is true of a device. Raises ValueError where it cannot be said.

        An evaluation takes about a millisecond, and devices are mostly what they were at the last probe.
        """
        seen = (device.attributes, device.capacity, device.shared)
        known = self._verdicts.get(device.name)
        if known is None or known[0] != seen:
            known = self._verdicts[device.name] = (seen, *self._said(device))
        _, verdict, error = known
        if verdict is None:
            raise ValueError(error)
        return verdict

    def chosen(self, devices: Iterable[Device]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
        """Return the devices that it admits, and a warning where it cannot say: such a device is left out."""
        chosen, warnings = [], []
        for device in devices:
            try:
                if self.admits(device):
                    chosen.append(device)
            except ValueError as error:
                warnings.append(f"devices: {device.name} is left out, as maybe others: {error}")
        return tuple(chosen), tuple(warnings[:1])

    def _said(self, device: Device) -> tuple[bool | None, str]:
        try:
            return self._evaluate(device), ""
        except ValueError as error:
            return None, str(error)

    def _evaluate(self, device: Device) -> bool:
        try:
            verdict = self._program.evaluate({"device": _device(device, self._own)})
        except (CELEvalError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{shown(self._expression)}: {_line(error)}") from None
        if not isinstance(verdict, celtypes.BoolType | bool):
            raise _NoBoolError(f"{shown(self._expression)} is neither true nor false of a device")
        return bool(verdict)


_Seen = tuple[Mapping[str, object], Mapping[str, object], bool]


class _NoBoolError(ValueError):
    """The expression gives something else than true or false."""


@functools.cache
def _environment() -> Any:
    return celpy.Environment()


def _unknown(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield the names in an expression that mean nothing: CEL itself finds them only when it comes to them."""
    functions = _functions()
    variables = {"device"}
    for call in tree.find_data("member_dot_arg"):
        if str(call.children[1]) in _MACROS and len(call.children) > 2:
            variables |= {
                str(token) for ident in call.children[2].find_data("ident") for token in ident.children[:1]
            }
        elif str(call.children[1]) not in _BUILT_IN and str(call.children[1]) not in functions:
            yield "function", str(call.children[1])
    for call in tree.find_data("ident_arg"):
        if str(call.children[0]) not in _BUILT_IN and str(call.children[0]) not in functions:
            yield "function", str(call.children[0])
    for ident in tree.find_data("ident"):
        name = str(ident.children[0])
        if name not in variables and name not in _BUILT_IN:
            yield "variable", name


def _device(device: Device, own: str) -> celtypes.MapType:
    capacity = {name: amount.value for name, amount in device.capacity.items()}
    return _map(
        {
            "name": celtypes.StringType(device.name),
            "allowMultipleAllocations": celtypes.BoolType(device.shared),
            "attributes": _by_domain(device.attributes, own),
            "capacity": _by_domain(capacity, own),
        }
    )


def _by_domain(values: Mapping[str, object], own: str) -> _Domains:
    domains: dict[str, dict[str, Any]] = {own: {}}
    for name, value in values.items():
        domain, _, short = name.rpartition("/")
        domains.setdefault(domain or own, {})[short] = _value(value)
    return _Domains({celtypes.StringType(domain): _map(inner) for domain, inner in domains.items()})


def _map(values: Mapping[str, Any]) -> celtypes.MapType:
    return celtypes.MapType({celtypes.StringType(name): value for name, value in values.items()})


def _value(value: object) -> Any:
    match value:
        case bool():
            return celtypes.BoolType(value)
        case int():
            return celtypes.IntType(value)
        case str():
            return celtypes.StringType(value)
        case Version():
            return Semver(value.text)
        case tuple():
            return celtypes.ListType([_value(item) for item in value])
    return value


def _functions() -> dict[str, Callable[..., Any]]:
    """Return what Kubernetes adds to the language for versions and quantities."""
    return {
        "semver": lambda text: Semver(str(text)),
        "quantity": lambda text: Quantity.parse(str(text)),
        "compareTo": lambda one, other: celtypes.IntType((other < one) - (one < other)),
        "isGreaterThan": lambda one, other: celtypes.BoolType(other < one),
        "isLessThan": lambda one, other: celtypes.BoolType(one < other),
        "asInteger": lambda quantity: celtypes.IntType(quantity.to_int()),
        "major": lambda version: celtypes.IntType(version.numbers[0]),
        "minor": lambda version: celtypes.IntType(version.numbers[1]),
        "patch": lambda version: celtypes.IntType(version.numbers[2]),
    }


def _line(error: Exception) -> str:
    """Return what CEL says, without the whole of its state, as one line."""
    text = str(error.args[0]) if error.args else type(error).__name__
    return " ".join(text.split(" (in activation")[0].split())[:200]
