"""What an allocation of memory comes to: containers bound to the node, and huge pages limited to the share."""

import re
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
from dradriver.model import ClaimRef, Quantity, shown
from dradriver.model.text import plain
from dradriver_memory.inventory import HUGEPAGES, MemoryInventory, Offer, hugetlb_size, size_text


@dataclass(frozen=True)
class BindMemory(ContainerStep[Any]):
    """Bind each container that uses the device to the NUMA nodes of its memory.

    mems   kernel list of nodes, as cpuset.mems has it; a container with several such devices gets their union
    """

    mems: str

    def adjustment(self) -> ContainerAdjustment:
        """Return the cpuset."""
        return ContainerAdjustment(mems=self.mems)

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"bind containers to memory of NUMA nodes {self.mems}"


@dataclass(frozen=True)
class LimitHugepages(ContainerStep[Any]):
    """Let each container that uses the device have huge pages up to the share, from the nodes of the device.

    mems        kernel list of nodes; empty on a machine without
    page_size   as the hugetlb cgroup names it: "2MB"
    limit       bytes; the limits of several devices of one page size add up
    """

    mems: str
    page_size: str
    limit: int

    def adjustment(self) -> ContainerAdjustment:
        """Return the limit and the cpuset."""
        return ContainerAdjustment(mems=self.mems, hugepage_limits={self.page_size: self.limit})

    def describe(self) -> str:
        """Return what is done, for people."""
        nodes = f" on NUMA nodes {self.mems}" if self.mems else ""
        return f"limit huge pages of {self.page_size}{nodes} to {self.limit} bytes"


def plan_memory(request: Request, inventory: MemoryInventory) -> Plan:
    """Return the binding and the limits. Nothing is held: the amounts are capacity of the devices themselves.

    Raises PlanError for an amount that is not a number of pages.
    """
    devices = []
    steps: list[ContainerStep[Any]] = []
    for requested in request.devices:
        offer = inventory.offer(requested.device.name)
        if offer is None:
            raise PlanError(f"device {shown(requested.device.name)} has nothing to offer")
        size = offer.size_bytes
        if not requested.allocated.admin:
            size = _amount(requested, offer)
            if offer.kind == HUGEPAGES:
                steps.append(
                    LimitHugepages(requested.index, offer.mems, hugetlb_size(offer.page_bytes), size)
                )
            elif offer.mems:
                steps.append(BindMemory(requested.index, offer.mems))
        edits = _edits(request.claim, requested.index, offer, size)
        devices.append(PlannedDevice(requested.allocated, edits, {offer.kind: size}))
    return Plan(tuple(devices), tuple(steps))


def _amount(requested: Requested, offer: Offer) -> int:
    """Return the bytes that are asked for: a share without an amount is one page, no share is all."""
    allocated = requested.allocated
    if offer.kind not in allocated.consumed:
        return offer.page_bytes if allocated.share_id is not None else offer.size_bytes
    amount = allocated.consumed[offer.kind]
    size = amount.to_int()
    pages, rest = divmod(size, offer.page_bytes)
    if pages > 0 and not rest and Quantity.from_int(size) == amount:
        return size
    lower = max(pages, 0) * offer.page_bytes
    nearest = [near for near in (lower, lower + offer.page_bytes) if 0 < near <= offer.size_bytes]
    raise PlanError(
        f"device {offer.name}: {offer.kind} {plain(str(amount), 64)} asked: "
        f"it is given in whole pages of {offer.page_size}; "
        f"nearest allowed are {' and '.join(map(size_text, nearest or [offer.size_bytes]))}"
    )


def _edits(claim: ClaimRef, index: int, offer: Offer, size: int) -> ContainerEdits:
    """Tell the container what it has: `DRA_HUGEPAGES_<claim uid>_<index>=numaNode=0,pageSize=2Mi,bytes=4194304`."""
    facts = [f"bytes={size}"]
    if offer.kind == HUGEPAGES:
        facts.insert(0, f"pageSize={offer.page_size}")
    if offer.node is not None:
        facts.insert(0, f"numaNode={offer.node}")
    uid = re.sub("[^A-Za-z0-9]", "_", claim.uid)
    return ContainerEdits(env=(f"DRA_{offer.kind.upper()}_{uid}_{index}={','.join(facts)}",))
