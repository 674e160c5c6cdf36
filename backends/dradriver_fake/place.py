"""Where a device is: the attributes by which devices of all kinds line up, read from the node's own tree."""

from dradriver.host import CPUSet, Host, pcie_root, pcie_switch
from dradriver.model import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, PCIE_SWITCH, SOCKET_ID, AttributeValue
from dradriver_fake.facts import NodeFacts, PCIFunction
from dradriver_fake.hardware import Hardware


class Places:
    """The places of a node's PCI functions. They do not change, so each is read once."""

    def __init__(self, host: Host, hardware: Hardware) -> None:
        self._host = host
        self._hardware = hardware
        self._known: dict[str, dict[str, AttributeValue]] = {}

    def of(self, function: PCIFunction) -> dict[str, AttributeValue]:
        """Return the attributes of the place; what is not known is left out."""
        if function.bdf not in self._known:
            found = {
                PCIE_ROOT: pcie_root(self._host, function.bdf),
                PCI_BUS_ID: function.bdf,
                PCIE_SWITCH: pcie_switch(self._host, function.bdf),
                NUMA_NODE: function.numa_node if function.numa_node >= 0 else None,
                SOCKET_ID: socket_of(self._hardware.facts, function.numa_node),
            }
            self._known[function.bdf] = {name: value for name, value in found.items() if value is not None}
        return self._known[function.bdf]


def socket_of(facts: NodeFacts, node: int) -> int | None:
    """Return the socket that has all CPUs of a NUMA node; None where there is not the one."""
    cpus = next((CPUSet.parse(one.cpus) for one in facts.numa.nodes if one.id == node), CPUSet())
    sockets = {cpu % facts.cpu.cores // facts.cpu.cores_per_socket for cpu in cpus}
    return sockets.pop() if len(sockets) == 1 else None
