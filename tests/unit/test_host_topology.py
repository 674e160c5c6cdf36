"""Machines of a certain kind, built from facts: what is odd is read, taken in a sound way, and noted."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.host import CPUSet, Host, Locality, Topology, read_topology
from dradriver.host.cpu import _partition
from dradriver.host.notes import Notes
from hosttree import CPU_DIR, NODE_DIR, HostTree, two_sockets


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def read(tree: HostTree) -> Topology:
    return read_topology(Host(tree.root))


def shown(sets: tuple[CPUSet, ...]) -> list[str]:
    return [str(cpus) for cpus in sets]


def localities(topology: Topology) -> list[tuple[int | None, str]]:
    return [(locality.node_id, str(locality.cpus)) for locality in topology.localities]


def test_an_ordinary_host(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    for name in ("0,4", "1,5", "2,6", "3,7"):
        tree.cache(name, index=0, level=1, type="Data", size="48K", id=0)
    for number, cpus in enumerate(("0,1,4,5", "2,3,6,7")):
        tree.cache(cpus, index=3, level=3, type="Unified", size="32M", id=number)
    topology = read(tree)
    assert str(topology.online) == "0-7"
    assert shown(topology.cores) == ["0,4", "1,5", "2,6", "3,7"]
    assert shown(topology.packages) == ["0-1,4-5", "2-3,6-7"]
    assert topology.dies == topology.clusters == ()
    assert localities(topology) == [(0, "0-1,4-5"), (1, "2-3,6-7")]
    assert [(cache.level, cache.id, cache.size_bytes, str(cache.cpus)) for cache in topology.caches] == [
        *((1, 0, 48 << 10, cpus) for cpus in ("0,4", "1,5", "2,6", "3,7")),
        (3, 0, 32 << 20, "0-1,4-5"),
        (3, 1, 32 << 20, "2-3,6-7"),
    ]
    assert [node.memory_bytes for node in topology.nodes] == [4 << 30, 4 << 30]
    assert topology.memory.total_bytes == 8 << 30
    assert topology.distance(0, 1) == 21
    assert topology.distance(0, 7) is None
    assert topology.node_of(6) == 1
    assert topology.node_of(99) is None
    assert topology.cpus[5].core_kind is None
    assert topology.notes == ()


def test_core_ids_repeat_from_socket_to_socket(tmp_path: Path) -> None:
    topology = read(two_sockets(tmp_path))
    assert {cpu.core_id for cpu in topology.cpus.values()} == {0, 1}
    assert len(topology.cores) == 4


def test_a_host_of_which_nothing_is_known_is_one_locality(tree: HostTree) -> None:
    topology = read(tree.online("0-3"))
    assert shown(topology.cores) == ["0", "1", "2", "3"]
    assert topology.packages == ()
    assert topology.caches == ()
    assert localities(topology) == [(None, "0-3")]
    assert topology.nearest_memory_nodes(None) == ()
    assert topology.memory.total_bytes is None
    assert topology.lists.isolated is None
    assert topology.allowed.cgroup is None


def test_an_empty_tree_is_a_host_without_cpus(tree: HostTree) -> None:
    topology = read(tree)
    assert not topology.online
    assert topology.localities == ()
    assert any("no CPU is online" in note for note in topology.notes)


def test_unknown_ids_are_none_and_sockets_come_from_the_sets(tree: HostTree) -> None:
    tree.online("0-3")
    for cpu, package in enumerate(("0-1", "0-1", "2-3", "2-3")):
        tree.cpu(cpu, physical_package_id=-1, core_siblings_list=package, cluster_id=65535, die_id=-1)
    topology = read(tree)
    assert shown(topology.packages) == ["0-1", "2-3"]
    first = topology.cpus[0]
    assert (first.package_id, first.cluster_id, first.die_id) == (None, None, None)
    assert sum("taken as unknown (CPUs 0-3)" in note for note in topology.notes) == 3


def test_sparse_package_ids_are_kept(tree: HostTree) -> None:
    tree.online("0-1").cpu(0, physical_package_id=36, package_cpus_list="0")
    tree.cpu(1, physical_package_id=8442, package_cpus_list="1")
    assert [cpu.package_id for cpu in read(tree).cpus.values()] == [36, 8442]


def test_masks_serve_where_there_are_no_lists(tree: HostTree) -> None:
    tree.online("0-3,64")
    for cpu, mask in ((0, "3"), (1, "3"), (2, "c"), (3, "c"), (64, "1,00000000,00000000")):
        tree.cpu(cpu, thread_siblings=mask)
    tree.write(f"{NODE_DIR}/node0/cpumap", "00000000,0000000f")
    tree.write(f"{CPU_DIR}/cpu64/cache/index0/level", "1")
    tree.write(f"{CPU_DIR}/cpu64/cache/index0/type", "Data")
    tree.write(f"{CPU_DIR}/cpu64/cache/index0/shared_cpu_map", "1,00000000,00000000")
    topology = read(tree)
    assert shown(topology.cores) == ["0-1", "2-3", "64"]
    assert localities(topology) == [(0, "0-3"), (None, "64")]
    assert [(cache.id, cache.size_bytes, str(cache.cpus)) for cache in topology.caches] == [
        (None, None, "64")
    ]
    assert any("CPUs 64 belong to no NUMA node" in note for note in topology.notes)


@pytest.mark.parametrize("threads", [4, 8])
def test_many_threads_a_core(tree: HostTree, threads: int) -> None:
    tree.online(f"0-{4 * threads - 1}")
    tree.cores([range(core * threads, (core + 1) * threads) for core in range(4)])
    assert {len(core) for core in read(tree).cores} == {threads}


def test_more_than_1024_cpus(tree: HostTree) -> None:
    tree.online("0-1535").node(0, "0-1023").node(1, "1024-1535")
    topology = read(tree)
    assert len(topology.cpus) == 1536
    assert localities(topology) == [(0, "0-1023"), (1, "1024-1535")]


def test_a_kernel_without_the_online_list(tree: HostTree) -> None:
    for cpu in (0, 1, 2):
        tree.cpu(cpu, core_id=cpu)
    tree.write(f"{CPU_DIR}/cpu1/online", "1").write(f"{CPU_DIR}/cpu2/online", "0")
    tree.write(f"{CPU_DIR}/cpufreq/boost", "1").write(f"{CPU_DIR}/cpuidle/current_driver", "none")
    assert str(read(tree).online) == "0-1"


def test_offline_cpus_are_in_no_set(tree: HostTree) -> None:
    tree.online("0,2").write(f"{CPU_DIR}/offline", "1,3").node(0, "0-3")
    for cpu in (0, 2):
        tree.cpu(cpu, thread_siblings_list="0-3", core_siblings_list="0-3")
        tree.write(f"{CPU_DIR}/cpu{cpu}/cache/index0/shared_cpu_list", "0-3")
        tree.write(f"{CPU_DIR}/cpu{cpu}/cache/index0/level", "2")
        tree.write(f"{CPU_DIR}/cpu{cpu}/cache/index0/type", "Unified")
    topology = read(tree)
    assert list(topology.cpus) == [0, 2]
    assert shown(topology.cores) == shown(topology.packages) == ["0,2"]
    assert [str(cache.cpus) for cache in topology.caches] == ["0,2"]
    assert localities(topology) == [(0, "0,2")]
    assert str(topology.nodes[0].listed_cpus) == "0-3"
    assert any("names CPUs 1,3, which are not online" in note for note in topology.notes)


def test_the_null_of_nohz_full_is_no_cpu(tree: HostTree) -> None:
    tree.online("0-3").write(f"{CPU_DIR}/nohz_full", "  (null)").write(f"{CPU_DIR}/isolated", "2-3")
    lists = read(tree).lists
    assert lists.nohz_full == CPUSet()
    assert str(lists.isolated) == "2-3"


@pytest.mark.parametrize("claimed", [("0-3", "0-3"), ("0-2", "2-3")])
def test_nodes_that_claim_the_same_cpus_are_not_believed(tree: HostTree, claimed: tuple[str, str]) -> None:
    tree.online("0-3").node(0, claimed[0], distance="10 20").node(1, claimed[1], distance="20 10")
    topology = read(tree)
    assert not topology.numa_consistent
    assert topology.localities == (Locality(None, CPUSet.parse("0-3")),)
    assert topology.distance(0, 1) is None
    assert topology.nearest_memory_nodes(None) == (0, 1)
    assert any("NUMA information not used" in note for note in topology.notes)


def test_a_node_over_two_sockets(tree: HostTree) -> None:
    tree.online("0-3").cores([[0], [1]], package=0).cores([[2], [3]], package=1).node(0, "0-3")
    topology = read(tree)
    assert len(topology.packages) == 2
    assert localities(topology) == [(0, "0-3")]


def test_distances_follow_the_position_among_nodes_and_not_the_id(tree: HostTree) -> None:
    tree.online("0-1").node(0, "0", distance="10 32 17").node(8, "1", distance="32 10 28")
    tree.node(250, "", distance="17 28 10")
    topology = read(tree)
    assert topology.distance(0, 8) == 32
    assert topology.distance(0, 250) == 17
    assert dict(topology.nodes[2].distances) == {0: 17, 8: 28, 250: 10}


@pytest.mark.parametrize("row", ["10", "10 20 30", "10 far", "10 -1"])
def test_a_distance_row_that_does_not_fit_is_unknown(tree: HostTree, row: str) -> None:
    topology = read(tree.online("0-1").node(0, "0", distance=row).node(1, "1", memory_kib=0))
    assert topology.distance(0, 1) is None
    assert topology.nearest_memory_nodes(1) == (0,)
    assert any("is not one number for each of 2 nodes" in note for note in topology.notes)


def test_a_node_without_memory_uses_the_nearest_that_has_some(tree: HostTree) -> None:
    tree.online("0-1").node(0, "0", memory_kib=0, distance="10 20 12 12 11").node(
        1, "1", distance="20 10 30 30 30"
    )
    tree.node(2, "", distance="12 30 10 15 15").node(3, "", distance="12 30 15 10 15")
    tree.node(4, "", distance="11 30 15 15 10").write(
        "proc/driver/nvidia/gpus/0009:01:00.0/numa_status", "Node: 4"
    )
    topology = read(tree)
    assert topology.nearest_memory_nodes(0) == (2, 3)
    assert topology.nearest_memory_nodes(1) == (1,)
    assert topology.nearest_memory_nodes(4) == (2, 3)
    assert topology.nodes[4].gpu == "0009:01:00.0"
    assert not topology.nodes[4].has_host_memory
    assert localities(topology) == [(0, "0"), (1, "1")]


def test_a_node_with_cpus_is_never_the_memory_of_a_gpu(tree: HostTree) -> None:
    tree.online("0").node(0, "0").write("proc/driver/nvidia/gpus/0000:01:00.0/numa_status", "Node: 0")
    topology = read(tree)
    assert topology.nodes[0].has_host_memory
    assert any("though a GPU calls it its memory" in note for note in topology.notes)


def test_a_generic_initiator_has_no_host_memory(tree: HostTree) -> None:
    tree.online("0").node(0, "0").node(1, "", memory_kib=0).write(f"{NODE_DIR}/has_generic_initiator", "1")
    topology = read(tree)
    assert topology.nodes[1].generic_initiator
    assert topology.nearest_memory_nodes(1) == (0,)


def test_huge_pages_of_host_and_nodes(tree: HostTree) -> None:
    tree.online("0").memory(1 << 20, {2048: (512, 500, 12), 1048576: (4, 4, 0)})
    tree.node(0, "0", huge_pages={1048576: (4, 3, 0), 2048: (512, 500, 12)})
    topology = read(tree)
    assert [(p.size_bytes, p.total, p.free, p.surplus) for p in topology.nodes[0].huge_pages] == [
        (2 << 20, 512, 500, 12),
        (1 << 30, 4, 3, 0),
    ]
    assert [p.total for p in topology.memory.huge_pages] == [512, 4]
    assert topology.memory.default_huge_page_bytes == 2 << 20


def test_files_that_cannot_be_parsed_are_unknown_and_noted_once(tree: HostTree) -> None:
    tree.online("0-1").write(f"{CPU_DIR}/isolated", "x" * 500).node(0, "0-99999999999")
    for cpu in (0, 1):
        tree.cpu(cpu, core_id="one", core_cpus_list="?", package_cpus_list="0-1")
        tree.write(f"{CPU_DIR}/cpu{cpu}/cache/index0/shared_cpu_list", "0-1")
        tree.write(f"{CPU_DIR}/cpu{cpu}/cache/index0/size", "big")
        tree.write(f"{CPU_DIR}/cpu{cpu}/cache/index0/level", "1")
        tree.write(f"{CPU_DIR}/cpu{cpu}/cache/index0/type", "Data")
    topology = read(tree)
    assert topology.lists.isolated is None
    assert topology.cpus[0].core_id is None
    assert shown(topology.cores) == ["0", "1"]
    assert topology.caches[0].size_bytes is None
    assert localities(topology) == [(None, "0-1")]
    assert len(topology.notes) == len(set(topology.notes)) <= 8
    assert sum("core_id" in note and "(CPUs 0-1)" in note for note in topology.notes) == 1
    assert all(len(note) < 300 and note.isprintable() for note in topology.notes)


def test_a_broken_list_leaves_the_mask(tree: HostTree) -> None:
    tree.online("0-1").cpu(0, core_cpus_list="?", core_cpus="3").cpu(1, core_cpus_list="0-1")
    assert shown(read(tree).cores) == ["0-1"]


def test_caches_of_unequal_cpus(tree: HostTree) -> None:
    tree.online("0-2").cache("0,1", index=0, level=1, type="Data", size="32K")
    tree.cache("0,1,2", index=2, level=2, type="Unified", size="1024K")
    tree.write(f"{CPU_DIR}/cpu2/cache/index3/shared_cpu_list", "2")
    topology = read(tree)
    assert [(cache.level, str(cache.cpus)) for cache in topology.caches] == [(1, "0-1"), (2, "0-2")]
    assert any("index3: no level or type: left out (CPUs 2)" in note for note in topology.notes)


def kinds(topology: Topology) -> tuple[str, str]:
    by_kind = {
        kind: CPUSet(cpu.number for cpu in topology.cpus.values() if cpu.core_kind == kind)
        for kind in ("performance", "efficiency")
    }
    return str(by_kind["performance"]), str(by_kind["efficiency"])


def test_kinds_of_cores_by_the_kernels_types_first(tree: HostTree) -> None:
    tree.online("0-3").write(f"{CPU_DIR}/types/intel_core_0/cpulist", "0")
    tree.write(f"{CPU_DIR}/types/intel_atom_0/cpulist", "1-3")
    tree.write("sys/devices/cpu_core/cpus", "0-1").write("sys/devices/cpu_atom/cpus", "2-3")
    assert kinds(read(tree)) == ("0", "1-3")


def test_kinds_of_cores_by_their_perf_devices(tree: HostTree) -> None:
    tree.online("0-5").write("sys/devices/cpu_core/cpus", "0-1").write("sys/devices/cpu_atom/cpus", "2-3")
    tree.write("sys/devices/cpu_lowpower/cpus", "4-5")
    topology = read(tree)
    assert kinds(topology) == ("0-1", "2-5")
    assert str(topology.core_kinds.pmu_device["cpu_core"]) == "0-1"


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ((1024, 1024, 446, 446), ("0-1", "2-3")),
        ((1024, 1010, 730, 718), ("0-1", "2-3")),
        ((280, 855, 855, 1024), ("1-3", "0")),
        ((1024, 1010, 1000, 990), ("", "")),
        ((1024, 1024, 1024, 1024), ("", "")),
    ],
)
def test_kinds_of_cores_by_capacity_alone(
    tree: HostTree, capacities: tuple[int, ...], expected: tuple[str, str]
) -> None:
    tree.online("0-3")
    for cpu, capacity in enumerate(capacities):
        tree.write(f"{CPU_DIR}/cpu{cpu}/cpu_capacity", str(capacity))
    assert kinds(read(tree)) == expected


def test_frequencies_make_no_kinds(tree: HostTree) -> None:
    tree.online("0-1")
    for cpu, frequency in enumerate((5_200_000, 5_000_000)):
        tree.write(f"{CPU_DIR}/cpu{cpu}/cpufreq/cpuinfo_max_freq", str(frequency))
    topology = read(tree)
    assert kinds(topology) == ("", "")
    assert set(topology.core_kinds.max_freq_khz) == {"5200000", "5000000"}


def test_a_container_sees_its_cgroup_of_version_2(tree: HostTree) -> None:
    tree.online("0-7").write("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0")
    tree.write("proc/self/cgroup", "0::/kubepods/pod1/leaf")
    tree.write("proc/self/status", "Cpus_allowed_list:\t2-3\nMems_allowed_list:\t0")
    tree.write("sys/fs/cgroup/kubepods/pod1/cpuset.cpus.effective", "2-3")
    tree.write("sys/fs/cgroup/kubepods/pod1/cpuset.mems.effective", "0")
    allowed = read(tree).allowed
    assert allowed.cgroup is not None
    assert (allowed.cgroup.path, str(allowed.cgroup.cpus)) == ("/sys/fs/cgroup/kubepods/pod1", "2-3")
    assert (str(allowed.cpus), allowed.mems) == ("2-3", (0,))


@pytest.mark.parametrize(
    ("mounts", "group"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "0::/../../outside"),
        ("cgroup2 /sys/\\056\\056/.. cgroup2 rw 0 0", "0::/"),
        ("cgroup2 /a\\000b cgroup2 rw 0 0", "0::/"),
        ("cgroup2 /sys/fs/cgroup", "0::/"),
        ("", "no colons"),
    ],
)
def test_a_cgroup_that_is_not_below_the_root_is_not_read(tree: HostTree, mounts: str, group: str) -> None:
    tree.online("0").write("proc/mounts", mounts).write("proc/self/cgroup", group)
    assert read(tree).allowed.cgroup is None


@given(st.lists(st.tuples(st.integers(0, 11), st.frozensets(st.integers(0, 13), max_size=4)), max_size=12))
def test_sets_of_a_level_become_a_partition(claims: list[tuple[int, frozenset[int]]]) -> None:
    online = CPUSet(range(12))
    by_cpu = {cpu: CPUSet(cpus | {cpu}) for cpu, cpus in claims}
    sets = _partition("core", by_cpu, online, Notes())
    for cpu, cpus in sets.items():
        assert cpu in cpus
        assert cpus <= online
        assert all(sets[other] == cpus for other in cpus)
    for cpu, claimed in by_cpu.items():
        assert claimed & online <= sets[cpu]


def test_overlapping_cores_are_joined_with_a_note(tree: HostTree) -> None:
    tree.online("0-3").cpu(0, core_cpus_list="0-1").cpu(1, core_cpus_list="1-2").cpu(2, core_cpus_list="5")
    topology = read(tree)
    assert shown(topology.cores) == ["0-2", "3"]
    assert any("core sets overlap" in note for note in topology.notes)
    assert any("lacks the CPU itself" in note and "(CPUs 2)" in note for note in topology.notes)


def test_reading_changes_nothing(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    assert read(tree) == read(tree)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before
