"""What the container runtime is answered: CPUs, memory nodes and huge pages for containers of claims, the rest for all.

A claim has its CPUs from Prepare to Unprepare. The containers that are there are moved away from them with the answer
to the next question, and so before the claim's first container is made. Updates of others are part of answers only:
old runtimes come to a standstill over any that nobody asked for.
"""

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dradriver.backend import BackendError, ContainerAdjustment
from dradriver.claims import ClaimError
from dradriver.containers.shared import Shared, SharedCPUs
from dradriver.containers.uses import Allowing, Use, uses
from dradriver.engine import JournalError, JournalView, Pools, Sandbox, Sandboxes, State
from dradriver.engine.containers import ContainerClaim, ContainerClaims, combined
from dradriver.host import CPUSet
from dradriver.model.text import plain, shown
from dradriver.nri import Container, Pod, RefusedError, Update
from dradriver_cdi import CDIError

log = logging.getLogger(__name__)

NONE_LEFT = (
    "claims have all CPUs of this node and containers without a claim none to run on: "
    "set backends.cpu.reserved, or claim fewer"
)

_NOTHING = ContainerAdjustment()


@dataclass(slots=True)
class _Known:
    """A container that runs, or soon will.

    cpus      the kernel list that it has; empty where it was given none
    pending   what must become true before it is certain to have them: a container's creation; empty where it is
    given     what its claims give it, None where that is to be looked up
    """

    pod: str
    uses: tuple[Use, ...]
    cpus: str
    pending: str = ""
    given: ContainerAdjustment | None = None


class Containers:
    """Answers the runtime. Any thread may call it."""

    def __init__(
        self, journal: JournalView, pools: Pools, shared: SharedCPUs, reservations: Allowing
    ) -> None:
        """`journal` is a view of one's own: it does not wait for those who write.

        Nothing else of the journal is asked for an answer: who writes may be waiting for `held`.
        """
        self._journal = journal
        self._claims = ContainerClaims(journal, pools)
        self._drivers = frozenset(pools.drivers)
        self._shared = shared
        self._reservations = reservations
        self._sandboxes: Sandboxes | None = None
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._online = CPUSet()
        self._settled: Shared | None = None
        """What was left when every container was last known to be where it should be."""
        with contextlib.suppress(JournalError):
            # With many claims it takes longer than a runtime likes to wait.
            self._claims.refresh()

    def attend(self, sandboxes: Sandboxes) -> None:
        """Tell of sandboxes from now on; to be called before a runtime is joined."""
        self._sandboxes = sandboxes

    def held(self) -> CPUSet:
        """Return the CPUs that claims hold now. Raises JournalError."""
        with self._lock:
            self._refresh()
            return self._claims.cpus

    def unheard(self) -> None:
        """Take nothing for certain of what containers were told."""
        with self._lock:
            for known in self._known.values():
                known.pending = known.pending or "anything"
            self._settled = None

    def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """Take over all pods and all containers that run, and mend what was done without us."""
        if self._sandboxes:
            with _refusing():
                self._sandboxes.synchronize([_sandbox(pod) for pod in pods])
        by_id = {pod.id: pod for pod in pods}
        with self._lock:
            shared = self._left()
            self._known = {}
            updates = []
            for container in containers:
                if container.running:
                    known = self._learn(by_id.get(container.pod) or Pod(container.pod), container)
                    wanted = self._wanted(known, shared)
                    if not _has(container, wanted):
                        known.cpus = wanted.cpus or known.cpus
                        updates.append(Update(container.id, wanted))
            self._settled = shared
        if updates:
            log.info("NRI: %d of %d containers are put where they belong", len(updates), len(containers))
        return updates

    def run_pod(self, pod: Pod) -> None:
        """Take the pod's claims into its sandbox. Raises RefusedError."""
        if self._sandboxes:
            with _refusing():
                self._sandboxes.run(_sandbox(pod))

    def stop_pod(self, pod: Pod) -> None:
        """Bring its claims back; its containers have been told of."""
        if self._sandboxes:
            with _refusing():
                self._sandboxes.stop(pod.id)

    def remove_pod(self, pod: Pod) -> None:
        """Bring its claims back, and forget its containers, whatever was told of them."""
        self.stop_pod(pod)
        with self._lock:
            for name in [name for name, known in self._known.items() if known.pod == pod.id]:
                del self._known[name]

    def create_container(
        self, pod: Pod, container: Container
    ) -> tuple[ContainerAdjustment, Sequence[Update]]:
        """Give a container what its claims promise, or the rest of the CPUs. Raises RefusedError."""
        with self._lock:
            shared = self._left()
            known = _Known(pod.id, self._uses(pod, container, strict=True), container.cpus)
            self._check_sandbox(pod, known)
            adjustment = self._promised(known)
            if adjustment.cpus:
                self._check_alone(shared)
            elif self._must_be_told(known, shared):
                if not shared.cpus:
                    raise self._none_left()
                adjustment = replace(adjustment, cpus=shared.text)
            known.cpus = adjustment.cpus or known.cpus
            updates = self._moves(shared, f"creation of {container.id}")
            self._known[container.id] = known
            return adjustment, updates

    def created_container(self, pod: Pod, container: Container) -> None:
        """Take for certain what came with the container."""
        done = f"creation of {container.id}"
        with self._lock:
            for known in self._known.values():
                if known.pending == done:
                    known.pending = ""

    def update_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Keep a container where it is, whatever else of its resources is changed."""
        with self._lock:
            shared = self._left()
            known = self._known.get(container.id) or self._learn(pod, container)
            wanted = self._wanted(known, shared)
            known.cpus, known.pending = wanted.cpus or known.cpus, ""
            mine = [] if wanted == _NOTHING else [Update(container.id, wanted, required=True)]
            return [*mine, *self._moves(shared)]

    def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Forget a container; its claims keep their CPUs for the next one."""
        with self._lock:
            self._known.pop(container.id, None)
            try:
                return self._moves(self._left())
            except RefusedError as error:
                log.warning("NRI: containers stay where they are for now: %s", error)
                return ()

    def remove_container(self, pod: Pod, container: Container) -> None:
        """Forget a container."""
        with self._lock:
            self._known.pop(container.id, None)

    def _refresh(self) -> None:
        """Look at the claims, and drop what is no longer true of containers."""
        changed = self._claims.refresh()
        online = self._shared.online
        if not changed and online == self._online:
            return
        for known in self._known.values():
            if known.uses and (
                online != self._online or any((use.driver, use.uid) in changed for use in known.uses)
            ):
                known.given = None
        self._online = online
        self._settled = None

    def _left(self) -> Shared:
        """Return what claims leave now. Raises RefusedError where that cannot be said."""
        try:
            self._refresh()
        except JournalError as error:
            raise RefusedError(str(error)) from None
        return self._shared.left(self._claims.cpus)

    def _uses(self, pod: Pod, container: Container, *, strict: bool) -> tuple[Use, ...]:
        return uses(pod, container, self._claims, self._drivers, self._reservations, strict=strict)

    def _check_sandbox(self, pod: Pod, known: _Known) -> None:
        """Refuse a container of a claim that is not in its pod. Raises RefusedError."""
        for use in known.uses:
            claim = self._claim(use)
            if self._sandboxes and claim is not None and claim.sandboxed:
                with _refusing():
                    record = self._journal.get(use.driver, use.uid)
                    if record is not None:
                        self._sandboxes.check(record, pod.id)

    def _learn(self, pod: Pod, container: Container) -> _Known:
        """Keep a container that was made without us."""
        known = _Known(pod.id, self._uses(pod, container, strict=False), container.cpus)
        self._known[container.id] = known
        return known

    def _claim(self, use: Use) -> ContainerClaim | None:
        return self._claims.get(use.driver, use.uid)

    def _promised(self, known: _Known) -> ContainerAdjustment:
        """Return what a new container's claims give it. Raises RefusedError where that cannot be had."""
        for use in known.uses:
            claim = self._claim(use)
            if claim is None or claim.state is not State.PREPARED:
                raise RefusedError(f"claim {shown(use.uid)} of {use.driver} is not prepared on this node")
            if claim.unknown:
                raise RefusedError(f"claim {claim.ref} of {use.driver}: {claim.unknown}")
        try:
            known.given = self._sum(known)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        return known.given

    def _sum(self, known: _Known) -> ContainerAdjustment:
        """Return what those of a container's claims give it that are journalled. Raises ValueError."""
        made = combined(self._adjustments(known))
        return replace(made, cpus=self._present(made.cpus)) if made.cpus else made

    def _adjustments(self, known: _Known) -> Iterator[ContainerAdjustment]:
        """Yield what each device gives that a container uses, of those claims that are journalled."""
        for use in known.uses:
            claim = self._claim(use)
            if claim is not None:
                yield from claim.adjustments.get(use.index, ())

    def _present(self, cpus: str) -> str:
        """Return those of the CPUs that are online: with cgroup v1 the kernel refuses others. Raises ValueError."""
        here = CPUSet.parse(cpus) & self._online
        if self._online and not here:
            raise ValueError(f"the claim's CPUs {plain(cpus)} are not online")
        return str(here) if here else cpus

    def _must_be_told(self, known: _Known, shared: Shared) -> bool:
        """Return whether a container without CPUs of its own must be told where to run.

        One that has a set already, as from a time when there were claims, is kept at what is left now.
        """
        if not self._shared.managed and not self._claims.cpus:
            return False
        return shared.limited or bool(known.cpus)

    def _check_alone(self, shared: Shared) -> None:
        """Refuse a container with CPUs of its own while others cannot be kept off them."""
        if not shared.cpus and not all(self._has_own(known) for known in self._known.values()):
            raise self._none_left()

    def _none_left(self) -> RefusedError:
        return RefusedError(NONE_LEFT if self._online else "the CPUs of this node cannot be read")

    def _has_own(self, known: _Known) -> bool:
        return any(adjustment.cpus for adjustment in self._adjustments(known))

    def _wanted(self, known: _Known, shared: Shared) -> ContainerAdjustment:
        """Return what a container that is there should have, which is nothing where it may keep what it has."""
        claims = [self._claim(use) for use in known.uses]
        if any(claim is not None and claim.unknown for claim in claims):
            return _NOTHING
        if known.given is None:
            try:
                known.given = self._sum(known)
            except ValueError:
                return _NOTHING
        if not known.given.cpus and shared.cpus and self._must_be_told(known, shared):
            return replace(known.given, cpus=shared.text)
        return known.given

    def _moves(self, shared: Shared, pending: str = "") -> list[Update]:
        """Return the updates of all containers that are not, or not for certain, where they should be.

        pending   what must become true before the updates are certain to be done
        """
        if self._settled == shared:
            return []
        updates = []
        common = ContainerAdjustment(cpus=shared.text)
        for name, known in self._known.items():
            own = known.given.cpus if known.given else ""
            if not known.pending and known.cpus == (own or shared.text) and (own or not known.uses):
                continue
            if known.uses:
                cpus = self._wanted(known, shared).cpus
            else:  # as most are
                cpus = shared.text if self._must_be_told(known, shared) else ""
            if cpus and (known.pending or cpus != known.cpus):
                required = known.pending != "" or not _is_wider(cpus, known.cpus)
                change = common if cpus == shared.text else ContainerAdjustment(cpus=cpus)
                updates.append(Update(name, change, required=required))
                known.cpus, known.pending = cpus, pending
        if not updates or not pending:
            self._settled = shared
        return updates


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Refuse for failures whose own text says what is wrong."""
    try:
        yield
    except (BackendError, CDIError, ClaimError, JournalError, OSError) as error:
        raise RefusedError(str(error) or type(error).__name__) from error


def _sandbox(pod: Pod) -> Sandbox:
    return Sandbox(pod.id, pod.uid, pod.namespace, pod.name, pod.network_namespace or "")


def _has(container: Container, wanted: ContainerAdjustment) -> bool:
    """Return whether a container has all of that."""
    return (
        (not wanted.cpus or _same(container.cpus, wanted.cpus))
        and (not wanted.mems or _same(container.mems, wanted.mems))
        and wanted.hugepage_limits.items() <= container.hugepage_limits.items()
    )


def _same(one: str, other: str) -> bool:
    return _parsed(one) == _parsed(other)


@functools.lru_cache(maxsize=32)
def _is_wider(cpus: str, before: str) -> bool:
    """Return whether nothing is taken away: without a set a container had all CPUs."""
    old, new = _parsed(before), _parsed(cpus)
    return bool(old) and old is not None and new is not None and old <= new


def _parsed(text: str) -> CPUSet | None:
    """Return a set that the runtime told, None where it is none."""
    try:
        return CPUSet.parse(text)
    except ValueError:
        return None
