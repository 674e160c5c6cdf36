"""GPUs as they are published: whole, as partitions that draw on counters, or as shares of memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dradriver.model import (
    AttributeValue,
    BindingConditions,
    Capacity,
    CounterSet,
    Device,
    PoolContent,
    Quantity,
    RequestPolicy,
    ValidRange,
    Version,
)
from dradriver_fake.backend import health_of, odd_answers
from dradriver_fake.boards import Board, Placement, Profile
from dradriver_fake.facts import GPUDevice
from dradriver_fake.options import GPUMode
from dradriver_fake.script import Ailments

DRIVER_VERSION = Version("580.95.5")
CUDA_VERSION = Version("13.0.0")

MEMORY = "memory"

READY, FAILED = "dradriver.io/GPUReady", "dradriver.io/GPUFailed"
"""Binding conditions."""

_DIMENSIONS = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg-engines",
    "ofaEngines": "ofa-engines",
    MEMORY: MEMORY,
}
"""Capacity -> counter."""


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU on the bus, how it is offered, and where it is. `board` is None for one whose geometry is not known."""

    facts: GPUDevice
    board: Board | None
    mode: GPUMode
    binds: bool
    place: Mapping[str, AttributeValue]

    @property
    def name(self) -> str:
        """The name of its device."""
        return self.facts.name

    @property
    def binding(self) -> BindingConditions | None:
        """What pods wait for before they are bound to it, or to a partition of it."""
        return BindingConditions((READY,), (FAILED,)) if self.binds else None

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Where partitions can be; none on a GPU that is not offered so."""
        return self.board.placements() if self.board and self.mode == "partitions" else ()


@dataclass(frozen=True, slots=True)
class GPUInventory:
    """The GPUs on the bus, what is wrong with them, and with the fault script."""

    gpus: tuple[GPU, ...]
    ailments: Ailments
    remarks: tuple[str, ...] = ()


def mode_of(facts: GPUDevice, board: Board | None, wanted: GPUMode) -> GPUMode:
    """Return how a GPU is offered: one that cannot do MIG is offered whole instead of in partitions."""
    if wanted == "partitions" and not (facts.gpu.mig_capable and board and board.profiles):
        return "whole"
    return wanted


def content_of(inventory: GPUInventory) -> PoolContent:
    """Return what is offered of the GPUs; partitions stand before their GPU, which needs all of the counters."""
    devices: list[Device] = []
    counter_sets = []
    for gpu in inventory.gpus:
        if gpu.board and gpu.placements:
            counter_sets.append(CounterSet(gpu.name, counters(gpu.board)))
        made = [*(_partition(gpu, placement, inventory.ailments) for placement in gpu.placements)]
        made.append(_whole(gpu, inventory.ailments))
        devices += [one for one in made if not inventory.ailments.of((one.name, gpu.name), "vanish")]
    return PoolContent(tuple(devices), tuple(counter_sets), warnings=inventory.remarks)


def amounts(profile: Profile) -> dict[str, Quantity]:
    """Return what an instance of a profile has, by capacity name."""
    return {
        "multiprocessors": Quantity.from_int(profile.multiprocessors),
        "copyEngines": Quantity.from_int(profile.copy_engines),
        "decoders": Quantity.from_int(profile.decoders),
        "encoders": Quantity.from_int(profile.encoders),
        "jpegEngines": Quantity.from_int(profile.jpeg_engines),
        "ofaEngines": Quantity.from_int(profile.ofa_engines),
        MEMORY: Quantity.from_int(profile.memory_mib << 20, binary=True),
    }


def counters(board: Board) -> dict[str, Quantity]:
    """Return the counters of a GPU: of each dimension as much as its largest profile has, and its memory slices."""
    every = [amounts(profile) for profile in board.profiles]
    found = {counter: max(one[name] for one in every) for name, counter in _DIMENSIONS.items()}
    return found | {f"memory-slice-{number}": Quantity.from_int(1) for number in range(board.memory_slices)}


def _drawn(placement: Placement) -> dict[str, Quantity]:
    """Return the counters that a partition draws on; what it has none of is left out."""
    has = amounts(placement.profile)
    drawn = {counter: has[name] for name, counter in _DIMENSIONS.items() if has[name].nano}
    return drawn | {f"memory-slice-{number}": Quantity.from_int(1) for number in placement.slices}


def _common(gpu: GPU) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {"productName": gpu.facts.gpu.product, "brand": "Nvidia"}
    if gpu.board:
        attributes["architecture"] = gpu.board.architecture
        attributes["cudaComputeCapability"] = Version(gpu.board.compute_capability)
    return {
        **attributes,
        "driverVersion": DRIVER_VERSION,
        "cudaDriverVersion": CUDA_VERSION,
        **gpu.place,
    }


def _partition(gpu: GPU, placement: Placement, ailments: Ailments) -> Device:
    name = f"{gpu.name}-{placement.suffix}"
    names = (name, gpu.name)
    attributes: dict[str, AttributeValue] = {
        "type": "mig",
        "profile": placement.profile.name,
        "parentUUID": gpu.facts.gpu.uuid,
        **_common(gpu),
    }
    return Device(
        name=name,
        thing=gpu.name,
        attributes=odd_answers(ailments, names, attributes, "productName"),
        capacity={key: Capacity(amount) for key, amount in amounts(placement.profile).items()},
        consumes={gpu.name: _drawn(placement)},
        binding=gpu.binding,
        **health_of(ailments, names),
    )


def _whole(gpu: GPU, ailments: Ailments) -> Device:
    names = (gpu.name,)
    attributes: dict[str, AttributeValue] = {"type": "gpu", "uuid": gpu.facts.gpu.uuid, **_common(gpu)}
    consumes: dict[str, dict[str, Quantity]] = {}
    if gpu.board and gpu.placements:
        consumes[gpu.name] = {name: amount for name, amount in counters(gpu.board).items() if amount.nano}
    return Device(
        name=gpu.name,
        thing=gpu.name,
        attributes=odd_answers(ailments, names, attributes, "productName"),
        capacity={MEMORY: Capacity(_memory(gpu), _policy() if gpu.mode == "shares" else None)},
        shared=gpu.mode == "shares",
        consumes=consumes,
        binding=gpu.binding,
        **health_of(ailments, names),
    )


def _memory(gpu: GPU) -> Quantity:
    return Quantity.from_int(gpu.facts.gpu.memory_mib << 20, binary=True)


def _policy() -> RequestPolicy:
    """Allow whole mebibytes; a request that names no amount gets a gibibyte."""
    mib = Quantity.from_int(1 << 20, binary=True)
    gib = Quantity.from_int(1 << 30, binary=True)
    return RequestPolicy(default=gib, valid_range=ValidRange(min=mib, step=mib))


def parts_of(inventory: GPUInventory) -> Iterator[tuple[str, GPU, Placement | None]]:
    """Yield each device by name, with its GPU, and where it is a partition of it."""
    for gpu in inventory.gpus:
        yield gpu.name, gpu, None
        for placement in gpu.placements:
            yield f"{gpu.name}-{placement.suffix}", gpu, placement
