"""What a link gets in the pod, beyond what it is made or moved with: sysctls, features, addresses, routes and so on."""

import errno
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from dradriver.backend import BackendError
from dradriver_nic import messages as m
from dradriver_nic.actuate.before import routes_of, write_sysctl
from dradriver_nic.actuate.features import Features, by_kernel_names
from dradriver_nic.actuate.found import Seen, links_in, named
from dradriver_nic.actuate.restore import key_of, place_of
from dradriver_nic.actuate.rtnl import (
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RefusedError,
    Rtnl,
    telling,
    why,
)
from dradriver_nic.netlink import attributes

log = logging.getLogger(__name__)

_NAMED = 2
"""How many addresses are said in words."""

_THERE_ALREADY = frozenset({errno.EEXIST})
_GONE_ALREADY = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EAFNOSUPPORT})


@dataclass(frozen=True)
class PodRoute:
    """A route; 0 and empty for what the kernel is to choose."""

    destination: str
    gateway: str = ""
    source: str = ""
    metric: int = 0
    mtu: int = 0
    table: int = 0
    onlink: bool = False

    def body(self, index: int) -> bytes:
        """Return the request for it."""
        return m.route(
            index,
            self.destination,
            gateway=self.gateway,
            source=self.source,
            metric=self.metric,
            mtu=self.mtu,
            table=self.table,
            onlink=self.onlink,
        )


@dataclass(frozen=True)
class PodRule:
    """A rule; empty for any source or destination, 0 for a priority that the kernel is to choose."""

    source: str
    destination: str
    table: int
    priority: int = 0

    @property
    def body(self) -> bytes:
        """The request for it."""
        return m.rule(self.source, self.destination, self.table, self.priority)


@dataclass(frozen=True)
class PodLink:
    """A link as the pod is to have it.

    name        empty where it keeps its own
    sysctls     of the link: `ipv4/conf/arp_ignore` -> value
    neighbours  address -> MAC address
    vrf         name of the VRF that it belongs to, with its table; empty for none
    keep_routes whether the link's routes of the host's main table come along
    """

    name: str = ""
    mac: str = ""
    mtu: int = 0
    sizes: tuple[tuple[str, int], ...] = ()
    addresses: tuple[str, ...] = ()
    routes: tuple[PodRoute, ...] = ()
    rules: tuple[PodRule, ...] = ()
    neighbours: tuple[tuple[str, str], ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    features: tuple[tuple[str, bool], ...] = ()
    private_flags: tuple[tuple[str, bool], ...] = ()
    vrf: str = ""
    vrf_table: int = 0
    keep_routes: bool = False

    def words(self) -> str:
        """Return what it gets beside its name, for people, as `, with 10.9.0.2/24, MTU 9000 and 2 routes`."""
        parts = [*self.addresses[:_NAMED]]
        if len(self.addresses) > _NAMED:
            parts.append(f"{len(self.addresses) - _NAMED} more addresses")
        if self.mtu:
            parts.append(f"MTU {self.mtu}")
        if self.vrf:
            parts.append(f"VRF {self.vrf}")
        for things, name in (
            (self.routes, "route"),
            (self.rules, "rule"),
            (self.neighbours, "neighbour"),
            (self.sysctls, "sysctl"),
            ((*self.features, *self.private_flags, *self.sizes), "setting"),
        ):
            if things:
                parts.append(f"{len(things)} {name}{'s' if len(things) > 1 else ''}")
        if not parts:
            return ""
        *most, last = parts
        return f", with {', '.join(most)} and {last}" if most else f", with {last}"


def configure(rtnl: Rtnl, seen: Seen, wanted: PodLink, inherited: Iterable[bytes] = ()) -> None:
    """Bring a link into the state that a pod is to have it in, whatever of that is done already.

    In a thread that is in the pod's network namespace, as sysctls and features know no other.

    inherited   requests for routes that it had on the host

    Raises BackendError for what the kernel refuses.
    """
    index, name = seen.index, seen.link.name
    if wanted.vrf:
        _enslave(rtnl, seen, wanted.vrf, wanted.vrf_table)
    for sysctl, value in wanted.sysctls:
        with telling(f"sysctl {sysctl} of {name}"):
            write_sysctl(name, sysctl, value)
    _set_features(name, wanted)
    for address in wanted.addresses:
        with telling(f"address {address}"):
            rtnl.change(m.RTM_NEWADDR, m.address(index, address), NLM_F_CREATE | NLM_F_REPLACE)
    with telling(f"{name} cannot be set up"):
        rtnl.change(m.RTM_NEWLINK, m.up(index))
    routes = _Routes(rtnl, index)
    for body in inherited:
        routes.add("a route that it had on the host", body, beside=True)
    for route in wanted.routes:
        routes.add(f"route to {route.destination}", route.body(index))
    for rule in wanted.rules:
        with telling(f"rule for table {rule.table}"):
            _unless(_THERE_ALREADY, rtnl, m.RTM_NEWRULE, rule.body, NLM_F_CREATE | NLM_F_EXCL)
    for destination, mac in wanted.neighbours:
        with telling(f"neighbor {destination}"):
            body = m.neighbour(index, destination, mac)
            rtnl.change(m.RTM_NEWNEIGH, body, NLM_F_CREATE | NLM_F_REPLACE)


class _Routes:
    """The routes of a link in the pod. Those that are there are listed once, where the kernel says so of one."""

    def __init__(self, rtnl: Rtnl, index: int) -> None:
        self._rtnl = rtnl
        self._index = index
        self._there: dict[int, dict[object, dict[object, bytes]]] = {}
        """By family: by what a route has for itself those that are there, by what tells them apart."""

    def add(self, what: str, body: bytes, *, beside: bool = False) -> None:
        """Add a route. Raises BackendError, also where another link has it: it is not taken from that.

        beside   whether it may stand beside another one of this link to the same network, as it did on the host
        """
        try:
            self._rtnl.change(m.RTM_NEWROUTE, body, NLM_F_CREATE | NLM_F_EXCL)
        except RefusedError as error:
            if error.errno != errno.EEXIST:
                raise BackendError(f"{what}: {error.strerror}") from None
            self._second(what, body, beside=beside)

    def _second(self, what: str, body: bytes, *, beside: bool) -> None:
        """Add a route where one to its network is there, unless that is it."""
        there = self._known(m.ROUTE.unpack_from(body)[0]).get(place_of(body), {})
        if key_of(body) in there:
            return
        if not there:
            raise BackendError(
                f"{what}: the pod has one already, over another interface; give it a metric or a table"
            )
        if not beside:
            first = next(iter(there.values()))
            gateway = attributes(first, m.ROUTE.size).get(m.RTA_GATEWAY)
            how = f"by gateway {ip_address(gateway)}" if gateway else "on the link"
            raise BackendError(
                f"{what}: the interface has one already, {how}; give it a metric or a table of its own"
            )
        with telling(what):
            self._rtnl.change(m.RTM_NEWROUTE, body, NLM_F_CREATE | NLM_F_APPEND)

    def _known(self, family: int) -> dict[object, dict[object, bytes]]:
        if family not in self._there:
            found: dict[object, dict[object, bytes]] = {}
            for body in routes_of(self._rtnl, family, self._index):
                found.setdefault(place_of(body), {})[key_of(body)] = body
            self._there[family] = found
        return self._there[family]


def _set_features(name: str, wanted: PodLink) -> None:
    if not wanted.features and not wanted.private_flags:
        return
    with Features() as features, telling(f"features of {name}"):
        if wanted.features:
            kernel = by_kernel_names(dict(wanted.features), features.features(name))
            features.set_features(name, kernel)
        if wanted.private_flags:
            features.set_private_flags(name, dict(wanted.private_flags))


def _enslave(rtnl: Rtnl, seen: Seen, name: str, table: int) -> None:
    """Put a link into a VRF, which is made where it is not there."""
    with telling(f"VRF {name}"):
        vrf = named(rtnl, name)
        if vrf is None:
            body = m.link(0, m.text(m.IFLA_IFNAME, name), m.vrf(table))
            _unless(_THERE_ALREADY, rtnl, m.RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL)
            vrf = named(rtnl, name)
        if vrf is None or vrf.link.kind != "vrf":
            raise BackendError(f"VRF {name}: the pod has another interface of that name")
        rtnl.change(m.RTM_NEWLINK, m.up(vrf.index))
        if seen.link.master != vrf.index:
            rtnl.change(m.RTM_NEWLINK, m.link(seen.index, m.u32(m.IFLA_MASTER, vrf.index)))


def deconfigure(rtnl: Rtnl, wanted: PodLink) -> None:
    """Remove from a pod what does not go with the link: rules, and an empty VRF. What fails is told in the log."""
    for rule in wanted.rules:
        _remove(rtnl, f"rule for table {rule.table}", m.RTM_DELRULE, rule.body)
    if wanted.vrf:
        links = [*links_in(rtnl)]
        vrf = next((one for one in links if one.link.name == wanted.vrf and one.link.kind == "vrf"), None)
        if vrf and not any(one.link.master == vrf.index for one in links):
            _remove(rtnl, f"VRF {wanted.vrf}", m.RTM_DELLINK, m.link(vrf.index))


def _remove(rtnl: Rtnl, what: str, kind: int, body: bytes) -> None:
    try:
        _unless(_GONE_ALREADY, rtnl, kind, body)
    except OSError as error:
        log.warning("%s is left in the pod: %s", what, why(error))


def _unless(fine: frozenset[int], rtnl: Rtnl, kind: int, body: bytes, flags: int = 0) -> None:
    """Have something changed, where some refusals say that it is so already."""
    try:
        rtnl.change(kind, body, flags)
    except RefusedError as error:
        if error.errno not in fine:
            raise
