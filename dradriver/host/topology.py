"""The CPUs, caches, NUMA nodes and memory of a host, read in one go."""

from collections.abc import Mapping
from dataclasses import dataclass

from dradriver.host.allowed import Allowed, read_allowed
from dradriver.host.cache import Cache, read_caches
from dradriver.host.core_kinds import CoreKinds, read_core_kinds
from dradriver.host.cpu import CPU, CPULists, distinct, read_cpu_lists, read_cpus
from dradriver.host.cpuset import CPUSet
from dradriver.host.memory import Memory, read_memory
from dradriver.host.notes import Notes
from dradriver.host.numa import NUMANode, read_nodes
from dradriver.host.root import Host


@dataclass(frozen=True, slots=True)
class Locality:
    """Online CPUs that are equally near to memory: those of one NUMA node.

    `node_id` is None for CPUs of which no node is known: all of them on a host without (consistent) NUMA
    information, else those that belong to no node.
    """

    node_id: int | None
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Topology:
    """What `read_topology` found. All sets but those in `lists` and `allowed` hold online CPUs only.

    cpus: by CPU number. cores, packages (sockets), dies, clusters, books, drawers: the distinct sets, by
    their first CPU; empty where the kernel does not export the level.
    nodes: as the kernel describes them. numa_consistent: false where nodes share CPUs; what they say of CPUs
    and distances is then not used.
    localities: a partition of the online CPUs; each is in exactly one.
    notes: what was odd and how it was taken, for a log or a human.
    """

    lists: CPULists
    cpus: Mapping[int, CPU]
    cores: tuple[CPUSet, ...]
    packages: tuple[CPUSet, ...]
    dies: tuple[CPUSet, ...]
    clusters: tuple[CPUSet, ...]
    books: tuple[CPUSet, ...]
    drawers: tuple[CPUSet, ...]
    caches: tuple[Cache, ...]
    core_kinds: CoreKinds
    nodes: tuple[NUMANode, ...]
    numa_consistent: bool
    localities: tuple[Locality, ...]
    memory: Memory
    allowed: Allowed
    notes: tuple[str, ...]

    @property
    def online(self) -> CPUSet:
        """The online CPUs."""
        return self.lists.online

    def node(self, node_id: int) -> NUMANode | None:
        """Return a NUMA node by its id; None if there is none."""
        return next((node for node in self.nodes if node.id == node_id), None)

    def node_of(self, cpu: int) -> int | None:
        """Return the id of the NUMA node of a CPU; None if unknown."""
        return next((locality.node_id for locality in self.localities if cpu in locality.cpus), None)

    def socket_of(self, cpus: CPUSet) -> int | None:
        """Return the number of the one socket that holds all of `cpus`.

        None for no CPUs, several sockets, or where the sockets are unknown. It is the physical package id where
        these are known and tell all sockets apart, else the rank of the socket by its lowest CPU: ids may be -1
        for all, or be repeated.
        """
        rank = next((rank for rank, package in enumerate(self.packages) if cpus and cpus <= package), None)
        if rank is None:
            return None
        ids = [{self.cpus[cpu].package_id for cpu in package} for package in self.packages]
        known = [next(iter(found)) for found in ids if len(found) == 1]
        if None in known or len(set(known)) < len(self.packages):
            return rank
        return known[rank]

    def distance(self, node_id: int, other_id: int) -> int | None:
        """Return the distance from one node to another (10 is local, ACPI SLIT); None if unknown."""
        node = self.node(node_id)
        return node.distances.get(other_id) if node and self.numa_consistent else None

    def nearest_memory_nodes(self, node_id: int | None) -> tuple[int, ...]:
        """Return the ids of the nodes with host memory next to a node: itself, or the nearest others.

        Where the node or its distances are unknown, all nodes with host memory are equally near. Memory of
        GPUs is never among them. Empty where the kernel knows no nodes.
        """
        candidates = tuple(node.id for node in self.nodes if node.has_host_memory)
        if not self.numa_consistent or node_id is None:
            return candidates
        if node_id in candidates:
            return (node_id,)
        distances = {other: self.distance(node_id, other) for other in candidates}
        known = [distance for distance in distances.values() if distance is not None]
        if not known:
            return candidates
        return tuple(other for other in candidates if distances[other] == min(known))


def read_topology(host: Host) -> Topology:
    """Read the topology of a host. Only reads; never raises for what the files hold."""
    notes = Notes()
    lists = read_cpu_lists(host, notes)
    kinds = read_core_kinds(host, lists.online, notes)
    cpus = read_cpus(host, lists.online, kinds.by_cpu(), notes)
    nodes = read_nodes(host, lists.online, notes)
    consistent = _disjoint(nodes, notes)
    return Topology(
        lists=lists,
        cpus=cpus,
        cores=distinct(cpu.core for cpu in cpus.values()),
        packages=distinct(cpu.package for cpu in cpus.values()),
        dies=distinct(cpu.die for cpu in cpus.values()),
        clusters=distinct(cpu.cluster for cpu in cpus.values()),
        books=distinct(cpu.book for cpu in cpus.values()),
        drawers=distinct(cpu.drawer for cpu in cpus.values()),
        caches=read_caches(host, lists.online, notes),
        core_kinds=kinds,
        nodes=nodes,
        numa_consistent=consistent,
        localities=_localities(lists.online, nodes if consistent else (), notes),
        memory=read_memory(host, notes),
        allowed=read_allowed(host, notes),
        notes=notes.lines(),
    )


def _disjoint(nodes: tuple[NUMANode, ...], notes: Notes) -> bool:
    """Return whether no two nodes claim the same CPU, as some firmware lets all nodes claim all CPUs."""
    taken = CPUSet()
    for node in nodes:
        if not node.cpus.isdisjoint(taken):
            notes.add(
                f"NUMA nodes claim the same CPUs ({node.cpus & taken}, again by node {node.id}):"
                " NUMA information not used, all CPUs taken as one locality"
            )
            return False
        taken |= node.cpus
    return True


def _localities(online: CPUSet, nodes: tuple[NUMANode, ...], notes: Notes) -> tuple[Locality, ...]:
    found = [Locality(node.id, node.cpus) for node in nodes if node.cpus]
    rest = online
    for locality in found:
        rest -= locality.cpus
    if rest and found:
        notes.add(f"CPUs {rest} belong to no NUMA node: taken as a locality of their own")
    if rest:
        found.append(Locality(None, rest))
    return tuple(found)
