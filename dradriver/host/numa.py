"""NUMA nodes.

Files: kernel, Documentation/ABI/stable/sysfs-devices-node and Documentation/admin-guide/mm/numaperf.rst
(memory-side caches). The kernel has a directory for each node that is online.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dradriver.host.cpuset import CPUSet
from dradriver.host.fields import cpus_field, ids_field, int_field, size_field
from dradriver.host.memory import HugePages, read_huge_pages, read_meminfo
from dradriver.host.notes import Notes
from dradriver.host.root import Host, parse_int
from dradriver.model.text import shown

NODE_DIR = "sys/devices/system/node"

_GPU_DIR = "proc/driver/nvidia/gpus"
_NODE_NAME = re.compile(r"node([0-9]{1,5})")
_NUMA_STATUS_NODE = re.compile(r"^Node:\s*([0-9]{1,5})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemorySideCache:
    """A cache between the memory of a node and its users, as DRAM before persistent memory."""

    level: int
    size_bytes: int | None
    line_bytes: int | None
    indexing: int | None


@dataclass(frozen=True, slots=True)
class NUMANode:
    """One NUMA node as the kernel describes it.

    cpus: online CPUs of the node; listed_cpus: all that its file names, offline and absent ones too.
    memory_bytes: MemTotal of the node; None where unknown.
    has_memory: None where nothing tells.
    distances: node id to distance, 10 for the node itself (ACPI SLIT); empty where unknown.
    generic_initiator: an accelerator that reaches memory (ACPI SRAT), no CPUs.
    gpu: PCI address of the GPU whose memory this node holds, as `dddd:bb:dd.f`; such memory is managed by the
    GPU's driver and is not the host's to give.
    """

    id: int
    cpus: CPUSet
    listed_cpus: CPUSet
    memory_bytes: int | None
    has_memory: bool | None
    distances: Mapping[int, int]
    huge_pages: tuple[HugePages, ...]
    memory_side_caches: tuple[MemorySideCache, ...]
    generic_initiator: bool
    gpu: str | None

    @property
    def has_host_memory(self) -> bool:
        """Whether programs of the host can be bound to memory here; true where nothing tells otherwise."""
        return self.has_memory is not False and self.gpu is None and not self.generic_initiator


def read_nodes(host: Host, online: CPUSet, notes: Notes) -> tuple[NUMANode, ...]:
    """Read all NUMA nodes, by id. Empty where the kernel has none."""
    matches = (_NODE_NAME.fullmatch(name) for name in host.list_dir(NODE_DIR))
    table = _Table(
        ids=tuple(sorted(int(match[1]) for match in matches if match)),
        online=online,
        initiators=ids_field(host, f"{NODE_DIR}/has_generic_initiator", notes) or (),
        with_memory=ids_field(host, f"{NODE_DIR}/has_memory", notes),
        gpus=read_gpu_nodes(host),
    )
    nodes = tuple(_read_node(host, node, table, notes) for node in table.ids)
    for node in nodes:
        if node.cpus and node.id in table.gpus:
            notes.add(
                f"NUMA node {node.id}: has CPUs, though a GPU calls it its memory: taken as host memory"
            )
    return nodes


def read_gpu_nodes(host: Host) -> dict[int, str]:
    """Return the NUMA nodes that hold the memory of GPUs, and the PCI addresses of those.

    POWER9 and Grace expose GPU memory so; the NVIDIA driver tells in
    `/proc/driver/nvidia/gpus/*/numa_status`.
    """
    nodes = {}
    for gpu in host.list_dir(_GPU_DIR):
        match = _NUMA_STATUS_NODE.search(host.read_text(f"{_GPU_DIR}/{gpu}/numa_status") or "")
        if match:
            nodes[int(match[1])] = gpu.lower()
    return nodes


@dataclass(frozen=True, slots=True)
class _Table:
    """What concerns all nodes."""

    ids: tuple[int, ...]
    online: CPUSet
    initiators: tuple[int, ...]
    with_memory: tuple[int, ...] | None
    gpus: Mapping[int, str]


def _read_node(host: Host, node: int, table: _Table, notes: Notes) -> NUMANode:
    path = f"{NODE_DIR}/node{node}"
    listed = cpus_field(host, f"{path}/cpulist", notes, mask_path=f"{path}/cpumap")
    if listed is None:
        notes.add(f"{path}: no CPU list: taken as a node without CPUs")
        listed = CPUSet()
    if not listed <= table.online:
        notes.add(f"{path}: names CPUs {listed - table.online}, which are not online: left out")
    cpus = listed & table.online
    total = read_meminfo(host, f"{path}/meminfo").get("MemTotal")
    has_memory = None
    if total is not None:
        has_memory = total > 0
    elif table.with_memory is not None:
        has_memory = node in table.with_memory
    return NUMANode(
        id=node,
        cpus=cpus,
        listed_cpus=listed,
        memory_bytes=None if total is None else total * 1024,
        has_memory=has_memory,
        distances=_distances(host, path, table.ids, notes),
        huge_pages=read_huge_pages(host, f"{path}/hugepages", notes),
        memory_side_caches=_side_caches(host, path, notes),
        generic_initiator=node in table.initiators,
        gpu=None if cpus else table.gpus.get(node),
    )


def _distances(host: Host, path: str, ids: tuple[int, ...], notes: Notes) -> dict[int, int]:
    """Read the row of a node: one value for each online node, in the order of their ids."""
    text = host.read_text(f"{path}/distance")
    if not text:
        return {}
    row = [parse_int(word) for word in text.split()]
    if len(row) != len(ids) or any(value is None or value < 0 for value in row):
        notes.add(f"{path}/distance: {shown(text)} is not one number for each of {len(ids)} nodes: unknown")
        return {}
    return {node: value for node, value in zip(ids, row, strict=True) if value is not None}


def _side_caches(host: Host, path: str, notes: Notes) -> tuple[MemorySideCache, ...]:
    caches = []
    for name in host.list_dir(f"{path}/memory_side_cache"):
        level = parse_int(name.removeprefix("index")) if name.startswith("index") else None
        if level is None:
            continue
        directory = f"{path}/memory_side_cache/{name}"
        caches.append(
            MemorySideCache(
                level=level,
                size_bytes=size_field(host, f"{directory}/size", notes),
                line_bytes=int_field(host, f"{directory}/line_size", notes),
                indexing=int_field(host, f"{directory}/indexing", notes),
            )
        )
    return tuple(sorted(caches, key=lambda cache: cache.level))
