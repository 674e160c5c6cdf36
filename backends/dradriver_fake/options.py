"""What stands below `fake` in the configuration."""

from typing import Literal

import msgspec

from dradriver.backend import Strict
from dradriver.model.names import check_absolute
from dradriver_fake.faults import Fault

GPUMode = Literal["partitions", "whole", "shares"]
NICMode = Literal["vf", "pf", "both", "shares"]


class FakeOptions(Strict, frozen=True, kw_only=True):
    """The node, how its hardware is offered, and what goes wrong with it.

    node        name of a node that comes with dradriver, or absolute path of a file of facts
    directory   absolute path where the hardware is kept; `hardware` below the state directory where not said
    gpuBinding  whether pods are bound to GPUs only once these are ready
    gpuModes, nicModes   modes of single cards by the names of their devices, as `gpu-0000-1b-00-0`
    """

    node: str
    directory: str = ""
    gpu_mode: GPUMode = "partitions"
    gpu_modes: dict[str, GPUMode] = msgspec.field(default_factory=dict)
    gpu_binding: bool = False
    nic_mode: NICMode = "vf"
    nic_modes: dict[str, NICMode] = msgspec.field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a directory that is no absolute path."""
        if self.directory:
            check_absolute(self.directory, "directory")
