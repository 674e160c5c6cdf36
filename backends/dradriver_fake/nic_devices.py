"""Network cards as they are published: physical functions, virtual ones, both, or shares of bandwidth."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
from dradriver_fake.backend import health_of, odd_answers
from dradriver_fake.facts import NICDevice, VFDevice, num_vfs
from dradriver_fake.options import NICMode
from dradriver_fake.script import Ailments
from dradriver_fake.tree_pci import Interface

BANDWIDTH = "bandwidth"

_MEGABIT = 10**6
_GIGABIT = 10**9


@dataclass(frozen=True, slots=True)
class Function:
    """A function on the bus: where it is, and its interface, None where it is bound to vfio-pci."""

    facts: NICDevice | VFDevice
    place: Mapping[str, AttributeValue]
    interface: Interface | None

    @property
    def name(self) -> str:
        """The name of its device."""
        return self.facts.name


@dataclass(frozen=True, slots=True)
class Card:
    """A physical function that may be offered, its virtual ones, and how they are offered.

    physical   None where it is not on the bus
    """

    facts: NICDevice
    mode: NICMode
    physical: Function | None
    virtual: tuple[Function, ...]

    @property
    def offered(self) -> tuple[Function, ...]:
        """The functions that are offered, the virtual ones first: the physical one leaves nothing to them."""
        whole = () if self.physical is None or self.facts.nic.default_route else (self.physical,)
        match self.mode:
            case "vf":
                return self.virtual or (whole if not num_vfs(self.facts) else ())
            case "both":
                return (*self.virtual, *whole)
            case "pf" | "shares":
                return whole


@dataclass(frozen=True, slots=True)
class NICInventory:
    """The cards, what is wrong with them, and with the fault script."""

    cards: tuple[Card, ...]
    ailments: Ailments
    remarks: tuple[str, ...] = ()

    def functions(self) -> Iterator[tuple[Card, Function]]:
        """Yield every function that is offered, with its card."""
        for card in self.cards:
            for function in card.offered:
                yield card, function


def content_of(inventory: NICInventory) -> PoolContent:
    """Return what is offered of the cards."""
    counter_sets = [
        CounterSet(card.facts.name, {"vf": Quantity.from_int(_total(card))})
        for card in inventory.cards
        if _has_counters(card)
    ]
    devices = [_device(card, function, inventory.ailments) for card, function in inventory.functions()]
    notes = [
        f"{card.facts.nic.netdev} ({card.facts.name}) is not offered: the host's default route leads over it"
        for card in inventory.cards
        if card.facts.nic.default_route
    ]
    return PoolContent(tuple(devices), tuple(counter_sets), tuple(notes), inventory.remarks)


def _has_counters(card: Card) -> bool:
    return len(card.offered) > 1 and card.mode == "both"


def _total(card: Card) -> int:
    return max(card.facts.nic.sriov_total_vfs or 0, len(card.virtual))


def _device(card: Card, function: Function, ailments: Ailments) -> Device:
    names = (function.name, card.facts.name)
    attributes = odd_answers(ailments, names, _attributes(card, function), "ifName")
    is_virtual = isinstance(function.facts, VFDevice)
    consumes = {}
    if _has_counters(card):
        amount = Quantity.from_int(1 if is_virtual else _total(card))
        consumes = {card.facts.name: {"vf": amount}}
    capacity = _bandwidth(card) if card.mode == "shares" else {}
    return Device(
        name=function.name,
        thing=card.facts.name,
        attributes=attributes,
        capacity=capacity,
        shared=bool(capacity),
        consumes=consumes,
        **health_of(ailments, names),
    )


def _attributes(card: Card, function: Function) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    if function.interface:
        attributes |= {
            "ifName": function.interface.name,
            "mac": function.interface.mac,
            "mtu": function.interface.mtu,
        }
    match function.facts:
        case VFDevice(vf=vf):
            attributes |= {"rdma": vf.rdma_device is not None, "driver": vf.driver, "isSriovVf": True}
        case NICDevice(nic=nic):
            attributes |= {"rdma": nic.rdma_device is not None, "driver": nic.driver, "isSriovVf": False}
            if nic.sriov_total_vfs is not None:
                attributes["sriovVfs"] = num_vfs(card.facts)
    if card.facts.nic.rate_gbps:
        attributes["speed"] = card.facts.nic.rate_gbps * 1000
    return {**attributes, **function.place}


def _bandwidth(card: Card) -> dict[str, Capacity]:
    """Return the bits a second that claims share, in megabits; a card whose speed is not known is not shared."""
    if not card.facts.nic.rate_gbps:
        return {}
    megabit, gigabit = Quantity.from_int(_MEGABIT), Quantity.from_int(_GIGABIT)
    policy = RequestPolicy(default=gigabit, valid_range=ValidRange(min=megabit, step=megabit))
    return {BANDWIDTH: Capacity(Quantity.from_int(card.facts.nic.rate_gbps * _GIGABIT), policy)}
