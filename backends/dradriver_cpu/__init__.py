"""CPUs as shares of NUMA nodes: each claim gets CPUs of its own, picked by cores and caches, and is pinned to them."""

from dradriver_cpu.backend import CpuBackend
from dradriver_cpu.config import CpuConfig, CpuOptions
from dradriver_cpu.plan import PinCPUs

__all__ = ["CpuBackend", "CpuConfig", "CpuOptions", "PinCPUs"]
