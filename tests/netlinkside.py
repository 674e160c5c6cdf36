"""The kernel's side of netlink sockets, for hardware that test machines do not have: virtual functions, and RDMA.

What is sent to it is decoded by pyroute2 where that knows it, which shares nothing with our encoder. A namespace is
known by the number of the file that stands for it, as real ones are.
"""

import errno
import itertools
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from dradriver.backend.vfio import Vfio
from dradriver.host import Host
from dradriver_nic.actuate.actuator import Actuator
from dradriver_nic.actuate.podspace import PodSpace
from dradriver_nic.actuate.rdmanl import RdmaNetlink
from dradriver_nic.actuate.rtnl import Rtnl
from dradriver_nic.actuate.sriov import Sriov
from dradriver_nic.kernel import link_of
from dradriver_nic.netlink import attribute, attributes
from nicnode import NicNode, link_message, vf_info

GETLINK, SETLINK, NEWLINK = 18, 19, 16
NEWROUTE, GETROUTE = 24, 26
DUMP, ACK = 0x300, 0x4

Answer = list[tuple[int, bytes]]
"""Types and bodies of messages."""


class RefusedError(Exception):
    """What the kernel says instead: the number of an error."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text)
        self.number = number
        self.text = text


class Side(Protocol):
    """One protocol's side: answers a request that was sent in a namespace."""

    def answer(self, kind: int, flags: int, message: bytes, namespace: int) -> Answer: ...


class SideSocket:
    """What a netlink socket is to its user."""

    def __init__(self, side: Side, namespace: int) -> None:
        self._side = side
        self._namespace = namespace
        self._waiting: deque[bytes] = deque()

    def send(self, message: bytes) -> int:
        self._waiting.extend(answers(self._side, message, self._namespace))
        return len(message)

    def recv(self, size: int) -> bytes:
        return self._waiting.popleft()

    def close(self) -> None:
        self._waiting.clear()


def answers(side: Side, message: bytes, namespace: int) -> Iterator[bytes]:
    """Yield the kernel's messages in answer to one request."""
    length, kind, flags, sequence, _ = struct.unpack_from("=IHHII", message)
    assert length == len(message)

    def framed(kind: int, body: bytes, flags: int = 0) -> bytes:
        return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body

    try:
        found = side.answer(kind, flags, message, namespace)
    except RefusedError as refused:
        told = attribute(1, refused.text.encode() + b"\0") if refused.text else b""
        yield framed(2, struct.pack("=i", -refused.number) + message[:16] + told, 0x300)
        return
    for one, body in found:
        yield framed(one, body, 2 if flags & DUMP == DUMP else 0)
    if flags & DUMP == DUMP:
        yield framed(3, bytes(4), 2)
    elif flags & ACK:
        yield framed(2, bytes(4) + message[:16], 0x100)


def default_route(index: int) -> bytes:
    """Return the body of an RTM_NEWROUTE message: a route of the main table to everywhere, over a link."""
    return struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 254, 4, 0, 1, 0) + attribute(
        4, struct.pack("=I", index)
    )


# --- links with virtual functions


class SriovNode(NicNode):
    """A node whose cards have virtual functions that are made and set up.

    vfs        settings by number of the physical function's link, and of the virtual one: attributes and their values
    refuse     attribute of a virtual function -> error number
    requests   what was set, in order
    slow       whether drivers have yet to make links of new virtual functions
    live       whether links take a MAC address while they are up
    refusing   drivers that take nothing
    outcomes   what happens instead of the next requests that change something
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.vfs: dict[int, dict[int, dict[str, dict[str, Any]]]] = {}
        self.values: dict[int, dict[str, Any]] = {}
        self.refuse: dict[str, int] = {}
        self.requests: list[str] = []
        self.slow = False
        self.live = True
        self.refusing: set[str] = set()
        self.outcomes: Iterator[BaseException | None] = iter(())

    def add_link(self, name: str, function: str = "", *, speed: int | None = None, **values: Any) -> int:
        index = super().add_link(name, function, speed=speed, **values)
        link = self.links[index]
        self.values[index] = {
            "name": name,
            "flags": values.get("flags", 0x1003),
            "ADDRESS": link.mac,
            "MTU": link.mtu,
        }
        if function:
            self.values[index] |= {"PARENT_DEV_NAME": function, "PARENT_DEV_BUS_NAME": "pci"}
        return index

    def give_vfs(self, index: int, count: int) -> None:
        """Let a physical function's link show virtual ones, as a driver sets them up."""
        self.vfs[index] = {
            number: {
                "IFLA_VF_MAC": {"vf": number, "mac": "00:00:00:00:00:00"},
                "IFLA_VF_VLAN": {"vf": number, "vlan": 0, "qos": 0},
                "IFLA_VF_SPOOFCHK": {"vf": number, "spoofchk": 1},
                "IFLA_VF_TRUST": {"vf": number, "trust": 0},
                "IFLA_VF_LINK_STATE": {"vf": number, "link_state": 0},
                "IFLA_VF_RATE": {"vf": number, "min_tx_rate": 0, "max_tx_rate": 0},
            }
            for number in range(count)
        }

    def setting(self, index: int, number: int, attribute_name: str) -> dict[str, Any]:
        return self.vfs[index][number][attribute_name]

    def message(self, index: int) -> bytes:
        """Return the message about a link."""
        given = dict(self.values[index])
        vfs = self.vfs.get(index, {})
        if vfs:
            given["VFINFO_LIST"] = {"attrs": [self._vf_info(number, vfs[number]) for number in sorted(vfs)]}
            given["NUM_VF"] = len(vfs)
        return link_message(index, given.pop("name"), given.pop("flags"), **given)

    def _vf_info(self, number: int, settings: dict[str, dict[str, Any]]) -> tuple[str, Any]:
        more = [(name, value) for name, value in settings.items() if name != "IFLA_VF_MAC"]
        return vf_info(number, *more, mac=settings["IFLA_VF_MAC"]["mac"])

    def answer(self, kind: int, flags: int, message: bytes, namespace: int) -> Answer:
        if flags & DUMP == DUMP:
            if kind == GETROUTE and message[16] == socket.AF_INET:
                return [(NEWROUTE, default_route(index)) for index in self.routes]
            return [(NEWLINK, self.message(index)) for index in self.links] if kind == GETLINK else []
        decoded = ifinfmsg(message)
        decoded.decode()
        index = decoded["index"] or self._named(decoded.get_attr("IFLA_IFNAME"))
        if index not in self.links:
            raise RefusedError(errno.ENODEV)
        if kind == GETLINK:
            return [(NEWLINK, self.message(index))]
        outcome = next(self.outcomes, None)
        if outcome:
            raise outcome
        if decoded["change"] & 1:
            self.values[index]["flags"] = self.values[index]["flags"] & ~1 | decoded["flags"] & 1
            self.requests.append(f"{self.values[index]['name']} {'up' if decoded['flags'] & 1 else 'down'}")
        if decoded.get_attr("IFLA_ADDRESS") and self.values[index]["flags"] & 1 and not self.live:
            raise RefusedError(errno.EBUSY)
        for name in ("IFNAME", "MTU", "ADDRESS"):
            value = decoded.get_attr(f"IFLA_{name}")
            if value is not None:
                self.values[index]["name" if name == "IFNAME" else name] = value
        for info in (decoded.get_attr("IFLA_VFINFO_LIST") or {"attrs": []})["attrs"]:
            for name, value in (one[:2] for one in info[1]["attrs"]):
                self._set(index, name, value)
        self.links[index] = link_of(self.message(index))
        return []

    def _set(self, index: int, name: str, value: dict[str, Any]) -> None:
        if name in self.refuse:
            raise RefusedError(self.refuse[name], "not by this card")
        self.requests.append(name.removeprefix("IFLA_VF_").lower())
        if name == "IFLA_VF_VLAN_LIST":
            value = dict(value["attrs"][0][1])
            settings = self.vfs[index][value["vf"]]
            settings["IFLA_VF_VLAN"] = {key: value[key] for key in ("vf", "vlan", "qos")}
            settings["IFLA_VF_VLAN_LIST"] = {"attrs": [("IFLA_VF_VLAN_INFO", value)]}
            return
        settings = self.vfs[index][value["vf"]]
        if name == "IFLA_VF_VLAN":
            settings.pop("IFLA_VF_VLAN_LIST", None)
        settings[name] = dict(value)

    def _named(self, name: str | None) -> int:
        return next((index for index, link in self.links.items() if link.name == name), 0)

    # --- drivers

    def unbound(self, address: str) -> None:
        """Do what happens when a driver lets a function go: its link goes too."""
        self.bind(address, "")
        for link in [one for one in self.links.values() if one.device == address]:
            self.drop_link(link.name)

    def probed(self, address: str, override: str) -> None:
        """Bind a function to the driver that wants it: a network driver makes a link anew."""
        driver = override if override and override != "(null)" else "iavf"
        if driver not in self.refusing:
            self.bind(address, driver)
            if driver == "iavf":
                self.add_link(f"eth{len(self.links)}", address)

    # --- numvfs

    def resize(self, physical: str, count: int, prefix: str) -> None:
        """Do what a driver does when the number of virtual functions is set."""
        index = next(index for index, link in self.links.items() if link.device == physical)
        if count:
            self.make_vfs(physical, count, links="" if self.slow else prefix)
            self.give_vfs(index, count)
            return
        self.vfs.pop(index, None)
        for entry in [*self.host.path(f"sys/bus/pci/devices/{physical}").glob("virtfn*")]:
            address = os.readlink(entry).rpartition("/")[2]  # noqa: PTH115 - as it is written
            entry.unlink()
            (self.directory / "sys/bus/pci/devices" / address).unlink()
            for link in [one for one in self.links.values() if one.device == address]:
                self.drop_link(link.name)


class _SideRtnl(Rtnl):
    def __init__(self, side: Side, namespace: int) -> None:
        self.socket = cast("Any", SideSocket(side, namespace))
        self._sequence = itertools.count(1)


class _SideRdma(RdmaNetlink):
    def __init__(self, side: Side, namespace: int) -> None:
        self.socket = cast("Any", SideSocket(side, namespace))
        self._sequence = itertools.count(1)


class _SideSriov(Sriov):
    def __init__(self, host: Host, node: SriovNode) -> None:
        super().__init__(host)
        self._node = node

    def set_count(self, physical: str, count: int) -> None:
        super().set_count(physical, count)
        self._node.resize(physical, count, "vf")


class _SideVfio(Vfio):
    def __init__(self, host: Host, node: SriovNode) -> None:
        super().__init__(host)
        self._node = node

    def _write(self, path: str, text: str) -> None:
        super()._write(path, text)
        if path.endswith("/unbind"):
            self._node.unbound(text)
        elif path.endswith("/drivers_probe"):
            self._node.probed(text, self.override(text))


class SideActuator(Actuator):
    """What steps change the host with, where links, drivers and RDMA devices are those of the sides."""

    def __init__(self, node: SriovNode, rdma: "RdmaSide | None" = None) -> None:
        super().__init__(node.host, "/run/nic")
        self._node = node
        self._rdma = rdma
        self.sriov = _SideSriov(node.host, node)
        self.vfio = _SideVfio(node.host, node)

    def home(self) -> Rtnl:
        return _SideRtnl(self._node, 0)

    def rdma(self, pod: PodSpace | None = None) -> RdmaNetlink:
        assert self._rdma
        return _SideRdma(self._rdma, pod.number if pod else self._rdma.home)


# --- RDMA

_NLDEV = 5 << 10


class RdmaSide:
    """The RDMA devices of a machine, as drivers/infiniband/core/nldev.c shows and moves them.

    where   number of each device -> number of the namespace that has it
    names   and what it is called
    """

    def __init__(self, home: int, *, exclusive: bool = True) -> None:
        self.home = home
        self.exclusive = exclusive
        self.where: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.on_move: Callable[[str, bool], None] = lambda name, is_home: None
        self.refuse = 0

    def add(self, index: int, name: str) -> None:
        self.where[index], self.names[index] = self.home, name

    def die(self, namespace: int) -> None:
        """Let a namespace die: its devices come home."""
        for index, where in self.where.items():
            if where == namespace:
                self._move(index, self.home)

    def _move(self, index: int, to: int) -> None:
        self.where[index] = to
        self.on_move(self.names[index], to == self.home)

    def answer(self, kind: int, flags: int, message: bytes, namespace: int) -> Answer:
        found = attributes(message, 16)
        match kind - _NLDEV:
            case 1 if flags & DUMP == DUMP:
                return [(kind, self._told(index)) for index in self._seen(namespace)]
            case 1:
                return [(kind, self._told(self._asked(found, namespace)))]
            case 2:
                index = self._asked(found, namespace)
                if self.refuse:
                    raise RefusedError(self.refuse)
                if 2 in found:
                    self.names[index] = found[2].rstrip(b"\0").decode()
                if 68 in found:
                    fd = struct.unpack("=I", found[68])[0]
                    self._move(index, self.namespace_of(fd))
                return []
            case 6:
                return [(kind, attribute(66, bytes((not self.exclusive,))))]
            case 7:
                self.exclusive = not found[66][0]
                return []
        raise RefusedError(errno.EINVAL)

    def namespace_of(self, fd: int) -> int:
        return os.fstat(fd).st_ino

    def _seen(self, namespace: int) -> list[int]:
        return [
            index for index, where in sorted(self.where.items()) if where == namespace or not self.exclusive
        ]

    def _asked(self, found: dict[int, bytes], namespace: int) -> int:
        index = int(struct.unpack("=I", found[1])[0])
        if index not in self._seen(namespace):
            raise RefusedError(errno.ENODEV)
        return index

    def _told(self, index: int) -> bytes:
        guid = struct.pack("=Q", 0xB8CEF60300AABB00 + index)
        return (
            attribute(1, struct.pack("=I", index))
            + attribute(2, self.names[index].encode() + b"\0")
            + attribute(3, struct.pack("=I", 1))
            + attribute(6, guid)
        )
