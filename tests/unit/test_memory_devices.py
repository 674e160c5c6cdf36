"""What is offered of the memory of recorded machines, of small ones and of the one at hand."""

from pathlib import Path
from typing import Any

import pytest

import recorded
from dradriver.backend import UnavailableError
from dradriver.host import Host
from dradriver.model import Device, PoolContent, Quantity
from dradriver.slices.check import checked
from dradriver_cpu import CpuBackend, CpuOptions
from dradriver_memory import MemoryBackend, MemoryOptions
from dradriver_memory.inventory import hugetlb_size
from hosttree import HostTree, two_sockets

NUMA = "resource.kubernetes.io/numaNode"
SOCKET = "dradriver.io/socketID"
GIB = 1 << 30


def offered(root: Path, reserved: dict[str, str] | None = None) -> PoolContent:
    backend = MemoryBackend(Host(root), MemoryOptions(reserved=reserved or {}))
    return backend.devices(backend.probe())


def facts(device: Device) -> dict[str, Any]:
    return dict(device.attributes) | {name: str(one.value) for name, one in device.capacity.items()}


def sizes(content: PoolContent) -> dict[str, str]:
    return {device.name: str(one.value) for device in content.devices for one in device.capacity.values()}


@pytest.mark.parametrize("name", recorded.dump_names())
def test_no_byte_is_offered_twice_and_none_that_is_not_there(name: str) -> None:
    expect = recorded.expectations()[name]
    content = offered(recorded.unpacked(name))
    publishable = checked(content)
    assert publishable.content == content
    assert not publishable.left_out
    assert not publishable.warnings
    of_node: dict[int | None, int] = {}
    for device in content.devices:
        node = device.attributes.get(NUMA)
        assert node is None or isinstance(node, int)
        (capacity,) = device.capacity.values()
        of_node[node] = of_node.get(node, 0) + capacity.value.to_int()
    there = {node["id"]: node.get("memTotalBytes") for node in expect.get("numa", {}).get("nodes", [])}
    there[None] = expect.get("memory", {}).get("memTotalBytes")
    for node, offers in of_node.items():
        if there.get(node) is not None:
            assert there[node] - 2 * GIB < offers <= there[node], node


@pytest.mark.parametrize("name", recorded.dump_names())
def test_all_host_memory_whose_amount_is_known_is_offered(name: str) -> None:
    numa = recorded.expectations()[name].get("numa")
    if numa is None:
        pytest.skip("expectations are silent on its nodes")
    gpus = set(recorded.expectations()[name].get("gpuNumaNodes", {}).values())
    wanted = {node["id"] for node in numa["nodes"] if node.get("memTotalBytes")} - gpus
    content = offered(recorded.unpacked(name))
    found = {device.attributes.get(NUMA) for device in content.devices} - {None}
    assert found == wanted or (not wanted and len(numa["nodes"]) == 1)


def test_a_server_with_nodes_of_persistent_memory() -> None:
    content = offered(recorded.unpacked("nri-server"))
    assert sizes(content) == {
        "memory-numa-0": "32372996Ki",
        "memory-numa-1": "33023416Ki",
        "memory-numa-2": "33023424Ki",
        "memory-numa-3": "33018848Ki",
        "memory-numa-4": "124Gi",
        "memory-numa-5": "124Gi",
    }
    first, *_, last = content.devices
    assert facts(first) == {"type": "memory", "socketID": 0, SOCKET: 0, NUMA: 0, "memory": "32372996Ki"}
    assert facts(last) == {"type": "memory", NUMA: 5, "memory": "124Gi"}


def test_the_memory_of_gpus_is_not_offered() -> None:
    names = sizes(offered(recorded.unpacked("hwloc-nvidiagpunumanodes"))).keys()
    assert names == {"memory-numa-0", "memory-numa-8"}


def test_memory_only_nodes_are_offered_and_empty_ones_not() -> None:
    names = sizes(offered(recorded.unpacked("hwloc-fakememinitiators-1np2c-1npp-gi")))
    assert list(names) == [f"memory-numa-{node}" for node in range(5, 11)]


def test_huge_pages_are_taken_from_the_memory_of_their_node() -> None:
    content = offered(recorded.unpacked("hwloc-32intel64-2p8co2t-8ve"))
    assert sizes(content) == {
        "memory-numa-0": "43731324Ki",
        "memory-numa-1": "45325660Ki",
        "hugepages-2mi-numa-0": "4Gi",
        "hugepages-2mi-numa-1": "4Gi",
    }
    assert 43731324 * 1024 + 4 * GIB == 49075843072 - 49075843072 % 4096
    assert facts(content.devices[3]) == {
        "type": "hugepages",
        "pageSize": "2Mi",
        "socketID": 1,
        SOCKET: 1,
        NUMA: 1,
        "hugepages": "4Gi",
    }


def test_huge_pages_whose_node_is_not_told_lessen_the_memory_of_each_node() -> None:
    content = offered(recorded.unpacked("hwloc-32amd64-4s2n4c-cgroup2"))
    assert sizes(content)["memory-numa-1"] == "15358Mi"
    assert not any(name.startswith("hugepages") for name in sizes(content))
    assert any(
        "huge pages of 2Mi: the kernel does not tell their NUMA nodes" in note for note in content.warnings
    )


def test_a_machine_without_nodes() -> None:
    content = offered(recorded.unpacked("hwloc-2i386-2t-hugepagesizecount"))
    assert sizes(content) == {
        "memory-machine": "390625000Mi",
        "hugepages-2mi-machine": "2Mi",
        "hugepages-16gi-machine": "16Gi",
    }
    assert all(NUMA not in device.attributes for device in content.devices)


def test_one_node_has_the_memory_of_the_machine_where_only_that_is_known() -> None:
    assert sizes(offered(recorded.unpacked("ghw-ryzen-1600"))) == {"memory-numa-0": "32777916Ki"}


def test_memory_of_unknown_amount_is_not_offered() -> None:
    content = offered(recorded.unpacked("lscpu-x86_64-epyc_7451"))
    assert content.devices == ()
    assert "memory of numa-7: the kernel does not tell how much: not offered" in content.warnings


def test_all_sizes_of_huge_pages(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    pages = {64: (16, 16, 0), 2048: (8, 0, 0), 32768: (0, 0, 0), 1 << 20: (1, 1, 0)}
    tree.node(1, "2-3,6-7", memory_kib=4 << 20, huge_pages=pages)
    content = offered(tree.root)
    assert sizes(content) == {
        "memory-numa-0": "4Gi",
        "memory-numa-1": "3055Mi",
        "hugepages-64ki-numa-1": "1Mi",
        "hugepages-2mi-numa-1": "16Mi",
        "hugepages-1gi-numa-1": "1Gi",
    }
    counted = [device.node_allocatable[0] for device in content.devices]
    assert [(one.resource, one.capacity) for one in counted] == [
        ("memory", "memory"),
        ("memory", "memory"),
        ("hugepages-64Ki", "hugepages"),
        ("hugepages-2Mi", "hugepages"),
        ("hugepages-1Gi", "hugepages"),
    ]


def test_surplus_huge_pages_are_memory(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    tree.node(0, "0-1,4-5", memory_kib=4 << 20, huge_pages={2048: (12, 0, 4)})
    found = sizes(offered(tree.root))
    assert (found["memory-numa-0"], found["hugepages-2mi-numa-0"]) == ("4080Mi", "16Mi")


def test_a_policy_gives_whole_pages_and_one_unless_asked(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    tree.node(0, "0-1,4-5", memory_kib=4 << 20, huge_pages={2048: (2, 0, 0), 1 << 20: (1, 0, 0)})
    policies = {
        device.name: one.policy for device in offered(tree.root).devices for one in device.capacity.values()
    }
    for name, page in (("memory-numa-0", "4Ki"), ("hugepages-2mi-numa-0", "2Mi")):
        policy = policies[name]
        assert policy is not None
        assert policy.valid_range is not None
        size = Quantity.parse(page)
        assert (policy.default, policy.valid_range.min, policy.valid_range.step) == (size, size, size)
    single = policies["hugepages-1gi-numa-0"]
    assert single is not None
    assert single.valid_values == (Quantity.parse("1Gi"),)


def test_pages_of_64_kib_show_by_the_sizes_of_huge_pages(tmp_path: Path) -> None:
    tree = HostTree(tmp_path).online("0").node(0, "0", memory_kib=1_000_000)
    assert sizes(offered(tree.root)) == {"memory-numa-0": "1000000Ki"}
    tree.memory(1_000_000, {2048: (0, 0, 0), 512 << 10: (0, 0, 0)})
    (device,) = offered(tree.root).devices
    assert sizes(offered(tree.root)) == {"memory-numa-0": "1000000Ki"}
    policy = device.capacity["memory"].policy
    assert policy is not None
    assert policy.default == Quantity.parse("64Ki")


def test_reserved_memory_is_left_out(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    content = offered(tree.root, {"0": "1Gi", "1": "1", "7": "1Gi"})
    assert sizes(content) == {"memory-numa-0": "3Gi", "memory-numa-1": "4194300Ki"}
    assert "reserved: 7: no NUMA node with host memory has that id" in content.warnings


def test_a_node_that_is_all_reserved_is_not_offered(tmp_path: Path) -> None:
    content = offered(two_sockets(tmp_path).root, {"0": "4Gi"})
    assert list(sizes(content)) == ["memory-numa-1"]
    assert "memory of numa-0: nothing is left beside huge pages and what is reserved" in content.warnings


def test_nodes_that_contradict_each_other_on_cpus_still_have_their_memory() -> None:
    content = offered(recorded.unpacked("hwloc-8em64t-2s2ca2c-buggynuma"))
    assert len(content.devices) == 8
    assert all("socketID" not in device.attributes for device in content.devices)


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (64 << 10, "64KB"),
        (1 << 20, "1MB"),
        (2 << 20, "2MB"),
        (512 << 20, "512MB"),
        (GIB, "1GB"),
        (16 * GIB, "16GB"),
    ],
)
def test_page_sizes_in_the_words_of_the_cgroup(size: int, name: str) -> None:
    assert hugetlb_size(size) == name


def test_cpus_and_memory_agree_on_sockets() -> None:
    for name in recorded.dump_names():
        host = Host(recorded.unpacked(name))
        cpu, memory = CpuBackend(host, CpuOptions()), MemoryBackend(host, MemoryOptions())
        by_node = {
            device.attributes.get(NUMA): device.attributes.get(SOCKET)
            for device in cpu.devices(cpu.probe()).devices
        }
        for device in memory.devices(memory.probe()).devices:
            node = device.attributes.get(NUMA)
            if node in by_node and node is not None:
                assert device.attributes.get(SOCKET) == by_node[node], (name, device.name)


def test_this_machine() -> None:
    if not Path("/proc/meminfo").exists():
        pytest.skip("no /proc here")
    content = offered(Path("/"))
    assert checked(content).content == content
    assert content.devices or content.warnings


def test_numa_nodes_that_vanish_all_at_once_are_not_believed(tmp_path: Path) -> None:
    """Else the same memory would be offered a second time, as that of a machine without nodes."""
    tree = two_sockets(tmp_path)
    backend = MemoryBackend(Host(tmp_path), MemoryOptions())
    assert len(backend.devices(backend.probe()).devices) == 2
    nodes = tree.root / "sys/devices/system/node"
    nodes.rename(tree.root / "aside")
    with pytest.raises(UnavailableError, match="NUMA nodes that were here cannot be read"):
        backend.probe()
    (tree.root / "aside").rename(nodes)
    assert len(backend.devices(backend.probe()).devices) == 2
