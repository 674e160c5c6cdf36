"""The host, read only: files below any root, the topology and devices found in them, and events of the kernel."""

from dradriver.host.allowed import Allowed, Cgroup
from dradriver.host.cache import Cache
from dradriver.host.core_kinds import EFFICIENCY, PERFORMANCE, CoreKinds
from dradriver.host.cpu import CPU, CPULists
from dradriver.host.cpuset import CPUSet
from dradriver.host.memory import HugePages, Memory
from dradriver.host.net import (
    InfiniBandDevice,
    InfiniBandPort,
    NetInterface,
    read_infiniband,
    read_net_interfaces,
)
from dradriver.host.numa import MemorySideCache, NUMANode
from dradriver.host.pci import (
    GPU_CLASSES,
    PCI_DIR,
    PCIDevice,
    PCIDevices,
    PCILink,
    iommu_group,
    pcie_root,
    pcie_switch,
    read_pci,
)
from dradriver.host.pcipath import PCIPath, pci_address
from dradriver.host.place import NodeSockets, pci_place
from dradriver.host.root import Host
from dradriver.host.topology import Locality, Topology, read_topology
from dradriver.host.uevents import Uevent, UeventMonitor, UeventsUnavailableError

__all__ = [
    "CPU",
    "EFFICIENCY",
    "GPU_CLASSES",
    "PCI_DIR",
    "PERFORMANCE",
    "Allowed",
    "CPULists",
    "CPUSet",
    "Cache",
    "Cgroup",
    "CoreKinds",
    "Host",
    "HugePages",
    "InfiniBandDevice",
    "InfiniBandPort",
    "Locality",
    "Memory",
    "MemorySideCache",
    "NUMANode",
    "NetInterface",
    "NodeSockets",
    "PCIDevice",
    "PCIDevices",
    "PCILink",
    "PCIPath",
    "Topology",
    "Uevent",
    "UeventMonitor",
    "UeventsUnavailableError",
    "iommu_group",
    "pci_address",
    "pci_place",
    "pcie_root",
    "pcie_switch",
    "read_infiniband",
    "read_net_interfaces",
    "read_pci",
    "read_topology",
]
