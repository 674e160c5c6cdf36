"""What the kernel's messages say: of links, addresses and routes. Messages are encoded by pyroute2, or are noise."""

import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from dradriver_nic.inventory import Link, link_card_name
from dradriver_nic.kernel import addresses_of, default_routes, link_of
from dradriver_nic.netlink import attributes, messages
from dradriver_nic.uplink import built_upon, kept_for_host, relatives
from nicnode import link_message

INET, INET6 = 2, 10


def encoded(message: Any, fields: dict[str, int], attrs: Iterable[tuple[str, Any]]) -> bytes:
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = list(attrs)
    message.encode()
    return bytes(message.data[16:])


def route(
    *attrs: tuple[str, Any], family: int = INET, length: int = 0, kind: int = 1, flags: int = 0
) -> bytes:
    fields = {"family": family, "dst_len": length, "type": kind, "flags": flags, "table": 254}
    return encoded(rtmsg(), fields, attrs)


def address(index: int, text: str, prefix: int, *, scope: int = 0, flags: int = 0) -> bytes:
    family = INET6 if ":" in text else INET
    names = ["IFA_ADDRESS"] if family == INET6 else ["IFA_ADDRESS", "IFA_LOCAL"]
    fields = {"family": family, "prefixlen": prefix, "flags": flags & 255, "scope": scope, "index": index}
    return encoded(ifaddrmsg(), fields, [*((name, text) for name in names), ("IFA_FLAGS", flags)])


# --- links


def test_a_link_is_read_as_it_was_sent() -> None:
    link = link_of(
        link_message(
            7,
            "ens1f0np0",
            flags=0x1002,
            ADDRESS="b8:ce:f6:00:00:01",
            PERM_ADDRESS=bytes.fromhex("b8cef6000002"),
            MTU=9000,
            MIN_MTU=68,
            MAX_MTU=9978,
            MASTER=3,
            LINK=9,
            OPERSTATE="LOWERLAYERDOWN",
            PHYS_SWITCH_ID=bytes.fromhex("0011aaff"),
            PHYS_PORT_NAME="p0",
            PROP_LIST={"attrs": [("IFLA_ALT_IFNAME", "enp138s0f0np0"), ("IFLA_ALT_IFNAME", "fabric-0")]},
            LINKINFO={"attrs": [("IFLA_INFO_KIND", "macvlan")]},
            PARENT_DEV_NAME="0000:8a:00.0",
            PARENT_DEV_BUS_NAME="pci",
        )
    )
    assert link == Link(
        index=7,
        name="ens1f0np0",
        altnames=("enp138s0f0np0", "fabric-0"),
        kind="macvlan",
        type=1,
        mac="b8:ce:f6:00:00:01",
        permanent_mac="b8:ce:f6:00:00:02",
        mtu=9000,
        min_mtu=68,
        max_mtu=9978,
        up=False,
        state="lower-layer-down",
        master=3,
        parent=9,
        switch_id="0011aaff",
        port_name="p0",
        device="0000:8a:00.0",
        bus="pci",
    )


def test_an_infiniband_link_has_an_address_of_twenty_bytes() -> None:
    mac = ":".join(f"{number:02x}" for number in range(20))
    message = link_message(3, "ib0", kind=32)
    raw = struct.pack("=HH", 24, 1) + bytes(range(20))
    assert link_of(message + raw).mac == mac


def test_the_base_of_a_link_in_another_namespace_is_no_link_here() -> None:
    assert link_of(link_message(7, "macvlan0", LINK=4, LINK_NETNSID=0)).parent is None
    assert link_of(link_message(7, "macvlan0", LINK=4)).parent == 4


@given(st.binary(max_size=300))
def test_no_bytes_upset_the_reading_of_messages(data: bytes) -> None:
    assert all(len(body) <= len(data) for _, _, _, body in messages(data))
    assert all(len(value) <= len(data) for value in attributes(data).values())
    link_of(bytes(16) + data)
    addresses_of([bytes(8) + data])
    default_routes([bytes(12) + data, data], lambda: [bytes(8) + data])


def test_names_of_devices_are_labels() -> None:
    def name(**values: Any) -> str:
        return link_card_name(Link(1, **values))

    assert name(name="dummy0") == "nic-link-dummy0"
    assert name(name="eth0", device="1-1.4", bus="usb").startswith("nic-usb-1-1-4-")
    assert name(name="V") != name(name="v")
    assert name(name="a.b") != name(name="a-b") == "nic-link-a-b"
    assert len(name(name="x" * 15, device="d" * 200, bus="b" * 30)) < 64


# --- addresses


def test_addresses_are_those_that_others_reach_the_host_by() -> None:
    found = addresses_of(
        [
            address(2, "192.0.2.7", 24),
            address(2, "fe80::1", 64, scope=253),
            address(2, "2001:db8::7", 64),
            address(2, "2001:db8::dead", 64, flags=0x301),
            address(2, "192.0.2.8", 24, flags=1),
            address(1, "127.0.0.1", 8, scope=254),
        ]
    )
    assert found == {2: ["192.0.2.7/24", "2001:db8::7/64", "192.0.2.8/24"]}


# --- routes


def none() -> list[bytes]:
    raise AssertionError("nobody asked for nexthop objects")


@pytest.mark.parametrize(
    ("message", "links"),
    [
        (route(("RTA_OIF", 4)), {4}),
        (route(("RTA_OIF", 4), ("RTA_PRIORITY", 20512)), {4}),
        (route(("RTA_OIF", 4), ("RTA_TABLE", 1000)), {4}),
        (route(("RTA_OIF", 4), family=INET6), {4}),
        (route(("RTA_OIF", 4), ("RTA_DST", "128.0.0.0"), length=1), {4}),
        (route(("RTA_OIF", 4), ("RTA_DST", "2000::"), family=INET6, length=3), {4}),
        (route(("RTA_OIF", 4), ("RTA_DST", "10.0.0.0"), length=8), set()),
        (route(("RTA_OIF", 1), family=INET6, kind=7), set()),
        (route(("RTA_OIF", 4), family=INET6, flags=0x200), set()),
        (
            route(("RTA_MULTIPATH", [{"oif": 4, "gateway": "10.0.0.1"}, {"oif": 5, "gateway": "10.1.0.1"}])),
            {4, 5},
        ),
    ],
)
def test_default_routes_are_found(message: bytes, links: set[int]) -> None:
    assert default_routes([message], none) == links


def test_routes_by_nexthop_objects_are_followed_through_groups() -> None:
    def nexthop(*values: tuple[int, bytes]) -> bytes:
        return bytes(8) + b"".join(struct.pack("=HH", 4 + len(value), kind) + value for kind, value in values)

    def number(value: int) -> bytes:
        return struct.pack("=I", value)

    def by_object(value: int) -> bytes:
        return route() + struct.pack("=HHI", 8, 30, value)

    group = struct.pack("=IBBHIBBH", 1, 0, 0, 0, 2, 0, 0, 0)
    objects = [nexthop((1, number(one)), (5, number(one + 3))) for one in (1, 2, 3)]
    objects.append(nexthop((1, number(9)), (2, group)))
    assert default_routes([by_object(9)], lambda: objects) == {4, 5}
    assert default_routes([by_object(3)], lambda: objects) == {6}


# --- relatives


def links_of(*links: Link) -> dict[int, Link]:
    return {link.index: link for link in links}


def test_relatives_of_the_uplink_are_its_ports_master_and_bases() -> None:
    links = links_of(
        Link(1, "lo"),
        Link(2, "ens1", master=4),
        Link(3, "ens2", master=4),
        Link(4, "bond0", kind="bond"),
        Link(5, "bond0.100", kind="vlan", parent=4),
        Link(6, "br0", kind="bridge"),
        Link(7, "ens3"),
        Link(8, "ens1.7", kind="vlan", parent=2),
        Link(9, "tap0", kind="tun", master=6),
    )
    assert relatives(links, [5]) == {2, 3, 4, 5}
    assert relatives(links, [2]) == {2, 3, 4}
    assert relatives(links, [9]) == {6, 9}
    assert relatives(links, [12]) == set()
    kept = kept_for_host(links, [5], relatives(links, [5]))
    assert kept[5] == "the host's default route leads over it"
    assert kept[2] == kept[4] == "it belongs to a link of the host's default route"
    assert kept[9] == "it is a port of br0"
    assert 7 not in kept
    assert built_upon(links)[2] == "ens1.7 is made on it"


def test_a_circle_of_links_ends() -> None:
    links = links_of(Link(2, "v0", kind="veth", parent=3), Link(3, "v1", kind="veth", parent=2))
    assert relatives(links, [2]) == {2, 3}
    assert built_upon(links) == {}
