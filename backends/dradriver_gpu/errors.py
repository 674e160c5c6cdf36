"""Reading what a GPU counts of errors of its memories. What it does not tell is None."""

import ctypes
from typing import Any

import pynvml

from dradriver_gpu.facts import Reader
from dradriver_gpu.inventory import MemoryErrors


def read_errors(reader: Reader) -> MemoryErrors:
    """Return what is counted of memory errors. Raises NvmlError of a GPU that is lost."""
    pending = reader.ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus)
    sram = reader.read("the state of its SRAM", lambda: _sram(reader))
    return MemoryErrors(
        uncorrected=reader.ask(
            pynvml.nvmlDeviceGetTotalEccErrors,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        retirement_pending=None if pending is None else pending == pynvml.NVML_FEATURE_ENABLED,
        sram_threshold=None if sram is None else bool(sram.bThresholdExceeded),
    )


def _sram(reader: Reader) -> Any | None:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    status.version = pynvml.nvmlEccSramErrorStatus_v1
    told = reader.session.ask(pynvml.nvmlDeviceGetSramEccErrorStatus, reader.handle, ctypes.byref(status))
    return None if told is None else status
