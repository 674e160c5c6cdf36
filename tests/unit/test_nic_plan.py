"""What a claim for network cards comes to: steps as data, names and addresses, what is held, what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import Phase, PlanError
from dradriver.model import ClaimRef, NetworkData
from dradriver_nic import NicBackend
from nicclaims import Life, claimed
from nicnode import NicNode

PF, VF1, VF2 = "nic-0000-15-01-0", "nic-0000-15-01-1", "nic-0000-15-01-2"
SHARED = "nic-0000-16-01-0"
OTHER = ClaimRef("uid-other", "default", "other")


@pytest.fixture
def node(tmp_path: Path) -> NicNode:
    made = NicNode(tmp_path)
    made.plug("0000:14:00.0")
    made.plug("0000:15:01.0", total=8)
    made.plug("0000:16:01.0")
    made.routes.add(made.add_link("eth0", "0000:14:00.0"))
    made.add_link("fab0", "0000:15:01.0", MIN_MTU=68, MAX_MTU=9000, MTU=9000)
    made.make_vfs("0000:15:01.0", 2, links="fab0v")
    made.add_link("fab1", "0000:16:01.0", speed=100_000)
    return made


@pytest.fixture
def backend(node: NicNode) -> NicBackend:
    return node.backend({"modes": {SHARED: "shares"}})


def told(life: Life) -> list[NetworkData | None]:
    return [device.network for device in life.plan.devices]


def types(life: Life) -> list[tuple[str, Phase]]:
    return [(record.type, record.phase) for record in life.records]


def refused(backend: NicBackend, *devices: str, **given: Any) -> str:
    with pytest.raises(PlanError) as error:
        claimed(backend, *devices, **given)
    return str(error.value)


def test_a_function_is_moved_as_it_is(backend: NicBackend, node: NicNode) -> None:
    life = claimed(backend, VF1)
    assert types(life) == [("MoveLink", Phase.SANDBOX)]
    link = next(link for link in node.links.values() if link.name == "fab0v0")
    assert told(life) == [NetworkData("fab0v0", (), link.mac)]
    assert life.plan.holds == frozenset()


def test_a_share_has_a_name_and_an_address_of_its_own_at_each_plan(backend: NicBackend) -> None:
    life = claimed(backend, SHARED, SHARED)
    assert types(life) == [("ShareCard", Phase.PREPARE), ("AddMacvlan", Phase.SANDBOX)] * 2
    first, second = told(life)
    assert first
    assert second
    assert (first.interface, second.interface) == ("net0", "net1")
    assert first.hardware_address != second.hardware_address
    assert int(first.hardware_address[:2], 16) == 0x02
    assert told(claimed(backend, SHARED, SHARED)) == [first, second]
    assert told(claimed(backend, SHARED, name="b"))[0] != first
    assert life.plan.holds == {f"macvlan:{SHARED}:uid-claim-0", f"macvlan:{SHARED}:uid-claim-1"}


@pytest.mark.parametrize(("asked", "bits"), [("", 10**9), ("25G", 25 * 10**9), ("1M", 10**6)])
def test_a_share_is_limited_to_what_was_allocated(backend: NicBackend, asked: str, bits: int) -> None:
    (share, _) = claimed(backend, SHARED, bandwidth=asked).records
    assert share.body["bandwidth"] == bits


def test_less_than_a_megabit_is_refused(backend: NicBackend) -> None:
    assert "bandwidth '500k' is too little: one megabit a second" in refused(
        backend, SHARED, bandwidth="500k"
    )


def test_each_device_gets_the_next_addresses_of_the_pool(backend: NicBackend) -> None:
    pool = {"addressPool": {"cidr": ["10.9.0.0/29", "2001:db8::/64"], "reserved": ["10.9.0.1"]}}
    life = claimed(backend, SHARED, VF1, config=pool)
    assert [network.ips for network in told(life) if network] == [
        ("10.9.0.2/29", "2001:db8::1/64"),
        ("10.9.0.3/29", "2001:db8::2/64"),
    ]
    addresses = {name for name in life.plan.holds if name.startswith("ip:")}
    assert addresses == {"ip:10.9.0.2", "ip:10.9.0.3", "ip:2001:db8::1", "ip:2001:db8::2"}
    held = dict.fromkeys(life.plan.holds, life.ref)
    later = claimed(backend, SHARED, name="b", config=pool, held=held)
    assert [network.ips for network in told(later) if network] == [("10.9.0.4/29", "2001:db8::3/64")]
    held |= dict.fromkeys(["ip:10.9.0.4", "ip:10.9.0.5", "ip:10.9.0.6"], OTHER)
    assert "no address of 10.9.0.0/29 is free" in refused(backend, VF2, config=pool, held=held)


def test_gateways_and_given_addresses_are_not_handed_out(backend: NicBackend) -> None:
    pool = {
        "addressPool": {"cidr": "10.9.0.0/24"},
        "routes": [{"destination": "0.0.0.0/0", "gateway": "10.9.0.1"}],
    }
    configs: dict[int, Any] = {0: pool, 1: {"interface": {"addresses": ["10.9.0.2/24"]}}}
    life = claimed(backend, VF1, VF2, configs=configs)
    assert [network.ips for network in told(life) if network] == [("10.9.0.3/24",), ("10.9.0.2/24",)]


def test_admin_access_looks_and_takes_nothing(backend: NicBackend) -> None:
    for device in (VF1, SHARED):
        life = claimed(backend, device, admin=True, config={"addressPool": {"cidr": "10.9.0.0/24"}})
        assert (life.records, life.plan.holds, told(life)) == ([], frozenset(), [None])


@pytest.mark.parametrize(
    ("device", "config", "message"),
    [
        (
            SHARED,
            {"interface": {"mtu": 1501}},
            "interface.mtu: 1501 is more than the card fab1 has, which is 1500",
        ),
        (SHARED, {"vf": {"trust": True}}, f"vf: device {SHARED} is shared by macvlan links"),
        (SHARED, {"driver": "vfio-pci"}, f"driver: device {SHARED} is shared"),
        (VF1, {"driver": "vfio-pci"}, f"driver: device {VF1} is in no IOMMU group"),
        (VF1, {"rdma": True}, f"rdma: device {VF1} has no RDMA device"),
        (
            VF1,
            {"interface": {"name": "v", "vrf": {"name": "v", "table": 7}}},
            "interface.vrf.name: 'v' is the name of the interface",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_field(
    backend: NicBackend, device: str, config: Any, message: str
) -> None:
    assert message in refused(backend, device, config=config)


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (
            [{"destination": "10.0.0.0/8", "gateway": "10.8.0.1"}],
            r"routes[0].gateway: '10.8.0.1' is in no network",
        ),
        ([{"destination": "10.0.0.0/8", "gateway": "10.8.0.1", "onlink": True}], ""),
        (
            [
                {"destination": "10.0.0.0/8", "gateway": "169.254.1.1"},
                {"destination": "169.254.1.1/32"},
            ],
            "",
        ),
        ([{"destination": "::/0", "gateway": "fe80::1"}], ""),
        ([{"destination": "10.0.0.0/8", "source": "10.9.0.3"}], "routes[0].source: '10.9.0.3' is no address"),
        ([{"destination": "10.0.0.0/8", "source": "10.9.0.2", "gateway": "10.9.0.1"}], ""),
    ],
)
def test_routes_must_be_able_to_be(backend: NicBackend, routes: list[Any], message: str) -> None:
    config = {"interface": {"addresses": ["10.9.0.2/24"]}, "routes": routes}
    if message:
        assert message in refused(backend, VF1, config=config)
    else:
        claimed(backend, VF1, config=config)


def test_a_route_to_a_gateway_comes_before_those_over_it(backend: NicBackend) -> None:
    routes = [{"destination": "10.0.0.0/8", "gateway": "169.254.1.1"}, {"destination": "169.254.1.1/32"}]
    config = {"interface": {"addresses": ["10.9.0.2/32"]}, "routes": routes}
    (move,) = claimed(backend, VF1, config=config).records
    assert [route["destination"] for route in move.body["wanted"]["routes"]] == [
        "169.254.1.1/32",
        "10.0.0.0/8",
    ]


def test_two_interfaces_with_a_route_to_one_network_are_refused(backend: NicBackend) -> None:
    """The pod can have one of them; a metric of its own lets it have both."""
    config = {"interface": {"addresses": ["10.9.0.2/24"]}, "routes": [{"destination": "10.1.0.0/16"}]}
    message = refused(backend, VF1, VF2, config=config)
    assert message == (
        f"routes: {VF1} and {VF2} would both have a route to '10.1.0.0/16' in the pod: one of them needs another "
        "metric or table, by a configuration of its request alone"
    )
    other = {1: {"routes": [{"destination": "10.1.0.0/16", "metric": 5}]}}
    assert claimed(backend, VF1, VF2, config=config, configs=other).plan.devices


def test_a_mode_of_macvlan_links_is_for_shares_only(backend: NicBackend) -> None:
    told = f"macvlanMode: device {VF1} is not shared by macvlan links"
    assert refused(backend, VF1, config={"macvlanMode": "private"}) == told


def test_an_mtu_that_is_too_small_for_ipv6_is_refused(backend: NicBackend) -> None:
    """Also where the address is from a pool."""
    config = {"interface": {"mtu": 1000}, "addressPool": {"cidr": "fd00:9::/64"}}
    told = "interface.mtu: 1000 is too small for IPv6 addresses: 1280 is the least"
    assert refused(backend, VF1, config=config) == told


def test_two_interfaces_of_one_name_are_refused(backend: NicBackend) -> None:
    message = refused(backend, VF1, VF2, config={"interface": {"name": "net7"}})
    assert message == f"interface.name: 'net7' would be the name of {VF2} and of {VF1} in the pod"


def test_an_mtu_that_a_link_cannot_have_is_refused(node: NicNode) -> None:
    backend = node.backend({"mode": "pf"})
    assert "interface.mtu: 9001 is more than fab0 can have, 9000" in refused(
        backend, PF, config={"interface": {"mtu": 9001}}
    )


def test_infiniband_keeps_its_address(node: NicNode) -> None:
    node.plug("0000:17:01.0")
    node.add_link("ib0", "0000:17:01.0", type=32)
    message = refused(
        node.backend(), "nic-0000-17-01-0", config={"interface": {"hardwareAddr": "02:00:00:00:00:01"}}
    )
    assert message == "interface.hardwareAddr: the address of ib0 cannot be changed: it is no Ethernet"


def test_settings_of_virtual_functions_are_for_these(node: NicNode) -> None:
    assert refused(node.backend({"mode": "pf"}), PF, config={"vf": {"trust": True}}) == (
        f"vf: device {PF} is no virtual function"
    )


def test_a_rate_beside_a_share_is_refused(node: NicNode) -> None:
    node.links[3] = dataclasses.replace(node.links[3], speed_mbps=10_000)
    backend = node.backend({"mode": "vf-shares"})
    assert "vf.maxRate: is not allowed with a share of bandwidth" in refused(
        backend, PF, bandwidth="1G", config={"vf": {"maxRate": "2G"}}
    )


def test_a_card_that_became_the_hosts_own_is_refused(backend: NicBackend, node: NicNode) -> None:
    inventory = backend.probe()
    for name, device in (("fab0v0", VF1), ("fab1", SHARED)):
        index = next(link.index for link in node.links.values() if link.name == name)
        node.routes.add(index)
        later = backend.probe()
        life = claimed(backend, device, inventory=inventory)
        with pytest.raises(
            PlanError, match=f"device {device} is the host's own now: the host's default route"
        ):
            backend.plan(life.request, later, {}, ())


def test_a_device_that_is_gone_is_refused(backend: NicBackend, node: NicNode) -> None:
    life = claimed(backend, VF1)
    (node.directory / "sys/bus/pci/devices/0000:15:01.1").unlink()
    node.drop_link("fab0v0")
    with pytest.raises(PlanError, match=f"device '{VF1}' is not on this host any more"):
        backend.plan(life.request, backend.probe(), {}, ())


def test_mode_passthru_is_alone_on_its_card(backend: NicBackend) -> None:
    alone = claimed(backend, SHARED, config={"macvlanMode": "passthru"})
    assert alone.plan.holds == {f"macvlan:{SHARED}:passthru:uid-claim-0"}
    held = dict.fromkeys(alone.plan.holds, OTHER)
    assert "which allows no other beside it" in refused(backend, SHARED, held=held)
    others = dict.fromkeys(claimed(backend, SHARED).plan.holds, OTHER)
    assert "which allows no other beside it" in refused(
        backend, SHARED, held=others, config={"macvlanMode": "passthru"}
    )
    assert "which allows no other beside it" in refused(
        backend, SHARED, SHARED, configs={1: {"macvlanMode": "passthru"}}
    )


def test_everything_configured_stands_in_the_steps(backend: NicBackend) -> None:
    config = {
        "interface": {
            "name": "net1",
            "addresses": ["10.9.0.2/24"],
            "hardwareAddr": "02:AA:00:00:00:01",
            "mtu": 1400,
            "gsoMaxSize": 100000,
            "gsoIPv4MaxSize": 90000,
            "vrf": {"name": "blue", "table": 77},
        },
        "routes": [{"destination": "10.0.0.0/8", "gateway": "10.9.0.1"}],
        "neighbors": [{"destination": "10.9.0.1", "hardwareAddr": "02:AA:00:00:00:02"}],
        "sysctls": {"net.ipv4.neigh.IFNAME.gc_stale_time": "90"},
        "ethtool": {"features": {"tso": False}, "privateFlags": {"x": True}},
    }
    setting, move = claimed(backend, VF1, config=config).records
    assert (setting.type, setting.body["mac"]) == ("SetVF", "02:aa:00:00:00:01")
    wanted = move.body["wanted"]
    assert wanted["sizes"] == (("gsoMaxSize", 100000), ("gsoIPv4MaxSize", 90000))
    assert (wanted["vrf"], wanted["vrf_table"], wanted["routes"][0]["table"]) == ("blue", 77, 77)
    assert wanted["neighbours"] == (("10.9.0.1", "02:aa:00:00:00:02"),)
    assert wanted["sysctls"] == (("ipv4/neigh/gc_stale_time", "90"),)
    assert wanted["features"] == (("tso", False),)
    assert wanted["keep_routes"] is False


def test_routes_come_along_only_where_nothing_is_configured(backend: NicBackend) -> None:
    def keeps(config: Any) -> bool:
        (record,) = claimed(backend, VF1, config=config).records
        return bool(record.body["wanted"]["keep_routes"])

    assert keeps({})
    assert keeps({"interface": {"name": "net1"}})
    assert not keeps({"interface": {"addresses": ["10.9.0.2/24"]}})
    assert not keeps({"routes": [{"destination": "10.0.0.0/8"}]})
