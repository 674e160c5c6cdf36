"""What is published of network cards: which of their functions, under what names, and what is kept for the host."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dradriver.model import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, PCIE_SWITCH, PoolContent, Quantity
from dradriver.slices import Pool, pool_specs
from dradriver_nic.away import Moved
from nicnode import NicNode, device_of, function_of, link_of_card, names, vf_info

PF = "0000:8a:00.0"
CARD = "nic-0000-8a-00-0"
VFS = [f"nic-0000-8a-00-{number}" for number in (1, 2, 3)]


def whole(content: PoolContent) -> bool:
    """Return whether all of it fits into slices as it is."""
    specs = pool_specs(Pool("nic.dradriver.io", "node", "node/nic"), content)
    return not specs.left_out and not specs.warnings


@pytest.fixture
def node(tmp_path: Path) -> NicNode:
    """Return a node with a card of three virtual functions, and another that the default route leads over."""
    made = NicNode(tmp_path / "host")
    made.plug("0000:01:00.0", driver="ixgbe")
    made.routes.add(made.add_link("eth0", "0000:01:00.0", speed=10_000))
    made.plug(PF, above="pci0000:80/0000:80:01.0", node=1, total=8)
    made.add_link("ens1", PF, speed=100_000)
    made.make_vfs(PF, 3, links="ens1v")
    return made


# --- modes


def test_a_card_offers_its_virtual_functions_or_where_it_has_none_itself(node: NicNode) -> None:
    node.plug("0000:9a:00.0", total=4)
    node.add_link("ens2", "0000:9a:00.0")
    content = node.offered()
    assert names(content) == [*VFS, "nic-0000-9a-00-0"]
    assert not content.counter_sets
    assert all(not device.consumes for device in content.devices)


def test_a_card_offers_itself_where_it_is_asked_to(node: NicNode) -> None:
    content = node.offered({"modes": {"ens1": "pf"}})
    assert names(content) == [CARD]


def test_a_card_is_picked_by_an_alternative_name_of_its_interface_too(node: NicNode) -> None:
    index = next(index for index, link in node.links.items() if link.name == "ens1")
    node.links[index] = dataclasses.replace(node.links[index], altnames=("fabric-0",))
    content = node.offered({"modes": {"fabric-*": "shares"}, "bandwidths": {"fabric-0": "40G"}})
    assert device_of(content, CARD).capacity["bandwidth"].value == Quantity.parse("40G")


def test_options_that_concern_nothing_here_are_told(node: NicNode) -> None:
    """They may be meant for other nodes of the cluster, so that it is no warning."""
    content = node.offered(
        {
            "modes": {"ens1": "pf", "ens9*": "shares"},
            "bandwidths": {"mlx4*": "40G"},
            "virtualLinks": ["dummi"],
            "devices": "device.name == ''",
        }
    )
    assert [*content.notes][-4:] == [
        "modes: 'ens9*' fits no card here",
        "bandwidths: 'mlx4*' fits no card here",
        "virtualLinks: there is no link of kind dummi here",
        "the option devices leaves out 1 of 1",
    ]
    assert not content.warnings


def test_both_draw_on_one_counter_set(node: NicNode) -> None:
    content = node.offered({"mode": "both"})
    assert names(content) == [*VFS, CARD]
    (counters,) = content.counter_sets
    assert counters.name == CARD
    assert counters.counters == {"vf": Quantity.from_int(8)}
    drawn = [device.consumes[CARD]["vf"].to_int() for device in content.devices]
    assert drawn == [1, 1, 1, 8]


def test_a_card_without_virtual_functions_needs_no_counters(node: NicNode) -> None:
    node.plug("0000:9a:00.0")
    node.add_link("ens2", "0000:9a:00.0")
    device = device_of(node.offered({"mode": "both"}), "nic-0000-9a-00-0")
    assert not device.consumes


def test_an_idle_card_offers_functions_that_are_yet_to_be_made(node: NicNode) -> None:
    node.plug(
        "0000:9a:00.0", above="pci0000:80/0000:80:02.0", node=1, total=4, sriov_offset="128", sriov_stride="2"
    )
    node.add_link("ens2", "0000:9a:00.0", speed=25_000)
    options = {"modes": {"ens2": "on-demand"}, "onDemandVFs": 3}
    content = node.offered(options)
    made = ["nic-0000-9a-10-0", "nic-0000-9a-10-2", "nic-0000-9a-10-4"]
    assert names(content) == [*VFS, *made]
    device = device_of(content, made[1])
    assert device.physical == "nic-0000-9a-00-0"
    assert device.attributes == {
        "isSriovVf": True,
        "rdma": False,
        "speed": 25_000,
        "pfName": "ens2",
        "pfBusID": "0000:9a:00.0",
        "vendorID": "0x15b3",
        PCI_BUS_ID: "0000:9a:10.2",
        PCIE_ROOT: "pci0000:80",
        NUMA_NODE: 1,
        "dradriver.io/socketID": 1,
    }
    inventory = node.backend(options).probe()
    function = function_of(inventory, made[1])
    assert (function.exists, function.number, function.physfn) == (
        False,
        1,
        "0000:9a:00.0",
    )


def test_functions_that_stand_are_offered_as_they_are_and_none_are_made_over_them(node: NicNode) -> None:
    content = node.offered({"modes": {CARD: "on-demand"}, "onDemandVFs": 8})
    assert names(content) == VFS


def test_no_functions_are_made_on_a_card_that_the_host_uses(node: NicNode) -> None:
    node.plug("0000:9a:00.0", total=4)
    node.routes.add(node.add_link("ens2", "0000:9a:00.0"))
    content = node.offered({"modes": {"ens2": "on-demand"}})
    assert names(content) == VFS
    assert "ens2 (nic-0000-9a-00-0) is not offered: the host's default route leads over it" in content.notes


def test_bandwidth_is_shared_in_megabits(node: NicNode) -> None:
    (device,) = node.offered({"mode": "shares", "devices": "device.name == 'nic-0000-8a-00-0'"}).devices
    assert device.shared
    capacity = device.capacity["bandwidth"]
    assert capacity.value == Quantity.parse("100G")
    assert capacity.policy
    assert capacity.policy.valid_range
    assert capacity.policy.default == Quantity.parse("1G")
    assert capacity.policy.valid_range.step == capacity.policy.valid_range.min == Quantity.parse("1M")


def test_shares_by_virtual_functions_are_counted_too(node: NicNode) -> None:
    (device,) = node.offered({"mode": "vf-shares", "devices": "device.name == 'nic-0000-8a-00-0'"}).devices
    assert device.shared
    assert device.capacity["bandwidth"].value == Quantity.parse("100G")
    vfs = device.capacity["vfs"]
    assert vfs.value == Quantity.from_int(3)
    assert vfs.policy
    assert vfs.policy.valid_values == (Quantity.from_int(1),)


def test_a_card_of_unknown_speed_is_shared_once_it_is_told(node: NicNode) -> None:
    node.plug("0000:9a:00.0", driver="virtio-pci")
    node.add_link("ens2", "0000:9a:00.0")
    options = {"modes": {"ens2": "shares"}}
    content = node.offered(options)
    assert names(content) == VFS
    assert (
        "nic-0000-9a-00-0 is not offered: it does not say how fast it is; set bandwidths, or its link up"
        in (content.warnings)
    )
    device = device_of(node.offered({**options, "bandwidths": {"virtio*": "2500M"}}), "nic-0000-9a-00-0")
    assert device.capacity["bandwidth"].value == Quantity.parse("2500M")


def test_the_speed_of_a_link_that_goes_down_is_remembered(node: NicNode) -> None:
    backend = node.backend({"mode": "shares"})
    before = backend.devices(backend.probe())
    node.links = {
        index: dataclasses.replace(link, speed_mbps=None, state="down") for index, link in node.links.items()
    }
    after = device_of(backend.devices(backend.probe()), CARD)
    assert after.capacity == device_of(before, CARD).capacity
    assert after.attributes["state"] == "down"


def test_a_card_of_less_than_two_megabits_has_one_amount(node: NicNode) -> None:
    device = device_of(node.offered({"mode": "shares", "bandwidths": {"ens1": "1M"}}), CARD)
    policy = device.capacity["bandwidth"].policy
    assert policy
    assert policy.valid_values == (Quantity.parse("1M"),)


# --- what is kept for the host


def test_the_card_of_the_default_route_is_kept_but_not_its_virtual_functions(node: NicNode) -> None:
    node.routes = {index for index, link in node.links.items() if link.name == "ens1"}
    content = node.offered({"mode": "both"})
    assert names(content) == ["nic-0000-01-00-0", *VFS]
    assert content.notes == (
        "ens1 (nic-0000-8a-00-0) is not offered: the host's default route leads over it",
    )


def test_a_function_that_is_bonded_to_the_uplink_is_kept_and_its_card_with_it(node: NicNode) -> None:
    eth0 = next(index for index, link in node.links.items() if link.name == "eth0")
    bond = node.add_link("bond0", LINKINFO={"attrs": [("IFLA_INFO_KIND", "bond")]})
    for name in ("eth0", "ens1v1"):
        index = next(index for index, link in node.links.items() if link.name == name)
        node.links[index] = dataclasses.replace(node.links[index], master=bond)
    node.routes = {bond}
    assert eth0 in node.backend().probe().uplink
    content = node.offered({"mode": "both"})
    assert names(content) == [VFS[0], VFS[2]]
    assert (
        "ens1v1 (nic-0000-8a-00-2) is not offered: it belongs to a link of the host's default route"
        in content.notes
    )
    assert (
        "ens1 (nic-0000-8a-00-0) is not offered: one of its virtual functions belongs to the host"
        in content.notes
    )


def test_a_port_of_a_bridge_is_kept(node: NicNode) -> None:
    bridge = node.add_link("br0", LINKINFO={"attrs": [("IFLA_INFO_KIND", "bridge")]})
    node.plug("0000:9a:00.0")
    node.add_link("ens2", "0000:9a:00.0", MASTER=bridge)
    content = node.offered()
    assert names(content) == VFS
    assert "ens2 (nic-0000-9a-00-0) is not offered: it is a port of br0" in content.notes


def test_a_card_with_a_vlan_of_the_host_is_shared_but_not_given_away(node: NicNode) -> None:
    node.plug("0000:9a:00.0")
    base = node.add_link("ens2", "0000:9a:00.0", speed=25_000)
    node.add_link("storage", LINK=base, LINKINFO={"attrs": [("IFLA_INFO_KIND", "vlan")]})
    content = node.offered()
    assert names(content) == VFS
    assert "ens2 (nic-0000-9a-00-0) is not offered: storage is made on it" in content.notes
    assert "nic-0000-9a-00-0" in names(node.offered({"modes": {"ens2": "shares"}}))


def test_a_host_without_a_default_route_is_told_that_nothing_is_kept(node: NicNode) -> None:
    node.routes = set()
    content = node.offered()
    assert "nic-0000-01-00-0" in names(content)
    assert len(content.warnings) == 1
    assert "no default route" in content.warnings[0]


def test_a_daemon_in_another_network_namespace_than_the_host_says_so(node: NicNode) -> None:
    assert not node.offered().warnings
    node.tree.write("proc/1/ns/net", "")
    (warning,) = node.offered().warnings
    assert "hostNetwork" in warning
    assert not node.offered({"networkNamespace": "/run/netns/host"}).warnings


def test_the_uplink_stays_the_uplink_while_its_routes_are_gone(node: NicNode) -> None:
    backend = node.backend()
    assert names(backend.devices(backend.probe())) == VFS
    node.routes = set()
    assert names(backend.devices(backend.probe())) == VFS
    ens1 = next(index for index, link in node.links.items() if link.name == "ens1")
    node.routes = {ens1}
    assert names(backend.devices(backend.probe())) == ["nic-0000-01-00-0", *VFS]


# --- names, attributes, filter


def test_a_node_without_cards_has_no_devices(tmp_path: Path) -> None:
    assert names(NicNode(tmp_path / "host").offered()) == []


def test_a_function_without_a_driver_is_left_out_and_one_for_virtual_machines_is_not(node: NicNode) -> None:
    for name, driver in zip(("ens1v0", "ens1v1"), ("", "vfio-pci"), strict=True):
        address = node.drop_link(name).device
        node.bind(address, driver)
    content = node.offered()
    assert names(content) == VFS[1:]
    assert "nic-0000-8a-00-1 is not offered: no kernel driver is bound to it" in content.notes
    device = device_of(content, VFS[1])
    assert device.attributes["driver"] == "vfio-pci"
    assert "ifName" not in device.attributes


def test_of_a_switchdev_card_the_uplink_port_is_its_link_and_representors_are_none(node: NicNode) -> None:
    switch: dict[str, Any] = {"PHYS_SWITCH_ID": "001122"}
    pf = node.plug("0000:9a:00.0", total=2)
    node.add_link("eth4", pf, PHYS_PORT_NAME="pf0vf0", **switch)
    node.add_link("ens2np0", pf, PHYS_PORT_NAME="p0", **switch)
    node.add_link("eth5", pf, PHYS_PORT_NAME="pf0vf1", **switch)
    node.make_vfs(pf, 2, links="ens2v")
    device = device_of(node.offered({"modes": {"ens2np0": "pf"}}), "nic-0000-9a-00-0")
    assert device.attributes["ifName"] == "ens2np0"
    assert device.attributes["switchID"]
    assert names(node.offered()) == [*VFS, "nic-0000-9a-00-1", "nic-0000-9a-00-2"]


def test_each_port_of_one_function_is_a_device(node: NicNode) -> None:
    pf = node.plug("0000:9a:00.0", driver="mlx4_core")
    for port, name in enumerate(("ens2", "ens2d1")):
        node.add_link(name, pf)
        node.write(pf, f"net/{name}/dev_port", str(port))
    backend = node.backend()
    inventory = backend.probe()
    content = backend.devices(inventory)
    assert names(content) == [*VFS, "nic-0000-9a-00-0", "nic-0000-9a-00-0-port-1"]
    gone = node.drop_link("ens2")
    link = link_of_card(inventory, "nic-0000-9a-00-0")
    assert link.name == gone.name
    backend.away.add("nic-0000-9a-00-0", Moved(link))
    assert backend.devices(backend.probe()) == content


def test_rdma_is_known_by_its_devices(node: NicNode) -> None:
    node.add_rdma(PF, "mlx5_0", 0)
    node.add_rdma("0000:8a:00.1", "mlx5_2", 2)
    node.tree.write("dev/infiniband/rdma_cm", "").write("sys/module/ib_core/parameters/netns_mode", "N")
    backend = node.backend({"mode": "both"})
    inventory = backend.probe()
    content = backend.devices(inventory)
    rdma = {
        device.name: device.attributes.get("rdmaDevice")
        for device in content.devices
        if device.attributes["rdma"]
    }
    assert rdma == {VFS[0]: "mlx5_2", CARD: "mlx5_0"}
    function = function_of(inventory, VFS[0])
    (device,) = function.rdma
    assert device.char_devices == tuple(
        f"/dev/infiniband/{name}" for name in ("issm2", "umad2", "uverbs2", "rdma_cm")
    )
    assert inventory.rdma_exclusive


def test_an_rdma_device_without_an_interface_is_offered(node: NicNode) -> None:
    efa = node.plug("0000:9a:00.0", driver="efa")
    node.add_rdma(efa, "rdmap154s0", 4)
    device = device_of(node.offered(), "nic-0000-9a-00-0")
    assert device.attributes["rdma"] is True
    assert "ifName" not in device.attributes


def test_cards_next_to_the_gpus_have_their_rail(node: NicNode) -> None:
    for number, bus in enumerate(("10", "20")):
        switch = f"pci0000:{bus}/0000:{bus}:01.0/0000:{bus}:00.0/"
        gpu = f"0000:{bus[0]}8:00.0"
        node.plug(gpu, above=f"{switch}0000:{bus[0]}1:00.0", driver="nvidia", kind="0x030200")
        address = node.plug(f"0000:{bus[0]}a:00.0", above=f"{switch}0000:{bus[0]}1:01.0", total=4)
        node.add_link(f"rail{number}", address)
    node.make_vfs("0000:2a:00.0", 1, links="rail1v")
    content = node.offered({"mode": "both"})
    rails = {device.name: device.attributes.get("dradriver.io/rail") for device in content.devices}
    assert rails == {
        **dict.fromkeys([*VFS, CARD]),
        "nic-0000-1a-00-0": 0,
        "nic-0000-2a-00-0": 1,
        "nic-0000-2a-00-1": 1,
    }
    first = device_of(content, "nic-0000-1a-00-0")
    assert first.attributes[PCIE_SWITCH] == "0000:10:00.0"


def test_links_without_a_device_are_offered_by_kind(node: NicNode) -> None:
    for name, kind in (("dummy0", "dummy"), ("v.10", "vlan"), ("Überlang", "dummy")):
        node.add_link(name, LINKINFO={"attrs": [("IFLA_INFO_KIND", kind)]})
    assert names(node.offered()) == VFS
    content = node.offered({"virtualLinks": ["dummy"]})
    assert names(content)[:-2] == VFS
    assert names(content)[-1] == "nic-link-dummy0"
    assert names(content)[-2].startswith("nic-link-berlang-")
    device = device_of(content, "nic-link-dummy0")
    assert device.attributes["virtual"] is True
    assert device.attributes["type"] == "dummy"
    assert whole(content)


def test_hardware_elsewhere_than_on_the_pci_bus_is_named_by_where_it_is(node: NicNode) -> None:
    node.add_link("enx1", PARENT_DEV_NAME="2-1.4:1.0", PARENT_DEV_BUS_NAME="usb")
    node.add_link("en0f0s1", PARENT_DEV_NAME="mlx5_core.sf.4", PARENT_DEV_BUS_NAME="auxiliary")
    found = [name for name in names(node.offered()) if name not in VFS]
    assert [name.rpartition("-")[0] for name in found] == [
        "nic-auxiliary-mlx5-core-sf-4",
        "nic-usb-2-1-4-1-0",
    ]


def test_the_filter_sees_attributes_and_capacities(node: NicNode) -> None:
    expression = 'device.attributes["nic.dradriver.io"].ifName.startsWith("ens1v") && device.name != "nic-0000-8a-00-2"'
    assert names(node.offered({"devices": expression})) == [VFS[0], VFS[2]]
    content = node.offered(
        {"mode": "both", "devices": 'device.attributes["nic.dradriver.io"].isSriovVf == false'}
    )
    assert names(content) == [CARD]
    content = node.offered({"devices": 'device.attributes["nic.dradriver.io"].switchID == "1"'})
    assert names(content) == []
    assert len(content.warnings) == 1
    assert "is left out, as maybe others" in content.warnings[0]


# --- what is in pods


def test_what_is_in_a_pod_stays_published_as_it_was(node: NicNode) -> None:
    backend = node.backend({"mode": "both", "virtualLinks": ["veth"]})
    node.add_rdma("0000:8a:00.1", "mlx5_2", 2)
    node.add_link("veth7", LINKINFO={"attrs": [("IFLA_INFO_KIND", "veth")]})
    inventory = backend.probe()
    content = backend.devices(inventory)
    function = function_of(inventory, VFS[0])
    backend.away.add(VFS[0], Moved(function.link, function.rdma))
    backend.away.add("nic-link-veth7", Moved(link_of_card(inventory, "nic-link-veth7")))
    node.drop_link("ens1v0")
    node.drop_link("veth7")
    moved = backend.probe()
    assert backend.devices(moved) == content
    assert function_of(moved, VFS[0]).away
    # Another daemon knows of nothing yet: what it does not see it does not offer.
    unaware = node.offered({"mode": "both", "virtualLinks": ["veth"]})
    assert VFS[1] in names(unaware)
    assert VFS[0] in names(unaware)  # by its RDMA device, which it still has here
    assert "nic-link-veth7" not in names(unaware)


def test_a_card_in_a_pod_that_is_pulled_out_is_gone(node: NicNode) -> None:
    backend = node.backend()
    inventory = backend.probe()
    function = function_of(inventory, VFS[0])
    backend.away.add(VFS[0], Moved(function.link))
    node.drop_link("ens1v0")
    (node.directory / "sys/bus/pci/devices/0000:8a:00.1").unlink()
    assert names(backend.devices(backend.probe())) == VFS[1:]


def test_what_came_back_is_seen_as_it_is_now(node: NicNode) -> None:
    backend = node.backend()
    inventory = backend.probe()
    function = function_of(inventory, VFS[0])
    assert function.link
    backend.away.add(VFS[0], Moved(function.link))
    node.links[function.link.index] = dataclasses.replace(function.link, name="renamed", mtu=9000)
    device = device_of(backend.devices(backend.probe()), VFS[0])
    assert (device.attributes["ifName"], device.attributes["mtu"]) == ("renamed", 9000)


def test_a_function_that_is_bound_for_a_virtual_machine_keeps_what_is_known_of_it(node: NicNode) -> None:
    backend = node.backend()
    function = function_of(backend.probe(), VFS[0])
    backend.away.add(VFS[0], Moved(function.link))
    node.drop_link("ens1v0")
    node.bind(function.address, "vfio-pci")
    inventory = backend.probe()
    device = device_of(backend.devices(inventory), VFS[0])
    assert not function_of(inventory, VFS[0]).away
    assert (device.attributes["ifName"], device.attributes["driver"]) == ("ens1v0", "vfio-pci")


def test_settings_of_virtual_functions_are_read(node: NicNode) -> None:
    vlan = (
        "IFLA_VF_VLAN_LIST",
        {"attrs": [("IFLA_VF_VLAN_INFO", {"vf": 1, "vlan": 100, "qos": 3, "vlan_proto": 0x88A8})]},
    )
    infos = [
        vf_info(0),
        vf_info(
            1,
            vlan,
            ("IFLA_VF_SPOOFCHK", {"vf": 1, "spoofchk": 1}),
            ("IFLA_VF_TRUST", {"vf": 1, "trust": 0}),
            ("IFLA_VF_LINK_STATE", {"vf": 1, "link_state": 2}),
            ("IFLA_VF_RATE", {"vf": 1, "min_tx_rate": 100, "max_tx_rate": 1000}),
            mac="02:11:22:33:44:55",
        ),
    ]
    node.plug("0000:9a:00.0", total=2)
    node.add_link("ens2", "0000:9a:00.0", VFINFO_LIST={"attrs": infos})
    plain, second = link_of_card(node.backend().probe(), "nic-0000-9a-00-0").vfs
    assert (plain.vlan, plain.spoof_check, plain.trust, plain.max_rate) == (0, None, None, None)
    assert (second.number, second.mac, second.vlan, second.qos) == (1, "02:11:22:33:44:55", 100, 3)
    assert (second.spoof_check, second.trust, second.link_state) == (True, False, 2)
    assert (second.min_rate, second.max_rate) == (100, 1000)


def test_hundreds_of_devices_fit_into_slices(tmp_path: Path) -> None:
    node = NicNode(tmp_path / "host")
    for number in range(16):
        pf = node.plug(f"0000:{0x10 + 8 * number:02x}:00.0", total=127)
        node.add_link(f"ens{number}", pf, speed=200_000)
        node.make_vfs(pf, 31, links=f"ens{number}v")
    content = node.offered({"mode": "both"})
    assert len(content.devices) == 512
    assert whole(content)
