"""What the containers of prepared claims get from the container runtime, as the journal knows it."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dradriver.backend import BackendError, ContainerAdjustment, ContainerStep, Phase, UnavailableError
from dradriver.engine.cdifiles import marker
from dradriver.engine.journal import JournalView
from dradriver.engine.locks import Key
from dradriver.engine.pools import Pools
from dradriver.engine.records import Record, State, StepRecord, restore_step
from dradriver.host import CPUSet
from dradriver.model import ClaimRef

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """One claim, for its containers.

    adjustments   device number -> what its steps give each container that uses the device
    cpus          all CPUs that its containers get: nobody else's containers run there while the claim is journalled
    unknown       why the adjustments are not known; empty where they are
    sandboxed     whether its containers can be in the sandbox only that the claim is in
    """

    driver: str
    ref: ClaimRef
    state: State
    devices: int
    adjustments: Mapping[int, tuple[ContainerAdjustment, ...]]
    cpus: CPUSet
    unknown: str = ""
    sandboxed: bool = False


def container_claim(record: Record, pools: Pools) -> ContainerClaim:
    """Return what a record's container steps come to."""
    adjustments: dict[int, tuple[ContainerAdjustment, ...]] = {}
    cpus, unknown = CPUSet(), ""
    for stored in record.steps:
        if stored.phase is not Phase.CONTAINER:
            continue
        try:
            step = _container_step(stored, pools)
            adjustment = step.adjustment()
            cpus |= CPUSet.parse(adjustment.cpus)
        except (BackendError, ValueError) as error:
            unknown = str(error)
            continue
        adjustments[step.index] = (*adjustments.get(step.index, ()), adjustment)
    return ContainerClaim(
        record.driver,
        record.ref,
        record.state,
        len(record.devices),
        adjustments,
        cpus,
        unknown,
        sandboxed=record.sandbox is not None,
    )


def _container_step(stored: StepRecord, pools: Pools) -> ContainerStep[object]:
    pool = pools.of_kind(stored.backend)
    if pool is None:
        raise UnavailableError(f"backend {stored.backend} is not configured")
    step = restore_step(pool.backend, stored)
    if not isinstance(step, ContainerStep):
        raise UnavailableError(f"step {stored.type} is not one of containers")
    return step


def combined(adjustments: Iterable[ContainerAdjustment]) -> ContainerAdjustment:
    """Return what a container gets that is due all of these.

    CPUs are added up, and limits of huge pages; of other limits the highest counts. Memory nodes are added up too,
    where those that come without CPUs know better than those that are only the nearest to some CPUs. Raises ValueError
    where two want different things.
    """
    everything = tuple(adjustments)
    bound = [one.mems for one in everything if one.mems and not one.cpus]
    mems = bound or [one.mems for one in everything]
    pages: dict[str, int] = {}
    limits: dict[str, int] = {}
    unified: dict[str, str] = {}
    env: dict[str, str] = {}
    for one in everything:
        for size, limit in one.hugepage_limits.items():
            pages[size] = pages.get(size, 0) + limit
        for kind, limit in one.rlimits.items():
            limits[kind] = max(limits.get(kind, 0), limit)
        _merge(unified, one.unified, "file")
        _merge(env, one.env, "variable")
    return ContainerAdjustment(
        cpus=_union(one.cpus for one in everything),
        mems=_union(mems),
        hugepage_limits=pages,
        unified=unified,
        env=env,
        devices=tuple({node.path: node for one in everything for node in one.devices}.values()),
        rlimits=limits,
    )


def _union(lists: Iterable[str]) -> str:
    found = CPUSet()
    for text in lists:
        found |= CPUSet.parse(text)
    return str(found)


def _merge(into: dict[str, str], more: Mapping[str, str], what: str) -> None:
    for name, value in more.items():
        if into.setdefault(name, value) != value:
            raise ValueError(f"two devices of the container want different things of {what} {name}")


class ContainerClaims:
    """The claims of the journal, for their containers. Not thread-safe.

    What a claim's containers get stands when it is journalled, so a claim is read once.
    """

    def __init__(self, journal: JournalView, pools: Pools) -> None:
        """Read through a view of its own: it sees what is committed, and waits for nobody who writes.

        With the journal that writes nothing would be seen of what that writes.
        """
        self._journal = journal
        self._pools = pools
        self._version: int | None = None
        self._rows: list[tuple[str, str, float, str]] = []
        self._created: dict[Key, float] = {}
        self._claims: dict[Key, ContainerClaim] = {}
        self._markers: dict[str, tuple[Key, int]] = {}
        self._cpus: CPUSet | None = CPUSet()

    def refresh(self) -> set[Key]:
        """Bring everything up to date; return the claims that are new, or gone. Raises JournalError."""
        version = self._journal.version()  # of what is read after it, at least
        if version == self._version:
            return set()
        rows = self._journal.states()
        if rows == self._rows:
            self._version = version
            return set()
        now = {(driver, uid): created for driver, uid, created, _ in rows}
        gone = [key for key, created in self._created.items() if now.get(key) != created]
        for key in gone:
            self._forget(key)
        new = [key for key in now if key not in self._created]
        for key in new:
            self._learn(key, now[key])
        for driver, uid, _, state in rows:
            claim = self._claims.get((driver, uid))
            if claim is not None and claim.state.value != state:
                self._claims[driver, uid] = replace(claim, state=State(state))
        self._rows, self._version = rows, version
        return {*gone, *new}

    def _learn(self, key: Key, created: float) -> None:
        record = self._journal.get(*key)
        if record is None:
            return
        claim = container_claim(record, self._pools)
        if claim.unknown:
            log.error(
                "what the containers of claim %s of %s get is not known: %s",
                claim.ref,
                claim.driver,
                claim.unknown,
            )
        self._created[key] = created
        self._claims[key] = claim
        self._markers.update({marker(*key, index): (key, index) for index in range(claim.devices)})
        if self._cpus is not None:
            self._cpus |= claim.cpus

    def _forget(self, key: Key) -> None:
        del self._created[key]
        claim = self._claims.pop(key)
        for index in range(claim.devices):
            self._markers.pop(marker(*key, index), None)
        self._cpus = None

    def get(self, driver: str, uid: str) -> ContainerClaim | None:
        """Return a claim, None where it is not journalled."""
        return self._claims.get((driver, uid))

    def marked(self, variable: str) -> tuple[ContainerClaim, int] | None:
        """Return the claim, and the number of its device, whose CDI edit sets that variable."""
        found = self._markers.get(variable)
        return (self._claims[found[0]], found[1]) if found else None

    @property
    def cpus(self) -> CPUSet:
        """The CPUs of all claims together."""
        if self._cpus is None:
            self._cpus = CPUSet()
            for claim in self._claims.values():
                self._cpus |= claim.cpus
        return self._cpus
