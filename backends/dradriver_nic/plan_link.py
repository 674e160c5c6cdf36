"""What a link is to have in the pod, as a claim's configuration says it. Pure."""

import hashlib
from collections.abc import Iterable
from ipaddress import ip_address, ip_interface, ip_network

from dradriver.backend import PlanError
from dradriver.model import shown
from dradriver_nic.actuate.inpod import PodLink, PodRoute, PodRule
from dradriver_nic.config import PASSTHRU, Interface, NicConfig, too_small
from dradriver_nic.inventory import ETHERNET, Link
from dradriver_nic.sysctls import check_sysctl


def moved_link(config: NicConfig, link: Link | None, pool: Iterable[str]) -> PodLink:
    """Return how an interface of the host is to be in the pod: what is not said stays as it is.

    link   None where it is yet to be made
    pool   addresses from the pool

    Raises PlanError.
    """
    given = (*config.interface.addresses, *pool)
    addresses = given or (link.addresses if link else ())
    if link:
        _check_link(config.interface, link)
    keeps_routes = not given and not config.routes and link is not None
    return _pod_link(config, addresses, name="", mac="", keep_routes=keeps_routes)


def macvlan_link(config: NicConfig, card: Link, pool: Iterable[str], *, owner: str, number: int) -> PodLink:
    """Return how a macvlan link on a card is to be in the pod.

    owner    claim and device, from which its MAC address comes where none is given: the same each time, so that
             neighbours know it when the pod starts anew
    number   of the device in the claim, for its name
    """
    mtu = config.interface.mtu
    if mtu is not None and mtu > card.mtu:
        raise PlanError(f"interface.mtu: {mtu} is more than the card {card.name} has, which is {card.mtu}")
    mac = card.mac if config.macvlan_mode == PASSTHRU else _mac_of(owner)
    addresses = (*config.interface.addresses, *pool)
    return _pod_link(config, addresses, name=f"net{number}", mac=mac, keep_routes=False)


def _mac_of(owner: str) -> str:
    """Return a MAC address of local administration (IEEE 802, 8.4)."""
    return bytes((0x02, *hashlib.sha256(owner.encode()).digest()[:5])).hex(":")


def _check_link(interface: Interface, link: Link) -> None:
    if interface.mtu is not None:
        if link.min_mtu and interface.mtu < link.min_mtu:
            raise PlanError(
                f"interface.mtu: {interface.mtu} is less than {link.name} can have, {link.min_mtu}"
            )
        if link.max_mtu and interface.mtu > link.max_mtu:
            raise PlanError(
                f"interface.mtu: {interface.mtu} is more than {link.name} can have, {link.max_mtu}"
            )
    if interface.mac and link.type != ETHERNET:
        raise PlanError(
            f"interface.hardwareAddr: the address of {link.name} cannot be changed: it is no Ethernet"
        )


def _pod_link(
    config: NicConfig, addresses: tuple[str, ...], *, name: str, mac: str, keep_routes: bool
) -> PodLink:
    interface, vrf = config.interface, config.interface.vrf
    if interface.mtu and (message := too_small(interface.mtu, map(ip_interface, addresses))):
        raise PlanError(f"interface.mtu: {message}")
    _check_routes(config, addresses)
    sizes = {
        "gsoMaxSize": interface.gso_max_size,
        "groMaxSize": interface.gro_max_size,
        "gsoIPv4MaxSize": interface.gso_ipv4_max_size,
        "groIPv4MaxSize": interface.gro_ipv4_max_size,
    }
    name = interface.name or name
    if vrf and vrf.name == name:
        raise PlanError(f"interface.vrf.name: {shown(name)} is the name of the interface")
    return PodLink(
        name=name,
        mac=interface.mac or mac,
        mtu=interface.mtu or 0,
        sizes=tuple((size, value) for size, value in sizes.items() if value is not None),
        addresses=addresses,
        routes=tuple(
            PodRoute(
                route.destination,
                route.gateway,
                route.source,
                route.metric or 0,
                route.mtu or 0,
                route.table or (vrf.table if vrf else 0),
                route.onlink,
            )
            # A route to what others lead over comes before them.
            for route in sorted(config.routes, key=lambda route: bool(route.gateway))
        ),
        rules=tuple(
            PodRule(rule.source, rule.destination, rule.table, rule.priority or 0) for rule in config.rules
        ),
        neighbours=tuple((one.destination, one.hardware_addr.lower()) for one in config.neighbors),
        sysctls=tuple(
            ("/".join(check_sysctl(sysctl, value)), value) for sysctl, value in config.sysctls.items()
        ),
        features=tuple(config.ethtool.features.items()),
        private_flags=tuple(config.ethtool.private_flags.items()),
        vrf=vrf.name if vrf else "",
        vrf_table=vrf.table if vrf else 0,
        keep_routes=keep_routes,
    )


def _check_routes(config: NicConfig, addresses: tuple[str, ...]) -> None:
    """Refuse what the kernel would refuse when the pod starts."""
    ips = [ip_interface(address) for address in addresses]
    near = [ip.network for ip in ips]
    near += [ip_network(route.destination) for route in config.routes if not route.gateway]
    for number, route in enumerate(config.routes):
        path = f"routes[{number}]"
        if route.source and ip_address(route.source) not in {ip.ip for ip in ips}:
            raise PlanError(f"{path}.source: {shown(route.source)} is no address of the interface")
        if not route.gateway or route.onlink:
            continue
        gateway = ip_address(route.gateway)
        if not gateway.is_link_local and not any(gateway in network for network in near):
            networks = ", ".join(map(str, near)) or "none"
            raise PlanError(
                f"{path}.gateway: {shown(route.gateway)} is in no network of the interface, which are {networks}; set "
                "onlink where it is there all the same"
            )
        if gateway.version == 4 and not any(ip.version == 4 for ip in ips):
            raise PlanError(f"{path}.gateway: the interface has no IPv4 address")
