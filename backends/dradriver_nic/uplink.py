"""Which links the host needs for itself: those that it is reached over, and those that are part of something else."""

from collections.abc import Iterable, Mapping

from dradriver.model.text import plain
from dradriver_nic.inventory import Link

_VETH = "veth"


def relatives(links: Mapping[int, Link], start: Iterable[int]) -> frozenset[int]:
    """Return the links that the host is reached over: those given, and all that these consist of.

    A bond or bridge carries its ports, a port its master, a VLAN or macvlan its base. Of a veth the other end counts as
    base: without it nothing passes either.
    """
    ports: dict[int, list[int]] = {}
    for link in links.values():
        if link.master is not None:
            ports.setdefault(link.master, []).append(link.index)
    found: set[int] = set()
    pending = [index for index in start if index in links]
    while pending:
        index = pending.pop()
        if index in found:
            continue
        found.add(index)
        link = links[index]
        near = (*ports.get(index, ()), link.master, link.parent)
        pending += [other for other in near if other is not None and other in links]
    return frozenset(found)


def kept_for_host(
    links: Mapping[int, Link], default_routes: Iterable[int], uplink: frozenset[int]
) -> dict[int, str]:
    """Return, by link, why it can be neither given away nor shared."""
    routes = frozenset(default_routes)
    kept = {}
    for index in uplink:
        over = "the host's default route leads over it"
        kept[index] = over if index in routes else "it belongs to a link of the host's default route"
    for link in links.values():
        if link.master is not None and link.index not in kept:
            master = links.get(link.master)
            kept[link.index] = f"it is a port of {plain(master.name) if master else 'another link'}"
    return kept


def built_upon(links: Mapping[int, Link]) -> dict[int, str]:
    """Return, by link, why it cannot be given away as a whole: VLANs and the like of the host are made on it."""
    found: dict[int, str] = {}
    for link in links.values():
        # The other end of a veth is not made on it.
        if link.parent is not None and link.kind != _VETH and link.parent != link.index:
            found.setdefault(link.parent, f"{plain(link.name)} is made on it")
    return found
