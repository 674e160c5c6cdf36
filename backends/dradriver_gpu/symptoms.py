"""What a probe tells of a GPU's health.

Facts: nvml.h; NVIDIA's GPU Memory Error Management for what pending and failed row remapping and retirement mean.
"""

from dataclasses import dataclass

import pynvml

from dradriver_gpu.inventory import GPU
from dradriver_gpu.xids import Severity


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is wrong. `key` and `value` are those of its taint: `gpu.dradriver.io/<key>`."""

    key: str
    value: str
    message: str
    severity: Severity

    @property
    def taint(self) -> tuple[str, str]:
        """What tells it apart from other troubles."""
        return self.key, self.value


ANSWER = "answer"
"""The symptom of a GPU that does not answer."""

LOST = Trouble("lost", "", "GPU is lost", Severity.FATAL)
UNCORRECTED = Trouble("ecc", "uncorrected", "memory errors that could not be corrected", Severity.SICK)
REMAP_FAILED = Trouble("ecc", "remap-failed", "failure to remap a row of memory", Severity.FATAL)
POISON = Trouble("ecc", "poison", "poisoned data was used", Severity.FATAL)

_REMAP_PENDING = Trouble("ecc", "remap-pending", "a reset is due, to remap rows of memory", Severity.SICK)
_RETIREMENT_PENDING = Trouble(
    "ecc", "retirement-pending", "a reset is due, to retire pages of memory", Severity.SICK
)
_SRAM = Trouble("ecc", "sram-threshold", "too many errors of its SRAM", Severity.FATAL)
_UNHEALTHY_LINKS = Trouble("nvlink", "unhealthy", "its NVLinks are unhealthy", Severity.SICK)
_LIMITED_LINKS = Trouble("nvlink", "limited", "its NVLinks have limited capacity", Severity.NOTE)

_RECOVERY = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: Trouble(
        "recovery", "reset", "the driver asks for a reset of the GPU", Severity.FATAL
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: Trouble(
        "recovery", "reboot", "the driver asks for a reboot of the node", Severity.FATAL
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: Trouble(
        "recovery", "drain", "the driver asks for the end of peer-to-peer traffic", Severity.SICK
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: Trouble(
        "recovery", "drain-and-reset", "the driver asks for the GPU to be drained and reset", Severity.FATAL
    ),
    # The domain is to be recovered, by others; the GPU itself is well.
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: Trouble(
        "recovery", "imex-domain", "the driver asks for a recovery of the IMEX domain", Severity.NOTE
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: Trouble(
        "recovery", "bus-reset", "the driver asks for a reset of the bus", Severity.FATAL
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: Trouble(
        "recovery", "system-reboot", "the driver asks for a reboot of the system", Severity.FATAL
    ),
}

_LINKS = {
    pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY: _UNHEALTHY_LINKS,
    pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY: _LIMITED_LINKS,
}


def symptoms(gpu: GPU) -> dict[str, Trouble | None]:
    """Return what was looked at, and what is wrong with it; what the GPU does not tell is not there.

    NVML tells nothing of remapped rows while there are GPU instances, for one: what was known of them then stays.
    """
    found: dict[str, Trouble | None] = {ANSWER: _answer(gpu)}
    if gpu.recovery is not None:
        found["recovery"] = _recovery(gpu.recovery)
    if gpu.rows is not None:
        found["remap"] = _REMAP_PENDING if gpu.rows.pending else None
        found["remap failure"] = REMAP_FAILED if gpu.rows.failed else None
    if gpu.errors.uncorrected is not None:
        found["uncorrected"] = UNCORRECTED if gpu.errors.uncorrected else None
    if gpu.errors.retirement_pending is not None:
        found["retirement"] = _RETIREMENT_PENDING if gpu.errors.retirement_pending else None
    if gpu.errors.sram_threshold is not None:
        found["sram"] = _SRAM if gpu.errors.sram_threshold else None
    if gpu.link_health is not None:
        found["links"] = _LINKS.get(gpu.link_health)
    return found


def was_reset(before: GPU, after: GPU, *, was_lost: bool) -> bool:
    """Return whether a GPU was reset, repaired or taken by its driver anew between two probes.

    was_lost   whether it was lost in between, or before
    """
    if after.fault or not after.visible:
        return False
    return (
        was_lost
        or not before.visible
        or _driver(before) != _driver(after)
        or (bool(before.recovery) and after.recovery == pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
        or (before.errors.uncorrected or 0) > _or_same(after.errors.uncorrected, before.errors.uncorrected)
        or _ended(_remap_pending(before), _remap_pending(after))
        or _ended(before.errors.retirement_pending, after.errors.retirement_pending)
    )


def _answer(gpu: GPU) -> Trouble | None:
    if not gpu.fault:
        return None
    if gpu.lost:
        return Trouble(LOST.key, LOST.value, gpu.fault, LOST.severity)
    return Trouble("fault", "", gpu.fault, Severity.SICK)


def _recovery(action: int) -> Trouble | None:
    if action == pynvml.NVML_GPU_RECOVERY_ACTION_NONE:
        return None
    unknown = Trouble(
        "recovery", f"action-{action}", f"the driver asks for recovery action {action}", Severity.SICK
    )
    return _RECOVERY.get(action, unknown)


def _driver(gpu: GPU) -> str | None:
    return gpu.passthrough.driver if gpu.passthrough else None


def _or_same(now: int | None, before: int | None) -> int:
    return (now if now is not None else before) or 0


def _remap_pending(gpu: GPU) -> bool | None:
    return gpu.rows.pending if gpu.rows else None


def _ended(before: bool | None, after: bool | None) -> bool:
    return before is True and after is False
