"""A function given to a program of the pod, as DPDK, without a network interface: bound to vfio-pci."""

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dradriver.backend import BackendError, HostStep, Observed, TransientError, UnavailableError, Work
from dradriver.backend.vfio import VFIO
from dradriver_nic.actuate.before import decoded, encoded, read_before
from dradriver_nic.actuate.found import Which, find
from dradriver_nic.actuate.kept import refuse_of_host
from dradriver_nic.actuate.restore import Restorer
from dradriver_nic.actuate.rtnl import telling
from dradriver_nic.away import Moved
from dradriver_nic.netns import inside

if TYPE_CHECKING:
    from dradriver_nic.backend import NicBackend

_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class BindVfio(HostStep["NicBackend"]):
    """Bind a function to vfio-pci for as long as a claim has it, and back to the driver that it had.

    which        by what its network interface is found, which goes with the driver and is restored with it
    companions   addresses of the claim's other functions that go the same way: they may be of one IOMMU group
    """

    device: str
    address: str
    which: Which
    index: int = 0
    companions: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"bind {self.address} ({self.device}) to {VFIO}"

    def apply(self, backend: "NicBackend", work: Work) -> None:
        """Bind it, once how its network interface was is recorded."""
        vfio = backend.actuator.vfio
        if not vfio.is_there(self.address):
            raise BackendError(f"{self.device} is not on the bus")
        ours = {self.address, *self.companions}
        vfio.check_viable(self.address, lambda one: one.address in ours, self.device)
        self._record(backend, work)
        backend.away.add(self.device, Moved())
        vfio.bind(self.address, VFIO, VFIO)
        vfio.check_node(self.address, self.device)
        group = vfio.group(self.address)
        if work.facts.get("group") != group:
            work.record({"group": group})

    def _record(self, backend: "NicBackend", work: Work) -> None:
        """Record what it was, unless that is known. Raises BackendError where the host needs its interface now."""
        vfio, actuator = backend.actuator.vfio, backend.actuator
        with telling(f"{self.device} cannot be bound to {VFIO}"), actuator.home() as home:
            seen = find(home, self.which)
            if seen:
                refuse_of_host(home, seen, self.device)
            if "driver" in work.facts:
                return
            before = inside(actuator.namespace, lambda: read_before(home, seen)) if seen else None
        work.record(
            {
                "driver": vfio.driver(self.address),
                "override": vfio.override(self.address),
                "before": encoded(before) if before else None,
            }
        )

    def revert(self, backend: "NicBackend", work: Work) -> None:
        """Bind it to the driver that it had, and make its network interface what it was."""
        vfio = backend.actuator.vfio
        driver = str(work.facts.get("driver") or "")
        if "driver" in work.facts and not work.rebooted and vfio.is_there(self.address):
            now = vfio.driver(self.address)
            if now == VFIO != driver:
                vfio.check_free(vfio.node(self.address))
            if now in {VFIO, "", driver}:
                vfio.bind(self.address, driver, str(work.facts.get("override") or ""))
            self._restore_link(backend, work)
        backend.away.discard(self.device)

    def _restore_link(self, backend: "NicBackend", work: Work) -> None:
        """Wait for the network interface that the driver makes, and restore what it was."""
        before = decoded(work)
        if before is None:
            return
        end = time.monotonic() + _SETTLE_SECONDS
        with (
            telling(f"{self.device} cannot be made what it was"),
            backend.actuator.home() as home,
        ):
            while (seen := find(home, self.which)) is None:
                if _is_over(work.stop, end):
                    raise TransientError(f"{self.device}: its network interface has not come back yet")
            restorer = Restorer(home, before)
            inside(backend.actuator.namespace, lambda: restorer.restore(seen))

    def observe(self, backend: "NicBackend", work: Work) -> Observed:
        """Look at the driver."""
        if not backend.actuator.vfio.is_there(self.address):
            raise UnavailableError(f"{self.device} is not on the bus")
        bound = backend.actuator.vfio.driver(self.address) == VFIO
        if bound and "driver" in work.facts:
            return Observed.DONE
        return Observed.PARTIAL if bound else Observed.UNDONE

    def recall(self, backend: "NicBackend", work: Work) -> bool:
        """Note that its network interface is not there on purpose."""
        return "driver" in work.facts and not work.rebooted and backend.away.add(self.device, Moved())


def _is_over(stop: threading.Event, end: float) -> bool:
    return stop.wait(_POLL_SECONDS) or time.monotonic() > end
