"""Recovery: after a crash, a reboot or a failure, every claim is brought to wholly prepared or wholly undone."""

import logging
import threading
import time
from collections.abc import Iterable

from dradriver.backend import BackendError, TransientError
from dradriver.backoff import delays
from dradriver.engine.cdifiles import CDIFiles
from dradriver.engine.check import check_record
from dradriver.engine.journal import Journal, JournalError
from dradriver.engine.lanes import HungError
from dradriver.engine.lifecycle import Lifecycle
from dradriver.engine.locks import Key, Locks
from dradriver.engine.pools import Pools
from dradriver.engine.progress import Progress, StepRunner
from dradriver.engine.recall import recall
from dradriver.engine.sandboxes import Sandboxes
from dradriver.model import shown
from dradriver_cdi import CDIError

log = logging.getLogger(__name__)

SETTLE_SECONDS = 10.0
"""How long one claim's hardware may take to be looked at, or undone, before the next claim's turn."""


EXPECTED = (BackendError, CDIError, JournalError, OSError)
"""Failures that say all there is to say."""


class Unsettled:
    """The claims that wait for another try."""

    def __init__(self) -> None:
        self._keys: set[Key] = set()
        self._guard = threading.Lock()
        self.some = threading.Event()

    def add(self, key: Key) -> None:
        """Let a claim wait."""
        with self._guard:
            self._keys.add(key)
            self.some.set()

    def take(self) -> frozenset[Key]:
        """Return the claims that wait, and let none wait."""
        with self._guard:
            keys = frozenset(self._keys)
            self._keys.clear()
            self.some.clear()
            return keys


class Recovery:
    """Settles the claims of the journal: all of them at the start, later those that could not be."""

    def __init__(
        self,
        pools: Pools,
        journal: Journal,
        cdi: CDIFiles,
        *,
        locks: Locks,
        runner: StepRunner,
        lifecycle: Lifecycle,
        sandboxes: Sandboxes,
        unsettled: Unsettled,
    ) -> None:
        self._pools = pools
        self._journal = journal
        self._cdi = cdi
        self._locks = locks
        self._runner = runner
        self._lifecycle = lifecycle
        self._sandboxes = sandboxes
        self._unsettled = unsettled

    def recover(self, boot: str) -> None:
        """Settle every journalled claim, and bring the CDI directory along, before the first call.

        Where hardware cannot be read yet, the claim waits for `run`. Raises JournalError.
        """
        drivers = self._pools.drivers
        with self._journal.transaction():
            self._take_over()
            self._journal.set_fact("boot", boot)
        # Pools may have been probed before this process knew what is in pods, and is not seen on the host therefore.
        for pool in recall(self._pools, self._journal.records(), boot):
            pool.refresh(time.monotonic() + SETTLE_SECONDS)
        self._settle((driver, uid) for driver, uid, *_ in self._journal.states())
        kept = self._journal.records()
        try:
            for driver in drivers:
                used = {
                    device.backend
                    for record in kept
                    for device in record.devices
                    if record.driver == driver and device.base
                }
                self._cdi.trim_base(driver, self._pools.of_driver(driver), used)
            self._cdi.reconcile(drivers, kept)
        except (CDIError, OSError) as error:
            # A claim that needs the directory says so itself; those that are prepared can still be undone.
            log.error("the CDI directory cannot be brought up to date: %s", error)

    def _take_over(self) -> None:
        """Journal the claims that only their CDI files know of.

        A claim is journalled before it has a file and forgotten after that is gone: the journal is new, or an old copy.
        """
        try:
            known = {(driver, uid) for driver, uid, *_ in self._journal.states()}
            records = list(self._cdi.records(self._pools.drivers, known))
        except OSError as error:
            if self._journal.fact("boot") is None:
                raise  # nothing at all would be known of what is prepared
            log.error("the CDI directory cannot be read: %s", error)
            return
        for found in records:
            try:
                check_record(found, self._pools, self._journal)
            except ValueError as error:
                log.error(
                    "the CDI file of claim %s of %s is not believed: %s", found.ref, found.driver, error
                )
                continue
            log.warning("claim %s of %s is taken over from its CDI file", found.ref, found.driver)
            self._journal.insert(found)

    def _settle(self, keys: Iterable[Key]) -> None:
        """Settle claims; those that cannot be settled now wait."""
        silent: set[str] = set()
        for key in keys:
            try:
                self._settle_one(key, silent)
            except Exception as error:
                self._unsettled.add(key)
                if isinstance(error, EXPECTED):
                    log.warning("claim %s of %s waits: %s", key[1], key[0], shown(error, 500))
                else:
                    log.exception("claim %s of %s waits", key[1], key[0])

    def _settle_one(self, key: Key, silent: set[str]) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        with self._locks.held(key, deadline):
            self._runner.refuse_hung(key)
            known = self._journal.get(*key)
            if known is None:
                return
            kinds = {step.backend for _, step in known.host_steps}
            if kinds & silent:
                raise TimeoutError(
                    f"backend {', '.join(sorted(kinds & silent))} did not answer for another claim"
                )
            try:
                settled = self._lifecycle.settle(Progress(known), deadline, self._sandboxes.is_gone)
                if settled:
                    self._lifecycle.restore(settled)
                    self._sandboxes.mend(settled, deadline)
            except (HungError, TransientError):
                silent |= kinds
                raise

    def run(self, stop: threading.Event) -> None:
        """Settle what could not be settled before, with back-off, until `stop`."""
        waits = delays(0.5, 60.0)
        while not stop.is_set():
            if not self._unsettled.some.wait(1.0):
                waits = delays(0.5, 60.0)
            elif not stop.wait(next(waits)):
                self._settle(self._unsettled.take())
