"""What stands below `backends.nic` in the configuration."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec

from dradriver.backend import Strict
from dradriver.model import Quantity, shown
from dradriver.model.names import check_absolute
from dradriver_nic.config import MEGABIT

if TYPE_CHECKING:
    from dradriver.backend.select import Filter

T = TypeVar("T")

PETABIT = 10**15
"""More than any card, and less than what the kernel's numbers of megabits a second hold."""

OWN_DOMAIN = "nic.dradriver.io"

Mode = Literal["vf", "pf", "both", "on-demand", "shares", "vf-shares"]
"""How a card is offered; see docs/devices.md.

vf          its virtual functions; the card itself where it has none
pf          the card itself
both        both, with counters
on-demand   virtual functions that are made when the first one is allocated, on a card that has none and is idle
shares      the card's bandwidth, to claims that get a macvlan link each
vf-shares   the card's bandwidth, to claims that get a virtual function each, with its rate
"""

Kind = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_-]{0,31}$")]


class NicOptions(Strict, frozen=True, kw_only=True):
    """Which links are offered, and how.

    mode              how cards are offered; `modes` for single ones, by the first entry whose key fits: the name of the
                      card's device, of its interface, or of its kernel driver, with `*` and `?` for any letters
    virtualLinks      kinds of links without a device behind them that are offered too, as `dummy` or `veth`
    onDemandVFs       how many virtual functions a card in mode on-demand gets; 0 for all that it can have
    bandwidths        what a shared card has to give, in bits a second, by the same keys as `modes`: for cards that do
                      not say how fast they are, and those that are to give less
    devices           CEL expression over a device: only those of which it is true are offered
    networkNamespace  file of the host's network namespace, where this process is in another
    runDirectory      what is kept of settings that were changed for claims: below the host root, gone after a reboot
    """

    mode: Mode = "vf"
    modes: dict[str, Mode] = msgspec.field(default_factory=dict)
    virtual_links: tuple[Kind, ...] = ()
    on_demand_vfs: Annotated[int, msgspec.Meta(ge=0, le=65535)] = msgspec.field(default=0, name="onDemandVFs")
    bandwidths: dict[str, str] = msgspec.field(default_factory=dict)
    devices: str = ""
    network_namespace: str = ""
    run_directory: str = "/run/dradriver-nic"

    def __post_init__(self) -> None:
        """Refuse what is no amount or path, and a filter that cannot be read."""
        for pattern, text in self.bandwidths.items():
            bits_a_second(text, f"bandwidths[{shown(pattern)}]")
        if self.network_namespace:
            check_absolute(self.network_namespace, "networkNamespace")
        check_absolute(self.run_directory, "runDirectory")
        try:
            self.filter()
        except ValueError as error:
            raise ValueError(f"devices: {error}") from None

    def filter(self) -> "Filter | None":
        """Return the compiled filter; None where all devices are offered. Raises ValueError."""
        if not self.devices:
            return None
        from dradriver.backend.select import Filter  # noqa: PLC0415 - cel-python is loaded for a filter only

        return Filter(self.devices, OWN_DOMAIN)

    @property
    def namespace(self) -> Path | None:
        """File of the host's network namespace; None for that of this process."""
        return Path(self.network_namespace) if self.network_namespace else None

    def mode_of(self, *names: str) -> Mode:
        """Return how the card with these names is offered."""
        return _fitting(self.modes, names) or self.mode

    def idle(self, cards: Iterable[Collection[str]], kinds: Collection[str]) -> Iterator[str]:
        """Yield, for people, what of these options concerns nothing on this node: it may be meant for others.

        cards   the names of each card
        kinds   of the links that there are
        """
        known = [*cards]
        for option, patterns in (("modes", self.modes), ("bandwidths", self.bandwidths)):
            for pattern in patterns:
                if not any(_fitting({pattern: True}, names) for names in known):
                    yield f"{option}: {shown(pattern)} fits no card here"
        for kind in self.virtual_links:
            if kind not in kinds:
                yield f"virtualLinks: there is no link of kind {kind} here"

    def bandwidth_of(self, *names: str) -> int | None:
        """Return what the card with these names has to give, in bits a second; None where it is not said."""
        text = _fitting(self.bandwidths, names)
        return None if text is None else bits_a_second(text, "bandwidths")


def _fitting(entries: Mapping[str, T], names: Collection[str]) -> T | None:
    """Return the first entry whose pattern fits one of the names."""
    for pattern, value in entries.items():
        if any(name and fnmatchcase(name, pattern) for name in names):
            return value
    return None


def bits_a_second(text: str, what: str) -> int:
    """Return an amount of bandwidth, in bits a second. Raises ValueError for what no card has."""
    try:
        amount = Quantity.parse(text)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    if not MEGABIT <= amount.to_int() <= PETABIT:
        raise ValueError(
            f"{what}: {shown(text)} is no bandwidth: from one megabit to one petabit a second is expected, as 25G"
        )
    return amount.to_int()
