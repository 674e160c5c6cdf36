"""MIG geometry of one GPU: which GPU instances its driver can make, and where on its memory slices.

All of it is what NVML lists for this very GPU. Counter and capacity names are those of the field, in the two spellings
that the API demands: counters are DNS labels, capacities are identifiers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dradriver.model import Quantity

MIB = 1 << 20
MEMORY = "memory"

_ONE = Quantity.from_int(1)

DIMENSIONS: Mapping[str, str] = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg-engines",
    "ofaEngines": "ofa-engines",
    MEMORY: MEMORY,
}
"""Capacity -> counter."""

# What the enum index tells beyond slices and memory (nvml.h NVML_GPU_INSTANCE_PROFILE_*): nvidia-smi's suffix.
_SUFFIXES = {
    0x7: "+me", 0x8: "+me", 0xA: "+gfx", 0xB: "+gfx", 0xC: "+gfx", 0xD: "-me", 0xE: "-me", 0xF: "+me.all",
    0x10: "+me.all", 0x11: "+gfx",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resources:
    """What an instance has. Engines are counted, memory is in MiB."""

    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    memory_mib: int

    def amounts(self) -> dict[str, Quantity]:
        """Return the amounts by capacity name."""
        return {
            "multiprocessors": Quantity.from_int(self.multiprocessors),
            "copyEngines": Quantity.from_int(self.copy_engines),
            "decoders": Quantity.from_int(self.decoders),
            "encoders": Quantity.from_int(self.encoders),
            "jpegEngines": Quantity.from_int(self.jpeg_engines),
            "ofaEngines": Quantity.from_int(self.ofa_engines),
            MEMORY: Quantity.from_int(self.memory_mib * MIB, binary=True),
        }


@dataclass(frozen=True, slots=True)
class Profile:
    """A GPU instance profile.

    index          number to ask NVML with (NVML_GPU_INSTANCE_PROFILE_*); the same on all GPUs
    id             number that creation and placements take; another on each kind of GPU
    name           as nvidia-smi writes it, `1g.10gb+me`
    slices         compute slices
    max_instances  how many there can be at once
    size           memory slices, from one of `starts` on
    """

    index: int
    id: int
    name: str
    slices: int
    max_instances: int
    resources: Resources
    starts: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A profile at a place: the memory slices from `start` on."""

    profile: Profile
    start: int

    @property
    def slices(self) -> range:
        """The memory slices that it takes."""
        return range(self.start, self.start + self.profile.size)

    @property
    def suffix(self) -> str:
        """The end of its device's name: `mig-1g-10gb-4`."""
        return f"mig-{label(self.profile.name)}-{self.start}"

    def overlaps(self, start: int, size: int) -> bool:
        """Return whether it takes any of the `size` memory slices from `start` on."""
        return self.start < start + size and start < self.slices.stop


@dataclass(frozen=True)
class Geometry:
    """All profiles that a GPU offers, in the order in which NVML numbers them."""

    profiles: tuple[Profile, ...]

    def profile(self, profile_id: int) -> Profile | None:
        """Return the profile with that id."""
        return next((profile for profile in self.profiles if profile.id == profile_id), None)

    @cached_property
    def memory_slices(self) -> int:
        """How many memory slices there are; some may be behind the last place of all but the largest profile."""
        return max(start + profile.size for profile in self.profiles for start in profile.starts)

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Every profile at every place, in the order in which they are to be given out.

        Small ones come before large ones, and at one size plain ones before those with media engines. Among the
        places of one profile the first is the one at which it stands in the way of least memory slices of others, so
        that what is left takes the largest instances.
        """
        every = [Placement(profile, start) for profile in self.profiles for start in profile.starts]

        def in_the_way(placement: Placement) -> int:
            return sum(
                other.profile.size for other in every if placement.overlaps(other.start, other.profile.size)
            )

        def order(placement: Placement) -> tuple[object, ...]:
            profile = placement.profile
            special = profile.index in _SUFFIXES
            return profile.size, profile.slices, special, profile.id, in_the_way(placement), placement.start

        return tuple(sorted(every, key=order))

    @cached_property
    def counters(self) -> Mapping[str, Quantity]:
        """The counters of the GPU, by which nobody is offered what NVML would refuse.

        Of each dimension there is as much as the largest profile has, of each memory slice one. Memory goes with its
        slices, so that its sizes, which are rounded, must not forbid what the slices allow. Where all that would admit
        more instances of a profile than the driver, these are counted too.
        """
        every = [profile.resources.amounts() for profile in self.profiles]
        found = {counter: max(one[name] for one in every) for name, counter in DIMENSIONS.items()}
        found[MEMORY] = max(found[MEMORY], self._fullest())
        found |= {f"memory-slice-{number}": _ONE for number in range(self.memory_slices)}
        for profile in self.profiles:
            if _at_once(profile, found) > profile.max_instances:
                found[_instances(profile)] = Quantity.from_int(profile.max_instances)
        return found

    @cached_property
    def all_of_it(self) -> Mapping[str, Quantity]:
        """What the GPU as a whole draws on."""
        return {name: amount for name, amount in self.counters.items() if amount.nano}

    def drawn(self, placement: Placement) -> Mapping[str, Quantity]:
        """Return the counters that an instance draws on; what it has none of is left out."""
        return self._draws[placement.profile.id, placement.start]

    @cached_property
    def _draws(self) -> Mapping[tuple[int, int], Mapping[str, Quantity]]:
        return {(one.profile.id, one.start): self._drawn(one) for one in self.placements}

    def _drawn(self, placement: Placement) -> Mapping[str, Quantity]:
        has = placement.profile.resources.amounts()
        drawn = {counter: has[name] for name, counter in DIMENSIONS.items() if has[name].nano}
        drawn |= {f"memory-slice-{number}": _ONE for number in placement.slices}
        if _instances(placement.profile) in self.counters:
            drawn[_instances(placement.profile)] = _ONE
        return drawn

    def free(self, taken: Iterable[Placement]) -> tuple[Placement, ...]:
        """Return the placements that all fit beside those that are taken, in order."""
        left = dict(self.counters)
        for placement in taken:
            for name, amount in self.drawn(placement).items():
                left[name] -= amount
        if left == self.counters:
            return self.placements
        return tuple(
            one
            for one in self.placements
            if all(amount <= left[name] for name, amount in self.drawn(one).items())
        )

    def _fullest(self) -> Quantity:
        """Return the most memory that instances can have together."""
        best = [Quantity(0)] * (self.memory_slices + 1)
        for end in range(1, self.memory_slices + 1):
            best[end] = max(
                [
                    best[end - 1],
                    *(
                        best[start] + profile.resources.amounts()[MEMORY]
                        for profile in self.profiles
                        for start in profile.starts
                        if start + profile.size == end
                    ),
                ]
            )
        return best[-1]


def label(profile_name: str) -> str:
    """Return a profile's name as part of a DNS label: 1g.24gb+me and 1g.24gb-me are two profiles of one GPU."""
    return profile_name.replace("-", "-no-").replace(".", "-").replace("+", "-")


def profile_name(index: int, slices: int, memory_mib: int, total_bytes: int) -> str:
    """Return what a profile is called where the driver does not tell (before 510).

    As nvidia-smi does it: memory in eighths of the board's, in whole GB; `index` tells of engines.
    """
    gigabytes = -(-total_bytes // (1 << 30))
    eighths = -(-memory_mib * MIB * 8 // total_bytes) if total_bytes > 0 else 0
    return f"{slices}g.{(eighths * gigabytes + 4) // 8}gb{_SUFFIXES.get(index, '')}"


def _instances(profile: Profile) -> str:
    return f"instances-{label(profile.name)}"


def _at_once(profile: Profile, counters: Mapping[str, Quantity]) -> int:
    """Return how many instances of a profile the counters admit on an empty GPU."""
    count = 0
    end = 0
    for start in sorted(profile.starts):
        if start >= end:
            count += 1
            end = start + profile.size
    amounts = profile.resources.amounts()
    return min(
        [
            count,
            *(
                counters[counter].nano // amounts[name].nano
                for name, counter in DIMENSIONS.items()
                if amounts[name].nano
            ),
        ]
    )
