"""Which device and counter set goes into which slice of its pool.

Slices are numbered, and the number is what orders them: 1.36 sorts slices by name, and the scheduler takes the
first device that fits. A pool laid out for the first time keeps the order of its content. After that things
stay where they are, so that a change of one physical thing touches one slice: a removed thing leaves a gap, a
new one goes to a gap, and only where there is none does the pool get another slice. A slice that ran empty
stays, since one slice less would be a new generation of all.

No slice ever holds more than 64 devices, though 128 plain ones would be allowed: a taint lowers the limit to
64, and a device that falls ill must not break up its slice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dradriver.model import CounterSet, Device, PoolContent
from dradriver.slices.limits import MAX_COUNTER_SETS, MAX_DEVICES_DETAILED

_CAPACITY = MAX_DEVICES_DETAILED


@dataclass(frozen=True, slots=True)
class Placement:
    """Where things are: names of devices and of counter sets -> slice number, and how many slices there are."""

    devices: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    counter_sets: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    slices: int = 0


NOWHERE = Placement()


@dataclass(frozen=True, slots=True)
class SliceContent:
    """What one slice holds: devices or counter sets, or nothing."""

    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()


def placement(specs: Sequence[Mapping[str, Any] | None]) -> Placement:
    """Return where things are in our ResourceSlice specs, by slice number; None where one is missing."""
    devices: dict[str, int] = {}
    counter_sets: dict[str, int] = {}
    for number, spec in enumerate(specs):
        if spec is not None:
            devices.update((device["name"], number) for device in spec.get("devices") or ())
            counter_sets.update((one["name"], number) for one in spec.get("sharedCounters") or ())
    return Placement(devices, counter_sets, len(specs))


def layout(content: PoolContent, previous: Placement = NOWHERE) -> tuple[SliceContent, ...]:
    """Return the slices of a pool, at least one, by number; `content` has passed `checked`.

    Within a slice, things stand in the order of the content. A physical thing of up to 64 devices is in one
    slice; a larger one takes as few as there is room for.
    """
    occupied = {
        previous.devices[device.name] for device in content.devices if device.name in previous.devices
    }
    counters = _place_counter_sets(content.counter_sets, previous, occupied)
    room = _Room(max([previous.slices, *(number + 1 for number in counters)]), frozenset(counters))
    where = _place_devices(content.devices, previous, room)
    held: list[list[Device]] = [[] for _ in range(max(room.slices, 1))]
    for device, number in zip(content.devices, where, strict=True):
        held[number].append(device)
    return tuple(
        SliceContent(tuple(devices), tuple(counters.get(number, ()))) for number, devices in enumerate(held)
    )


def _place_counter_sets(
    counter_sets: Iterable[CounterSet], previous: Placement, occupied: set[int]
) -> dict[int, list[CounterSet]]:
    placed: dict[str, int] = {}
    used: Counter[int] = Counter()
    fresh: list[CounterSet] = []
    for counter_set in counter_sets:
        number = previous.counter_sets.get(counter_set.name)
        if number is None or number in occupied or used[number] == MAX_COUNTER_SETS:
            fresh.append(counter_set)
        else:
            placed[counter_set.name] = number
            used[number] += 1
    slices = previous.slices
    for counter_set in fresh:
        open_ones = (number for number in sorted(used) if used[number] < MAX_COUNTER_SETS)
        empty_ones = (number for number in range(slices) if number not in occupied and not used[number])
        number = next(open_ones, next(empty_ones, slices))
        slices = max(slices, number + 1)
        placed[counter_set.name] = number
        used[number] += 1
    by_slice: dict[int, list[CounterSet]] = {}
    for counter_set in counter_sets:
        by_slice.setdefault(placed[counter_set.name], []).append(counter_set)
    return by_slice


class _Room:
    """The room for devices in the slices of a pool."""

    def __init__(self, slices: int, closed: frozenset[int]) -> None:
        """Begin with empty slices; those in `closed` hold counter sets."""
        self.slices = slices
        self._older = slices
        self._closed = closed
        self._used: Counter[int] = Counter()

    def take(self, number: int, size: int) -> bool:
        """Take `size` places in slice `number`, if it has them."""
        if number in self._closed or self._used[number] + size > _CAPACITY:
            return False
        self._used[number] += size
        return True

    def find(self, size: int, after: int) -> int:
        """Take `size` places in some slice and return its number.

        Best is `after`, the slice of the thing before, or one behind it: that keeps the order. Next come
        gaps in slices that were there before, since a slice more costs a new generation.
        """
        candidates = [*range(after, self.slices), *range(min(after, self._older))]
        number = next((number for number in candidates if self.take(number, size)), None)
        if number is None:
            number = self.slices
            self.slices += 1
            self._used[number] = size
        return number


def _place_devices(devices: Sequence[Device], previous: Placement, room: _Room) -> list[int]:
    known = [previous.devices.get(device.name) for device in devices]
    things: dict[str, list[int]] = {}
    for index, device in enumerate(devices):
        things.setdefault(device.physical, []).append(index)
    where: dict[int, int] = {}
    for stay in (_stay_as_it_is, _stay_with_more):
        for members in things.values():
            where |= stay([index for index in members if index not in where], known, room)
    last = 0
    for members in things.values():
        homeless = [index for index in members if index not in where]
        if len(homeless) < len(members):
            last = max(where[index] for index in members if index in where)
        while homeless:
            chunk, homeless = homeless[:_CAPACITY], homeless[_CAPACITY:]
            last = room.find(len(chunk), last)
            where |= dict.fromkeys(chunk, last)
    return [where[index] for index in range(len(devices))]


def _stay_as_it_is(members: list[int], known: Sequence[int | None], room: _Room) -> dict[int, int]:
    """Leave a thing where it is: one that is together and has not grown, or the parts of a large one."""
    if len(members) > _CAPACITY:
        return {
            index: number
            for index in members
            if (number := known[index]) is not None and room.take(number, 1)
        }
    home = known[members[0]]
    if home is not None and {known[index] for index in members} == {home} and room.take(home, len(members)):
        return dict.fromkeys(members, home)
    return {}


def _stay_with_more(members: list[int], known: Sequence[int | None], room: _Room) -> dict[int, int]:
    """Leave a thing that has grown, or was apart, in the slice where most of it is, if all of it fits there."""
    homes = Counter(number for index in members if (number := known[index]) is not None)
    for home, _ in homes.most_common(1):
        if room.take(home, len(members)):
            return dict.fromkeys(members, home)
    return {}
