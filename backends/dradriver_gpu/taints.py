"""What ails GPUs, on the devices that are published of them: health, messages and taints."""

from collections.abc import Sequence
from dataclasses import replace

from dradriver.model import Device, Health, Taint, TaintEffect
from dradriver_gpu.geometry import Placement
from dradriver_gpu.inventory import GPU, Ailment, ComputeInstance, GPUInstance
from dradriver_gpu.xids import Severity

DOMAIN = "gpu.dradriver.io"

_MAX_MESSAGE = 500

_MAX_TAINTS = 12
"""Of the 16 that the API allows a device; the engine adds one to those of an unhealthy device."""


def ailing(
    device: Device,
    gpu: GPU,
    ailments: Sequence[Ailment],
    fatal: TaintEffect,
    *,
    placement: Placement | None = None,
    instance: GPUInstance | None = None,
    compute: ComputeInstance | None = None,
) -> Device:
    """Return the device with what ails it: what ails its GPU, and the very instance that it is.

    ailments   those of the GPU
    fatal      the effect of taints for what is fatal

    A device that is no partition has neither placement nor instance, and all slices.
    """
    slices = placement.slices if placement else _slices(instance)
    mine = [one for one in ailments if _concerns(one, slices, instance, compute)]
    if not mine and not gpu.fault:
        return device
    mine.sort(key=lambda one: (-one.severity.value, one.since or "", one.key, one.value))
    messages = [gpu.fault] if gpu.fault else []
    messages += [one.message for one in mine]
    is_sick = bool(gpu.fault) or any(one.severity is not Severity.NOTE for one in mine)
    return replace(
        device,
        health=Health.UNHEALTHY if is_sick else Health.HEALTHY,
        health_message="; ".join(dict.fromkeys(messages))[:_MAX_MESSAGE],
        taints=(*device.taints, *_taints(mine, fatal)),
    )


def _slices(instance: GPUInstance | None) -> range | None:
    return range(instance.start, instance.start + instance.size) if instance else None


def _concerns(
    ailment: Ailment, slices: range | None, instance: GPUInstance | None, compute: ComputeInstance | None
) -> bool:
    if ailment.gpu_instance is not None:
        if instance is None or ailment.gpu_instance != instance.id:
            return False
        return compute is None or ailment.compute_instance in {None, compute.id}
    if ailment.slices is not None and slices is not None:
        return slices.start < ailment.slices.stop and ailment.slices.start < slices.stop
    return True


def _taints(ailments: Sequence[Ailment], fatal: TaintEffect) -> tuple[Taint, ...]:
    """Return their taints, the worst first; what two ailments say alike is said once."""
    effects = {
        Severity.NOTE: TaintEffect.NONE,
        Severity.SICK: TaintEffect.NO_SCHEDULE,
        Severity.FATAL: fatal,
    }
    made: dict[tuple[str, str], Taint] = {}
    for one in ailments:
        if one.key:
            key = f"{DOMAIN}/{one.key}"
            made.setdefault((key, one.value), Taint(key, effects[one.severity], one.value, one.since))
    return tuple(made.values())[:_MAX_TAINTS]
