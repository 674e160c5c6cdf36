"""Shares of a card, in real network namespaces: macvlan links in pods, and limits that hold both ways."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import BackendError, HostStep, Observed, PlanError, Work
from dradriver.host import Host
from dradriver_nic import NicBackend
from dradriver_nic.actuate.found import Which
from dradriver_nic.inventory import function_name
from dradriver_nic.netns import inside
from dradriver_nic.steps_macvlan import ShareCard
from dradriver_nic.steps_vf import CreateVFs
from hosttree import HostTree
from netns import Namespace, namespace, needs_namespaces, process_in
from netstate import assert_same, state_of
from nicclaims import backend_on, cable, claimed, link_of, needs_shares, new_namespace
from nicnode import options_of
from traffic import rate, reaches

pytestmark = [needs_namespaces, needs_shares]

CARD = "nic-link-card0"
CONFIG: dict[str, Any] = {
    "interface": {"name": "fabric0", "addresses": ["10.9.0.2/24", "2001:db8:9::2/64"], "mtu": 1400},
    "routes": [{"destination": "10.99.0.0/16", "gateway": "10.9.0.1"}],
}
ON_IT = ["link add link card0 name up0 type macvlan", "link set up0 up"]
PCI_CARD, PCI_FUNCTION = "0000:15:01.0", "0000:15:01.1"
MEGABIT = 10**6


host = pytest.fixture(new_namespace)
wire = pytest.fixture(new_namespace)
pod = pytest.fixture(new_namespace)
other = pytest.fixture(new_namespace)


@pytest.fixture
def backend(host: Namespace, wire: Namespace, tmp_path: Path) -> NicBackend:
    cable(host, "card0", wire)
    host.run("addr add 10.9.0.5/24 dev card0")
    wire.run("addr add 10.9.0.1/24 dev wire0", "addr add 2001:db8:9::1/64 dev wire0 nodad")
    return backend_on(host, tmp_path, mode="shares", bandwidths={"*": "1P"})


def test_a_pod_has_a_macvlan_link_as_it_is_configured(
    backend: NicBackend, host: Namespace, pod: Namespace, wire: Namespace
) -> None:
    before = state_of(host)
    life = claimed(backend, CARD, config=CONFIG, bandwidth="1G").prepare().start(pod)
    link = link_of(pod, "fabric0")
    (device,) = life.plan.devices
    assert device.network
    assert link["linkinfo"] == {
        "info_kind": "macvlan",
        "info_data": {**link["linkinfo"]["info_data"], "mode": "bridge"},
    }
    assert (link["mtu"], link["address"]) == (1400, device.network.hardware_address)
    assert link["address"].startswith("02:")
    assert [one["local"] for one in link["addr_info"] if one["scope"] == "global"] == [
        "10.9.0.2",
        "2001:db8:9::2",
    ]
    assert "10.99.0.0/16 via 10.9.0.1 dev fabric0" in pod.call("ip", "route")
    assert reaches(pod.path, wire.path, "10.9.0.1") == "10.9.0.2"
    assert reaches(wire.path, pod.path, "2001:db8:9::2") == "2001:db8:9::1"
    assert reaches(host.path, wire.path, "10.9.0.1") == "10.9.0.5"
    assert life.observe(pod) == [Observed.DONE, Observed.DONE]
    life.stop(pod)
    assert pod.call("ip", "-o", "link").count("\n") == 1
    life.unprepare()
    assert life.observe() == [Observed.UNDONE, Observed.UNDONE]
    assert_same(host, before)


@pytest.mark.parametrize("megabits", [20, 200])
def test_the_limit_holds_within_a_tenth_both_ways(
    backend: NicBackend, host: Namespace, pod: Namespace, wire: Namespace, megabits: int
) -> None:
    before = state_of(host)
    life = claimed(backend, CARD, config=CONFIG, bandwidth=f"{megabits}M").prepare().start(pod)
    for source, to, address in (
        (pod, wire, "10.9.0.1"),
        (wire, pod, "10.9.0.2"),
        (pod, wire, "2001:db8:9::1"),
    ):
        measured = rate(source.path, to.path, address) / MEGABIT
        assert 0.9 * megabits < measured < 1.1 * megabits, f"{source.path} to {address}"
    life.unprepare()
    assert_same(host, before)


@pytest.mark.parametrize("gigabits", [0.001, 25, 34, 35, 100, 400, 10**6])
def test_rates_of_all_cards_are_as_tc_shows_them(
    backend: NicBackend, host: Namespace, gigabits: float
) -> None:
    """Above 34 Gbit/s a rate does not fit into 32 bits of bytes a second."""
    bits = int(gigabits * 10**9)
    life = claimed(backend, CARD, bandwidth=str(bits)).prepare()
    shown = json.loads(host.call("tc", "-j", "qdisc", "show"))
    buckets = [one["options"] for one in shown if one["kind"] == "tbf"]
    assert [one["rate"] for one in buckets] == [bits // 8] * 2
    assert min(one["burst"] for one in buckets) > 60_000
    life.unprepare()


def test_each_share_has_its_own_limit_and_the_host_none(
    backend: NicBackend, host: Namespace, pod: Namespace, other: Namespace, wire: Namespace
) -> None:
    before = state_of(host)
    slow = claimed(backend, CARD, name="slow", config=CONFIG, bandwidth="10M").prepare().start(pod)
    config = {"interface": {"addresses": ["10.9.0.3/24"]}}
    fast = claimed(backend, CARD, name="fast", config=config, bandwidth="100M").prepare().start(other)
    assert 9 < rate(pod.path, wire.path, "10.9.0.1") / MEGABIT < 11
    assert 90 < rate(wire.path, other.path, "10.9.0.3") / MEGABIT < 110
    assert rate(host.path, wire.path, "10.9.0.1", 0.5) / MEGABIT > 200
    # On one card they see each other.
    assert reaches(pod.path, other.path, "10.9.0.3") == "10.9.0.2"
    slow.unprepare()
    assert 90 < rate(other.path, wire.path, "10.9.0.1") / MEGABIT < 110
    assert fast.observe(other) == [Observed.DONE, Observed.DONE]
    fast.unprepare()
    assert_same(host, before)


def test_a_private_share_does_not_see_the_others(
    backend: NicBackend, pod: Namespace, other: Namespace, wire: Namespace
) -> None:
    config = {**CONFIG, "macvlanMode": "private"}
    claimed(backend, CARD, name="a", config=config).prepare().start(pod)
    second = {"interface": {"addresses": ["10.9.0.3/24"]}, "macvlanMode": "private"}
    claimed(backend, CARD, name="b", config=second).prepare().start(other)
    assert reaches(pod.path, wire.path, "10.9.0.1") == "10.9.0.2"
    with pytest.raises(OSError, match=r"No route|timed out|unreachable"):
        inside(pod.path, lambda: __import__("socket").create_connection(("10.9.0.3", 9), timeout=4))


def test_a_passthru_share_has_the_address_of_the_card_and_its_limit(
    backend: NicBackend, host: Namespace, pod: Namespace, wire: Namespace
) -> None:
    host.run("addr flush dev card0")
    before = state_of(host)
    config = {**CONFIG, "macvlanMode": "passthru"}
    life = claimed(backend, CARD, config=config, bandwidth="50M").prepare().start(pod)
    assert link_of(pod, "fabric0")["address"] == link_of(host, "card0")["address"]
    assert 45 < rate(pod.path, wire.path, "10.9.0.1") / MEGABIT < 55
    assert 45 < rate(wire.path, pod.path, "10.9.0.2") / MEGABIT < 55
    with pytest.raises(PlanError, match="mode passthru, which allows no other beside it"):
        claimed(backend, CARD, name="b", held=dict.fromkeys(life.plan.holds, life.ref))
    life.unprepare()
    assert_same(host, before)


def test_a_passthru_share_with_an_address_of_its_own_gives_the_card_its_own_back(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    before = state_of(host)
    interface = {"name": "x0", "hardwareAddr": "02:00:00:00:12:34"}
    life = claimed(backend, CARD, config={"interface": interface, "macvlanMode": "passthru"})
    life.prepare().start(pod)
    assert link_of(pod, "x0")["address"] == "02:00:00:00:12:34"
    life.unprepare()
    assert_same(host, before)


def test_a_card_that_is_down_is_up_while_it_is_shared(
    backend: NicBackend, host: Namespace, pod: Namespace, other: Namespace, wire: Namespace
) -> None:
    inventory = backend.probe()
    host.run("addr flush dev card0", "link set card0 down")
    before = state_of(host)
    first = claimed(backend, CARD, name="a", config=CONFIG, inventory=inventory).prepare().start(pod)
    second = claimed(backend, CARD, name="b", inventory=inventory).prepare().start(other)
    assert reaches(pod.path, wire.path, "10.9.0.1") == "10.9.0.2"
    first.unprepare()
    assert "UP" in link_of(host, "card0")["flags"]
    second.unprepare()
    assert_same(host, before)


@pytest.mark.parametrize("first", ["share", "function"])
def test_a_card_is_up_for_shares_and_virtual_functions_of_before_and_after_a_change_of_its_mode(
    host: Namespace, wire: Namespace, tmp_path: Path, first: str
) -> None:
    cable(host, "card0", wire)
    host.run("link set card0 down")
    before = state_of(host)
    bus = HostTree(tmp_path)
    bus.write(f"sys/bus/pci/devices/{PCI_CARD}/sriov_numvfs", "0")
    bus.link(f"sys/bus/pci/devices/{PCI_CARD}/virtfn0", f"../{PCI_FUNCTION}")
    bus.link(f"sys/bus/pci/devices/{PCI_FUNCTION}/driver", "../../../drivers/vfio-pci")
    options = {"networkNamespace": str(host.path)}
    backend = NicBackend(Host(tmp_path), options_of(options))
    which = Which("card0", kind="veth")
    steps: dict[str, HostStep[NicBackend]] = {
        "share": ShareCard(function_name(PCI_CARD), which, "uid-a", 0, 10**9, "02:00:00:00:00:01"),
        "function": CreateVFs(
            function_name(PCI_FUNCTION), PCI_CARD, which, PCI_FUNCTION, 0, 1, "uid-b", index=0
        ),
    }
    work = Work({}, lambda facts: None)
    one, other = steps.pop(first), steps.popitem()[1]
    one.apply(backend, work)
    other.apply(backend, work)
    bus.remove(f"sys/bus/pci/devices/{PCI_FUNCTION}/driver")  # the program that had the function is gone
    one.revert(backend, work)
    assert "UP" in link_of(host, "card0")["flags"]
    other.revert(backend, work)
    assert_same(host, before)
    assert not [*(tmp_path / "run").rglob("*.json")]


def test_what_others_do_with_the_card_stays(backend: NicBackend, host: Namespace, pod: Namespace) -> None:
    """Filters of others, on a clsact that was there before, and ones that come while it is shared."""
    host.call("tc", "qdisc", "add", "dev", "card0", "clsact")
    host.call("tc", "qdisc", "add", "dev", "card0", "root", "handle", "1:", "htb", "default", "1")
    add = "filter add dev card0 {} prio {} protocol ip u32 match ip dst 198.51.100.1 flowid 9:9"
    host.call("tc", *add.format("egress", 1218).replace("protocol ip", "protocol all").split())
    before = state_of(host)
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    life.unprepare()
    assert_same(host, before)
    host.call("tc", "qdisc", "del", "dev", "card0", "clsact")
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    host.call("tc", *add.format("ingress", 7).split())
    life.unprepare()
    assert "198.51.100.1" in host.call("tc", "filter", "show", "dev", "card0", "ingress") or (
        "c6336401" in host.call("tc", "filter", "show", "dev", "card0", "ingress")
    )


@pytest.mark.parametrize("last", [0, 1])
def test_nothing_is_left_on_the_card_where_the_run_directory_was_removed_meanwhile(
    backend: NicBackend, host: Namespace, tmp_path: Path, last: int
) -> None:
    """Of two shares one was made before that, and one after."""
    before = state_of(host)
    lives = [claimed(backend, CARD, name="a", config=CONFIG).prepare()]
    shutil.rmtree(tmp_path / "run")
    lives.append(claimed(backend, CARD, name="b", config=CONFIG).prepare())
    lives[1 - last].restarted(backend).unprepare()
    assert "clsact" in host.call("tc", "qdisc", "show", "dev", "card0")
    lives[last].restarted(backend).unprepare()
    assert "clsact" not in host.call("tc", "qdisc", "show", "dev", "card0")
    assert_same(host, before)


def test_what_somebody_hung_on_the_card_since_a_reboot_stays(
    backend: NicBackend, host: Namespace, tmp_path: Path
) -> None:
    life = claimed(backend, CARD, config=CONFIG).prepare()
    shutil.rmtree(tmp_path / "run")
    for command in ("del", "add"):
        host.call("tc", "qdisc", command, "dev", "card0", "clsact")
    life.restarted(backend, rebooted=True).unprepare()
    assert "clsact" in host.call("tc", "qdisc", "show", "dev", "card0")


def test_the_same_pod_with_another_sandbox_has_the_same_link(
    backend: NicBackend, pod: Namespace, other: Namespace
) -> None:
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    address = link_of(pod, "fabric0")["address"]
    with pytest.raises(BackendError, match="another pod that uses the claim has its share"):
        life.start(other)
    life.stop(pod)
    life.start(other)
    assert link_of(other, "fabric0")["address"] == address
    life.unprepare()


def test_a_namespace_that_is_gone_takes_the_link_along(
    backend: NicBackend, host: Namespace, tmp_path: Path
) -> None:
    before = state_of(host)
    with namespace() as gone:
        life = claimed(backend, CARD, config=CONFIG).prepare().start(gone)
    life.restarted(backend_on(host, tmp_path, mode="shares")).unprepare()
    assert_same(host, before)


@pytest.mark.parametrize("found", ["by its file", "by a process"])
def test_a_pod_whose_namespace_has_the_number_of_one_that_is_gone_keeps_its_share(
    backend: NicBackend, host: Namespace, tmp_path: Path, other: Namespace, found: str
) -> None:
    """The kernel gives the number to the next namespace that is made."""
    with namespace() as gone:
        life = claimed(backend, CARD, config=CONFIG).prepare().start(gone)
    host.run(f"link add link card0 name fabric0 netns {other.path} type macvlan mode bridge")
    before = state_of(other)
    for facts in life.facts:
        if facts.get("netns"):
            facts |= {"netns": other.path.stat().st_ino, "file": str(other.path) if "file" in found else ""}
    life = life.restarted(backend_on(host, tmp_path, mode="shares"))
    with process_in(other):
        assert life.observe()[1] is Observed.UNDONE
        life.unprepare()
    assert_same(other, before)


def test_a_pod_that_renamed_its_link_leaves_none(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    pod.run("link set fabric0 down", "link set fabric0 name mine")
    assert life.observe(pod)[1] is Observed.DONE
    life.stop(pod)
    assert "mine" not in pod.call("ip", "link")
    life.unprepare()


def test_a_pod_that_changed_name_and_address_of_its_link_has_no_second_one(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    empty = state_of(pod)
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    pod.run("link set fabric0 down", "link set fabric0 name mine", "link set mine address 02:33:00:00:00:33")
    life = life.restarted(backend)
    assert life.observe(pod)[1] is Observed.DONE
    life.start(pod)
    assert len(pod.call("ip", "-o", "link").splitlines()) == 2
    life.stop(pod)
    assert_same(pod, empty)
    life.unprepare()


def test_two_shares_of_a_card_in_one_pod_are_two_links(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    """Both would be called net0: the second one does not take the first one's link for its own."""
    before, empty = state_of(host), state_of(pod)
    first = claimed(backend, CARD, name="a", config={"interface": {"addresses": ["10.9.0.2/24"]}}).prepare()
    second = claimed(backend, CARD, name="b", config={"interface": {"addresses": ["10.9.0.3/24"]}}).prepare()
    first.start(pod)
    alone = link_of(pod, "net0")
    with pytest.raises(
        BackendError, match=r"the pod has another network interface net0: set interface\.name"
    ):
        second.start(pod)
    second.stop(pod)
    assert link_of(pod, "net0") == alone
    assert first.observe(pod) == [Observed.DONE, Observed.DONE]
    named = {"interface": {"name": "net7", "addresses": ["10.9.0.3/24"]}}
    third = claimed(backend, CARD, name="c", config=named).prepare().start(pod)
    assert link_of(pod, "net0")["address"] != link_of(pod, "net7")["address"]
    third.unprepare()
    assert link_of(pod, "net0") == alone
    first.unprepare()
    second.unprepare()
    assert_same(host, before)
    assert_same(pod, empty)


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (["route add default via 10.9.0.1"], "the host's default route leads over it"),
        (["link add br0 type bridge", "link set card0 master br0"], "it is a port of br0"),
        ([*ON_IT, "route add default dev up0"], "it belongs to a link of the host's default route"),
        (ON_IT, ""),
    ],
)
def test_a_card_that_became_the_hosts_own_after_prepare_is_not_shared(
    backend: NicBackend, host: Namespace, pod: Namespace, setup: list[str], message: str
) -> None:
    """That other links are made on it does not matter, unless the host is reached over these."""
    life = claimed(backend, CARD, config=CONFIG).prepare()
    host.run(*setup)
    before, empty = state_of(host), state_of(pod)
    if message:
        with pytest.raises(BackendError, match=f"device {CARD} is the host's own now: {message}"):
            life.start(pod)
        assert_same(pod, empty)
        assert_same(host, before)
    else:
        life.start(pod)
    life.unprepare()


def test_a_mac_address_is_one_shares_of_a_card(backend: NicBackend, host: Namespace) -> None:
    """The kernel would refuse it only once a pod has the link."""
    config = {"interface": {"hardwareAddr": "02:AB:00:00:00:01"}}
    first = claimed(backend, CARD, config=config)
    held = dict.fromkeys(first.plan.holds, first.ref)
    taken = (
        "interface.hardwareAddr: 02:ab:00:00:00:01 is that of another share of the card nic-link-card0, of"
    )
    with pytest.raises(PlanError, match=re.escape(f"{taken} claim default/claim (uid-claim)")):
        claimed(backend, CARD, name="b", config=config, held=held)
    names = {number: {"interface": {**config["interface"], "name": f"a{number}"}} for number in range(2)}
    with pytest.raises(PlanError, match=f"{taken} this claim"):
        claimed(backend, CARD, CARD, configs=names)
    own = {"interface": {"hardwareAddr": link_of(host, "card0")["address"]}}
    with pytest.raises(PlanError, match="is that of the card nic-link-card0 itself"):
        claimed(backend, CARD, config=own)


def test_sizes_of_packets_are_set_on_the_link(backend: NicBackend, pod: Namespace) -> None:
    config = {"interface": {"gsoMaxSize": 32768, "groMaxSize": 16384}}
    life = claimed(backend, CARD, config=config).prepare()
    for _ in range(2):
        life.start(pod)
        link = link_of(pod, "net0")
        assert (link["gso_max_size"], link["gro_max_size"]) == (32768, 16384)
    life.unprepare()
    life = claimed(backend, CARD, config={"interface": {"gsoMaxSize": 1 << 24}}).prepare()
    with pytest.raises(BackendError, match="too big gso_max_size"):
        life.start(pod)
    life.unprepare()


def test_an_mtu_that_the_card_has_no_more_is_told(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    mtu = link_of(host, "card0")["mtu"]
    life = claimed(backend, CARD, config={"interface": {"mtu": mtu}}).prepare()
    host.run(f"link set card0 mtu {mtu - 100}")
    with pytest.raises(BackendError, match=f"interface.mtu {mtu} is more than the card has now, {mtu - 100}"):
        life.start(pod)
    life.unprepare()


def test_the_hosts_network_and_names_that_are_taken_are_refused(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    before = state_of(host)
    pod.run("link add fabric0 type bridge")
    life = claimed(backend, CARD, config=CONFIG).prepare()
    with pytest.raises(BackendError, match="the pod has another network interface fabric0"):
        life.start(pod)
    with pytest.raises(BackendError, match="the pod uses the host's network"):
        life.start("")
    life.unprepare()
    assert "fabric0" in pod.call("ip", "link")
    assert_same(host, before)


def test_a_card_that_was_pulled_needs_no_undoing(
    backend: NicBackend, host: Namespace, pod: Namespace
) -> None:
    life = claimed(backend, CARD, config=CONFIG).prepare().start(pod)
    host.run("link del card0")
    life.unprepare()
    assert host.call("ip", "-o", "link").count("\n") == 1


def test_steps_are_told_in_words(backend: NicBackend) -> None:
    life = claimed(backend, CARD, config=CONFIG, bandwidth="25M")
    limit, make = [record.text for record in life.records]
    assert limit == "limit a share of card0 (nic-link-card0) to 25000000 bits a second"
    assert make == (
        "make a macvlan link fabric0 on card0 (nic-link-card0) in the pod, with 10.9.0.2/24, 2001:db8:9::2/64, "
        "MTU 1400 and 1 route"
    )
