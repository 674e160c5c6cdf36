"""Reading the cards: PCI functions from sysfs, links from the kernel, and what is in pods from what was noted."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from dradriver.backend.vfio import VFIO
from dradriver.host import PCI_DIR, Host, pci_address
from dradriver.host.pcipath import parse_pci_path
from dradriver_nic.away import Away, Moved
from dradriver_nic.functions import Functions, PCIFunction, place_of_virtual, virtual_address
from dradriver_nic.inventory import (
    LOOPBACK,
    Card,
    Function,
    Link,
    NicInventory,
    function_name,
    link_card_name,
    names_of,
)
from dradriver_nic.kernel import Kernel
from dradriver_nic.options import NicOptions
from dradriver_nic.rdma import rdma_devices, rdma_exclusive
from dradriver_nic.uplink import built_upon, kept_for_host, relatives

_UPLINK_PORT = re.compile(r"p[0-9]+(?:s[0-9]+)?")
"""Port name of a physical port of a switchdev card (Documentation/networking/switchdev.rst), whole or split; the names
of others (`pf0vf3`, `pf0`) are of representors, which stand for functions but are none."""

_NO_UPLINK = (
    "the host has no default route, so that the link which it is reached over is not known: "
    "leave it out with the option devices"
)

_ELSEWHERE = (
    "this process is not in the network namespace of the host's first process: what it sees are not the host's links; "
    "run it there (hostNetwork of the pod), or set networkNamespace"
)

_OWN_BUSES = frozenset({"", "pci", "virtio"})
"""Where the only link of a PCI function hangs. What hangs on others, as the auxiliary bus, is a part of a function."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Which links cannot be given away, and why: `host` ones not even shared, `base` ones not as a whole."""

    host: Mapping[int, str]
    base: Mapping[int, str]

    def reason(self, link: Link | None, *, shared: bool = False) -> str:
        if link is None:
            return ""
        return self.host.get(link.index, "") or ("" if shared else self.base.get(link.index, ""))


class Prober:
    """Reads the cards again and again, and remembers what cannot be seen at all times."""

    def __init__(self, host: Host, options: NicOptions, kernel: Kernel, away: Away) -> None:
        self._host = host
        self._options = options
        self._kernel = kernel
        self._away = away
        self._functions = Functions(host)
        self._routes: frozenset[int] = frozenset()
        self._speeds: dict[str, int] = {}

    def probe(self) -> NicInventory:
        """Read everything. Raises UnavailableError."""
        # What was noted is read first: what comes back meanwhile is then seen as a link.
        moved = self._away.moved
        snapshot = self._kernel.snapshot()
        links = {index: self._located(link) for index, link in snapshot.links.items()}
        functions = self._functions.read(_functions_of([*links.values(), *_links_of(moved)]))
        self._routes = self._default_routes(links, snapshot.default_routes)
        uplink = relatives(links, self._routes)
        kept = _Kept(kept_for_host(links, self._routes, uplink), built_upon(links))
        seen = _Seen(functions, self._own_links(links.values()), moved, kept)
        reader = _Reader(self._host, self._options, seen)
        cards = [*reader.pci_cards(), *reader.link_cards(links.values())]
        self._speeds = {card.name: speed for card in cards if (speed := self._speed(card)) is not None}
        return NicInventory(
            cards=tuple(_with_speed(card, self._speeds.get(card.name)) for card in cards),
            links=links,
            uplink=uplink,
            rdma_exclusive=rdma_exclusive(self._host),
            notes=tuple(reader.notes),
            warnings=self._warnings(),
        )

    def _default_routes(self, links: Mapping[int, Link], now: frozenset[int]) -> frozenset[int]:
        """Return the links of default routes, those included that have lost theirs for the time being.

        A link without a carrier has no routes, and while an interface is configured anew there may be none at all: that
        does not make it free.
        """
        return now | {
            index
            for index in self._routes - now
            if index in links and (not now or links[index].state not in {"up", "unknown"})
        }

    def _warnings(self) -> tuple[str, ...]:
        elsewhere = not self._options.network_namespace and not _is_in_namespace_of(self._host)
        return (*((_ELSEWHERE,) if elsewhere else ()), *(() if self._routes else (_NO_UPLINK,)))

    def _located(self, link: Link) -> Link:
        """Return the link with the PCI function behind it."""
        if not link.device:
            return link
        address = pci_address(link.device) if link.bus in {"", "pci"} else None
        if address is None and link.bus:
            path = self._host.resolve(f"sys/bus/{link.bus}/devices/{link.device}")
            found = parse_pci_path(path) if path else None
            address = found.address if found else None
        return replace(link, function=address) if address else link

    def _own_links(self, links: Iterable[Link]) -> dict[str, dict[int, Link]]:
        """Return the links of each function, by the number of the port."""
        found: dict[str, list[Link]] = {}
        for link in links:
            if link.function and _is_own(link):
                found.setdefault(link.function, []).append(link)
        return {address: self._by_port(address, own) for address, own in found.items()}

    def _by_port(self, address: str, links: list[Link]) -> dict[int, Link]:
        ports: dict[int, Link] = {}
        for link in sorted(links, key=lambda link: link.index):
            port = self._host.read_int(f"{PCI_DIR}/{address}/net/{link.name}/dev_port") or 0
            ports.setdefault(port, replace(link, dev_port=port))
        return ports

    def _speed(self, card: Card) -> int | None:
        """Return how fast a card is, or was while its link was up: that does not change with a cable."""
        now = card.link.speed_mbps if card.link else None
        return self._speeds.get(card.name) if now is None else now


def _is_in_namespace_of(host: Host) -> bool:
    """Return whether this process is in the network namespace of a host's first process, as far as that can be said."""
    try:
        return os.path.samefile("/proc/self/ns/net", host.root / "proc/1/ns/net")  # noqa: PTH121
    except OSError:
        return True


def _with_speed(card: Card, speed: int | None) -> Card:
    if card.link is None or card.link.speed_mbps == speed:
        return card
    link = replace(card.link, speed_mbps=speed)
    return replace(card, link=link, physical=replace(card.physical, link=link) if card.physical else None)


def _is_own(link: Link) -> bool:
    """Return whether a link is that of a PCI function itself, or of one of its ports."""
    if link.function is None or link.kind or link.bus not in _OWN_BUSES:
        return False
    return not (link.switch_id and link.port_name and not _UPLINK_PORT.fullmatch(link.port_name))


def _links_of(moved: Mapping[str, Moved]) -> Iterator[Link]:
    return (one.link for one in moved.values() if one.link)


def _functions_of(links: Iterable[Link]) -> frozenset[str]:
    return frozenset(link.function for link in links if link.function and _is_own(link))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found: functions by address with their links, what is in pods, and what the host keeps."""

    functions: Mapping[str, PCIFunction]
    own: Mapping[str, Mapping[int, Link]]
    moved: Mapping[str, Moved]
    kept: _Kept


class _Reader:
    """One reading: makes cards of what was found."""

    def __init__(self, host: Host, options: NicOptions, seen: _Seen) -> None:
        self._host = host
        self._options = options
        self._seen = seen
        self._numbers = {
            address: (physical, number)
            for physical, facts in seen.functions.items()
            for number, address in facts.virtual.items()
        }
        self.notes: list[str] = []

    def pci_cards(self) -> Iterator[Card]:
        """Yield a card for each port of each function that is not a virtual one of another on the bus."""
        for facts in self._seen.functions.values():
            if facts.address not in self._numbers:
                ports = self._with_ports(facts)
                for number, function in enumerate(ports):
                    yield self._card(facts, function, virtual=number == 0)

    def link_cards(self, links: Iterable[Link]) -> Iterator[Card]:
        """Yield a card for each link that is no PCI function's own and may be offered, in a pod or here."""
        found = {
            name: (moved.link, True)
            for name, moved in self._seen.moved.items()
            if moved.link and not _is_own(moved.link)
        }
        found |= {link_card_name(link): (link, False) for link in links if self._is_card(link)}
        for name, (link, away) in sorted(found.items()):
            mode = self._options.mode_of(*names_of(name, link, link.driver))
            reserved = "" if away else self._seen.kept.reason(link, shared=mode == "shares")
            yield Card(name, mode, link=link, away=away, reserved=reserved)

    def _is_card(self, link: Link) -> bool:
        """Return whether a link is one: of a kind that the options name, or of hardware and no port of a switch."""
        if link.kind:
            return link.kind in self._options.virtual_links
        return bool(link.device) and not link.switch_id and link.type != LOOPBACK and not _is_own(link)

    def _with_ports(self, facts: PCIFunction) -> list[Function]:
        """Return a function, once for each of its ports, those in pods included."""
        own = self._seen.own.get(facts.address, {})
        name = function_name(facts.address)
        gone = {
            moved.link.dev_port
            for device, moved in self._seen.moved.items()
            if moved.link and (device == name or device.startswith(f"{name}-port-"))
        }
        ports = sorted(own.keys() | gone)
        if len(ports) < 2:
            return [self._function(facts, None, next(iter(own.values()), None))]
        return [self._function(facts, port, own.get(port)) for port in ports]

    def _function(self, facts: PCIFunction, port: int | None, link: Link | None) -> Function:
        moved = self._seen.moved.get(function_name(facts.address, port))
        away = link is None and moved is not None and facts.driver != VFIO
        if moved and moved.link and link is None:
            link = moved.link
        rdma = rdma_devices(self._host, facts.address)
        if moved and not rdma:
            rdma = moved.rdma
        physfn, number = self._numbers.get(facts.address, (None, None))
        return Function(
            address=facts.address,
            port=port,
            place=facts.place,
            driver=facts.driver,
            vendor=facts.kind[0],
            device=facts.kind[1],
            iommu_group=facts.iommu_group,
            link=link,
            away=away,
            rdma=rdma,
            physfn=physfn,
            number=number,
            reserved="" if away or facts.driver == VFIO else self._seen.kept.reason(link),
        )

    def _card(self, facts: PCIFunction, physical: Function, *, virtual: bool) -> Card:
        """Return the card of a physical function; `virtual` says whether the virtual ones are this port's."""
        link = physical.link
        mode = self._options.mode_of(*names_of(physical.name, link, physical.driver))
        functions = tuple(self._virtual(facts)) if virtual else ()
        reserved = "" if physical.away else self._seen.kept.reason(link, shared=mode == "shares")
        if not reserved and any(one.link and one.link.index in self._seen.kept.host for one in functions):
            reserved = "one of its virtual functions belongs to the host"
        card = Card(
            name=physical.name,
            mode=mode,
            physical=replace(physical, reserved=reserved),
            link=link,
            away=physical.away,
            sriov_total=facts.sriov.total if facts.sriov and virtual else 0,
            sriov_num=len(facts.virtual) if virtual else 0,
            virtual=functions,
            reserved=reserved,
        )
        if mode != "on-demand" or functions or not virtual:
            return card
        return replace(card, virtual=tuple(self._to_be_made(facts, card)))

    def _virtual(self, facts: PCIFunction) -> Iterator[Function]:
        for _, address in sorted(facts.virtual.items()):
            if address in self._seen.functions:
                yield from self._with_ports(self._seen.functions[address])

    def _to_be_made(self, facts: PCIFunction, card: Card) -> Iterator[Function]:
        """Yield the virtual functions that an idle card is to have."""
        if facts.sriov is None or card.reserved or card.away or card.link is None:
            return
        count = min(self._options.on_demand_vfs or facts.sriov.total, facts.sriov.total)
        for number in range(count):
            address = virtual_address(facts.address, number, facts.sriov)
            if address is None:
                self.notes.append(f"{card.name}: the host does not tell where its virtual functions will be")
                return
            yield Function(
                address=address,
                place=place_of_virtual(facts.place, address),
                vendor=facts.kind[0],
                physfn=facts.address,
                number=number,
                exists=False,
            )
