"""The backend `nic`."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from dradriver.backend import Backend, Plan, PlannedDevice, Request
from dradriver.backend.together import run_together
from dradriver.host import Host
from dradriver.model import ClaimRef, Peer, PoolContent
from dradriver_nic.actuate.actuator import Actuator
from dradriver_nic.away import Away
from dradriver_nic.config import NicConfig
from dradriver_nic.devices import content_of
from dradriver_nic.inventory import NicInventory
from dradriver_nic.kernel import Kernel, LiveKernel
from dradriver_nic.options import NicOptions
from dradriver_nic.plan import STEP_TYPES, plan_nics, render_nics
from dradriver_nic.probe import Prober
from dradriver_nic.watch import Limiter, LinkWatch, watch_functions


class NicBackend(Backend[NicInventory, NicOptions]):
    """Network cards of this host.

    away       what is in pods: steps note there what they move
    actuator   what steps change the host with
    """

    kind = "nic"
    serves = "network cards"
    options_type = NicOptions
    config_types = (NicConfig,)
    step_types = STEP_TYPES

    def __init__(self, host: Host, options: NicOptions, kernel: Kernel | None = None) -> None:
        """`kernel` says what links there are; the running one where it is not given."""
        super().__init__(host, options)
        self.away = Away()
        self.actuator = Actuator(host, options.run_directory, options.namespace)
        kinds = frozenset(options.virtual_links)
        self._prober = Prober(host, options, kernel or LiveKernel(options.namespace, kinds), self.away)
        self._filter = options.filter()

    def probe(self) -> NicInventory:
        """Read functions and links. Raises UnavailableError where the kernel does not answer."""
        return self._prober.probe()

    def devices(self, inventory: NicInventory) -> PoolContent:
        """Offer cards, virtual functions, or shares."""
        return content_of(inventory, self.options, self._filter)

    def plan(
        self,
        request: Request,
        inventory: NicInventory,
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        """Move functions into the pod, make links on shared cards, and give each its addresses."""
        return plan_nics(request, inventory, held)

    def render(
        self,
        request: Request,
        plan: Plan,
        facts: tuple[Mapping[str, Any], ...],
        inventory: NicInventory,
    ) -> tuple[PlannedDevice, ...]:
        """Tell the container its interfaces, and give it RDMA and VFIO devices."""
        return render_nics(request, plan, facts, inventory)

    def watch(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        """Watch links, addresses, default routes, PCI functions, and what steps move. Raises UnavailableError."""
        limiter = Limiter(changed)
        links = LinkWatch(limiter.note, frozenset(self.options.virtual_links), self.options.namespace)
        run_together(
            stop,
            limiter.run,
            links.run,
            lambda over: watch_functions(over, limiter.note),
            lambda over: self.away.watch(over, limiter.note),
        )
