"""Making a link of the host what it was before a pod got it. Each thing is looked at and set where it differs."""

import errno
import logging
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial

from dradriver.backend import BackendError, TransientError
from dradriver.model.text import plain
from dradriver_nic import messages as m
from dradriver_nic.actuate.before import (
    FAMILIES,
    FLAGS,
    NUMBERS,
    Before,
    addresses_on,
    leads_over,
    lifetimes,
    routes_of,
    write_sysctl,
)
from dradriver_nic.actuate.features import Features
from dradriver_nic.actuate.found import Seen, by_index
from dradriver_nic.actuate.rtnl import (
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RefusedError,
    Rtnl,
    why,
)
from dradriver_nic.netlink import attribute, attribute_list, attributes

log = logging.getLogger(__name__)

_BUSY = frozenset({errno.EBUSY, errno.EAGAIN, errno.EINTR})
_GONE = frozenset({errno.ENODEV, errno.ENXIO})

_CACHE_INFO = struct.Struct("=IIII")
_HOP_BYTES = struct.Struct("=I")

_ADDRESS_ATTRIBUTES = frozenset({1, 2, 3, 4, 5, 9, 11})
"""IFA_ADDRESS, LOCAL, LABEL, BROADCAST, ANYCAST, RT_PRIORITY and PROTO: what one gives. Others say how it is."""

_ADDRESS_FLAGS = 0x002 | 0x010 | 0x100 | 0x200 | 0x400
"""IFA_F_NODAD, HOMEADDRESS, MANAGETEMPADDR, NOPREFIXROUTE and MCAUTOJOIN."""

_NO_ROUTE_ATTRIBUTES = frozenset({3, 12, 23, m.RTA_NH_ID})
"""RTA_IIF, CACHEINFO, EXPIRES and NH_ID: what one does not give, or not beside the next hop itself."""

_DEFAULT_METRICS = {m.AF_INET6: struct.pack("=I", 1024)}
"""IP6_RT_PRIO_USER: what a route has that is given none."""

_NEIGHBOUR_ATTRIBUTES = frozenset({1, 2})
"""NDA_DST and NDA_LLADDR."""


class Restorer:
    """Restores one link, in the calling thread's network namespace. What cannot be restored is told in the log.

    The way back must not be stuck for ever on a thing that somebody else changed meanwhile, as a name that is taken.
    """

    def __init__(self, rtnl: Rtnl, before: Before) -> None:
        self._rtnl = rtnl
        self._before = before
        self._busy = ""

    def restore(self, seen: Seen) -> None:
        """Restore a link that is seen on the host, down or up. Raises TransientError, UnavailableError."""
        seen = self._settings(seen)
        name = seen.link.name
        self._altnames(seen)
        for sysctl, value in self._before.sysctls.items():
            self._try(f"sysctl {sysctl}", partial(write_sysctl, name, sysctl, value))
        self._features(name)
        self._change("flags", m.RTM_NEWLINK, m.link(seen.index, flags=self._before.flags, change=FLAGS))
        self._tell_queues(seen.index)
        self._addresses(seen.index)
        self._routes(seen.index)
        for text in self._before.neighbours:
            body = bytes.fromhex(text)
            family, _, state, flags, kind = m.NEIGHBOUR.unpack_from(body)
            header = m.NEIGHBOUR.pack(family, seen.index, state, flags, kind)
            rest = _only(body, m.NEIGHBOUR.size, _NEIGHBOUR_ATTRIBUTES)
            self._change("neighbour", m.RTM_NEWNEIGH, header + rest, NLM_F_CREATE | NLM_F_REPLACE)
        if self._busy:
            raise TransientError(f"{plain(name)} cannot be restored yet: {self._busy}")

    # --- the link itself

    def _settings(self, seen: Seen) -> Seen:
        """Restore name, addresses of hardware, MTU and the like. Return the link as it is then."""
        before, link = self._before, self._before.link
        wanted = {}
        if seen.link.name != link.name:
            wanted["name"] = m.text(m.IFLA_IFNAME, link.name)
        if seen.link.mac != link.mac and link.mac:
            wanted["MAC address"] = m.mac(link.mac)
        if seen.link.mtu != link.mtu:
            wanted["MTU"] = m.u32(m.IFLA_MTU, link.mtu)
        if seen.text(m.IFLA_IFALIAS) != before.alias:
            wanted["alias"] = m.text(m.IFLA_IFALIAS, before.alias)
        for mode in set(seen.xdp) - set(before.xdp):
            wanted[f"XDP program of mode {mode}"] = m.no_xdp(mode)
        for name, kind in NUMBERS.items():
            value = before.numbers.get(name)
            if value is not None and seen.number(kind) != value:
                wanted[name] = m.u32(kind, value)
        if not wanted:
            return seen
        if seen.link.up and {"name", "MAC address"} & wanted.keys():
            self._change("state", m.RTM_NEWLINK, m.up(seen.index, is_up=False))
        try:
            self._rtnl.change(m.RTM_NEWLINK, m.link(seen.index, *wanted.values()))
        except RefusedError:
            for what, attribute_of_it in wanted.items():
                self._change(what, m.RTM_NEWLINK, m.link(seen.index, attribute_of_it))
        return by_index(self._rtnl, seen.index) or seen

    def _altnames(self, seen: Seen) -> None:
        wanted, now = self._before.link.altnames, seen.link.altnames
        for kind, flags, names in (
            (m.RTM_DELLINKPROP, 0, [name for name in now if name not in wanted]),
            (m.RTM_NEWLINKPROP, NLM_F_CREATE | NLM_F_APPEND, [name for name in wanted if name not in now]),
        ):
            for name in names:
                self._change("alternative name", kind, m.link(seen.index, m.altnames(name)), flags)

    def _tell_queues(self, index: int) -> None:
        """Say where somebody's queueing discipline was lost: its classes and filters are not ours to make anew."""
        before = self._before
        seen = by_index(self._rtnl, index)
        if not seen or not before.qdisc or not before.flags & m.IFF_UP:
            return
        now = seen.text(m.IFLA_QDISC)
        if now != before.qdisc:
            log.warning(
                "%s: its queueing discipline was %s and is %s now: a move to a pod drops what tc set; set it anew",
                plain(before.link.name),
                plain(before.qdisc),
                plain(now),
            )

    def _features(self, name: str) -> None:
        before = self._before
        if not before.features and not before.private_flags:
            return
        with Features() as features:
            if before.features:
                self._try("features", lambda: features.set_features(name, before.features))
            if before.private_flags:
                self._try("private flags", lambda: features.set_private_flags(name, before.private_flags))

    # --- addresses and routes

    def _addresses(self, index: int) -> None:
        if not self._before.addresses:
            return
        elapsed = time.time() - self._before.taken
        there = {
            _address_key(body): _given_flags(body)
            for family in FAMILIES
            for body in addresses_on(self._rtnl, family, index)
        }
        bodies = [bytes.fromhex(text) for text in self._before.addresses]
        # The kernel lists IPv6 addresses with the newest first, and that is the order in which it prefers them.
        older_first = [
            *(body for body in bodies if body[0] != m.AF_INET6),
            *(body for body in reversed(bodies) if body[0] == m.AF_INET6),
        ]
        for body in older_first:
            if there.get(_address_key(body)) != _given_flags(body):
                for request in address_requests(body, index, elapsed):
                    self._change("address", m.RTM_NEWADDR, request, NLM_F_CREATE | NLM_F_REPLACE)

    def _routes(self, index: int) -> None:
        if not self._before.routes or not self._before.flags & m.IFF_UP:
            return
        there = {key_of(body) for family in FAMILIES for body in routes_of(self._rtnl, family, index)}
        for body in sorted(map(bytes.fromhex, self._before.routes), key=_has_gateway):
            if key_of(body) in there or not leads_over(body, self._before.link.index):
                continue
            request = route_request(body, self._before.link.index, index)
            try:
                self._rtnl.change(m.RTM_NEWROUTE, request, NLM_F_CREATE | NLM_F_EXCL)
            except RefusedError as error:
                if error.errno != errno.EEXIST:
                    self._failed("route", error)
                    continue
                self._change("route", m.RTM_NEWROUTE, request, NLM_F_CREATE | NLM_F_APPEND)

    # --- failures

    def _change(self, what: str, kind: int, body: bytes, flags: int = 0) -> None:
        self._try(what, lambda: self._rtnl.change(kind, body, flags))

    def _try(self, what: str, change: Callable[[], None]) -> None:
        try:
            change()
        except (BackendError, OSError) as error:
            self._failed(what, error)

    def _failed(self, what: str, error: Exception) -> None:
        number = getattr(error, "errno", None)
        if number in _GONE:
            raise TransientError(f"{plain(self._before.link.name)} went away while it was restored")
        if number in _BUSY:
            self._busy = f"{what}: {why(error)}"
        else:
            log.warning("%s: %s is not restored: %s", plain(self._before.link.name), what, why(error))


# --- the kernel's own messages, made into requests


def address_requests(body: bytes, index: int, elapsed: float) -> Iterator[bytes]:
    """Yield the requests that give a link an address as it was.

    An IPv6 address is first given as one that needs no test for duplicates, since it was this host's already and routes
    may need it at once, and then as it was.
    """
    family, prefix, _, scope, _ = m.ADDRESS.unpack_from(body)
    flags = _given_flags(body)
    rest = _only(body, m.ADDRESS.size, _ADDRESS_ATTRIBUTES)
    left = lifetimes(body, elapsed)
    if left is not None:
        if not left[1]:
            return
        rest += attribute(m.IFA_CACHEINFO, _CACHE_INFO.pack(*left, 0, 0))
    header = m.ADDRESS.pack(family, prefix, 0, scope, index)
    if family == m.AF_INET6 and not flags & m.IFA_F_NODAD:
        yield header + rest + m.u32(m.IFA_FLAGS, flags | m.IFA_F_NODAD)
    yield header + rest + m.u32(m.IFA_FLAGS, flags)


def _given_flags(body: bytes) -> int:
    """Return those of an address's flags that one gives."""
    found = attributes(body, m.ADDRESS.size)
    flags = int(m.ADDRESS.unpack_from(body)[2])
    if m.IFA_FLAGS in found:
        flags = int.from_bytes(found[m.IFA_FLAGS][:4], "little")
    return flags & _ADDRESS_FLAGS


def _address_key(body: bytes) -> tuple[object, ...]:
    family, prefix, _, _, _ = m.ADDRESS.unpack_from(body)
    found = attributes(body, m.ADDRESS.size)
    return family, prefix, found.get(m.IFA_LOCAL) or found.get(m.IFA_ADDRESS)


def route_request(body: bytes, before: int, index: int) -> bytes:
    """Return the request for a route that led over a link with number `before`, and is to lead over `index`."""
    *head, flags = m.ROUTE.unpack_from(body)
    found = [m.ROUTE.pack(*head, flags & m.RTNH_F_ONLINK)]
    for kind, value in attribute_list(body, m.ROUTE.size):
        if kind in _NO_ROUTE_ATTRIBUTES:
            continue
        if kind == m.RTA_OIF:
            found.append(m.u32(kind, index))
        elif kind == m.RTA_MULTIPATH:
            found.append(attribute(kind, _over(value, before, index)))
        else:
            found.append(attribute(kind, value))
    return b"".join(found)


def _over(hops: bytes, before: int, index: int) -> bytes:
    made = bytearray(hops)
    for here, at in m.next_hops(hops):
        made[at - 2] &= m.RTNH_F_ONLINK
        if here == before:
            _HOP_BYTES.pack_into(made, at, index)
    return bytes(made)


def place_of(body: bytes) -> tuple[object, ...]:
    """Return what a route has for itself in its namespace, unless others are appended to it."""
    family, length, _, tos, table, _, _, _, _ = m.ROUTE.unpack_from(body)
    found = attributes(body, m.ROUTE.size)
    metric = found.get(m.RTA_PRIORITY) or _DEFAULT_METRICS.get(family)
    return family, length, tos, table, metric, found.get(m.RTA_DST), found.get(m.RTA_TABLE)


def key_of(body: bytes) -> tuple[object, ...]:
    """Return what tells a route from the others over the same link."""
    _, _, _, _, _, _, _, kind, _ = m.ROUTE.unpack_from(body)
    found = attributes(body, m.ROUTE.size)
    return *place_of(body), kind, m.RTA_MULTIPATH in found, found.get(m.RTA_GATEWAY)


def _has_gateway(body: bytes) -> bool:
    """Return whether a route needs others to be there before."""
    found = attributes(body, m.ROUTE.size)
    return m.RTA_GATEWAY in found or m.RTA_MULTIPATH in found


def _only(body: bytes, start: int, wanted: frozenset[int]) -> bytes:
    return b"".join(attribute(kind, value) for kind, value in attribute_list(body, start) if kind in wanted)
