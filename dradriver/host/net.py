"""Network interfaces and RDMA devices, as far as sysfs shows them.

Files: kernel, Documentation/ABI/testing/sysfs-class-net and Documentation/ABI/stable/sysfs-class-infiniband.
sysfs shows the interfaces of the network namespace that it was mounted from: one that was moved into a pod is
not among them.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from dradriver.host.pcipath import parse_pci_path
from dradriver.host.root import Host

_VIRTUAL = "sys/devices/virtual/"


@dataclass(frozen=True, slots=True)
class NetInterface:
    """One network interface. Values are None where the file is absent, or cannot be read while it is down.

    pci_address   the PCI function behind it, also through virtio and the like
    virtual       whether there is no device behind it: bridges, VLANs, tunnels
    type          ARPHRD number: 1 Ethernet, 32 InfiniBand, 772 loopback
    speed_mbps    -1 where the driver does not know
    dev_port      number of the port, from 0, where several share one PCI function
    """

    name: str
    pci_address: str | None
    virtual: bool
    address: str | None
    operstate: str | None
    type: int | None
    mtu: int | None
    speed_mbps: int | None
    dev_id: int | None
    dev_port: int | None


@dataclass(frozen=True, slots=True)
class InfiniBandPort:
    """One port of an RDMA device; texts as the kernel writes them, as "4: ACTIVE", "56 Gb/sec (4X FDR)"."""

    number: int
    state: str | None
    rate: str | None
    link_layer: str | None
    lid: str | None


@dataclass(frozen=True, slots=True)
class InfiniBandDevice:
    """One RDMA device: InfiniBand, RoCE or iWARP."""

    name: str
    pci_address: str | None
    node_guid: str | None
    sys_image_guid: str | None
    node_type: str | None
    fw_version: str | None
    board_id: str | None
    ports: tuple[InfiniBandPort, ...]


def read_net_interfaces(host: Host) -> tuple[NetInterface, ...]:
    """Read the network interfaces that sysfs shows, by name."""
    return tuple(_interface(host, name, where) for name, where in _located(host, "net").items())


def read_infiniband(host: Host) -> tuple[InfiniBandDevice, ...]:
    """Read the RDMA devices, by name."""
    return tuple(_infiniband(host, name, where) for name, where in _located(host, "infiniband").items())


def read_class_names(host: Host, kind: str) -> dict[str, str | None]:
    """Return the devices of the class "net" or "infiniband" and the PCI functions behind them."""
    return {name: _behind(where) for name, where in _located(host, kind).items()}


def _located(host: Host, kind: str) -> Mapping[str, str]:
    """Return the devices of a class with their paths, which recorded hosts need not have.

    A plain file in the directory, as bonding has one, is no device.
    """
    directory = f"sys/class/{kind}"
    paths = {name: _target(host, f"{directory}/{name}") for name in host.list_dir(directory)}
    return {name: path for name, path in paths.items() if path}


def _target(host: Host, path: str) -> str | None:
    link = host.read_link(path)
    found = host.resolve(path)
    if found and (link is not None or host.list_dir(path)):
        return found
    # The path itself tells enough: which function, or that there is none.
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(path), link))[1:] if link else None


def _behind(path: str) -> str | None:
    found = parse_pci_path(path)
    return found.address if found else None


def _interface(host: Host, name: str, path: str) -> NetInterface:
    def number(file: str) -> int | None:
        return host.read_int(f"{path}/{file}")

    return NetInterface(
        name=name,
        pci_address=_behind(path),
        virtual=path.startswith(_VIRTUAL),
        address=host.read_text(f"{path}/address") or None,
        operstate=host.read_text(f"{path}/operstate") or None,
        type=number("type"),
        mtu=number("mtu"),
        speed_mbps=number("speed"),
        dev_id=host.read_hex(f"{path}/dev_id"),
        dev_port=number("dev_port"),
    )


def _infiniband(host: Host, name: str, path: str) -> InfiniBandDevice:
    def text(file: str) -> str | None:
        return host.read_text(f"{path}/{file}") or None

    return InfiniBandDevice(
        name=name,
        pci_address=_behind(path),
        node_guid=text("node_guid"),
        sys_image_guid=text("sys_image_guid"),
        node_type=text("node_type"),
        fw_version=text("fw_ver"),
        board_id=text("board_id"),
        ports=tuple(
            InfiniBandPort(
                number=int(port),
                state=text(f"ports/{port}/state"),
                rate=text(f"ports/{port}/rate"),
                link_layer=text(f"ports/{port}/link_layer"),
                lid=text(f"ports/{port}/lid"),
            )
            for port in sorted((p for p in host.list_dir(f"{path}/ports") if p.isdecimal()), key=int)
        ),
    )
