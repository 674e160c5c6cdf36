"""The topology view: everything hangs where it is, and says who has it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import recorded
from dradriver.backend import Backend, NoOptions, Plan, Request
from dradriver.config import load, load_backends
from dradriver.engine import DeviceRecord, Pool, Pools, Record, State, refresh_all
from dradriver.engine.records import Hold
from dradriver.host import Host, read_pci, read_topology
from dradriver.inspect import topology_view
from dradriver.model import (
    NUMA_NODE,
    PCI_BUS_ID,
    PCIE_ROOT,
    SOCKET_ID,
    Allocated,
    AttributeValue,
    Capacity,
    ClaimRef,
    Device,
    Health,
    Peer,
    PoolContent,
    Quantity,
)
from hosttree import HostTree, two_sockets

OFFERED: list[Device] = []


class Cards(Backend[tuple[Device, ...], NoOptions]):
    """Offers what a test puts into OFFERED."""

    kind = "cards"

    def probe(self) -> tuple[Device, ...]:
        return tuple(OFFERED)

    def devices(self, inventory: tuple[Device, ...]) -> PoolContent:
        return PoolContent(inventory, notes=("one note",))

    def plan(
        self,
        request: Request,
        inventory: tuple[Device, ...],
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        raise NotImplementedError


def card(name: str, health: Health = Health.HEALTHY, **attributes: AttributeValue) -> Device:
    names = {"bus": PCI_BUS_ID, "root": PCIE_ROOT, "numa": NUMA_NODE, "socket": SOCKET_ID}
    names["switch"] = "dradriver.io/pcieSwitch"
    return Device(
        name,
        attributes={names[key]: value for key, value in attributes.items()},
        capacity={"memory": Capacity(Quantity.parse("80Gi"))},
        health=health,
    )


def pools(host: Host, *devices: Device) -> Sequence[Pool]:
    OFFERED[:] = devices
    made = Pools("node-a", [("cards.example.com", Cards(host, NoOptions()))])
    refresh_all(made.all)
    return made.all


def claim(name: str, *devices: str, admin: bool = False, state: State = State.PREPARED) -> Record:
    return Record(
        "cards.example.com",
        ClaimRef(f"uid-{name}", "default", name),
        state,
        "boot",
        1.0,
        tuple(
            DeviceRecord("cards", Allocated("r", "cards.example.com", "node-a/cards", device, admin=admin))
            for device in devices
        ),
    )


@dataclass
class Found:
    """Every device, function and claim of a view with the way to it."""

    view: Any

    def ways(self) -> dict[str, str]:
        return dict(self._walk(self.view["sockets"], "")) | dict(
            self._walk([self.view["elsewhere"]], "elsewhere")
        )

    def _walk(self, nodes: list[dict[str, Any]], way: str) -> Iterator[tuple[str, str]]:
        for node in nodes:
            here = f"{way} {node.get('name', node.get('address', node.get('id', '')))}".strip()
            for device in node.get("devices", ()):
                yield device["name"], here
            for key in ("numaNodes", "pcieRoots", "switches", "functions"):
                yield from self._walk(node.get(key, []), here)


def pci(tree: HostTree, way: str, numa: int | None = None, code: str = "0x030200") -> None:
    address = way.rpartition("/")[2]
    tree.write(f"sys/devices/{way}/class", code)
    if numa is not None:
        tree.write(f"sys/devices/{way}/numa_node", str(numa))
    tree.link(f"sys/bus/pci/devices/{address}", f"../../../devices/{way}")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two sockets; a switch with two cards at node 0, a card without a node, one of no interest."""
    tree = two_sockets(tmp_path)
    switch = "pci0000:17/0000:17:00.0/0000:18:00.0"
    pci(tree, "pci0000:17/0000:17:00.0", 0, "0x060400")
    pci(tree, f"{switch}/0000:19:00.0/0000:1a:00.0", 0)
    pci(tree, f"{switch}/0000:19:01.0/0000:1b:00.0", 0, "0x020000")
    pci(tree, f"{switch}/0000:19:02.0/0000:1c:00.0", 0, "0x088000")
    pci(tree, "pci0000:85/0000:85:00.0/0000:86:00.0", -1)
    return Host(tree.root)


def view(host: Host, devices: Sequence[Device], *records: Record, everything: bool = False) -> Any:
    return topology_view(
        read_topology(host), read_pci(host), pools(host, *devices), records, everything=everything
    )


def test_devices_hang_where_the_host_says_their_pci_function_is(host: Host) -> None:
    devices = [card("gpu-a", bus="0000:1a:00.0"), card("gpu-b", bus="0000:86:00.0"), card("dust")]
    assert Found(view(host, devices)).ways() == {
        "gpu-a": "0 0 pci0000:17 0000:18:00.0 0000:1a:00.0",
        "gpu-b": "elsewhere pci0000:85 0000:86:00.0",
        "dust": "elsewhere",
    }


def test_devices_hang_where_their_attributes_say_whatever_the_host_knows(host: Host) -> None:
    devices = [
        card("a", bus="0000:86:00.0", numa=1),
        card("b", bus="0009:01:00.0", root="pci0009:00", switch="0009:00:01.0", numa=(1, 0)),
        card("c", root="pci0000:17", numa=0),
        card("d", numa=1),
        card("e", socket=1),
        card("f", numa=7, socket=1),
        card("g", numa=8),
        card("h", bus="no address", numa=True),
    ]
    assert Found(view(host, devices)).ways() == {
        "a": "1 1 pci0000:85 0000:86:00.0",
        "b": "1 1 pci0009:00 0009:00:01.0 0009:01:00.0",
        "c": "0 0 pci0000:17",
        "d": "1 1",
        "e": "1",
        "f": "1 7",
        "g": "None 8",
        "h": "elsewhere",
    }


def test_functions_that_matter_are_shown_and_the_others_counted(host: Host) -> None:
    (root,) = view(host, [])["sockets"][0]["numaNodes"][0]["pcieRoots"]
    (switch,) = root["switches"]
    assert [one["address"] for one in switch["functions"]] == ["0000:1a:00.0", "0000:1b:00.0"]
    assert (switch["otherFunctions"], root["otherFunctions"]) == (1, 0)
    assert switch["functions"][1]["class"] == "0x020000"

    (root,) = view(host, [], everything=True)["sockets"][0]["numaNodes"][0]["pcieRoots"]
    assert [one["address"] for one in root["functions"]] == ["0000:17:00.0"]
    assert len(root["switches"][0]["functions"]) == 3


def test_a_device_says_who_has_it(host: Host) -> None:
    devices = [card("gpu-a", numa=0), card("gpu-b", numa=1), card("gpu-c", numa=1, health=Health.UNHEALTHY)]
    records = [
        claim("train", "gpu-a", "gone"),
        claim("watch", "gpu-a", "gpu-b", admin=True),
        claim("half", "gpu-c", state=State.PREPARING),
    ]

    found = view(host, devices, *records)

    first, second, third = (
        device for socket in found["sockets"] for node in socket["numaNodes"] for device in node["devices"]
    )
    assert first["capacity"] == {"memory": {"value": "80Gi", "allocated": "80Gi"}}
    assert [(one["name"], one["adminAccess"]) for one in first["claims"]] == [
        ("train", False),
        ("watch", True),
    ]
    assert second["capacity"]["memory"]["allocated"] == "0"
    assert (third["health"], third["claims"][0]["state"]) == ("Unhealthy", "preparing")
    assert [(one["device"], one["claims"][0]["name"]) for one in found["missing"]] == [("gone", "train")]
    assert "pool node-a/cards: one note" in found["notes"]


def test_shares_add_up_to_what_the_journal_holds(host: Host) -> None:
    shared = replace(card("tank", numa=0), shared=True)
    records = []
    for name, amount in (("a", "10Gi"), ("b", "20Gi")):
        one = claim(name, "tank")
        holds = (
            Hold("capacity:node-a/cards:tank:memory", 0, Quantity.parse(amount)),
            Hold("plan:cards:10", -1, Quantity.from_int(1)),
            Hold("plan:cards:9", -1, Quantity.from_int(1)),
        )
        records.append(replace(one, holds=holds))
    found = view(host, [shared], *records)["sockets"][0]["numaNodes"][0]["devices"][0]
    assert found["capacity"]["memory"] == {"value": "80Gi", "allocated": "30Gi"}
    assert found["claims"][0]["holds"] == ["9", "10"]


@pytest.mark.skipif(not recorded.dump_names(), reason=f"{recorded.SHARED}: no recorded machines there")
@pytest.mark.parametrize("name", recorded.dump_names())
def test_on_recorded_machines_every_cpu_device_and_function_is_shown_once(name: str, tmp_path: Path) -> None:
    node = replace(load(None, tmp_path, {"NODE_NAME": "node-a"}), host_root=recorded.unpacked(name))
    made = Pools(node.node, load_backends(node))
    refresh_all(made.all)
    host = Host(node.host_root)
    topology, functions = read_topology(host), read_pci(host)

    found = topology_view(topology, functions, made.all, [], everything=True)

    seen: list[int] = []
    for socket in found["sockets"]:
        for numa in socket["numaNodes"]:
            seen += type(topology.online).parse(numa["cpus"])
    assert sorted(seen) == list(topology.online)
    devices = sorted(device.name for pool in made.all for device in pool.snapshot.content.devices)
    assert sorted(Found(found).ways()) == devices
    listed = [
        function["address"]
        for spot in [
            *(node for socket in found["sockets"] for node in socket["numaNodes"]),
            found["elsewhere"],
        ]
        for root in spot["pcieRoots"]
        for below in (root, *root["switches"])
        for function in below["functions"]
    ]
    assert sorted(listed) == sorted(functions.by_address)
    nodes = [
        numa["id"] for socket in found["sockets"] for numa in socket["numaNodes"] if numa["id"] is not None
    ]
    assert sorted(nodes) == [node_.id for node_ in topology.nodes]
