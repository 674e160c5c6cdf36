"""Partition safety: what the published counters allow can be made, and what overlaps is refused with its holder's name.

For each board that can do MIG, on one fake GPU of it:

- every pair of its devices, the whole GPU among them, goes through the engine on a board of each generation, with --all
  on every board;
- every set of partitions that the counters allow is made on the hardware itself, whose rules know no counters;
- every largest such set goes through the engine on a board of each generation, with --all on every board; on the
  smallest board every set does.

Less of a set needs less of each counter, and less of the hardware: the largest sets stand for all.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dradriver.model import Device, Quantity
from dradriver_fake.boards import Board, boards
from fakenode import Machine, node_with_board

MIG = [board for board in boards() if board.profiles]
every_board = pytest.mark.parametrize("board", MIG, ids=lambda board: board.board)
GPU = "gpu-0000-43-00-0"


@contextmanager
def fake_gpu(board: Board) -> Iterator[Machine]:
    """A node with one GPU of that board. In memory, where there is such a file system: the journal syncs each write."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        largest = max(profile.memory_mib for profile in board.profiles)
        made = Machine(Path(directory), node_with_board(board.pci_devices[0], largest + 512))
        try:
            yield made
        finally:
            made.close()


Free = dict[str, Quantity]


class Counters:
    """The scheduler's arithmetic on the counters as they are published."""

    def __init__(self, machine: Machine) -> None:
        content = machine.pool("gpu").snapshot.content
        (self.set,) = content.counter_sets
        self.devices = content.devices

    @property
    def full(self) -> Free:
        return dict(self.set.counters)

    def left(self, free: Free, device: Device) -> Free | None:
        drawn = device.consumes[GPU]
        if any(free[name] < amount for name, amount in drawn.items()):
            return None
        return {name: amount - drawn[name] if name in drawn else amount for name, amount in free.items()}

    def sets(self) -> Iterator[tuple[tuple[Device, ...], bool]]:
        """Yield every set of devices that the counters allow, and whether nothing more fits beside it."""

        def after(
            first: int, chosen: tuple[Device, ...], free: Free
        ) -> Iterator[tuple[tuple[Device, ...], bool]]:
            fitting = [device for device in self.devices if self.left(free, device) is not None]
            yield chosen, not fitting
            for number in range(first, len(self.devices)):
                rest = self.left(free, self.devices[number])
                if rest is not None:
                    yield from after(number + 1, (*chosen, self.devices[number]), rest)

        yield from after(0, (), self.full)


def one_of_each_generation(board: Board, everything: bool) -> None:
    if not everything and board.board not in {"A100-SXM4-40GB", "H100-SXM5-80GB", "B200-180GB"}:
        pytest.skip("one board of each generation stands for the others; --all runs all")


@every_board
def test_every_pair_is_prepared_together_or_refused_by_the_ledger(board: Board, everything: bool) -> None:
    one_of_each_generation(board, everything)
    with fake_gpu(board) as machine:
        counters = Counters(machine)
        claims = {device.name: machine.claim(device.name, device.name) for device in counters.devices}
        other = {device.name: machine.claim(f"b-{device.name}", device.name) for device in counters.devices}
        together = 0
        for first in counters.devices:
            assert not isinstance(machine.prepare(claims[first.name]), str)
            left = counters.left(counters.full, first)
            assert left is not None
            for second in counters.devices:
                answer = machine.prepare(other[second.name])
                if second is first or counters.left(left, second) is None:
                    assert isinstance(answer, str), (first.name, second.name)
                    assert str(claims[first.name]) in answer, "the holder is named"
                else:
                    assert not isinstance(answer, str), (first.name, second.name, answer)
                    assert machine.unprepare(other[second.name]) is None
                    together += 1
            assert machine.unprepare(claims[first.name]) is None
            assert not machine.leftovers
        assert together
        assert not machine.complaints, "the hardware never had to refuse"


@every_board
def test_every_set_that_the_counters_allow_can_be_made_on_the_hardware(board: Board) -> None:
    with fake_gpu(board) as machine:
        counters = Counters(machine)
        placements = {f"{GPU}-{placement.suffix}": placement for placement in board.placements()}
        assert {device.name for device in counters.devices} == {*placements, GPU}
        gpu = machine.gpu.gpu(GPU)
        made: list[tuple[str, int]] = []
        sets = 0
        for chosen, _ in counters.sets():
            assert len(chosen) == 1 or GPU not in {device.name for device in chosen}, (
                "the whole GPU stands alone"
            )
            names = [device.name for device in chosen if device.name in placements]
            # Sets come depth first: what the last one and this one begin with in common stays.
            while made and [name for name, _ in made] != names[: len(made)]:
                gpu.destroy_instance(made.pop()[1])
            for name in names[len(made) :]:
                placement = placements[name]
                made.append((name, gpu.create_instance(placement.profile.name, placement.start)))
            sets += 1
        assert sets > len(counters.devices)
        assert not machine.complaints


@every_board
def test_every_largest_set_is_prepared_by_one_claim(board: Board, everything: bool) -> None:
    one_of_each_generation(board, everything)
    with fake_gpu(board) as machine:
        largest = [chosen for chosen, full in Counters(machine).sets() if full]
        assert len(largest) == (18 if board.board == "A30" else 240)
        for number, chosen in enumerate(largest if everything else largest[::3]):
            claim = machine.claim(f"set-{number}", *(device.name for device in chosen))
            answer = machine.prepare(claim)
            assert not isinstance(answer, str), (answer, [device.name for device in chosen])
            assert len(answer) == len(chosen)
            assert machine.unprepare(claim) is None
        assert not machine.leftovers
        assert not machine.complaints


def test_every_set_of_the_smallest_board_is_prepared_by_claims_of_their_own() -> None:
    board = next(board for board in MIG if board.board == "A30")
    with fake_gpu(board) as machine:
        counters = Counters(machine)
        claims = {device.name: machine.claim(device.name, device.name) for device in counters.devices}
        prepared: list[str] = []
        for chosen, _ in counters.sets():
            names = [device.name for device in chosen]
            while prepared and prepared != names[: len(prepared)]:
                assert machine.unprepare(claims[prepared.pop()]) is None
            for name in names[len(prepared) :]:
                assert not isinstance(machine.prepare(claims[name]), str), names
                prepared.append(name)
        for name in prepared:
            assert machine.unprepare(claims[name]) is None
        assert not machine.leftovers
        assert not machine.complaints


def test_the_hardware_itself_refuses_what_overlaps() -> None:
    board = next(board for board in MIG if board.board == "H100-SXM5-80GB")
    with fake_gpu(board) as machine:
        gpu = machine.gpu.gpu(GPU)
        gpu.create_instance("3g.40gb", 4)
        with pytest.raises(
            Exception, match=r"1g\.10gb at memory slice 5: memory slices are taken: insufficient"
        ):
            gpu.create_instance("1g.10gb", 5)
        with pytest.raises(Exception, match="insufficient resources"):
            gpu.use("claim", 0, 0)
        gpu.create_instance("1g.10gb+me", 0)
        with pytest.raises(Exception, match="insufficient resources"):
            gpu.create_instance("1g.10gb+me", 1)
        with pytest.raises(Exception, match="no profile 3g"):
            gpu.create_instance("3g.40gb", 2)
        with pytest.raises(Exception, match="not found"):
            gpu.destroy_instance(9)
        assert len(machine.complaints) == 5
