"""What a node's claims must come to, said once more and simply: sets of things, and no idea of how it is done.

For a node `small` with one A30 in partitions, the virtual functions of a card, 8 CPUs, memory and huge pages.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dradriver_fake import complaints
from wholenode import Instance, cdi_files, check_ledger, hardware, kind_of, metadata_files, metadata_of

GPU = "gpu-0000-43-00-0"
VFS = tuple(f"nic-0000-44-00-{n}" for n in (2, 3, 4, 5))
THINGS = frozenset((GPU, *VFS))
"""What can be pulled out."""

AMOUNTS = {"cpu-numa-0": 8, "memory-numa-0": 31 << 30, "hugepages-2mi-numa-0": 1 << 30}
KINDS = ("gpu", "nic", "cpu", "memory")
"""In the order in which a claim's steps are done."""

Key = tuple[str, str]
"""Driver and claim name."""


@dataclass(frozen=True)
class Use:
    """One allocated device of a claim: result `number`, an amount where it is a share."""

    number: int
    device: str
    amount: int = 0
    admin: bool = False

    @property
    def thing(self) -> str:
        """What it is a part of, where that can be pulled out."""
        return next((thing for thing in THINGS if self.device.startswith(thing)), "")

    @property
    def is_made(self) -> bool:
        """Whether something is created for it on the hardware."""
        return bool(self.thing) and not self.admin

    def parts(self) -> Iterator[str]:
        """Yield what only one can have of what this is."""
        if self.admin:
            return
        if self.device == GPU:
            yield from ("slice 0", "slice 1", "slice 2", "slice 3", "media")
        elif self.thing == GPU:
            size, _, start = self.device.removeprefix(f"{GPU}-mig-").partition("-")
            first = int(start.rpartition("-")[2])
            yield from (f"slice {n}" for n in range(first, first + int(size[0])))
            if "-me-" in self.device or size[0] == "4":
                yield "media"
        elif self.thing:
            yield self.device


@dataclass
class Claim:
    """A claim as it stands in the API: its allocation, and whether its configuration can be understood."""

    uses: tuple[Use, ...]
    broken: frozenset[str] = frozenset()
    """Drivers whose configuration is wrong."""


@dataclass
class Part:
    """A driver's part of a claim that is prepared. `lost` are the things that were pulled out since."""

    uses: tuple[Use, ...]
    lost: set[str] = field(default_factory=set)
    stuck: bool = False
    """Whether its undoing was begun, and did not end."""
    file: bool = True
    """Whether nobody took its CDI file away."""


class Reference:
    """The node. `seen` is what the active instance saw of the hardware when it looked last."""

    def __init__(self, *, grouped: bool) -> None:
        self.grouped = grouped
        self.claims: dict[str, Claim] = {}
        self.parts: dict[Key, Part] = {}
        self.plugged = set(THINGS)
        self.seen = set(THINGS)

    def driver(self, device: str) -> str:
        """Return the driver that has a device."""
        return "node.dradriver.io" if self.grouped else f"{kind_of(device)}.dradriver.io"

    def asked(self, key: Key) -> tuple[Use, ...] | None:
        """Return what a claim asks of a driver; None where there is no such claim."""
        claim = self.claims.get(key[1])
        return (
            None if claim is None else tuple(use for use in claim.uses if self.driver(use.device) == key[0])
        )

    def fits(self, uses: Iterable[Use]) -> bool:
        """Return whether these uses can be beside all that is given out."""
        every = [*uses, *(use for part in self.parts.values() for use in part.uses)]
        single = Counter(name for use in every for name in use.parts())
        sums: Counter[str] = Counter()
        for use in every:
            if use.device in AMOUNTS and not use.admin:
                sums[use.device] += use.amount
        return all(count == 1 for count in single.values()) and all(
            total <= AMOUNTS[device] for device, total in sums.items()
        )

    def prepare(self, key: Key, *, fails: bool = False) -> bool:
        """Prepare; return whether it succeeds. `fails`: whatever is created on the hardware fails."""
        part = self.parts.get(key)
        if part and self._is_kept(part):
            if self._is_out_of_sight(part):
                return False
            asked = self.asked(key)
            if asked is None or asked == part.uses:
                if any(use.thing and use.thing not in self.seen for use in part.uses):
                    return False
                part.file = True
                return True
        self.parts.pop(key, None)
        return self._begin(key, fails)

    def _begin(self, key: Key, fails: bool) -> bool:
        uses = self.asked(key)
        if uses is None:
            return False
        if not uses:
            return True
        for kind in {kind_of(use.device) for use in uses if use.thing and use.thing not in self.seen}:
            self.look(kind)
        works = (
            key[0] not in self.claims[key[1]].broken
            and all(use.thing in self.seen for use in uses if use.thing)
            and self.fits(uses)
            and all(use.thing in self.plugged and not fails for use in uses if use.is_made)
        )
        if works:
            self.parts[key] = Part(uses)
        return works

    def look(self, kind: str = "") -> None:
        """Let the instance see what is plugged in, of one kind or of all."""
        of_kind = {thing for thing in THINGS if thing.startswith(kind)}
        self.seen = self.seen - of_kind | self.plugged & of_kind

    def _first_not_done(self, part: Part) -> str:
        """Return the first thing on which what was made is not there; empty where all is."""
        made = [
            use.thing for kind in KINDS for use in part.uses if use.is_made and kind_of(use.device) == kind
        ]
        return next((thing for thing in made if thing not in self.plugged or thing in part.lost), "")

    def _is_out_of_sight(self, part: Part) -> bool:
        thing = self._first_not_done(part)
        return bool(thing) and thing not in self.plugged

    def _is_kept(self, part: Part) -> bool:
        """Return whether it stays: it is as it was, or that cannot be said now."""
        thing = self._first_not_done(part)
        return not part.stuck and (not thing or thing not in self.plugged)

    def unprepare(self, key: Key, *, fails: bool = False) -> bool:
        """Unprepare; return whether it succeeds. `fails`: what is removed from the hardware first fails."""
        part = self.parts.get(key)
        if part and fails and any(use.is_made and use.thing in self.plugged for use in part.uses):
            part.stuck = True
            return False
        self.parts.pop(key, None)
        return True

    def restart(self) -> None:
        """Start another instance on what is there."""
        self.look()
        self.parts = {key: part for key, part in self.parts.items() if self._is_kept(part)}
        for part in self.parts.values():
            # Nor is there a file while what the containers need of the GPU's driver cannot be known.
            part.file = part.file or not (self._is_out_of_sight(part) or self._lacks_base(part))

    def _lacks_base(self, part: Part) -> bool:
        return GPU not in self.plugged and any(use.thing == GPU for use in part.uses)

    def pull_out(self, thing: str) -> None:
        """Take a thing away, and with it all that was made on it."""
        self.plugged.discard(thing)
        for part in self.parts.values():
            part.lost |= {use.thing for use in part.uses if use.is_made and use.thing == thing}

    def made(self) -> list[Use]:
        """Return the uses for which something is on the hardware."""
        return [
            use
            for part in self.parts.values()
            for use in part.uses
            if use.is_made and use.thing not in part.lost
        ]


def check_against(reference: Reference, instance: Instance) -> None:
    """Assert that journal, ledger, CDI files and hardware tell what the reference does."""
    parts = reference.parts
    records = {(record.driver, record.ref.name): record for record in instance.journal.records()}
    assert set(records) == set(parts)
    for key, record in records.items():
        assert record.state.value == ("unpreparing" if parts[key].stuck else "prepared")
        uses = parts[key].uses
        assert [device.allocated.device for device in record.devices] == [use.device for use in uses]
        cpus = [hold.unit for hold in record.holds if hold.unit.startswith("plan:cpu:")]
        assert len(cpus) == sum(use.amount for use in uses if kind_of(use.device) == "cpu" and not use.admin)
    assert reference.fits(()), "nothing is given to two"
    check_ledger(instance.journal)
    made = sorted((use.thing, use.device.endswith(use.thing)) for use in reference.made())
    assert [(thing, what != "gi") for thing, what, *_ in hardware(instance.node)] == made
    assert all(one[-1] == 1 for one in hardware(instance.node) if one[1] == "gi"), "no half of a partition"
    files = {name for name in cdi_files(instance.node) if "-base" not in name}
    names = {key: f"{key[0]}-claim-uid-{key[1]}.json" for key, part in parts.items() if not part.stuck}
    assert files >= {name for key, name in names.items() if parts[key].file}
    assert files <= set(names.values())
    assert metadata_files(instance.node) == metadata_of(
        record for key, record in records.items() if not parts[key].stuck
    )
    assert complaints(instance.node.host_root) == ()
    assert instance.engine._locks._locks == {}, "nobody holds or awaits a lock"
