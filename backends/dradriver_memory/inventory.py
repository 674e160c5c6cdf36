"""What there is to offer: per NUMA node its memory, and its huge pages of each size."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dradriver.host import HugePages, Topology
from dradriver.model import Quantity
from dradriver_memory.config import MACHINE

MEMORY = "memory"
HUGEPAGES = "hugepages"

_KIB = 1 << 10
_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Offer:
    """The memory or the huge pages behind one device.

    kind         "memory" or "hugepages", which is also the name of the capacity
    node         the NUMA node, None on a machine without
    socket       number of the socket whose CPUs are nearest, None where there is not the one
    page_bytes   what amounts are multiples of
    size_bytes   all that is offered
    """

    name: str
    kind: str
    node: int | None
    socket: int | None
    page_bytes: int
    size_bytes: int

    @property
    def page_size(self) -> str:
        """The size of a page as Kubernetes writes it: "2Mi"."""
        return size_text(self.page_bytes)

    @property
    def mems(self) -> str:
        """The node as a kernel list; empty on a machine without nodes."""
        return "" if self.node is None else str(self.node)


@dataclass(frozen=True, slots=True)
class MemoryInventory:
    """What is offered; `warnings` say what is left out and why."""

    offers: tuple[Offer, ...]
    warnings: tuple[str, ...]

    def offer(self, name: str) -> Offer | None:
        """Return the offer of that device name; None if there is none."""
        return next((offer for offer in self.offers if offer.name == name), None)


@dataclass(frozen=True, slots=True)
class _Place:
    """Memory that is one place to the kernel: a NUMA node, or the whole machine where there are none."""

    node: int | None
    name: str
    socket: int | None
    memory_bytes: int | None
    huge_pages: tuple[HugePages, ...]


def size_text(size_bytes: int) -> str:
    """Return an amount of bytes as Kubernetes writes it: "2Mi"."""
    return str(Quantity.from_int(size_bytes, binary=True))


def hugetlb_size(page_bytes: int) -> str:
    """Return a page size as the hugetlb cgroup names its files: "64KB", "2MB", "1GB" (kernel: mem_fmt())."""
    for unit, suffix in ((_GIB, "GB"), (_MIB, "MB")):
        if page_bytes >= unit:
            return f"{page_bytes // unit}{suffix}"
    return f"{page_bytes // _KIB}KB"


def inventory_of(topology: Topology, reserved: Mapping[int | None, int]) -> MemoryInventory:
    """Return what is offered.

    Memory is a node's MemTotal less its persistent huge pages and what is reserved. Surplus huge pages come
    and go with their users, so they count as memory. The memory of GPUs is not the host's to offer.

    reserved   bytes by NUMA node, None for a machine without nodes
    """
    places = _places(topology)
    lost, warnings = _unplaced(topology, places)
    known = {place.node for place in places}
    warnings += (
        f"reserved: {MACHINE if node is None else node}: no NUMA node with host memory has that id"
        for node in reserved
        if node not in known
    )
    page = _base_page_bytes(topology)
    memory = []
    for place in places:
        if place.memory_bytes is None:
            warnings.append(f"memory of {place.name}: the kernel does not tell how much: not offered")
            continue
        huge = sum(_persistent(pool) * pool.size_bytes for pool in place.huge_pages)
        left = place.memory_bytes - huge - lost - reserved.get(place.node, 0)
        if left < page:
            warnings.append(f"memory of {place.name}: nothing is left beside huge pages and what is reserved")
            continue
        size = left // page * page
        memory.append(Offer(f"memory-{place.name}", MEMORY, place.node, place.socket, page, size))
    huge_pages = [offer for place in places for offer in _huge_offers(place)]
    return MemoryInventory((*memory, *huge_pages), tuple(warnings))


def _huge_offers(place: _Place) -> Iterator[Offer]:
    for pool in place.huge_pages:
        pages = _persistent(pool)
        if pages > 0:
            yield Offer(
                name=f"hugepages-{size_text(pool.size_bytes).lower()}-{place.name}",
                kind=HUGEPAGES,
                node=place.node,
                socket=place.socket,
                page_bytes=pool.size_bytes,
                size_bytes=pages * pool.size_bytes,
            )


def _persistent(pool: HugePages) -> int:
    return pool.total - pool.surplus


def _places(topology: Topology) -> tuple[_Place, ...]:
    """Return the places with host memory: those with CPUs first, as memory without is of a special kind, often slow.

    What the kernel tells only of the whole machine is that of the node, if there is but one.
    """
    whole = topology.memory
    if not topology.nodes:
        return (_Place(None, MACHINE, None, whole.total_bytes, whole.huge_pages),)
    nodes = [node for node in topology.nodes if node.has_host_memory]
    alone = len(topology.nodes) == 1
    return tuple(
        _Place(
            node=node.id,
            name=f"numa-{node.id}",
            socket=topology.socket_of(node.cpus) if topology.numa_consistent else None,
            memory_bytes=whole.total_bytes if alone and node.memory_bytes is None else node.memory_bytes,
            huge_pages=whole.huge_pages if alone and not node.huge_pages else node.huge_pages,
        )
        for node in sorted(nodes, key=lambda node: not node.cpus)
    )


def _unplaced(topology: Topology, places: tuple[_Place, ...]) -> tuple[int, list[str]]:
    """Return the bytes in huge pages of which the kernel does not tell the node, and remarks on them.

    They may all be in any one node, so each node goes without that memory.
    """
    told = {pool.size_bytes for place in places for pool in place.huge_pages}
    told |= {pool.size_bytes for node in topology.nodes for pool in node.huge_pages}
    lost = 0
    notes = []
    for pool in topology.memory.huge_pages:
        size = _persistent(pool) * pool.size_bytes
        if size > 0 and pool.size_bytes not in told:
            lost += size
            notes.append(
                f"huge pages of {size_text(pool.size_bytes)}: the kernel does not tell their NUMA nodes: not offered, "
                f"and each node's memory counted {size_text(size)} less"
            )
    return lost, notes


def _base_page_bytes(topology: Topology) -> int:
    """Return the size of a base page, as far as it shows: 4 KiB, or 64 KiB on arm64 with 512 MiB huge pages.

    It can only be too small where it does not show (ppc64), which is harmless: amounts of memory are
    accounted, not handed out page by page.
    """
    sizes = {pool.size_bytes for pool in topology.memory.huge_pages}
    return 64 * _KIB if 512 * _MIB in sizes else 4 * _KIB
