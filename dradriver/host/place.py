"""Where PCI functions are: the attributes by which devices of all kinds line up."""

from dradriver.host.cpuset import CPUSet
from dradriver.host.pci import PCI_DIR, pcie_root, pcie_switch
from dradriver.host.root import Host
from dradriver.host.topology import Topology, read_topology
from dradriver.model import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, PCIE_SWITCH, SOCKET_ID, AttributeValue


class NodeSockets:
    """The sockets of a host's NUMA nodes. Its topology is read once, when the first one is asked for."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._topology: Topology | None = None

    def of(self, node: int) -> int | None:
        """Return the number of the one socket that holds all CPUs of a node; None where there is not the one."""
        if self._topology is None:
            self._topology = read_topology(self._host)
        cpus = next((one.cpus for one in self._topology.localities if one.node_id == node), CPUSet())
        return self._topology.socket_of(cpus)


def pci_place(host: Host, address: str, sockets: NodeSockets) -> dict[str, AttributeValue]:
    """Return the attributes of a PCI function's place; what is not known is left out. Raises ValueError.

    address   as for `pcie_root`
    """
    node = host.read_int(f"{PCI_DIR}/{address}/numa_node")
    if node is not None and node < 0:
        node = None  # what the kernel writes where it does not know
    found = {
        PCIE_ROOT: pcie_root(host, address),
        PCI_BUS_ID: address,
        PCIE_SWITCH: pcie_switch(host, address),
        NUMA_NODE: node,
        SOCKET_ID: None if node is None else sockets.of(node),
    }
    return {name: value for name, value in found.items() if value is not None}
