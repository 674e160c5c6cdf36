"""The backend `cpu`."""

import threading
from collections.abc import Callable, Mapping

from dradriver.backend import Backend, Plan, Request, UnavailableError
from dradriver.host import CPUSet, UeventMonitor, read_topology
from dradriver.model import ClaimRef, Peer, PoolContent
from dradriver_cpu.config import CpuConfig, CpuOptions
from dradriver_cpu.devices import device_of
from dradriver_cpu.inventory import CpuInventory, inventory_of
from dradriver_cpu.plan import PinCPUs, plan_cpus


class CpuBackend(Backend[CpuInventory, CpuOptions]):
    """CPUs of this host, by NUMA node."""

    kind = "cpu"
    serves = "CPUs"
    options_type = CpuOptions
    config_types = (CpuConfig,)
    step_types = (PinCPUs,)

    _saw_nodes = False

    def probe(self) -> CpuInventory:
        """Read the topology. Raises UnavailableError where NUMA nodes were seen before and none is now.

        A running kernel does not lose them all. Believed, it would offer the same hardware anew under another name.
        """
        topology = read_topology(self.host)
        if self._saw_nodes and not topology.nodes:
            raise UnavailableError("the NUMA nodes that were here cannot be read")
        self._saw_nodes = bool(topology.nodes)
        return inventory_of(topology, self.options.reserved_cpus)

    def devices(self, inventory: CpuInventory) -> PoolContent:
        """Offer each NUMA node's CPUs, isolated ones last."""
        return PoolContent(
            devices=tuple(device_of(inventory.topology, offer) for offer in inventory.offers),
            notes=inventory.topology.notes,
            warnings=inventory.warnings,
        )

    def plan(
        self, request: Request, inventory: CpuInventory, held: Mapping[str, ClaimRef], peers: tuple[Peer, ...]
    ) -> Plan:
        """Choose the CPUs."""
        return plan_cpus(request, inventory, held, peers)

    @property
    def reserved_cpus(self) -> CPUSet:
        """The CPUs that the operator keeps for the system."""
        return self.options.reserved_cpus

    def watch(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        """Watch for CPUs and NUMA nodes that come and go. Raises UeventsUnavailableError."""
        UeventMonitor(
            subsystems=frozenset({"cpu", "node", "memory"}),
            on_event=lambda event: changed(f"{event.action} {event.devpath}"),
            on_resync=lambda: changed("kernel events may have been missed"),
        ).run(stop)
