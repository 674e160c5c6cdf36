"""Addresses from the pool of a claim's configuration: which are free, given what claims of this node hold.

Pure. The journal keeps what is given out, as names that a plan holds, so an address is free again after Unprepare.
"""

from collections.abc import Collection, Iterable, Iterator
from ipaddress import ip_address, ip_interface

from dradriver.backend import PlanError
from dradriver_nic.config import Address, AddressPool, Network, address_range

_HOLD = "ip:"

Range = tuple[int, int]


def hold_of(address: str) -> str:
    """Return by what name a plan holds an address, given with or without a prefix length."""
    return f"{_HOLD}{ip_interface(address).ip}"


def addresses_in(held: Iterable[str]) -> Iterator[Address]:
    """Yield the addresses among what plans hold."""
    for name in held:
        if name.startswith(_HOLD):
            try:
                yield ip_address(name.removeprefix(_HOLD))
            except ValueError:
                continue  # whoever wrote that, it is no address


def hand_out(pool: AddressPool, held: Iterable[str], taken: Collection[str] = ()) -> tuple[str, ...]:
    """Return an address of each network of the pool, the lowest that is free, with its prefix length.

    held    what plans hold, by name
    taken   addresses that are somebody's already: gateways, those of the claim's other devices

    A network's first address is never given out, nor IPv4's last one: they are the network's own. Of a network so small
    that it has no such ones (31, 32, 127 and 128 bits) all are. Raises PlanError where none is free.
    """
    used = [*addresses_in(held), *(ip_interface(address).ip for address in taken)]
    return tuple(f"{_lowest(network, pool, used)}/{network.prefixlen}" for network in pool.networks)


def _lowest(network: Network, pool: AddressPool, used: Iterable[Address]) -> Address:
    first, last = _bounds(network)
    blocked = [(int(address), int(address)) for address in used if address.version == network.version]
    for text in pool.reserved:
        start, end = address_range(text, "reserved")
        if start.version == network.version:
            blocked.append((int(start), int(end)))
    candidate = first
    for block in sorted(blocked):
        if block[0] > candidate:
            break
        candidate = max(candidate, block[1] + 1)
    if candidate > last:
        raise PlanError(
            f"addressPool: no address of {network} is free: all {last - first + 1} are given out or reserved"
        )
    return type(network.network_address)(candidate)


def _bounds(network: Network) -> Range:
    first, last = int(network.network_address), int(network.broadcast_address)
    if network.prefixlen >= network.max_prefixlen - 1:
        return first, last
    return first + 1, last - 1 if network.version == 4 else last
