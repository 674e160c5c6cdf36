"""Clients of the stub NVML library: the real binding on it, and somebody else on the node."""

import contextlib
import ctypes
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml

from nvmlbuild import build
from nvmlstub import Stub


@contextlib.contextmanager
def session(library: Path) -> Iterator[Any]:
    """Yield the binding with this library loaded and initialized; it is one for the whole process.

    The binding keeps the functions that it found, so that another library needs its cache emptied.
    """
    pynvml.nvmlLib = ctypes.CDLL(str(library))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()


def handles(nvml: Any) -> list[Any]:
    """Return the handles of all GPUs."""
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def create(nvml: Any, gpu: Any, profile: int, start: int, size: int) -> Any:
    """Make a GPU instance of a profile, by its id, at a place."""
    placement = nvml.c_nvmlGpuInstancePlacement_t(start, size)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, ctypes.byref(placement))


def placements(nvml: Any, gpu: Any, profile: int) -> list[tuple[int, int]]:
    """Return where instances of a profile, by its id, can stand: first memory slice and number of slices."""
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, None, ctypes.byref(count))
    found = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, found, ctypes.byref(count))
    return [(placement.start, placement.size) for placement in found]


def refusal(call: Callable[..., Any], *arguments: Any) -> int:
    """Return the code with which a call fails, 0 if it works."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


class Operator:
    """Another client on the node, as somebody's nvidia-smi: it makes and destroys instances behind our back.

    It has a copy of the library of its own and does not go through the binding, which a process has once.
    """

    def __init__(self, stub: Stub) -> None:
        copy = stub.directory / "operator.so"
        if not copy.exists():
            shutil.copyfile(build(), copy)
        self._stub = stub
        self._library = ctypes.CDLL(str(copy))

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise pynvml.NVMLError(code)

    @contextlib.contextmanager
    def _gpu(self, index: int) -> Iterator[ctypes.c_void_p]:
        self._call("nvmlInit_v2")
        try:
            gpu = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(gpu))
            yield gpu
        finally:
            self._call("nvmlShutdown")

    def create(self, index: int, profile: int, start: int, *, compute_profile: int | None = None) -> int:
        """Make a GPU instance, and a compute instance if its profile is given. Return the GPU instance's id."""
        size = next(known.size for known in self._stub.node.gpus[index].profiles if known.id == profile)
        with self._gpu(index) as gpu:
            instance, compute = ctypes.c_void_p(), ctypes.c_void_p()
            placement = (ctypes.c_uint * 2)(start, size)
            create = "nvmlDeviceCreateGpuInstanceWithPlacement"
            self._call(create, gpu, ctypes.c_uint(profile), placement, ctypes.byref(instance))
            if compute_profile is not None:
                create = "nvmlGpuInstanceCreateComputeInstance"
                self._call(create, instance, ctypes.c_uint(compute_profile), ctypes.byref(compute))
        return next(
            made.id
            for made in self._stub.state()[index].gpu_instances
            if (made.start, made.size) == (start, size)
        )

    def destroy(self, index: int, gpu_instance: int) -> None:
        """Destroy a GPU instance with all that is in it."""
        inside = [
            compute.id
            for compute in self._stub.state()[index].compute_instances
            if compute.gpu_instance == gpu_instance
        ]
        with self._gpu(index) as gpu:
            instance = ctypes.c_void_p()
            number = ctypes.c_uint(gpu_instance)
            self._call("nvmlDeviceGetGpuInstanceById", gpu, number, ctypes.byref(instance))
            for compute_id in inside:
                compute = ctypes.c_void_p()
                by_id = "nvmlGpuInstanceGetComputeInstanceById"
                self._call(by_id, instance, ctypes.c_uint(compute_id), ctypes.byref(compute))
                self._call("nvmlComputeInstanceDestroy", compute)
            self._call("nvmlGpuInstanceDestroy", instance)
