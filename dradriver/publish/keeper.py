"""One pool, published and kept at the API server."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from dradriver.kube import SLICES, StatusError, UnreachableError, slice_path
from dradriver.model import CounterSet, Device, PoolContent
from dradriver.publish.api import PublishResult
from dradriver.publish.culprits import culprits
from dradriver.publish.difference import difference
from dradriver.publish.errors import PublishError, explained
from dradriver.publish.learn import REFUSED, dry_run
from dradriver.publish.link import Link
from dradriver.publish.reconcile import Memory, Plan, Refused, Write, plan
from dradriver.publish.retry import Patience, Retry
from dradriver.publish.stored import Stored
from dradriver.slices import Body, Pool, offenders, same

_MAX_CONFLICTS = 3
"""How often one call begins anew since others changed the same slices meanwhile."""

_MAX_SEARCHES = 16
"""How many refused slices one call looks into."""


class _Outcome(Enum):
    DONE = auto()
    CONFLICT = auto()
    REFUSED = auto()
    LEARNED = auto()


@dataclass(slots=True)
class _Done:
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A device or counter set that the API server does not take, for as long as both are what they were."""

    thing: Device | CounterSet
    reason: str
    edition: int


_Remarks = tuple[object, ...]


class PoolKeeper:
    """Brings the slices of one pool to what they should say, and keeps them so. Not thread-safe."""

    def __init__(self, pool: Pool, link: Link) -> None:
        self.pool = pool
        self._link = link
        self._retry = Retry(link.clock, link.reachable)
        self._patience = Patience(link.clock)
        self._memory = Memory()
        self._refused: dict[tuple[type, str], _Refusal] = {}
        self._content = PoolContent()
        self._published = False
        self._edition = 0
        self._remarks: _Remarks = ()
        self._seen: tuple[int, int] | None = None

    def publish(self, content: PoolContent) -> PublishResult:
        """Make the slices say `content`. Raises OSError."""
        self._content = content
        self._published = False
        self._retry.check()
        result = self._tried()
        self._published = True
        self._edition = self._link.learner.edition
        self._remarks = _remarks_of(result)
        return result

    def restore(self) -> PublishResult:
        """Undo what others did to the slices since; nothing is asked while nothing was heard of. Raises OSError."""
        if not self._published:
            return PublishResult()
        outdated = ((self.pool.driver, self.pool.name),)
        if self._edition != self._link.learner.edition:
            return PublishResult(outdated=outdated)
        cache = self._link.cache
        if self._seen == cache.state and not cache.unsure and not self._retry.failing:
            return PublishResult()
        self._retry.check()
        if self._patience.exhausted:
            raise PublishError(
                f"pool {self.pool.name}: others change its slices again and again: they are restored less often"
            )
        result = self._tried()
        if result.written or result.removed:
            self._patience.restored()
        if self._edition != self._link.learner.edition or self._remarks != _remarks_of(result):
            return PublishResult(result.written, result.removed, outdated=outdated)
        return PublishResult(result.written, result.removed)

    def withdraw(self) -> PublishResult:
        """Delete all slices of the pool. Raises OSError."""
        self._published = False
        self._retry.check()
        removed = []
        try:
            self._link.refresh()
            for stored in self._link.cache.slices(self.pool.name):
                self._link.delete(stored)
                removed.append(stored.name)
        except OSError as error:
            self._retry.failed(error)
            raise
        self._retry.succeeded()
        return PublishResult(removed=tuple(removed))

    def _tried(self) -> PublishResult:
        try:
            result = self._reconcile()
        except OSError as error:
            self._retry.failed(error)
            raise
        self._retry.succeeded()
        return result

    def _reconcile(self) -> PublishResult:
        done = _Done()
        conflicts = searches = 0
        while True:
            self._link.refresh()
            seen = self._link.cache.state
            planned = self._plan()
            outcome = self._carry_out(planned, done)
            if outcome is _Outcome.DONE:
                break
            conflicts += outcome is _Outcome.CONFLICT
            searches += outcome is _Outcome.REFUSED
            if conflicts > _MAX_CONFLICTS:
                raise PublishError("others change the slices at the same time, again and again")
            if searches > _MAX_SEARCHES:
                raise PublishError(
                    "the API server refuses many slices: what it does not take is still searched for"
                )
        self._seen = seen
        return PublishResult(
            tuple(done.written),
            tuple(done.removed),
            planned.specs.left_out,
            planned.specs.reductions,
            (*planned.specs.warnings, *self._altered()),
            offered=planned.specs.offered,
        )

    def _plan(self) -> Plan:
        link, memory = self._link, self._memory
        features = link.learner.get(link.driver)
        slices = link.cache.slices(self.pool.name)
        there = {stored.uid for stored in slices}
        if any(sent.uid not in there for sent in memory.sent.values()):
            # Perhaps collected as garbage, since the Node object that owned them was made anew.
            link.owner.renew()
        planned = plan(
            self.pool,
            self._content,
            features=features,
            slices=slices,
            memory=memory,
            owner=link.owner.get(),
            refused=self._refusals(),
        )
        memory.found(planned, link.owner.get())
        return planned

    def _refusals(self) -> Refused:
        """Return what the API server refused, less what has changed since, or may be taken by another server."""
        if self._refused:
            things, edition = self._things(), self._link.learner.edition
            self._refused = {
                key: one
                for key, one in self._refused.items()
                if one.edition == edition and one.thing == things.get(key)
            }
        return Refused(
            {name: one.reason for (kind, name), one in self._refused.items() if kind is Device},
            {name: one.reason for (kind, name), one in self._refused.items() if kind is CounterSet},
        )

    def _things(self) -> dict[tuple[type, str], Device | CounterSet]:
        # Of things of one name only the first is published.
        things: tuple[Device | CounterSet, ...] = (*self._content.devices, *self._content.counter_sets)
        return {(type(one), one.name): one for one in reversed(things)}

    def _carry_out(self, planned: Plan, done: _Done) -> _Outcome:
        for write in planned.writes:
            outcome = self._write(write, done)
            if outcome is not _Outcome.DONE:
                return outcome
        for stored in planned.deletes:
            self._link.delete(stored)
            done.removed.append(stored.name)
        self._memory.done(planned)
        return _Outcome.DONE

    def _write(self, write: Write, done: _Done) -> _Outcome:
        link = self._link
        try:
            if write.stored is None:
                answer = link.client.create(SLICES, write.body)
            else:
                answer = link.client.replace(slice_path(write.stored.name), write.body)
        except UnreachableError:
            link.cache.doubt()
            raise
        except StatusError as error:
            return self._failed(write, error)
        stored = link.cache.answered(answer)
        done.written.append(stored.name)
        altered = ""
        if not same(write.wanted, stored.spec):
            places = difference(write.wanted, stored.spec)
            altered = f"slice {stored.name} is stored otherwise than it was sent: {places}"
        self._memory.written(write, link.owner.get(), answer, altered)
        if altered and link.learner.answered(write.wanted, stored.spec):
            return _Outcome.LEARNED
        return _Outcome.DONE

    def _failed(self, write: Write, error: StatusError) -> _Outcome:
        link, stored = self._link, write.stored
        if error.code == 409:
            # Of a create: the random part of the name was taken, and another is tried.
            if stored is not None:
                self._look_at(stored)
            return _Outcome.CONFLICT
        if error.code == 404 and stored is not None:
            link.cache.forget(stored)
            return _Outcome.CONFLICT
        if error.code in REFUSED:
            return self._search(write, error)
        if error.code >= 500:
            link.cache.doubt()
        elif error.code != 429:
            # Perhaps for the sake of the owner.
            link.owner.renew()
        raise explained(error, "create" if stored is None else "update", "resourceslices") from error

    def _look_at(self, stored: Stored) -> None:
        cache = self._link.cache
        mark = cache.mark()
        try:
            cache.read_since(mark, self._link.client.get(slice_path(stored.name)))
        except StatusError as error:
            if error.code != 404:
                raise explained(error, "get", "resourceslices") from error
            cache.forget(stored)

    def _search(self, write: Write, error: StatusError) -> _Outcome:
        """Find out what of a slice the API server does not take, and leave it out from now on."""
        link = self._link
        if link.learner.renewed(link.driver):
            return _Outcome.LEARNED
        spec: Body = write.body["spec"]
        found: dict[str, str] | None = offenders(
            spec, ((cause.field, cause.message) for cause in error.causes)
        )
        if not found:
            found = culprits(spec, self._refusal)
        if not found:
            raise PublishError(f"the API server refuses slice {write.number}: {error.message}") from error
        things = self._things()
        kind = Device if "devices" in spec else CounterSet
        for name, reason in found.items():
            self._refused[kind, name] = _Refusal(things[kind, name], reason, link.learner.edition)
        return _Outcome.REFUSED

    def _refusal(self, spec: Body) -> str:
        try:
            dry_run(self._link.client, spec)
        except StatusError as error:
            if error.code in REFUSED:
                return error.message
            raise
        return ""

    def _altered(self) -> Iterable[str]:
        return (sent.altered for _, sent in sorted(self._memory.sent.items()) if sent.altered)


def _remarks_of(result: PublishResult) -> _Remarks:
    return result.left_out, result.reductions, result.warnings
