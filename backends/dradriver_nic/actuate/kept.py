"""What became the host's own since it was offered: looked at again just before it is taken."""

from collections.abc import Iterator

from dradriver.backend import BackendError
from dradriver_nic import messages as m
from dradriver_nic.actuate.before import FAMILIES
from dradriver_nic.actuate.found import Seen, by_index, seen_in
from dradriver_nic.actuate.rtnl import Rtnl
from dradriver_nic.kernel import default_routes
from dradriver_nic.uplink import built_upon, kept_for_host, relatives


def refuse_of_host(home: Rtnl, seen: Seen, device: str, *, shared: bool = False) -> None:
    """Refuse a link that became the host's own since the claim was prepared. Raises BackendError, UnavailableError.

    shared   whether it stays on the host, and links are made on it: the host may have made others, as VLANs
    """
    links = {one.index: one.link for one in _near(home, seen)}
    # Where nothing may be made on it, it does not matter whether what is has a default route.
    looked_at = links if shared else (seen.index,)
    requests = (
        m.ROUTE.pack(family, *[0] * 8) + m.u32(m.RTA_OIF, index) for family in FAMILIES for index in looked_at
    )
    routes = [body for request in requests for body in home.listed(m.RTM_GETROUTE, request)]
    over = default_routes(routes, lambda: home.listed(m.RTM_GETNEXTHOP, bytes(m.NEXTHOP.size)))
    kept = {} if shared else built_upon(links)
    kept |= kept_for_host(links, over, relatives(links, over))
    if seen.index in kept:
        raise BackendError(f"device {device} is the host's own now: {kept[seen.index]}")


def _near(home: Rtnl, seen: Seen) -> Iterator[Seen]:
    """Yield a link, its master, and what is made on it: of a thousand links the others are not worth decoding here."""
    yield seen
    master = by_index(home, seen.link.master) if seen.link.master else None
    if master:
        yield master
    made_on_it = m.u32(m.IFLA_LINK, seen.index)
    bodies = home.listed(m.RTM_GETLINK, m.link(0, m.link_mask()))
    yield from (seen_in(body) for body in bodies if made_on_it in body)
