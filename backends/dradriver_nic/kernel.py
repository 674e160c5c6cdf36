"""What the kernel says of the links of a network namespace: rtnetlink messages as plain data.

Numbers are those of linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h and linux/nexthop.h.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Protocol

from dradriver_nic.ethtool import Ethtool
from dradriver_nic.inventory import Link, VFSettings
from dradriver_nic.netlink import Netlink, attribute, attribute_list, attributes

RTM_GETLINK = 18
RTM_GETADDR = 22
RTM_NEWROUTE = 24
RTM_GETROUTE = 26
RTM_GETNEXTHOP = 106

_AF_INET = 2
_AF_INET6 = 10

IFF_UP = 1

_IFLA_ADDRESS = 1
_IFLA_IFNAME = 3
_IFLA_MTU = 4
_IFLA_LINK = 5
_IFLA_MASTER = 10
_IFLA_OPERSTATE = 16
_IFLA_LINKINFO = 18
_IFLA_INFO_KIND = 1
_IFLA_VFINFO_LIST = 22
_IFLA_EXT_MASK = 29
_IFLA_PHYS_SWITCH_ID = 36
_IFLA_LINK_NETNSID = 37
_IFLA_PHYS_PORT_NAME = 38
_IFLA_MIN_MTU = 50
_IFLA_MAX_MTU = 51
_IFLA_PROP_LIST = 52
_IFLA_ALT_IFNAME = 53
_IFLA_PERM_ADDRESS = 54
_IFLA_PARENT_DEV_NAME = 56
_IFLA_PARENT_DEV_BUS_NAME = 57

_IFLA_VF_MAC = 1
_IFLA_VF_VLAN = 2
_IFLA_VF_SPOOFCHK = 4
_IFLA_VF_LINK_STATE = 5
_IFLA_VF_RATE = 6
_IFLA_VF_TRUST = 9
_IFLA_VF_VLAN_LIST = 12

_EXT_VF = 1
_EXT_SKIP_STATS = 8
"""With the counters of its virtual functions the message of a physical one can be longer than a message may be."""

_OPERSTATES = ("unknown", "not-present", "down", "lower-layer-down", "testing", "dormant", "up")
"""By number (RFC 2863), in the words that `ip link` and other drivers have for them."""

_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_FLAGS = 8
_IFA_F_TEMPORARY = 1
_RT_SCOPE_LINK = 253

_RTA_OIF = 4
_RTA_MULTIPATH = 9
_RTA_NH_ID = 30
_RTN_UNICAST = 1
_RTM_F_CLONED = 0x200

_NHA_ID = 1
_NHA_GROUP = 2
_NHA_OIF = 5

_DEFAULT_BITS = {_AF_INET: 1, _AF_INET6: 3}
"""How long the prefix of a route to everywhere is at most: 0.0.0.0/1 and 128.0.0.0/1 are one in two parts, and 2000::/3
is all that is given out of IPv6."""

_U32 = struct.Struct("=I")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEXTHOP = struct.Struct("=BBBBI")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All links by index, and the indexes of those that default routes lead over."""

    links: Mapping[int, Link]
    default_routes: frozenset[int]


class Kernel(Protocol):
    """Whoever says what links there are."""

    def snapshot(self) -> Snapshot:
        """Return what there is now. Raises UnavailableError where that cannot be said."""


@dataclass(frozen=True)
class LiveKernel:
    """The running kernel.

    namespace   file of the network namespace; None for that of this process
    kinds       kinds of links without a device behind them that are of interest: drivers, speed and firmware are asked
                for these and for hardware only
    """

    namespace: Path | None = None
    kinds: frozenset[str] = frozenset()

    def snapshot(self) -> Snapshot:
        """List links, addresses and routes. Raises UnavailableError."""
        with Netlink(namespace=self.namespace) as netlink:
            links = {link.index: link for link in map(link_of, netlink.listed(RTM_GETLINK, link_request()))}
            addresses = addresses_of(netlink.listed(RTM_GETADDR, bytes(_ADDRESS.size)))
            routes = [
                route
                for family in _DEFAULT_BITS
                for route in netlink.listed(RTM_GETROUTE, _ROUTE.pack(family, *[0] * 8))
            ]
            defaults = default_routes(routes, lambda: netlink.listed(RTM_GETNEXTHOP, bytes(_NEXTHOP.size)))
        with Ethtool(self.namespace) as ethtool:
            return Snapshot(
                {
                    index: ethtool.completed(replace(link, addresses=tuple(addresses.get(index, ()))))
                    if not link.kind or link.kind in self.kinds
                    else replace(link, addresses=tuple(addresses.get(index, ())))
                    for index, link in links.items()
                },
                defaults,
            )


def link_request() -> bytes:
    """Return the body of a request for all links, with the settings of virtual functions."""
    return _LINK.pack(0, 0, 0, 0, 0) + attribute(_IFLA_EXT_MASK, _U32.pack(_EXT_VF | _EXT_SKIP_STATS))


def link_of(body: bytes) -> Link:
    """Return the link of an RTM_NEWLINK message; addresses and what ethtool says are left out."""
    _, kind, index, flags, _ = _LINK.unpack_from(body)
    found = attributes(body, _LINK.size)
    state = found.get(_IFLA_OPERSTATE, b"\0")[0]
    vfs = found.get(_IFLA_VFINFO_LIST)
    return Link(
        index=index,
        name=_text(found.get(_IFLA_IFNAME)),
        altnames=tuple(
            _text(value)
            for number, value in attribute_list(found.get(_IFLA_PROP_LIST, b""))
            if number == _IFLA_ALT_IFNAME
        ),
        kind=_text(attributes(found.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND)),
        type=kind,
        mac=_mac(found.get(_IFLA_ADDRESS)),
        permanent_mac=_mac(found.get(_IFLA_PERM_ADDRESS)),
        mtu=_number(found.get(_IFLA_MTU)),
        min_mtu=_number(found.get(_IFLA_MIN_MTU)),
        max_mtu=_number(found.get(_IFLA_MAX_MTU)),
        up=bool(flags & IFF_UP),
        state=_OPERSTATES[state] if state < len(_OPERSTATES) else "unknown",
        master=_number(found.get(_IFLA_MASTER)) or None,
        # The index of a link in another namespace means nothing here.
        parent=None if _IFLA_LINK_NETNSID in found else _number(found.get(_IFLA_LINK)) or None,
        switch_id=found.get(_IFLA_PHYS_SWITCH_ID, b"").hex(),
        port_name=_text(found.get(_IFLA_PHYS_PORT_NAME)),
        device=_text(found.get(_IFLA_PARENT_DEV_NAME)),
        bus=_text(found.get(_IFLA_PARENT_DEV_BUS_NAME)),
        vfs=tuple(_virtual_functions(vfs)) if vfs else (),
    )


def kind_and_name(body: bytes) -> tuple[str, str]:
    """Return the kind and the name of the link of an RTM_NEWLINK or RTM_DELLINK message. Raises struct.error."""
    found = attributes(body, _LINK.size)
    kind = attributes(found.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND)
    return _text(kind), _text(found.get(_IFLA_IFNAME))


def _virtual_functions(body: bytes) -> Iterator[VFSettings]:
    for _, entry in attribute_list(body):
        found = attributes(entry)
        mac, vlan, rate = (
            found.get(_IFLA_VF_MAC, b""),
            found.get(_IFLA_VF_VLAN, b""),
            found.get(_IFLA_VF_RATE),
        )
        if len(mac) < 10:
            continue
        number = _number(mac)
        protocol = 0x8100
        for _, info in attribute_list(found.get(_IFLA_VF_VLAN_LIST, b"")):
            if len(info) >= 14:
                vlan, protocol = info, int.from_bytes(info[12:14], "big") or 0x8100
        yield VFSettings(
            number=number,
            mac=_mac(mac[4:10]),
            vlan=_number(vlan[4:8]),
            qos=_number(vlan[8:12]),
            vlan_proto=protocol,
            spoof_check=_setting(found.get(_IFLA_VF_SPOOFCHK)),
            trust=_setting(found.get(_IFLA_VF_TRUST)),
            link_state=_number(found[_IFLA_VF_LINK_STATE][4:8]) if _IFLA_VF_LINK_STATE in found else None,
            min_rate=_number(rate[4:8]) if rate else None,
            max_rate=_number(rate[8:12]) if rate else None,
        )


def _setting(value: bytes | None) -> bool | None:
    """Return a setting of a virtual function; None where the driver does not know it (-1)."""
    number = _number(value[4:8]) if value else None
    return None if number is None or number > 1 else bool(number)


def addresses_of(bodies: Iterable[bytes]) -> dict[int, list[str]]:
    """Return the addresses of RTM_NEWADDR messages by link, without link-local and temporary ones."""
    found: dict[int, list[str]] = defaultdict(list)
    for body in bodies:
        family, prefix, flags, scope, index = _ADDRESS.unpack_from(body)
        values = attributes(body, _ADDRESS.size)
        flags = _number(values.get(_IFA_FLAGS)) or flags
        packed = values.get(_IFA_LOCAL) or values.get(_IFA_ADDRESS)
        temporary = family == _AF_INET6 and flags & _IFA_F_TEMPORARY
        if packed and scope < _RT_SCOPE_LINK and not temporary:
            found[index].append(f"{_ip(packed)}/{prefix}")
    return found


def _ip(packed: bytes) -> str:
    return str(ip_address(packed) if len(packed) == 4 else IPv6Address(packed))


def default_routes(bodies: Iterable[bytes], nexthops: Callable[[], Iterable[bytes]]) -> frozenset[int]:
    """Return the links that the default routes of RTM_NEWROUTE messages lead over, of every table and metric.

    nexthops   lists the nexthop objects; asked where a route names one and nothing else (nexthop_compat_mode 0)
    """
    links: set[int] = set()
    objects: set[int] = set()
    for body in filter(is_default_route, bodies):
        found = attributes(body, _ROUTE.size)
        if _RTA_MULTIPATH in found:
            links.update(_multipath(found[_RTA_MULTIPATH]))
        elif _RTA_OIF in found:
            links.add(_number(found[_RTA_OIF]))
        elif _RTA_NH_ID in found:
            objects.add(_number(found[_RTA_NH_ID]))
    if objects:
        links |= _behind(objects, nexthops())
    return frozenset(links)


def is_default_route(body: bytes) -> bool:
    """Return whether an RTM_NEWROUTE message is of a route to everywhere. Quick: a router has a million others."""
    if len(body) < _ROUTE.size or body[1] > _DEFAULT_BITS.get(body[0], -1):
        return False
    return body[7] == _RTN_UNICAST and not _U32.unpack_from(body, 8)[0] & _RTM_F_CLONED


def _multipath(body: bytes) -> Iterator[int]:
    """Yield the links of struct rtnexthop entries."""
    while len(body) >= 8:
        length, index = struct.unpack_from("=HxxI", body)
        if length < 8:
            return
        yield index
        body = body[(length + 3) & ~3 :]


def _behind(objects: set[int], bodies: Iterable[bytes]) -> set[int]:
    """Return the links of nexthop objects, those in groups too."""
    groups: dict[int, set[int]] = {}
    links: dict[int, int] = {}
    for body in bodies:
        found = attributes(body, _NEXTHOP.size)
        number = _number(found.get(_NHA_ID))
        group = found.get(_NHA_GROUP, b"")
        groups[number] = {_U32.unpack_from(group, at)[0] for at in range(0, len(group) - 7, 8)}
        if _NHA_OIF in found:
            links[number] = _number(found[_NHA_OIF])
    wanted = objects | {member for number in objects for member in groups.get(number, ())}
    return {links[number] for number in wanted if number in links}


def _number(value: bytes | None) -> int:
    return _U32.unpack_from(value)[0] if value and len(value) >= 4 else 0


def _text(value: bytes | None) -> str:
    return value.split(b"\0", 1)[0].decode("utf-8", "replace") if value else ""


def _mac(value: bytes | None) -> str:
    return value.hex(":") if value else ""
