"""What is wrong with the GPUs: kept from the driver's events and from what each probe finds, until it is gone.

What a probe finds (a lost GPU, uncorrected memory errors, a recovery action) holds for as long as probes find it. What
only an event told, an XID above all, cannot be asked for again: it holds until the GPU is seen to have been reset, or
its driver loaded anew, or the daemon is started again.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from dradriver_gpu.inventory import GPU, Ailment, GPUInstance, GPUInventory, gpu_name
from dradriver_gpu.symptoms import ANSWER, LOST, Trouble, symptoms, was_reset
from dradriver_gpu.xids import Severity, describe, severity_of

log = logging.getLogger(__name__)


_MOST_EVENTS = 64
"""What is kept of one GPU, the gravest of all: a driver may tell of unknown XIDs without end."""


@dataclass(slots=True)
class _Event:
    """What an event told.

    number        its place in the order of all events
    gpu_instance  None for the GPU as a whole; then `compute_instance` is None too
    stood         the GPU instance as it stood then, once it is known
    looked        whether a probe has looked for it since
    """

    trouble: Trouble
    number: int
    since: str
    gpu_instance: int | None
    compute_instance: int | None
    stood: GPUInstance | None
    looked: bool = False


@dataclass(slots=True)
class _Record:
    """What is known of the health of one GPU.

    found      troubles of the last probe, by symptom, and since when they are there
    witnessed  the last event that was there while a probe found trouble: a reset ends it too
    """

    last: GPU | None = None
    events: list[_Event] = field(default_factory=list)
    found: dict[str, tuple[Trouble, str]] = field(default_factory=dict)
    witnessed: int = 0


class HealthBook:
    """The troubles of all GPUs. Safe from all threads."""

    def __init__(self, ignored_xids: Collection[int] = (), now: Callable[[], float] = time.time) -> None:
        """`now` gives the seconds since 1970."""
        self._ignored = frozenset(ignored_xids)
        self._now = now
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}
        self._events = 0
        self._last: GPUInventory | None = None
        self._news = False
        self._told: dict[tuple[object, ...], str] = {}
        self._module: int | None = None
        self._was_unloaded = False
        self._before_reload = 0

    # --- what events tell

    def xid(
        self, address: str, number: int, gpu_instance: int | None = None, compute_instance: int | None = None
    ) -> bool:
        """Take an XID of the GPU at an address, or of one of its instances; return whether it is news."""
        severity = Severity.IGNORED if number in self._ignored else severity_of(number)
        trouble = Trouble("xid", str(number), describe(number), severity)
        return self.hear(address, trouble, gpu_instance, compute_instance)

    def hear(
        self,
        address: str,
        trouble: Trouble,
        gpu_instance: int | None = None,
        compute_instance: int | None = None,
    ) -> bool:
        """Take what an event told; return whether it is news."""
        if trouble.severity is Severity.IGNORED:
            log.debug("%s: %s: ignored", gpu_name(address), trouble.message)
            return False
        if gpu_instance is None:
            compute_instance = None
        with self._lock:
            record = self._records.setdefault(address, _Record())
            stood = record.last.instance(gpu_instance) if record.last and gpu_instance is not None else None
            for event in record.events:
                if (
                    event.trouble.value == trouble.value  # first, since storms of events come through here
                    and event.trouble == trouble
                    and (event.gpu_instance, event.compute_instance) == (gpu_instance, compute_instance)
                    and _is_one(event.stood, stood)
                ):
                    return False
            if len(record.events) >= _MOST_EVENTS:
                least = min(record.events, key=lambda event: (event.trouble.severity.value, event.number))
                if least.trouble.severity.value >= trouble.severity.value:
                    return False
                record.events.remove(least)
            self._events += 1
            record.events.append(
                _Event(trouble, self._events, self._stamp(), gpu_instance, compute_instance, stood)
            )
            self._news = True
        return True

    def lose(self, address: str) -> bool:
        """Take it that a GPU answers nothing any more, until a probe finds it well; return whether it is news."""
        with self._lock:
            record = self._records.setdefault(address, _Record())
            if _is_lost(record):
                return False
            record.found[ANSWER] = (LOST, self._stamp())
            record.witnessed = self._events
            self._news = True
        return True

    # --- what probes find

    def see_module(self, module: int | None) -> None:
        """Take which kernel module is loaded, by a number that another loading changes; None where none is."""
        with self._lock:
            if module is not None:
                if self._was_unloaded or self._module not in {None, module}:
                    for record in self._records.values():
                        record.events = [one for one in record.events if one.number > self._before_reload]
                self._module = module
            self._was_unloaded = module is None and self._module is not None
            self._before_reload = self._events

    def examine(self, inventory: GPUInventory) -> GPUInventory:
        """Take what a probe has found; return it with all that is wrong with the GPUs."""
        with self._lock:
            for gpu in inventory.gpus:
                self._update(gpu)
            self._last = inventory
            self._news = False
            return self._with_ailments(inventory)

    @property
    def has_news(self) -> bool:
        """Whether events told something since the last probe."""
        return self._news

    def in_haste(self) -> GPUInventory | None:
        """Return the last inventory with what events told since; None where there is none."""
        with self._lock:
            return self._with_ailments(self._last) if self._last else None

    def _update(self, gpu: GPU) -> None:
        record = self._records.setdefault(gpu.address, _Record())
        before = record.last
        if before and before.uuid and gpu.uuid and before.uuid != gpu.uuid:
            record = self._records[gpu.address] = _Record()  # another board
        elif before and was_reset(before, gpu, was_lost=_is_lost(record)):
            record.events = [event for event in record.events if event.number > record.witnessed]
        for symptom, trouble in symptoms(gpu).items():
            known = record.found.pop(symptom, None)
            if trouble:
                since = known[1] if known and known[0].taint == trouble.taint else self._stamp()
                record.found[symptom] = (trouble, since)
        if record.found or not gpu.visible:
            record.witnessed = self._events
        for event in record.events:
            _look_for(event, gpu)
        record.events = [event for event in record.events if not _is_over(event, gpu)]
        record.last = gpu

    def _with_ailments(self, inventory: GPUInventory) -> GPUInventory:
        ailments = tuple(
            ailment
            for gpu in inventory.gpus
            if gpu.address in self._records
            for ailment in _ailments(gpu, self._records[gpu.address])
        )
        self._tell(ailments)
        return replace(inventory, ailments=ailments)

    def _tell(self, ailments: Iterable[Ailment]) -> None:
        """Log what is new and what is gone."""
        now: dict[tuple[object, ...], str] = {}
        for one in ailments:
            where = one.gpu if one.gpu_instance is None else f"{one.gpu}, GPU instance {one.gpu_instance}"
            key: tuple[object, ...] = (one.gpu, one.key, one.value, one.gpu_instance, one.compute_instance)
            now[key] = f"{where}: {one.message}"
            if key not in self._told:
                log.log(logging.INFO if one.severity is Severity.NOTE else logging.WARNING, "%s", now[key])
        for key, text in self._told.items():
            if key not in now:
                log.info("%s: no longer so", text)
        self._told = now

    def _stamp(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now()))


def _is_lost(record: _Record) -> bool:
    return ANSWER in record.found and record.found[ANSWER][0].key == LOST.key


def _is_one(before: GPUInstance | None, after: GPUInstance | None) -> bool:
    """Return whether two sightings are of the same GPU instance, as far as can be told: numbers are used again."""
    if before is None or after is None:
        return True
    return (before.id, before.profile_id, before.start) == (after.id, after.profile_id, after.start)


def _look_for(event: _Event, gpu: GPU) -> None:
    """Find the GPU instance that an event named, in the first probe after it."""
    if event.gpu_instance is not None and not event.looked and gpu.visible and not gpu.fault:
        event.looked = True
        event.stood = gpu.instance(event.gpu_instance) or event.stood


def _is_standing(event: _Event, gpu: GPU) -> bool:
    now = gpu.instance(event.gpu_instance) if event.gpu_instance is not None else None
    return now is not None and _is_one(event.stood, now)


def _is_over(event: _Event, gpu: GPU) -> bool:
    """Return whether what an event told mattered only while its GPU instance stood, and that is gone."""
    is_note = event.trouble.severity is Severity.NOTE
    return is_note and event.gpu_instance is not None and event.looked and not _is_standing(event, gpu)


def _ailments(gpu: GPU, record: _Record) -> Iterator[Ailment]:
    """Yield what is wrong with a GPU, each thing once."""
    seen = set()
    for trouble, since in record.found.values():
        seen.add(trouble.taint)
        yield _ailment(gpu, trouble, since)
    for event in record.events:
        if event.gpu_instance is None:
            if event.trouble.taint not in seen:
                yield _ailment(gpu, event.trouble, event.since)
        else:
            yield _of_instance(gpu, event)


def _ailment(gpu: GPU, trouble: Trouble, since: str) -> Ailment:
    return Ailment(
        gpu.name,
        trouble.message,
        severity=trouble.severity,
        key=trouble.key,
        value=trouble.value,
        since=since,
    )


def _of_instance(gpu: GPU, event: _Event) -> Ailment:
    """Return what ails a GPU instance; once that is gone, what takes its memory slices; all where these are not known.

    The same hardware would be given out again, under whatever name.
    """
    ailment = _ailment(gpu, event.trouble, event.since)
    if _is_standing(event, gpu) or not event.looked:
        return replace(ailment, gpu_instance=event.gpu_instance, compute_instance=event.compute_instance)
    if event.stood:
        return replace(ailment, slices=range(event.stood.start, event.stood.start + event.stood.size))
    return ailment
