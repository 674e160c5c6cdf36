"""Cards as they are published: themselves, their virtual functions, both with counters, or shares of bandwidth."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dradriver.backend.vfio import VFIO
from dradriver.model import (
    AttributeValue,
    Capacity,
    CounterSet,
    Device,
    PoolContent,
    Quantity,
    RequestPolicy,
    ValidRange,
)
from dradriver_nic.inventory import ETHERNET, INFINIBAND, Card, Function, Link, NicInventory, names_of
from dradriver_nic.options import NicOptions

if TYPE_CHECKING:
    from dradriver.backend.select import Filter

BANDWIDTH = "bandwidth"
"""Capacity of a shared card, in bits a second."""

VIRTUAL_FUNCTIONS = "vfs"
"""Capacity of a card that is shared by its virtual functions: one for each claim."""

COUNTER = "vf"

MEGABIT = 10**6
GIGABIT = 10**9

_MEGABIT = Quantity.from_int(MEGABIT)
_ONE = Quantity.from_int(1)

_ENCAPSULATIONS = {ETHERNET: "ether", INFINIBAND: "infiniband"}
"""In the words of `ip link`, by ARPHRD number."""


def content_of(inventory: NicInventory, options: NicOptions, wanted: "Filter | None" = None) -> PoolContent:
    """Return what is offered of the cards, and why what is missing is missing.

    Virtual functions stand before their card, which leaves nothing to them.
    """
    devices: list[Device] = []
    counter_sets = []
    notes, warnings = [*inventory.notes], [*inventory.warnings]
    for card in inventory.cards:
        offered = _Offer(card, options)
        made = tuple(offered.devices())
        devices += made
        if any(device.consumes for device in made):
            counter_sets.append(CounterSet(card.name, {COUNTER: Quantity.from_int(offered.total)}))
        notes += offered.notes
        warnings += offered.warnings
    links = (*inventory.links.values(), *(card.link for card in inventory.cards if card.link))
    notes += options.idle(map(_names_of, inventory.cards), {link.kind for link in links})
    if wanted:
        chosen, doubts = wanted.chosen(devices)
        left_out = len(devices) - len(chosen)
        if left_out:
            notes.append(f"the option devices leaves out {left_out} of {len(devices)}")
        drawn = {name for device in chosen for name in device.consumes}
        counter_sets = [one for one in counter_sets if one.name in drawn]
        devices, warnings = [*chosen], [*warnings, *doubts]
    return PoolContent(tuple(devices), tuple(counter_sets), tuple(notes), tuple(warnings))


def bandwidth_of(card: Card, options: NicOptions) -> int | None:
    """Return what a shared card has to give, in bits a second: as configured, else its speed; None where unknown."""
    link = card.link
    configured = options.bandwidth_of(*_names_of(card))
    if configured is not None:
        return configured
    return link.speed_mbps * MEGABIT if link and link.speed_mbps else None


def _names_of(card: Card) -> tuple[str, ...]:
    link = card.link
    driver = card.physical.driver if card.physical else link.driver if link else ""
    return names_of(card.name, link, driver)


class _Offer:
    """What is offered of one card."""

    def __init__(self, card: Card, options: NicOptions) -> None:
        self._card = card
        self._options = options
        self.notes: list[str] = []
        self.warnings: list[str] = []

    @property
    def total(self) -> int:
        """How many virtual functions the card has at most."""
        return max(self._card.sriov_total, len(self._card.virtual))

    def devices(self) -> Iterator[Device]:
        """Yield the devices, in the order of preference."""
        card = self._card
        match card.mode:
            case "shares":
                yield from self._shared()
            case "vf-shares":
                yield from self._shared_by_functions()
            case "pf":
                yield from self._whole()
            case "both":
                functions = self._usable()
                whole = [*self._whole()]
                counted = bool(functions) and bool(whole)
                yield from (self._function(one, counted=counted) for one in functions)
                if whole:
                    yield self._card_itself(counted=counted)
            case "vf":
                yield from self._functions() if card.sriov_num else self._whole()
            case "on-demand":
                yield from self._functions() if card.sriov_total else self._whole()

    # --- what there is

    def _functions(self) -> Iterator[Device]:
        if not self._card.virtual and self._card.reserved:
            self._left_out(self._card.name, self._card.link, self._card.reserved)
        yield from (self._function(one, counted=False) for one in self._usable())

    def _usable(self) -> list[Function]:
        """Return the virtual functions that can be given away."""
        usable = []
        for function in self._card.virtual:
            why = function.reserved or _unusable(function)
            if why:
                self._left_out(function.name, function.link, why)
            else:
                usable.append(function)
        return usable

    def _whole(self) -> Iterator[Device]:
        card = self._card
        why = card.reserved or (_unusable(card.physical) if card.physical else "")
        if why:
            self._left_out(card.name, card.link, why)
        else:
            yield self._card_itself(counted=False)

    def _left_out(self, name: str, link: Link | None, why: str) -> None:
        who = f"{link.name} ({name})" if link else name
        self.notes.append(f"{who} is not offered: {why}")

    # --- whole devices

    def _function(self, function: Function, *, counted: bool) -> Device:
        return Device(
            name=function.name,
            thing=self._card.name,
            attributes=_function_attributes(self._card, function),
            consumes={self._card.name: {COUNTER: _ONE}} if counted else {},
        )

    def _card_itself(self, *, counted: bool) -> Device:
        card = self._card
        return Device(
            name=card.name,
            thing=card.name,
            attributes=_card_attributes(card),
            consumes={card.name: {COUNTER: Quantity.from_int(self.total)}} if counted else {},
        )

    # --- shares

    def _shared(self) -> Iterator[Device]:
        card = self._card
        why = card.reserved or ("" if card.link else "it has no network interface here")
        if not why and card.link and card.link.type != ETHERNET:
            why = "macvlan links are for Ethernet only"
        if why:
            self._left_out(card.name, card.link, why)
            return
        bandwidth = self._bandwidth()
        if bandwidth:
            yield self._share(bandwidth)

    def _shared_by_functions(self) -> Iterator[Device]:
        functions = self._usable()
        if not functions:
            self._left_out(self._card.name, self._card.link, "it has no virtual functions")
            return
        bandwidth = self._bandwidth()
        if bandwidth:
            count = Quantity.from_int(len(functions))
            one_each = RequestPolicy(_ONE, valid_values=(_ONE,))
            yield self._share({**bandwidth, VIRTUAL_FUNCTIONS: Capacity(count, one_each)})

    def _share(self, capacity: Mapping[str, Capacity]) -> Device:
        card = self._card
        attributes = _card_attributes(card)
        return Device(name=card.name, thing=card.name, attributes=attributes, capacity=capacity, shared=True)

    def _bandwidth(self) -> dict[str, Capacity]:
        """Return the bits a second that claims share, in megabits; nothing where these are not known."""
        bits = bandwidth_of(self._card, self._options)
        if bits is None:
            self.warnings.append(
                f"{self._card.name} is not offered: it does not say how fast it is; set bandwidths, or its link up"
            )
            return {}
        usual = Quantity.from_int(min(GIGABIT, bits // MEGABIT * MEGABIT))
        # A range must have room for one step (API validation).
        if bits < 2 * MEGABIT:
            policy = RequestPolicy(_MEGABIT, valid_values=(_MEGABIT,))
        else:
            policy = RequestPolicy(usual, valid_range=ValidRange(min=_MEGABIT, step=_MEGABIT))
        return {BANDWIDTH: Capacity(Quantity.from_int(bits), policy)}


def _unusable(function: Function) -> str:
    """Return why a function cannot be given away; empty where it can."""
    if not function.exists or function.link or function.rdma or function.driver == VFIO:
        return ""
    if not function.driver:
        return "no kernel driver is bound to it"
    return (
        f"it has no network interface here: driver {function.driver} made none, or it is in another namespace"
    )


# --- attributes


def _card_attributes(card: Card) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue | None] = {}
    if card.link:
        found |= _link_attributes(card.link)
    if card.physical:
        found |= {**_pci_attributes(card.physical), "isSriovVf": False, "sriov": card.sriov_total > 0}
        if card.sriov_total:
            found["sriovVfs"] = card.sriov_num
            found |= _physical_attributes(card)
    else:
        found |= {"rdma": False, "isSriovVf": False}
    return _known(found)


def _function_attributes(card: Card, function: Function) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue | None] = {"speed": card.link.speed_mbps if card.link else None}
    if function.link:
        found |= _known(_link_attributes(function.link))
    found |= {**_pci_attributes(function), "isSriovVf": True, **_physical_attributes(card)}
    if not function.exists and card.physical:
        found["rdma"] = bool(card.physical.rdma)
    return _known(found)


def _link_attributes(link: Link) -> dict[str, AttributeValue | None]:
    return {
        "ifName": link.name,
        "mac": link.mac or None,
        "mtu": link.mtu,
        "state": link.state or None,
        "type": link.kind or "device",
        "encapsulation": _ENCAPSULATIONS.get(link.type),
        "virtual": not link.device,
        "speed": link.speed_mbps,
        "driver": link.driver or None,
        "firmware": link.firmware or None,
        "switchID": link.switch_id or None,
        "ipv4": next((one for one in link.addresses if ":" not in one), None),
        "ipv6": next((one for one in link.addresses if ":" in one), None),
    }


def _pci_attributes(function: Function) -> dict[str, AttributeValue | None]:
    found: dict[str, AttributeValue | None] = {
        "rdma": bool(function.rdma),
        "rdmaDevice": function.rdma[0].name if function.rdma else None,
        "vendorID": None if function.vendor is None else f"0x{function.vendor:04x}",
        "deviceID": None if function.device is None else f"0x{function.device:04x}",
        **function.place,
    }
    # What the kernel has bound is what a claim gets; ethtool's name of a virtio driver is another.
    if function.driver:
        found["driver"] = function.driver
    return found


def _physical_attributes(card: Card) -> dict[str, AttributeValue | None]:
    """Return by what functions of one card are found, by the words of SR-IOV's users."""
    return {
        "pfName": card.link.name if card.link else None,
        "pfBusID": card.physical.address if card.physical else None,
    }


def _known(found: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {name: value for name, value in found.items() if value is not None}
