"""PCI devices, network interfaces and RDMA devices: on recorded machines, and on small trees with what those lack."""

from pathlib import Path
from typing import Any

import pytest

import recorded
from dradriver.host import (
    CPUSet,
    Host,
    NodeSockets,
    PCIDevice,
    PCILink,
    iommu_group,
    pci_address,
    pci_place,
    pcie_root,
    pcie_switch,
    read_infiniband,
    read_net_interfaces,
    read_pci,
)
from dradriver.host.pcipath import parse_pci_path
from dradriver.model import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, SOCKET_ID
from hosttree import HostTree, two_sockets

needs_recorded = pytest.mark.skipif(
    not recorded.dump_names(), reason=f"{recorded.SHARED}: no recorded machines there"
)

# What the two readers behind the expectations disagree about, and so is in none.
NOT_EXPECTED = {
    "hwloc-32em64t-2n8c-dax-nvme-mic-dimms": {"0000:00:11.0", "scif0"},
}


def with_key(key: str) -> list[str]:
    return [name for name in recorded.dump_names() if key in recorded.expectations()[name]]


def host(name: str) -> Host:
    return Host(recorded.unpacked(name))


def known(facts: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """The facts in the words of the expectations, which leave out what no file tells, or is disputed."""
    return {key: value for key, value in facts.items() if value is not None or key in expected}


def number(value: int | None, digits: int) -> str | None:
    return None if value is None else f"0x{value:0{digits}x}"


def speed(link: PCILink) -> str | None:
    return link.speed.removesuffix(" PCIe").replace(".0 ", " ") if link.speed else None


def pci_facts(device: PCIDevice) -> dict[str, Any]:
    return {
        "bdf": device.address,
        "pcieRoot": device.pcie_root,
        "sysfsPath": device.path and f"/{device.path.sysfs}",
        "parents": device.path and list(device.path.above),
        "class": number(device.class_code, 6),
        "vendor": number(device.vendor, 4),
        "device": number(device.device, 4),
        "subsystemVendor": number(device.subsystem_vendor, 4),
        "subsystemDevice": number(device.subsystem_device, 4),
        "numaNode": device.numa_node,
        "localCpulist": None if device.local_cpus is None else str(device.local_cpus),
        "driver": device.driver,
        "sriovTotalVFs": device.sriov_total,
        "sriovNumVFs": device.sriov_num,
        "currentLinkSpeed": speed(device.current_link),
        "currentLinkWidth": device.current_link.width and str(device.current_link.width),
        "maxLinkSpeed": speed(device.max_link),
        "maxLinkWidth": device.max_link.width and str(device.max_link.width),
    }


@needs_recorded
@pytest.mark.parametrize("name", with_key("pci"))
def test_pci_devices_of_recorded_machines(name: str) -> None:
    found = read_pci(host(name)).by_address
    expected = {device["bdf"]: device for device in recorded.expectations()[name]["pci"]}
    assert set(found) - NOT_EXPECTED.get(name, set()) == set(expected)
    disputed = {"parents", "localCpulist"}
    for address, wanted in expected.items():
        facts = known(pci_facts(found[address]), wanted)
        facts = {key: value for key, value in facts.items() if key in wanted or key not in disputed}
        assert facts == {
            key: None if (key, value) == ("numaNode", -1) else value for key, value in wanted.items()
        }


@needs_recorded
@pytest.mark.parametrize("name", [name for name in recorded.dump_names() if name not in with_key("pci")])
def test_machines_without_pci_have_none(name: str) -> None:
    assert read_pci(host(name)).by_address == {}


@needs_recorded
@pytest.mark.parametrize("name", with_key("net"))
def test_network_interfaces_of_recorded_machines(name: str) -> None:
    expected = {interface["name"]: interface for interface in recorded.expectations()[name]["net"]}
    found = {interface.name: interface for interface in read_net_interfaces(host(name))}
    assert set(found) == set(expected)
    for interface, wanted in expected.items():
        read = found[interface]
        facts = {
            "name": read.name,
            "pciBusID": read.pci_address,
            "virtual": read.virtual,
            "address": read.address,
            "operstate": read.operstate,
            "type": read.type,
            "mtu": read.mtu,
            "speedMbps": read.speed_mbps,
            "devId": read.dev_id,
            "devPort": read.dev_port,
        }
        if read.virtual:  # the expectations tell no more of them
            facts = {key: facts[key] for key in wanted}
        assert known(facts, wanted) == wanted
    behind = {interface["name"]: interface["pciBusID"] for interface in expected.values()}
    devices = read_pci(host(name)).by_address
    assert {net: address for address, device in devices.items() for net in device.net} == {
        net: address for net, address in behind.items() if address
    }


@needs_recorded
@pytest.mark.parametrize("name", with_key("infiniband"))
def test_rdma_devices_of_recorded_machines(name: str) -> None:
    expected = {device["name"]: device for device in recorded.expectations()[name]["infiniband"]}
    found = {device.name: device for device in read_infiniband(host(name))}
    assert set(found) - NOT_EXPECTED.get(name, set()) == set(expected)
    for device, wanted in expected.items():
        read = found[device]
        facts = {
            "name": read.name,
            "pciBusID": read.pci_address,
            "nodeGuid": read.node_guid,
            "sysImageGuid": read.sys_image_guid,
            "nodeType": read.node_type,
            "fwVer": read.fw_version,
            "boardId": read.board_id,
            "ports": [
                {
                    "port": port.number,
                    "state": port.state,
                    "rate": port.rate,
                    "linkLayer": port.link_layer,
                    "lid": port.lid,
                }
                for port in read.ports
            ],
        }
        assert known(facts, wanted) == wanted
        assert device in read_pci(host(name)).by_address[wanted["pciBusID"]].infiniband


@needs_recorded
def test_cards_behind_one_switch_know_it() -> None:
    machine = host("hwloc-32intel64-2p8co2t-8ve")
    engines = [device for device in read_pci(machine).by_address.values() if device.base_class == 0x0B]
    assert len(engines) == 8
    assert {device.pcie_switch for device in engines} == {"0000:18:00.0", "0000:3b:00.0"}
    for device in engines:
        assert device.path
        assert device.pcie_switch in device.path.above
        assert pcie_switch(machine, device.address) == device.pcie_switch
        assert pcie_root(machine, device.address) == device.pcie_root


@needs_recorded
def test_a_bridge_that_is_not_on_the_bus_list_counts_all_the_same() -> None:
    card = read_pci(host("hwloc-32intel64-2p8co2t-8ve")).by_address["0000:60:00.0"]
    assert card.path
    assert card.path.above == ("0000:5d:02.0", "0000:5e:00.0", "0000:5f:03.0")
    assert card.pcie_switch == "0000:5e:00.0"


@needs_recorded
def test_a_host_without_device_paths_has_no_roots() -> None:
    machine = host("hwloc-nvidiagpunumanodes")
    devices = read_pci(machine).by_address
    assert len(devices) == 6
    assert {device.pcie_root for device in devices.values()} == {None}
    assert pcie_root(machine, "0004:05:00.0") is None


@pytest.mark.parametrize(
    ("path", "root", "above", "switch"),
    [
        ("pci0000:00/0000:00:03.0", "pci0000:00", "", None),
        ("pci0000:00/0000:00:1c.0/0000:04:00.0", "pci0000:00", "00:1c.0", None),
        # A bridge to a conventional bus is no switch, and one below a switch does not hide it.
        ("pci0000:00/0000:00:1c.0/0000:04:00.0/0000:05:00.0", "pci0000:00", "00:1c.0 04:00.0", None),
        (
            "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:04.0/0000:1a:00.0",
            "pci0000:17",
            "17:00.0 18:00.0 19:04.0",
            "0000:18:00.0",
        ),
        (
            "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:04.0/0000:1a:00.0/0000:1b:00.0",
            "pci0000:17",
            "17:00.0 18:00.0 19:04.0 1a:00.0",
            "0000:18:00.0",
        ),
        # The nearest of two switches.
        (
            "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:04.0/0000:1a:00.0/0000:1b:08.0/0000:1c:00.0",
            "pci0000:17",
            "17:00.0 18:00.0 19:04.0 1a:00.0 1b:08.0",
            "0000:1a:00.0",
        ),
        # Arm and Hyper-V hang host bridges below devices of the platform.
        ("platform/40000000.pcie/pci0002:00/0002:00:00.0/0002:01:00.0", "pci0002:00", "0002:00:00.0", None),
    ],
)
def test_a_path_tells_root_and_switch(path: str, root: str, above: str, switch: str | None) -> None:
    found = parse_pci_path(f"sys/devices/{path}")
    assert found
    full = tuple(part if part.count(":") == 2 else f"0000:{part}" for part in above.split())
    assert (found.root, found.above, found.switch) == (root, full, switch)
    assert found.address == path.rpartition("/")[2]
    assert parse_pci_path(f"sys/devices/{path}/net/eth0") == found


def test_the_root_of_a_disk_behind_a_volume_management_device_is_that_of_the_cpu() -> None:
    path = "sys/devices/pci0000:64/0000:64:05.5/pci10000:00/10000:00:02.0/10000:01:00.0"
    found = parse_pci_path(path)
    assert found
    assert (found.root, found.address, found.switch) == ("pci0000:64", "10000:01:00.0", None)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("0000:3b:00", None),
        ("0000:3b:20.0", None),
        ("0000:3b:00.8", None),
        ("../../etc", None),
        ("", None),
    ],
)
def test_addresses_are_understood_in_all_common_forms(text: str, address: str | None) -> None:
    assert pci_address(text) == address


def test_a_place_is_what_is_known_of_it(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    root, near, lost = "sys/devices/pci0000:3a", "0000:3b:00.0", "0000:3c:00.0"
    for address, node in ((near, 1), (lost, -1)):
        tree.write(f"{root}/{address}/numa_node", str(node))
        tree.link(f"sys/bus/pci/devices/{address}", f"/{root}/{address}")
    tree.link(f"{root}/{near}/iommu_group", "/sys/kernel/iommu_groups/20")
    there = Host(tmp_path)
    sockets = NodeSockets(there)
    assert pci_place(there, near, sockets) == {
        PCIE_ROOT: "pci0000:3a",
        PCI_BUS_ID: near,
        NUMA_NODE: 1,
        SOCKET_ID: 1,
    }
    assert pci_place(there, lost, sockets) == {PCIE_ROOT: "pci0000:3a", PCI_BUS_ID: lost}
    assert pci_place(there, "0000:3d:00.0", sockets) == {PCI_BUS_ID: "0000:3d:00.0"}
    assert (sockets.of(0), sockets.of(7)) == (0, None)
    assert (iommu_group(there, near), iommu_group(there, lost)) == (20, None)


def test_a_wrong_address_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"PCI address: '\.\./x': one like 0000:3b:00\.0 is expected"):
        pcie_root(Host(), "../x")


def card(tree: HostTree, address: str, where: str, **files: str | int) -> str:
    """Add a PCI function; return its directory."""
    directory = f"sys/devices/{where}/{address}"
    for name, value in files.items():
        tree.write(f"{directory}/{name}", str(value))
    tree.link(f"sys/bus/pci/devices/{address}", f"../../../devices/{where}/{address}")
    return directory


def test_virtual_functions_know_their_card_and_it_knows_them(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    where = "pci0000:8a/0000:8a:01.0"
    physical = card(
        tree, "0000:8b:00.0", where, **{"class": "0x020000"}, sriov_totalvfs=64, sriov_numvfs=11, numa_node=1
    )
    for number in range(11):
        address = f"0000:8b:01.{number}" if number < 8 else f"0000:8b:02.{number - 8}"
        virtual = card(tree, address, where, **{"class": "0x020000"}, numa_node=-1)
        tree.link(f"{virtual}/physfn", "../0000:8b:00.0")
        tree.link(f"{physical}/virtfn{number}", f"../{address}")
    tree.link(f"{physical}/driver", "../../../../bus/pci/drivers/mlx5_core")
    tree.link(f"{physical}/iommu_group", "../../../../kernel/iommu_groups/42")

    found = read_pci(Host(tmp_path)).by_address

    pf = found["0000:8b:00.0"]
    assert (pf.sriov_total, pf.sriov_num, pf.numa_node, pf.physfn) == (64, 11, 1, None)
    assert (pf.driver, pf.iommu_group) == ("mlx5_core", 42)
    assert pf.virtfns == (*(f"0000:8b:01.{n}" for n in range(8)), *(f"0000:8b:02.{n}" for n in range(3)))
    vf = found[pf.virtfns[9]]
    assert (vf.physfn, vf.numa_node, vf.sriov_total, vf.virtfns) == ("0000:8b:00.0", None, None, ())


def test_what_is_odd_is_unknown_and_noted_and_the_rest_is_read(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    card(tree, "0000:01:00.0", "pci0000:00/0000:00:01.0", **{"class": "none"}, vendor="0x8086", numa_node="x")
    card(
        tree,
        "0000:02:00.0",
        "pci0000:00/0000:00:02.0",
        current_link_speed="Unknown speed",
        current_link_width=0,
        max_link_width=255,
        local_cpulist="0-3,8",
    )
    tree.link("sys/bus/pci/devices/0000:03:00.0", "../../../devices/pci0000:00/gone")
    tree.link("sys/bus/pci/devices/0000:04:00.0", "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0")
    tree.write("sys/bus/pci/devices/README", "no device")

    found = read_pci(Host(tmp_path))

    first, second, gone, other = found.by_address.values()
    assert (first.class_code, first.base_class, first.vendor, first.numa_node) == (None, None, 0x8086, None)
    assert (second.current_link, second.max_link.width) == (PCILink(None, None), None)
    assert second.local_cpus == CPUSet.parse("0-3,8")
    assert (gone.address, gone.path, gone.class_code) == ("0000:03:00.0", None, None)
    assert (other.address, other.path) == ("0000:04:00.0", None)
    for odd in (
        "class: 'none' is not a hexadecimal number",
        "numa_node: 'x' is not a number",
        "no PCI address",
    ):
        assert any(odd in note for note in found.notes)
    assert any("0000:03:00.0: holds nothing that can be read" in note for note in found.notes)


def test_functions_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    for address in ("10000:00:02.0", "0000:ff:00.0", "0001:00:00.0"):
        card(tree, address, f"pci{address[:-5]}")
    assert list(read_pci(Host(tmp_path)).by_address) == ["0000:ff:00.0", "0001:00:00.0", "10000:00:02.0"]


def test_a_host_without_sysfs_has_no_devices(tmp_path: Path) -> None:
    empty = Host(tmp_path)
    assert read_pci(empty).by_address == {}
    assert read_net_interfaces(empty) == ()
    assert read_infiniband(empty) == ()


def test_the_device_behind_an_interface_is_known_though_its_files_are_not_there(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.write("sys/class/net/bonding_masters", "bond0")
    tree.link("sys/class/net/bond0", "../../devices/virtual/net/bond0")
    tree.link("sys/class/net/eth0", "../../devices/pci0000:00/0000:00:03.0/virtio0/net/eth0")
    tree.link("sys/class/net/loop", "loop")
    found = {one.name: (one.pci_address, one.virtual) for one in read_net_interfaces(Host(tmp_path))}
    assert found == {"bond0": (None, True), "eth0": ("0000:00:03.0", False), "loop": (None, False)}


def test_the_network_interfaces_of_this_machine_are_those_of_its_sysfs() -> None:
    here = Path("/sys/class/net")
    names = sorted(path.name for path in here.iterdir() if path.is_symlink()) if here.is_dir() else []
    found = {one.name: one for one in read_net_interfaces(Host())}
    assert sorted(found) == names
    for name, interface in found.items():
        assert interface.virtual == ("/virtual/" in str((here / name).resolve()))
        if interface.pci_address:
            assert interface.pci_address in str((here / name).resolve())
