"""The engine: claims prepared and unprepared, wholly or not at all.

For each claim: plan and reserve in one transaction, apply the steps one by one with their outcome journalled, write
the CDI file, answer. Whatever fails is undone in reverse order. Claims of one call run in parallel; calls for one
claim run one after the other, and a repeat gets the first one's answer.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

from dradriver.backend import BackendError
from dradriver.claims import Claim, ClaimError, ClaimNotFoundError, ClaimSource, read_claim
from dradriver.engine.cdifiles import CDIFiles, answer
from dradriver.engine.journal import Journal, JournalError
from dradriver.engine.lanes import HungError
from dradriver.engine.ledger import HeldError, take
from dradriver.engine.lifecycle import Lifecycle
from dradriver.engine.locks import Locks
from dradriver.engine.namespaces import Namespaces
from dradriver.engine.planning import MissingDeviceError, Part, Planned, plan, record, requests
from dradriver.engine.pools import Pool, Pools
from dradriver.engine.progress import Progress, StepRunner
from dradriver.engine.records import Record, plan_prefix
from dradriver.engine.recovery import Recovery, Unsettled
from dradriver.engine.refresh import Refresher
from dradriver.engine.retry import retried
from dradriver.engine.sandboxes import Sandboxes
from dradriver.model import ClaimRef, PreparedDevice, shown
from dradriver.model.names import check_label, check_subdomain, check_uid
from dradriver_cdi import CDIError

log = logging.getLogger(__name__)

T = TypeVar("T")

PARALLEL_CLAIMS = 8

ROLL_BACK_SECONDS = 10.0
"""How long a failed claim's way back may take, beyond the call's deadline if it must be."""

COMPARE_SECONDS = 2.0
"""How long a repeat waits for the claim, which it can do without."""

EXPECTED = (
    BackendError,
    CDIError,
    ClaimError,
    ClaimNotFoundError,
    HeldError,
    JournalError,
    OSError,
)
"""Failures whose own text tells the reader of a pod's event what is wrong."""


class Admission(Protocol):
    """Has a say in what is prepared. Quick, and for any thread."""

    def check(self, record: Record) -> None:
        """Refuse a claim, new or prepared, whose containers cannot be given now what they are promised.

        Raises BackendError; TransientError where that may pass.
        """

    def reserve(self, record: Record) -> None:
        """Refuse a new claim for what it takes from others. No other is journalled meanwhile. Raises BackendError."""


class _Open:
    """Admits everything."""

    def check(self, record: Record) -> None:
        """Admit it."""

    def reserve(self, record: Record) -> None:
        """Admit it."""


class Engine:
    """Prepares and unprepares the claims of this node's drivers.

    sandboxes   what is to be told of the pods whose network namespaces the claims go to
    refresher   what is to be told of pools that changed
    """

    def __init__(
        self,
        pools: Pools,
        claims: ClaimSource,
        journal: Journal,
        cdi: CDIFiles,
        boot: str,
        *,
        changed: Callable[[Pool], None] = lambda _: None,
        prepared: Callable[[Record, object], None] = lambda *_: None,
        admission: Admission | None = None,
    ) -> None:
        """Take over the journal. Call `recover` before the first claim.

        boot      the kernel's boot id; empty where it is unknown, which undoes nothing
        changed   called when a claim's device was missing, and looking for it found the pool changed
        prepared  called with each claim that was prepared or found so, and with its object as it was read for that,
                  None where it could not be read; before the call is answered, so it must not wait for anything. Also
                  when it is in the sandbox of its pod, and when it is so no more
        admission may refuse claims; none are without it
        """
        self._pools = pools
        self._claims = claims
        self._journal = journal
        self._boot = boot
        self._changed = changed
        self._prepared = prepared
        self._admission = admission or _Open()
        self._closed = threading.Event()
        self._locks = Locks()
        self._unsettled = Unsettled()
        self._namespaces = Namespaces(boot)
        self._runner = StepRunner(pools, journal, self._namespaces, boot)
        self._lifecycle = Lifecycle(
            pools,
            journal,
            cdi,
            runner=self._runner,
            namespaces=self._namespaces,
            boot=boot,
            unsettled=self._unsettled.add,
            moved=lambda record: self._tell(record, None),
        )
        self.sandboxes = Sandboxes(
            journal,
            claims,
            locks=self._locks,
            runner=self._runner,
            lifecycle=self._lifecycle,
            unsettled=self._unsettled.add,
        )
        self.refresher = Refresher(journal, self._locks, self._lifecycle, self._runner, boot)
        self._recovery = Recovery(
            pools,
            journal,
            cdi,
            locks=self._locks,
            runner=self._runner,
            lifecycle=self._lifecycle,
            sandboxes=self.sandboxes,
            unsettled=self._unsettled,
        )

    def recover(self) -> None:
        """Bring every journalled claim to wholly prepared or wholly undone, and the CDI directory along.

        Claims of an earlier boot are undone: after a reboot nothing counts as prepared. Where hardware cannot be read
        yet, the claim waits for `run`. Raises JournalError.
        """
        self._recovery.recover(self._boot)

    def run(self, stop: threading.Event) -> None:
        """Settle what could not be settled before, with back-off, until `stop`."""
        self._recovery.run(stop)

    def prepare(
        self, driver: str, claims: Sequence[ClaimRef], deadline: float
    ) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Prepare the claims; return for each UID its devices, or why it could not be prepared.

        deadline   time.monotonic() seconds
        """
        return self._each(claims, lambda ref: self._prepare(driver, ref, deadline))

    def unprepare(self, driver: str, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str | None]:
        """Undo the claims; return for each UID None, or why it could not be undone. Unknown ones are undone."""
        return self._each(claims, lambda ref: self._unprepare(driver, ref, deadline))

    def devices_in_use(self, driver: str) -> frozenset[tuple[str, str]]:
        """Return the (pool, device) of every live claim of the driver. Raises JournalError."""
        return self._journal.devices(driver)

    def claims(self) -> Mapping[str, int]:
        """Return the number of claims of each driver that has any. Raises JournalError."""
        return self._journal.counts()

    def close(self) -> None:
        """Refuse new work, end the retries, and tell steps that run to come to their end."""
        self._closed.set()
        self._lifecycle.close()
        self._namespaces.close()

    def _each(self, claims: Sequence[ClaimRef], work: Callable[[ClaimRef], T]) -> dict[str, T | str]:
        def guarded(ref: ClaimRef) -> T | str:
            try:
                return work(ref)
            except EXPECTED as error:
                return str(error) or type(error).__name__
            except Exception as error:
                log.exception("claim %s: unexpected failure", ref)
                return f"internal error ({type(error).__name__}), see the log of dradriver"

        if len(claims) <= 1:
            return {ref.uid: guarded(ref) for ref in claims}
        # Threads of this call's own: a backend that hangs holds up no call for others.
        with ThreadPoolExecutor(min(len(claims), PARALLEL_CLAIMS), thread_name_prefix="claim") as workers:
            answers = workers.map(guarded, claims)
            return {ref.uid: given for ref, given in zip(claims, answers, strict=True)}

    @contextmanager
    def _at_work(self, driver: str, ref: ClaimRef, deadline: float) -> Iterator[Record | None]:
        """Hold the claim's lock; give what the journal has of it."""
        if self._closed.is_set():
            raise BackendError("dradriver is stopping on this node")
        key = (driver, ref.uid)
        with self._locks.held(key, deadline):
            self._runner.refuse_hung(key)
            yield self._journal.get(*key)

    def _prepare(self, driver: str, ref: ClaimRef, deadline: float) -> tuple[PreparedDevice, ...]:
        _check_ref(ref)
        with self._at_work(driver, ref, deadline) as known:
            if known and known.ref != ref:
                raise ClaimError(f"uid {ref.uid} was prepared for another claim, {known.ref}")
            settled = (
                self._lifecycle.settle(Progress(known), deadline, self.sandboxes.is_gone) if known else None
            )
            obj, claim = self._read_again(ref, driver, deadline) if settled else (None, None)
            if settled and self._is_allocated_anew(settled, claim):
                log.warning("claim %s of %s was allocated anew: undone", ref, driver)
                self._lifecycle.undo(Progress(settled), deadline)
                settled = None
            if settled:
                made: Record | None = self._repeat(settled, claim, deadline)
            else:
                if claim is None:
                    obj = self._read(ref, deadline)
                    claim = read_claim(obj, ref, driver)
                made = self._begin(driver, claim, deadline)
        if made is None:
            return ()
        given = answer(made)
        self._tell(made, obj)
        return given

    def _repeat(self, settled: Record, claim: Claim | None, deadline: float) -> Record:
        if settled.sandbox and claim is not None:
            progress = Progress(settled)
            self._lifecycle.reserve(progress, claim.pods)
            settled = progress.record
        retried(lambda: self._admission.check(settled), deadline, self._closed)
        return self._lifecycle.repeat(settled)

    def _read(self, ref: ClaimRef, deadline: float) -> object:
        """Return the claim's object, asking again while that may help."""
        return retried(lambda: self._claims.get(ref, deadline), deadline, self._closed)

    def _read_again(self, ref: ClaimRef, driver: str, deadline: float) -> tuple[object, Claim | None]:
        """Return the object of a prepared claim and what it says; None for either that cannot be had now."""
        obj: object = None
        try:
            obj = self._claims.get(ref, min(deadline, time.monotonic() + COMPARE_SECONDS))
            return obj, read_claim(obj, ref, driver)
        except (BackendError, ClaimError, ClaimNotFoundError, OSError) as error:
            log.warning("claim %s cannot be compared with its preparation: %s", ref, shown(error, 500))
            return obj, None

    @staticmethod
    def _is_allocated_anew(settled: Record, claim: Claim | None) -> bool:
        """Whether the claim now names other devices than those it is prepared with.

        That is so where it lost its last user and its allocation without an Unprepare (a force-deleted pod). A claim
        that cannot be read now counts as unchanged: a prepared pod does not depend on the API server.
        """
        if claim is None:
            return False
        mine = [result for result in claim.results if result.driver == settled.driver]
        return mine != [device.allocated for device in settled.devices]

    def _tell(self, made: Record, obj: object) -> None:
        try:
            self._prepared(made, obj)
        except Exception:
            log.exception("claim %s of %s is prepared, and not passed on", made.ref, made.driver)

    def _unprepare(self, driver: str, ref: ClaimRef, deadline: float) -> None:
        try:
            check_uid(ref.uid)
        except ValueError:
            return  # such a claim was never prepared
        with self._at_work(driver, ref, deadline) as known:
            if known:
                self._lifecycle.undo(Progress(known), deadline)
                log.info("claim %s of %s unprepared", known.ref, driver)

    def _begin(self, driver: str, claim: Claim, deadline: float) -> Record | None:
        """Prepare a claim that is not known; return None where it has no device of this driver."""
        parts = self._requests(claim, driver, deadline)
        if not parts:
            return None
        if time.monotonic() >= deadline:
            raise TimeoutError("the time of the call was over before anything was done")
        progress, planned = retried(lambda: self._reserve(parts, claim, driver), deadline, self._closed)
        try:
            self._lifecycle.execute(progress, planned, deadline)
        except HungError:
            # The call may still be changing things: the way back waits for its end.
            self._unsettled.add(progress.key)
            raise
        except Exception:
            self._lifecycle.roll_back(progress, time.monotonic() + ROLL_BACK_SECONDS)
            raise
        log.info("claim %s of %s prepared", claim.ref, driver)
        return progress.record

    def _requests(self, claim: Claim, driver: str, deadline: float) -> tuple[Part, ...]:
        """Return the claim's requests; look once at the hardware of each pool that misses a device."""
        asked = time.monotonic()
        looked: set[str] = set()
        while True:
            try:
                return requests(claim, driver, self._pools)
            except MissingDeviceError as missing:
                if missing.pool.name in looked:
                    raise
                looked.add(missing.pool.name)
                if missing.pool.refresh(deadline, since=asked):
                    self._changed(missing.pool)

    def _reserve(self, parts: tuple[Part, ...], claim: Claim, driver: str) -> tuple[Progress, Planned]:
        """Plan and journal in one transaction, so that no other claim can take the same meanwhile."""
        with self._journal.transaction():
            kinds = [part.pool.backend.kind for part in parts]
            planned = plan(parts, {kind: self._journal.held(plan_prefix(kind)) for kind in kinds})
            holds = take(planned.draws, self._journal.taken, self._journal.holders)
            made = record(planned, claim, driver, self._boot, holds)
            self._admission.check(made)
            self._admission.reserve(made)
            self._journal.insert(made)
        return Progress(made), planned


def _check_ref(ref: ClaimRef) -> None:
    try:
        check_uid(ref.uid)
        check_label(ref.namespace, "namespace of the claim")
        check_subdomain(ref.name, "name of the claim")
    except ValueError as error:
        raise ClaimError(str(error)) from None
