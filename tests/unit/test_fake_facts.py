"""Facts of nodes, and the tree that is built from them: every reader finds in it what the facts say."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dradriver.backend import ConfigError
from dradriver.host import CPUSet, Host, read_net_interfaces, read_pci, read_topology
from dradriver_fake import shipped
from dradriver_fake.boards import board_of, boards
from dradriver_fake.facts import NICDevice, NodeFacts, VFDevice, num_vfs
from dradriver_fake.node import read_facts
from dradriver_fake.tree import build_tree
from fakenode import DATA, SHARED, facts_of

FILES = [*sorted(DATA.glob("*.yaml")), *sorted((SHARED / "nodes").glob("*.yaml"))]
every_node = pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED}: no recorded facts there")


@every_node
def test_every_reader_finds_in_the_tree_what_the_facts_say(file: Path, tmp_path: Path) -> None:
    facts = read_facts(file.read_bytes(), file.name)
    build_tree(tmp_path / "root", facts)
    host = Host(tmp_path / "root")

    topology = read_topology(host)
    assert not topology.notes
    assert len(topology.packages) == facts.cpu.sockets
    assert len(topology.cores) == facts.cpu.cores
    assert len([cache for cache in topology.caches if cache.level == 3]) == facts.cpu.l3.count
    assert topology.lists.isolated == CPUSet.parse(facts.cpu.isolated)
    for node in facts.numa.nodes:
        seen = topology.node(node.id)
        assert seen
        assert seen.cpus == CPUSet.parse(node.cpus)
        assert seen.memory_bytes == node.memory_bytes // 1024 * 1024
        assert list(seen.distances.values()) == list(node.distances)
        assert {pool.size_bytes >> 10: pool.total for pool in seen.huge_pages} == {
            pool.size_kib: pool.nr for pool in node.hugepages
        }
        if node.gpu_memory:
            assert not seen.has_host_memory

    pci = read_pci(host)
    assert not pci.notes
    for function in facts.functions():
        device = pci.by_address[function.bdf]
        assert device.pcie_root == function.pcie_root
        assert device.path
        assert device.path.above == function.bridges
        assert device.numa_node == (function.numa_node if function.numa_node >= 0 else None)
        match function:
            case NICDevice():
                assert device.net == (function.nic.netdev,)
                assert device.sriov_total == function.nic.sriov_total_vfs
                assert len(device.virtfns) == num_vfs(function)
            case VFDevice():
                assert device.physfn == function.vf.physfn
                assert device.net == ((function.vf.netdev,) if function.vf.driver != "vfio-pci" else ())
    assert host.boot_id()


@needs_shared
def test_there_are_eight_recorded_nodes() -> None:
    assert len([file for file in FILES if file.is_relative_to(SHARED)]) == 8


def test_the_nodes_that_are_shipped_are_what_they_are_called() -> None:
    assert shipped() == ("dgx-h100", "gb200-tray", "small", "telco-edge")
    counts = {
        name: (len(facts.gpus), len(facts.nics), len(facts.vfs))
        for name in shipped()
        for facts in [facts_of(name)]
    }
    assert counts == {
        "dgx-h100": (8, 10, 0),
        "gb200-tray": (4, 6, 0),
        "small": (1, 2, 4),
        "telco-edge": (0, 8, 48),
    }
    assert all(facts_of(name).node == name for name in shipped())


def test_each_gpu_of_the_dgx_has_a_card_below_its_switch(tmp_path: Path) -> None:
    facts = facts_of("dgx-h100")
    build_tree(tmp_path / "root", facts)
    pci = read_pci(Host(tmp_path / "root")).by_address
    switches = [pci[gpu.bdf].pcie_switch for gpu in facts.gpus]
    assert len(set(switches)) == 8
    cards = [pci[nic.bdf].pcie_switch for nic in facts.nics]
    assert [switch for switch in cards if switch] == switches


def test_interfaces_have_the_speed_and_the_address_of_their_card(tmp_path: Path) -> None:
    build_tree(tmp_path / "root", facts_of("small"))
    found = {one.name: one for one in read_net_interfaces(Host(tmp_path / "root"))}
    assert found["eno1"].speed_mbps == 1000
    assert found["enp68s0v3"].pci_address == "0000:44:00.5"
    assert len({one.address for one in found.values()}) == len(found) == 6


def changed(**changes: Any) -> bytes:
    body = yaml.safe_load((DATA / "small.yaml").read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = body
        for parent in parents:
            target = target[int(parent[1:]) if parent[0] == "n" and parent[1:].isdigit() else parent]
        target[int(last[1:]) if last[0] == "n" and last[1:].isdigit() else last] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (changed(sumary="x"), r"f: unknown field 'sumary'|f\.sumary: unknown field 'sumary'"),
        (
            changed(cpu__online="0-6"),
            r"f\.cpu: online: '0-6': 1 sockets of 4 cores of 2 threads are CPUs 0-7",
        ),
        (changed(cpu__smtSibling="none"), r"f\.cpu: smtSibling: 'none': 'cpu N pairs with N\+4' is expected"),
        (changed(cpu__isolated="9"), r"f\.cpu: isolated: '9'"),
        (changed(cpu__sockets=0), r"f\.cpu\.sockets: "),
        (changed(numa__nodes__n0__distances=[10, 20]), r"f\.numa: nodes: node 0 has 2 distances to 1 nodes"),
        (changed(devices__n0__bdf="../../etc"), r"f\.devices\[0\]\.bdf: .*\.\./\.\./etc"),
        (changed(devices__n0__kind="tpu"), r"f\.devices\[0\]\.kind: "),
        (changed(devices__n1__nic__netdev="a/b"), r"f\.devices\[1\]\.nic\.netdev: "),
        (changed(devices__n1__bdf="0000:43:00.0"), r"f: devices: 0000:43:00\.0 stands twice"),
        (changed(devices__n0__numaNode=3), r"f: devices: 0000:43:00\.0: numaNode 3 is not in numa\.nodes"),
        (changed(node="No Node"), r"f: node 'No Node' is not a DNS subdomain"),
        (b"node: a\nnode: b", r"f: not valid YAML: .*'node' stands twice"),
        (b"a: [", "f: not valid YAML: "),
        (b"a: \x80", "f: not valid YAML"),
        (b"[]", "f: a map is expected, found a list"),
        (b"", "f: "),
    ],
)
def test_facts_that_are_wrong_are_refused_with_the_field(data: bytes, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read_facts(data, "f")


@needs_shared
def test_the_boards_are_as_recorded_where_that_is_known() -> None:
    recorded = json.loads((SHARED / "gpu/mig_profiles.json").read_text())["gpus"]
    ours = {board.board: board for board in boards() if board.profiles}
    assert ours.keys() == recorded.keys()
    words = {
        "profileId": "id",
        "computeSlices": "computeSlices",
        "maxInstances": "maxInstances",
        "memoryMiB": "memoryMiB",
        "multiprocessors": "multiprocessors",
        "copyEngines": "copyEngines",
        "decoders": "decoders",
        "encoders": "encoders",
        "jpegEngines": "jpegEngines",
        "ofaEngines": "ofaEngines",
    }
    for name, board in ours.items():
        assert board.memory_slices == recorded[name]["memorySlices"]
        for profile, facts in zip(board.profiles, recorded[name]["profiles"], strict=True):
            mine = msgspec.to_builtins(profile)
            assert profile.name == (facts["name"] or profile.name)
            assert list(profile.starts) == facts["placements"]["starts"]
            assert profile.size == facts["placements"]["size"]
            for theirs, word in words.items():
                assert facts[theirs] in {None, mine[word]}, (name, profile.name, word)


def test_boards_are_known_by_their_pci_device() -> None:
    board = board_of("0x2330")
    assert board
    assert board.board == "H100-SXM5-80GB"
    assert board_of("0x0000") is None


def test_facts_survive_being_kept_as_json() -> None:
    for name in shipped():
        facts = facts_of(name)
        assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(facts))), NodeFacts) == facts
