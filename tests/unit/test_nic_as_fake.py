"""The real backend on the tree of a fake node: both publish the same devices, counters and attributes of one node."""

from pathlib import Path

import pytest

from dradriver.host import Host
from dradriver.model import PoolContent
from dradriver_nic import NicBackend
from fakenode import facts_of, machine
from nicnode import SysfsKernel, options_of

NODES = ("dgx-h100", "gb200-tray", "telco-edge", "small")
MODES = ("vf", "pf", "both", "shares")


def contents(directory: Path, node: str, mode: str) -> tuple[PoolContent, PoolContent]:
    """Return what the fake backend publishes, and what the real one does."""
    uplinks = {nic.nic.netdev for nic in facts_of(node).nics if nic.nic.default_route}
    with machine(directory, node, nicMode=mode) as made:
        host = Host(made.host_root)
        real = NicBackend(host, options_of({"mode": mode}), SysfsKernel(host, uplinks))
        return made.pool("nic").snapshot.content, real.devices(real.probe())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("node", NODES)
def test_both_publish_the_same(tmp_path: Path, node: str, mode: str) -> None:
    fake, real = contents(tmp_path, node, mode)
    if mode == "shares":
        # A fake card is shared whatever its link layer; macvlan is for Ethernet.
        infiniband = [one.name for one in fake.devices if real.device(one.name) is None]
        assert all(
            any(f"({name}) is not offered: macvlan" in note for note in real.notes) for name in infiniband
        )
        fake = PoolContent(
            tuple(one for one in fake.devices if one.name not in infiniband), fake.counter_sets, fake.notes
        )
    by_name = {device.name: device for device in real.devices}
    assert sorted(by_name) == sorted(device.name for device in fake.devices)
    assert {one.name: one.counters for one in real.counter_sets} == {
        one.name: one.counters for one in fake.counter_sets
    }
    for theirs in fake.devices:
        ours = by_name[theirs.name]
        assert (ours.thing, ours.consumes, ours.shared) == (theirs.thing, theirs.consumes, theirs.shared)
        assert ours.capacity == theirs.capacity
        assert {name: ours.attributes.get(name) for name in theirs.attributes} == theirs.attributes
    uplinks = [note for note in real.notes if "default route" in note]
    assert uplinks == [*fake.notes]


@pytest.mark.parametrize(("node", "rails"), [("dgx-h100", 8), ("telco-edge", 0), ("small", 0)])
def test_the_cards_next_to_the_gpus_of_a_rail_built_node_have_their_number(
    tmp_path: Path, node: str, rails: int
) -> None:
    _, real = contents(tmp_path, node, "pf")
    numbered = {
        device.name: device.attributes["dradriver.io/rail"]
        for device in real.devices
        if "dradriver.io/rail" in device.attributes
    }
    assert sorted(numbered.values(), key=str) == list(range(rails))
    assert list(numbered) == sorted(numbered, key=lambda name: int(name.split("-")[2], 16))
    if node == "dgx-h100":
        assert numbered["nic-0000-18-00-0"] == 0
        assert numbered["nic-0000-dc-00-0"] == 7
