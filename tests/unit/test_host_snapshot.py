"""Snapshots: what is in them, what is not, and that a replayed one is the host that it was taken of."""

import gzip
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recorded
from dradriver.config import load, load_backends
from dradriver.engine import Pools, refresh_all
from dradriver.host import (
    Allowed,
    Host,
    Topology,
    read_infiniband,
    read_net_interfaces,
    read_pci,
    read_topology,
)
from dradriver.host.identifiers import Identifiers
from dradriver.host.snapshot import (
    Snapshot,
    SnapshotError,
    encode_snapshot,
    read_snapshot,
    replay,
    take_snapshot,
)
from dradriver.slices import Pool, pool_specs
from hosttree import HostTree, two_sockets

HERE = "this machine"

MACHINES = [HERE, *recorded.dump_names()]


@pytest.fixture
def one_of_some(name: str, everything: bool) -> None:
    """Leave out most machines, of which every third one stands for those beside it."""
    if not everything and MACHINES.index(name) % 3:
        pytest.skip("every third machine stands for the others; --all runs all")


def root_of(name: str) -> Path:
    return Path("/") if name == HERE else recorded.unpacked(name)


def slices(root: Path, tmp_path: Path) -> list[Any]:
    """The slices that a node with this host root publishes."""
    node = replace(load(None, tmp_path, {"NODE_NAME": "node-a"}), host_root=root)
    pools = Pools(node.node, load_backends(node))
    refresh_all(pools.all)
    assert not [pool.snapshot.error for pool in pools.all if pool.snapshot.error]
    return [
        pool_specs(Pool(pool.driver, node.node, pool.name), pool.snapshot.content).specs for pool in pools.all
    ]


def without_cgroup_name(topology: Topology) -> Topology:
    allowed = topology.allowed
    cgroup = allowed.cgroup and replace(allowed.cgroup, path="")
    return replace(topology, allowed=Allowed(allowed.cpus, allowed.mems, cgroup))


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A directory in memory, where there is such a file system: replays are thousands of tiny files."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


@pytest.mark.usefixtures("one_of_some")
@pytest.mark.parametrize("name", MACHINES)
def test_a_replayed_machine_is_the_machine(name: str, scratch: Path, tmp_path: Path) -> None:
    host = Host(root_of(name))
    before = slices(host.root, tmp_path)
    content = encode_snapshot(take_snapshot(host))
    file = tmp_path / "snapshot"
    file.write_bytes(content)
    assert len(content) < 64 << 10

    again = Host(replay(read_snapshot(file), scratch / name))

    if before != slices(host.root, tmp_path):
        pytest.skip("the machine changed meanwhile: a guest's memory comes and goes")
    assert slices(again.root, tmp_path) == before
    assert without_cgroup_name(read_topology(again)) == without_cgroup_name(read_topology(host))
    assert read_pci(again) == read_pci(host)
    assert encode_snapshot(take_snapshot(again)) == content


@pytest.mark.usefixtures("one_of_some")
@pytest.mark.parametrize("name", MACHINES)
def test_no_identifier_of_a_machine_is_in_its_snapshot_unless_kept(name: str, scratch: Path) -> None:
    host = Host(root_of(name))
    whole = gzip.decompress(encode_snapshot(take_snapshot(host))).decode().lower()
    keeping = take_snapshot(host, keep_identifiers=True)
    kept = gzip.decompress(encode_snapshot(keeping)).decode().lower()
    addresses = {net.address for net in read_net_interfaces(host) if net.address}
    guids = {guid for device in read_infiniband(host) for guid in (device.node_guid, device.sys_image_guid)}
    for secret in {*addresses, *guids, host.boot_id()} - {None, "", "00:00:00:00:00:00"}:
        assert secret
        assert secret in kept
        assert secret not in whole
    if addresses or guids:
        again = Host(replay(keeping, scratch / f"{name}-kept"))
        assert read_net_interfaces(again) == read_net_interfaces(host)
        assert read_infiniband(again) == read_infiniband(host)
        assert again.boot_id() == host.boot_id()


def secretive(root: Path) -> HostTree:
    """A node in a cluster whose files are full of what is nobody's business."""
    tree = two_sockets(root)
    pod = "3f2b8a10-9c4d-4e5f-8a6b-7c8d9e0f1a2b"
    group = f"/kubepods.slice/kubepods-pod{pod.replace('-', '_')}.slice/cri-containerd-{'ab' * 32}.scope"
    tree.write("proc/sys/kernel/random/boot_id", "9e107d9d-372b-4826-b9d5-0123456789ab")
    tree.write("proc/sys/kernel/hostname", "payroll-7.example.com")
    tree.write("etc/machine-id", "0123456789abcdef0123456789abcdef")
    tree.write("sys/class/dmi/id/product_serial", "SERIAL42")
    tree.write(
        "proc/cmdline",
        "root=UUID=11111111-2222-3333-4444-555555555555 ip=10.1.2.3 token=hunter2 isolcpus=managed_irq,2-3 "
        "hugepagesz=1G hugepages=4 nohz_full=$(x) quiet",
    )
    tree.write(
        "proc/self/status", "Name:\tsecret\nUid:\t1234\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0"
    )
    tree.write("proc/mounts", "nas.example.com:/x /x nfs4 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0")
    tree.write("proc/self/cgroup", f"0::{group}")
    tree.write(f"sys/fs/cgroup{group}/cpuset.cpus.effective", "0-3")
    tree.write("proc/meminfo", "MemTotal:  1024 kB\nMemFree:  99 kB\nHugepagesize:  2048 kB")
    tree.write(
        "proc/driver/nvidia/gpus/0000:41:00.0/information",
        "Model: A card\nGPU UUID: GPU-9fE0a1b2-1111-2222-3333-444455556666\nBus Location: 0000:41:00.0",
    )
    for name, where in (("enx04421a0b0c0d", "0000:00:03.0"), ("lan-e04421a0b0c0d", "0000:00:04.0")):
        device = f"sys/devices/pci0000:00/{where}"
        tree.write(f"{device}/net/{name}/address", "04:42:1a:0b:0c:0d")
        tree.write(f"{device}/vpd", "SERIAL43")
        tree.link(f"sys/class/net/{name}", f"../../devices/pci0000:00/{where}/net/{name}")
        tree.link(f"sys/bus/pci/devices/{where}", f"../../../devices/pci0000:00/{where}")
    return tree


def test_secrets_stay_where_they_are(tmp_path: Path) -> None:
    host = Host(secretive(tmp_path / "host").root)
    snapshot = take_snapshot(host)
    whole = gzip.decompress(encode_snapshot(snapshot)).decode().lower()
    for secret in (
        *("3f2b8a10", "3f2b8a10_9c4d", "abab", "9e107d9d", "payroll", "0123456789abcdef", "serial"),
        *("11111111", "10.1.2.3", "hunter2", "$(x)", "quiet", "secret", "1234", "nas.example", "memfree"),
        *("9fe0a1b2", "04:42:1a", "04421a"),
    ):
        assert secret not in whole, secret
    assert snapshot.files["proc/cmdline"] == "isolcpus=managed_irq,2-3 hugepagesz=1G hugepages=4"

    again = Host(replay(snapshot, tmp_path / "root"))

    first, second = read_net_interfaces(again)
    assert first.address == second.address == "02:00:00:00:00:01"
    assert (first.name, second.name) == ("enx020000000001", "lan-e020000000001")
    assert (first.pci_address, second.pci_address) == ("0000:00:03.0", "0000:00:04.0")
    information = again.read_text("proc/driver/nvidia/gpus/0000:41:00.0/information")
    assert information
    assert re.search(r"GPU-00000000-0000-4000-8000-00000000000[12]\nBus Location: 0000:41:00.0", information)
    allowed = read_topology(again).allowed
    assert allowed.cgroup
    assert (str(allowed.cpus), str(allowed.cgroup.cpus), allowed.cgroup.mems) == ("0-3", "0-3", None)


def test_identifiers_stay_where_they_were_asked_to(tmp_path: Path) -> None:
    host = Host(secretive(tmp_path / "host").root)
    whole = gzip.decompress(encode_snapshot(take_snapshot(host, keep_identifiers=True))).decode()
    for kept in (
        "9e107d9d-372b-4826-b9d5-0123456789ab",
        "04:42:1a:0b:0c:0d",
        "enx04421a0b0c0d",
        "GPU-9fE0a1b2",
    ):
        assert kept in whole
    for secret in ("hunter2", "payroll", "SERIAL", "Uid:", "nas.example", "kubepods"):
        assert secret not in whole


def test_the_same_identifier_is_replaced_by_the_same_in_all_its_forms() -> None:
    names = Identifiers()
    uuid = "9e107d9d-372b-4826-b9d5-0123456789ab"
    assert names.text(uuid) == "00000000-0000-4000-8000-000000000001"
    assert names.text(f"pod{uuid}") == f"pod{uuid}", "a UUID has a boundary"
    assert names.text(f"pod_{uuid.replace('-', '_')}") == "pod_00000000_0000_4000_8000_000000000001"
    assert names.text(uuid.upper()) == "00000000-0000-4000-8000-000000000001"
    assert (
        names.text("0002:c903:00f9:bfa0 and 0002:C903:00F9:BFA1")
        == "0000:0000:0000:0001 and 0000:0000:0000:0002"
    )
    infiniband = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:f9:bf:a1"
    assert names.text(infiniband) == f"02:{'00:' * 18}01"
    assert names.path("net/enp3s0/br-0123456789ab") == "net/enp3s0/br-020000000002"


@pytest.mark.parametrize(
    "text",
    [
        "0000:3b:00.0",
        "00:00:00:00:00:00",
        "ff:ff:ff:ff:ff:ff",
        "0-3,8-11",
        "ffffffff,ffffffff",
        "103079215104",
    ],
)
def test_what_is_no_identifier_stays(text: str) -> None:
    assert Identifiers().text(text) == text


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [
        (Snapshot(files={"/etc/passwd": ""}), r"path '/etc/passwd': one without"),
        (Snapshot(files={"../x": ""}), r"path '\.\./x': one without"),
        (Snapshot(files={"a/../../x": ""}), "one without"),
        (Snapshot(directories=("a//b",)), "one without"),
        (Snapshot(files={"a\0b": ""}), "one without"),
        (Snapshot(files={"": ""}), "one without"),
        (Snapshot(links={"a": "/etc"}), r"link 'a': target '/etc' is not a relative path"),
        (Snapshot(links={"a": ""}), "is not a relative path"),
        (Snapshot(links={"a": ".."}), r"link 'a': target '\.\.' leads out of the snapshot"),
        (Snapshot(links={"a/b": "../../../etc"}), "leads out of the snapshot"),
        (Snapshot(links={"d/e/up": "..", "d/out": "e/up/../.."}), "leads out of the snapshot"),
        (Snapshot(links={"a": "b", "b": "c/../../x"}, directories=("c",)), "leads out of the snapshot"),
        (
            Snapshot(links={"a": "b"}, files={"a/x": ""}),
            r"path 'a/x': leads through 'a', which is no directory",
        ),
        (Snapshot(files={"a": "", "a/x": ""}), "leads through 'a'"),
        (Snapshot(files={"a": ""}, links={"a": "b"}), "as a file and as something else"),
    ],
)
def test_a_snapshot_that_would_lead_elsewhere_is_not_unpacked(
    snapshot: Snapshot, message: str, tmp_path: Path
) -> None:
    target = tmp_path / "deep" / "root"
    with pytest.raises(SnapshotError, match=message):
        replay(snapshot, target)
    assert not target.exists() or not list(target.iterdir())
    assert [path for path in tmp_path.rglob("*") if path not in {target, target.parent}] == []


def test_links_in_a_circle_and_into_nothing_are_harmless(tmp_path: Path) -> None:
    root = replay(Snapshot(links={"a": "b", "b": "a", "c": "gone/x", "d": "."}), tmp_path / "root")
    assert sorted(path.name for path in root.iterdir()) == ["a", "b", "c", "d"]
    assert Host(root).read_text("a") is None


def test_a_link_that_is_absolute_on_the_host_leads_to_the_same_place_in_the_replay(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host").online("0")
    tree.write("sys/devices/system/cpu/policy0/cpuinfo_max_freq", "3000000")
    tree.link("sys/devices/system/cpu/cpu0/cpufreq", "/sys/devices/system/cpu/policy0")
    tree.write("else/node1/cpulist", "0")
    tree.link("sys/devices/system/node", "../../../../../else")
    root = replay(take_snapshot(Host(tree.root)), tmp_path / "root")
    assert Host(root).read_text("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") == "3000000"
    assert Host(root).read_text("sys/devices/system/node/node1/cpulist") == "0"


def test_a_directory_that_has_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(SnapshotError, match="is not empty"):
        replay(Snapshot(), tmp_path)
    assert (tmp_path / "mine").read_text() == "precious"


def squeezed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def packed(value: Any) -> bytes:
    return squeezed(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a snapshot"),
        (b"{}", "not compressed with gzip"),
        (packed({})[:-4], "or cut"),
        (squeezed(b"\xff"), "not a snapshot"),
        (squeezed(b"[" * 100_000), "not a snapshot"),
        (packed([]), "not a snapshot"),
        (packed({"files": {"a": 1}}), r"Expected `str`, got `int` - at `\$\.files\[\.\.\.\]`"),
        (packed({"more": 1}), "unknown field `more`"),
        (packed({"format": "dradriver.io/snapshot/v2"}), "this version reads dradriver.io/snapshot/v1"),
        (squeezed(b" " * (64 << 20) + b"{}"), "more than 64 MiB"),
    ],
)
def test_a_file_that_is_no_snapshot_is_refused_in_words(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "snapshot"
    file.write_bytes(content)
    with pytest.raises(SnapshotError, match=message):
        read_snapshot(file)


names = st.sampled_from(["a", "b", "..", "c"])
paths = st.lists(names, min_size=1, max_size=4).map("/".join)


@settings(max_examples=100, deadline=None)
@given(
    links=st.dictionaries(paths, paths, max_size=5), files=st.dictionaries(paths, st.just("x"), max_size=3)
)
def test_whatever_is_unpacked_stays_inside(
    scratch: Path, links: dict[str, str], files: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as outer:
        root = Path(outer, "root").resolve()
        try:
            replay(Snapshot(links=links, files=files), root)
        except SnapshotError:
            assert not root.exists() or not list(root.iterdir())
        assert {path.name for path in root.parent.iterdir()} <= {"root"}
        for path in root.rglob("*") if root.exists() else ():
            if path.exists():
                assert path.resolve().is_relative_to(root)
