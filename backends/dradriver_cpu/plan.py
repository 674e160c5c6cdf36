"""What an allocation of CPUs comes to: CPUs of its own for each device of the claim, held until Unprepare."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dradriver.backend import (
    ContainerAdjustment,
    ContainerEdits,
    ContainerStep,
    Plan,
    PlanError,
    PlannedDevice,
    Request,
    Requested,
)
from dradriver.host import CPUSet
from dradriver.model import ClaimRef, Peer, Quantity, shown
from dradriver.model.text import plain
from dradriver_cpu.choose import choose_cpus
from dradriver_cpu.config import CpuConfig
from dradriver_cpu.devices import CPU
from dradriver_cpu.inventory import CpuInventory, Offer

_NAMED_HOLDERS = 3


@dataclass(frozen=True)
class PinCPUs(ContainerStep[Any]):
    """Pin each container that uses the device to its CPUs, and to the memory nodes next to them.

    cpus, mems   kernel lists; empty `mems` leaves the memory nodes alone

    A container with several devices gets the union of their CPUs. Where the claim has devices that bind
    memory, those know better than this step where the memory is to be.
    """

    cpus: str
    mems: str = ""

    def adjustment(self) -> ContainerAdjustment:
        """Return the cpuset."""
        return ContainerAdjustment(cpus=self.cpus, mems=self.mems)

    def describe(self) -> str:
        """Return what is done, for people."""
        memory = f" and memory of NUMA nodes {self.mems}" if self.mems else ""
        return f"pin containers to CPUs {self.cpus}{memory}"


def plan_cpus(
    request: Request, inventory: CpuInventory, held: Mapping[str, ClaimRef], peers: tuple[Peer, ...]
) -> Plan:
    """Choose CPUs for each requested device. What the plan holds are CPU numbers, as `held` has them.

    Raises PlanError for an amount that is no number of CPUs, or where too few are free.
    """
    near = frozenset(node for peer in peers for node in peer.numa_nodes)
    taken = CPUSet(_numbers(held))
    chosen = CPUSet()
    devices = []
    steps = []
    for requested in request.devices:
        offer = inventory.offer(requested.device.name)
        if offer is None:
            raise PlanError(f"device {shown(requested.device.name)} has no online CPUs to offer")
        cpus = offer.cpus
        if not requested.allocated.admin:
            count = _count(requested, offer)
            free = offer.cpus - taken - chosen
            if count > len(free):
                raise PlanError(_too_few(count, offer, free, held, chosen & offer.cpus))
            cpus = choose_cpus(inventory.layout, free, count, near)
            chosen |= cpus
            mems = offer.mems if requested.config(CpuConfig).memory == "local" else ""
            steps.append(PinCPUs(requested.index, str(cpus), mems))
        devices.append(
            PlannedDevice(
                requested.allocated, _edits(request.claim, requested.index, cpus), {"cpus": str(cpus)}
            )
        )
    return Plan(tuple(devices), tuple(steps), frozenset(str(cpu) for cpu in chosen))


def _numbers(held: Iterable[str]) -> list[int]:
    """Return the CPU numbers among what is held; nothing else is a CPU, whoever wrote it."""
    return [int(name) for name in held if name.isdecimal()]


def _count(requested: Requested, offer: Offer) -> int:
    """Return how many CPUs are asked for: a share without an amount is one CPU, no share is all of them."""
    allocated = requested.allocated
    if CPU not in allocated.consumed:
        return 1 if allocated.share_id is not None else len(offer.cpus)
    amount = allocated.consumed[CPU]
    count = amount.to_int()
    if count < 1 or Quantity.from_int(count) != amount:
        raise PlanError(
            f"device {offer.name}: {CPU} {plain(str(amount), 64)} asked: "
            f"CPUs are given whole, 1 to {len(offer.cpus)} of them"
        )
    return count


def _edits(claim: ClaimRef, index: int, cpus: CPUSet) -> ContainerEdits:
    """Tell the container its CPUs. The variable is named as by the driver dra.cpu, and by the device's number."""
    return ContainerEdits(env=(f"DRA_CPUSET_{re.sub('[^A-Za-z0-9]', '_', claim.uid)}_{index}={cpus}",))


def _too_few(count: int, offer: Offer, free: CPUSet, held: Mapping[str, ClaimRef], own: CPUSet) -> str:
    by_claim: dict[ClaimRef, list[int]] = {}
    for name, claim in held.items():
        for number in _numbers([name]):
            if number in offer.cpus:
                by_claim.setdefault(claim, []).append(number)
    holders = sorted((CPUSet(cpus) for cpus in by_claim.values()), key=lambda cpus: cpus.first)
    of_cpu = {cpu: claim for claim, cpus in by_claim.items() for cpu in cpus}
    parts = [f"{cpus} by claim {of_cpu[cpus.first]}" for cpus in holders[:_NAMED_HOLDERS]]
    if own:
        parts.insert(0, f"{own} by another device of this claim")
    if len(holders) > _NAMED_HOLDERS:
        parts.append(f"the rest by {len(holders) - _NAMED_HOLDERS} more")
    asked = plain(str(count), 64)
    message = f"device {offer.name}: {CPU}: {asked} asked, {len(free)} of {len(offer.cpus)} free"
    return f"{message}; held: {', '.join(parts)}" if parts else message
