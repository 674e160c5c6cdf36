"""What users write about network cards, and what they are told of it when it cannot be."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.backend import ConfigError, decode
from dradriver_nic import NicConfig, NicOptions
from dradriver_nic.config import address_range, check_name, megabits
from dradriver_nic.sysctls import SYSCTLS, check_sysctl
from nicnode import options_of


def config(**fields: Any) -> NicConfig:
    return decode(NicConfig, fields, "config")


def refused(**fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**fields)
    return str(caught.value)


def test_a_configuration_of_all_fields_is_taken() -> None:
    made = config(
        interface={
            "name": "net1",
            "addresses": ["10.9.8.7/24", "2001:db8::7/64"],
            "mtu": 9000,
            "hardwareAddr": "02:AB:00:00:00:01",
            "gsoMaxSize": 131072,
            "groMaxSize": 131072,
            "gsoIPv4MaxSize": 65536,
            "groIPv4MaxSize": 65536,
        },
        routes=[
            {"destination": "0.0.0.0/0", "gateway": "10.9.8.1", "metric": 50, "table": 100},
            {"destination": "2001:db8:1::/48", "gateway": "fe80::1", "source": "2001:db8::7", "onlink": True},
            {"destination": "10.1.0.0/16"},
        ],
        rules=[{"source": "10.9.8.7/32", "table": 100, "priority": 32000}],
        neighbors=[{"destination": "10.9.8.1", "hardwareAddr": "02:00:00:00:00:fe"}],
        ethtool={"features": {"tx-checksum-ip-generic": False}, "privateFlags": {"rx_striding_rq": True}},
        sysctls={"net.ipv4.conf.IFNAME.arp_ignore": "1", "net.ipv6.neigh.IFNAME.gc_stale_time": "60"},
        vf={
            "vlan": 100,
            "qos": 3,
            "vlanProto": "802.1ad",
            "spoofCheck": True,
            "trust": False,
            "linkState": "enable",
            "minRate": "1G",
            "maxRate": "10G",
        },
        macvlanMode="private",
        rdma=True,
    )
    assert [str(one) for one in made.interface.ips] == ["10.9.8.7/24", "2001:db8::7/64"]
    assert made.interface.mac == "02:ab:00:00:00:01"
    assert (made.vf.min_rate_mbps, made.vf.max_rate_mbps) == (1_000, 10_000)
    assert made.rules[0].version == 4


def test_nothing_said_leaves_the_card_as_it_is() -> None:
    made = config()
    assert made == NicConfig()
    assert (made.interface.name, made.interface.ips, made.vf.max_rate_mbps, made.rdma) == ("", (), None, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"interface": {"dhcp": True}}, "config.interface: dhcp: is not supported"),
        ({"interface": {"name": "a/b"}}, "config.interface: name: 'a/b' is no name of an interface"),
        (
            {"interface": {"name": "sixteen-letters-"}},
            "config.interface: name: 'sixteen-letters-' is no name",
        ),
        ({"interface": {"name": "my net"}}, "config.interface: name: 'my net' is no name"),
        ({"interface": {"name": ".."}}, "config.interface: name: '..' is no name"),
        ({"interface": {"name": "lo"}}, "config.interface: name: 'lo' is no name"),
        ({"interface": {"name": "-x"}}, "config.interface: name: '-x' is no name"),
        ({"interface": {"name": "eth%d"}}, "config.interface: name: 'eth%d' is no name"),
        ({"interface": {"name": "né"}}, "config.interface: name: 'n\\xe9' is no name"),
        (
            {"interface": {"mtu": 67}},
            "config.interface.mtu: an integer from 68 to 65535 is expected, found '67'",
        ),
        (
            {"interface": {"mtu": 1200, "addresses": ["2001:db8::7/64"]}},
            "config.interface: mtu: 1200 is too small for IPv6 addresses: 1280 is the least",
        ),
        (
            {"interface": {"addresses": ["10.9.8.7"]}},
            "config.interface: addresses[0]: '10.9.8.7' is no address with a",
        ),
        (
            {"interface": {"addresses": ["10.9.8.7/33"]}},
            "config.interface: addresses[0]: '10.9.8.7/33' is no address",
        ),
        (
            {"interface": {"addresses": ["224.0.0.1/24"]}},
            "config.interface: addresses[0]: '224.0.0.1/24' cannot be the",
        ),
        (
            {"interface": {"addresses": ["10.0.0.1/8", "10.0.0.1/8"]}},
            "config.interface: addresses: one stands there twice",
        ),
        (
            {"interface": {"hardwareAddr": "02:00"}},
            "config.interface: hardwareAddr: '02:00' is no MAC address",
        ),
        (
            {"interface": {"hardwareAddr": "03:00:00:00:00:01"}},
            "config.interface: hardwareAddr: '03:00:00:00:00:01' is a",
        ),
        (
            {"interface": {"hardwareAddr": "00:00:00:00:00:00"}},
            "config.interface: hardwareAddr: '00:00:00:00:00:00' is no",
        ),
        (
            {"interface": {"vrf": {"name": "blue"}}},
            "config.interface.vrf: Object missing required field `table`",
        ),
        (
            {"interface": {"vrf": {"name": "blue", "table": 254}}},
            "config.interface.vrf: table: 254 is one of the kernel's",
        ),
        (
            {"routes": [{"destination": "10.0.0.1/8"}]},
            "config.routes[0]: destination: '10.0.0.1/8' is no network",
        ),
        (
            {"routes": [{"destination": "10.0.0.0"}]},
            "config.routes[0]: destination: '10.0.0.0' is no network",
        ),
        (
            {"routes": [{"destination": "10.0.0.0/8"}, {"destination": "::/0", "gateway": "10.0.0.1"}]},
            "config.routes[1]: gateway: '10.0.0.1' is not of the family of '::/0'",
        ),
        (
            {"routes": [{"destination": "::/0", "gateway": "x"}]},
            "config.routes[0]: gateway: 'x' is no IP address",
        ),
        (
            {"routes": [{"destination": "::/0", "onlink": True}]},
            "config.routes[0]: onlink: is about a gateway",
        ),
        (
            {"routes": [{"destination": "::/0", "table": 255}]},
            "config.routes[0]: table: 255 is the kernel's own",
        ),
        (
            {"routes": [{"destination": "::/0", "via": "x"}]},
            "config.routes[0].via: unknown field 'via'; allowed are",
        ),
        ({"rules": [{"table": 7}]}, "config.rules[0]: source or destination is required"),
        (
            {"rules": [{"table": 7, "source": "::/0", "destination": "10.0.0.0/8"}]},
            "config.rules[0]: destination: '10.0.0.0/8' is not of the family of '::/0'",
        ),
        (
            {"rules": [{"table": 7, "source": "::/0", "priority": 0}]},
            "config.rules[0].priority: an integer from 1 to 32765 is expected",
        ),
        (
            {"interface": {"name": "a$b"}},
            "config.interface: name: 'a$b' is no name",
        ),
        (
            {"interface": {"addresses": ["fe80::1%eth0/64"]}},
            "config.interface: addresses[0]: 'fe80::1%eth0/64' is no address with",
        ),
        (
            {"interface": {"addresses": ["255.255.255.255/32"]}},
            "config.interface: addresses[0]: '255.255.255.255/32' cannot be the",
        ),
        (
            {"interface": {"addresses": ["::ffff:10.0.0.1/120"]}},
            "config.interface: addresses[0]: '::ffff:10.0.0.1/120' cannot be the",
        ),
        (
            {"routes": [{"destination": "::/0", "gateway": "fe80::1%eth0"}]},
            "config.routes[0]: gateway: 'fe80::1%eth0' is no IP address",
        ),
        (
            {"routes": [{"destination": "0.0.0.0/0", "gateway": "224.0.0.1"}]},
            "config.routes[0]: gateway: '224.0.0.1' cannot be the address of an",
        ),
        (
            {"routes": [{"destination": "fe80::%eth0/64"}]},
            "config.routes[0]: destination: 'fe80::%eth0/64' is no network",
        ),
        (
            {"rules": [{"table": 7, "source": "0.0.0.0/0"}]},
            "config.rules[0]: source or destination is required: a rule for all packets",
        ),
        (
            {"neighbors": [{"destination": "0.0.0.0", "hardwareAddr": "02:00:00:00:00:01"}]},
            "config.neighbors[0]: destination: '0.0.0.0' cannot be the address",
        ),
        (
            {
                "neighbors": [
                    {"destination": address, "hardwareAddr": f"02:00:00:00:00:0{number}"}
                    for number, address in enumerate(["fd00::1", "10.0.0.1", "fd00:0::1"])
                ]
            },
            "config: neighbors[2]: fd00::1 stands there twice",
        ),
        (
            {"interface": {"addresses": ["fd00::1/64", "fd00::1/48"]}},
            "config.interface: addresses: one stands there twice",
        ),
        (
            {"addressPool": {"cidr": "224.0.0.0/4"}},
            "config.addressPool: cidr: 224.0.0.0/4 has no addresses of interfaces",
        ),
        (
            {"addressPool": {"cidr": "fe80::%eth0/64"}},
            "config.addressPool: cidr: 'fe80::%eth0/64' is no network",
        ),
        (
            {
                "interface": {"vrf": {"name": "blue", "table": 7}},
                "rules": [{"table": 7, "source": "fd00::/8"}],
            },
            "config: rules: are not allowed with a VRF",
        ),
        (
            {
                "interface": {"vrf": {"name": "blue", "table": 7}},
                "routes": [{"destination": "::/0", "table": 8}],
            },
            "config: routes[0].table: 8 is not that of the VRF",
        ),
        (
            {
                "routes": [
                    {"destination": "10.1.0.0/16", "gateway": "10.0.0.1"},
                    {"destination": "10.1.0.0/16", "gateway": "10.0.0.1", "metric": 5},
                    {"destination": "10.1.0.0/16", "gateway": "10.0.0.2", "table": 254},
                ]
            },
            "config: routes[2]: routes[0] is to '10.1.0.0/16' too: a second one needs another metric",
        ),
        (
            {
                "interface": {"vrf": {"name": "blue", "table": 7}},
                "routes": [{"destination": "::/0"}, {"destination": "::/0", "table": 7, "metric": 1024}],
            },
            "config: routes[1]: routes[0] is to '::/0' too: a second one needs another metric",
        ),
        (
            {"neighbors": [{"destination": "10.0.0.1/8", "hardwareAddr": "02:00:00:00:00:01"}]},
            "config.neighbors[0]: dest",
        ),
        (
            {"neighbors": [{"destination": "10.0.0.1", "hardwareAddr": "no"}]},
            "config.neighbors[0]: hardwareAddr: 'no'",
        ),
        (
            {"ethtool": {"features": {"a\nb": True}}},
            "config.ethtool: features: 'a\\nb' is no name of ethtool's",
        ),
        (
            {"ethtool": {"features": {"tso": 1}}},
            "config.ethtool.features.tso: true or false is expected, found '1', an integer",
        ),
        (
            {"sysctls": {"net.core.somaxconn": "1"}},
            "config: sysctls: 'net.core.somaxconn' is not of the interface",
        ),
        (
            {"sysctls": {"net.ipv4.conf.all.forwarding": "1"}},
            "config: sysctls: 'net.ipv4.conf.all.forwarding' is not of",
        ),
        (
            {"sysctls": {"net.ipv4.conf.IFNAME.nope": "1"}},
            "config: sysctls: 'net.ipv4.conf.IFNAME.nope' is not allowed: docs/configuration.md lists those that are",
        ),
        (
            {"sysctls": {"net.ipv4.conf.IFNAME.forwrding": "1"}},
            "config: sysctls: 'net.ipv4.conf.IFNAME.forwrding' is not allowed (is forwarding meant?): docs/config",
        ),
        (
            {"sysctls": {"net.ipv4.conf.IFNAME.tag": "x"}},
            "config: sysctls: 'net.ipv4.conf.IFNAME.tag': 'x' is no whole",
        ),
        ({"vf": {"vlan": 4095}}, "config.vf.vlan: an integer from 0 to 4094 is expected"),
        ({"vf": {"qos": 3}}, "config.vf: vlan: is required with qos and vlanProto"),
        (
            {"vf": {"maxRate": "1500k"}},
            "config.vf: maxRate: '1500k' is no rate: whole megabits a second are expected",
        ),
        ({"vf": {"minRate": "2G", "maxRate": "1G"}}, "config.vf: minRate: '2G' is more than maxRate, '1G'"),
        ({"vf": {"linkState": "up"}}, "config.vf.linkState: 'up' is not one of auto, enable, disable"),
        ({"addressPool": {"cidr": "10.9.0.1/24"}}, "config.addressPool: cidr: '10.9.0.1/24' is no network"),
        ({"addressPool": {"cidr": []}}, "config.addressPool: cidr: a network is expected"),
        (
            {"addressPool": {"cidr": ["10.0.0.0/24", "10.0.1.0/24"]}},
            "config.addressPool: cidr: at most one network of",
        ),
        (
            {"addressPool": {"cidr": "10.9.0.0/24", "reserved": ["10.9.1.1"]}},
            "config.addressPool: reserved[0]: '10.9.1.1' is not in 10.9.0.0/24",
        ),
        (
            {"addressPool": {"cidr": "10.9.0.0/24", "reserved": ["10.9.0.9-10.9.0.1"]}},
            "config.addressPool: reserved[0]: '10.9.0.9-10.9.0.1' is no part of a network",
        ),
        (
            {"addressPool": {"cidr": "10.9.0.0/24"}, "interface": {"addresses": ["10.1.0.1/24"]}},
            "config: interface.addresses[0]: 10.1.0.1/24 is not allowed beside an addressPool of its family",
        ),
        (
            {"macvlanMode": "bridged"},
            "config.macvlanMode: 'bridged' is not one of bridge, private, vepa, passthru",
        ),
        ({"driver": "igb_uio"}, "config.driver: 'igb_uio' is not one of as-is, vfio-pci"),
        (
            {"driver": "vfio-pci", "interface": {"name": "net1"}},
            "config: interface: means nothing with driver vfio-pci",
        ),
        ({"dhcp": True}, "config.dhcp: unknown field 'dhcp'; allowed are"),
    ],
)
def test_what_cannot_be_is_refused_with_the_path_of_its_field(fields: dict[str, Any], message: str) -> None:
    assert refused(**fields).startswith(message)


def test_an_address_pool_of_one_family_goes_with_addresses_of_the_other() -> None:
    made = config(addressPool={"cidr": "10.9.0.0/24"}, interface={"addresses": ["2001:db8::7/64"]})
    assert made.address_pool
    assert [str(one) for one in made.address_pool.networks] == ["10.9.0.0/24"]


@given(st.text(max_size=20))
def test_an_accepted_name_is_one_that_linux_takes(name: str) -> None:
    said = ""
    try:
        check_name(name, "name")
    except ValueError as error:
        said = str(error)
    assert said.isprintable()
    if not said:
        assert 0 < len(name.encode()) <= 15
        assert not set(name) & set("/: \t\n%")
        assert name not in {".", "..", "all", "default", "lo"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    ["interface", "routes", "rules", "neighbors", "ethtool", "sysctls", "vf", "addressPool", "rdma", "driver"]
)
inner = st.sampled_from(
    [
        "name",
        "addresses",
        "mtu",
        "destination",
        "gateway",
        "table",
        "source",
        "cidr",
        "reserved",
        "vlan",
        "maxRate",
    ]
)


@given(
    st.dictionaries(
        fields,
        json_values
        | st.dictionaries(inner, json_values)
        | st.lists(st.dictionaries(inner, json_values), max_size=2),
    )
)
def test_whatever_stands_there_is_taken_or_refused_in_one_line(given_fields: dict[str, Any]) -> None:
    said = ""
    try:
        config(**json.loads(json.dumps(given_fields)))
    except ConfigError as error:
        said = str(error)
    assert said.isprintable()
    assert len(said) < 2000


@pytest.mark.parametrize(("text", "mbps"), [("500M", 500), ("10G", 10_000), ("0", 0), ("1000000", 1)])
def test_rates_are_whole_megabits(text: str, mbps: int) -> None:
    assert megabits(text, "rate") == mbps


@pytest.mark.parametrize("text", ["", "-1G", "1", "1.5M", "fast", "99999999999G"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="rate"):
        megabits(text, "rate")


def test_a_part_of_a_network_is_an_address_a_network_or_a_range() -> None:
    for text in ("10.0.0.0", "10.0.0.0/30", "10.0.0.0-10.0.0.3", "10.0.0.0 - 10.0.0.3"):
        first, last = address_range(text, "reserved")
        assert str(first) == "10.0.0.0"
        assert str(last) in {"10.0.0.0", "10.0.0.3"}
    for text in ("", "-", "10.0.0.1/30", "10.0.0.0-::1", "10.0.0.3-10.0.0.0"):
        with pytest.raises(ValueError, match="is no part of a network"):
            address_range(text, "reserved")


def test_the_documentation_lists_the_sysctls_that_are_allowed() -> None:
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    listed = set()
    for below, names in re.findall(r"^\| (`net\..*) \| (.*) \|$", page, flags=re.MULTILINE):
        for prefix in re.findall(r"`(.*?)`", below):
            listed |= {f"{prefix}.{name}" for name in re.findall(r"`(.*?)`", names)}
    for name in listed:
        check_sysctl(name, "1")
    allowed = {
        f"net.{family}.{kind}.IFNAME.{name}" for (family, kind), names in SYSCTLS.items() for name in names
    }
    assert listed == allowed


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mode": "all"},
            "backends.nic.mode: 'all' is not one of vf, pf, both, on-demand, shares, vf-shares",
        ),
        ({"modes": {"ens*": "x"}}, "backends.nic.modes['ens*']: 'x' is not one of vf"),
        ({"virtualLinks": ["Veth!"]}, "backends.nic.virtualLinks[0]: a string matching regex"),
        ({"onDemandVFs": -1}, "backends.nic.onDemandVFs: an integer from 0 to 65535 is expected"),
        ({"bandwidths": {"ens1": "1k"}}, "backends.nic: bandwidths['ens1']: '1k' is no bandwidth"),
        ({"bandwidths": {"ens1": "2P"}}, "backends.nic: bandwidths['ens1']: '2P' is no bandwidth: from one"),
        (
            {"networkNamespace": "run/x"},
            "backends.nic: networkNamespace: an absolute path without '..' is expected",
        ),
        ({"devices": "device.nam ="}, "backends.nic: devices: 'device.nam =' is no CEL expression"),
        (
            {"devices": "devise.name == ''"},
            "backends.nic: devices: \"devise.name == ''\": there is no variable 'devise'",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options_of(options)
    assert str(caught.value).startswith(message)


def test_the_first_pattern_that_fits_one_of_a_cards_names_counts() -> None:
    made = options_of({"mode": "pf", "modes": {"ens*": "vf", "nic-0000-8a-*": "both", "mlx5_core": "shares"}})
    assert made.mode_of("nic-0000-8a-00-0", "ens1", "mlx5_core") == "vf"
    assert made.mode_of("nic-0000-8a-00-0", "", "mlx5_core") == "both"
    assert made.mode_of("nic-0000-9a-00-0", "eth0", "mlx5_core") == "shares"
    assert made.mode_of("nic-0000-9a-00-0", "eth0", "ixgbe") == "pf"
    assert made.bandwidth_of("eth0") is None


def test_cel_and_pyroute2_are_loaded_where_they_are_needed_only() -> None:
    program = (
        "import sys; from dradriver_nic import NicBackend, NicOptions; from dradriver.host import Host; "
        "backend = NicBackend(Host(), NicOptions()); backend.devices(backend.probe()); "
        "print([name for name in ('celpy', 'pyroute2') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
    assert NicOptions().filter() is None
