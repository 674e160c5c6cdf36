"""Exactly what is published of network cards: tests/data/nic holds it in a form to be read and checked by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nicnode import NicNode, shown, vf_info

DATA = Path(__file__).parents[1] / "data/nic"


def sriov(node: NicNode) -> dict[str, Any]:
    """Make cards of which some offer their virtual functions, some both, and some what is yet to be made."""
    node.plug("0000:01:00.0", driver="ixgbe", total=63)
    node.routes.add(node.add_link("eno1", "0000:01:00.0", speed=10_000))
    node.plug("0000:01:00.1", driver="ixgbe", total=63)
    node.add_link("eno2", "0000:01:00.1", speed=10_000)
    switch = "pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:02.0"
    card = node.plug("0000:8a:00.0", above=switch, node=1, total=8)
    node.add_link(
        "ens1f0np0",
        card,
        speed=200_000,
        PHYS_SWITCH_ID=bytes.fromhex("0011aaff"),
        PHYS_PORT_NAME="p0",
        VFINFO_LIST={"attrs": [vf_info(0), vf_info(1)]},
    )
    node.make_vfs(card, 2, links="ens1f0v")
    for number, address in enumerate((card, "0000:8a:00.1")):
        node.add_rdma(address, f"mlx5_{number}", number)
    node.bind(node.drop_link("ens1f0v1").device, "vfio-pci")
    return {"modes": {"ens1*": "both", "eno2": "on-demand"}, "onDemandVFs": 2}


def shares(node: NicNode) -> dict[str, Any]:
    """Make cards that are shared: by macvlan, by virtual functions, and some that cannot be."""
    node.plug("0000:01:00.0", driver="virtio-pci")
    node.add_link("eth0", "0000:01:00.0")
    node.plug("0000:02:00.0", driver="virtio-pci")
    node.routes.add(node.add_link("eth1", "0000:02:00.0"))
    node.plug("0000:8a:00.0", node=1)
    node.add_link("ens1", "0000:8a:00.0", speed=25_000)
    node.plug("0000:9a:00.0", node=1, total=4)
    node.add_link("ens2", "0000:9a:00.0", speed=100_000)
    node.make_vfs("0000:9a:00.0", 4, links="ens2v")
    node.plug("0000:aa:00.0", node=1, kind="0x020700")
    node.add_link("ib0", "0000:aa:00.0", type=32, speed=400_000, ADDRESS=None)
    return {"mode": "shares", "modes": {"ens2": "vf-shares"}, "bandwidths": {"ens1": "10G"}}


NODES: dict[str, Callable[[NicNode], dict[str, Any]]] = {"sriov": sriov, "shares": shares}


@pytest.mark.parametrize("kind", NODES)
def test_what_is_published_is_what_the_golden_file_says(tmp_path: Path, kind: str) -> None:
    node = NicNode(tmp_path / "host")
    options = NODES[kind](node)
    assert shown(node.offered(options)) == (DATA / f"{kind}.txt").read_text()
