"""What is offered of the CPUs of recorded machines, of small ones and of the one at hand."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import recorded
from dradriver.host import CPUSet, Host, UeventsUnavailableError
from dradriver.model import Device, PoolContent, Quantity
from dradriver.slices.check import checked
from dradriver_cpu import CpuBackend, CpuOptions
from hosttree import HostTree, two_sockets
from waiting import PATIENCE

NUMA = "resource.kubernetes.io/numaNode"
SOCKET = "dradriver.io/socketID"


def offered(root: Path, reserved: str = "") -> PoolContent:
    backend = CpuBackend(Host(root), CpuOptions(reserved=reserved))
    return backend.devices(backend.probe())


def facts(device: Device) -> dict[str, Any]:
    return dict(device.attributes) | {"cpu": device.capacity["cpu"].value.to_int()}


@pytest.mark.parametrize("name", recorded.dump_names())
def test_every_online_cpu_is_offered_once(name: str) -> None:
    backend = CpuBackend(Host(recorded.unpacked(name)), CpuOptions())
    inventory = backend.probe()
    content = backend.devices(inventory)
    seen = CPUSet()
    for offer, device in zip(inventory.offers, content.devices, strict=True):
        assert offer.cpus.isdisjoint(seen)
        seen |= offer.cpus
        assert device.name == offer.name
        assert device.capacity["cpu"].value == Quantity.from_int(len(offer.cpus))
        assert device.shared
    assert seen == inventory.topology.online
    assert len(seen) == recorded.expectations()[name]["cpus"]["onlineCount"]
    publishable = checked(content)
    assert publishable.content == content
    assert not publishable.left_out
    assert not publishable.warnings


def test_a_server_with_isolated_cpus() -> None:
    devices = offered(recorded.unpacked("nri-server")).devices
    assert [(device.name, facts(device)["cpu"]) for device in devices] == [
        ("cpu-numa-0", 26),
        ("cpu-numa-1", 26),
        ("cpu-numa-2", 26),
        ("cpu-numa-3", 26),
        ("cpu-numa-0-isolated", 2),
        ("cpu-numa-1-isolated", 2),
        ("cpu-numa-2-isolated", 2),
        ("cpu-numa-3-isolated", 2),
    ]
    assert facts(devices[5]) == {
        "numCPUs": 2,
        "smtEnabled": True,
        "isolated": True,
        "coreType": "standard",
        "cacheL3ID": 1,
        "socketID": 1,
        SOCKET: 1,
        NUMA: 1,
        "cpu": 2,
    }
    assert facts(devices[0])["isolated"] is False


def test_several_l3_caches_in_a_node_have_no_id_in_common() -> None:
    devices = offered(recorded.unpacked("lscpu-x86_64-epyc_7451")).devices
    assert len(devices) == 8
    assert facts(devices[7]) == {
        "numCPUs": 12,
        "smtEnabled": True,
        "isolated": False,
        "coreType": "standard",
        "socketID": 1,
        SOCKET: 1,
        NUMA: 7,
        "cpu": 12,
    }


def test_power_cores_of_four_threads_on_sparse_nodes() -> None:
    devices = offered(recorded.unpacked("hwloc-nvidiagpunumanodes")).devices
    assert [(device.name, facts(device)["socketID"]) for device in devices] == [
        ("cpu-numa-0", 0),
        ("cpu-numa-8", 8),
    ]
    assert facts(devices[0])["smtEnabled"] is True


def test_cores_of_two_kinds_in_one_node_have_no_type_in_common() -> None:
    (device,) = offered(recorded.unpacked("hwloc-nvidia-dgx-gb10")).devices
    assert facts(device) == {
        "numCPUs": 20,
        "smtEnabled": False,
        "isolated": False,
        "socketID": 36,
        SOCKET: 36,
        NUMA: 0,
        "cpu": 20,
    }


def test_cores_that_differ_though_nothing_tells_how_have_no_type() -> None:
    (device,) = offered(recorded.unpacked("hwloc-20em64t-hybrid-1p6c2t-2ca4co1t")).devices
    assert "coreType" not in device.attributes
    (device,) = offered(recorded.unpacked("nri-sample1"), reserved="0-7").devices
    assert facts(device)["coreType"] == "e-core"


def test_nodes_that_contradict_each_other_are_one_machine() -> None:
    (device,) = offered(recorded.unpacked("hwloc-8em64t-2s2ca2c-buggynuma")).devices
    assert device.name == "cpu-machine"
    assert facts(device) == {
        "numCPUs": 8,
        "smtEnabled": False,
        "isolated": False,
        "coreType": "standard",
        "cpu": 8,
    }


def test_cpus_that_belong_to_no_node_are_offered_apart(tmp_path: Path) -> None:
    tree = HostTree(tmp_path).online("0-3").cores([[0], [1], [2], [3]]).node(0, "0-1", distance="10")
    assert [device.name for device in offered(tree.root).devices] == ["cpu-numa-0", "cpu-nonuma"]


@pytest.mark.parametrize(
    ("ids", "sockets"),
    [((4, 9), [4, 9]), ((-1, -1), [0, 1]), ((7, 7), [0, 1]), ((1, -1), [0, 1])],
)
def test_sockets_are_numbered_by_their_ids_where_these_tell_them_apart(
    tmp_path: Path, ids: tuple[int, int], sockets: list[int]
) -> None:
    tree = two_sockets(tmp_path)
    for package, cpus in zip(ids, ((0, 1, 4, 5), (2, 3, 6, 7)), strict=True):
        for cpu in cpus:
            tree.cpu(cpu, physical_package_id=package)
    devices = offered(tree.root).devices
    assert [device.attributes["socketID"] for device in devices] == sockets


def test_the_policy_gives_whole_cpus(tmp_path: Path) -> None:
    device = offered(two_sockets(tmp_path).root).devices[0]
    policy = device.capacity["cpu"].policy
    assert policy is not None
    assert policy.default == Quantity.from_int(1)
    assert policy.valid_range is not None
    assert (policy.valid_range.min, policy.valid_range.step) == (Quantity.from_int(1), Quantity.from_int(1))
    (counted,) = device.node_allocatable
    assert (counted.resource, counted.capacity, counted.multiplier) == ("cpu", "cpu", Quantity.from_int(1))


def test_reserved_cpus_are_left_out(tmp_path: Path) -> None:
    content = offered(two_sockets(tmp_path).root, reserved="0-1,4-5,7,64")
    (device,) = content.devices
    assert (device.name, facts(device)["cpu"]) == ("cpu-numa-1", 3)
    assert "reserved: CPUs 64 are not online" in content.warnings


def test_to_reserve_all_cpus_leaves_no_device_and_a_warning(tmp_path: Path) -> None:
    content = offered(two_sockets(tmp_path).root, "0-15")
    assert content.devices == ()
    assert "reserved: 0-15: these are all online CPUs (0-7), which leaves none to offer" in content.warnings


def test_no_hardware_is_no_device(tmp_path: Path) -> None:
    assert offered(tmp_path).devices == ()


def test_this_machine() -> None:
    content = offered(Path("/"))
    if not Path("/sys/devices/system/cpu/online").exists():
        pytest.skip("no /sys here")
    assert content.devices
    assert sum(device.capacity["cpu"].value.to_int() for device in content.devices) == os.sysconf(
        "SC_NPROCESSORS_ONLN"
    )


UEVENT = Path("/sys/devices/system/cpu/cpu0/uevent")


@pytest.mark.skipif(not os.access(UEVENT, os.W_OK), reason=f"{UEVENT}: not writable: no events to see")
def test_events_of_cpus_ask_for_a_new_look() -> None:
    reasons: list[str] = []
    stop, opened, seen = threading.Event(), threading.Event(), threading.Event()
    unavailable: list[Exception] = []

    def changed(why: str) -> None:
        reasons.append(why)
        (seen if opened.is_set() else opened).set()

    def run() -> None:
        try:
            CpuBackend(Host(), CpuOptions()).watch(stop, changed)
        except UeventsUnavailableError as error:
            unavailable.append(error)
            opened.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert opened.wait(PATIENCE)
        if unavailable:
            pytest.skip(f"no events here: {unavailable[0]}")
        UEVENT.write_text("change")
        assert seen.wait(PATIENCE)
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert reasons[1] == "change /devices/system/cpu/cpu0"
