"""The PCI functions of network cards: on the bus whether or not their interface is seen here, and next to what.

Files: kernel, Documentation/ABI/testing/sysfs-bus-pci.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dradriver.host import (
    GPU_CLASSES,
    PCI_DIR,
    Host,
    NodeSockets,
    iommu_group,
    pci_address,
    pci_place,
    pcie_root,
    pcie_switch,
)
from dradriver.model import PCI_BUS_ID, PCIE_ROOT, PCIE_SWITCH, AttributeValue

RAIL = "dradriver.io/rail"

_NETWORK = 0x02


@dataclass(frozen=True, slots=True)
class SriovFacts:
    """What a physical function can have: how many virtual ones, and how far their addresses are from its own."""

    total: int
    offset: int | None
    stride: int | None


@dataclass(frozen=True, slots=True)
class PCIFunction:
    """A function of a network card, as the bus has it.

    kind      vendor, device and subsystem ids: what makes cards alike
    place     attributes of where it is
    sriov     None on what is no physical function with SR-IOV
    virtual   the virtual functions that it has now: number -> address
    """

    address: str
    kind: tuple[int | None, ...]
    place: Mapping[str, AttributeValue]
    iommu_group: int | None
    physfn: str | None
    sriov: SriovFacts | None
    driver: str = ""
    virtual: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Known:
    """What does not change while a function is on the bus. Of what is no network card, only where GPUs are."""

    function: PCIFunction | None
    gpu_at: str | None


class Functions:
    """Reads the functions. What cannot change while one is on the bus is read once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[str, _Known] = {}
        self._sockets = NodeSockets(host)

    def read(self, with_links: Collection[str] = ()) -> dict[str, PCIFunction]:
        """Return the functions that are on the bus now, by address.

        with_links   functions with an interface: network cards whatever their class says, as programmable ones
        """
        names = [name for name in self._host.list_dir(PCI_DIR) if pci_address(name) == name]
        for gone in self._known.keys() - set(names):
            del self._known[gone]
        for name in names:
            known = self._known.get(name)
            if known is None or (known.function is None and name in with_links):
                self._known[name] = self._learn(name, surely=name in with_links)
        found = {
            name: self._now(known.function)
            for name in sorted(names, key=_order)
            if (known := self._known[name]).function
        }
        return _with_rails(found, [known.gpu_at for known in self._known.values() if known.gpu_at])

    def _now(self, function: PCIFunction) -> PCIFunction:
        directory = f"{PCI_DIR}/{function.address}"
        virtual = {}
        if function.sriov:
            for number in range(self._host.read_int(f"{directory}/sriov_numvfs") or 0):
                address = self._host.link_name(f"{directory}/virtfn{number}")
                if address and pci_address(address):
                    virtual[number] = address
        return replace(function, driver=self._host.link_name(f"{directory}/driver") or "", virtual=virtual)

    def _learn(self, address: str, *, surely: bool) -> _Known:
        directory = f"{PCI_DIR}/{address}"
        kind = self._host.read_hex(f"{directory}/class")
        if kind is not None and kind >> 8 in GPU_CLASSES:
            return _Known(None, pcie_switch(self._host, address) or pcie_root(self._host, address))
        if not surely and (kind is None or kind >> 16 != _NETWORK):
            return _Known(None, None)
        total = self._host.read_int(f"{directory}/sriov_totalvfs")
        ids = ("vendor", "device", "subsystem_vendor", "subsystem_device")
        return _Known(
            PCIFunction(
                address=address,
                kind=tuple(self._host.read_hex(f"{directory}/{name}") for name in ids),
                place=pci_place(self._host, address, self._sockets),
                iommu_group=iommu_group(self._host, address),
                physfn=pci_address(self._host.link_name(f"{directory}/physfn") or ""),
                sriov=SriovFacts(
                    total,
                    self._host.read_int(f"{directory}/sriov_offset"),
                    self._host.read_int(f"{directory}/sriov_stride"),
                )
                if total
                else None,
            ),
            None,
        )


def virtual_address(physical: str, number: int, facts: SriovFacts) -> str | None:
    """Return the address that a virtual function will have; None where the host does not tell.

    Facts: PCI Express Base Specification, "VF Discovery": offset and stride are added to the routing ID, whose bits are
    eight of the bus and, with ARI, eight of the function.
    """
    if facts.offset is None or facts.stride is None or not 0 <= number < facts.total:
        return None
    domain, bus, rest = physical.split(":")
    device, function = rest.split(".")
    own = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
    routing_id = own + facts.offset + number * facts.stride
    if routing_id >> 16:
        return None
    return f"{domain}:{routing_id >> 8:02x}:{routing_id >> 3 & 0x1F:02x}.{routing_id & 7}"


def place_of_virtual(place: Mapping[str, AttributeValue], address: str) -> dict[str, AttributeValue]:
    """Return the place of a virtual function that is yet to be made: next to its physical one."""
    return {**place, PCI_BUS_ID: address}


def _with_rails(functions: dict[str, PCIFunction], gpus: Iterable[str]) -> dict[str, PCIFunction]:
    """Number the cards that a rail-built node has next to its GPUs: as many of one kind, under the same switches.

    The number is the card's position among these, in the order of their addresses, which is how fabrics are cabled.
    """
    wanted = Counter(gpus)
    if sum(wanted.values()) < 2:
        return functions
    by_kind: dict[tuple[int | None, ...], list[PCIFunction]] = {}
    for one in functions.values():
        if one.physfn is None and _under(one) in wanted:
            by_kind.setdefault(one.kind, []).append(one)
    rails = {
        one.address: rail
        for cards in by_kind.values()
        if Counter(_under(card) for card in cards) == wanted
        for rail, card in enumerate(cards)
        for one in (card, *(functions[address] for address in card.virtual.values() if address in functions))
    }
    return {
        address: replace(one, place={**one.place, RAIL: rails[address]}) if address in rails else one
        for address, one in functions.items()
    }


def _under(function: PCIFunction) -> str:
    """Return what a function shares with its neighbours: the switch above it, or else the root."""
    return str(function.place.get(PCIE_SWITCH) or function.place.get(PCIE_ROOT) or "")


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split(r"[:.]", address))
