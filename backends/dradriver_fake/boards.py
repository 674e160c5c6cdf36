"""What GPU boards can do: architecture, and in MIG mode profiles by placements over memory slices.

The table is data/boards.yaml. Counter and capacity names are those of the field, in the two spellings that the API
demands: counters are DNS labels, capacities are identifiers.
"""

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Annotated

import msgspec
import yaml

from dradriver.backend import Strict, decode

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Profile(Strict, frozen=True, kw_only=True):
    """A GPU instance profile; `id` is the driver's number for it on that board."""

    name: str
    id: _Count
    compute_slices: _Count
    max_instances: _Count
    memory_mib: _Count = msgspec.field(name="memoryMiB")
    multiprocessors: _Count
    copy_engines: _Count
    decoders: _Count
    encoders: _Count
    jpeg_engines: _Count
    ofa_engines: _Count
    starts: tuple[_Count, ...]
    size: _Count


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
        return f"mig-{self.profile.name.replace('.', '-').replace('+', '-')}-{self.start}"

    def overlaps(self, other: "Placement") -> bool:
        """Return whether both take some memory slice."""
        return self.start < other.slices.stop and other.start < self.slices.stop


class Board(Strict, frozen=True, kw_only=True):
    """A GPU board. Without memory slices it has no MIG."""

    board: str
    pci_devices: tuple[str, ...]
    architecture: str
    compute_capability: str
    memory_slices: _Count = 0
    compute_slices: _Count = 0
    profiles: tuple[Profile, ...] = ()

    def profile(self, name: str) -> Profile | None:
        """Return the profile of that name."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    def placements(self) -> tuple[Placement, ...]:
        """Return every profile at every place, in the order in which they are to be given out.

        Small ones come before large ones, and at one size plain ones before those with media engines. Among the
        places of one profile the first is the one at which it stands in the way of least memory slices of others,
        so that what is left takes the largest instances.
        """
        every = [Placement(profile, start) for profile in self.profiles for start in profile.starts]

        def in_the_way(placement: Placement) -> int:
            return sum(other.profile.size for other in every if placement.overlaps(other))

        def order(placement: Placement) -> tuple[object, ...]:
            profile = placement.profile
            media = profile.name.endswith("+me")
            return profile.size, profile.compute_slices, media, in_the_way(placement), placement.start

        return tuple(sorted(every, key=order))


@functools.cache
def boards() -> tuple[Board, ...]:
    """Return all boards that are known."""
    text = (resources.files("dradriver_fake") / "data" / "boards.yaml").read_text()
    return decode(tuple[Board, ...], yaml.safe_load(text), "boards")


def board_of(pci_device: str) -> Board | None:
    """Return the board with that PCI device id, as `0x2330`; None for one that is not known."""
    return next((board for board in boards() if pci_device in board.pci_devices), None)
