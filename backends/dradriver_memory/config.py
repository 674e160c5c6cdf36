"""The backend's options."""

import re
from collections.abc import Mapping

import msgspec

from dradriver.backend import Strict
from dradriver.model import Quantity, shown

MACHINE = "machine"
"""Stands for the NUMA node on a machine that has none."""

_NODE = re.compile(r"0|[1-9][0-9]{0,4}")


class MemoryOptions(Strict, frozen=True, kw_only=True):
    """What stands below `backends.memory`.

    reserved   memory kept for the system and for pods without a claim, by NUMA node: `{"0": 2Gi}`; on a machine
               without NUMA nodes `{machine: 2Gi}`. Nothing by default.
    """

    reserved: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is not a node or not an amount of memory."""
        self.reserved_bytes()

    def reserved_bytes(self) -> Mapping[int | None, int]:
        """Return the reserved bytes by NUMA node id, None for a machine without nodes. Raises ValueError."""
        found: dict[int | None, int] = {}
        for place, text in self.reserved.items():
            if place != MACHINE and not _NODE.fullmatch(place):
                raise ValueError(
                    f"reserved: {shown(place)}: allowed are ids of NUMA nodes, as 0, and {MACHINE}"
                )
            try:
                amount = Quantity.parse(text)
            except ValueError as error:
                raise ValueError(f"reserved: {place}: {error}") from None
            size = amount.to_int()
            if size < 0 or Quantity.from_int(size) != amount:
                raise ValueError(
                    f"reserved: {place}: {shown(text)}: allowed are whole bytes, 0 or more, as 2Gi"
                )
            found[None if place == MACHINE else int(place)] = size
        return found
