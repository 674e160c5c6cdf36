"""GPUs as they are published: whole, as partitions that draw on counters, in shares, and for passing through."""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dradriver.model import (
    AttributeValue,
    Capacity,
    CounterSet,
    Device,
    PoolContent,
    Quantity,
    RequestPolicy,
    TaintEffect,
    ValidRange,
    Version,
)
from dradriver_gpu.geometry import MEMORY, Geometry, Placement, Resources
from dradriver_gpu.inventory import GPU, ComputeInstance, Driver, GPUInstance, GPUInventory
from dradriver_gpu.offer import Offer, foreign, offer_of
from dradriver_gpu.options import GpuOptions
from dradriver_gpu.taints import ailing

if TYPE_CHECKING:
    from dradriver.backend.select import Filter

SHARES = "shares"
"""Capacity of a GPU that is divided into equal shares."""

WHOLE = "gpu"
"""The counter of a GPU without partitions that is offered in two ways."""

PASSTHROUGH_SUFFIX = "vfio"

_ONE = Quantity.from_int(1)
_MIB = Quantity.from_int(1 << 20, binary=True)
_GIB = Quantity.from_int(1 << 30, binary=True)

_VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?")


def content_of(inventory: GPUInventory, options: GpuOptions, wanted: "Filter | None" = None) -> PoolContent:
    """Return what is offered of the GPUs, and why what is missing is missing.

    Partitions stand before their GPU, which needs all of the counters; a virtual machine's GPU comes last.
    """
    devices: list[Device] = []
    counter_sets = []
    notes, warnings = [*inventory.notes], [*inventory.warnings]
    for gpu in inventory.gpus:
        offer = offer_of(gpu, options)
        if offer.counts:
            counter_sets.append(CounterSet(gpu.name, _counters(offer, options)))
        devices += _devices(offer, inventory, options)
        notes += [*offer.notes, *_pending(gpu)]
        warnings += offer.warnings
    if wanted:
        chosen, unsaid = wanted.chosen(devices)
        devices = list(chosen)
        warnings += unsaid
        drawn = {name for device in devices for name in device.consumes}
        counter_sets = [one for one in counter_sets if one.name in drawn]
    return PoolContent(tuple(devices), tuple(counter_sets), tuple(notes), tuple(warnings))


def _devices(offer: Offer, inventory: GPUInventory, options: GpuOptions) -> Iterator[Device]:
    gpu = offer.gpu
    ailments = [ailment for ailment in inventory.ailments if ailment.gpu == gpu.name]
    ill = functools.partial(ailing, gpu=gpu, ailments=ailments, fatal=TaintEffect(options.fatal_taint))
    common = _common(gpu, inventory.driver)
    for placement in offer.placements:
        made = _partition(gpu, placement, common)
        yield ill(made, placement=placement, instance=gpu.instance_at(placement))
    for instance, compute in offer.existing:
        yield ill(_existing(gpu, instance, compute, common), instance=instance, compute=compute)
    if offer.whole:
        yield ill(_shared(offer, common, options.shares) if offer.shared else _whole(offer, common))
    if offer.passthrough:
        yield ill(_passed_through(offer))


def _pending(gpu: GPU) -> Iterator[str]:
    if gpu.mig and gpu.mig.pending != gpu.mig.enabled:
        yield f"{gpu.name}: MIG mode goes {'on' if gpu.mig.pending else 'off'} at the next reset"


# --- attributes


def semantic_version(text: str) -> Version | None:
    """Return a version as a semantic one: 595.58.03 is 595.58.3, 12.8 is 12.8.0; None for anything else."""
    match = _VERSION.fullmatch(text)
    return Version(".".join(str(int(number or 0)) for number in match.groups())) if match else None


def _common(gpu: GPU, driver: Driver) -> dict[str, AttributeValue]:
    """Return what every device of a GPU that the driver serves has in common; what is not known is left out."""
    capability, cuda = gpu.compute_capability, driver.cuda
    found = {
        "productName": gpu.product,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "cudaComputeCapability": Version(f"{capability[0]}.{capability[1]}.0") if capability else None,
        "driverVersion": semantic_version(driver.version),
        "cudaDriverVersion": Version(f"{cuda[0]}.{cuda[1]}.0") if cuda else None,
        "addressingMode": gpu.addressing,
        "fabricClique": f"{gpu.fabric.cluster}.{gpu.fabric.clique}" if gpu.fabric else None,
    }
    return {name: value for name, value in found.items() if value is not None} | dict(gpu.place)


@functools.lru_cache(maxsize=1024)
def _amounts(resources: Resources) -> Mapping[str, Capacity]:
    return {name: Capacity(amount) for name, amount in resources.amounts().items()}


def _memory(gpu: GPU, policy: RequestPolicy | None = None) -> dict[str, Capacity]:
    if gpu.memory_bytes is None:
        return {}
    return {MEMORY: Capacity(Quantity.from_int(gpu.memory_bytes, binary=True), policy)}


# --- devices


def _partition(gpu: GPU, placement: Placement, common: Mapping[str, AttributeValue]) -> Device:
    assert gpu.geometry is not None  # noqa: S101 - the placement is one of it
    return Device(
        name=f"{gpu.name}-{placement.suffix}",
        thing=gpu.name,
        attributes={"type": "mig", "profile": placement.profile.name, "parentUUID": gpu.uuid or "", **common},
        capacity=_amounts(placement.profile.resources),
        consumes={gpu.name: gpu.geometry.drawn(placement)},
    )


def _existing(
    gpu: GPU, instance: GPUInstance, compute: ComputeInstance, common: Mapping[str, AttributeValue]
) -> Device:
    """Return the device of a compute instance."""
    profile = instance.placement.profile if instance.placement else None
    name = profile.name if profile else f"profile-{instance.profile_id}"
    resources = compute.resources or (profile.resources if profile else None)
    if profile and compute.slices is not None and compute.slices < profile.slices:
        name = f"{compute.slices}c.{name}"
    return Device(
        name=f"{gpu.name}-{instance.part(compute)}",
        thing=gpu.name,
        attributes={
            "type": "mig",
            "uuid": compute.uuid or "",
            "profile": name,
            "parentUUID": gpu.uuid or "",
            **common,
        },
        capacity=_amounts(resources) if resources else {},
    )


def _whole(offer: Offer, common: Mapping[str, AttributeValue]) -> Device:
    gpu = offer.gpu
    return Device(
        name=gpu.name,
        thing=gpu.name,
        attributes={"type": "gpu", "uuid": gpu.uuid or "", **common},
        capacity=_memory(gpu),
        consumes=_all_of(offer),
    )


def _shared(offer: Offer, common: Mapping[str, AttributeValue], shares: int) -> Device:
    """Return a GPU that many claims hold at once: by bytes of its memory, or in equal shares."""
    if shares:
        count = Quantity.from_int(shares)
        policy = RequestPolicy(_ONE, valid_range=ValidRange(_ONE, step=_ONE))
        if shares == 1:  # a range must have room for one step
            policy = RequestPolicy(_ONE, valid_values=(_ONE,))
        # Nobody asks for memory then: it is shown for selectors, and a share takes nothing of it.
        nothing = RequestPolicy(Quantity(0), valid_values=(Quantity(0),))
        capacity = {SHARES: Capacity(count, policy), **_memory(offer.gpu, nothing)}
    else:
        capacity = _memory(offer.gpu, RequestPolicy(_GIB, valid_range=ValidRange(_MIB, step=_MIB)))
    return replace(_whole(offer, common), capacity=capacity, shared=True)


def _passed_through(offer: Offer) -> Device:
    gpu = offer.gpu
    ids = gpu.passthrough
    found = {
        "type": "vfio",
        "uuid": gpu.uuid,
        "productName": gpu.product,
        "vendorID": f"0x{ids.vendor:04x}" if ids and ids.vendor is not None else None,
        "deviceID": f"0x{ids.device:04x}" if ids and ids.device is not None else None,
        **gpu.place,
    }
    return Device(
        name=f"{gpu.name}-{PASSTHROUGH_SUFFIX}",
        thing=gpu.name,
        attributes={name: value for name, value in found.items() if value is not None},
        capacity=_memory(gpu),
        consumes=_all_of(offer),
    )


# --- counters


def _counters(offer: Offer, options: GpuOptions) -> Mapping[str, Quantity]:
    """Return the counters of a GPU, less what stands on it that is not ours."""
    geometry = _divided(offer)
    if geometry is None:
        return {WHOLE: _ONE}
    left = dict(geometry.counters)
    for instance in foreign(offer.gpu, options):
        if instance.placement:
            for name, amount in geometry.drawn(instance.placement).items():
                left[name] -= amount
    return left


def _all_of(offer: Offer) -> dict[str, Mapping[str, Quantity]]:
    """Return what the GPU as a whole draws: all that there is, so that nothing stands beside it."""
    if not offer.counts:
        return {}
    geometry = _divided(offer)
    if geometry is None:
        return {offer.gpu.name: {WHOLE: _ONE}}
    return {offer.gpu.name: geometry.all_of_it}


def _divided(offer: Offer) -> Geometry | None:
    return offer.gpu.geometry if offer.placements else None
