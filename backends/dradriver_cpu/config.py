"""What users write about CPUs: the backend's options, and the configuration of a claim."""

from typing import Literal

from dradriver.backend import ClaimConfig, Strict
from dradriver.host import CPUSet


class CpuOptions(Strict, frozen=True, kw_only=True):
    """What stands below `backends.cpu`.

    reserved   CPUs kept for the system, as a kernel list ("0-1,64-65"): no claim gets them
    """

    reserved: str = ""

    def __post_init__(self) -> None:
        """Refuse what is not a CPU list."""
        try:
            CPUSet.parse(self.reserved)
        except ValueError as error:
            raise ValueError(f"reserved: {error}; allowed are CPU numbers and ranges, as 0-1,64-65") from None

    @property
    def reserved_cpus(self) -> CPUSet:
        """The reserved CPUs."""
        return CPUSet.parse(self.reserved)


class CpuConfig(ClaimConfig, frozen=True, kw_only=True):
    """How a claim wants its CPUs.

    memory   "local": containers use memory of the NUMA node of their CPUs, or of the nearest with memory;
             "any": the runtime decides
    """

    memory: Literal["local", "any"] = "local"
