"""Sets of CPU numbers and the two ways in which the kernel writes them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from dradriver.model.text import shown

# Linux is built for at most 8,192 CPUs on x86 and 4,096 on arm64 (NR_CPUS); a larger number is an error
# or an attack on the memory, since a set takes as many bits as its highest number.
MAX_CPUS = 65_536

_REGION = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10})/([0-9]{1,10}))?)?")
_WORD = re.compile(r"[0-9a-fA-F]{1,8}")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class CPUSet:
    """Immutable set of CPU numbers, 0 to 65,535.

    `str()` gives the kernel's list format, sorted and with the longest ranges ("0-3,8"); iteration is sorted.
    """

    _mask: int

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        """Make a set of `cpus`. Raises ValueError for a number below 0 or above 65,535."""
        mask = 0
        for cpu in cpus:
            mask |= 1 << _bounded(cpu, str(cpu))
        object.__setattr__(self, "_mask", mask)

    @classmethod
    def _of_mask(cls, mask: int) -> Self:
        made = cls()
        object.__setattr__(made, "_mask", mask)
        return made

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a CPU list as sysfs and cpusets give it: "0-3,8", "0-31:2/4", "" or "(null)" for none.

        `first-last:used/group` is the first `used` CPUs of each `group` (kernel: bitmap_parselist()).
        `(null)` is what nohz_full prints where the boot parameter is absent. Raises ValueError.
        """
        text = text.strip(" \t\r\n\0")
        if text in {"", "(null)"}:
            return cls()
        mask = 0
        for region in text.split(","):
            mask |= _region_mask(region.strip(" \t"), text)
        return cls._of_mask(mask)

    @classmethod
    def parse_mask(cls, text: str) -> Self:
        """Read a CPU mask: words of 32 bits in hexadecimal, highest first, as "ff,ffffffff".

        Raises ValueError.
        """
        text = text.strip(" \t\r\n\0")
        if text in {"", "(null)"}:
            return cls()
        words = text.removeprefix("0x").split(",")
        if len(words) > MAX_CPUS // 32:
            raise ValueError(f"CPU mask: {shown(text)}: longer than {MAX_CPUS} CPUs")
        mask = 0
        for word in words:
            if not _WORD.fullmatch(word):
                raise ValueError(
                    f"CPU mask: {shown(text)}: want hexadecimal words of 32 bits, as ff,ffffffff"
                )
            mask = mask << 32 | int(word, 16)
        return cls._of_mask(mask)

    @property
    def first(self) -> int:
        """The lowest CPU. Raises ValueError for the empty set."""
        if not self._mask:
            raise ValueError("CPU set: empty, it has no first CPU")
        return (self._mask & -self._mask).bit_length() - 1

    def isdisjoint(self, other: "CPUSet") -> bool:
        """Return whether no CPU is in both sets."""
        return not self & other

    def __contains__(self, cpu: object) -> bool:
        return isinstance(cpu, int) and cpu >= 0 and bool(self._mask >> cpu & 1)

    def __iter__(self) -> Iterator[int]:
        mask = self._mask
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def __len__(self) -> int:
        return self._mask.bit_count()

    def __bool__(self) -> bool:
        return self._mask != 0

    def __or__(self, other: "CPUSet") -> "CPUSet":
        return self._of_mask(self._mask | other._mask)

    def __and__(self, other: "CPUSet") -> "CPUSet":
        return self._of_mask(self._mask & other._mask)

    def __sub__(self, other: "CPUSet") -> "CPUSet":
        return self._of_mask(self._mask & ~other._mask)

    def __xor__(self, other: "CPUSet") -> "CPUSet":
        return self._of_mask(self._mask ^ other._mask)

    def __le__(self, other: "CPUSet") -> bool:
        return not self._mask & ~other._mask

    def __lt__(self, other: "CPUSet") -> bool:
        return self._mask != other._mask and self <= other

    def __ge__(self, other: "CPUSet") -> bool:
        return other <= self

    def __gt__(self, other: "CPUSet") -> bool:
        return other < self

    def __str__(self) -> str:
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self._ranges())

    def __repr__(self) -> str:
        return f"CPUSet.parse({str(self)!r})"

    def _ranges(self) -> Iterator[tuple[int, int]]:
        mask = self._mask
        base = 0
        while mask:
            gap = (mask & -mask).bit_length() - 1
            mask >>= gap
            base += gap
            run = (~mask & mask + 1).bit_length() - 1
            yield base, base + run - 1
            mask >>= run
            base += run


def _region_mask(region: str, text: str) -> int:
    match = _REGION.fullmatch(region)
    if match is None:
        raise ValueError(f"CPU list: {shown(text)}: {shown(region)} is neither a CPU number nor a range")
    low = _bounded(int(match[1]), text)
    high = low if match[2] is None else _bounded(int(match[2]), text)
    if high < low:
        raise ValueError(f"CPU list: {shown(text)}: the range {shown(region)} ends before it begins")
    if match[3] is None:
        return (1 << high + 1) - (1 << low)
    used, group = int(match[3]), int(match[4])
    if not 0 < used <= group:
        raise ValueError(f"CPU list: {shown(text)}: {shown(region)} wants 1 to all CPUs of each group")
    mask = 0
    for start in range(low, high + 1, group):
        mask |= (1 << min(start + used, high + 1)) - (1 << start)
    return mask


def _bounded(cpu: int, text: str) -> int:
    if not 0 <= cpu < MAX_CPUS:
        raise ValueError(f"CPU number: {shown(text)}: CPUs are numbered 0 to {MAX_CPUS - 1}")
    return cpu
