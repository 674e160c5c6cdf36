"""The cards of a real network namespace of this machine's kernel, and its events. `ip` says what is true."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import UnavailableError
from dradriver.host import Host
from dradriver_nic import NicBackend
from dradriver_nic.away import Moved
from dradriver_nic.inventory import Link
from dradriver_nic.kernel import LiveKernel
from dradriver_nic.netns import inside
from dradriver_nic.watch import LinkWatch
from netns import Namespace, namespace, needs_namespaces, supports
from nicclaims import needs_shares
from nicnode import names, options_of

pytestmark = needs_namespaces

PATIENCE = 30.0

PCI_EVENTS = [file for file in Path("/sys/bus/pci/devices").glob("*/uevent") if os.access(file, os.W_OK)]


@pytest.fixture
def here() -> Iterator[Namespace]:
    """Return a network namespace of its own."""
    with namespace() as made:
        yield made


def backend_in(here: Namespace, directory: Path, **options: Any) -> NicBackend:
    """Return a backend that takes the namespace for the host's; there is no PCI bus."""
    given = {"virtualLinks": ["veth"], "networkNamespace": str(here.path), **options}
    return NicBackend(Host(directory), options_of(given))


def offered(backend: NicBackend) -> list[str]:
    return names(backend.devices(backend.probe()))


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


# --- probing


def test_links_are_seen_as_ip_shows_them(here: Namespace) -> None:
    here.run(
        "link add br0 type bridge",
        "link add v0 mtu 1400 type veth peer name v1",
        "link add v2 type veth peer name v3",
        "link set v1 master br0 up",
        "link set v0 up",
        "link property add dev v0 altname a-name-longer-than-fifteen altname other",
        "addr add 192.0.2.7/24 dev v0",
        "addr add 2001:db8::7/64 dev v0 nodad",
        "tuntap add tap0 mode tap",
    )
    if supports("macvlan", link=True):
        here.run("link add link v2 macvlan0 type macvlan mode private")
    if supports("vxlan", "id 7 dstport 4789"):
        here.run("link add vxlan0 type vxlan id 7 dstport 4789 dev v0 local 192.0.2.7")
    told = {one["ifname"]: one for one in json.loads(here.call("ip", "-json", "-details", "address", "show"))}
    links = LiveKernel(here.path).snapshot().links
    assert {link.name for link in links.values()} == told.keys()
    for link in links.values():
        one = told[link.name]
        master = links[link.master].name if link.master else None
        assert (link.index, link.mac, link.mtu, link.state.replace("-", "")) == (
            one["ifindex"],
            one.get("address", ""),
            one["mtu"],
            one["operstate"].lower(),
        )
        assert master == one.get("master")
        assert set(link.altnames) == set(one.get("altnames", ()))
        assert link.kind == one.get("linkinfo", {}).get("info_kind", "")
        assert link.up == ("UP" in one["flags"])
        assert (link.min_mtu, link.max_mtu) == (one["min_mtu"], one["max_mtu"])
        shown = {f"{a['local']}/{a['prefixlen']}" for a in one["addr_info"] if a["scope"] == "global"}
        assert set(link.addresses) == shown
        below = links[link.parent].name if link.parent else None
        assert below == one.get("link")


def test_drivers_are_asked_of_what_may_be_offered(here: Namespace) -> None:
    here.run("link add v0 type veth peer name v1", "link set v0 up", "link set v1 up")
    links = LiveKernel(here.path, frozenset({"veth"})).snapshot().links
    found = {link.name: (link.driver, link.speed_mbps) for link in links.values()}
    assert found["v0"] == found["v1"] == ("veth", 10_000)


def test_a_namespace_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    backend = NicBackend(Host(tmp_path), options_of({"networkNamespace": str(tmp_path / "gone")}))
    with pytest.raises(UnavailableError, match=r"gone: No such file .* \(option networkNamespace\)"):
        backend.probe()
    with pytest.raises(UnavailableError):
        backend.watch(threading.Event(), lambda why: None)


def test_a_renamed_link_is_the_link_of_its_new_name(here: Namespace, tmp_path: Path) -> None:
    here.run("link add v0 type veth peer name v1")
    backend = backend_in(here, tmp_path, devices='device.attributes["nic.dradriver.io"].ifName != "v1"')
    assert offered(backend) == ["nic-link-v0"]
    here.run("link set v0 name storage")
    assert offered(backend) == ["nic-link-storage"]


def test_a_link_that_is_in_a_pod_stays_until_it_is_forgotten(here: Namespace, tmp_path: Path) -> None:
    here.run("link add v0 type veth peer name v1")
    backend = backend_in(here, tmp_path)
    inventory = backend.probe()
    before = backend.devices(inventory)
    card = inventory.card("nic-link-v0")
    assert card
    backend.away.add(card.name, Moved(card.link))
    with namespace() as pod:
        here.run(f"link set v0 netns {pod.path}")
        assert backend.devices(backend.probe()) == before
        backend.away.discard(card.name)
        assert offered(backend) == ["nic-link-v1"]


# --- the uplink


def test_every_default_route_keeps_its_links_for_the_host(here: Namespace, tmp_path: Path) -> None:
    for number in range(5):
        here.run(
            f"link add v{number} type veth peer name p{number}",
            f"link set v{number} up",
            f"link set p{number} up",
            f"addr add 192.0.{number}.2/24 dev v{number}",
            f"addr add 2001:db8:{number}::2/64 dev v{number} nodad",
        )
    backend = backend_in(
        here, tmp_path, devices='!device.attributes["nic.dradriver.io"].ifName.startsWith("p")'
    )

    def free() -> str:
        return " ".join(name.removeprefix("nic-link-v") for name in offered(backend))

    assert free() == "0 1 2 3 4"
    here.run("route add default via 192.0.0.1 dev v0 metric 100")
    assert free() == "1 2 3 4"
    here.run("route add default via 192.0.1.1 dev v1 metric 4000")
    assert free() == "2 3 4"
    here.run("-6 route add default via 2001:db8:2::1 dev v2 metric 1024")
    assert free() == "3 4"
    here.run("route add default via 192.0.3.1 dev v3 table 1000")
    assert free() == "4"
    here.run("route add 10.0.0.0/8 via 192.0.4.1 dev v4", "route del default via 192.0.3.1 dev v3 table 1000")
    assert free() == "3 4"
    here.run("route add default table 7 nexthop via 192.0.3.1 dev v3 nexthop via 192.0.4.1 dev v4")
    assert free() == ""


def test_a_default_route_by_a_nexthop_object_counts(here: Namespace, tmp_path: Path) -> None:
    here.run(
        "link add v0 type veth peer name p0",
        "link set v0 up",
        "link set p0 up",
        "addr add 192.0.2.2/24 dev v0",
    )
    try:
        here.run("nexthop add id 7 via 192.0.2.1 dev v0")
    except AssertionError as error:
        pytest.skip(f"no nexthop objects here: {error}")
    here.run("route add default nhid 7")
    backend = backend_in(here, tmp_path)
    assert offered(backend) == []
    mode = Path("/proc/sys/net/ipv4/nexthop_compat_mode")
    inside(here.path, lambda: mode.write_text("0"))
    assert offered(backend_in(here, tmp_path)) == []


def test_what_the_uplink_consists_of_is_kept_too(here: Namespace, tmp_path: Path) -> None:
    here.run(
        "link add br0 type bridge",
        "link add v0 type veth peer name p0",
        "link add v1 type veth peer name p1",
        "link add v2 type veth peer name p2",
        "link set v0 master br0",
        "link set br0 up",
        "addr add 192.0.2.2/24 dev br0",
        "route add default via 192.0.2.1 dev br0",
    )
    backend = backend_in(here, tmp_path)
    assert offered(backend) == ["nic-link-p1", "nic-link-p2", "nic-link-v1", "nic-link-v2"]
    here.run("link set v1 master br0")
    assert offered(backend) == ["nic-link-p2", "nic-link-v2"]
    here.run("link set v1 nomaster")
    assert offered(backend) == ["nic-link-p1", "nic-link-p2", "nic-link-v1", "nic-link-v2"]


@pytest.mark.skipif(not supports("macvlan", link=True), reason="this kernel makes no macvlan links")
def test_what_others_are_made_upon_is_shared_but_not_given_away(here: Namespace, tmp_path: Path) -> None:
    here.run("link add v0 type veth peer name p0", "link add link v0 m0 type macvlan mode bridge")
    assert offered(backend_in(here, tmp_path)) == ["nic-link-p0"]
    assert "nic-link-v0" in offered(backend_in(here, tmp_path, mode="shares"))
    here.run("addr add 192.0.2.2/24 dev m0", "link set v0 up", "link set p0 up", "link set m0 up")
    here.run("route add default via 192.0.2.1 dev m0")
    assert offered(backend_in(here, tmp_path, mode="shares")) == []


# --- events


@contextmanager
def watching(backend: NicBackend) -> Iterator[list[str]]:
    """Run the backend's watch; yield what it said."""
    said: list[str] = []
    stop = threading.Event()
    thread = threading.Thread(target=backend.watch, args=(stop, said.append))
    thread.start()
    try:
        until(lambda: bool(said), "the watch has begun")
        yield said
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_each_change_is_told_of(here: Namespace, tmp_path: Path) -> None:
    backend = backend_in(here, tmp_path)
    with watching(backend) as said:

        def told(*commands: str) -> None:
            time.sleep(0.25)  # what was before is told of by now
            said.clear()
            here.run(*commands)
            until(lambda: bool(said), commands[0])

        told("link add v0 type veth peer name p0")
        told("link set v0 mtu 1400")
        told("link set v0 up", "link set p0 up")
        told("addr add 192.0.2.2/24 dev v0")
        told("route add default via 192.0.2.1 dev v0")
        told("route del default via 192.0.2.1 dev v0")
        told("link set v0 name storage")
        told("link del storage")
        time.sleep(0.25)
        said.clear()
        backend.away.add("nic-link-v0", Moved(Link(7, "v0")))
        until(lambda: bool(said), "a move is told of")


@pytest.mark.skipif(not PCI_EVENTS, reason="no PCI function whose uevent file is writable")
def test_a_change_of_a_pci_function_is_told_of(here: Namespace, tmp_path: Path) -> None:
    with watching(backend_in(here, tmp_path)) as said:

        def told() -> bool:
            PCI_EVENTS[0].write_text("change")  # again, as the monitor may not have been open yet
            return any(why.startswith("change /devices/pci") for why in said)

        until(told, "it is told of")


def test_what_never_concerns_a_card_is_not_told_of(here: Namespace, tmp_path: Path) -> None:
    here.run("link add br0 type bridge", "link set br0 up", "addr add 192.0.2.2/24 dev br0")
    backend = backend_in(here, tmp_path, virtualLinks=[])
    with watching(backend) as said:
        time.sleep(0.5)
        said.clear()
        here.run("link add v0 type veth peer name p0", "route add 10.0.0.0/8 via 192.0.2.1", "link del v0")
        here.run("link add br1 type bridge")
        until(lambda: "link br1 changed" in said, "a bridge is told of")
        assert not [why for why in said if "v0" in why or "route" in why]


@needs_shares
def test_shares_that_come_and_go_are_not_told_of(here: Namespace, tmp_path: Path) -> None:
    """Nothing of the card changes by them, though the kernel tells of it; what does change is told of."""
    here.run("link add card0 type veth peer name wire0", "link set card0 up", "link set wire0 up")
    with watching(backend_in(here, tmp_path)) as said, namespace() as pod:
        in_pod = f"netns {pod.path} type macvlan mode bridge"
        here.run(f"link add link card0 name first {in_pod}")  # it is the first that is told of the card
        time.sleep(0.5)
        said.clear()
        for number in range(3):
            here.run(f"link add link card0 name net{number} {in_pod}")
            pod.run(f"link set net{number} up", f"link del net{number}")
            here.run("link add limits type ifb", "link set limits up", "link del limits")
        here.run("link set card0 mtu 1400")
        until(lambda: bool(said), "a change is told of")
        assert {*said} == {"link card0 changed"}


def test_an_overrun_while_2000_links_are_made_ends_in_the_right_inventory(
    here: Namespace, tmp_path: Path
) -> None:
    backend = backend_in(here, tmp_path)
    inventories = []
    said = []
    due, stop = threading.Event(), threading.Event()

    def take(why: str) -> None:
        said.append(why)
        due.set()
        time.sleep(0.005)  # slower than the kernel, so that it has to drop events

    watch = LinkWatch(take, frozenset({"veth"}), here.path, buffer_bytes=4096)
    thread = threading.Thread(target=watch.run, args=(stop,))
    thread.start()
    try:
        until(lambda: bool(said), "the watch has begun")

        def probe() -> int:
            if due.wait(0.1):
                due.clear()
                inventories.append(backend.probe())
            return len(inventories[-1].cards) if inventories else 0

        here.batch(f"link add v{number} type veth peer name p{number}" for number in range(1000))
        until(lambda: probe() == 2000, "all links are seen")
        here.batch(f"link del v{number}" for number in range(0, 1000, 2))
        until(lambda: probe() == 1000, "those that are left are seen")
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert any("missed" in why for why in said[1:])
    told = {one["ifname"] for one in json.loads(here.call("ip", "-json", "link", "show"))} - {"lo"}
    assert {card.link.name for card in inventories[-1].cards if card.link} == told
