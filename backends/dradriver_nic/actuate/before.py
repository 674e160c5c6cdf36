"""How a link was on the host before a pod got it: all that moving it to another network namespace takes from it."""

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dradriver.backend import UnavailableError, Work
from dradriver_nic import messages as m
from dradriver_nic.actuate.found import Seen
from dradriver_nic.actuate.rtnl import Rtnl
from dradriver_nic.ethtool import Ethtool
from dradriver_nic.inventory import Link
from dradriver_nic.kernel import addresses_of
from dradriver_nic.netlink import attributes

FAMILIES = (m.AF_INET, m.AF_INET6)

FLAGS = m.IFF_UP | m.IFF_NOARP | m.IFF_PROMISC | m.IFF_ALLMULTI | m.IFF_MULTICAST

NUMBERS = {
    "txqlen": m.IFLA_TXQLEN,
    "group": m.IFLA_GROUP,
    "gsoMaxSize": m.IFLA_GSO_MAX_SIZE,
    "groMaxSize": m.IFLA_GRO_MAX_SIZE,
    "gsoIPv4MaxSize": m.IFLA_GSO_IPV4_MAX_SIZE,
    "groIPv4MaxSize": m.IFLA_GRO_IPV4_MAX_SIZE,
}
"""Attributes of a link that are numbers, beside its MTU."""

_KNOWN = ("device", "bus", "function", "dev_port", "speed_mbps", "driver", "firmware")
"""What of a link does not come from rtnetlink, or not from every kernel's."""

_SYSCTLS = "/proc/sys/net"
_SYSCTL_DIRECTORIES = ("ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh")
_FOLLOWING_SYSCTLS = frozenset({"mtu"})
"""They change with the link."""

_AUTOMATIC_ADDRESSES = frozenset({1, 2, 3})
"""IFA_PROTO of addresses that the kernel itself makes: of loopback, by router advertisements, link-local ones."""

_ROUTE_TYPES_OF_ADDRESSES = frozenset({2, 3, 4, 5})
"""Routes to local, broadcast, anycast and multicast addresses, which come with the addresses."""

_FOREVER = 0xFFFFFFFF
_LIFETIMES = struct.Struct("=II")
_U32 = struct.Struct("=I")


@dataclass(frozen=True)
class Before:
    """How a link was. Addresses, routes and neighbours are kept as the kernel's own messages, in hexadecimal.

    taken        when it was read, in seconds since the epoch: lifetimes go on
    base         number of the link below or opposite, wherever that is
    qdisc        kind of its root queueing discipline: the kernel drops it as the link moves, and makes its default one
    xdp          modes in which XDP programs saw its packets first
    numbers      attributes by the names of NUMBERS
    sysctls      of the link, where they are not the namespace's defaults: `ipv4/conf/rp_filter` -> value
    features     driver features that are to be changed, and private flags: as they were
    """

    taken: float
    link: Link
    flags: int
    base: int
    alias: str = ""
    qdisc: str = ""
    xdp: tuple[int, ...] = ()
    numbers: dict[str, int] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    sysctls: dict[str, str] = field(default_factory=dict)
    features: dict[str, bool] = field(default_factory=dict)
    private_flags: dict[str, bool] = field(default_factory=dict)


def read_before(rtnl: Rtnl, seen: Seen, known: Link | None = None) -> Before:
    """Read how a link is now, in a thread that is in the host's network namespace. Raises UnavailableError, OSError.

    known   what was known of it when it was last probed: what cannot change is taken from there
    """
    addresses = [body for family in FAMILIES for body in addresses_on(rtnl, family, seen.index)]
    link = replace(seen.link, addresses=tuple(addresses_of(addresses).get(seen.index, ())))
    if known is None:
        with Ethtool() as ethtool:
            link = ethtool.completed(link)
    else:
        link = replace(link, **{name: getattr(known, name) for name in _KNOWN})
    return Before(
        taken=time.time(),
        link=link,
        flags=seen.flags & FLAGS,
        base=seen.base,
        alias=seen.text(m.IFLA_IFALIAS),
        qdisc=seen.text(m.IFLA_QDISC),
        xdp=seen.xdp,
        numbers={name: seen.number(kind) for name, kind in NUMBERS.items() if kind in seen.raw},
        addresses=tuple(body.hex() for body in addresses if is_given(body)),
        routes=tuple(body.hex() for family in FAMILIES for body in routes_of(rtnl, family, seen.index)),
        neighbours=tuple(body.hex() for family in FAMILIES for body in _neighbours(rtnl, family, seen.index)),
        sysctls=read_sysctls(link.name),
    )


def decoded(work: Work) -> Before | None:
    """Return what a step recorded; None where nothing, or before the last reboot. Raises UnavailableError."""
    recorded = work.facts.get("before")
    if not recorded or work.rebooted:
        return None
    try:
        before: Before = msgspec.convert(recorded, Before)
        for text in (*before.addresses, *before.routes, *before.neighbours):
            bytes.fromhex(text)
    except ValueError as error:
        raise UnavailableError(f"how the link was before was recorded by another version: {error}") from None
    return before


def encoded(before: Before) -> Any:
    """Return it as plain JSON types."""
    return msgspec.to_builtins(before)


def addresses_on(rtnl: Rtnl, family: int, index: int) -> Iterator[bytes]:
    """Yield the addresses of a link. Raises UnavailableError."""
    for body in rtnl.listed(m.RTM_GETADDR, m.ADDRESS.pack(family, 0, 0, 0, index)):
        found, _, _, _, here = m.ADDRESS.unpack_from(body)
        if found == family and here == index:
            yield body


def is_given(body: bytes) -> bool:
    """Return whether somebody gave a link an address: not the kernel itself, which makes its own ones anew."""
    family, _, flags, _, _ = m.ADDRESS.unpack_from(body)
    found = attributes(body, m.ADDRESS.size)
    flags = _U32.unpack_from(found[m.IFA_FLAGS])[0] if m.IFA_FLAGS in found else flags
    if family == m.AF_INET6 and flags & m.IFA_F_TEMPORARY:
        return False
    return found.get(m.IFA_PROTO, b"\0")[0] not in _AUTOMATIC_ADDRESSES


def lifetimes(body: bytes, elapsed: float) -> tuple[int, int] | None:
    """Return for how long an address is preferred and valid, in seconds, given how long ago it was read; None for ever.

    Both are 0 where it is not valid any more.
    """
    cache = attributes(body, m.ADDRESS.size).get(m.IFA_CACHEINFO)
    if not cache or len(cache) < _LIFETIMES.size:
        return None
    preferred, valid = _LIFETIMES.unpack_from(cache)
    if valid == _FOREVER:
        return None
    rest = max(0, valid - int(elapsed))
    return (_FOREVER if preferred == _FOREVER else max(0, preferred - int(elapsed))), rest


def routes_of(rtnl: Rtnl, family: int, index: int) -> Iterator[bytes]:
    """Yield the routes over a link that do not come with its addresses or from routers. Raises UnavailableError."""
    request = m.ROUTE.pack(family, *[0] * 8) + m.u32(m.RTA_OIF, index)
    for body in rtnl.listed(m.RTM_GETROUTE, request):
        found, _, _, _, _, protocol, _, kind, flags = m.ROUTE.unpack_from(body)
        if found != family or flags & m.RTM_F_CLONED or kind in _ROUTE_TYPES_OF_ADDRESSES:
            continue
        if protocol != m.RTPROT_RA and leads_over(body, index):
            yield body


def leads_over(body: bytes, index: int) -> bool:
    """Return whether a route leads over a link, perhaps among others."""
    found = attributes(body, m.ROUTE.size)
    if m.RTA_OIF in found:
        return int(_U32.unpack_from(found[m.RTA_OIF])[0]) == index
    return any(here == index for here, _ in m.next_hops(found.get(m.RTA_MULTIPATH, b"")))


def _neighbours(rtnl: Rtnl, family: int, index: int) -> Iterator[bytes]:
    request = m.NEIGHBOUR.pack(family, 0, 0, 0, 0) + m.u32(m.NDA_IFINDEX, index)
    for body in rtnl.listed(m.RTM_GETNEIGH, request):
        found, here, state, _, _ = m.NEIGHBOUR.unpack_from(body)
        if found == family and here == index and state & m.NUD_PERMANENT:
            yield body


# --- sysctls


def read_sysctls(name: str) -> dict[str, str]:
    """Return the sysctls of a link that are not the defaults of the calling thread's network namespace.

    Some 150 files and their defaults are read while a pod waits: each directory is looked up once.
    """
    found = {}
    for directory in _SYSCTL_DIRECTORIES:
        base = f"{_SYSCTLS}/{directory}"
        with (
            contextlib.suppress(OSError),
            _opened(f"{base}/{name}") as own,
            _opened(f"{base}/default") as default,
        ):
            for key in sorted(os.listdir(own)):  # noqa: PTH208 - by its descriptor
                value = _read(key, own)
                if value is None or key in _FOLLOWING_SYSCTLS:
                    continue
                if value != _read(key, default):
                    found[f"{directory}/{key}"] = value
    return found


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[int]:
    """Open a directory. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_sysctl(name: str, sysctl: str, value: str) -> None:
    """Set a sysctl of a link in the calling thread's network namespace, where it has another value. Raises OSError."""
    directory, _, key = sysctl.rpartition("/")
    if directory not in _SYSCTL_DIRECTORIES or key in {"", ".", ".."}:
        raise UnavailableError(f"{sysctl!a} is no sysctl of a link")
    path = f"{_SYSCTLS}/{directory}/{name}/{key}"
    if _read(path) != value:
        Path(path).write_text(f"{value}\n")


def _read(path: str, directory: int | None = None) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        return os.read(descriptor, 4096).decode(errors="replace").strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
