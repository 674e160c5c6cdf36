"""How each GPU is offered: what the options want, as far as the GPU can do it as it stands."""

from dataclasses import dataclass, replace

from dradriver_gpu.geometry import Geometry, Placement
from dradriver_gpu.inventory import GPU, ComputeInstance, GPUInstance, MigMode
from dradriver_gpu.options import GpuOptions


@dataclass(frozen=True, slots=True)
class Offer:
    """What is offered of one GPU. Of all that overlaps the parts draw on one counter set.

    whole, shared   the GPU as a whole, to one claim or in shares to many
    placements      instances that are created when they are allocated, in the order of preference
    existing        compute instances that are given out as they stand
    passthrough     the GPU for a virtual machine
    warnings        why something that the options want is not offered
    """

    gpu: GPU
    whole: bool = False
    shared: bool = False
    placements: tuple[Placement, ...] = ()
    existing: tuple[tuple[GPUInstance, ComputeInstance], ...] = ()
    passthrough: bool = False
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether its devices overlap, so that they draw on counters."""
        return bool(self.placements) or (self.whole and self.passthrough)


def offer_of(gpu: GPU, options: GpuOptions) -> Offer:
    """Return how a GPU is offered."""
    mode = options.mode_of(gpu.name, gpu.uuid, gpu.product)
    if mode == "passthrough":
        return _passed_through(gpu, options)
    if gpu.uuid is None:
        if options.passthrough and mode != "shares":
            return _passed_through(gpu, options)
        return _left_out(gpu, gpu.fault or "it is bound to vfio-pci")
    if mode == "partitions":
        made = _partitioned(gpu, options)
    elif mode == "static" and gpu.mig and gpu.mig.enabled:
        made = _static(gpu)
    else:
        made = _undivided(gpu, options, shared=mode == "shares")
    beside = options.passthrough and made.whole and not made.shared
    if not gpu.visible and not beside:
        return _left_out(gpu, "it is bound to vfio-pci")
    return _with_passthrough(made, options) if beside else made


def foreign(gpu: GPU, options: GpuOptions) -> tuple[GPUInstance, ...]:
    """Return the instances that are not ours and stay: what they take is not offered."""
    if options.foreign_instances == "destroy":
        return ()
    return tuple(instance for instance in gpu.instances if not instance.ours)


def _left_out(gpu: GPU, why: str) -> Offer:
    return Offer(gpu, notes=(f"{gpu.name} is not offered: {why}",))


def _passed_through(gpu: GPU, options: GpuOptions) -> Offer:
    trouble = _unpassable(gpu, options)
    if trouble:
        return Offer(gpu, warnings=(f"{gpu.name} is not offered for passing through: {trouble}",))
    return Offer(gpu, passthrough=True)


def _with_passthrough(offer: Offer, options: GpuOptions) -> Offer:
    trouble = _unpassable(offer.gpu, options)
    if trouble:
        warning = f"{offer.gpu.name} is not offered for passing through: {trouble}"
        return replace(offer, warnings=(*offer.warnings, warning))
    return replace(offer, passthrough=True)


def _unpassable(gpu: GPU, options: GpuOptions) -> str:
    """Return why a GPU cannot be passed through; one that is bound for it already is not the driver's to switch."""
    if gpu.passthrough is None or gpu.passthrough.iommu_group is None:
        return "it is in no IOMMU group"
    return _undividable(gpu, options) if gpu.visible else ""


def _undivided(gpu: GPU, options: GpuOptions, *, shared: bool) -> Offer:
    trouble = _undividable(gpu, options)
    if shared and not trouble and not options.shares and gpu.memory_bytes is None:
        # Without an amount to take from, every claim would get it.
        trouble = "the driver does not tell how much memory it has (option shares divides it without)"
    if trouble:
        return Offer(gpu, warnings=(f"{gpu.name} is not offered: {trouble}",))
    return Offer(gpu, whole=True, shared=shared)


def _undividable(gpu: GPU, options: GpuOptions) -> str:
    """Return why a GPU cannot be used as a whole."""
    if gpu.mig is None or not gpu.mig.enabled:
        return ""
    if not gpu.mig.switchable:
        return "its MIG mode is on, and goes off by a reset only (nvidia-smi -mig 0)"
    if options.mig_mode != "switch":
        return "its MIG mode is on (option migMode)"
    if foreign(gpu, options):
        return "it has GPU instances that were not made here"
    return ""


def _partitioned(gpu: GPU, options: GpuOptions) -> Offer:
    """Offer all that can be created; the whole GPU too, where MIG mode can be off."""
    if gpu.mig is None:
        return _undivided(gpu, options, shared=False)
    trouble = _indivisible(gpu, gpu.mig, options)
    if trouble or gpu.geometry is None:
        made = _existing(gpu) if gpu.mig.enabled else _undivided(gpu, options, shared=False)
        return replace(made, warnings=(*made.warnings, f"{gpu.name} has no partitions: {trouble}"))
    strangers = foreign(gpu, options)
    return Offer(
        gpu,
        whole=not _undividable(gpu, options),
        placements=_free(gpu.geometry, strangers),
        warnings=tuple(
            f"{gpu.name}: GPU instance {one.id} ({_place(one)}) was not made here: what it takes is not offered"
            for one in strangers
        ),
    )


def _indivisible(gpu: GPU, mig: MigMode, options: GpuOptions) -> str:
    """Return why a GPU with MIG cannot be divided."""
    if not mig.enabled and not mig.switchable:
        return "its MIG mode is off, and goes on by a reset only (nvidia-smi -mig 1)"
    if not mig.enabled and options.mig_mode != "switch":
        return "its MIG mode is off (option migMode)"
    if gpu.geometry is None:
        return f"the driver does not tell its MIG profiles{'' if mig.enabled else ' while MIG mode is off'}"
    return "" if gpu.creatable else "the driver cannot create instances at a given place"


def _free(geometry: Geometry, strangers: tuple[GPUInstance, ...]) -> tuple[Placement, ...]:
    """Return what can be created beside the instances that stay."""
    taken = [one.placement for one in strangers if one.placement]
    unknown = [one for one in strangers if one.placement is None]
    return tuple(
        placement
        for placement in geometry.free(taken)
        if not any(placement.overlaps(one.start, one.size) for one in unknown)
    )


def _static(gpu: GPU) -> Offer:
    """Offer the compute instances of a GPU in MIG mode; somebody else makes them."""
    made = _existing(gpu)
    if made.existing:
        return made
    trouble = "its MIG mode is on, and mode static makes no compute instances (option mode)"
    return replace(made, warnings=(*made.warnings, f"{gpu.name} is not offered: {trouble}"))


def _existing(gpu: GPU) -> Offer:
    pairs = tuple((instance, compute) for instance in gpu.instances for compute in instance.compute)
    empty = [instance for instance in gpu.instances if not instance.compute]
    return Offer(
        gpu,
        existing=tuple(sorted((pair for pair in pairs if pair[1].uuid), key=_size)),
        notes=tuple(
            f"{gpu.name}: GPU instance {one.id} ({_place(one)}) has no compute instance" for one in empty
        ),
    )


def _size(pair: tuple[GPUInstance, ComputeInstance]) -> tuple[int, ...]:
    """Order instances as partitions are: small ones first."""
    instance, compute = pair
    return instance.size, compute.slices or 0, instance.start, compute.id


def _place(instance: GPUInstance) -> str:
    name = instance.placement.profile.name if instance.placement else f"profile {instance.profile_id}"
    return f"{name} at memory slice {instance.start}"
