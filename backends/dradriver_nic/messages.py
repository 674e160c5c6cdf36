"""What rtnetlink's messages are made of, and bodies of requests.

Numbers are those of linux/{if_link,if_addr,rtnetlink,nexthop,fib_rules,neighbour}.h.
"""

import struct
from collections.abc import Iterator
from ipaddress import ip_address, ip_interface, ip_network

from dradriver_nic.netlink import attribute

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_GETNEIGH = 28, 30
RTM_NEWRULE, RTM_DELRULE = 32, 33
RTM_GETNEXTHOP = 106
RTM_NEWLINKPROP, RTM_DELLINKPROP = 108, 109

AF_UNSPEC, AF_INET, AF_INET6 = 0, 2, 10

IFF_UP, IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI, IFF_MULTICAST = 0x1, 0x80, 0x100, 0x200, 0x1000

IFLA_ADDRESS = 1
IFLA_IFNAME = 3
IFLA_MTU = 4
IFLA_LINK = 5
IFLA_QDISC = 6
IFLA_MASTER = 10
IFLA_TXQLEN = 13
IFLA_OPERSTATE = 16
IFLA_LINKINFO = 18
IFLA_INFO_KIND = 1
IFLA_INFO_DATA = 2
IFLA_IFALIAS = 20
IFLA_VFINFO_LIST = 22
IFLA_VF_INFO = 1
IFLA_GROUP = 27
IFLA_NET_NS_FD = 28
IFLA_EXT_MASK = 29
IFLA_PHYS_SWITCH_ID = 36
IFLA_LINK_NETNSID = 37
IFLA_PHYS_PORT_NAME = 38
IFLA_GSO_MAX_SIZE = 41
IFLA_XDP = 43
IFLA_NEW_IFINDEX = 49
IFLA_MIN_MTU = 50
IFLA_MAX_MTU = 51
IFLA_PROP_LIST = 52
IFLA_ALT_IFNAME = 53
IFLA_PERM_ADDRESS = 54
IFLA_PARENT_DEV_NAME = 56
IFLA_PARENT_DEV_BUS_NAME = 57
IFLA_GRO_MAX_SIZE = 58
IFLA_GSO_IPV4_MAX_SIZE = 63
IFLA_GRO_IPV4_MAX_SIZE = 64

IFLA_VF_MAC = 1
IFLA_VF_VLAN = 2
IFLA_VF_SPOOFCHK = 4
IFLA_VF_LINK_STATE = 5
IFLA_VF_RATE = 6
IFLA_VF_TRUST = 9
IFLA_VF_VLAN_LIST = 12
_IFLA_VF_VLAN_INFO = 1

_EXT_VF, _EXT_SKIP_STATS = 1, 8
"""With the counters of its virtual functions the message of a physical one can be longer than a message may be."""

MACVLAN_MODES = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}
_IFLA_MACVLAN_MODE = 1
_IFLA_VRF_TABLE = 1
_IFLA_XDP_FD = 1
_IFLA_XDP_FLAGS = 3

IFA_ADDRESS = 1
IFA_LOCAL = 2
IFA_BROADCAST = 4
IFA_CACHEINFO = 6
IFA_FLAGS = 8
IFA_PROTO = 11
IFA_F_TEMPORARY, IFA_F_NODAD = 0x1, 0x2

RTA_DST = 1
RTA_OIF = 4
RTA_GATEWAY = 5
RTA_PRIORITY = 6
RTA_PREFSRC = 7
RTA_METRICS = 8
RTA_MULTIPATH = 9
RTA_TABLE = 15
RTA_NH_ID = 30
_RTAX_MTU = 2
RTM_F_CLONED = 0x200
RTNH_F_ONLINK = 4
RTN_UNICAST = 1
RTPROT_KERNEL, RTPROT_STATIC, RTPROT_RA = 2, 4, 9
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK = 0, 253
RT_TABLE_COMPAT, RT_TABLE_MAIN = 252, 254

NHA_ID = 1
NHA_GROUP = 2
NHA_OIF = 5

_FRA_DST = 1
_FRA_SRC = 2
_FRA_PRIORITY = 6
_FRA_TABLE = 15
_FRA_PROTOCOL = 21
_FR_ACT_TO_TBL = 1

_NDA_DST = 1
_NDA_LLADDR = 2
NDA_IFINDEX = 8
NUD_PERMANENT = 0x80

_NESTED = 0x8000

LINK = struct.Struct("=BxHiII")
ADDRESS = struct.Struct("=BBBBI")
ROUTE = struct.Struct("=BBBBBBBBI")
NEXTHOP = struct.Struct("=BBBBI")
NEIGHBOUR = struct.Struct("=BxxxiHBB")


def u32(kind: int, value: int) -> bytes:
    """Return an attribute that is a number."""
    return attribute(kind, struct.pack("=I", value))


def text(kind: int, value: str) -> bytes:
    """Return an attribute that is a text."""
    return attribute(kind, value.encode() + b"\0")


def nested(kind: int, *inside: bytes) -> bytes:
    """Return an attribute that is made of others."""
    return attribute(kind | _NESTED, b"".join(inside))


def family_of(address: str) -> int:
    """Return the address family of an address or network in words."""
    return AF_INET6 if ":" in address else AF_INET


# --- links


def link(index: int, *given: bytes, flags: int = 0, change: int = 0) -> bytes:
    """Return the body of a request about a link, by number; 0 for one that an attribute names.

    flags, change   IFF_ bits, and which of them are set so
    """
    return LINK.pack(AF_UNSPEC, 0, index, flags, change) + b"".join(given)


def up(index: int, *, is_up: bool = True) -> bytes:
    """Return the body that sets a link up or down."""
    return link(index, flags=IFF_UP if is_up else 0, change=IFF_UP)


def link_mask() -> bytes:
    """Return the attribute by which a request asks for settings of virtual functions, and for no counters."""
    return u32(IFLA_EXT_MASK, _EXT_VF | _EXT_SKIP_STATS)


def mac(address: str) -> bytes:
    """Return the attribute of a MAC address."""
    return attribute(IFLA_ADDRESS, bytes.fromhex(address.replace(":", "")))


def altnames(*names: str) -> bytes:
    """Return the attribute of alternative names."""
    return nested(IFLA_PROP_LIST, *(text(IFLA_ALT_IFNAME, name) for name in names))


def kind_of_link(kind: str, *data: bytes) -> bytes:
    """Return the attribute that says what kind of link is to be made."""
    inside = [text(IFLA_INFO_KIND, kind)]
    if data:
        inside.append(nested(IFLA_INFO_DATA, *data))
    return nested(IFLA_LINKINFO, *inside)


def macvlan(mode: str) -> bytes:
    """Return the attribute of a macvlan link."""
    return kind_of_link("macvlan", u32(_IFLA_MACVLAN_MODE, MACVLAN_MODES[mode]))


def vrf(table: int) -> bytes:
    """Return the attribute of a VRF."""
    return kind_of_link("vrf", u32(_IFLA_VRF_TABLE, table))


def no_xdp(mode: int) -> bytes:
    """Return the attribute that takes an XDP program off a link; `mode` is XDP_FLAGS_SKB_MODE or another."""
    return nested(IFLA_XDP, attribute(_IFLA_XDP_FD, struct.pack("=i", -1)), u32(_IFLA_XDP_FLAGS, mode))


# --- virtual functions


def vf(index: int, *settings: bytes) -> bytes:
    """Return the body that sets something of one virtual function at its physical one's link."""
    return link(index, nested(IFLA_VFINFO_LIST, nested(IFLA_VF_INFO, *settings)))


def vf_mac(number: int, address: str) -> bytes:
    """Return the setting of a MAC address (struct ifla_vf_mac)."""
    packed = bytes.fromhex(address.replace(":", "")).ljust(32, b"\0")
    return attribute(IFLA_VF_MAC, struct.pack("=I", number) + packed)


def vf_vlan(number: int, vlan: int, qos: int, protocol: int) -> bytes:
    """Return the setting of a tag; the older form where it says all (struct ifla_vf_vlan, ifla_vf_vlan_info)."""
    if protocol == 0x8100:
        return attribute(IFLA_VF_VLAN, struct.pack("=III", number, vlan, qos))
    info = struct.pack("=III", number, vlan, qos) + struct.pack("!H", protocol) + bytes(2)
    return nested(IFLA_VF_VLAN_LIST, attribute(_IFLA_VF_VLAN_INFO, info))


def vf_number(kind: int, number: int, value: int) -> bytes:
    """Return a setting that is one number, as of trust or spoof checks (struct ifla_vf_trust and others)."""
    return attribute(kind, struct.pack("=II", number, value))


def vf_rate(number: int, least: int, most: int) -> bytes:
    """Return the setting of rates in Mbit/s (struct ifla_vf_rate)."""
    return attribute(IFLA_VF_RATE, struct.pack("=III", number, least, most))


# --- addresses, routes, rules, neighbours


def address(index: int, given: str) -> bytes:
    """Return the body that gives a link an address, as `10.9.8.7/24`.

    IPv6 addresses are usable at once: whoever configured them answers for their being nobody else's.
    """
    one = ip_interface(given)
    packed = one.ip.packed
    family = family_of(given)
    found = [attribute(IFA_LOCAL, packed), attribute(IFA_ADDRESS, packed)]
    if family == AF_INET and one.network.prefixlen < 31:
        found.append(attribute(IFA_BROADCAST, one.network.broadcast_address.packed))
    flags = IFA_F_NODAD if family == AF_INET6 else 0
    return ADDRESS.pack(family, one.network.prefixlen, flags, 0, index) + b"".join(found)


def route(
    index: int,
    destination: str,
    *,
    gateway: str = "",
    source: str = "",
    metric: int = 0,
    mtu: int = 0,
    table: int = 0,
    onlink: bool = False,
) -> bytes:
    """Return the body of a route over a link; 0 leaves metric, MTU and table to the kernel."""
    network = ip_network(destination)
    found = [u32(RTA_OIF, index)]
    if network.prefixlen:
        found.append(attribute(RTA_DST, network.network_address.packed))
    if gateway:
        found.append(attribute(RTA_GATEWAY, ip_address(gateway).packed))
    if source:
        found.append(attribute(RTA_PREFSRC, ip_address(source).packed))
    if metric:
        found.append(u32(RTA_PRIORITY, metric))
    if mtu:
        found.append(nested(RTA_METRICS, u32(_RTAX_MTU, mtu)))
    table = table or RT_TABLE_MAIN
    found.append(u32(RTA_TABLE, table))
    is_local = network.version == 4 and not gateway
    scope = RT_SCOPE_LINK if is_local else RT_SCOPE_UNIVERSE
    small = table if table < 256 else RT_TABLE_COMPAT
    flags = RTNH_F_ONLINK if onlink else 0
    body = ROUTE.pack(
        family_of(destination), network.prefixlen, 0, 0, small, RTPROT_STATIC, scope, RTN_UNICAST, flags
    )
    return body + b"".join(found)


def next_hops(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the link of each struct rtnexthop of a route (RTA_MULTIPATH), and where its number stands."""
    at = 0
    while at + 8 <= len(body):
        length, index = struct.unpack_from("=HxxI", body, at)
        if length < 8:
            return
        yield index, at + 4
        at += (length + 3) & ~3


def rule(source: str, destination: str, table: int, priority: int = 0) -> bytes:
    """Return the body of a rule for packets from and to networks; 0 leaves the priority to the kernel."""
    lengths, found = [], []
    for kind, given in ((_FRA_DST, destination), (_FRA_SRC, source)):
        network = ip_network(given) if given else None
        lengths.append(network.prefixlen if network else 0)
        if network and network.prefixlen:
            found.append(attribute(kind, network.network_address.packed))
    if priority:
        found.append(u32(_FRA_PRIORITY, priority))
    found += [u32(_FRA_TABLE, table), attribute(_FRA_PROTOCOL, bytes((RTPROT_STATIC,)))]
    small = table if table < 256 else RT_TABLE_COMPAT
    header = ROUTE.pack(family_of(source or destination), *lengths, 0, small, 0, 0, _FR_ACT_TO_TBL, 0)
    return header + b"".join(found)


def neighbour(index: int, destination: str, hardware_address: str) -> bytes:
    """Return the body of a permanent entry of the neighbour table."""
    found = attribute(_NDA_DST, ip_address(destination).packed)
    found += attribute(_NDA_LLADDR, bytes.fromhex(hardware_address.replace(":", "")))
    return NEIGHBOUR.pack(family_of(destination), index, NUD_PERMANENT, 0, 0) + found
