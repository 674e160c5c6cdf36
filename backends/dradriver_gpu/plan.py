"""What an allocation of GPUs comes to: the steps that make them ready. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dradriver.backend import Check, ContainerEdits, Plan, PlanError, PlannedDevice, Request, Requested, Step
from dradriver.model import ClaimRef
from dradriver_gpu.config import GpuConfig, Mps
from dradriver_gpu.devices import SHARES
from dradriver_gpu.geometry import MEMORY, MIB
from dradriver_gpu.inventory import GPU, GPUInventory
from dradriver_gpu.options import GpuOptions
from dradriver_gpu.steps_mig import CreatePartition, SeeUndivided, SwitchMigMode, UsePartition
from dradriver_gpu.steps_sharing import RunMps, SetComputeMode, SetTimeSlice
from dradriver_gpu.steps_vfio import BindVfio
from dradriver_gpu.target import Kind, Target, target_of

PLAIN, TIME_SLICING, MPS, EXCLUSIVE = "plain", "timeSlicing", "mps", "exclusive"

WHOLE, MIG, PASSTHROUGH = "whole", "mig", "vfio"
_KINDS = {WHOLE: "as a whole", MIG: "in partitions", PASSTHROUGH: "for a virtual machine"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One device of a request, what it is, and how its processes are to share it.

    strategy   one of the names above
    """

    requested: Requested
    target: Target
    strategy: str
    config: GpuConfig

    @property
    def gpu(self) -> GPU:
        """The GPU that it is, or is a part of."""
        return self.target.gpu

    @property
    def name(self) -> str:
        """The device's name."""
        return self.requested.device.name


def plan_gpus(
    request: Request, inventory: GPUInventory, held: Mapping[str, ClaimRef], options: GpuOptions
) -> Plan:
    """Return what makes the devices of a request ready.

    Claims hold how they have a GPU, as `gpu-0000-41-00-0/mps/<claim uid>-<index>`, since all of them must agree.
    Raises PlanError for a device that cannot be used, and for sharing that it does not have.
    """
    asked = [asked_of(requested, inventory) for requested in request.devices]
    for one in asked:
        trouble = _unusable(one, options) or _unsharable(one)
        if trouble:
            raise PlanError(f"device {one.name}: {trouble}")
    owning = [one for one in asked if not one.requested.allocated.admin]
    return Plan(
        tuple(PlannedDevice(one.requested.allocated, ContainerEdits()) for one in asked),
        tuple(_steps(owning, request.claim.uid, options)),
        _holds(owning, request.claim, held),
        tuple(_checks(owning, options)),
    )


# --- what is asked


def asked_of(requested: Requested, inventory: GPUInventory) -> Asked:
    """Return what a device is, and how it is to be shared. Raises PlanError where it is not there any more."""
    config = requested.config(GpuConfig)
    return Asked(requested, target_of(requested.device, inventory), _strategy(config), config)


def _strategy(config: GpuConfig) -> str:
    sharing = config.sharing
    if sharing.mps:
        return MPS
    if sharing.exclusive:
        return EXCLUSIVE
    if sharing.time_slicing and sharing.time_slicing.interval != "Default":
        return TIME_SLICING
    return PLAIN


def _unusable(one: Asked, options: GpuOptions) -> str:
    """Return why a device cannot be used now; empty where it can."""
    gpu, target = one.gpu, one.target
    if target.kind is Kind.PASSTHROUGH:
        return _unpassable(gpu, options)
    if gpu.fault or not gpu.visible:
        return f"the GPU cannot be used: {gpu.fault}" if gpu.fault else "the GPU is bound to vfio-pci"
    if one.requested.allocated.admin:
        is_there = target.kind is not Kind.PARTITION or (target.instance and target.instance.compute)
        return "" if is_there else "admin access looks at what is there, and this partition is not"
    if target.kind is Kind.EXISTING or _reaches(gpu, options, enabled=target.is_mig):
        return ""
    return _stays(gpu, enabled=not target.is_mig)


def _stays(gpu: GPU, *, enabled: bool) -> str:
    """Return that MIG mode of a GPU is so, and who could change it."""
    switchable = gpu.mig is not None and gpu.mig.switchable
    how = "option migMode" if switchable else f"a reset changes it: nvidia-smi -mig {int(not enabled)}"
    return f"MIG mode of its GPU is {'on' if enabled else 'off'} ({how})"


def _unpassable(gpu: GPU, options: GpuOptions) -> str:
    if gpu.passthrough is None or gpu.passthrough.iommu_group is None:
        return "it is in no IOMMU group"
    if gpu.visible and gpu.fault and not gpu.passthrough.is_bound:
        return f"the GPU cannot be used: {gpu.fault}"
    if gpu.visible and not _reaches(gpu, options, enabled=False):
        return _stays(gpu, enabled=True)
    return ""


def _reaches(gpu: GPU, options: GpuOptions, *, enabled: bool) -> bool:
    """Return whether MIG mode of a GPU is so, or may be made so without a reset."""
    is_enabled = gpu.mig is not None and gpu.mig.enabled
    if is_enabled == enabled:
        return True
    return gpu.mig is not None and gpu.mig.switchable and options.mig_mode == "switch"


def _unsharable(one: Asked) -> str:
    """Return why a device cannot be shared as it is asked; empty where it can."""
    strategy, kind = one.strategy, one.target.kind
    field = f"GpuConfig.sharing.{strategy}"
    if strategy == PLAIN:
        return ""
    if one.requested.allocated.admin:
        return f"{field}: admin access changes nothing of a device"
    if kind is Kind.PASSTHROUGH:
        return f"{field}: how a GPU is shared in a virtual machine is decided there"
    if one.target.is_mig and strategy != MPS:
        what = "time slices are set" if strategy == TIME_SLICING else "compute modes are"
        return f"{field}: {what} of whole GPUs, not of a {kind.value}; mps is allowed"
    if kind is Kind.SHARE and strategy == EXCLUSIVE:
        return f"{field}: other claims share this GPU; timeSlicing and mps are allowed"
    return ""


def _holds(owning: list[Asked], claim: ClaimRef, held: Mapping[str, ClaimRef]) -> frozenset[str]:
    """Return what a claim holds: how it shares GPUs, and the IOMMU groups that one virtual machine gets.

    Raises PlanError where others share a GPU otherwise.
    """
    groups = {
        f"iommu-group/{one.gpu.passthrough.iommu_group}"
        for one in owning
        if one.target.kind is Kind.PASSTHROUGH and one.gpu.passthrough
    }
    shares: dict[str, ClaimRef] = {}
    for one in owning:
        manner = _manner(one)
        for name, other in [*held.items(), *shares.items()]:
            gpu, _, rest = name.partition("/")
            theirs = rest.partition("/")[0]
            if gpu == one.gpu.name and _collide(manner, theirs):
                raise PlanError(f"device {one.name}: {_collision(manner, theirs, other)}")
        shares[f"{one.gpu.name}/{manner}/{claim.uid}-{one.requested.index}"] = claim
    return frozenset(groups | shares.keys())


def _collision(manner: str, theirs: str, other: ClaimRef) -> str:
    if theirs in _KINDS:
        return f"its GPU is held by claim {other}, {_KINDS[theirs]}"
    if manner in _KINDS:
        return f"its GPU is held by claim {other}, in shares"
    return (
        f"GpuConfig.sharing: {manner} is asked, and claim {other} shares this GPU by {theirs}: all claims that share "
        "a GPU share it alike"
    )


def _manner(one: Asked) -> str:
    """Return how a claim has a GPU: what it is to it, and of a share how it is shared."""
    if one.target.is_mig:
        return MIG
    if one.target.kind is not Kind.SHARE:
        return PASSTHROUGH if one.target.kind is Kind.PASSTHROUGH else WHOLE
    time_slicing = one.config.sharing.time_slicing
    if one.strategy == TIME_SLICING and time_slicing:
        return f"{TIME_SLICING}:{time_slicing.interval}"
    return one.strategy


def _collide(manner: str, other: str) -> bool:
    """Return whether two cannot have parts of one GPU: MPS keeps everybody else out, and a GPU has one time slice.

    A GPU that is given out whole is none that has partitions, whichever of both its MIG mode shows now: somebody else
    may have switched it. Two that have it whole have the same device, which the ledger refuses.
    """
    both = {manner, other}
    return manner != other and (bool(both & _KINDS.keys()) or MPS in both or PLAIN not in both)


# --- checks and steps


def _checks(asked: list[Asked], options: GpuOptions) -> Iterator[Check[Any]]:
    """Yield what is to be looked at: others may have switched MIG mode on since."""
    for one in asked:
        if one.target.kind in {Kind.WHOLE, Kind.SHARE} and _is_seen(one.gpu, options):
            yield SeeUndivided(one.name, one.gpu.name)


def _steps(asked: list[Asked], claim: str, options: GpuOptions) -> Iterator[Step[Any]]:
    """Yield what is done: MIG mode, partitions, sharing, passing through."""
    yield from _switches(asked, claim, options)
    for one in asked:
        if one.target.kind is Kind.PARTITION:
            yield _creation(one)
        elif one.target.kind is Kind.EXISTING:
            yield _use(one)
    for one in asked:
        time_slicing = one.config.sharing.time_slicing
        if one.strategy == TIME_SLICING and time_slicing:
            yield SetTimeSlice(one.gpu.name, claim, one.requested.index, time_slicing.interval)
        elif not one.target.is_mig and one.strategy in {EXCLUSIVE, MPS}:
            shared = one.target.kind is Kind.SHARE
            yield SetComputeMode(one.gpu.name, claim, one.requested.index, shared)
    yield from _mps(asked, claim, options)
    passed = [one for one in asked if one.target.kind is Kind.PASSTHROUGH]
    names = tuple(one.gpu.name for one in passed)
    for one in passed:
        yield BindVfio(one.gpu.name, tuple(name for name in names if name != one.gpu.name))


def _switches(asked: list[Asked], claim: str, options: GpuOptions) -> Iterator[SwitchMigMode]:
    """Yield a switch for each GPU whose MIG mode may be switched, once: also where it need not be switched now.

    Of several claims that need it so the last one puts it back.
    """
    seen = set()
    for one in asked:
        mig = one.gpu.mig
        if mig is None or not _switched(one.gpu, options):
            continue
        if one.gpu.name in seen or not one.gpu.visible:
            continue
        if one.target.kind is Kind.EXISTING or (not one.target.is_mig and not mig.enabled):
            continue
        seen.add(one.gpu.name)
        yield SwitchMigMode(one.gpu.name, claim, one.requested.index, one.target.is_mig)


def _switched(gpu: GPU, options: GpuOptions) -> bool:
    """Return whether MIG mode of a GPU is switched for claims."""
    return gpu.mig is not None and gpu.mig.switchable and options.mig_mode == "switch"


def _is_seen(gpu: GPU, options: GpuOptions) -> bool:
    """Return whether a GPU is to be seen with MIG mode off: it has that mode, and no switch makes it so."""
    return gpu.mig is not None and not (gpu.mig.enabled and _switched(gpu, options))


def _creation(one: Asked) -> CreatePartition:
    placement = one.target.placement
    assert placement is not None  # noqa: S101 - a partition has one
    profile = placement.profile
    return CreatePartition(
        device=one.name,
        gpu=one.gpu.name,
        profile=profile.name,
        profile_id=profile.id,
        start=placement.start,
        size=profile.size,
        multiprocessors=profile.resources.multiprocessors,
        memory_mib=profile.resources.memory_mib,
    )


def _use(one: Asked) -> UsePartition:
    instance, compute = one.target.instance, one.target.compute
    assert instance is not None  # noqa: S101 - an existing one is known by it
    assert compute is not None  # noqa: S101
    return UsePartition(one.name, one.gpu.name, instance.id, compute.id, compute.uuid or "")


# --- MPS


def _mps(asked: list[Asked], claim: str, options: GpuOptions) -> Iterator[RunMps]:
    """Yield the claim's control daemon: a container talks to one, so that a claim has one."""
    group = [one for one in asked if one.strategy == MPS]
    if not group:
        return
    first = group[0]
    field = "GpuConfig.sharing.mps"
    if len(group) > 1:
        others = ", ".join(one.name for one in group[1:])
        if any(one.target.kind is not Kind.WHOLE for one in group):
            raise PlanError(
                f"device {first.name}: {field}: one MPS control daemon serves whole GPUs, or one part or share of a "
                f"GPU; also asked for {others}: a claim for each is expected"
            )
        if any(one.config.sharing.mps != first.config.sharing.mps for one in group):
            raise PlanError(f"device {first.name}: {field}: it is another one for {others}: a claim has one")
    config = first.config.sharing.mps or Mps()
    shared = first.target.kind is Kind.SHARE
    limits = limits_of(group)
    user = -1 if config.uid is None else config.uid
    yield RunMps(
        name=first.gpu.name if shared else f"claim-{claim.lower()}",
        claim=claim,
        index=first.requested.index,
        gpus=tuple(one.gpu.name for one in group),
        launcher=options.mps_launcher,
        profile_id=first.target.placement.profile.id if first.target.placement else -1,
        start=first.target.placement.start if first.target.placement else -1,
        uuid=(first.target.compute.uuid or "") if first.target.compute else "",
        # What one claim wants must not bind the others that share the daemon: it goes into the containers instead.
        percentage=0 if shared else (config.default_active_thread_percentage or 0),
        limits=() if shared else limits,
        user=user,
        shared=shared,
    )


def limits_of(group: list[Asked]) -> tuple[int, ...]:
    """Return the limit of pinned memory in MiB for each device that is asked for with MPS, 0 for none.

    Raises PlanError.
    """
    first = group[0]
    config = first.config.sharing.mps or Mps()
    uuids = tuple(one.target.compute.uuid if one.target.compute else one.gpu.uuid for one in group)
    try:
        limits = config.limits(uuids)
    except ValueError as error:
        raise PlanError(f"device {first.name}: GpuConfig.sharing.mps.{error}") from None
    for one, limit in zip(group, limits, strict=True):
        memory = one.requested.device.capacity.get(MEMORY)
        if memory and limit * MIB > memory.value.to_int():
            raise PlanError(
                f"device {one.name}: GpuConfig.sharing.mps: a limit of {limit} MiB is asked, it has "
                f"{memory.value.to_int() // MIB} MiB"
            )
    return limits


def share_of(one: Asked) -> tuple[int, int]:
    """Return what a share of a GPU comes to with MPS: active thread percentage and MiB of memory, 0 for no limit.

    Raises PlanError.
    """
    config = one.config.sharing.mps or Mps()
    percentage = config.default_active_thread_percentage or 0
    limit = limits_of([one])[0]
    device, allocated = one.requested.device, one.requested.allocated
    memory = device.capacity.get(MEMORY)
    total = memory.value.to_int() // MIB if memory else 0
    shares = device.capacity.get(SHARES)
    if shares:
        whole = shares.value.to_int()
        asked = allocated.consumed.get(SHARES)
        part = asked.to_int() if asked else (1 if allocated.share_id is not None else whole)
        percentage = percentage or max(1, 100 * part // whole)
        most = total * part // whole
    else:
        asked = allocated.consumed.get(MEMORY)
        policy = memory.policy if memory else None
        if asked is None and allocated.share_id is not None and policy:
            asked = policy.default
        most = asked.to_int() // MIB if asked else total
    return percentage, min(limit, most) if limit and most else limit or most
