"""What containers with network cards get from the container runtime."""

from dataclasses import dataclass
from typing import Any

from dradriver.backend import ContainerAdjustment, ContainerStep

_UNLIMITED = (1 << 64) - 1
"""RLIM_INFINITY."""


@dataclass(frozen=True)
class LockMemory(ContainerStep[Any]):
    """Let a container's programs lock as much memory as they want: what RDMA and VFIO reach is locked."""

    def describe(self) -> str:
        """Return what is done, for people."""
        return "let containers lock memory without a limit"

    def adjustment(self) -> ContainerAdjustment:
        """Return the limit."""
        return ContainerAdjustment(rlimits={"RLIMIT_MEMLOCK": _UNLIMITED})
