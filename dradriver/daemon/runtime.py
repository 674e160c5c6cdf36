"""The container runtime, as the active daemon works with it."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dradriver.claims import ClaimSource
from dradriver.config import Runtime
from dradriver.containers import Admission, Containers, Reservations, SharedCPUs
from dradriver.engine import Engine, Pools, Record, view_journal
from dradriver.host import Host
from dradriver.nri import OFF, NriPlugin, NriStatus


class RuntimeSide:
    """What the daemon has for the containers of its claims. Made once the journal is open.

    shared       the CPUs that claims leave
    containers   what answers the runtime
    admission    what the engine is to ask before it prepares a claim
    """

    def __init__(
        self, settings: Runtime, journal: Path, pools: Pools, host: Host, claims: ClaimSource
    ) -> None:
        """Open a view of the journal; nothing is connected yet. Raises JournalError."""
        self._view = view_journal(journal)
        self.shared = SharedCPUs(host, pools.all)
        self._reservations = Reservations(claims)
        self.containers = Containers(self._view, pools, self.shared, self._reservations)
        self._plugin: NriPlugin | None = None
        if settings.join:
            self._plugin = NriPlugin(self.containers, socket=settings.socket, index=settings.index)
        self.admission = Admission(self.containers, self.shared, pools, lambda: self.status)

    def attend(self, engine: Engine) -> None:
        """Have the engine told of pods; to be called before the loop runs."""
        self.containers.attend(engine.sandboxes)

    @property
    def status(self) -> NriStatus:
        """How it stands with the runtime."""
        return self._plugin.status if self._plugin else OFF

    def prepared(self, record: Record, claim: object) -> None:
        """Take note of a prepared claim, and of its object as it was read. Quick."""
        self._reservations.prepared(record, claim)

    def loops(self) -> Sequence[tuple[str, Callable[[threading.Event], None]]]:
        """Return the loop that keeps the runtime joined, if it is to be."""
        return [("nri", self._plugin.run)] if self._plugin else []

    def close(self) -> None:
        """Let go of the journal, after the loop has ended."""
        self._view.close()


def runtime_side(
    settings: Runtime, journal: Path, pools: Pools, host: Host, claims: ClaimSource
) -> RuntimeSide | None:
    """Return the daemon's side of the runtime, None where no runtime is meant. Raises JournalError."""
    if not settings.join and not settings.needed:
        return None
    return RuntimeSide(settings, journal, pools, host, claims)
