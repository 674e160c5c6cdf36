"""What was read of network links, PCI functions and RDMA devices: plain frozen data, from which devices and plans come.

What the host does not tell is None, or empty where a text is expected. A card is what is offered in one way: a physical
PCI function with its virtual ones, or a link without a device behind it.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dradriver.model import AttributeValue
from dradriver_nic.options import Mode

ETHERNET = 1
"""ARPHRD_ETHER."""

INFINIBAND = 32
"""ARPHRD_INFINIBAND."""

LOOPBACK = 772
"""ARPHRD_LOOPBACK."""

_FUNCTION = re.compile(r"nic-([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])(?:-port-[0-9]+)?")


@dataclass(frozen=True, slots=True)
class VFSettings:
    """What a physical function enforces on one of its virtual ones (`ip link show`, IFLA_VFINFO_LIST).

    number       from 0, as in `virtfn0`
    vlan, qos    0 for none
    vlan_proto   0x8100 (802.1Q) or 0x88a8 (802.1ad)
    link_state   0 as the physical port, 1 always up, 2 always down
    min_rate, max_rate   in Mbit/s; 0 for no limit
    """

    number: int
    mac: str = ""
    vlan: int = 0
    qos: int = 0
    vlan_proto: int = 0x8100
    spoof_check: bool | None = None
    trust: bool | None = None
    link_state: int | None = None
    min_rate: int | None = None
    max_rate: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """One network interface of the host's network namespace, as rtnetlink and ethtool have it.

    index         number in this namespace; another one after the link was in a pod
    kind          rtnetlink's kind: `veth`, `macvlan`, `bridge`; empty for one that a device driver made
    type          ARPHRD number: 1 Ethernet, 32 InfiniBand
    mac           address now, six bytes or the 20 of InfiniBand, in hexadecimal with colons
    permanent_mac address that the card was made with; empty where there is none
    up            whether it is set up by the administrator; `state` is what has come of it: `up`, `down`, `dormant` ...
    master        index of the bridge, bond or VRF that it is a port of
    parent        index of the link below it in this namespace, as of a VLAN or macvlan
    switch_id, port_name   of a switch chip or an embedded switch (switchdev): `p0` uplink, `pf0vf3` representor
    device, bus   what it hangs on, as `0000:8a:00.0` on `pci`
    function      the PCI function behind it, also through virtio and the like
    dev_port      number of the port, from 0, where several share one PCI function
    addresses     its IP addresses with prefix lengths, without link-local ones
    speed_mbps    None where there is no carrier, or the driver does not know
    driver, firmware   as ethtool says them
    vfs           by number; empty on what is no physical function with virtual ones
    """

    index: int
    name: str
    altnames: tuple[str, ...] = ()
    kind: str = ""
    type: int = ETHERNET
    mac: str = ""
    permanent_mac: str = ""
    mtu: int = 0
    min_mtu: int = 0
    max_mtu: int = 0
    up: bool = False
    state: str = ""
    master: int | None = None
    parent: int | None = None
    switch_id: str = ""
    port_name: str = ""
    device: str = ""
    bus: str = ""
    function: str | None = None
    dev_port: int = 0
    addresses: tuple[str, ...] = ()
    speed_mbps: int | None = None
    driver: str = ""
    firmware: str = ""
    vfs: tuple[VFSettings, ...] = ()


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One RDMA device, as `mlx5_2`; it serves the function in whose directory it is.

    char_devices   what programs open, as `/dev/infiniband/uverbs2`
    """

    name: str
    char_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A PCI function of a network card, on the bus or one that a virtual function yet to be made will be.

    address       `0000:8a:00.2`
    port          number of its port, where the function has several, else None: each is a device of its own
    place         attributes of where it is, the same on all kinds of devices
    driver        kernel driver that it is bound to; empty for none
    link          its network interface; where that is in a pod, as it was last seen here
    away          whether the link is not in the host's network namespace now, though the function has one
    rdma          its RDMA devices that are seen here
    physfn        address of the physical function of a virtual one
    number        which virtual function it is, as in `virtfn0`
    reserved      why it is kept for the host; empty where it can be given away
    exists        false for a virtual function that is yet to be made
    """

    address: str
    port: int | None = None
    place: Mapping[str, AttributeValue] = field(default_factory=lambda: MappingProxyType({}))
    driver: str = ""
    vendor: int | None = None
    device: int | None = None
    iommu_group: int | None = None
    link: Link | None = None
    away: bool = False
    rdma: tuple[RdmaDevice, ...] = ()
    physfn: str | None = None
    number: int | None = None
    reserved: str = ""
    exists: bool = True

    @property
    def name(self) -> str:
        """The name of its device: `nic-0000-8a-00-2`."""
        return function_name(self.address, self.port)

    @property
    def is_virtual(self) -> bool:
        """Whether it is a virtual function."""
        return self.physfn is not None


@dataclass(frozen=True, slots=True)
class Card:
    """A physical function with its virtual ones, or a link of `kind` without a device; and how it is offered.

    name          of the physical thing, of its counter set, and of its own device
    physical      None for a link without a device
    link          the network interface of the card itself, wherever it is now
    sriov_total   how many virtual functions it can have, 0 for none
    sriov_num     how many it has now
    virtual       those that it has; in mode `on-demand` also those that it is to have
    reserved      why the card itself is kept for the host; empty where it can be given away, or in mode `shares` be
                  shared. Its virtual functions are not kept with it
    """

    name: str
    mode: Mode
    physical: Function | None = None
    link: Link | None = None
    away: bool = False
    sriov_total: int = 0
    sriov_num: int = 0
    virtual: tuple[Function, ...] = ()
    reserved: str = ""


@dataclass(frozen=True, slots=True)
class NicInventory:
    """All cards, by PCI address and then by the links' names, and what else decides about them.

    links             all links of the host's network namespace, by index: the uplink, bridges and loopback too
    uplink            indexes of the links that the host is reached over: those of its default routes and all of
                      their masters, ports, parents and bases
    rdma_exclusive    whether RDMA devices belong to one network namespace each, so that they are moved into pods; None
                      where there is no RDMA
    notes, warnings   as in `PoolContent`
    """

    cards: tuple[Card, ...] = ()
    links: Mapping[int, Link] = field(default_factory=lambda: MappingProxyType({}))
    uplink: frozenset[int] = frozenset()
    rdma_exclusive: bool | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def card(self, name: str) -> Card | None:
        """Return the card behind a device name: its own, or that of one of its virtual functions."""
        found = self.find(name)
        return found[0] if found else None

    def find(self, name: str) -> tuple[Card, Function | None] | None:
        """Return the card behind a device name, with the function; None as function for a link without a device."""
        for card in self.cards:
            if card.name == name:
                return card, card.physical
            for function in card.virtual:
                if function.name == name:
                    return card, function
        return None

    def functions(self) -> Iterator[Function]:
        """Yield all functions."""
        for card in self.cards:
            if card.physical:
                yield card.physical
            yield from card.virtual


def names_of(name: str, link: Link | None, driver: str) -> tuple[str, ...]:
    """Return the names by which options pick a card: of its device, its interface and its kernel driver."""
    return (name, *((link.name, *link.altnames) if link else ()), driver)


def function_name(address: str, port: int | None = None) -> str:
    """Return the name of the device at a PCI address; of a second port on, with its number."""
    name = f"nic-{address.replace(':', '-').replace('.', '-')}"
    return f"{name}-port-{port}" if port else name


def link_card_name(link: Link) -> str:
    """Return the name of the device of a link that is no PCI function's own: by what it hangs on, else by its name."""
    where = f"{link.bus}-{link.device}" if link.device else f"link-{link.name}"
    return f"nic-{_label(where)}"


def _label(text: str) -> str:
    """Return a text as a part of a DNS label; one that had to be changed for that is told apart by a hash."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].rstrip("-")
    if label == text:
        return label
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{label}-{digest}" if label else digest


def address_of(name: str) -> str | None:
    """Return the PCI address in a device's name; None for anything else."""
    match = _FUNCTION.fullmatch(name)
    return f"{match[1]}:{match[2]}:{match[3]}.{match[4]}" if match else None
