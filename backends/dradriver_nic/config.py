"""What a claim or a class says of its network interfaces.

Fields have the names and the order of the established network driver (kubernetes-sigs/dranet, `NetworkConfig`), so that
configurations that people have written keep their shape; what SR-IOV users set is in `vf`. Addresses and networks are
of IPv4 or IPv6. What the kernel would refuse is refused here where it can be known, with the path of the field.
"""

import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Annotated, Literal

import msgspec

from dradriver.backend import ClaimConfig, Strict
from dradriver.model import Quantity, shown
from dradriver_nic.messages import RT_TABLE_MAIN
from dradriver_nic.sysctls import check_sysctl

MEGABIT = 10**6

PASSTHRU = "passthru"
"""The mode of a macvlan link that has the card, and its MAC address, for itself."""

_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_BROADCAST = IPv4Address("255.255.255.255")
_ZONE = "%"
"""Of an address like fe80::1%eth0: which interface is meant, which is always the claim's own here."""

MIN_IPV6_MTU = 1280

_DEFAULT_METRICS = {4: 0, 6: 1024}
"""What the kernel gives a route that has none (for IPv6 IP6_RT_PRIO_USER)."""

_RESERVED_TABLES = frozenset({0, 253, 254, 255})
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,14}")
_ETHTOOL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+() -]{0,31}")

Table = Annotated[int, msgspec.Meta(ge=1, le=(1 << 32) - 1)]
Metric = Annotated[int, msgspec.Meta(ge=1, le=(1 << 32) - 1)]
Priority = Annotated[int, msgspec.Meta(ge=1, le=32765)]
MaxSize = Annotated[int, msgspec.Meta(ge=1, le=(1 << 32) - 1)]

Address = IPv4Address | IPv6Address
Interfaces = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network


class Vrf(Strict, frozen=True, kw_only=True):
    """The VRF in the pod that the interface belongs to; it is made with the first interface that names it.

    table   the routing table of the VRF; all routes of the interface go there
    """

    name: str
    table: Table

    def __post_init__(self) -> None:
        """Refuse a name that no interface can have, and tables of the kernel."""
        check_name(self.name, "name")
        if self.table in _RESERVED_TABLES:
            raise ValueError(
                f"table: {self.table} is one of the kernel's: allowed is any but 253, 254 and 255"
            )


class Interface(Strict, frozen=True, kw_only=True):
    """The interface in the pod. What is not given stays as the card has it.

    name           without it the interface keeps its name, and a macvlan link is `net<n>`
    addresses      with prefix lengths, as `10.9.8.7/24`
    dhcp           not supported: refused where true
    hardwareAddr   MAC address
    gsoMaxSize ... sizes for BIG TCP, in bytes
    """

    name: str = ""
    addresses: tuple[str, ...] = ()
    dhcp: bool = False
    mtu: Annotated[int, msgspec.Meta(ge=68, le=65535)] | None = None
    hardware_addr: str = ""
    gso_max_size: MaxSize | None = None
    gro_max_size: MaxSize | None = None
    gso_ipv4_max_size: MaxSize | None = msgspec.field(default=None, name="gsoIPv4MaxSize")
    gro_ipv4_max_size: MaxSize | None = msgspec.field(default=None, name="groIPv4MaxSize")
    vrf: Vrf | None = None

    def __post_init__(self) -> None:
        """Refuse what no interface can have, and DHCP."""
        if self.name:
            check_name(self.name, "name")
        if self.dhcp:
            raise ValueError(
                "dhcp: is not supported: nobody would renew the lease for the pod. Give addresses, or an addressPool"
            )
        for number, address in enumerate(self.addresses):
            _interface(address, f"addresses[{number}]")
        # Of IPv6 the kernel has an address once, whatever its prefix length.
        if len({one if one.version == 4 else one.ip for one in self.ips}) < len(self.ips):
            raise ValueError("addresses: one stands there twice")
        if self.mtu is not None and (message := too_small(self.mtu, self.ips)):
            raise ValueError(f"mtu: {message}")
        if self.hardware_addr:
            check_mac(self.hardware_addr, "hardwareAddr")

    @property
    def ips(self) -> tuple[Interfaces, ...]:
        """The addresses."""
        return tuple(ip_interface(address) for address in self.addresses)

    @property
    def table(self) -> int:
        """The table of routes that name none: that of the VRF where there is one."""
        return self.vrf.table if self.vrf else RT_TABLE_MAIN

    @property
    def mac(self) -> str:
        """The MAC address in lower case; empty where none is given."""
        return self.hardware_addr.lower()


class Route(Strict, frozen=True, kw_only=True):
    """A route of the interface.

    destination   network, as `10.0.0.0/8`, or `0.0.0.0/0`
    gateway       without it the destination is on the link
    source        address that packets are sent from
    onlink        whether the gateway is on the link though no address of the interface says so
    """

    destination: str
    gateway: str = ""
    source: str = ""
    metric: Metric | None = None
    mtu: Annotated[int, msgspec.Meta(ge=68, le=65535)] | None = None
    table: Table | None = None
    onlink: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no network or address, and families that differ."""
        network = _network(self.destination, "destination")
        for name, text in (("gateway", self.gateway), ("source", self.source)):
            if text and _address(text, name) != network.version:
                raise ValueError(f"{name}: {shown(text)} is not of the family of {shown(self.destination)}")
        if self.onlink and not self.gateway:
            raise ValueError("onlink: is about a gateway, and there is none")
        if self.table == 255:
            raise ValueError("table: 255 is the kernel's own (local)")

    def place(self, table: int) -> tuple[Network, int, int]:
        """Return network, table and metric, of which the kernel has one route; `table` is that of one without."""
        network = ip_network(self.destination)
        return network, self.table or table, self.metric or _DEFAULT_METRICS[network.version]


class Rule(Strict, frozen=True, kw_only=True):
    """A policy routing rule of the pod: packets from `source` and to `destination` are routed by `table`."""

    source: str = ""
    destination: str = ""
    table: Table
    priority: Priority | None = None

    def __post_init__(self) -> None:
        """Refuse what is no network, a rule for everything, and families that differ."""
        given = [
            _network(text, name)
            for name, text in (("source", self.source), ("destination", self.destination))
            if text
        ]
        if not any(network.prefixlen for network in given):
            raise ValueError(
                "source or destination is required: a rule for all packets would leave no other network"
            )
        if len({network.version for network in given}) > 1:
            raise ValueError(
                f"destination: {shown(self.destination)} is not of the family of {shown(self.source)}"
            )

    @property
    def version(self) -> int:
        """4 or 6."""
        return ip_network(self.source or self.destination).version


class Neighbor(Strict, frozen=True, kw_only=True):
    """A permanent entry of the neighbour table."""

    destination: str
    hardware_addr: str

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        _address(self.destination, "destination")
        check_mac(self.hardware_addr, "hardwareAddr")


class Ethtool(Strict, frozen=True, kw_only=True):
    """What `ethtool -K` and `ethtool --set-priv-flags` set, by the names that these have."""

    features: dict[str, bool] = msgspec.field(default_factory=dict)
    private_flags: dict[str, bool] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be a name (ETH_GSTRING_LEN is 32)."""
        for name, flags in (("features", self.features), ("privateFlags", self.private_flags)):
            for flag in flags:
                if not _ETHTOOL_NAME.fullmatch(flag):
                    raise ValueError(
                        f"{name}: {shown(flag)} is no name of ethtool's: at most 32 letters, digits, '-' and '_'"
                    )


class VirtualFunction(Strict, frozen=True, kw_only=True):
    """What the physical function enforces on a virtual one. What is not given stays as it is.

    vlan, qos        tag of its packets, and their priority; vlan 0 takes the tag off
    vlanProto        of the tag
    spoofCheck       whether packets with another source MAC address are dropped
    trust            whether it may become promiscuous and change its MAC address
    linkState        as the physical port, or always up or down
    minRate, maxRate what it is sure to get, and is limited to, in bits a second: `10G`
    """

    vlan: Annotated[int, msgspec.Meta(ge=0, le=4094)] | None = None
    qos: Annotated[int, msgspec.Meta(ge=0, le=7)] | None = None
    vlan_proto: Literal["802.1q", "802.1ad"] = "802.1q"
    spoof_check: bool | None = None
    trust: bool | None = None
    link_state: Literal["auto", "enable", "disable"] | None = None
    min_rate: str | None = None
    max_rate: str | None = None

    def __post_init__(self) -> None:
        """Refuse a priority without a tag, and rates that no card can have."""
        if not self.vlan and (self.qos or self.vlan_proto != "802.1q"):
            raise ValueError("vlan: is required with qos and vlanProto, from 1 to 4094")
        least, most = self.min_rate_mbps, self.max_rate_mbps
        if least and most and least > most:
            raise ValueError(f"minRate: {shown(self.min_rate)} is more than maxRate, {shown(self.max_rate)}")

    @property
    def min_rate_mbps(self) -> int | None:
        """What it is sure to get, in Mbit/s; 0 for nothing."""
        return None if self.min_rate is None else megabits(self.min_rate, "minRate")

    @property
    def max_rate_mbps(self) -> int | None:
        """What it is limited to, in Mbit/s; 0 for no limit."""
        return None if self.max_rate is None else megabits(self.max_rate, "maxRate")


class AddressPool(Strict, frozen=True, kw_only=True):
    """Addresses of which each device of a claim gets one of each network, given out by this node.

    cidr       a network with the prefix length that the interface gets, as `10.9.0.0/24`; or two, one of each family
    reserved   what of it is never given out: addresses, networks (`10.9.0.0/28`) and ranges (`10.9.0.1-10.9.0.9`)
    """

    cidr: str | tuple[str, ...]
    reserved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no network, two of one family, and what lies in none of them."""
        networks = self.networks
        if not networks:
            raise ValueError("cidr: a network is expected, as 10.9.0.0/24")
        for network in networks:
            if network.is_multicast or network.is_loopback:
                raise ValueError(f"cidr: {network} has no addresses of interfaces")
        if len({network.version for network in networks}) < len(networks):
            raise ValueError("cidr: at most one network of each family is allowed")
        for number, text in enumerate(self.reserved):
            first, last = address_range(text, f"reserved[{number}]")
            if not any(
                network.version == ip_address(first).version and first in network and last in network
                for network in networks
            ):
                raise ValueError(
                    f"reserved[{number}]: {shown(text)} is not in {' or '.join(map(str, networks))}"
                )

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks."""
        given = (self.cidr,) if isinstance(self.cidr, str) else self.cidr
        return tuple(_network(text, "cidr") for text in given)


class NicConfig(ClaimConfig, frozen=True, kw_only=True):
    """How a claim wants its network interfaces.

    neighbors      permanent entries of the neighbour table
    sysctls        of the interface: `net.ipv4.conf.IFNAME.arp_ignore` -> value
    vf             for virtual functions only
    macvlanMode    for shares of a card: whether links on one card see each other
    rdma           whether containers get the RDMA device of the card; where it is not said, if there is one
    driver         `vfio-pci` gives the function to a program of the pod, as DPDK, without a network interface
    """

    interface: Interface = Interface()
    routes: tuple[Route, ...] = ()
    rules: tuple[Rule, ...] = ()
    neighbors: tuple[Neighbor, ...] = ()
    ethtool: Ethtool = Ethtool()
    sysctls: dict[str, str] = msgspec.field(default_factory=dict)
    vf: VirtualFunction = VirtualFunction()
    address_pool: AddressPool | None = None
    macvlan_mode: Literal["bridge", "private", "vepa", "passthru"] = "bridge"
    rdma: bool | None = None
    driver: Literal["as-is", "vfio-pci"] = "as-is"

    def __post_init__(self) -> None:
        """Refuse sysctls that are not the interface's own, and what cannot go together."""
        for name, value in self.sysctls.items():
            check_sysctl(name, value)
        self._check_routes_differ()
        destinations = [ip_address(one.destination) for one in self.neighbors]
        for number, destination in enumerate(destinations):
            if destination in destinations[:number]:
                raise ValueError(f"neighbors[{number}]: {destination} stands there twice")
        if self.interface.vrf:
            if self.rules:
                raise ValueError("rules: are not allowed with a VRF, which has a rule of its own")
            for number, route in enumerate(self.routes):
                if route.table not in {None, self.interface.vrf.table}:
                    raise ValueError(f"routes[{number}].table: {route.table} is not that of the VRF")
        if self.address_pool:
            for number, address in enumerate(self.interface.ips):
                if any(address.version == network.version for network in self.address_pool.networks):
                    raise ValueError(
                        f"interface.addresses[{number}]: {address} is not allowed beside an addressPool of its family"
                    )
        if self.driver == "vfio-pci" and (given := self._given_for_interface()):
            raise ValueError(
                f"{given}: means nothing with driver vfio-pci, which leaves no network interface"
            )

    def _check_routes_differ(self) -> None:
        """Refuse two routes of which the kernel takes the first one only."""
        first: dict[tuple[Network, int, int], int] = {}
        for number, route in enumerate(self.routes):
            known = first.setdefault(route.place(self.interface.table), number)
            if known != number:
                raise ValueError(
                    f"routes[{number}]: routes[{known}] is to {shown(route.destination)} too: a second one needs "
                    "another metric or another table"
                )

    def _given_for_interface(self) -> str:
        """Return the first field that is about a network interface; empty where there is none."""
        values = {
            "interface": self.interface != Interface(),
            "routes": self.routes,
            "rules": self.rules,
            "neighbors": self.neighbors,
            "ethtool": self.ethtool != Ethtool(),
            "sysctls": self.sysctls,
            "addressPool": self.address_pool,
        }
        return next((name for name, given in values.items() if given), "")


def too_small(mtu: int, addresses: Iterable[Interfaces]) -> str:
    """Return why an MTU is too small for some of these addresses; empty where it is not (RFC 8200, 5)."""
    if mtu >= MIN_IPV6_MTU or not any(one.version == 6 for one in addresses):
        return ""
    return f"{mtu} is too small for IPv6 addresses: {MIN_IPV6_MTU} is the least"


def check_name(name: str, what: str) -> str:
    """Return the name of an interface as Linux takes it (dev_valid_name), in ASCII. Raises ValueError.

    It becomes a directory below /proc/sys and an argument of programs, so nothing that reads as something else.
    """
    if not _NAME.fullmatch(name) or name in {".", "..", "all", "default", "lo"}:
        raise ValueError(
            f"{what}: {shown(name)} is no name of an interface: 1 to 15 letters, digits and '-', '_' or '.' "
            "are allowed, but not all, default or lo"
        )
    return name


def check_mac(text: str, what: str) -> str:
    """Return a MAC address that an interface can have, in lower case. Raises ValueError."""
    mac = text.lower()
    if not _MAC.fullmatch(mac):
        raise ValueError(
            f"{what}: {shown(text)} is no MAC address: six bytes are expected, as 02:00:00:00:00:01"
        )
    if int(mac[:2], 16) & 1:
        raise ValueError(f"{what}: {shown(text)} is a multicast address: no interface can have it")
    if mac == "00:00:00:00:00:00":
        raise ValueError(f"{what}: {shown(text)} is nobody's address")
    return mac


def megabits(text: str, what: str) -> int:
    """Return a rate, written in bits a second, in whole Mbit/s. Raises ValueError."""
    try:
        bits = Quantity.parse(text)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    mbps = bits.to_int() // MEGABIT
    if bits.nano < 0 or Quantity.from_int(mbps * MEGABIT) != bits or mbps >= 1 << 32:
        raise ValueError(
            f"{what}: {shown(text)} is no rate: whole megabits a second are expected, as 500M or 10G"
        )
    return mbps


def address_range(text: str, what: str) -> tuple[Address, Address]:
    """Return the first and the last address of `10.9.0.1`, `10.9.0.0/28` or `10.9.0.1-10.9.0.9`. Raises ValueError."""
    first, dash, last = text.partition("-")
    try:
        if dash:
            start, end = ip_address(first.strip()), ip_address(last.strip())
        else:
            network = ip_network(text)
            start, end = network[0], network[-1]
    except ValueError:
        start, end = ip_address(1), ip_address(0)
    if start.version != end.version or int(start) > int(end):
        raise ValueError(
            f"{what}: {shown(text)} is no part of a network: an address, a network like 10.9.0.0/28 or a range like "
            "10.9.0.1-10.9.0.9 is expected"
        )
    return start, end


def _interface(text: str, what: str) -> Interfaces:
    try:
        if "/" not in text or _ZONE in text:
            raise ValueError
        found = ip_interface(text)
    except ValueError:
        raise ValueError(
            f"{what}: {shown(text)} is no address with a prefix length, as 10.9.8.7/24 or 2001:db8::7/64"
        ) from None
    if not _is_unicast(found.ip):
        raise ValueError(f"{what}: {shown(text)} cannot be the address of an interface")
    return found


def _network(text: str, what: str) -> Network:
    try:
        if "/" not in text or _ZONE in text:
            raise ValueError
        return ip_network(text)
    except ValueError:
        raise ValueError(
            f"{what}: {shown(text)} is no network: one like 10.9.0.0/24 is expected, with no bits set behind the prefix"
        ) from None


def _address(text: str, what: str) -> int:
    """Return the version of an address. Raises ValueError for what is none, or not that of one interface."""
    try:
        if _ZONE in text:
            raise ValueError
        found = ip_address(text)
    except ValueError:
        raise ValueError(f"{what}: {shown(text)} is no IP address, as 10.9.8.7 or 2001:db8::7") from None
    if not _is_unicast(found):
        raise ValueError(f"{what}: {shown(text)} cannot be the address of an interface")
    return found.version


def _is_unicast(address: Address) -> bool:
    """Return whether an address can be that of one interface in a network."""
    if address.is_multicast or address.is_unspecified or address.is_loopback or address == _BROADCAST:
        return False
    return address.version == 4 or address.ipv4_mapped is None
