"""Prepared claims, kept as the hardware is: their CDI files, and what ends by itself.

A container that ends is started again in place, without a Prepare: by then its driver may be another one, with other
libraries and other device numbers, by which it would get nothing, or somebody else's device.
"""

import logging
import threading
import time

from dradriver.backend import BackendError
from dradriver.backoff import delays
from dradriver.claims import ClaimError
from dradriver.engine.journal import Journal, JournalError
from dradriver.engine.lifecycle import Lifecycle
from dradriver.engine.locks import Key, Locks
from dradriver.engine.pools import Pool
from dradriver.engine.progress import Progress, StepRunner
from dradriver.engine.records import State
from dradriver.model import shown
from dradriver_cdi import CDIError

log = logging.getLogger(__name__)

CLAIM_SECONDS = 10.0
"""How long one claim may be under other work before the next one's turn."""

_EXPECTED = (BackendError, CDIError, ClaimError, JournalError, OSError)


class Refresher:
    """Brings a pool's prepared claims up to date after what is seen of its hardware changed."""

    def __init__(
        self, journal: Journal, locks: Locks, lifecycle: Lifecycle, runner: StepRunner, boot: str
    ) -> None:
        self._journal = journal
        self._locks = locks
        self._lifecycle = lifecycle
        self._runner = runner
        self._boot = boot
        self._guard = threading.Lock()
        self._due: set[tuple[str, str]] = set()
        self._some = threading.Event()
        self._told: dict[Key, str] = {}

    def request(self, pool: Pool) -> None:
        """Have the claims with devices of a pool looked at soon."""
        with self._guard:
            self._due.add((pool.driver, pool.backend.kind))
            self._some.set()

    def run(self, stop: threading.Event) -> None:
        """Refresh what is due until `stop`; what fails is tried again with back-off."""
        waits = delays(0.5, 60.0)
        while not stop.is_set():
            if not self._some.wait(0.5):
                continue
            with self._guard:
                due = frozenset(self._due)
                self._due.clear()
                self._some.clear()
            failed = {(driver, kind) for driver, kind in due if not self._refreshed(driver, kind, stop)}
            if not failed:
                waits = delays(0.5, 60.0)
                continue
            stop.wait(next(waits))
            with self._guard:
                self._due |= failed
                self._some.set()

    def _refreshed(self, driver: str, kind: str, stop: threading.Event) -> bool:
        """Refresh the claims of a driver with devices of a backend; return whether all could be."""
        try:
            keys = [
                (driver, uid)
                for of, uid, _, state in self._journal.states()
                if (of, state) == (driver, State.PREPARED.value)
            ]
        except JournalError as error:
            log.warning("the claims of %s are not compared with the hardware: %s", driver, error)
            return False
        done = True
        for key in keys:
            if stop.is_set():
                break
            try:
                self._refresh(key, kind)
            except _EXPECTED as error:
                self._say(key, str(error))
                done = False
            else:
                self._told.pop(key, None)
        self._told = {key: text for key, text in self._told.items() if key[0] != driver or key in keys}
        return done

    def _say(self, key: Key, text: str) -> None:
        """Log why a claim is not refreshed, once."""
        if self._told.get(key) != text:
            log.warning("claim %s of %s is not refreshed: %s", key[1], key[0], shown(text, 500))
        self._told[key] = text

    def _refresh(self, key: Key, kind: str) -> None:
        with self._locks.held(key, time.monotonic() + CLAIM_SECONDS):
            self._runner.refuse_hung(key)
            record = self._journal.get(*key)
            if record is None or record.state is not State.PREPARED or record.predates(self._boot):
                return
            if any(device.backend == kind for device in record.devices):
                progress = Progress(record)
                self._lifecycle.mend(progress, time.monotonic() + CLAIM_SECONDS)
                self._lifecycle.repeat(progress.record)
