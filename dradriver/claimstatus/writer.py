"""Writing `status.devices` of claims, after their Prepare was answered and until the server has it.

One server-side apply for each claim, with the devices of all our drivers: the kubelet calls them one after the other,
so the others are waited for, and the union of what the journal has is sent. What the server was told is kept in the
journal as a digest: after a restart, nothing that is there is asked for or written.
"""

import logging
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dradriver.backoff import delays
from dradriver.claimstatus.devices import device_statuses, digest, is_told
from dradriver.clock import SYSTEM, Clock
from dradriver.engine import Journal, JournalError, Record, State
from dradriver.kube import Client, KubeError, StatusError, claim_path
from dradriver.kube.limits import spread
from dradriver.model import ClaimRef, shown

log = logging.getLogger(__name__)

MANAGER = "dradriver"
"""The field manager: one for all drivers of the daemon, since what it leaves out of an apply is removed."""

COLLECT_SECONDS = 0.2
"""How long a claim waits at least: the answer to the kubelet is on its way meanwhile."""

PATIENCE_SECONDS = 2.0
"""How long the other drivers of a claim are waited for, and the sandbox of its pod: that spares a write in between."""

REQUEST_SECONDS = 10.0
PACE_SECONDS = 0.1
"""Between two claims of many: the requests that a Prepare waits for are counted among the same so many a second."""

FIRST_WAIT, LONGEST_WAIT = 0.5, 5.0
FORBIDDEN_WAIT = 30.0
"""Seconds more where the server does not let us write: a person has to change that."""

MAX_WAITING = 4096
MAX_FAILURES = 3
"""Claims in a row that may fail before the server is left alone for a while."""

MAX_REFUSALS = 5
"""How often a claim is sent that the server says is wrong: now and then a webhook or a proxy says so in error."""

IDLE_SECONDS = 0.5

Key = tuple[str, str]
"""Driver and claim UID."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A claim to be written.

    since      time of the clock at which it began to wait
    seen       its object as it was read last, None where it was not read
    expected   the drivers that it has devices of, as far as is known
    due        time of the clock before which it is not tried again
    attempts   how often the server said no to it
    refusals   how often of these for what it says
    trouble    what the server said last; empty where it is not to be told yet
    """

    ref: ClaimRef
    since: float
    seen: "_Seen | None" = None
    expected: frozenset[str] = frozenset()
    due: float = 0.0
    attempts: int = 0
    refusals: int = 0
    trouble: str = ""

    def anew(self, seen: "_Seen | None", expected: frozenset[str]) -> "_Waiting":
        """Return the claim as it comes once more, with its object as it was read for that, if it was."""
        return replace(self, seen=seen or self.seen, expected=expected or self.expected)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What matters of a claim object: its resource version, 0 where it has none, and what it says of devices."""

    version: int
    status: Mapping[str, Any]


class ClaimStatusWriter:
    """Writes the status of prepared claims. `prepared` may be called from any thread; `run` is the one that writes."""

    def __init__(
        self, client: Client, journal: Journal, drivers: Collection[str], *, clock: Clock = SYSTEM
    ) -> None:
        self._client = client
        self._journal = journal
        self._drivers = tuple(drivers)
        self._clock = clock
        self._guard = threading.Lock()  # of the three below
        self._waiting: dict[str, _Waiting] = {}
        self._taken = 0
        self._overflown = False
        self._some = threading.Event()
        self._applied: dict[str, int] = {}
        self._trouble = ""

    @property
    def waiting(self) -> int:
        """How many claims wait for their status to be written, as far as they are counted."""
        with self._guard:
            return len(self._waiting) + self._taken

    @property
    def trouble(self) -> str:
        """Why claims that wait cannot be written now; empty while they can."""
        return self._trouble

    def prepared(self, record: Record, claim: object) -> None:
        """Let the claim be written soon. `claim` is its object as it was read for this Prepare, None where it was not.

        A claim that waits already waits once. Where too many do, all of the journal are looked at later.
        """
        self._add(record.ref, _seen(claim), frozenset(_drivers(claim)).intersection(self._drivers))

    def run(self, stop: threading.Event) -> None:
        """Write what waits, and first what an earlier run left unwritten, until `stop`."""
        self._look_through()
        waits = delays(FIRST_WAIT, LONGEST_WAIT)
        while not stop.is_set():
            if not self._some.wait(IDLE_SECONDS) and not self._is_due():
                continue
            if self._clock.wait(stop, COLLECT_SECONDS):
                return
            trouble = self._write_all(stop)
            if trouble is None:
                waits = delays(FIRST_WAIT, LONGEST_WAIT)
            else:
                self._clock.wait(stop, next(waits) + extra_wait(trouble))

    def _is_due(self) -> bool:
        """Whether a claim that was put off is to be tried again."""
        now = self._clock.now()
        with self._guard:
            return any(waiting.due <= now for waiting in self._waiting.values())

    def _add(self, ref: ClaimRef, seen: _Seen | None = None, expected: frozenset[str] = frozenset()) -> None:
        with self._guard:
            earlier = self._waiting.get(ref.uid)
            if earlier or len(self._waiting) < MAX_WAITING:
                waiting = earlier or _Waiting(ref, self._clock.now())
                self._waiting[ref.uid] = waiting.anew(seen, expected)
            else:
                self._overflown = True
            self._some.set()

    def _put_back(self, waiting: _Waiting) -> None:
        """Let a claim wait again; where it came anew meanwhile, as it was read then."""
        uid = waiting.ref.uid
        with self._guard:
            anew = self._waiting.get(uid)
            self._waiting[uid] = waiting.anew(anew.seen, anew.expected) if anew else waiting
            if waiting.due <= self._clock.now():
                self._some.set()

    def _put_off(self, waiting: _Waiting, error: StatusError) -> None:
        """Let a claim wait until it is worth another attempt; the others do not wait for it."""
        attempts = waiting.attempts + 1
        back_off = min(FIRST_WAIT * 2 ** min(attempts, 10), LONGEST_WAIT)
        due = self._clock.now() + spread(back_off) + extra_wait(error)
        if may_pass(error):
            self._put_back(replace(waiting, due=due, attempts=attempts, trouble=str(error)))
        else:
            self._put_back(replace(waiting, due=due, attempts=attempts, refusals=waiting.refusals + 1))

    def _take(self) -> list[_Waiting]:
        """Take out the claims that are due."""
        now = self._clock.now()
        with self._guard:
            taken = [waiting for waiting in self._waiting.values() if waiting.due <= now]
            for waiting in taken:
                del self._waiting[waiting.ref.uid]
            self._taken = len(taken)
            self._some.clear()
            return taken

    def _look_through(self) -> None:
        """Let every prepared claim wait whose status the server was not told as it is now. Raises JournalError."""
        told = self._journal.told()
        for record in self._journal.records():
            if record.state is State.PREPARED and told.get(_key(record)) != _digest(record):
                self._add(record.ref)

    def _write_all(self, stop: threading.Event) -> Exception | None:
        """Write all claims that are due; return what stands in the way of all of them, not of single ones."""
        trouble: Exception | None = None
        told: dict[Key, str] = {}
        failures = 0
        pending = deque(self._take())
        try:
            known = self._journal.told()
            alive = {uid for _, uid in known}
            self._applied = {uid: version for uid, version in self._applied.items() if uid in alive}
            while pending and failures < MAX_FAILURES and not stop.is_set():
                try:
                    told |= self._write(pending[0], known)
                    failures = 0
                except StatusError as error:
                    failures += may_pass(error)
                    trouble = error if failures == MAX_FAILURES else None
                    self._put_off(pending[0], error)
                except KubeError as error:
                    trouble = error
                    failures = MAX_FAILURES
                    self._put_back(pending[0])
                pending.popleft()
                if pending:
                    self._clock.wait(stop, PACE_SECONDS)
            if told:
                self._journal.set_told(told)
            self._catch_up()
        except JournalError as error:
            trouble = error
        for waiting in pending:
            self._put_back(waiting)
        with self._guard:
            self._taken = 0
        if not stop.is_set():
            self._note(trouble)
        return trouble

    def _catch_up(self) -> None:
        """Look for claims that found no room, once there is some and nothing is left that could be written now."""
        now = self._clock.now()
        with self._guard:
            put_off = sum(waiting.due > now for waiting in self._waiting.values())
            due = self._overflown and len(self._waiting) == put_off < MAX_WAITING
            self._overflown = self._overflown and not due
        if due:
            self._look_through()

    def _write(self, waiting: _Waiting, known: Mapping[Key, str]) -> dict[Key, str]:
        """Write one claim, if that is needed; return what its parts were told, nothing where nothing was said yet.

        Raises KubeError where trying again may help, or has not been tried often enough to say that it does not.
        """
        ref = waiting.ref
        found = (self._journal.get(driver, ref.uid) for driver in self._drivers)
        records = [record for record in found if record and record.state is State.PREPARED]
        is_early = self._clock.now() - waiting.since < PATIENCE_SECONDS
        if records and is_early and not self._is_complete(waiting, records):
            self._put_back(waiting)
            return {}
        digests = {_key(record): _digest(record) for record in records}
        statuses = device_statuses(records)
        if not statuses.entries or self._is_told(waiting, statuses.entries, digests, known):
            return digests
        try:
            deadline = self._clock.now() + REQUEST_SECONDS
            stored = apply_devices(self._client, ref, statuses.entries, MANAGER, deadline)
            self._applied[ref.uid] = _version(stored)
        except StatusError as error:
            if may_pass(error) or not (is_over(error) or waiting.refusals + 1 >= MAX_REFUSALS):
                raise
            level = logging.DEBUG if is_over(error) else logging.WARNING
            log.log(level, "status of claim %s is not written: %s", ref, shown(str(error), 500)[1:-1])
        for fault in statuses.faults:
            log.warning("status of claim %s: %s", ref, fault)
        return digests

    @staticmethod
    def _is_complete(waiting: _Waiting, records: Collection[Record]) -> bool:
        """Whether no more is about to happen to a claim: all of its drivers prepared it, and its pod has it."""
        drivers = {record.driver for record in records}
        return waiting.expected <= drivers and all(record.is_open for record in records)

    def _is_told(
        self,
        waiting: _Waiting,
        entries: Collection[Mapping[str, Any]],
        digests: Mapping[Key, str],
        known: Mapping[Key, str],
    ) -> bool:
        """Whether the server has it: by the object as it was read, unless that is older than what we wrote."""
        seen = waiting.seen
        if seen and seen.version >= self._applied.get(waiting.ref.uid, 0):
            return is_told(entries, seen.status)
        return all(known.get(key) == value for key, value in digests.items())

    def _note(self, failure: Exception | None) -> None:
        """Tell what stands in the way of all claims or of one; nothing as long as it is the same way."""
        with self._guard:
            put_off = [waiting.trouble for waiting in self._waiting.values() if waiting.trouble]
        trouble = str(failure) if failure else next(iter(put_off), "")
        if trouble and not self._trouble:
            log.warning("the status of claims cannot be written, and is tried again: %s", trouble)
        elif self._trouble and not trouble:
            log.info("the status of claims is written again")
        self._trouble = f"the status of claims cannot be written: {trouble}" if trouble else ""


def _seen(claim: object) -> _Seen | None:
    match claim:
        case {"status": {"devices": devices}}:
            return _Seen(_version(claim), {"status": {"devices": devices}})
        case _:
            return None if claim is None else _Seen(_version(claim), {})


def _version(obj: object) -> int:
    """Return the resource version as a number: one is newer than another where it is greater (KEP-5504)."""
    match obj:
        case {"metadata": {"resourceVersion": str(text)}} if text.isascii() and text.isdecimal():
            return int(text[:20])
    return 0


def _drivers(claim: object) -> Iterator[str]:
    """Yield the drivers of the devices that are allocated to a claim."""
    match claim:
        case {"status": {"allocation": {"devices": {"results": list(results)}}}}:
            for result in results:
                match result:
                    case {"driver": str(driver)}:
                        yield driver


def _key(record: Record) -> Key:
    return record.driver, record.ref.uid


def _digest(record: Record) -> str:
    return digest(device_statuses([record]).entries)


def apply_devices(
    client: Client, ref: ClaimRef, entries: Iterable[Mapping[str, Any]], manager: str, deadline: float
) -> Any:
    """Apply these entries of `status.devices`, and only these, as that field manager; return the answer.

    deadline   time of the client's clock

    Raises KubeError.
    """
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        # With the UID, so that a claim which took the place of this one is not touched.
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        "status": {"devices": list(entries)},
    }
    path = claim_path(ref.namespace, ref.name, "status")
    return client.apply(path, body, manager=manager, deadline=deadline)


def may_pass(error: StatusError) -> bool:
    """Whether the same request may succeed later: an overloaded server, a lost race, rights that are still to come."""
    if error.code == 409:
        return not is_over(error)
    return error.code in {401, 403, 408, 429} or error.code >= 500


def is_over(error: StatusError) -> bool:
    """Whether there is nothing left to write to: the claim is gone, was replaced, or lost its allocation."""
    match error.code:
        case 404:
            return True
        case 409:
            return "uid" in error.message.lower()
        case 422:
            return bool(error.causes) and all(
                cause.field == "metadata.uid" or "must be an allocated device" in cause.message
                for cause in error.causes
            )
    return False


def extra_wait(trouble: Exception) -> float:
    """Return the seconds to wait beyond the back-off."""
    if not isinstance(trouble, StatusError):
        return 0.0
    if trouble.code in {401, 403}:
        return FORBIDDEN_WAIT
    return spread(trouble.retry_after or 0.0)
