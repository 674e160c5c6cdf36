"""What a claim or a class says of how its GPUs are shared."""

from typing import Annotated, Literal

import msgspec

from dradriver.backend import ClaimConfig, Strict
from dradriver.model import Quantity, shown

MIB = 1 << 20

Interval = Literal["Default", "Short", "Medium", "Long"]
"""Time slices of nvidia-smi compute-policy, by its own words."""

Percentage = Annotated[int, msgspec.Meta(ge=1, le=100)]
Uid = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 2)]


class TimeSlicing(Strict, frozen=True, kw_only=True):
    """How long processes run in turn.

    interval   `Default` leaves the GPU as it is
    """

    interval: Interval = "Default"


class Mps(Strict, frozen=True, kw_only=True):
    """How processes run side by side, behind an MPS control daemon that the claim has for itself.

    defaultActiveThreadPercentage       how much of the multiprocessors one process may use
    defaultPinnedDeviceMemoryLimit      how much memory of each GPU one process may use
    defaultPerDevicePinnedMemoryLimit   the same for single GPUs: the number among the claim's, or the UUID
    uid                                 user for whom the MPS server is started at once; without it the server starts
                                        for the user of the first process

    In a claim for shares of a GPU the limits are those of the claim, and without them what its share comes to.
    """

    default_active_thread_percentage: Percentage | None = None
    default_pinned_device_memory_limit: str | None = None
    default_per_device_pinned_memory_limit: dict[str, str] = msgspec.field(default_factory=dict)
    uid: Uid | None = None

    def __post_init__(self) -> None:
        """Refuse what is no amount of memory."""
        if self.default_pinned_device_memory_limit is not None:
            mebibytes(self.default_pinned_device_memory_limit, "defaultPinnedDeviceMemoryLimit")
        for device, limit in self.default_per_device_pinned_memory_limit.items():
            mebibytes(limit, f"defaultPerDevicePinnedMemoryLimit[{shown(device)}]")

    def limits(self, uuids: tuple[str | None, ...]) -> tuple[int, ...]:
        """Return the limit in MiB for each GPU, 0 for none. Raises ValueError where a key names none of them."""
        own = self.default_pinned_device_memory_limit
        limits = [mebibytes(own, "") if own is not None else 0] * len(uuids)
        # A UUID says more than a number, wherever it stands.
        entries = self.default_per_device_pinned_memory_limit.items()
        for device, limit in sorted(entries, key=lambda entry: not entry[0].isdecimal()):
            number = _number(device, uuids)
            if number is None:
                raise ValueError(
                    f"defaultPerDevicePinnedMemoryLimit: {shown(device)} is none of the claim's GPUs: "
                    f"numbers 0 to {len(uuids) - 1} and their UUIDs are allowed"
                )
            limits[number] = mebibytes(limit, "")
        return tuple(limits)


class Sharing(Strict, frozen=True, kw_only=True):
    """How the processes of a claim share its GPUs; with nothing set, as the driver has it.

    timeSlicing   they run in turn
    mps           they run side by side
    exclusive     one process at a time has a GPU (compute mode EXCLUSIVE_PROCESS)
    """

    time_slicing: TimeSlicing | None = None
    mps: Mps | None = None
    exclusive: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be together."""
        asked = {"timeSlicing": self.time_slicing, "mps": self.mps, "exclusive": self.exclusive}
        given = [name for name, value in asked.items() if value]
        if len(given) > 1:
            raise ValueError(f"one of {', '.join(asked)} is allowed, found {' and '.join(given)}")


class GpuConfig(ClaimConfig, frozen=True, kw_only=True):
    """How a claim wants its GPUs."""

    sharing: Sharing = Sharing()


def mebibytes(text: str, name: str) -> int:
    """Return an amount of memory in whole MiB, as MPS takes them. Raises ValueError."""
    try:
        amount = Quantity.parse(text).to_int() // MIB
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not 0 < amount < 1 << 31:
        raise ValueError(
            f"{name}: {shown(text)} is no amount of GPU memory: 1Mi or more is expected, as 10Gi"
        )
    return amount


def _number(device: str, uuids: tuple[str | None, ...]) -> int | None:
    if device.isascii() and device.isdecimal() and len(device) < 4:
        number = int(device)
        return number if number < len(uuids) else None
    return next(
        (n for n, uuid in enumerate(uuids) if uuid is not None and uuid.lower() == device.lower()), None
    )
