"""What there is to offer: the CPUs of each locality, the isolated ones apart, the reserved ones left out."""

from collections.abc import Iterator
from dataclasses import dataclass

from dradriver.host import CPUSet, Locality, Topology
from dradriver_cpu.layout import Layout, layout_of


@dataclass(frozen=True, slots=True)
class Offer:
    """The CPUs behind one device.

    node       their NUMA node, None where unknown
    isolated   whether the kernel keeps its scheduler off them (boot parameter isolcpus)
    mems       the nearest NUMA nodes with host memory, as a kernel list; empty where unknown
    """

    name: str
    node: int | None
    isolated: bool
    cpus: CPUSet
    mems: str


@dataclass(frozen=True, slots=True)
class CpuInventory:
    """The machine as read, and what is offered of it."""

    topology: Topology
    layout: Layout
    offers: tuple[Offer, ...]
    warnings: tuple[str, ...]

    def offer(self, name: str) -> Offer | None:
        """Return the offer of that device name; None if there is none."""
        return next((offer for offer in self.offers if offer.name == name), None)


def inventory_of(topology: Topology, reserved: CPUSet) -> CpuInventory:
    """Return what is offered: each online CPU that is not reserved, once."""
    online = topology.online
    warnings = []
    if online and online <= reserved:
        warnings.append(
            f"reserved: {reserved}: these are all online CPUs ({online}), which leaves none to offer"
        )
    if not reserved <= online:
        warnings.append(f"reserved: CPUs {reserved - online} are not online")
    isolated = (topology.lists.isolated or CPUSet()) & online
    offered = online - reserved
    offers = [
        *_offers(topology, offered - isolated, isolated=False),
        *_offers(topology, offered & isolated, isolated=True),
    ]
    return CpuInventory(topology, layout_of(topology), tuple(offers), tuple(warnings))


def _offers(topology: Topology, cpus: CPUSet, *, isolated: bool) -> Iterator[Offer]:
    for locality in topology.localities:
        here = locality.cpus & cpus
        if here:
            node = locality.node_id
            mems = () if node is None else topology.nearest_memory_nodes(node)
            yield Offer(
                name=f"cpu-{_place(locality, topology)}{'-isolated' if isolated else ''}",
                node=node,
                isolated=isolated,
                cpus=here,
                mems=str(CPUSet(mems)),
            )


def _place(locality: Locality, topology: Topology) -> str:
    if locality.node_id is not None:
        return f"numa-{locality.node_id}"
    return "machine" if len(topology.localities) == 1 else "nonuma"
