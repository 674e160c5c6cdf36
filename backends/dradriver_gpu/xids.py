"""XID errors: what they are, and how much they matter to who would use the GPU next.

Facts: NVIDIA's Xid Catalog (docs.nvidia.com/deploy/xid-errors, r590): the immediate action that it advises decides. An
error after which the application is to be started again, or nothing is to be done, leaves the GPU usable. The catalogue
advises a reset after XID 109 too, which an application alone can cause: there the driver's recovery action tells.
"""

from enum import Enum


class Severity(Enum):
    """How much something matters.

    IGNORED   nothing of it is kept
    NOTE      told, and the GPU goes on being given out
    SICK      the GPU is not given out any more
    FATAL     nor can who has it go on: a reset, a reboot or a repair is needed
    """

    IGNORED = 0
    NOTE = 1
    SICK = 2
    FATAL = 3


_FATAL = {
    46: "GPU stopped processing",
    54: "auxiliary power is not connected",
    62: "micro-controller halted",
    64: "failure to remap a row or retire a page of memory",
    79: "GPU has fallen off the bus",
    95: "memory error that was not contained",
    110: "security fault",
    119: "GSP did not answer in time",
    120: "GSP error",
    136: "NVLink training failed",
    140: "ECC error that was not recovered",
    143: "GPU initialisation failed",
    151: "key rotation failed",
    155: "NVLink error found by software",
    156: "a resource was retired, to take effect by a reset",
    158: "GPU did not answer in time",
    167: "PCIe did not answer in time",
    169: "micro-controller halted",
}

# After a memory error work may be ended in peace; whether it was contained, and a reset is due, other XIDs tell.
_SICK = {
    48: "double-bit ECC error",
    74: "NVLink error",
    144: "NVLink error (SAW)",
    145: "NVLink error (RLW)",
    146: "NVLink error (TLW)",
    147: "NVLink error (TREX)",
    148: "NVLink error (NVLPW_CTRL)",
    149: "NVLink error (NETIR)",
    150: "NVLink error (MSE)",
    168: "GPU memory is reduced",
    171: "DRAM error that could not be corrected",
    172: "SRAM error that could not be corrected",
}

_ENGINES = {
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
    **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "video decoder error"),
    **dict.fromkeys((82, *range(99, 106)), "JPEG engine error"),
    **dict.fromkeys((86, 139), "optical flow engine error"),
}

_NOTES = {
    8: "GPU stopped processing",
    11: "invalid or corrupted push buffer",
    25: "invalid or illegal push buffer",
    32: "invalid or corrupted push buffer",
    37: "driver firmware error",
    38: "driver firmware error",
    44: "fault during a context switch",
    60: "video processor error",
    63: "a row of memory was marked for remapping, or a page for retirement",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    69: "graphics engine class error",
    80: "corrupted data sent to the GPU",
    92: "many single-bit ECC errors",
    93: "InfoROM wear limit exceeded",
    94: "memory error that was contained",
    121: "C2C error",
    137: "NVLink privilege error",
    141: "CUDA fast path error",
    142: "video encoder error",
    152: "DLA error",
    153: "DLA did not answer in time",
    157: "failure to retire a resource",
    160: "a channel of memory was retired",
    161: "failure to retire a channel of memory",
    164: "power smoothing nears the end of its life",
    165: "power smoothing is worn out",
    **_ENGINES,
}

_IGNORED = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup",
    68: "video decoder exception",
    106: "test message",
    107: "test message",
    109: "context switch did not end in time",
    154: "recovery action changed",
    162: "power smoothing is on again",
    163: "power smoothing is off",
}

_TABLE: dict[int, tuple[Severity, str]] = {
    number: (severity, text)
    for severity, texts in (
        (Severity.IGNORED, _IGNORED),
        (Severity.NOTE, _NOTES),
        (Severity.SICK, _SICK),
        (Severity.FATAL, _FATAL),
    )
    for number, text in texts.items()
}


def severity_of(number: int) -> Severity:
    """Return how much an XID matters; one that is not known condemns the GPU."""
    return _TABLE.get(number, (Severity.SICK, ""))[0]


def describe(number: int) -> str:
    """Return an XID for people: `XID 79: GPU has fallen off the bus`."""
    text = _TABLE.get(number, (Severity.SICK, ""))[1]
    return f"XID {number}: {text}" if text else f"XID {number}"
