"""What the kernel says of the links of a network namespace: rtnetlink messages as plain data."""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Protocol

from dradriver.backend import UnavailableError
from dradriver_nic import messages as m
from dradriver_nic.ethtool import Ethtool
from dradriver_nic.inventory import Link, VFSettings
from dradriver_nic.netlink import Netlink, attribute_list, attributes

_OPERSTATES = ("unknown", "not-present", "down", "lower-layer-down", "testing", "dormant", "up")
"""By number (RFC 2863), in the words that `ip link` and other drivers have for them."""

_DEFAULT_BITS = {m.AF_INET: 1, m.AF_INET6: 3}
"""How long the prefix of a route to everywhere is at most: 0.0.0.0/1 and 128.0.0.0/1 are one in two parts, and 2000::/3
is all that is given out of IPv6."""

_U32 = struct.Struct("=I")


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

    def _netlink(self) -> Netlink:
        try:
            return Netlink(namespace=self.namespace)
        except UnavailableError as error:
            raise UnavailableError(
                f"{error}{' (option networkNamespace)' if self.namespace else ''}"
            ) from None

    def snapshot(self) -> Snapshot:
        """List links, addresses and routes. Raises UnavailableError."""
        with self._netlink() as netlink:
            links = {
                link.index: link
                for link in map(link_of, netlink.listed(m.RTM_GETLINK, m.link(0, m.link_mask())))
            }
            addresses = addresses_of(netlink.listed(m.RTM_GETADDR, bytes(m.ADDRESS.size)))
            routes = [
                route
                for family in _DEFAULT_BITS
                for route in netlink.listed(m.RTM_GETROUTE, m.ROUTE.pack(family, *[0] * 8))
            ]
            defaults = default_routes(routes, lambda: netlink.listed(m.RTM_GETNEXTHOP, bytes(m.NEXTHOP.size)))
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


def link_of(body: bytes) -> Link:
    """Return the link of an RTM_NEWLINK message; addresses and what ethtool says are left out."""
    _, kind, index, flags, _ = m.LINK.unpack_from(body)
    found = attributes(body, m.LINK.size)
    state = found.get(m.IFLA_OPERSTATE, b"\0")[0]
    vfs = found.get(m.IFLA_VFINFO_LIST)
    return Link(
        index=index,
        name=_text(found.get(m.IFLA_IFNAME)),
        altnames=tuple(
            _text(value)
            for number, value in attribute_list(found.get(m.IFLA_PROP_LIST, b""))
            if number == m.IFLA_ALT_IFNAME
        ),
        kind=_text(attributes(found.get(m.IFLA_LINKINFO, b"")).get(m.IFLA_INFO_KIND)),
        type=kind,
        mac=_mac(found.get(m.IFLA_ADDRESS)),
        permanent_mac=_mac(found.get(m.IFLA_PERM_ADDRESS)),
        mtu=_number(found.get(m.IFLA_MTU)),
        min_mtu=_number(found.get(m.IFLA_MIN_MTU)),
        max_mtu=_number(found.get(m.IFLA_MAX_MTU)),
        up=bool(flags & m.IFF_UP),
        state=_OPERSTATES[state] if state < len(_OPERSTATES) else "unknown",
        master=_number(found.get(m.IFLA_MASTER)) or None,
        # The index of a link in another namespace means nothing here.
        parent=None if m.IFLA_LINK_NETNSID in found else _number(found.get(m.IFLA_LINK)) or None,
        switch_id=found.get(m.IFLA_PHYS_SWITCH_ID, b"").hex(),
        port_name=_text(found.get(m.IFLA_PHYS_PORT_NAME)),
        device=_text(found.get(m.IFLA_PARENT_DEV_NAME)),
        bus=_text(found.get(m.IFLA_PARENT_DEV_BUS_NAME)),
        vfs=tuple(_virtual_functions(vfs)) if vfs else (),
    )


def kind_and_name(body: bytes) -> tuple[str, str]:
    """Return the kind and the name of the link of an RTM_NEWLINK or RTM_DELLINK message. Raises struct.error."""
    found = attributes(body, m.LINK.size)
    kind = attributes(found.get(m.IFLA_LINKINFO, b"")).get(m.IFLA_INFO_KIND)
    return _text(kind), _text(found.get(m.IFLA_IFNAME))


def _virtual_functions(body: bytes) -> Iterator[VFSettings]:
    for _, entry in attribute_list(body):
        found = attributes(entry)
        mac, vlan, rate = (
            found.get(m.IFLA_VF_MAC, b""),
            found.get(m.IFLA_VF_VLAN, b""),
            found.get(m.IFLA_VF_RATE),
        )
        if len(mac) < 10:
            continue
        number = _number(mac)
        protocol = 0x8100
        for _, info in attribute_list(found.get(m.IFLA_VF_VLAN_LIST, b"")):
            if len(info) >= 14:
                vlan, protocol = info, int.from_bytes(info[12:14], "big") or 0x8100
        yield VFSettings(
            number=number,
            mac=_mac(mac[4:10]),
            vlan=_number(vlan[4:8]),
            qos=_number(vlan[8:12]),
            vlan_proto=protocol,
            spoof_check=_setting(found.get(m.IFLA_VF_SPOOFCHK)),
            trust=_setting(found.get(m.IFLA_VF_TRUST)),
            link_state=_number(found[m.IFLA_VF_LINK_STATE][4:8]) if m.IFLA_VF_LINK_STATE in found else None,
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
        family, prefix, flags, scope, index = m.ADDRESS.unpack_from(body)
        values = attributes(body, m.ADDRESS.size)
        flags = _number(values.get(m.IFA_FLAGS)) or flags
        packed = values.get(m.IFA_LOCAL) or values.get(m.IFA_ADDRESS)
        temporary = family == m.AF_INET6 and flags & m.IFA_F_TEMPORARY
        if packed and scope < m.RT_SCOPE_LINK and not temporary:
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
        found = attributes(body, m.ROUTE.size)
        if m.RTA_MULTIPATH in found:
            links.update(index for index, _ in m.next_hops(found[m.RTA_MULTIPATH]))
        elif m.RTA_OIF in found:
            links.add(_number(found[m.RTA_OIF]))
        elif m.RTA_NH_ID in found:
            objects.add(_number(found[m.RTA_NH_ID]))
    if objects:
        links |= _behind(objects, nexthops())
    return frozenset(links)


def is_default_route(body: bytes) -> bool:
    """Return whether an RTM_NEWROUTE message is of a route to everywhere. Quick: a router has a million others."""
    if len(body) < m.ROUTE.size or body[1] > _DEFAULT_BITS.get(body[0], -1):
        return False
    return body[7] == m.RTN_UNICAST and not _U32.unpack_from(body, 8)[0] & m.RTM_F_CLONED


def _behind(objects: set[int], bodies: Iterable[bytes]) -> set[int]:
    """Return the links of nexthop objects, those in groups too."""
    groups: dict[int, set[int]] = {}
    links: dict[int, int] = {}
    for body in bodies:
        found = attributes(body, m.NEXTHOP.size)
        number = _number(found.get(m.NHA_ID))
        group = found.get(m.NHA_GROUP, b"")
        groups[number] = {_U32.unpack_from(group, at)[0] for at in range(0, len(group) - 7, 8)}
        if m.NHA_OIF in found:
            links[number] = _number(found[m.NHA_OIF])
    wanted = objects | {member for number in objects for member in groups.get(number, ())}
    return {links[number] for number in wanted if number in links}


def _number(value: bytes | None) -> int:
    return _U32.unpack_from(value)[0] if value and len(value) >= 4 else 0


def _text(value: bytes | None) -> str:
    return value.split(b"\0", 1)[0].decode("utf-8", "replace") if value else ""


def _mac(value: bytes | None) -> str:
    return value.hex(":") if value else ""
