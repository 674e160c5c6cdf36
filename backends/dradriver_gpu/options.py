"""What stands below `backends.gpu` in the configuration."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from dradriver.backend import Strict
from dradriver.model.names import check_absolute

if TYPE_CHECKING:
    from dradriver.backend.select import Filter

GPUMode = Literal["static", "whole", "partitions", "shares", "passthrough"]
"""How a GPU is offered; see docs/devices.md."""

DriverCapability = Literal["compute", "utility", "graphics", "video", "display", "compat32", "ngx"]
"""What of the driver containers get, by the names of NVIDIA_DRIVER_CAPABILITIES."""


OWN_DOMAIN = "gpu.dradriver.io"
"""Where filters find a device's own attributes, whatever the driver is called."""


class GpuOptions(Strict, frozen=True, kw_only=True):
    """How the driver is found, and how GPUs are offered.

    driverRoot         where the driver is, below the host root: `/run/nvidia/driver` for a driver in a container
    mode               how GPUs are offered; `modes` for single ones, by the first entry whose key fits: the name of
                       the GPU's device, its UUID or its product, with `*` and `?` for any letters
    migMode            whether MIG mode is switched at Prepare, where that takes no reset
    foreignInstances   what becomes of GPU instances that no claim of ours made
    passthrough        whether GPUs that are offered whole or in partitions are also offered to virtual machines
    shares             into how many equal shares a shared GPU is divided; 0 shares its memory out in bytes
    devices            CEL expression over a device: only those of which it is true are offered
    closeWhenIdle      whether the NVML library is shut down between calls, so that the kernel module can be unloaded
    driverCapabilities what containers get of the driver
    ignoredXids        XID errors that do not make a GPU unhealthy, beside those of applications
    fatalTaint         effect of the taints for what neither a GPU nor who has it recovers from by itself
    runDirectory       what is kept of settings that were changed for claims, and of MPS: below the host root, gone
                       after a reboot
    mpsLauncher        who keeps MPS control daemons while dradriver is updated: units of the host's systemd; the
                       keeper, in a pod of its own; or nobody: they are processes that end with its own unit or
                       container
    """

    driver_root: str = "/"
    mode: GPUMode = "static"
    modes: dict[str, GPUMode] = msgspec.field(default_factory=dict)
    mig_mode: Literal["leave", "switch"] = "leave"
    foreign_instances: Literal["keep", "destroy"] = "keep"
    passthrough: bool = False
    shares: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    devices: str = ""
    close_when_idle: bool = False
    driver_capabilities: tuple[DriverCapability, ...] = ("compute", "utility")
    ignored_xids: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()
    fatal_taint: Literal["NoSchedule", "NoExecute"] = "NoSchedule"
    run_directory: str = "/run/dradriver-gpu"
    mps_launcher: Literal["systemd", "pod", "process"] = "systemd"

    def __post_init__(self) -> None:
        """Refuse paths that are not absolute, shares that nothing has, and a filter that cannot be read."""
        check_absolute(self.driver_root, "driverRoot")
        check_absolute(self.run_directory, "runDirectory")
        if self.shares and "shares" not in {self.mode, *self.modes.values()}:
            raise ValueError("shares: no GPU is offered in shares: set mode, or an entry of modes, to shares")
        try:
            self.filter()
        except ValueError as error:
            raise ValueError(f"devices: {error}") from None

    def filter(self) -> "Filter | None":
        """Return the compiled filter; None where all devices are offered. Raises ValueError."""
        if not self.devices:
            return None
        from dradriver.backend.select import Filter  # noqa: PLC0415 - cel-python is loaded for a filter only

        return Filter(self.devices, OWN_DOMAIN)

    def mode_of(self, *names: str | None) -> GPUMode:
        """Return how the GPU with these names is offered."""
        for pattern, mode in self.modes.items():
            if any(name is not None and fnmatchcase(name, pattern) for name in names):
                return mode
        return self.mode
