"""What an allocation of network cards comes to. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from dradriver.backend import (
    ContainerEdits,
    DeviceNode,
    Plan,
    PlanError,
    PlannedDevice,
    Request,
    Requested,
    Step,
)
from dradriver.model import PCI_BUS_ID, AttributeValue, ClaimRef, NetworkData, shown
from dradriver_nic.actuate.actuator import holder_of
from dradriver_nic.actuate.found import Which
from dradriver_nic.actuate.inpod import PodLink
from dradriver_nic.config import MEGABIT, PASSTHRU
from dradriver_nic.inventory import NicInventory, RdmaDevice
from dradriver_nic.plan_asked import (
    Asked,
    asked_of,
    from_pool,
    gets_rdma,
    holds_of,
    is_to_be_made,
    sets_function,
)
from dradriver_nic.plan_link import macvlan_link, moved_link
from dradriver_nic.pool import hold_of
from dradriver_nic.steps_container import LockMemory
from dradriver_nic.steps_link import MoveLink
from dradriver_nic.steps_macvlan import AddMacvlan, ShareCard
from dradriver_nic.steps_rdma import MoveRdma
from dradriver_nic.steps_vf import CreateVFs, SetVF
from dradriver_nic.steps_vfio import BindVfio

STEP_TYPES: tuple[type[Step[Any]], ...] = (
    CreateVFs,
    SetVF,
    BindVfio,
    ShareCard,
    MoveLink,
    AddMacvlan,
    MoveRdma,
    LockMemory,
)

_LINK_STATES = {"auto": 0, "enable": 1, "disable": 2}
_TAG_PROTOCOLS = {"802.1q": 0x8100, "802.1ad": 0x88A8}


def plan_nics(request: Request, inventory: NicInventory, held: Mapping[str, ClaimRef]) -> Plan:
    """Return what gives a claim its network interfaces.

    A claim holds the addresses that it got from pools, the virtual functions that its shares are, the IOMMU groups that
    its programs have, and its links on shared cards. Raises PlanError.
    """
    holds: set[str] = set()
    asked: list[Asked] = []
    for requested in request.devices:
        one = asked_of(requested, inventory, {*held, *holds})
        holds |= holds_of(one, request.claim, held, holds)
        asked.append(one)
    owning = [one for one in asked if not one.requested.allocated.admin]
    links: dict[int, PodLink] = {}
    for one in owning:
        if not one.vfio and (one.link or is_to_be_made(one)):
            pool = from_pool(one, asked, {*held, *holds})
            holds |= {hold_of(address) for address in pool}
            links[one.index] = _pod_link(one, pool, request.claim)
    _check_names(owning, links)
    _check_routes(owning, links)
    return Plan(
        tuple(_planned(one, links.get(one.index)) for one in asked),
        tuple(
            step for one in owning for step in _steps(one, links.get(one.index), request, inventory, owning)
        ),
        frozenset(holds),
    )


# --- what is done


def _pod_link(one: Asked, pool: tuple[str, ...], claim: ClaimRef) -> PodLink:
    if one.macvlan:
        if one.link is None:
            raise PlanError(f"device {one.name} has no network interface on the host")
        owner = holder_of(claim.uid, one.index)
        return macvlan_link(one.config, one.link, pool, owner=owner, number=one.index)
    return moved_link(one.config, one.link, pool)


def _check_names(owning: Sequence[Asked], links: Mapping[int, PodLink]) -> None:
    """Refuse two interfaces of one name."""
    names: dict[str, str] = {}
    for one in owning:
        if one.index in links:
            name = links[one.index].name or (one.link.name if one.link else "")
            if name and name in names:
                raise PlanError(
                    f"interface.name: {shown(name)} would be the name of {one.name} and of {names[name]} in the pod"
                )
            names[name] = one.name


def _check_routes(owning: Sequence[Asked], links: Mapping[int, PodLink]) -> None:
    """Refuse two interfaces with a route to one network, of which the pod can have one only."""
    first: dict[object, Asked] = {}
    for one in owning:
        for route in one.config.routes if one.index in links else ():
            known = first.setdefault(route.place(one.config.interface.table), one)
            if known is not one:
                raise PlanError(
                    f"routes: {known.name} and {one.name} would both have a route to {shown(route.destination)} in the "
                    "pod: one of them needs another metric or table, by a configuration of its request alone"
                )


def _steps(
    one: Asked,
    link: PodLink | None,
    request: Request,
    inventory: NicInventory,
    owning: Sequence[Asked],
) -> Iterator[Step[Any]]:
    """Yield the steps of one device, in their order."""
    claim = request.claim.uid
    function = one.function
    if one.macvlan and one.link and link:
        which = Which.of(one.link)
        whole = one.config.macvlan_mode == PASSTHRU
        yield ShareCard(one.name, which, claim, one.index, one.bandwidth, "" if whole else link.mac)
        yield AddMacvlan(one.name, which, one.config.macvlan_mode, link)
    else:
        yield from _function_steps(one, claim)
        if one.vfio and function:
            companions = tuple(
                other.function.address
                for other in owning
                if other.vfio and other.function and other is not one
            )
            which = _which(one)
            yield BindVfio(one.name, function.address, which, one.index, companions)
        elif link:
            yield MoveLink(
                one.name,
                _which(one),
                link,
                function.address if function else "",
                one.index,
                link=one.link,
                mac_elsewhere=bool(function and function.is_virtual and one.config.interface.mac),
            )
        if function and not one.vfio and gets_rdma(one) and inventory.rdma_exclusive:
            yield MoveRdma(one.name, function.address, one.index)
    if one.vfio or gets_rdma(one):
        yield LockMemory(one.index)


def _function_steps(one: Asked, claim: str) -> Iterator[Step[Any]]:
    """Yield the steps that make a virtual function, and set it up."""
    function, card = one.function, one.card
    if function is None or not function.is_virtual or function.physfn is None or function.number is None:
        return
    physical = Which.of(card.link) if card.link else Which()
    if card.mode == "on-demand":
        yield CreateVFs(
            one.name,
            function.physfn,
            physical,
            function.address,
            function.number,
            len(card.virtual),
            claim,
            one.index,
            rdma=one.will_have_rdma,
        )
    if sets_function(one):
        vf = one.config.vf
        yield SetVF(
            one.name,
            function.physfn,
            physical,
            function.number,
            function=function.address,
            mac=one.config.interface.mac,
            vlan=vf.vlan,
            qos=vf.qos or 0,
            vlan_proto=_TAG_PROTOCOLS[vf.vlan_proto],
            spoof_check=vf.spoof_check,
            trust=vf.trust,
            link_state=None if vf.link_state is None else _LINK_STATES[vf.link_state],
            min_rate=vf.min_rate_mbps,
            max_rate=one.bandwidth // MEGABIT if one.bandwidth else vf.max_rate_mbps,
        )


def _which(one: Asked) -> Which:
    if one.link:
        return Which.of(one.link)
    return Which(bus="pci", device=one.function.address if one.function else "")


# --- the container's side


def _planned(one: Asked, link: PodLink | None) -> PlannedDevice:
    """Return what a container gets of a device, as far as it is known before the steps are done."""
    allocated = one.requested.allocated
    if allocated.admin:
        return PlannedDevice(allocated, ContainerEdits())
    edits, network = ContainerEdits(), None
    metadata: dict[str, AttributeValue] = {}
    if one.vfio:
        edits = _vfio_edits(one.function.iommu_group if one.function else None)
    elif gets_rdma(one):
        edits = _rdma_edits(one.rdma)
    if link:
        host = None if one.macvlan else one.link
        name = link.name or (host.name if host else "")
        network = NetworkData(name, link.addresses, link.mac or (host.mac if host else ""))
    if one.requested.device.shared and one.function:
        metadata[PCI_BUS_ID] = one.function.address
    return PlannedDevice(allocated, edits, metadata, network)


def _vfio_edits(group: int | None) -> ContainerEdits:
    """Return the nodes by which a program has the functions of an IOMMU group (Documentation/driver-api/vfio.rst)."""
    nodes = [DeviceNode("/dev/vfio/vfio")]
    if group is not None:
        nodes.append(DeviceNode(f"/dev/vfio/{group}"))
    return ContainerEdits(device_nodes=tuple(nodes))


def _rdma_edits(rdma: Sequence[RdmaDevice]) -> ContainerEdits:
    paths = dict.fromkeys(path for device in rdma for path in device.char_devices)
    return ContainerEdits(device_nodes=tuple(DeviceNode(path, permissions="rw") for path in paths))


def render_nics(
    request: Request, plan: Plan, facts: tuple[Mapping[str, Any], ...], inventory: NicInventory
) -> tuple[PlannedDevice, ...]:
    """Return the container's side, with what the steps found out, and device nodes as they are now."""
    pairs = [*zip(plan.steps, facts, strict=True)]
    return tuple(
        _rendered(
            planned,
            [(step, known) for step, known in pairs if getattr(step, "index", None) == requested.index],
            requested,
            inventory,
        )
        for requested, planned in zip(request.devices, plan.devices, strict=True)
    )


def _rendered(
    planned: PlannedDevice,
    pairs: Sequence[tuple[Step[Any], Mapping[str, Any]]],
    requested: Requested,
    inventory: NicInventory,
) -> PlannedDevice:
    name, network, edits = requested.device.name, planned.network, planned.edits
    made: Mapping[str, Any] = {}
    for step, known in pairs:
        if isinstance(step, CreateVFs):
            made = known
        elif isinstance(step, MoveLink):
            name = step.device
        elif isinstance(step, BindVfio) and "group" in known:
            edits = _vfio_edits(int(known["group"]))
    if network and made:
        network = replace(
            network,
            interface=network.interface or str(made.get("name", "")),
            hardware_address=network.hardware_address or str(made.get("mac", "")),
        )
    kinds = {type(step) for step, _ in pairs}
    if LockMemory in kinds and BindVfio not in kinds:
        rdma = _rdma_now(name, inventory) or msgspec.convert(made.get("rdma", []), tuple[RdmaDevice, ...])
        edits = _rdma_edits(rdma) if rdma else edits
    return replace(planned, edits=edits, network=network)


def _rdma_now(name: str, inventory: NicInventory) -> tuple[RdmaDevice, ...]:
    found = inventory.find(name)
    return found[1].rdma if found and found[1] else ()
