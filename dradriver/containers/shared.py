"""The CPUs of containers that have none of their own: what claims and the system leave."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dradriver.clock import SYSTEM, Clock
from dradriver.engine import Pool
from dradriver.host import CPUSet, Host
from dradriver.host.cpu import read_cpu_lists
from dradriver.host.notes import Notes

FRESH_SECONDS: Final = 1.0
"""How long the CPUs of the host are taken to be those that were read."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Where containers without CPUs of their own run.

    cpus      never to be given to a container while it is empty: a runtime takes an empty set for no wish at all
    limited   whether that is less than where they run unasked, so that each must be told
    text      the CPUs as a kernel list
    """

    cpus: CPUSet
    limited: bool
    text: str


class SharedCPUs:
    """Reads the host's CPUs, and says what is left of them. Any thread may ask."""

    def __init__(self, host: Host, pools: Iterable[Pool], clock: Clock = SYSTEM) -> None:
        """Look at the backends for the CPUs that are reserved."""
        self._host = host
        self._clock = clock
        reserved = [pool.backend.reserved_cpus for pool in pools]
        self._managed = any(cpus is not None for cpus in reserved)
        self._reserved = CPUSet(cpu for cpus in reserved if cpus for cpu in cpus)
        self._guard = threading.Lock()
        self._read: tuple[float, CPUSet, CPUSet] | None = None

    @property
    def managed(self) -> bool:
        """Whether claims get CPUs here at all. Where not, nobody's CPUs are touched."""
        return self._managed

    @property
    def online(self) -> CPUSet:
        """The CPUs that are online; empty where that cannot be read."""
        return self._lists()[0]

    def left(self, held: CPUSet) -> Shared:
        """Return what is left when claims hold `held`.

        Isolated CPUs (boot parameter isolcpus) are left out: the kernel balances no load there. Reserved ones are the
        last resort, where claims have all others: containers without a claim then run beside the system, and not on
        somebody's CPUs.
        """
        online, isolated = self._lists()
        if not online:
            return Shared(CPUSet(), limited=bool(held or self._reserved), text="")
        usual = (online - isolated) or online
        cpus = usual - self._reserved - held
        if not cpus:
            cpus = (usual & self._reserved) - held
        return Shared(cpus, limited=not usual <= cpus, text=str(cpus))

    def _lists(self) -> tuple[CPUSet, CPUSet]:
        now = self._clock.now()
        with self._guard:
            if self._read is None or now - self._read[0] > FRESH_SECONDS:
                lists = read_cpu_lists(self._host, Notes())
                self._read = (now, lists.online, lists.isolated or CPUSet())
            return self._read[1], self._read[2]
