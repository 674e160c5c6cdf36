"""NVIDIA GPUs through NVML: whole, as MIG partitions, shared, and passed through to virtual machines."""

from dradriver_gpu.backend import GpuBackend
from dradriver_gpu.options import GpuOptions

__all__ = ["GpuBackend", "GpuOptions"]
