"""The plain data that the rooms hand to each other: quantities, names, devices, claims. No I/O.

Everything is frozen. `Quantity` is exact. What the API server would refuse is refused where bodies are made
(`dradriver.slices`), not here.
"""

from dradriver.model.claim import Allocated, ClaimRef, Peer
from dradriver.model.device import (
    NUMA_NODE,
    PCI_BUS_ID,
    PCIE_ROOT,
    PCIE_SWITCH,
    SOCKET_ID,
    AttributeValue,
    BindingConditions,
    Capacity,
    CounterSet,
    Device,
    Health,
    NodeAllocatable,
    PoolContent,
    RequestPolicy,
    Scalar,
    Taint,
    TaintEffect,
    ValidRange,
    Version,
)
from dradriver.model.network import NetworkData
from dradriver.model.prepared import PreparedDevice
from dradriver.model.quantity import Quantity, json_quantity
from dradriver.model.text import shown

__all__ = [
    "NUMA_NODE",
    "PCIE_ROOT",
    "PCIE_SWITCH",
    "PCI_BUS_ID",
    "SOCKET_ID",
    "Allocated",
    "AttributeValue",
    "BindingConditions",
    "Capacity",
    "ClaimRef",
    "CounterSet",
    "Device",
    "Health",
    "NetworkData",
    "NodeAllocatable",
    "Peer",
    "PoolContent",
    "PreparedDevice",
    "Quantity",
    "RequestPolicy",
    "Scalar",
    "Taint",
    "TaintEffect",
    "ValidRange",
    "Version",
    "json_quantity",
    "shown",
]
