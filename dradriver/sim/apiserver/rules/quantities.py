"""Quantities in the spelling that the API server stores.

What is accepted and what a value is worth is `dradriver.model.Quantity`'s business; here is how the server writes it
again: mostly canonical, but the quick half of its parser keeps some spellings as they came ("+1", "01", "5.", "1E3").
"""

import functools
import re
from typing import Any, Final

from dradriver.model import Quantity
from dradriver.sim.apiserver.rules.body import number_text

_INT64_MAX: Final = 2**63 - 1
_QUICK_DIGITS: Final = 18
_QUICK_BINARY_DIGITS: Final = 14

_PARTS: Final = re.compile(
    r"[+-]?0*([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII | re.DOTALL
).fullmatch
_DECIMAL_EXPONENTS: Final = {
    suffix: 3 * power - 9 for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"))
}
_BINARY_EXPONENTS: Final = {
    suffix: 10 * power for power, suffix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")) if power
}

WRONG_FORMAT: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
WRONG_SUFFIX: Final = "unable to parse quantity's suffix"


def stored(value: Any) -> str:
    """Return the quantity of a decoded JSON value as the server writes it. Raises ValueError in its words."""
    match value:
        case str():
            return _stored(value.strip())
        case bool() | dict() | list():
            raise ValueError(WRONG_FORMAT)
        case None:
            return "0"
        case _:
            return _stored(number_text(value))


@functools.lru_cache(maxsize=4096)
def amount(text: str) -> Quantity:
    """Return the worth of a quantity that `stored` has let through."""
    return Quantity.parse(text)


def integer(quantity: Quantity) -> int:
    """Return what Quantity.Value() gives: rounded up, and 0 where an int64 is too small for it."""
    value = quantity.to_int()
    return value if -_INT64_MAX - 1 <= value <= _INT64_MAX else 0


@functools.lru_cache(maxsize=4096)
def _stored(text: str) -> str:
    parts = _PARTS(text)
    if not text or parts is None:
        raise ValueError(WRONG_FORMAT)
    try:
        quantity = Quantity.parse(text)
    except ValueError as error:
        raise ValueError(WRONG_SUFFIX) from error
    whole, fraction, suffix = parts.groups("")
    return text if _kept(whole or "0", fraction, suffix) else str(quantity)


def _kept(whole: str, fraction: str, suffix: str) -> bool:
    """Whether the parser keeps the text: few enough digits, and at a glance canonical (ParseQuantity)."""
    binary = _BINARY_EXPONENTS.get(suffix)
    if binary is not None:
        quick = not fraction and len(whole) + int(binary * 3 / 10) <= _QUICK_BINARY_DIGITS
        return quick and int(whole) % 8 != 0 and int(whole) << binary <= _INT64_MAX
    digits = whole + fraction
    known = _DECIMAL_EXPONENTS.get(suffix)
    scale = (int(suffix[1:]) if known is None else known) - len(fraction)
    if len(digits) > _QUICK_DIGITS or scale < -9:
        return False
    return scale % 3 == 0 and not digits.endswith("000") and not digits.startswith("0")
