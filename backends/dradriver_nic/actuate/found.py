"""Finding a link again: on the host and in pods, where its name, its number and its address may have been changed."""

import errno
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dradriver_nic import messages as m
from dradriver_nic.actuate.rtnl import RefusedError, Rtnl
from dradriver_nic.inventory import Link
from dradriver_nic.kernel import link_of
from dradriver_nic.netlink import attributes

_XDP_MODES = {5: 1 << 2, 6: 1 << 1, 7: 1 << 3}
"""IFLA_XDP_DRV_PROG_ID and its neighbours -> XDP_FLAGS_DRV_MODE and its neighbours."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A link as the kernel shows it: what this package knows of it, and the attributes as they came."""

    link: Link
    flags: int
    raw: Mapping[int, bytes]

    @property
    def index(self) -> int:
        """Its number."""
        return self.link.index

    @property
    def base(self) -> int:
        """Number of the link below or opposite; 0 for none. It stays the same in another network namespace."""
        return self.number(m.IFLA_LINK)

    @property
    def xdp(self) -> tuple[int, ...]:
        """The modes in which XDP programs see its packets first."""
        found = attributes(self.raw.get(m.IFLA_XDP, b""))
        return tuple(mode for kind, mode in _XDP_MODES.items() if kind in found)

    def number(self, kind: int) -> int:
        """Return an attribute that is a number; 0 where there is none."""
        return int.from_bytes(self.raw.get(kind, b"")[:4], "little")

    def text(self, kind: int) -> str:
        """Return an attribute that is a text."""
        return self.raw.get(kind, b"").split(b"\0", 1)[0].decode("utf-8", "replace")


@dataclass(frozen=True)
class Which:
    """By what a link is found again.

    Hardware is known by what it hangs on: a pod can change name and address of a link, but not that. A link without
    hardware is known by its name on the host. In a pod it is known by its number there, which nobody can change, and
    until that is recorded by its MAC address: of its name the pod may have another one. `base` is as in `Seen`.
    """

    name: str = ""
    kind: str = ""
    bus: str = ""
    device: str = ""
    permanent_mac: str = ""
    port_name: str = ""

    @classmethod
    def of(cls, link: Link) -> "Which":
        """Return by what that link is found again."""
        return cls(link.name, link.kind, link.bus, link.device, link.permanent_mac, link.port_name)

    def fits(self, link: Link) -> bool:
        """Return whether a link of the host is it."""
        if link.kind != self.kind:
            return False
        return self._is_hardware(link) if self.device else link.name == self.name

    def fits_inside(self, seen: Seen, base: int, *, number: int, macs: Collection[str], name: str) -> bool:
        """Return whether a link in a pod is it.

        base     that it had on the host
        number   that it has in the pod; 0 where that is not recorded
        macs     the MAC addresses that it can have as long as the pod changed none
        name     what it was called on the host, for kinds that have no MAC address
        """
        if self.device:
            return seen.link.kind == self.kind and self._is_hardware(seen.link)
        if seen.link.kind != self.kind or seen.base != base:
            return False
        if number:
            return seen.index == number
        return seen.link.mac in macs if macs else seen.link.name == name

    def _is_hardware(self, link: Link) -> bool:
        same_mac = link.permanent_mac == self.permanent_mac
        unknown = not link.permanent_mac or not self.permanent_mac
        if not link.device:  # a kernel before 5.14 does not tell
            return link.name == self.name if unknown else same_mac
        same = link.device == self.device and (link.bus == self.bus or not link.bus or not self.bus)
        return same and (same_mac or unknown) and (not self.name or link.port_name == self.port_name)


def seen_in(body: bytes) -> Seen:
    """Return the link of an RTM_NEWLINK message."""
    return Seen(link_of(body), m.LINK.unpack_from(body)[3], attributes(body, m.LINK.size))


def named(rtnl: Rtnl, name: str) -> Seen | None:
    """Return the link of that name, None where there is none. Raises OSError."""
    try:
        return seen_in(rtnl.get(m.RTM_GETLINK, m.link(0, m.text(m.IFLA_IFNAME, name), m.link_mask())))
    except RefusedError as error:
        if error.errno in {errno.ENODEV, errno.EINVAL, errno.ERANGE}:
            return None
        raise


def by_index(rtnl: Rtnl, index: int) -> Seen | None:
    """Return the link of that number, None where there is none. Raises OSError."""
    try:
        return seen_in(rtnl.get(m.RTM_GETLINK, m.link(index, m.link_mask())))
    except RefusedError as error:
        if error.errno == errno.ENODEV:
            return None
        raise


def links_in(rtnl: Rtnl) -> Iterator[Seen]:
    """Yield all links. Raises UnavailableError."""
    return map(seen_in, rtnl.listed(m.RTM_GETLINK, m.link(0, m.link_mask())))


def find(rtnl: Rtnl, which: Which) -> Seen | None:
    """Return a link of the host; None where it is not there. Raises UnavailableError, OSError."""
    seen = named(rtnl, which.name) if which.name else None
    if seen and which.fits(seen.link):
        return seen
    return next((one for one in links_in(rtnl) if which.fits(one.link)), None)
