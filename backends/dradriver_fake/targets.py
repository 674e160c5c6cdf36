"""What the faults of a script can concern on a node: one that concerns nothing is a mistake, and is not passed over."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from dradriver.model import shown
from dradriver_fake.backend import FakeBackend
from dradriver_fake.boards import board_of
from dradriver_fake.facts import NodeFacts
from dradriver_fake.faults import Fault
from dradriver_fake.gpu_devices import GPU, GPUInventory, mode_of, parts_of
from dradriver_fake.nic_devices import Card, Function, NICInventory
from dradriver_fake.options import FakeOptions
from dradriver_fake.script import FILE, Ailments

_Names = tuple[str, str]
"""The names by which a fault finds a device: its own, and that of its card."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What there is on a node, as it is offered.

    cards       names of GPUs and of physical functions of network cards, offered or not
    partitions  places of partitions
    gpus        GPUs and partitions
    nics        functions of network cards
    binding     whether GPUs have binding conditions
    """

    cards: tuple[str, ...]
    partitions: tuple[_Names, ...]
    gpus: tuple[_Names, ...]
    nics: tuple[_Names, ...]
    binding: bool

    @classmethod
    def of(cls, facts: NodeFacts, options: FakeOptions) -> Self:
        """Return what a node has, with all of its devices on the bus."""
        gpus = []
        for gpu in facts.gpus:
            board = board_of(gpu.device)
            mode = mode_of(gpu, board, options.gpu_modes.get(gpu.name, options.gpu_mode))
            gpus.append(GPU(gpu, board, mode, options.gpu_binding, {}))
        cards = [
            Card(
                nic,
                options.nic_modes.get(nic.name, options.nic_mode),
                Function(nic, {}, None),
                tuple(Function(vf, {}, None) for vf in facts.vfs if vf.vf.physfn == nic.bdf),
            )
            for nic in facts.nics
        ]
        parts = list(parts_of(GPUInventory(tuple(gpus), Ailments())))
        functions = NICInventory(tuple(cards), Ailments()).functions()
        return cls(
            (*(gpu.name for gpu in facts.gpus), *(nic.name for nic in facts.nics)),
            tuple((name, gpu.name) for name, gpu, placement in parts if placement),
            tuple((name, gpu.name) for name, gpu, _ in parts),
            tuple((function.name, card.facts.name) for card, function in functions),
            options.gpu_binding,
        )

    def objections(self, faults: Iterable[Fault]) -> Iterator[tuple[int, str, str]]:
        """Yield the index, the field and the reason of each fault that can never happen."""
        for index, fault in enumerate(faults):
            found = self._objection(fault)
            if found:
                yield index, *found

    def _objection(self, fault: Fault) -> tuple[str, str] | None:
        """Return the field, and why the fault can never happen; None where it can."""
        wanted = shown(fault.device)
        if not fault.concerns(self.cards) and not _any(fault, (*self.gpus, *self.nics)):
            return "device", f"{wanted} is no device of this node: {self._known(fault.device)}"
        if fault.point == "probe" and not fault.concerns(self.cards):
            return "device", f"{wanted} is no whole card, and these are what is probed: {self._cards}"
        if fault.point == "half" and not _any(fault, self.partitions):
            return "at", f"half: {wanted} is no partition, and only these are made in two parts"
        if fault.does == "unready" and not _any(fault, self.gpus):
            return "does", f"unready: {wanted} is no GPU, and only these have binding conditions"
        if fault.does == "unready" and not self.binding:
            return "does", "unready: GPUs have binding conditions with gpuBinding: true only"
        return None

    def _known(self, name: str) -> str:
        parts = [part for part, card in (*self.gpus, *self.nics) if part != card]
        near = difflib.get_close_matches(name, [*parts, *self.cards], 1, 0.9)
        hint = f"; near it is {near[0]}" if near else ""
        return f"there are {self._cards}, and what they are offered as (dradriver devices){hint}"

    @property
    def _cards(self) -> str:
        return ", ".join(self.cards) or "no GPUs and network cards"


def _any(fault: Fault, devices: Iterable[_Names]) -> bool:
    return any(fault.concerns(names) for names in devices)


def remarks_of(backend: FakeBackend[Any]) -> tuple[str, ...]:
    """Return what is to be said of faults in the file of faults that can never happen.

    Of the two backends each tells of what has a name of its kind, both of what has a name of neither. Raises
    UnavailableError where the file is wrong.
    """
    faults = backend.script.from_file()
    if not faults:
        return ()
    hardware = backend.hardware
    other = "nic" if backend.kind == "gpu" else "gpu"
    return tuple(
        f"{hardware.directory / FILE}[{index}].{field}: {reason}; nothing comes of this fault"
        for index, field, reason in Targets.of(hardware.facts, hardware.options).objections(faults)
        if not faults[index].device.startswith(other)
    )
