"""Amounts as the Kubernetes API writes them: "64Mi", "1500m", "10e6".

The facts are those of `resource.Quantity` in k8s.io/apimachinery (1.36): what is accepted, how it rounds and
caps, and what the canonical text of a value is. Nothing here is a float.
"""

import enum
import re
from typing import Final, NoReturn, Self

from dradriver.model.text import shown

NANO: Final = 10**9
"""Units of `Quantity.nano` in one."""

_INT64_MAX: Final = 2**63 - 1
_MAX_CHARACTERS: Final = 512
_MAX_EXPONENT: Final = 999
_MAX_BITS: Final = 1024

_ALLOWED: Final = (
    "a decimal number and, directly after it, one of n u m k M G T P E, one of Ki Mi Gi Ti Pi Ei, "
    f"or e and an exponent; at most {_MAX_CHARACTERS} characters, "
    f"the exponent from -{_MAX_EXPONENT} to {_MAX_EXPONENT}"
)


class Format(enum.Enum):
    """The kind of suffix that a quantity is printed with."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_SUFFIXES: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")

_NANO_PER_UNIT: Final = {
    **{suffix: (Format.DECIMAL_SI, 1000**power) for power, suffix in enumerate(_DECIMAL_SUFFIXES)},
    **{
        suffix: (Format.BINARY_SI, NANO << 10 * power)
        for power, suffix in enumerate(_BINARY_SUFFIXES)
        if power
    },
}

# The API server's scanner also takes a text without any digit, such as "+", "." or "Gi", as zero. For Pi, Ei
# and scales below nano it goes through a big decimal, which refuses such a text.
_PATTERN: Final = re.compile(
    r"([+-]?)([0-9]*)(?:\.([0-9]*))?([numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]+)", re.ASCII
).fullmatch


class Quantity:
    """An exact amount: an integer number of billionths, and the suffix family that it is printed with.

    Equality, order and hash are by value alone: 1Gi equals 1024Mi. `str()` is the canonical text: no
    fraction, the largest suffix that keeps the value exact. The API server echoes some unusual spellings
    ("+1", "01", "5.") as they were sent; compare values, not texts.

    Two canonical texts differ from the server's, which would lose the value: 1000E is printed as "1e21" (the
    server prints "1"), and a sum of binary amounts above 2^63-1 in the decimal form (the server would read a
    binary text of that size as 2^63-1).
    """

    # No dataclass: encoders such as msgspec take those apart, and a quantity is written as its text.
    __slots__ = ("format", "nano")

    nano: int
    format: Format

    def __init__(self, nano: int, format: Format = Format.DECIMAL_SI) -> None:  # noqa: A002 - the API's word
        object.__setattr__(self, "nano", nano)
        object.__setattr__(self, "format", format)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a quantity does not change: {name}")

    def __reduce__(self) -> tuple[type[Self], tuple[int, Format]]:
        return type(self), (self.nano, self.format)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `text` as the API server does; below one billionth it is rounded away from zero.

        A binary amount is capped at 2^63-1 in magnitude, so "8Ei" is 9223372036854775807; a decimal one is
        not. Raises ValueError for what the server refuses and, beyond that, for texts and exponents of a size
        that only serves to exhaust memory.
        """
        match = _PATTERN(text) if text and len(text) <= _MAX_CHARACTERS else None
        if match is None:
            raise _refused(text)
        sign, whole, fraction, suffix = match.groups("")
        known = _NANO_PER_UNIT.get(suffix)
        numerator, denominator = 1, 1
        if known is not None:
            kind, numerator = known
        else:
            kind = Format.DECIMAL_EXPONENT
            power = 9 + _exponent(text, suffix)
            if power >= 0:
                numerator = 10**power
            else:
                denominator = 10**-power
        if fraction:
            denominator *= 10 ** len(fraction)
        digits = whole + fraction
        if not digits and (denominator > 1 or suffix in {"Pi", "Ei"}):
            raise _refused(text)
        nano = int(digits or "0") * numerator
        if denominator > 1:
            nano = -(-nano // denominator)
        if kind is Format.BINARY_SI:
            nano = min(nano, _INT64_MAX * NANO)
            if nano < NANO:
                kind = Format.DECIMAL_SI
        return cls(-nano if sign == "-" else nano, kind)

    @classmethod
    def from_int(cls, value: int, *, binary: bool = False) -> Self:
        """Return `value` whole units, printed with Ki, Mi, ... when `binary` (bytes), else with k, M, ..."""
        return cls(value * NANO, Format.BINARY_SI if binary else Format.DECIMAL_SI)

    @classmethod
    def from_milli(cls, value: int) -> Self:
        """Return `value` thousandths, as in millicores."""
        return cls(value * 10**6)

    def to_int(self) -> int:
        """Return whole units, a fraction rounded away from zero, as Quantity.Value() of the API does."""
        return -(-self.nano // NANO) if self.nano >= 0 else self.nano // NANO

    def __str__(self) -> str:
        nano = self.nano
        if nano == 0:
            return "0"
        if self.format is Format.BINARY_SI and 1024 * NANO <= abs(nano) <= _INT64_MAX * NANO:
            units, rest = divmod(nano, NANO)
            if not rest:
                power = ((units & -units).bit_length() - 1) // 10
                return f"{units >> 10 * power}{_BINARY_SUFFIXES[power]}"
        power = 0
        thousands, rest = divmod(nano, 1000)
        while not rest:
            nano = thousands
            power += 1
            thousands, rest = divmod(nano, 1000)
        if self.format is Format.DECIMAL_EXPONENT or power >= len(_DECIMAL_SUFFIXES):
            return f"{nano}e{3 * power - 9}" if power != 3 else str(nano)
        return f"{nano}{_DECIMAL_SUFFIXES[power]}"

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __add__(self, other: "Quantity") -> "Quantity":
        # As in the API: a zero takes the other's format.
        return Quantity(self.nano + other.nano, self.format if self.nano else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nano - other.nano, self.format if self.nano else other.format)

    def __mul__(self, factor: int) -> "Quantity":
        return Quantity(self.nano * factor, self.format)

    __rmul__ = __mul__

    def __neg__(self) -> "Quantity":
        return Quantity(-self.nano, self.format)

    def __eq__(self, other: object) -> bool:
        return self.nano == other.nano if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nano)

    def __lt__(self, other: "Quantity") -> bool:
        return self.nano < other.nano if isinstance(other, Quantity) else NotImplemented

    def __le__(self, other: "Quantity") -> bool:
        return self.nano <= other.nano if isinstance(other, Quantity) else NotImplemented

    def __gt__(self, other: "Quantity") -> bool:
        return self.nano > other.nano if isinstance(other, Quantity) else NotImplemented

    def __ge__(self, other: "Quantity") -> bool:
        return self.nano >= other.nano if isinstance(other, Quantity) else NotImplemented


def json_quantity(value: object) -> Quantity:
    """Return the quantity that a decoded JSON or YAML value stands for.

    As in the API, a string may have blanks around it, a number is read as its own text, and null is zero.
    Raises ValueError for anything else, booleans included.
    """
    match value:
        case None:
            return Quantity(0)
        case str():
            return Quantity.parse(value.strip(" "))
        case bool():
            pass
        case int():
            if value.bit_length() > _MAX_BITS:
                raise ValueError(f"quantity is an integer of {value.bit_length()} bits: at most {_MAX_BITS}")
            return Quantity.from_int(value)
        case float():
            return Quantity.parse(repr(value))
    raise ValueError(f"quantity {shown(value)}: a string or a number is allowed, the text being {_ALLOWED}")


def _exponent(text: str, suffix: str) -> int:
    exponent = int(suffix[1:])
    if abs(exponent) > _MAX_EXPONENT:
        raise _refused(text)
    return exponent


def _refused(text: str) -> ValueError:
    return ValueError(f"quantity {shown(text)}: allowed is {_ALLOWED}")
