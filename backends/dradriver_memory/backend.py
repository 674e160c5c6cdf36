"""The backend `memory`."""

import threading
from collections.abc import Callable, Mapping

from dradriver.backend import Backend, Plan, Request, UnavailableError
from dradriver.host import UeventMonitor, read_topology
from dradriver.model import ClaimRef, Peer, PoolContent
from dradriver_memory.config import MemoryOptions
from dradriver_memory.devices import device_of
from dradriver_memory.inventory import MemoryInventory, inventory_of
from dradriver_memory.plan import BindMemory, LimitHugepages, plan_memory


class MemoryBackend(Backend[MemoryInventory, MemoryOptions]):
    """Memory and huge pages of this host, by NUMA node."""

    kind = "memory"
    options_type = MemoryOptions
    step_types = (BindMemory, LimitHugepages)

    _saw_nodes = False

    def probe(self) -> MemoryInventory:
        """Read the topology. Raises UnavailableError where NUMA nodes were seen before and none is now.

        A running kernel does not lose them all. Believed, it would offer the same hardware anew under another name.
        """
        topology = read_topology(self.host)
        if self._saw_nodes and not topology.nodes:
            raise UnavailableError("the NUMA nodes that were here cannot be read")
        self._saw_nodes = bool(topology.nodes)
        return inventory_of(topology, self.options.reserved_bytes())

    def devices(self, inventory: MemoryInventory) -> PoolContent:
        """Offer memory, then huge pages; of each the nodes with CPUs first."""
        return PoolContent(tuple(device_of(offer) for offer in inventory.offers), warnings=inventory.warnings)

    def plan(
        self,
        request: Request,
        inventory: MemoryInventory,
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        """Bind to the node that the scheduler chose; what others have is not asked."""
        del held, peers
        return plan_memory(request, inventory)

    def watch(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        """Watch for memory and NUMA nodes that come and go. Raises UeventsUnavailableError.

        The kernel tells nothing of huge pages that are added or freed: the next periodic probe sees them.
        """
        UeventMonitor(
            subsystems=frozenset({"memory", "node"}),
            on_event=lambda event: changed(f"{event.action} {event.devpath}"),
            on_resync=lambda: changed("kernel events may have been missed"),
        ).run(stop)
