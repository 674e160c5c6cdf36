"""A node with network cards: what sysfs shows of their functions, and the messages in which the kernel tells of links.

Messages are encoded by pyroute2, which shares nothing with our reader of them.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from dradriver.backend import decode
from dradriver.host import Host, read_net_interfaces
from dradriver.model import Device, PoolContent
from dradriver_nic import NicBackend, NicOptions
from dradriver_nic.inventory import Function, Link, NicInventory
from dradriver_nic.kernel import Snapshot, link_of
from hosttree import two_sockets

PCI = "sys/bus/pci"
MELLANOX = 0x15B3


def link_message(index: int, name: str, flags: int = 0x1003, kind: int = 1, **values: Any) -> bytes:
    """Return the body of an RTM_NEWLINK message; attributes by their names without IFLA_."""
    message = ifinfmsg()
    message["index"], message["flags"], message["ifi_type"] = index, flags, kind
    message["attrs"] = [("IFLA_IFNAME", name)]
    message["attrs"] += [(f"IFLA_{attribute}", value) for attribute, value in values.items()]
    message.encode()
    return bytes(message.data[16:])


def vf_info(number: int, *extra: tuple[str, Any], mac: str = "00:00:00:00:00:00") -> tuple[str, Any]:
    """Return an entry of IFLA_VFINFO_LIST."""
    return ("IFLA_VF_INFO", {"attrs": [("IFLA_VF_MAC", {"vf": number, "mac": mac}), *extra]})


class NicNode:
    """A host root of two sockets with what is plugged, and the links of its network namespace."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = Host(directory)
        self.tree = two_sockets(directory)
        self.links: dict[int, Link] = {}
        self.routes: set[int] = set()
        self._homes: dict[str, str] = {}

    # --- the kernel's side

    def snapshot(self) -> Snapshot:
        """Return what the kernel says of links."""
        return Snapshot(dict(self.links), frozenset(self.routes))

    def add_link(self, name: str, function: str = "", *, speed: int | None = None, **values: Any) -> int:
        """Add a link, of a function or of none; attributes as in `link_message`, None for none. Return its index."""
        index = max(self.links, default=1) + 1
        given = {
            "ADDRESS": f"02:00:00:00:{index >> 8:02x}:{index & 255:02x}",
            "MTU": 1500,
            "OPERSTATE": "UP",
            **values,
        }
        if function:
            given |= {"PARENT_DEV_NAME": function, "PARENT_DEV_BUS_NAME": "pci"}
        kind = given.pop("type", 1)
        given = {name: value for name, value in given.items() if value is not None}
        link = link_of(link_message(index, name, kind=kind, **given))
        driver = self.host.read_link(f"{PCI}/devices/{function}/driver") if function else None
        driver = driver.rpartition("/")[2] if driver else ""
        self.links[index] = dataclasses.replace(link, speed_mbps=speed, driver=driver)
        return index

    def drop_link(self, name: str) -> Link:
        """Take a link out of the namespace, as when it goes into a pod."""
        link = next(link for link in self.links.values() if link.name == name)
        return self.links.pop(link.index)

    # --- the bus

    def plug(
        self,
        address: str,
        *,
        above: str = "pci0000:00",
        driver: str = "mlx5_core",
        node: int = 0,
        total: int | None = None,
        group: int | None = None,
        kind: str = "0x020000",
        **files: str,
    ) -> str:
        """Plug a function in below `above`, a path of bridges as `pci0000:15/0000:15:01.0`; return its address."""
        home = f"sys/devices/{above}/{address}"
        self._homes[address] = home
        given = {
            "class": kind,
            "vendor": f"0x{MELLANOX:04x}",
            "device": "0x1021",
            "numa_node": str(node),
        }
        if total is not None:
            given |= {
                "sriov_totalvfs": str(total),
                "sriov_numvfs": "0",
                "sriov_offset": "1",
                "sriov_stride": "1",
            }
        for name, text in {**given, **files}.items():
            self.tree.write(f"{home}/{name}", text)
        self.tree.link(f"{PCI}/devices/{address}", "/" + home)
        self.bind(address, driver)
        if group is not None:
            self.tree.link(f"{home}/iommu_group", f"/sys/kernel/iommu_groups/{group}")
        return address

    def bind(self, address: str, driver: str) -> None:
        """Bind a function to a driver, or to none."""
        link = self.directory / self._homes[address] / "driver"
        link.unlink(missing_ok=True)
        if driver:
            link.symlink_to(f"/{PCI}/drivers/{driver}")

    def make_vfs(self, physical: str, count: int, *, driver: str = "mlx5_core", links: str = "") -> list[str]:
        """Make virtual functions, at the next addresses; their links are called as `links` and their number."""
        home = self._homes[physical]
        above = home.removeprefix("sys/devices/").rpartition("/")[0]
        node = self.host.read_int(f"{home}/numa_node") or 0
        self.tree.write(f"{home}/sriov_numvfs", str(count))
        made = []
        for number in range(count):
            address = next_address(physical, number + 1)
            files: dict[str, Any] = {"device": "0x101e"}
            self.plug(address, above=above, driver=driver, node=node, **files)
            self.tree.link(f"{self._homes[address]}/physfn", f"/{home}")
            self.tree.link(f"{home}/virtfn{number}", f"/{self._homes[address]}")
            if links:
                self.add_link(f"{links}{number}", address)
            made.append(address)
        return made

    def write(self, address: str, name: str, text: str) -> None:
        """Write a file in the directory of a function."""
        self.tree.write(f"{self._homes[address]}/{name}", text)

    def add_rdma(self, address: str, name: str, number: int) -> None:
        """Give a function an RDMA device with its char devices."""
        home = self._homes[address]
        self.tree.write(f"{home}/infiniband/{name}/node_guid", "b8ce:f603:00aa:bb01")
        for kind, file in (("verbs", "uverbs"), ("mad", "umad"), ("mad", "issm")):
            self.tree.write(f"{home}/infiniband_{kind}/{file}{number}/ibdev", name)

    # --- ours

    def backend(self, options: Mapping[str, Any] | None = None) -> NicBackend:
        """Return a backend on this node."""
        return NicBackend(self.host, options_of(options or {}), self)

    def offered(self, options: Mapping[str, Any] | None = None) -> PoolContent:
        """Return what a backend that has just started offers."""
        backend = self.backend(options)
        return backend.devices(backend.probe())


class SysfsKernel:
    """The links that a tree shows, in place of a kernel; the default routes lead over the named ones."""

    def __init__(self, host: Host, uplinks: Collection[str] = ()) -> None:
        found = enumerate(read_net_interfaces(host), start=1)
        self._links = {
            index: Link(
                index=index,
                name=one.name,
                type=one.type or 0,
                mac=one.address or "",
                mtu=one.mtu or 0,
                kind="virtual" if one.virtual else "",
                state=one.operstate or "",
                device=one.pci_address or "",
                bus="pci" if one.pci_address else "",
                speed_mbps=one.speed_mbps if one.speed_mbps and one.speed_mbps > 0 else None,
            )
            for index, one in found
        }
        self._routes = frozenset(index for index, link in self._links.items() if link.name in uplinks)

    def snapshot(self) -> Snapshot:
        """Return them."""
        return Snapshot(self._links, self._routes)


def next_address(address: str, count: int) -> str:
    """Return the address that is so many functions further on."""
    match = re.fullmatch(r"(.*):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", address)
    assert match
    number = (int(match[2], 16) << 8 | int(match[3], 16) << 3 | int(match[4])) + count
    return f"{match[1]}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"


def options_of(options: Mapping[str, Any]) -> NicOptions:
    """Return options as they are written in the configuration."""
    return decode(NicOptions, dict(options), "backends.nic")


def function_of(inventory: NicInventory, name: str) -> Function:
    """Return the function behind a device, which is there."""
    found = inventory.find(name)
    assert found
    assert found[1]
    return found[1]


def link_of_card(inventory: NicInventory, name: str) -> Link:
    """Return the link of a card, which is there."""
    card = inventory.card(name)
    assert card
    assert card.link
    return card.link


def device_of(content: PoolContent, name: str) -> Device:
    """Return a device, which is there."""
    device = content.device(name)
    assert device
    return device


def names(content: PoolContent) -> list[str]:
    """Return the names of the devices."""
    return [device.name for device in content.devices]


def shown(content: PoolContent) -> str:
    """Return a pool's content as text, to be read and checked by hand."""
    lines = [
        f"counters {one.name}: {_amounts((name, str(amount)) for name, amount in one.counters.items())}"
        for one in content.counter_sets
    ]
    for device in content.devices:
        lines += ["", f"{device.name}, of {device.physical}{', shared' if device.shared else ''}"]
        lines += [f"  {name} = {_value(value)}" for name, value in sorted(device.attributes.items())]
        for name, capacity in device.capacity.items():
            lines.append(f"  capacity {name} {capacity.value}: {_policy(capacity.policy)}")
        for name, drawn in device.consumes.items():
            lines.append(f"  draws {_amounts((n, str(a)) for n, a in drawn.items())} of {name}")
    lines += [
        "",
        *(f"note: {text}" for text in content.notes),
        *(f"warning: {text}" for text in content.warnings),
    ]
    return "\n".join(lines).strip() + "\n"


def _amounts(amounts: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts)


def _value(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _policy(policy: Any) -> str:
    if policy.valid_range:
        return f"{policy.default} by default, from {policy.valid_range.min} in steps of {policy.valid_range.step}"
    return f"{policy.default} by default, of {', '.join(str(value) for value in policy.valid_values)}"
