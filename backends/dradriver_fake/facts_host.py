"""The facts of a node that are not on its PCI buses: CPUs, caches, and NUMA nodes with their memory."""

import re
from typing import Annotated

import msgspec

from dradriver.backend import Strict
from dradriver.host import CPUSet
from dradriver.model import shown

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}\Z")]
"""What becomes a file name: an interface, an RDMA device, a driver."""
Text = Annotated[str, msgspec.Meta(pattern=r"^[ -~]{1,200}\Z")]

_PAIRED = re.compile(r"cpu N pairs with N\+([0-9]{1,5})")


class L3(Strict, frozen=True, kw_only=True):
    """The L3 caches: how many, and the cores of each; `sets` lists their CPUs where they are not consecutive."""

    count: Count
    size_kib: Count = msgspec.field(name="sizeKiB")
    cores_per_l3: Count
    sets: tuple[str, ...] = ()


class CPUs(Strict, frozen=True, kw_only=True):
    """The CPUs. All sockets are alike, and numbered one after the other.

    smt_sibling   "none", or "cpu N pairs with N+56": the second threads follow all first ones
    isolated      CPUs that the kernel's scheduler leaves alone
    """

    vendor: Text
    model: Text
    arch: Name
    sockets: Positive
    cores_per_socket: Positive
    threads_per_core: Positive
    online: str
    smt_sibling: str
    l3: L3
    family: int | None = None
    model_number: int | None = None
    isolated: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit together."""
        total = self.cores * self.threads_per_core
        if CPUSet.parse(self.online) != CPUSet(range(total)):
            raise ValueError(
                f"online: {shown(self.online)}: {self.sockets} sockets of {self.cores_per_socket} cores of "
                f"{self.threads_per_core} threads are CPUs 0-{total - 1}"
            )
        paired = _PAIRED.fullmatch(self.smt_sibling)
        offset = int(paired[1]) if paired else 0
        if offset != (self.cores if self.threads_per_core > 1 else 0) or (
            not paired and self.smt_sibling != "none"
        ):
            wanted = f"cpu N pairs with N+{self.cores}" if self.threads_per_core > 1 else "none"
            raise ValueError(f"smtSibling: {shown(self.smt_sibling)}: {shown(wanted)} is expected")
        if not CPUSet.parse(self.isolated) <= CPUSet(range(total)):
            raise ValueError(f"isolated: {shown(self.isolated)}: not all of these are online")
        for cpus in self.l3.sets:
            CPUSet.parse(cpus)

    @property
    def cores(self) -> int:
        """The number of cores of all sockets."""
        return self.sockets * self.cores_per_socket

    def threads(self, core: int) -> tuple[int, ...]:
        """Return the CPUs of a core, counted over all sockets."""
        return tuple(core + thread * self.cores for thread in range(self.threads_per_core))

    def l3_sets(self) -> tuple[CPUSet, ...]:
        """Return the CPUs of each L3 cache."""
        if self.l3.sets:
            return tuple(CPUSet.parse(cpus) for cpus in self.l3.sets)
        size = self.l3.cores_per_l3
        if not self.l3.count or not size:
            return ()
        firsts = range(0, self.cores, size)
        return tuple(
            CPUSet(cpu for core in range(first, min(first + size, self.cores)) for cpu in self.threads(core))
            for first in firsts
        )


class HugePagePool(Strict, frozen=True, kw_only=True):
    """Huge pages of one size in a NUMA node."""

    size_kib: Annotated[int, msgspec.Meta(ge=64, le=1 << 25)] = msgspec.field(name="sizeKiB")
    nr: Count


class GPUMemory(Strict, frozen=True, kw_only=True):
    """Memory of a GPU that is a NUMA node: of the GPU with that index."""

    gpu: Count
    slot: Count = 0


class NUMANodeFacts(Strict, frozen=True, kw_only=True):
    """A NUMA node; `distances` has one value for each node of the list."""

    id: Count
    cpus: str
    memory_bytes: Bytes
    distances: tuple[Annotated[int, msgspec.Meta(ge=0, le=255)], ...]
    hugepages: tuple[HugePagePool, ...] = ()
    gpu_memory: GPUMemory | None = None

    def __post_init__(self) -> None:
        CPUSet.parse(self.cpus)


class NUMA(Strict, frozen=True, kw_only=True):
    """The NUMA nodes."""

    nodes: Annotated[tuple[NUMANodeFacts, ...], msgspec.Meta(min_length=1, max_length=1024)]

    def __post_init__(self) -> None:
        ids = [node.id for node in self.nodes]
        if ids != sorted(set(ids)):
            raise ValueError("nodes: ids are expected to rise from node to node")
        for node in self.nodes:
            if len(node.distances) != len(self.nodes):
                raise ValueError(
                    f"nodes: node {node.id} has {len(node.distances)} distances to {len(self.nodes)} nodes"
                )
