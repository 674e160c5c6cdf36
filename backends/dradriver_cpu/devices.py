"""The devices that are published: each a number of CPUs that claims share out, one by one."""

from dradriver.host import EFFICIENCY, PERFORMANCE, CPUSet, Topology
from dradriver.model import (
    NUMA_NODE,
    SOCKET_ID,
    AttributeValue,
    Capacity,
    Device,
    NodeAllocatable,
    Quantity,
    RequestPolicy,
    ValidRange,
)
from dradriver_cpu.inventory import Offer

CPU = "cpu"
"""Name of the capacity, and of the node allocatable resource that it counts against."""

ONE = Quantity.from_int(1)

# The values that selectors written for the driver dra.cpu (kubernetes-sigs/dra-driver-cpu) expect.
_CORE_TYPES = {PERFORMANCE: "p-core", EFFICIENCY: "e-core"}
_STANDARD = "standard"


def device_of(topology: Topology, offer: Offer) -> Device:
    """Return the device of an offer; what is not known or not the same for all of its CPUs is left out."""
    attributes: dict[str, AttributeValue] = {
        "numCPUs": len(offer.cpus),
        "smtEnabled": any(len(topology.cpus[cpu].core) > 1 for cpu in offer.cpus),
        "isolated": offer.isolated,
    }
    core_type = _core_type(topology, offer.cpus)
    if core_type is not None:
        attributes["coreType"] = core_type
    l3 = _l3_id(topology, offer.cpus)
    if l3 is not None:
        attributes["cacheL3ID"] = l3
    socket = topology.socket_of(offer.cpus)
    if socket is not None:
        attributes["socketID"] = socket
        attributes[SOCKET_ID] = socket
    if offer.node is not None:
        attributes[NUMA_NODE] = offer.node
    return Device(
        name=offer.name,
        attributes=attributes,
        capacity={CPU: Capacity(Quantity.from_int(len(offer.cpus)), _policy(len(offer.cpus)))},
        shared=True,
        node_allocatable=(NodeAllocatable(CPU, capacity=CPU, multiplier=ONE),),
    )


def _core_type(topology: Topology, cpus: CPUSet) -> str | None:
    """Return the kind of the cores, "standard" on a machine of equal ones; None for several or unknown.

    Base frequency and MIDR tell that cores differ where nothing tells how. The highest frequency does not:
    some cores of a kind boost higher than others.
    """
    kinds = {topology.cpus[cpu].core_kind for cpu in cpus}
    if len(kinds) > 1:
        return None
    kind = kinds.pop()
    if kind is not None:
        return _CORE_TYPES.get(kind)
    differ = topology.core_kinds.base_freq_khz or topology.core_kinds.midr
    return None if differ else _STANDARD


def _l3_id(topology: Topology, cpus: CPUSet) -> int | None:
    """Return the id of the L3 cache if there is one for all of the CPUs."""
    caches = [cache for cache in topology.caches if cache.level == 3 and not cache.cpus.isdisjoint(cpus)]
    return caches[0].id if len(caches) == 1 and cpus <= caches[0].cpus else None


def _policy(count: int) -> RequestPolicy:
    """Allow whole CPUs, one where a request names no number.

    A range must have room for one step (API validation), which a single CPU has not.
    """
    if count == 1:
        return RequestPolicy(default=ONE, valid_values=(ONE,))
    return RequestPolicy(default=ONE, valid_range=ValidRange(min=ONE, step=ONE))
