"""Identifiers of a machine in what is read from it, and made-up ones in their place.

A made-up identifier says nothing of the real one: it is a number in the order of appearance. A hash would not do,
since a MAC address has too few unknown bits to hide behind one.
"""

import re
from dataclasses import dataclass, field

_UUID = re.compile(
    r"(?<![0-9a-z])[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}(?![0-9a-z])",
    re.IGNORECASE,
)
_GUID = re.compile(r"(?<![0-9a-z:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![0-9a-z:])", re.IGNORECASE)
_ADDRESS = re.compile(r"(?<![0-9a-z:])[0-9a-f]{2}(?::[0-9a-f]{2}){5,}(?![0-9a-z:])", re.IGNORECASE)

# systemd names interfaces so (`enx001122334455`), container engines their bridges (`br-0123456789ab`).
_DIGITS = re.compile(r"(?<![0-9a-f])[0-9a-f]{12}(?![0-9a-f])")


@dataclass(slots=True)
class Identifiers:
    """Replaces UUIDs, GUIDs and hardware addresses; the same one by the same, as long as this object lives.

    Addresses and GUIDs of zeros or ones only are nobody's and stay.
    """

    _known: dict[tuple[str, str], int] = field(default_factory=dict)

    def text(self, text: str) -> str:
        """Return a text with all of them replaced."""
        text = _UUID.sub(self._uuid, text)
        text = _GUID.sub(self._guid, text)
        return _ADDRESS.sub(self._address, text)

    def path(self, path: str) -> str:
        """Return a path with all of them replaced, also those that are part of an interface's name.

        An address that stands in a name without a boundary is found if a text had it before.
        """
        for kind, value in tuple(self._known):
            digits = value.replace(":", "")
            if kind == "address" and digits in path:
                path = path.replace(digits, self._made_address(value).replace(":", ""))
        return self.text(_DIGITS.sub(self._digits, path))

    def _number(self, kind: str, value: str) -> int:
        return self._known.setdefault((kind, value), sum(kind == other for other, _ in self._known) + 1)

    def _uuid(self, match: re.Match[str]) -> str:
        number = self._number("uuid", match[0].lower().replace("_", "-"))
        return match[1].join(("00000000", "0000", "4000", "8000", f"{number:012x}"))

    def _guid(self, match: re.Match[str]) -> str:
        text = match[0].lower()
        return text if _is_nobodys(text) else _grouped(f"{self._number('guid', text):016x}", 4)

    def _address(self, match: re.Match[str]) -> str:
        text = match[0].lower()
        return text if _is_nobodys(text) else self._made_address(text)

    def _digits(self, match: re.Match[str]) -> str:
        digits = match[0]
        made = digits.startswith("02000000")  # the work of `path` itself
        return (
            digits
            if made or _is_nobodys(digits)
            else self._made_address(_grouped(digits, 2)).replace(":", "")
        )

    def _made_address(self, address: str) -> str:
        number = self._number("address", address)
        # 02: the bit that IEEE 802 keeps for addresses that were set by hand.
        return _grouped(f"02{number:0{2 * address.count(':')}x}", 2)


def _is_nobodys(text: str) -> bool:
    return set(text) <= {"0", ":"} or set(text) <= {"f", ":"}


def _grouped(digits: str, size: int) -> str:
    return ":".join(digits[n : n + size] for n in range(0, len(digits), size))
