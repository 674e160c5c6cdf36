"""Recorded machines: each is read as two other probers read it."""

from collections import defaultdict
from typing import Any

import pytest

import recorded
from dradriver.host import CPUSet, Host, Topology, read_topology

pytestmark = pytest.mark.skipif(
    not recorded.dump_names(), reason=f"{recorded.SHARED}: no recorded machines there"
)

FOUND: dict[str, Topology] = {}

# Compared in test_host_pci.py.
DEVICES = {"pci", "net", "infiniband"}


def found(name: str) -> Topology:
    if name not in FOUND:
        FOUND[name] = read_topology(Host(recorded.unpacked(name)))
    return FOUND[name]


def with_key(*keys: str) -> list[str]:
    return [
        name for name in recorded.dump_names() if any(key in recorded.expectations()[name] for key in keys)
    ]


def shown(sets: tuple[CPUSet, ...]) -> list[str]:
    return [str(cpus) for cpus in sets]


def text(cpus: CPUSet | None) -> str | None:
    return None if cpus is None else str(cpus)


@pytest.mark.parametrize("name", recorded.dump_names())
def test_cpu_lists(name: str) -> None:
    lists, expect = found(name).lists, recorded.expectations()[name]["cpus"]
    assert len(lists.online) == expect["onlineCount"]
    for key in ("online", "offline", "present", "possible", "isolated", "nohz_full"):
        assert text(getattr(lists, key)) == expect.get(key), key


@pytest.mark.parametrize("name", recorded.dump_names())
def test_cores_and_sockets(name: str) -> None:
    topology, expect = found(name), recorded.expectations()[name]
    assert shown(topology.cores) == expect["coreSets"]
    assert len(topology.cores) == expect["cores"]
    assert sorted({len(core) for core in topology.cores}) == expect["threadsPerCore"]
    assert {str(number): str(cpu.core) for number, cpu in topology.cpus.items()} == expect["siblings"]
    if "packageSets" in expect:
        assert shown(topology.packages) == expect["packageSets"]
        assert len(topology.packages) == expect["sockets"]


@pytest.mark.parametrize("name", with_key("packageIds"))
def test_package_ids(name: str) -> None:
    by_id = defaultdict(list)
    for number, cpu in found(name).cpus.items():
        by_id["-1" if cpu.package_id is None else str(cpu.package_id)].append(number)
    expect = recorded.expectations()[name]["packageIds"]
    assert {package: str(CPUSet(cpus)) for package, cpus in by_id.items()} == expect


@pytest.mark.parametrize("name", recorded.dump_names())
def test_dies_clusters_books_drawers(name: str) -> None:
    topology, expect = found(name), recorded.expectations()[name]
    assert shown(topology.dies) == expect.get("dieSets", [])
    assert shown(topology.clusters) == expect.get("clusterSets", [])
    assert shown(topology.books) == expect.get("bookSets", [])
    assert shown(topology.drawers) == expect.get("drawerSets", [])


@pytest.mark.parametrize("name", recorded.dump_names())
def test_caches(name: str) -> None:
    by_kind = defaultdict(list)
    for cache in found(name).caches:
        by_kind[cache.level, cache.type].append(cache)
    expect = recorded.expectations()[name]["caches"]
    assert set(by_kind) == {(kind["level"], kind["type"]) for kind in expect}
    for kind in expect:
        caches = by_kind[kind["level"], kind["type"]]
        assert [str(cache.cpus) for cache in caches] == kind["sets"]
        assert len(caches) == kind["count"]
        sizes = kind.get("sizesBytes", [kind["sizeBytes"]] * kind["count"])
        assert [cache.size_bytes for cache in caches] == sizes


def _node_facts(topology: Topology) -> list[dict[str, Any]]:
    """The facts of each node, in the words of the expectations, which are silent where a file is missing."""
    nodes = []
    for node in topology.nodes:
        facts = {
            "id": node.id,
            "cpulist": str(node.cpus),
            "cpulistRaw": str(node.listed_cpus),
            "memTotalBytes": node.memory_bytes,
            "distances": [node.distances[other.id] for other in topology.nodes if other.id in node.distances],
            "hugepages": [
                {"sizeBytes": pool.size_bytes, "nr": pool.total, "free": pool.free, "surplus": pool.surplus}
                for pool in node.huge_pages
            ],
        }
        if node.listed_cpus == node.cpus:
            del facts["cpulistRaw"]
        nodes.append({key: value for key, value in facts.items() if value not in (None, [])})
    return nodes


@pytest.mark.parametrize("name", with_key("numa"))
def test_numa_nodes(name: str) -> None:
    topology, expect = found(name), recorded.expectations()[name]["numa"]
    assert [node.id for node in topology.nodes] == expect["nodeIds"]
    assert [node.id for node in topology.nodes if not node.cpus] == expect["cpulessNodes"]
    assert [node.id for node in topology.nodes if node.has_memory is False] == expect["memorylessNodes"]
    initiators = CPUSet(node.id for node in topology.nodes if node.generic_initiator)
    assert str(initiators) == expect.get("has_generic_initiator", "")
    if "has_memory" in expect:
        assert str(CPUSet(node.id for node in topology.nodes if node.has_memory)) == expect["has_memory"]
    for facts, wanted in zip(_node_facts(topology), expect["nodes"], strict=True):
        assert facts == {key: value for key, value in wanted.items() if value != []}


@pytest.mark.parametrize("name", with_key("memory"))
def test_memory(name: str) -> None:
    memory, expect = found(name).memory, recorded.expectations()[name]["memory"]
    assert memory.total_bytes == expect["memTotalBytes"]
    assert memory.default_huge_page_bytes == expect["defaultHugepageBytes"]
    assert memory.default_huge_pages_total == expect["defaultHugepagesTotal"]


@pytest.mark.parametrize("name", recorded.dump_names())
def test_huge_pages(name: str) -> None:
    pools = [
        {
            "sizeBytes": pool.size_bytes,
            "nr": pool.total,
            "free": pool.free,
            "reserved": pool.reserved,
            "surplus": pool.surplus,
            "overcommit": pool.overcommit,
        }
        for pool in found(name).memory.huge_pages
    ]
    assert pools == recorded.expectations()[name].get("hugepages", [])


@pytest.mark.parametrize("name", recorded.dump_names())
def test_memory_side_caches(name: str) -> None:
    caches = [
        {
            "node": node.id,
            "level": cache.level,
            "sizeBytes": cache.size_bytes,
            "lineSize": cache.line_bytes,
            "indexing": cache.indexing,
        }
        for node in found(name).nodes
        for cache in node.memory_side_caches
    ]
    assert caches == recorded.expectations()[name].get("memorySideCaches", [])


@pytest.mark.parametrize("name", recorded.dump_names())
def test_core_kinds(name: str) -> None:
    kinds = found(name).core_kinds
    sources = {
        "cpuTypes": kinds.cpu_types,
        "pmuDevice": kinds.pmu_device,
        "cpuCapacity": kinds.cpu_capacity,
        "cpuinfoMaxFreqKHz": kinds.max_freq_khz,
        "baseFreqKHz": kinds.base_freq_khz,
        "midrEl1": kinds.midr,
    }
    telling = {
        source: {value: str(cpus) for value, cpus in values.items()}
        for source, values in sources.items()
        if values
    }
    assert telling == recorded.expectations()[name].get("coreKinds", {})


@pytest.mark.parametrize("name", with_key("gpuNumaNodes"))
def test_memory_of_gpus_is_not_the_hosts(name: str) -> None:
    topology, expect = found(name), recorded.expectations()[name]["gpuNumaNodes"]
    assert {node.gpu: node.id for node in topology.nodes if node.gpu} == expect
    own = {node.id for node in topology.nodes if node.has_host_memory}
    assert own.isdisjoint(expect.values())
    assert own == {0, 8}


@pytest.mark.parametrize("name", with_key("allowed"))
def test_allowed(name: str) -> None:
    topology, expect = found(name), recorded.expectations()[name]["allowed"]
    allowed = topology.allowed
    if "statusCpusAllowedList" in expect:
        assert text(allowed.cpus) == expect["statusCpusAllowedList"]
        assert allowed.mems is not None
        assert str(CPUSet(allowed.mems)) == expect["statusMemsAllowedList"]
    if "cgroup" in expect:
        assert allowed.cgroup is not None
        assert allowed.cgroup.cpus is not None
        assert allowed.cgroup.mems is not None
        assert {
            "kind": allowed.cgroup.kind,
            "path": allowed.cgroup.path,
            "cpus": str(allowed.cgroup.cpus),
            "mems": str(CPUSet(allowed.cgroup.mems)),
            "cpusOnline": str(allowed.cgroup.cpus & topology.online),
        } == expect["cgroup"]


@pytest.mark.parametrize("name", recorded.dump_names())
def test_every_online_cpu_is_in_exactly_one_locality(name: str) -> None:
    topology = found(name)
    seen = CPUSet()
    for locality in topology.localities:
        assert locality.cpus
        assert locality.cpus.isdisjoint(seen)
        seen |= locality.cpus
    assert seen == topology.online
    assert len({locality.node_id for locality in topology.localities}) == len(topology.localities)
    assert len(topology.cpus) == len(topology.online)


@pytest.mark.parametrize("name", recorded.dump_names())
def test_a_socket_a_core_a_cache_never_cuts_through_a_core(name: str) -> None:
    topology = found(name)
    sets = [*topology.packages, *(locality.cpus for locality in topology.localities)]
    for core in topology.cores:
        assert all(core <= cpus or core.isdisjoint(cpus) for cpus in sets)


@pytest.mark.parametrize("name", recorded.dump_names())
def test_every_node_has_memory_near(name: str) -> None:
    topology = found(name)
    with_memory = {node.id for node in topology.nodes if node.has_host_memory}
    for node in topology.nodes:
        nearest = topology.nearest_memory_nodes(node.id)
        assert nearest
        assert with_memory.issuperset(nearest)


def test_each_expectation_is_compared() -> None:
    compared = {
        *("cpus", "cores", "coreSets", "threadsPerCore", "siblings", "sockets", "packageSets", "packageIds"),
        *("dieSets", "clusterSets", "bookSets", "drawerSets", "caches", "numa", "memory", "hugepages"),
        *("memorySideCaches", "coreKinds", "allowed", "gpuNumaNodes"),
    }
    keys = {key for expect in recorded.expectations().values() for key in expect}
    assert keys == compared | DEVICES


@pytest.mark.parametrize(
    ("name", "performance", "efficiency"),
    [
        ("hwloc-nvidia-dgx-gb10", "5-9,15-19", "0-4,10-14"),
        ("lscpu-arm-A510-A710-A715-X3", "3-7", "0-2"),
        ("nri-sample1", "0-7", "8-15"),
    ],
)
def test_cores_of_two_kinds_are_told_apart(name: str, performance: str, efficiency: str) -> None:
    kinds = {cpu.number: cpu.core_kind for cpu in found(name).cpus.values()}
    assert str(CPUSet(cpu for cpu, kind in kinds.items() if kind == "performance")) == performance
    assert str(CPUSet(cpu for cpu, kind in kinds.items() if kind == "efficiency")) == efficiency


def test_nodes_that_all_claim_all_cpus_are_not_believed() -> None:
    topology = found("hwloc-8em64t-2s2ca2c-buggynuma")
    assert not topology.numa_consistent
    assert [(locality.node_id, str(locality.cpus)) for locality in topology.localities] == [(None, "0-7")]
    assert topology.distance(0, 1) is None
    assert any("claim the same CPUs" in note for note in topology.notes)


def test_memory_only_nodes_serve_the_nodes_without_memory() -> None:
    topology = found("hwloc-fakememinitiators-1np2c-1npp-gi")
    assert topology.distance(0, 5) == 11
    assert topology.nearest_memory_nodes(0) == (5,)
    assert topology.nearest_memory_nodes(5) == (5,)
