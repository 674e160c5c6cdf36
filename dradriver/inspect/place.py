"""Where a device is, as its attributes and the host's PCI buses tell together."""

from collections.abc import Mapping
from dataclasses import dataclass

from dradriver.host import PCIDevice, pci_address
from dradriver.model import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, PCIE_SWITCH, SOCKET_ID, AttributeValue, Device


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is. Each value is None where unknown, or where it is nowhere of that kind."""

    socket: int | None = None
    numa_node: int | None = None
    root: str | None = None
    switch: str | None = None
    address: str | None = None


def place_of(device: Device, functions: Mapping[str, PCIDevice]) -> Place:
    """Return where a published device is: its attributes first, then what the host says of its PCI function."""
    text = _text(device.attributes.get(PCI_BUS_ID))
    address = pci_address(text) if text else None
    function = functions.get(address) if address else None
    numa_node = _first(device.attributes.get(NUMA_NODE))
    if numa_node is None and function:
        numa_node = function.numa_node
    return Place(
        socket=_first(device.attributes.get(SOCKET_ID)),
        numa_node=numa_node,
        root=_text(device.attributes.get(PCIE_ROOT)) or (function.pcie_root if function else None),
        switch=_text(device.attributes.get(PCIE_SWITCH)) or (function.pcie_switch if function else None),
        address=address,
    )


def place_of_function(function: PCIDevice) -> Place:
    """Return where a PCI function is."""
    return Place(None, function.numa_node, function.pcie_root, function.pcie_switch, function.address)


def _first(value: AttributeValue | None) -> int | None:
    """Return a number, or the first of a list: a device lists its own NUMA node before others."""
    first = value[0] if isinstance(value, tuple) and value else value
    return first if isinstance(first, int) and not isinstance(first, bool) else None


def _text(value: AttributeValue | None) -> str | None:
    first = value[0] if isinstance(value, tuple) and value else value
    return first if isinstance(first, str) else None
