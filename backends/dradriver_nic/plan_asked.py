"""What a claim asks of network cards: which devices it means, whether they can be so, and what it holds. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from dradriver.backend import PlanError, Requested
from dradriver.backend.vfio import VFIO
from dradriver.model import ClaimRef, shown
from dradriver_nic.config import MEGABIT, PASSTHRU, NicConfig, VirtualFunction
from dradriver_nic.devices import BANDWIDTH
from dradriver_nic.inventory import Card, Function, Link, NicInventory, RdmaDevice
from dradriver_nic.pool import hand_out


@dataclass(frozen=True, slots=True)
class Asked:
    """One device of a request: what it is, and how it is to be.

    function    None for a link without a device, and for shares by macvlan links
    link        the interface on the host: that is moved, or that links are made on; None where there is none yet
    macvlan     whether the pod gets a link made on the card
    vfio        whether it is bound to vfio-pci
    bandwidth   what of a shared card it gets, in bits a second; 0 for all
    """

    requested: Requested
    config: NicConfig
    card: Card
    function: Function | None
    link: Link | None
    macvlan: bool = False
    vfio: bool = False
    bandwidth: int = 0

    @property
    def index(self) -> int:
        """Its number in the claim."""
        return self.requested.index

    @property
    def name(self) -> str:
        """What is in the pod: a function's device, or a share's card."""
        return self.function.name if self.function else self.card.name

    @property
    def rdma(self) -> tuple[RdmaDevice, ...]:
        """The RDMA devices that come with it, as far as they are known."""
        if self.macvlan:
            return self.card.physical.rdma if self.card.physical else ()
        return self.function.rdma if self.function else ()

    @property
    def will_have_rdma(self) -> bool:
        """Whether it is yet to be made, by a card that has RDMA."""
        physical = self.card.physical
        return bool(self.function and not self.function.exists and physical and physical.rdma)


def asked_of(requested: Requested, inventory: NicInventory, held: Iterable[str]) -> Asked:
    """Return what a device is. Raises PlanError where it cannot be used, or not so."""
    name, config = requested.device.name, requested.config(NicConfig)
    found = inventory.find(name)
    if found is None:
        raise PlanError(f"device {shown(name)} is not on this host any more")
    card, function = found
    if requested.allocated.admin:
        return Asked(requested, config, card, function, function.link if function else card.link)
    bandwidth, taken = 0, {*held}
    if requested.device.shared:
        if card.reserved:
            raise PlanError(f"device {name} is the host's own now: {card.reserved}")
        bandwidth = _bandwidth(requested)
        if card.mode == "shares":
            _check_share(name, config, inventory)
            return Asked(requested, config, card, None, card.link, macvlan=True, bandwidth=bandwidth)
        function = _free_function(name, card, taken)
    one = Asked(
        requested,
        config,
        card,
        function,
        function.link if function else card.link,
        vfio=config.driver == VFIO or bool(function and function.driver == VFIO),
        bandwidth=bandwidth,
    )
    _check(one)
    return one


def _bandwidth(requested: Requested) -> int:
    capacity = requested.device.capacity[BANDWIDTH]
    amount = requested.allocated.consumed.get(BANDWIDTH)
    if amount is None:
        amount = capacity.policy.default if capacity.policy else capacity.value
    if amount.to_int() < MEGABIT:
        raise PlanError(
            f"device {requested.device.name}: {BANDWIDTH} {shown(str(amount))} is too little: one megabit a second "
            "(1M) or more is expected"
        )
    return amount.to_int()


def _free_function(name: str, card: Card, held: Iterable[str]) -> Function:
    """Return the first virtual function of a card that no claim has."""
    for function in card.virtual:
        is_here = function.exists and function.link and not function.away
        if is_here and not function.reserved and _function_hold(function) not in held:
            return function
    raise PlanError(f"device {name}: no virtual function is free")


def _function_hold(function: Function) -> str:
    return f"vf:{function.name}"


def _check_share(name: str, config: NicConfig, inventory: NicInventory) -> None:
    if config.vf != VirtualFunction():
        raise PlanError(f"vf: device {name} is shared by macvlan links, and no virtual function")
    if config.driver == VFIO:
        raise PlanError(f"driver: device {name} is shared, so it cannot be bound to {VFIO}")
    if config.rdma and inventory.rdma_exclusive:
        raise PlanError(
            f"rdma: the RDMA device of {name} belongs to one network namespace at a time, and cannot be shared"
        )


def _check(one: Asked) -> None:
    """Refuse what a device is not, or does not have."""
    name, config, function = one.name, one.config, one.function
    reserved = function.reserved if function else one.card.reserved
    if reserved:
        raise PlanError(f"device {name} is the host's own now: {reserved}")
    is_virtual = function is not None and function.is_virtual
    if config.vf != VirtualFunction() and not is_virtual:
        raise PlanError(f"vf: device {name} is no virtual function")
    if config.macvlan_mode != NicConfig().macvlan_mode:
        raise PlanError(f"macvlanMode: device {name} is not shared by macvlan links")
    if one.bandwidth and config.vf.max_rate:
        raise PlanError(f"vf.maxRate: is not allowed with a share of bandwidth, which device {name} is")
    if one.vfio:
        _check_vfio(one)
    elif not one.link and not one.rdma and not is_to_be_made(one):
        raise PlanError(f"device {name} has no network interface")
    if is_virtual and sets_function(one) and (one.card.link is None or one.card.away):
        raise PlanError(f"vf: the physical function of {name} is not on the host, and cannot set it up")


def _check_vfio(one: Asked) -> None:
    name, function = one.name, one.function
    if function is None:
        raise PlanError(f"driver: device {name} is no PCI function, so it cannot be bound to {VFIO}")
    if function.port is not None:
        raise PlanError(
            f"driver: device {name} is one port of several of its function, which is bound as a whole"
        )
    if function.exists and function.iommu_group is None:
        raise PlanError(f"driver: device {name} is in no IOMMU group (the IOMMU is off)")
    if function.driver == VFIO and one.config.driver != VFIO and one.config != NicConfig():
        fields = msgspec.structs.replace(one.config, vf=VirtualFunction(), rdma=None)
        if fields != NicConfig():
            raise PlanError(f"device {name} is bound to {VFIO}: it has no network interface to configure")


def is_to_be_made(one: Asked) -> bool:
    return one.function is not None and not one.function.exists


def sets_function(one: Asked) -> bool:
    """Return whether the physical function has something to set."""
    return one.config.vf != VirtualFunction() or bool(one.config.interface.mac or one.bandwidth)


# --- what is held


def holds_of(one: Asked, claim: ClaimRef, held: Mapping[str, ClaimRef], own: set[str]) -> set[str]:
    """Return what one device holds. Raises PlanError where others hold it."""
    if one.requested.allocated.admin:
        return set()
    holds = set()
    if one.requested.device.shared and one.function:
        holds.add(_function_hold(one.function))
    if one.vfio and one.function and one.function.iommu_group is not None:
        group = f"iommu-group:{one.function.iommu_group}"
        if group in held:
            raise PlanError(f"device {one.name}: claim {held[group]} has another device of its IOMMU group")
        holds.add(group)
    if one.macvlan:
        holds.add(_macvlan_hold(one, claim, [*held, *own]))
        holds |= _mac_hold(one, held, own)
    return holds


def _macvlan_hold(one: Asked, claim: ClaimRef, held: Sequence[str]) -> str:
    """Return what a macvlan link holds. The kernel lets one of mode passthru have no other beside it."""
    prefix = f"macvlan:{one.name}:"
    alone = f"{prefix}{PASSTHRU}:"
    mode = one.config.macvlan_mode
    if any(name.startswith(prefix if mode == PASSTHRU else alone) for name in held):
        raise PlanError(
            f"macvlanMode: the card {one.name} is shared with a link of mode passthru, which allows no other beside it"
        )
    return f"{alone if mode == PASSTHRU else prefix}{claim.uid}-{one.index}"


def _mac_hold(one: Asked, held: Mapping[str, ClaimRef], own: set[str]) -> set[str]:
    """Return the hold on a MAC address that a share is given: a card has one link of each (macvlan_addr_busy)."""
    mac = one.config.interface.mac
    if not mac or one.config.macvlan_mode == PASSTHRU:
        return set()
    if one.link and mac == one.link.mac:
        raise PlanError(f"interface.hardwareAddr: {mac} is that of the card {one.name} itself")
    name = f"mac:{one.name}:{mac}"
    if name in held or name in own:
        whose = f"claim {held[name]}" if name in held else "this claim"
        raise PlanError(
            f"interface.hardwareAddr: {mac} is that of another share of the card {one.name}, of {whose}"
        )
    return {name}


def from_pool(one: Asked, asked: Sequence[Asked], held: set[str]) -> tuple[str, ...]:
    pool = one.config.address_pool
    if pool is None:
        return ()
    taken = [address for other in asked for address in other.config.interface.addresses]
    taken += [route.gateway for route in one.config.routes if route.gateway]
    return hand_out(pool, held, taken)


def gets_rdma(one: Asked) -> bool:
    """Return whether containers get the RDMA device. By it a share's limit does not count: only where it is said.

    Raises PlanError where there is none.
    """
    there = bool(one.rdma) or one.will_have_rdma
    if one.config.rdma and not there and not one.vfio:
        raise PlanError(f"rdma: device {one.name} has no RDMA device")
    if one.vfio or one.config.rdma is False:
        return False
    return there and (bool(one.config.rdma) or not one.macvlan)
