"""A network interface in a pod and back, in real network namespaces: a veth end is the card, `ip` says what is true."""

import contextlib
import ctypes
import os
import platform
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import BackendError, Observed, TransientError
from dradriver.model import NetworkData
from dradriver_nic import NicBackend
from dradriver_nic import messages as m
from dradriver_nic.actuate.features import Features
from dradriver_nic.actuate.rtnl import Rtnl
from dradriver_nic.netlink import attribute
from dradriver_nic.netns import inside
from netns import Namespace, namespace, needs_namespaces, process_in, supports
from netstate import assert_same, state_of
from nicclaims import Life, backend_on, busy_card, claimed, link_of, new_namespace
from traffic import reaches

pytestmark = needs_namespaces

CARD = "nic-link-card0"
CONFIG: dict[str, Any] = {
    "interface": {
        "name": "net1",
        "addresses": ["10.9.0.2/24", "2001:db8:9::2/64"],
        "mtu": 1300,
        "hardwareAddr": "02:AA:bb:00:00:01",
    },
    "routes": [
        {"destination": "10.99.0.0/16", "gateway": "10.9.0.1", "metric": 7, "mtu": 1200},
        {"destination": "10.98.0.0/16", "table": 1000, "source": "10.9.0.2"},
        {"destination": "2001:db8:99::/48", "gateway": "2001:db8:9::1"},
        {"destination": "10.97.0.0/16", "gateway": "192.0.2.1", "onlink": True},
    ],
    "rules": [{"source": "10.9.0.0/24", "table": 1000, "priority": 500}],
    "neighbors": [{"destination": "10.9.0.77", "hardwareAddr": "02:00:00:00:00:77"}],
    "sysctls": {"net.ipv4.conf.IFNAME.arp_ignore": "2", "net.ipv6.conf.IFNAME.accept_ra": "0"},
    "ethtool": {"features": {"tso": False}},
}


host = pytest.fixture(new_namespace)
wire = pytest.fixture(new_namespace)
pod = pytest.fixture(new_namespace)


@pytest.fixture
def backend(host: Namespace, wire: Namespace, tmp_path: Path) -> NicBackend:
    """A host with a card of which it makes much use, and a program that knows it."""
    busy_card(host, wire)
    return backend_on(host, tmp_path)


def addresses(link: dict[str, Any]) -> list[str]:
    return [f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["scope"] != "link"]


def test_the_pod_has_the_interface_as_it_is_configured(
    backend: NicBackend, host: Namespace, pod: Namespace, wire: Namespace
) -> None:
    life = claimed(backend, CARD, config=CONFIG).prepare()
    assert "card0" in host.call("ip", "link")
    life.start(pod)
    assert "card0" not in host.call("ip", "link")
    link = link_of(pod, "net1")
    assert (link["mtu"], link["address"], link["operstate"]) == (1300, "02:aa:bb:00:00:01", "UP")
    assert addresses(link) == ["10.9.0.2/24", "2001:db8:9::2/64"]
    routes = pod.call("ip", "route", "show", "table", "all") + pod.call("ip", "-6", "route")
    for route in (
        "10.99.0.0/16 via 10.9.0.1 dev net1 proto static metric 7 mtu 1200",
        "10.98.0.0/16 dev net1 table 1000 proto static scope link src 10.9.0.2",
        "10.97.0.0/16 via 192.0.2.1 dev net1 proto static onlink",
        "2001:db8:99::/48 via 2001:db8:9::1 dev net1 proto static metric 1024",
    ):
        assert route in routes
    assert "500:\tfrom 10.9.0.0/24 lookup 1000 proto static" in pod.call("ip", "rule")
    assert "10.9.0.77 dev net1 lladdr 02:00:00:00:00:77 PERMANENT" in pod.call("ip", "neigh")
    assert not any(tcp_segmentation(pod, "net1"))
    sysctls = Path("/proc/sys/net")
    assert inside(pod.path, (sysctls / "ipv4/conf/net1/arp_ignore").read_text) == "2\n"
    assert inside(pod.path, (sysctls / "ipv6/conf/net1/accept_ra").read_text) == "0\n"
    assert reaches(pod.path, wire.path, "10.9.0.1") == "10.9.0.2"
    assert reaches(wire.path, pod.path, "2001:db8:9::2") == "2001:db8:9::1"


def tcp_segmentation(space: Namespace, name: str) -> list[bool]:
    """Return what stands behind ethtool's older name `tso`, by the kernel's names."""

    def read() -> dict[str, bool]:
        with Features() as known:
            return known.features(name)

    found = inside(space.path, read)
    return [on for feature, on in found.items() if re.fullmatch("tx-tcp.*-segmentation", feature)]


def test_containers_and_the_claim_are_told_of_it(backend: NicBackend) -> None:
    (device,) = claimed(backend, CARD, config=CONFIG).plan.devices
    assert device.network == NetworkData("net1", ("10.9.0.2/24", "2001:db8:9::2/64"), "02:aa:bb:00:00:01")


def test_the_host_is_what_it_was_once_the_pod_stops(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    before, empty = state_of(host), state_of(pod)
    life = claimed(backend, CARD, config=CONFIG).prepare()
    for _ in range(2):  # the same pod, with another sandbox
        life.start(pod)
        assert life.observe(pod) == [Observed.DONE]
        life.stop(pod)
        assert life.observe(pod) == [Observed.UNDONE]
        assert_same(host, before)
        assert_same(pod, empty)
    life.unprepare()
    assert_same(host, before)


def test_addresses_that_are_tested_for_duplicates_are_usable_at_once_and_tested_as_before(
    host: Namespace, wire: Namespace, pod: Namespace, tmp_path: Path
) -> None:
    busy_card(host, wire, tests=True)
    before = state_of(host)
    life = claimed(backend_on(host, tmp_path), CARD, config=CONFIG).prepare().start(pod)
    assert reaches(pod.path, wire.path, "2001:db8:9::1") == "2001:db8:9::2"
    life.unprepare()
    assert_same(host, before)


def test_each_call_again_changes_nothing(backend: NicBackend, host: Namespace, pod: Namespace) -> None:
    before = state_of(host)
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    inside_pod = state_of(pod)
    life.prepare().start(pod)
    assert_same(pod, inside_pod)
    life.unprepare()
    life.unprepare()
    assert_same(host, before)


def test_what_is_not_configured_comes_along_as_it_is(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    before = state_of(host)
    life = claimed(backend, CARD).prepare().start(pod)
    link = link_of(pod, "card0")
    assert (link["mtu"], link["operstate"]) == (1400, "UP")
    given = ["10.8.0.5/24", "10.8.1.5/24", "10.8.0.6/24", "2001:db8:8::5/64", "2001:db8:8::6/64"]
    assert sorted(addresses(link)) == sorted(given)
    assert "10.77.0.0/16 via 10.8.0.1 dev card0 metric 50 mtu 1300" in pod.call("ip", "route")
    assert "2001:db8:77::/48 via 2001:db8:8::1 dev card0 src 2001:db8:8::5" in pod.call("ip", "-6", "route")
    assert "10.78.0.0/16" not in pod.call("ip", "route", "show", "table", "all")
    (device,) = life.plan.devices
    assert device.network
    assert (device.network.interface, device.network.hardware_address) == ("card0", link["address"])
    assert sorted(device.network.ips) == sorted(given)
    life.unprepare()
    assert_same(host, before)


def test_routes_to_one_network_that_the_host_appended_come_along_together(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    host.run(
        "route append 10.77.0.0/16 via 10.8.0.3 metric 50", "route append 10.77.0.0/16 via 10.8.0.4 metric 50"
    )
    before = state_of(host)
    life = claimed(backend, CARD).prepare()
    for _ in range(2):  # again, as after a restart
        life.start(pod)
        routes = pod.call("ip", "route", "show", "10.77.0.0/16")
        assert re.findall(r"via (\S+) dev card0.* metric 50", routes) == ["10.8.0.1", "10.8.0.3", "10.8.0.4"]
    life.unprepare()
    assert_same(host, before)


def test_it_stays_published_while_it_is_in_a_pod(backend: NicBackend, pod: Namespace) -> None:
    before = backend.devices(backend.probe()).device(CARD)
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    assert backend.devices(backend.probe()).device(CARD) == before
    other = NicBackend(backend.host, backend.options)
    assert other.devices(other.probe()).device(CARD) is None
    assert life.restarted(other).recall() == [True]
    assert other.devices(other.probe()).device(CARD) == before
    assert life.restarted(other).recall() == [False], "it is known by now"
    life.unprepare()
    assert backend.away.moved == {}


def test_a_pod_that_changed_everything_gives_it_back_as_it_was(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    before = state_of(host)
    host.run("link add decoy type veth peer name decoy1")
    with_decoy = state_of(host)
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    pod.run(
        "link set net1 down",
        "link set net1 name decoy",  # as a link of the host is called
        "link property del dev decoy altname rail0",
        "link property add dev decoy altname decoy1",
        "link set decoy address 02:66:66:66:66:66 mtu 9000 alias mine promisc on multicast off txqueuelen 7",
        "addr flush dev decoy",
        "link add br0 type bridge",
        "link set decoy master br0",
        "link set br0 up",
        "link set decoy up",
    )
    assert life.observe(pod) == [Observed.DONE], "what a pod does within its namespace undoes nothing"
    life.unprepare()
    assert_same(host, with_decoy)
    host.run("link del decoy")
    assert_same(host, before)


def test_the_namespace_is_removed_while_a_process_is_still_in_it(
    backend: NicBackend, host: Namespace, tmp_path: Path
) -> None:
    """Force: the file is gone, and with it what the runtime knows; the process is found."""
    before = state_of(host)
    with contextlib.ExitStack() as holding:
        with namespace() as gone:
            life = claimed(backend, CARD, config=CONFIG).prepare().start(gone)
            holding.enter_context(process_in(gone))
        life.stop()
        assert_same(host, before)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_hardware_that_the_kernel_brought_home_is_restored(
    backend: NicBackend, host: Namespace, tmp_path: Path
) -> None:
    """When a namespace dies, hardware comes back under its name there. A veth would not: it is moved by hand."""
    before = state_of(host)
    with namespace() as gone:
        life = claimed(backend, CARD, config=CONFIG).prepare().start(gone)
        gone.run(f"link set net1 netns {host.path}")
    assert "net1" in host.call("ip", "link")
    life.restarted(backend_on(host, tmp_path)).unprepare()
    assert_same(host, before)


def test_a_link_that_died_with_its_namespace_needs_no_undoing(backend: NicBackend, wire: Namespace) -> None:
    with namespace() as gone:
        life = claimed(backend, CARD, config=CONFIG).prepare().start(gone)
    until(lambda: "wire0" not in wire.call("ip", "link"))  # a namespace ends a moment after its last user
    life.unprepare()
    assert backend.away.moved == {}
    assert backend.devices(backend.probe()).devices == ()


def test_a_name_that_was_taken_meanwhile_keeps_nobody_waiting(
    backend: NicBackend, host: Namespace, pod: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    host.run("link add card0 type bridge")
    life.unprepare()
    assert "card0: name is not restored: File exists" in caplog.text
    assert "10.8.0.5/24" in host.call("ip", "addr")


def test_another_link_that_took_its_name_meanwhile_is_left_alone(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    """Of its kind, too: only the number tells them apart."""
    empty = state_of(pod)
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    host.run("link add card0 type veth peer name other0")
    other = link_of(host, "card0")
    life = life.restarted(backend)
    assert life.observe(pod) == [Observed.DONE]
    life.start(pod).unprepare()
    assert_same(pod, empty)
    assert link_of(host, "card0") == other
    assert "inet 10.8.0.5/24" in host.call("ip", "addr")


needs_ifb = pytest.mark.skipif(not supports("ifb"), reason="this kernel has no intermediate devices (ifb)")


def bare(space: Namespace) -> str:
    """Return the links of a namespace, with their addresses."""
    return space.call("ip", "-o", "link") + space.call("ip", "-o", "-4", "addr")


@needs_ifb
@pytest.mark.parametrize("taken", ["net1", "card0"])
def test_a_link_of_the_pods_own_that_has_its_name_is_left_to_the_pod(
    host: Namespace, pod: Namespace, tmp_path: Path, taken: str
) -> None:
    """Of its kind, too, as one with nothing below it has no other one opposite."""
    host.run("link add card0 type ifb", "addr add 10.8.0.5/24 dev card0")
    pod.run(f"link add {taken} type ifb", f"addr add 10.200.0.2/24 dev {taken}")
    before, own = bare(host), bare(pod)
    backend = backend_on(host, tmp_path, virtualLinks=["ifb"])
    name = {"interface": {"name": "net1"}} if taken == "net1" else {}
    life = claimed(backend, CARD, config=name).prepare()
    with pytest.raises(BackendError, match=f"the pod has another network interface {taken}"):
        life.start(pod)
    life.restarted(backend).unprepare()
    assert (bare(host), bare(pod)) == (before, own)


@needs_ifb
def test_two_links_of_one_kind_in_a_pod_are_not_mixed_up(
    host: Namespace, pod: Namespace, tmp_path: Path
) -> None:
    """The pod gives the first one the number that the second one has on the host."""
    host.run("link add card0 type ifb", "link add card1 type ifb")
    pod.run("link add eth0 type bridge")
    before, own = bare(host), bare(pod)
    backend = backend_on(host, tmp_path, virtualLinks=["ifb"])
    lives = [
        claimed(
            backend,
            f"nic-link-card{number}",
            name=f"claim{number}",
            config={"interface": {"name": f"net{number}", "addresses": [f"10.9.0.{number}/24"]}},
        ).prepare()
        for number in (1, 0)
    ]
    lives.reverse()
    number_of_second = link_of(host, "card1")["ifindex"]
    macs = [link_of(host, f"card{number}")["address"] for number in range(2)]
    for life in lives:
        life.start(pod)
    assert link_of(pod, "net0")["ifindex"] == number_of_second
    assert [link_of(pod, f"net{number}")["address"] for number in range(2)] == macs
    assert [addresses(link_of(pod, f"net{number}")) for number in range(2)] == [
        ["10.9.0.0/24"],
        ["10.9.0.1/24"],
    ]
    pod.run("link set net0 down", "link set net0 name swap", "link set net1 down", "link set net1 name net0")
    pod.run("link set swap name net1")
    assert [life.restarted(backend).observe(pod) for life in lives] == [[Observed.DONE], [Observed.DONE]]
    for life in lives:
        life.restarted(backend).unprepare()
    assert (bare(host), bare(pod)) == (before, own)


@needs_ifb
def test_a_link_of_the_host_that_is_called_as_the_lost_one_was_in_the_pod_is_left_alone(
    host: Namespace, tmp_path: Path
) -> None:
    host.run("link add card0 type ifb", "addr add 10.8.0.5/24 dev card0", "link add net1 type ifb")
    backend = backend_on(host, tmp_path, virtualLinks=["ifb"])
    with namespace() as gone:
        life = claimed(backend, CARD, config={"interface": {"name": "net1"}}).prepare().start(gone)
        gone.run("link del net1")
    before = bare(host)
    life.unprepare()
    assert bare(host) == before


def test_an_alternative_name_that_was_taken_meanwhile_keeps_nobody_waiting(
    backend: NicBackend, host: Namespace, pod: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    host.run("link add other0 type bridge", "link property add dev other0 altname rail0")
    life.unprepare()
    assert "card0: alternative name is not restored: File exists" in caplog.text
    assert link_of(host, "card0")["altnames"] == ["enp9s0"]


def test_a_queueing_discipline_of_the_host_that_is_lost_is_told(
    backend: NicBackend, host: Namespace, pod: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    claimed(backend, CARD, config=CONFIG).prepare().start(pod).unprepare()
    assert "queueing discipline" not in caplog.text
    bucket = ("tbf", "rate", "1gbit", "burst", "64kb", "latency", "50ms")
    host.call("tc", "qdisc", "add", "dev", "card0", "root", *bucket)
    claimed(backend, CARD, config=CONFIG).prepare().start(pod).unprepare()
    assert "card0: its queueing discipline was tbf and is noqueue now" in caplog.text


def test_an_alternative_name_that_the_pod_has_is_left_out(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    before = state_of(host)
    pod.run("link add rail0 type bridge")
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    assert link_of(pod, "net1")["altnames"] == ["enp9s0"]
    life.unprepare()
    assert_same(host, before)


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("route add default via 10.8.0.1", "the host's default route leads over it"),
        ("route add default via 10.8.0.1 table 77 proto ra", "the host's default route leads over it"),
        ("link set card0 master br0", "it is a port of br0"),
        ("link add link card0 name up0 type macvlan", "up0 is made on it"),
    ],
)
def test_what_became_the_hosts_own_after_prepare_is_not_taken_from_it(
    backend: NicBackend, host: Namespace, pod: Namespace, setup: str, message: str
) -> None:
    if "macvlan" in setup and not supports("macvlan", link=True):
        pytest.skip("this kernel has no macvlan links")
    host.run("link add br0 type bridge")
    life = claimed(backend, CARD, config=CONFIG).prepare()
    host.run(setup)
    before = state_of(host)
    with pytest.raises(BackendError, match=message):
        life.start(pod)
    assert_same(host, before)
    life.unprepare()
    assert_same(host, before)


@pytest.mark.parametrize("kind", ["a FIFO", "a file", "another namespace"])
def test_what_is_no_network_namespace_is_refused_at_once(
    backend: NicBackend, host: Namespace, tmp_path: Path, kind: str
) -> None:
    before = state_of(host)
    path = tmp_path / "pod"
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a file":
        path.touch()
    else:
        path.symlink_to("/proc/self/ns/mnt")
    life = claimed(backend, CARD, config=CONFIG).prepare()
    with pytest.raises(BackendError, match="it is no network namespace"):
        life.start(str(path))
    life.unprepare()
    assert_same(host, before)


def test_after_a_reboot_nothing_is_restored(backend: NicBackend, host: Namespace, pod: Namespace) -> None:
    before = state_of(host)
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    facts = life.facts[0]["before"]
    life.stop(pod)
    assert_same(host, before)
    host.run("link set card0 mtu 1450")
    life.facts[0] = {"before": facts, "netns": 1, "file": ""}
    life.restarted(backend, rebooted=True).unprepare()
    assert link_of(host, "card0")["mtu"] == 1450


# --- refusals


def test_pods_in_the_hosts_network_are_refused(backend: NicBackend, host: Namespace) -> None:
    before = state_of(host)
    life = claimed(backend, CARD, config=CONFIG).prepare()
    with pytest.raises(BackendError, match="the pod uses the host's network"):
        life.start("")
    with pytest.raises(BackendError, match="network namespace is the host's"):
        life.start(host)
    with pytest.raises(BackendError, match="No such file"):
        life.start("/run/netns/gone")
    life.unprepare()
    assert_same(host, before)


def test_a_second_pod_of_the_claim_is_refused(backend: NicBackend, host: Namespace, pod: Namespace) -> None:
    before = state_of(host)
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    with namespace() as second:
        with pytest.raises(BackendError, match=f"{CARD} is in another pod that uses the claim"):
            life.start(second)
        assert life.observe(pod) == [Observed.DONE]
        life.stop(pod)
        life.start(second)
        assert link_of(second, "net1")["mtu"] == 1300
        life.unprepare()
    assert_same(host, before)


@pytest.mark.parametrize(
    ("setup", "config", "message"),
    [
        (
            "link add net1 type bridge",
            CONFIG,
            "the pod has another network interface net1: set interface.name",
        ),
        (
            "route add default dev lo metric 9",
            {**CONFIG, "routes": [{"destination": "0.0.0.0/0", "gateway": "10.9.0.1", "metric": 9}]},
            "route to 0.0.0.0/0: the pod has one already, over another interface",
        ),
        (
            "link set lo up",
            {
                **CONFIG,
                "routes": [{"destination": "10.9.0.0/24", "gateway": "10.9.0.1"}],
            },
            "route to 10.9.0.0/24: the interface has one already, on the link; give it a metric",
        ),
        (
            "link set lo up",
            {**CONFIG, "ethtool": {"features": {"warp-drive": True}}},
            "feature 'warp-drive' of the network interface is not there",
        ),
        (
            "link set lo up",
            {**CONFIG, "ethtool": {"privateFlags": {"warp": True}}},
            "'warp' is no private flag of this driver",
        ),
    ],
)
def test_what_the_pod_cannot_have_leaves_nothing_behind(
    backend: NicBackend, host: Namespace, pod: Namespace, setup: str, config: Any, message: str
) -> None:
    before = state_of(host)
    pod.run(setup)
    life = claimed(backend, CARD, config=config).prepare()
    with pytest.raises(BackendError, match=f"^{CARD}: {message}"):
        life.start(pod)
    life.unprepare()
    assert_same(host, before)


def test_a_thousand_routes_that_are_there_already_are_looked_for_together(
    backend: NicBackend, host: Namespace, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart: each is told by the kernel to be there, and together they must fit into the hook's time."""
    lists: list[int] = []
    listed = Rtnl.listed

    def counted(rtnl: Rtnl, kind: int, body: bytes) -> list[bytes]:
        lists.append(kind)
        return listed(rtnl, kind, body)

    destinations = [f"11.{number >> 8}.{number & 255}.0/24" for number in range(1500)]
    routes = [{"destination": one, "gateway": "10.9.0.1"} for one in destinations]
    life = claimed(backend, CARD, config={**CONFIG, "routes": routes}).prepare().start(pod)
    monkeypatch.setattr(Rtnl, "listed", counted)
    life.restarted(backend).start(pod)
    assert lists.count(m.RTM_GETROUTE) < 5
    life.unprepare()


def test_hardware_that_is_on_its_way_home_is_waited_for(backend: NicBackend, pod: Namespace) -> None:
    """Its function is there, with a driver, but not yet its interface."""
    function = next(Path("/sys/bus/virtio/devices").glob("*/driver"), None)
    if function is None:
        pytest.skip("there is no virtio device here to stand for hardware")
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    life.records[0].body["which"] |= {"bus": "virtio", "device": function.parent.name}
    with pytest.raises(TransientError, match="has not come back yet"):
        life.unprepare()
    life.records[0].body["which"] |= {"bus": "", "device": ""}
    life.unprepare()


def test_a_link_with_an_alternative_name_as_its_name_in_the_pod(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    before = state_of(host)
    life = claimed(backend, CARD, config={"interface": {"name": "rail0"}}).prepare().start(pod)
    assert link_of(pod, "rail0")["altnames"] == ["enp9s0"]
    life.unprepare()
    assert_same(host, before)


def as_text(life: Life) -> str:
    return "; ".join(record.text for record in life.records)


def test_steps_are_told_in_words(backend: NicBackend) -> None:
    life = claimed(backend, CARD, config=CONFIG)
    assert as_text(life) == (
        "move card0 (nic-link-card0) into the pod as net1, with 10.9.0.2/24, 2001:db8:9::2/64, MTU 1300, 4 routes, "
        "1 rule, 1 neighbour, 2 sysctls and 1 setting"
    )
    assert as_text(claimed(backend, CARD, config={"routes": [{"destination": "10.8.7.0/24"}]})) == (
        "move card0 (nic-link-card0) into the pod, with 10.8.0.5/24, 10.8.1.5/24, 3 more addresses and 1 route"
    )


def test_a_program_that_the_pod_left_on_the_link_is_taken_off(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    """An XDP program stays where a link is moved, and would see what the host receives."""
    before = state_of(host)
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    descriptor = xdp_program()
    try:
        with inside(pod.path, Rtnl) as rtnl:
            index = link_of(pod, "net1")["ifindex"]
            program = attribute(1, struct.pack("=i", descriptor)) + attribute(3, struct.pack("=I", 2))
            rtnl.change(m.RTM_SETLINK, m.link(index, m.nested(m.IFLA_XDP, program)))
    finally:
        os.close(descriptor)
    assert "xdp" in pod.call("ip", "link", "show", "net1")
    life.stop(pod)
    assert "xdp" not in host.call("ip", "link")
    life.unprepare()
    assert_same(host, before)


def xdp_program() -> int:
    """Load a program that lets everything pass (bpf(2)); return a file descriptor of it."""
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0))
    license_text = ctypes.create_string_buffer(b"GPL")
    request = struct.pack("=IIQQ", 6, 2, ctypes.addressof(code), ctypes.addressof(license_text)).ljust(
        128, b"\0"
    )
    number = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
    if number is None:
        pytest.skip("the number of the system call bpf is not known here")
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(number, 5, ctypes.create_string_buffer(request), len(request))
    if descriptor < 0:
        pytest.skip(f"no program can be loaded into the kernel here: {os.strerror(ctypes.get_errno())}")
    return int(descriptor)


@pytest.mark.skipif(not supports("vrf", "table 10"), reason="this kernel has no VRF")
def test_a_vrf_is_made_for_the_first_interface_of_it(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    before, empty = state_of(host), state_of(pod)
    interface = {"name": "net1", "addresses": ["10.9.0.2/24"], "vrf": {"name": "blue", "table": 77}}
    routes = [{"destination": "10.99.0.0/16", "gateway": "10.9.0.1"}]
    life = claimed(backend, CARD, config={"interface": interface, "routes": routes}).prepare().start(pod)
    assert link_of(pod, "net1")["master"] == "blue"
    assert "10.99.0.0/16 via 10.9.0.1 dev net1" in pod.call("ip", "route", "show", "table", "77")
    life.stop(pod)
    assert_same(pod, empty)
    life.unprepare()
    assert_same(host, before)
