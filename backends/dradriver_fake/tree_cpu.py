"""CPUs, caches, NUMA nodes and memory of a node as files.

Files: kernel, Documentation/ABI/stable/sysfs-devices-system-cpu, sysfs-devices-node, and
Documentation/admin-guide/mm/hugetlbpage.rst.
"""

from collections.abc import Iterable, Mapping

from dradriver.host import CPUSet
from dradriver_fake.facts import NodeFacts
from dradriver_fake.facts_host import NUMANodeFacts
from dradriver_fake.writer import Tree

CPU_DIR = "sys/devices/system/cpu"
NODE_DIR = "sys/devices/system/node"

_L2_KIB = 1024
"""Facts name no L2 caches: each core has one of its own, of a size that is common."""


def add_cpus(tree: Tree, facts: NodeFacts) -> None:
    """Write the CPUs with their sockets, cores and caches."""
    cpus = facts.cpu
    online = CPUSet(cpu for core in range(cpus.cores) for cpu in cpus.threads(core))
    for name in ("online", "present", "possible"):
        tree.file(f"{CPU_DIR}/{name}", online)
    tree.file(f"{CPU_DIR}/offline", "")
    tree.file(f"{CPU_DIR}/isolated", CPUSet.parse(cpus.isolated))
    smt = cpus.threads_per_core > 1
    tree.file(f"{CPU_DIR}/smt/control", "on" if smt else "notsupported")
    tree.file(f"{CPU_DIR}/smt/active", int(smt))
    for socket in range(cpus.sockets):
        first = socket * cpus.cores_per_socket
        cores = range(first, first + cpus.cores_per_socket)
        package = CPUSet(cpu for core in cores for cpu in cpus.threads(core))
        for core in cores:
            _core(tree, cpus.threads(core), socket, core - first, package)
    for number, sharing in enumerate(cpus.l3_sets()):
        _cache(tree, sharing, index=3, level=3, number=number, size_kib=cpus.l3.size_kib)
    lines = (
        f"processor\t: {cpu}\nvendor_id\t: {cpus.vendor}\nmodel name\t: {cpus.model}\n" for cpu in online
    )
    tree.file("proc/cpuinfo", "\n".join(lines))


def _core(tree: Tree, threads: tuple[int, ...], socket: int, number: int, package: CPUSet) -> None:
    core = CPUSet(threads)
    for cpu in threads:
        topology = f"{CPU_DIR}/cpu{cpu}/topology"
        tree.file(f"{topology}/physical_package_id", socket)
        tree.file(f"{topology}/core_id", number)
        for name in ("core_cpus_list", "thread_siblings_list"):
            tree.file(f"{topology}/{name}", core)
        for name in ("package_cpus_list", "core_siblings_list"):
            tree.file(f"{topology}/{name}", package)
    _cache(tree, core, index=2, level=2, number=threads[0], size_kib=_L2_KIB)


def _cache(tree: Tree, sharing: CPUSet, *, index: int, level: int, number: int, size_kib: int) -> None:
    """Write a unified cache once, and links to it for the other CPUs that share it."""
    home = f"{CPU_DIR}/cpu{sharing.first}/cache/index{index}"
    fields: Mapping[str, object] = {
        "level": level,
        "type": "Unified",
        "id": number,
        "size": f"{size_kib}K",
        "shared_cpu_list": sharing,
    }
    for name, value in fields.items():
        tree.file(f"{home}/{name}", value)
    for cpu in sharing:
        if cpu != sharing.first:
            tree.link(f"{CPU_DIR}/cpu{cpu}/cache/index{index}", home)


def add_numa(tree: Tree, facts: NodeFacts) -> None:
    """Write the NUMA nodes, memory and huge pages."""
    nodes = facts.numa.nodes
    for name, members in (
        ("online", nodes),
        ("possible", nodes),
        ("has_cpu", [node for node in nodes if node.cpus]),
        ("has_memory", [node for node in nodes if node.memory_bytes]),
        ("has_normal_memory", [node for node in nodes if node.memory_bytes]),
    ):
        tree.file(f"{NODE_DIR}/{name}", CPUSet(node.id for node in members))
    for node in nodes:
        directory = f"{NODE_DIR}/node{node.id}"
        cpus = CPUSet.parse(node.cpus)
        kib = node.memory_bytes >> 10
        tree.file(f"{directory}/cpulist", cpus)
        tree.file(f"{directory}/distance", " ".join(map(str, node.distances)))
        tree.file(f"{directory}/meminfo", f"Node {node.id} MemTotal:       {kib} kB")
        for pool in node.hugepages:
            _pool(tree, f"{directory}/hugepages", pool.size_kib, pool.nr)
        for cpu in cpus:
            tree.link(f"{CPU_DIR}/cpu{cpu}/node{node.id}", directory)
    total = sum(node.memory_bytes for node in nodes) >> 10
    tree.file("proc/meminfo", f"MemTotal:       {total} kB\nHugepagesize:       2048 kB")
    for size, count in _totals(nodes).items():
        _pool(tree, "sys/kernel/mm/hugepages", size, count, whole=True)
    _gpu_memory(tree, facts)


def _totals(nodes: Iterable[NUMANodeFacts]) -> dict[int, int]:
    totals: dict[int, int] = {}
    for node in nodes:
        for pool in node.hugepages:
            totals[pool.size_kib] = totals.get(pool.size_kib, 0) + pool.nr
    return totals


def _pool(tree: Tree, directory: str, size_kib: int, count: int, *, whole: bool = False) -> None:
    path = f"{directory}/hugepages-{size_kib}kB"
    tree.file(f"{path}/nr_hugepages", count)
    tree.file(f"{path}/free_hugepages", count)
    tree.file(f"{path}/surplus_hugepages", 0)
    if whole:
        tree.file(f"{path}/resv_hugepages", 0)
        tree.file(f"{path}/nr_overcommit_hugepages", 0)


def _gpu_memory(tree: Tree, facts: NodeFacts) -> None:
    """Say which node is a GPU's memory, as the NVIDIA driver does; the one in use stands in the file."""
    for gpu in facts.gpus:
        nodes = [
            node.id
            for node in facts.numa.nodes
            if node.gpu_memory and node.gpu_memory.gpu == gpu.gpu.index and node.memory_bytes
        ]
        if nodes:
            status = f"Node:\t\t{nodes[0]}\nStatus:\tonline"
            tree.file(f"proc/driver/nvidia/gpus/{gpu.bdf}/numa_status", status)
