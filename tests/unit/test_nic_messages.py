"""Requests as the kernel reads them, decoded by pyroute2, which shares nothing with our encoder."""

import struct
from typing import Any

import pytest
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from dradriver.backend import UnavailableError, Work
from dradriver_nic import messages as m
from dradriver_nic.actuate import shaping
from dradriver_nic.actuate.before import decoded as decoded_before
from dradriver_nic.actuate.before import lifetimes
from dradriver_nic.actuate.restore import address_requests, route_request
from dradriver_nic.netlink import attribute, attributes


def read(kind: Any, body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and attributes of a message, nested ones as pairs."""
    message = kind(struct.pack("=IHHII", 16 + len(body), 1, 5, 1, 0) + body)
    message.decode()
    header = {name: message[name] for name, _ in kind.fields if name != "__align"}
    return header, plain(message["attrs"])


def plain(found: Any) -> Any:
    return {
        one[0]: plain(one[1]["attrs"]) if isinstance(one[1], dict) and "attrs" in one[1] else one[1]
        for one in found
    }


def test_addresses() -> None:
    header, found = read(ifaddrmsg, m.address(7, "10.9.8.7/24"))
    assert (header["family"], header["prefixlen"], header["index"], header["scope"]) == (2, 24, 7, 0)
    assert found == {
        "IFA_LOCAL": "10.9.8.7",
        "IFA_ADDRESS": "10.9.8.7",
        "IFA_BROADCAST": "10.9.8.255",
    }
    header, found = read(ifaddrmsg, m.address(7, "2001:db8::7/64"))
    assert (header["family"], header["prefixlen"], header["flags"]) == (10, 64, m.IFA_F_NODAD)
    assert found == {"IFA_LOCAL": "2001:db8::7", "IFA_ADDRESS": "2001:db8::7"}
    assert "IFA_BROADCAST" not in read(ifaddrmsg, m.address(7, "10.9.8.7/31"))[1]


def test_routes() -> None:
    header, found = read(
        rtmsg, m.route(7, "10.0.0.0/8", gateway="10.9.0.1", source="10.9.0.2", metric=5, mtu=1400, table=1000)
    )
    assert (header["family"], header["dst_len"], header["table"], header["scope"], header["proto"]) == (
        2,
        8,
        252,
        0,
        4,
    )
    assert found == {
        "RTA_OIF": 7,
        "RTA_DST": "10.0.0.0",
        "RTA_GATEWAY": "10.9.0.1",
        "RTA_PREFSRC": "10.9.0.2",
        "RTA_PRIORITY": 5,
        "RTA_METRICS": {"RTAX_MTU": 1400},
        "RTA_TABLE": 1000,
    }
    header, found = read(rtmsg, m.route(7, "::/0", gateway="fe80::1", onlink=True))
    assert (header["family"], header["dst_len"], header["table"], header["flags"]) == (10, 0, 254, 4)
    assert "RTA_DST" not in found
    assert read(rtmsg, m.route(7, "10.1.0.0/16"))[0]["scope"] == 253


def test_rules() -> None:
    header, found = read(fibmsg, m.rule("10.9.0.0/24", "10.0.0.0/8", 1000, 500))
    assert (header["family"], header["src_len"], header["dst_len"], header["action"]) == (2, 24, 8, 1)
    assert found == {
        "FRA_DST": "10.0.0.0",
        "FRA_SRC": "10.9.0.0",
        "FRA_PRIORITY": 500,
        "FRA_TABLE": 1000,
        "FRA_PROTOCOL": 4,
    }
    header, found = read(fibmsg, m.rule("", "2001:db8::/32", 7))
    assert (header["family"], header["table"], header["src_len"]) == (10, 7, 0)


def test_neighbours() -> None:
    header, found = read(ndmsg, m.neighbour(7, "10.9.0.77", "02:00:00:00:00:77"))
    assert (header["family"], header["ifindex"], header["state"]) == (2, 7, 0x80)
    assert found == {"NDA_DST": "10.9.0.77", "NDA_LLADDR": "02:00:00:00:00:77"}


def test_links_that_are_made() -> None:
    body = m.link(0, m.u32(m.IFLA_LINK, 4), m.u32(m.IFLA_NET_NS_FD, 9), m.text(m.IFLA_IFNAME, "net0"))
    _, found = read(ifinfmsg, body + m.macvlan("private") + m.mac("02:00:00:00:00:01"))
    assert found == {
        "IFLA_LINK": 4,
        "IFLA_NET_NS_FD": 9,
        "IFLA_IFNAME": "net0",
        "IFLA_LINKINFO": {"IFLA_INFO_KIND": "macvlan", "IFLA_INFO_DATA": {"IFLA_MACVLAN_MODE": "private"}},
        "IFLA_ADDRESS": "02:00:00:00:00:01",
    }
    _, found = read(ifinfmsg, m.link(0, m.vrf(1001)))
    assert found["IFLA_LINKINFO"] == {"IFLA_INFO_KIND": "vrf", "IFLA_INFO_DATA": {"IFLA_VRF_TABLE": 1001}}
    _, found = read(ifinfmsg, m.link(3, m.altnames("enp9s0")))
    assert found["IFLA_PROP_LIST"] == {"IFLA_ALT_IFNAME": "enp9s0"}


def test_settings_of_virtual_functions() -> None:
    body = m.vf(
        7,
        m.vf_mac(3, "02:00:00:00:00:09"),
        m.vf_vlan(3, 100, 2, 0x8100),
        m.vf_vlan(3, 100, 2, 0x88A8),
        m.vf_number(m.IFLA_VF_TRUST, 3, 1),
        m.vf_number(m.IFLA_VF_SPOOFCHK, 3, 0),
        m.vf_number(m.IFLA_VF_LINK_STATE, 3, 2),
        m.vf_rate(3, 100, 1000),
    )
    header, found = read(ifinfmsg, body)
    assert header["index"] == 7
    assert found["IFLA_VFINFO_LIST"]["IFLA_VF_INFO"] == {
        "IFLA_VF_MAC": {"vf": 3, "mac": "02:00:00:00:00:09"},
        "IFLA_VF_VLAN": {"vf": 3, "vlan": 100, "qos": 2},
        "IFLA_VF_VLAN_LIST": {"IFLA_VF_VLAN_INFO": {"vf": 3, "vlan": 100, "qos": 2, "proto": 0x88A8}},
        "IFLA_VF_TRUST": {"vf": 3, "trust": 1},
        "IFLA_VF_SPOOFCHK": {"vf": 3, "spoofchk": 0},
        "IFLA_VF_LINK_STATE": {"vf": 3, "link_state": 2},
        "IFLA_VF_RATE": {"vf": 3, "min_tx_rate": 100, "max_tx_rate": 1000},
    }


@pytest.mark.parametrize("bits", [10**6, 25 * 10**9, 400 * 10**9])
def test_what_waits_is_more_than_what_is_sent_at_once_and_not_much(bits: int) -> None:
    header, found = read(tcmsg, shaping.token_bucket(7, bits))
    assert (header["index"], header["parent"], found["TCA_KIND"]) == (7, 0xFFFFFFFF, "tbf")
    queue = found["TCA_OPTIONS"]["TCA_TBF_PARMS"]["limit"]
    assert queue == shaping.queue_of(bits) > shaping.burst_of(bits) >= 64 << 10
    assert queue <= max(bits / 8 * 0.03, 192 << 10)


# --- how a link was


IPV4 = (
    m.ADDRESS.pack(2, 24, 0x80, 0, 3)
    + attribute(1, bytes((10, 0, 0, 1)))
    + attribute(2, bytes((10, 0, 0, 1)))
)


def with_lifetimes(preferred: int, valid: int) -> bytes:
    return IPV4 + attribute(m.IFA_CACHEINFO, struct.pack("=IIII", preferred, valid, 5, 5))


def test_lifetimes_go_on_while_a_link_is_away() -> None:
    assert lifetimes(IPV4, 10) is None
    assert lifetimes(with_lifetimes(0xFFFFFFFF, 0xFFFFFFFF), 10) is None
    assert lifetimes(with_lifetimes(60, 100), 10.9) == (50, 90)
    assert lifetimes(with_lifetimes(60, 100), 70) == (0, 30)
    (request,) = address_requests(with_lifetimes(60, 100), 9, 10)
    header, found = read(ifaddrmsg, request)
    assert (header["index"], header["flags"]) == (9, 0)
    assert (found["IFA_CACHEINFO"]["ifa_preferred"], found["IFA_CACHEINFO"]["ifa_valid"]) == (50, 90)
    assert [*address_requests(with_lifetimes(60, 100), 9, 100)] == []


def test_a_route_over_several_links_leads_over_the_one_again() -> None:
    hops = struct.pack("=HBBI", 8, 1 | 4, 0, 3) + struct.pack("=HBBI", 8, 1, 1, 11)
    body = m.ROUTE.pack(2, 8, 0, 0, 254, 4, 0, 1, 0x10 | 4) + attribute(1, bytes((10, 0, 0, 0)))
    body += attribute(m.RTA_MULTIPATH, hops) + attribute(12, bytes(32))
    request = route_request(body, 3, 40)
    assert m.ROUTE.unpack_from(request)[-1] == m.RTNH_F_ONLINK
    found = attributes(request, m.ROUTE.size)
    assert 12 not in found
    assert found[m.RTA_MULTIPATH] == struct.pack("=HBBI", 8, 4, 0, 40) + struct.pack("=HBBI", 8, 0, 1, 11)


@pytest.mark.parametrize(
    "before",
    [
        {"link": "x"},
        {"boot": 3},
        {
            "boot": "a",
            "taken": 1.0,
            "link": {"index": 3, "name": "x"},
            "flags": 0,
            "base": 0,
            "routes": ["zz"],
        },
    ],
)
def test_what_another_version_recorded_is_not_guessed_at(before: Any) -> None:
    with pytest.raises(UnavailableError, match="recorded by another version"):
        decoded_before(Work({"before": before}, lambda facts: None))
