"""PCI functions, network interfaces and RDMA devices of a node as files.

Files: kernel, Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-net, and
Documentation/ABI/stable/sysfs-class-infiniband.
"""

import hashlib
from dataclasses import dataclass

from dradriver.host import CPUSet
from dradriver_fake.facts import GPUDevice, NICDevice, NodeFacts, PCIFunction, VFDevice, num_vfs
from dradriver_fake.writer import Tree

ETHERNET, INFINIBAND = 1, 32
"""ARPHRD numbers (include/uapi/linux/if_arp.h)."""

_BRIDGE = "0x060400"


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of a PCI function."""

    name: str
    mac: str
    mtu: int
    speed_mbps: int
    kind: int


def add_pci(tree: Tree, facts: NodeFacts) -> None:
    """Write the PCI devices, their classes, and the route table."""
    nodes = {node.id: CPUSet.parse(node.cpus) for node in facts.numa.nodes}
    everywhere = CPUSet(cpu for cpus in nodes.values() for cpu in cpus)
    functions = {device.bdf: device for device in facts.functions()}
    bridges: set[str] = set()
    for group, device in enumerate(functions.values()):
        above = f"sys/devices/{device.pcie_root}"
        for bridge in device.bridges:
            above = f"{above}/{bridge}"
            if above not in bridges:
                bridges.add(above)
                _bridge(tree, above, bridge)
        cpus = nodes.get(device.numa_node, everywhere)
        _function(tree, f"{above}/{device.bdf}", device, group, cpus)
    paths = {bdf: _path(device) for bdf, device in functions.items()}
    for device in functions.values():
        _sriov(tree, device, paths, facts)
        _network(tree, device, paths[device.bdf], functions)
    _routes(tree, facts)
    _driver(tree, facts)


def _path(device: PCIFunction) -> str:
    return "/".join(("sys/devices", device.pcie_root, *device.bridges, device.bdf))


def _bridge(tree: Tree, path: str, address: str) -> None:
    tree.file(f"{path}/class", _BRIDGE)
    tree.link(f"sys/bus/pci/devices/{address}", path)


def _function(tree: Tree, path: str, device: PCIFunction, group: int, cpus: CPUSet) -> None:
    fields: dict[str, object] = {
        "vendor": device.vendor,
        "device": device.device,
        "subsystem_vendor": device.subsystem_vendor or "0x0000",
        "subsystem_device": device.subsystem_device or "0x0000",
        "class": device.class_code,
        "numa_node": device.numa_node,
        "local_cpulist": cpus,
    }
    if device.link:
        for which in ("current", "max"):
            fields[f"{which}_link_speed"] = device.link.speed or "Unknown"
            fields[f"{which}_link_width"] = device.link.width or 0
    for name, value in fields.items():
        tree.file(f"{path}/{name}", value)
    tree.link(f"sys/bus/pci/devices/{device.bdf}", path)
    tree.directory(f"sys/kernel/iommu_groups/{group}")
    tree.link(f"{path}/iommu_group", f"sys/kernel/iommu_groups/{group}")
    driver = _driver_of(device)
    tree.directory(f"sys/bus/pci/drivers/{driver}")
    tree.link(f"{path}/driver", f"sys/bus/pci/drivers/{driver}")


def _driver_of(device: PCIFunction) -> str:
    match device:
        case NICDevice():
            return device.nic.driver
        case VFDevice():
            return device.vf.driver
        case GPUDevice():
            return "nvidia"


def _sriov(tree: Tree, device: PCIFunction, paths: dict[str, str], facts: NodeFacts) -> None:
    path = paths[device.bdf]
    if isinstance(device, NICDevice) and device.nic.sriov_total_vfs is not None:
        tree.file(f"{path}/sriov_totalvfs", device.nic.sriov_total_vfs)
        tree.file(f"{path}/sriov_numvfs", num_vfs(device))
    elif isinstance(device, VFDevice):
        tree.link(f"{path}/physfn", paths[device.vf.physfn])
        tree.link(f"{paths[device.vf.physfn]}/virtfn{device.vf.index}", path)


def interface_of(device: NICDevice | VFDevice, functions: dict[str, PCIFunction]) -> Interface | None:
    """Return the interface of a function; None for one that is bound to vfio-pci."""
    if isinstance(device, VFDevice):
        parent = functions[device.vf.physfn]
        if device.vf.driver == "vfio-pci" or not isinstance(parent, NICDevice):
            return None
        name, mac, card = device.vf.netdev, None, parent.nic
    else:
        name, mac, card = device.nic.netdev, device.nic.mac, device.nic
    return Interface(
        name=name,
        mac=mac or made_up_mac(device.bdf),
        mtu=card.mtu,
        speed_mbps=card.rate_gbps * 1000 if card.rate_gbps else -1,
        kind=INFINIBAND if card.link_layer == "InfiniBand" else ETHERNET,
    )


def made_up_mac(seed: str) -> str:
    """Return a MAC address that is administered locally, the same for the same seed."""
    digest = hashlib.sha256(seed.encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def _network(tree: Tree, device: PCIFunction, path: str, functions: dict[str, PCIFunction]) -> None:
    if isinstance(device, GPUDevice):
        return
    interface = interface_of(device, functions)
    if interface:
        directory = f"{path}/net/{interface.name}"
        for name, value in (
            ("address", interface.mac),
            ("mtu", interface.mtu),
            ("speed", interface.speed_mbps),
            ("type", interface.kind),
            ("operstate", "up"),
            ("dev_id", "0x0"),
            ("dev_port", 0),
        ):
            tree.file(f"{directory}/{name}", value)
        tree.link(f"{directory}/device", path)
        tree.link(f"sys/class/net/{interface.name}", directory)
    rdma = device.vf.rdma_device if isinstance(device, VFDevice) else device.nic.rdma_device
    if rdma and interface:
        directory = f"{path}/infiniband/{rdma}"
        layer = "InfiniBand" if interface.kind == INFINIBAND else "Ethernet"
        tree.file(f"{directory}/node_type", "1: CA")
        tree.file(f"{directory}/ports/1/state", "4: ACTIVE")
        tree.file(f"{directory}/ports/1/link_layer", layer)
        tree.file(f"{directory}/ports/1/rate", f"{max(interface.speed_mbps, 0) // 1000} Gb/sec")
        tree.link(f"{directory}/device", path)
        tree.link(f"sys/class/infiniband/{rdma}", directory)


def _routes(tree: Tree, facts: NodeFacts) -> None:
    """Write /proc/net/route: a default route over each card that is said to have it."""
    header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
    lines = [
        f"{nic.nic.netdev}\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0"
        for nic in facts.nics
        if nic.nic.default_route
    ]
    tree.file("proc/net/route", "\n".join((header, *lines)))


def _driver(tree: Tree, facts: NodeFacts) -> None:
    for gpu in facts.gpus:
        lines = (
            f"Model: \t\t {gpu.gpu.product}",
            f"GPU UUID: \t {gpu.gpu.uuid}",
            f"Bus Location: \t {gpu.bdf}",
        )
        tree.file(f"proc/driver/nvidia/gpus/{gpu.bdf}/information", "\n".join(lines))
