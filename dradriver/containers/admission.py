"""What is refused at Prepare: claims whose containers could not be given what they promise."""

import threading
from collections.abc import Callable

from dradriver.backend import Phase, PlanError, TransientError
from dradriver.containers.handler import NONE_LEFT, Containers
from dradriver.containers.shared import SharedCPUs
from dradriver.engine import Pools, Record
from dradriver.engine.containers import container_claim
from dradriver.host import CPUSet
from dradriver.nri import NriStatus


class Admission:
    """Looks at claims before they are prepared. Any thread may ask."""

    def __init__(
        self, containers: Containers, shared: SharedCPUs, pools: Pools, status: Callable[[], NriStatus]
    ) -> None:
        """`status` says how it stands with the container runtime."""
        self._containers = containers
        self._shared = shared
        self._pools = pools
        self._status = status
        self._guard = threading.Lock()
        # At least what claims hold: all of them pass here, and none is taken off before it must be.
        self._bound: CPUSet | None = None

    def check(self, record: Record) -> None:
        """Refuse a claim that the runtime cannot be asked for, for now with TransientError, or PlanError.

        Claims that concern no container, but only the host, pass.
        """
        waiting = next((step for step in record.steps if step.phase is not Phase.PREPARE), None)
        if waiting is None:
            return
        if record.sandbox is not None and not record.sandbox.pods:
            raise PlanError(
                f"the pod must be known to {waiting.text}: reserve the claim for a pod by name (status.reservedFor)"
            )
        status = self._status()
        if status.trouble:
            text = f"the container runtime must be asked to {waiting.text}, and cannot be: {status.trouble}"
            raise TransientError(text) if status.passing else PlanError(text)

    def reserve(self, record: Record) -> None:
        """Refuse a new claim that would leave no CPU to containers without a claim, with PlanError.

        To be called while no other claim can be journalled. Raises JournalError.
        """
        cpus = container_claim(record, self._pools).cpus
        if not cpus:
            return
        with self._guard:
            if self._bound is None or not self._leaves_some(self._bound | cpus):
                self._bound = self._containers.held()
                if not self._leaves_some(self._bound | cpus):
                    raise PlanError(NONE_LEFT)
            self._bound |= cpus

    def _leaves_some(self, held: CPUSet) -> bool:
        return bool(self._shared.left(held).cpus) or not self._shared.online


class AdmissionWithoutRuntime:
    """Looks at claims where no container runtime is meant: nobody would ever tell of a pod's sandbox."""

    def check(self, record: Record) -> None:
        """Refuse a claim that goes into the sandbox of a pod, with PlanError."""
        waiting = next((step for step in record.steps if step.phase is Phase.SANDBOX), None)
        if waiting:
            raise PlanError(
                f"the container runtime must be asked to {waiting.text}, and cannot be: this daemon joins none, since "
                "it keeps everything below one directory (--dir) or has a fake node; nri.enabled: true joins one"
            )

    def reserve(self, record: Record) -> None:
        """Admit it."""
