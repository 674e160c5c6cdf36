"""Where GPUs are: on the PCI bus, whether or not a driver shows them, and next to which CPUs and devices."""

from dradriver.host import CPUSet, Host, Topology, pcie_root, pcie_switch, read_topology
from dradriver.model import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, PCIE_SWITCH, SOCKET_ID, AttributeValue
from dradriver_gpu.inventory import Passthrough

PCI_DIR = "sys/bus/pci/devices"

_NVIDIA = 0x10DE
_GPU_CLASSES = frozenset({0x0300, 0x0302})
"""VGA controller, and 3D controller, which data-centre GPUs are (PCI Code and ID Assignment Specification)."""


class Places:
    """The NVIDIA GPUs of the PCI bus. What cannot change while a GPU is on the bus is read once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._topology: Topology | None = None
        self._is_gpu: dict[str, bool] = {}
        self._known: dict[str, dict[str, AttributeValue]] = {}
        self._ids: dict[str, tuple[int | None, int | None, int | None]] = {}

    def gpus(self) -> frozenset[str] | None:
        """Return the addresses of the GPUs on the bus; None where the host shows no bus."""
        names = self._host.list_dir(PCI_DIR)
        if not names:
            return None
        for gone in self._is_gpu.keys() - set(names):
            for known in (self._is_gpu, self._known, self._ids):
                known.pop(gone, None)
        for name in names:
            if name not in self._is_gpu:
                self._is_gpu[name] = self._hexadecimal(name, "vendor") == _NVIDIA and (
                    (self._hexadecimal(name, "class") or 0) >> 8 in _GPU_CLASSES
                )
        return frozenset(name for name, is_gpu in self._is_gpu.items() if is_gpu)

    def attributes(self, address: str) -> dict[str, AttributeValue]:
        """Return the attributes of a GPU's place; what is not known is left out."""
        if address not in self._known:
            node = self._host.read_int(f"{PCI_DIR}/{address}/numa_node")
            found = {
                PCIE_ROOT: pcie_root(self._host, address),
                PCI_BUS_ID: address,
                PCIE_SWITCH: pcie_switch(self._host, address),
                NUMA_NODE: node if node is not None and node >= 0 else None,
                SOCKET_ID: self._socket(node),
            }
            self._known[address] = {name: value for name, value in found.items() if value is not None}
        return self._known[address]

    def passthrough(self, address: str) -> Passthrough | None:
        """Return the driver that a GPU is bound to now, and its ids; None for what is not on the bus."""
        directory = f"{PCI_DIR}/{address}"
        if address not in self._ids:
            ids = (self._hexadecimal(address, "vendor"), self._hexadecimal(address, "device"))
            group = self._link(f"{directory}/iommu_group")
            if ids[0] is None:
                return None
            self._ids[address] = (int(group) if group and group.isdecimal() else None, *ids)
        group_id, vendor, device = self._ids[address]
        return Passthrough(self._link(f"{directory}/driver"), group_id, vendor, device)

    def _socket(self, node: int | None) -> int | None:
        if node is None or node < 0:
            return None
        if self._topology is None:
            self._topology = read_topology(self._host)
        cpus = next((one.cpus for one in self._topology.localities if one.node_id == node), CPUSet())
        return self._topology.socket_of(cpus)

    def _link(self, path: str) -> str | None:
        target = self._host.read_link(path)
        return target.rstrip("/").rpartition("/")[2] or None if target else None

    def _hexadecimal(self, address: str, name: str) -> int | None:
        try:
            return int(self._host.read_text(f"{PCI_DIR}/{address}/{name}") or "", 16)
        except ValueError:
            return None
