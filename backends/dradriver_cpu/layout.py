"""What the choice of CPUs looks at: each core with the caches and parts of the machine that it lies in."""

from collections.abc import Mapping
from dataclasses import dataclass

from dradriver.host import CPUSet, Topology

CACHE_LEVELS = 3
"""How many levels `Core.caches` has."""

Key = tuple[str, int]
"""A part of the machine: its kind and its lowest CPU."""


@dataclass(frozen=True, slots=True)
class Core:
    """One core.

    mask     its online CPUs, as bits
    size     how many these are
    kind     "performance", "efficiency" or None where cores are equal or nothing tells
    node     its NUMA node, None where unknown
    caches   what it shares, widest first: L3, cluster, L2
    parts    what it lies in: die, NUMA node, socket
    """

    mask: int
    size: int
    kind: str | None
    node: int | None
    caches: tuple[Key, ...]
    parts: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """All cores by their lowest CPU, and the distances between NUMA nodes (10 is local), empty where unknown."""

    cores: tuple[Core, ...]
    distances: Mapping[int, Mapping[int, int]]


def layout_of(topology: Topology) -> Layout:
    """Return the layout of a machine.

    Where a CPU has no L3 it counts as one with those of its die or else socket; a level that is not known
    divides nothing. A die or cluster without an id is one that the platform lacks.
    """
    l3, l2 = (
        {cpu: cache.cpus for cache in topology.caches if cache.level == level for cpu in cache.cpus}
        for level in (3, 2)
    )
    nodes = {cpu: locality.node_id for locality in topology.localities for cpu in locality.cpus}
    cores = []
    for cpus in topology.cores:
        first = cpus.first
        cpu = topology.cpus[first]
        die = cpu.die if cpu.die_id is not None else None
        cluster = cpu.cluster if cpu.cluster_id is not None else None
        outer = _key("die", die) if die else _key("socket", cpu.package)
        node = nodes.get(first)
        cores.append(
            Core(
                mask=mask_of(cpus),
                size=len(cpus),
                kind=cpu.core_kind,
                node=node,
                caches=(
                    _key("l3", l3[first]) if first in l3 else outer,
                    _key("cluster", cluster),
                    _key("l2", l2.get(first)),
                ),
                parts=(outer, ("node", -1 if node is None else node), _key("socket", cpu.package)),
            )
        )
    distances = {node.id: node.distances for node in topology.nodes} if topology.numa_consistent else {}
    return Layout(tuple(cores), distances)


def mask_of(cpus: CPUSet) -> int:
    """Return a set of CPUs as the bits of an integer."""
    mask = 0
    for cpu in cpus:
        mask |= 1 << cpu
    return mask


def _key(kind: str, cpus: CPUSet | None) -> Key:
    return kind, cpus.first if cpus else -1
