"""Virtual functions, made on demand and set up by their physical function: sysfs below a root, netlink's other side."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import BackendError, Observed, PlanError, TransientError
from dradriver.model import PCI_BUS_ID
from dradriver_nic import NicBackend
from dradriver_nic.away import Moved
from netlinkside import SideActuator, SriovNode
from nicclaims import Life, claimed

CARD = "0000:15:01.0"
VFS = [f"0000:15:01.{number}" for number in range(1, 5)]
DEVICES = [f"nic-0000-15-01-{number}" for number in range(1, 5)]

VF: dict[str, Any] = {
    "vlan": 100,
    "qos": 3,
    "spoofCheck": False,
    "trust": True,
    "linkState": "enable",
    "minRate": "100M",
    "maxRate": "5G",
}


@pytest.fixture
def node(tmp_path: Path) -> SriovNode:
    made = SriovNode(tmp_path)
    made.plug(CARD, total=4, driver="ice")
    made.routes.add(made.add_link("eth0"))
    return made


@pytest.fixture
def card(node: SriovNode) -> int:
    return node.add_link("fab0", CARD, speed=25_000)


def backend_of(node: SriovNode, **options: Any) -> NicBackend:
    made = node.backend(options)
    made.actuator = SideActuator(node)
    return made


def with_functions(node: SriovNode, card: int, count: int = 4) -> None:
    node.make_vfs(CARD, count, driver="iavf", links="vf")
    node.give_vfs(card, count)


def state(node: SriovNode, card: int) -> str:
    return json.dumps(
        [
            node.vfs.get(card),
            node.values[card],
            node.host.read_int(f"sys/bus/pci/devices/{CARD}/sriov_numvfs"),
        ]
    )


# --- settings


def test_a_function_is_set_up_and_set_back(node: SriovNode, card: int) -> None:
    with_functions(node, card)
    before = state(node, card)
    config = {"interface": {"hardwareAddr": "02:00:00:00:00:09"}, "vf": VF}
    life = claimed(backend_of(node), DEVICES[1], config=config)
    assert life.records[0].text == (
        "set virtual function 1 of 0000:15:01.0: MAC address 02:00:00:00:00:09, VLAN 100, spoof check False, "
        "trust True, link state 1, least rate 100, rate 5000"
    )
    life.prepare()
    assert node.vfs[card][1] == {
        "IFLA_VF_MAC": {"vf": 1, "mac": "02:00:00:00:00:09"},
        "IFLA_VF_VLAN": {"vf": 1, "vlan": 100, "qos": 3},
        "IFLA_VF_SPOOFCHK": {"vf": 1, "spoofchk": 0},
        "IFLA_VF_TRUST": {"vf": 1, "trust": 1},
        "IFLA_VF_LINK_STATE": {"vf": 1, "link_state": 1},
        "IFLA_VF_RATE": {"vf": 1, "min_tx_rate": 100, "max_tx_rate": 5000},
    }
    assert life.observe()[0] is Observed.DONE
    node.requests.clear()
    life.prepare()
    assert node.requests == []
    life.unprepare()
    assert life.observe()[0] is Observed.PARTIAL
    assert state(node, card) == before


def test_what_is_not_configured_is_left_alone(node: SriovNode, card: int) -> None:
    with_functions(node, card)
    node.vfs[card][0]["IFLA_VF_VLAN"] = {"vf": 0, "vlan": 7, "qos": 1}
    life = claimed(backend_of(node), DEVICES[0], config={"vf": {"trust": True}}).prepare()
    assert node.requests == ["trust"]
    node.vfs[card][0]["IFLA_VF_RATE"] = {"vf": 0, "min_tx_rate": 0, "max_tx_rate": 77}  # by somebody else
    life.unprepare()
    assert node.requests == ["trust", "trust"]
    assert node.setting(card, 0, "IFLA_VF_RATE")["max_tx_rate"] == 77
    assert claimed(backend_of(node), DEVICES[0]).prepare().observe()[:-1] == []


def test_a_tag_of_providers_is_set_in_the_newer_form(node: SriovNode, card: int) -> None:
    with_functions(node, card)
    before = state(node, card)
    life = claimed(backend_of(node), DEVICES[0], config={"vf": {"vlan": 5, "vlanProto": "802.1ad"}}).prepare()
    (tag,) = node.setting(card, 0, "IFLA_VF_VLAN_LIST")["attrs"]
    assert tag[1] == {"vf": 0, "vlan": 5, "qos": 0, "proto": 0x88A8}
    assert life.observe()[0] is Observed.DONE
    life.unprepare()
    assert state(node, card) == before


def test_a_card_that_cannot_do_it_says_so_and_is_set_back(node: SriovNode, card: int) -> None:
    with_functions(node, card)
    before = state(node, card)
    node.refuse = {"IFLA_VF_RATE": errno.EOPNOTSUPP}
    life = claimed(backend_of(node), DEVICES[0], config={"vf": VF})
    with pytest.raises(
        BackendError,
        match=r"nic-0000-15-01-1: rate cannot be set by fab0: Operation not supported .*not by this card",
    ):
        life.prepare()
    life.unprepare()
    assert state(node, card) == before


def test_what_the_card_does_not_take_back_keeps_nobody_waiting(
    node: SriovNode, card: int, caplog: pytest.LogCaptureFixture
) -> None:
    with_functions(node, card)
    life = claimed(backend_of(node), DEVICES[0], config={"vf": VF}).prepare()
    node.refuse = {"IFLA_VF_VLAN": errno.EINVAL}
    life.unprepare()
    assert "nic-0000-15-01-1: VLAN is not restored: Invalid argument" in caplog.text
    assert node.setting(card, 0, "IFLA_VF_TRUST")["trust"] == 0


def test_a_death_at_any_setting_is_undone(node: SriovNode, card: int) -> None:
    class Death(BaseException):
        pass

    with_functions(node, card)
    before = state(node, card)
    backend = backend_of(node)
    for fatal in range(1, 6):
        life = claimed(backend, DEVICES[0], config={"vf": VF})
        outcomes: list[BaseException | None] = [None] * (fatal - 1) + [Death()]
        node.outcomes = iter(outcomes)
        with pytest.raises(Death):
            life.prepare()
        node.outcomes = iter(())
        life.restarted(backend_of(node)).unprepare()
        assert state(node, card) == before


@pytest.mark.parametrize("live", [True, False])
def test_a_functions_own_link_has_its_address_back_once_the_card_allows_it(
    node: SriovNode, card: int, live: bool
) -> None:
    """While the card enforces an address, the link cannot have the one that it had."""
    with_functions(node, card)
    index, before = next((link.index, link) for link in node.links.values() if link.name == "vf1")
    config = {"interface": {"hardwareAddr": "02:00:00:00:00:09"}}
    life = claimed(backend_of(node), DEVICES[1], config=config).prepare()
    assert life.records[1].body["mac_elsewhere"] is True
    node.values[index]["ADDRESS"] = "02:00:00:00:00:09"  # as it was in the pod
    node.live = live
    life.unprepare()
    assert (node.values[index]["ADDRESS"], node.values[index]["flags"]) == (before.mac, 0x1003)
    assert node.setting(card, 1, "IFLA_VF_MAC")["mac"] == "00:00:00:00:00:00"


def test_settings_of_an_earlier_boot_are_not_set_back(node: SriovNode, card: int) -> None:
    with_functions(node, card)
    life = claimed(backend_of(node), DEVICES[0], config={"vf": VF}).prepare()
    life.restarted(backend_of(node), rebooted=True).unprepare()
    assert node.setting(card, 0, "IFLA_VF_TRUST")["trust"] == 1


# --- shares by virtual functions


def test_a_share_is_a_free_function_with_its_rate(node: SriovNode, card: int) -> None:
    with_functions(node, card)
    before = state(node, card)
    backend = backend_of(node, mode="vf-shares")
    name = "nic-0000-15-01-0"
    first = claimed(backend, name, name="a", bandwidth="2G").prepare()
    assert first.plan.holds == {f"vf:{DEVICES[0]}"}
    assert node.setting(card, 0, "IFLA_VF_RATE") == {"vf": 0, "min_tx_rate": 0, "max_tx_rate": 2000}
    assert first.plan.devices[0].metadata == {PCI_BUS_ID: VFS[0]}
    held = dict.fromkeys(first.plan.holds, first.ref)
    second = claimed(backend, name, name, name="b", bandwidth="3G", held=held).prepare()
    assert second.plan.holds == {f"vf:{DEVICES[1]}", f"vf:{DEVICES[2]}"}
    held |= dict.fromkeys([*second.plan.holds, f"vf:{DEVICES[3]}"], second.ref)
    with pytest.raises(PlanError, match=f"device {name}: no virtual function is free"):
        claimed(backend, name, name="c", bandwidth="1G", held=held)
    first.unprepare()
    second.unprepare()
    assert state(node, card) == before


# --- on demand


def on_demand(node: SriovNode) -> NicBackend:
    return backend_of(node, mode="on-demand")


def test_functions_are_made_for_the_first_claim_and_removed_after_the_last(
    node: SriovNode, card: int
) -> None:
    node.values[card]["flags"] = 0x1002
    before = state(node, card)
    backend = on_demand(node)
    inventory = backend.probe()
    first = claimed(backend, DEVICES[1], name="a", inventory=inventory)
    assert first.records[0].text == (
        "make 4 virtual functions of 0000:15:01.0, of which 0000:15:01.2 is used"
    )
    assert first.observe() == [Observed.UNDONE, Observed.UNDONE]
    first.prepare()
    assert node.host.read_int(f"sys/bus/pci/devices/{CARD}/sriov_numvfs") == 4
    assert node.requests == ["fab0 up"]
    (device,) = first.rendered()
    link = next(link for link in node.links.values() if link.device == VFS[1])
    assert device.network
    assert (device.network.interface, device.network.hardware_address) == ("vf1", link.mac)
    second = claimed(backend, DEVICES[2], name="b").prepare()
    assert {first.observe()[0], second.observe()[0]} == {Observed.DONE}
    first.unprepare()
    assert node.host.read_int(f"sys/bus/pci/devices/{CARD}/sriov_numvfs") == 4
    second.restarted(on_demand(node)).unprepare()
    assert state(node, card) == before
    assert (node.requests[-1], node.requests.count("fab0 down")) == ("fab0 down", 1)
    assert second.observe()[0] is Observed.UNDONE


def test_functions_that_were_there_before_stay(node: SriovNode, card: int) -> None:
    with_functions(node, card, 2)
    before = state(node, card)
    claimed(on_demand(node), DEVICES[0]).prepare().unprepare()
    assert state(node, card) == before


def test_a_card_that_came_into_use_has_none_made(node: SriovNode, card: int) -> None:
    backend = on_demand(node)
    inventory = backend.probe()
    node.add_link("fab0.7", PARENT_DEV_NAME=None, LINK=card)
    node.values[max(node.links)]["LINK"] = card
    life = claimed(backend, DEVICES[0], inventory=inventory)
    with pytest.raises(BackendError, match=r"0000:15:01.0 is in use.*fab0.7 is made on fab0"):
        life.prepare()
    life.unprepare()
    assert node.host.read_int(f"sys/bus/pci/devices/{CARD}/sriov_numvfs") == 0


def test_another_number_of_functions_is_not_changed(node: SriovNode, card: int) -> None:
    backend = on_demand(node)
    inventory = backend.probe()
    with_functions(node, card, 2)
    life = claimed(backend, DEVICES[0], inventory=inventory)
    with pytest.raises(BackendError, match="has 2 virtual functions, 4 were published"):
        life.prepare()
    life.unprepare()
    assert node.host.read_int(f"sys/bus/pci/devices/{CARD}/sriov_numvfs") == 2


def test_functions_that_somebody_else_uses_stay(
    node: SriovNode, card: int, caplog: pytest.LogCaptureFixture
) -> None:
    life = claimed(on_demand(node), DEVICES[0]).prepare()
    gone = node.drop_link("vf3")
    life.unprepare()
    assert f"{CARD} keeps its virtual functions: {VFS[3]} is in another network namespace" in caplog.text
    assert node.host.read_int(f"sys/bus/pci/devices/{CARD}/sriov_numvfs") == 4
    node.links[gone.index] = gone
    claimed(on_demand(node), DEVICES[0]).prepare().unprepare()
    assert node.host.read_int(f"sys/bus/pci/devices/{CARD}/sriov_numvfs") == 0


def test_a_driver_that_is_slow_is_waited_for(
    node: SriovNode, card: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver_nic.steps_vf._SETTLE_SECONDS", 0.1)
    node.slow = True
    life = claimed(on_demand(node), DEVICES[0])
    with pytest.raises(TransientError, match=r"0000:15:01.1: its driver has made no network interface yet"):
        life.prepare()
    node.add_link("late0", VFS[0])
    life.prepare()
    assert life.facts[0]["name"] == "late0"
    for number in (1, 2, 3):
        node.add_link(f"late{number}", VFS[number])
    life.unprepare()
    assert node.host.read_int(f"sys/bus/pci/devices/{CARD}/sriov_numvfs") == 0


def test_a_card_that_was_pulled_needs_no_undoing(node: SriovNode, card: int) -> None:
    life = claimed(on_demand(node), DEVICES[0]).prepare()
    node.drop_link("fab0")
    node.host.path(f"sys/bus/pci/devices/{CARD}").rename(node.directory / "pulled")
    (node.directory / "sys/bus/pci/devices" / CARD).unlink()
    life.unprepare()


def names(life: Life) -> list[str]:
    return [record.type for record in life.records]


def test_the_steps_of_a_function(node: SriovNode, card: int) -> None:
    life = claimed(on_demand(node), DEVICES[0], config={"vf": {"trust": True}})
    assert names(life) == ["CreateVFs", "SetVF", "MoveLink"]


def test_a_physical_function_that_is_in_a_pod_cannot_set_up_others(node: SriovNode, card: int) -> None:
    with_functions(node, card)
    backend = backend_of(node)
    link = node.drop_link("fab0")
    backend.away.add("nic-0000-15-01-0", Moved(link))
    with pytest.raises(PlanError, match="the physical function of nic-0000-15-01-1 is not on the host"):
        claimed(backend, DEVICES[0], config={"vf": {"trust": True}})
