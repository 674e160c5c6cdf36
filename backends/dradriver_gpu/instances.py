"""GPU instances and compute instances as they stand now, by NVML itself: found, made, destroyed.

NVML numbers instances by their place and uses numbers again, and finds a MIG device only once there is a compute
instance: what stands is therefore enumerated by GPU instance, whatever is in it. Facts: nvml.h.
"""

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from dradriver.backend import BackendError, TransientError, UnavailableError
from dradriver.model import shown
from dradriver_gpu.inventory import address_of
from dradriver_gpu.library import module_version
from dradriver_gpu.nvml import DriverMissingError, NvmlError, Session

if TYPE_CHECKING:
    from dradriver_gpu.backend import GpuBackend

T = TypeVar("T")

MOST = 32
"""More instances, memory slices and MIG devices than any GPU has: a driver that tells of more makes no sense.

nvml.h wants a buffer for all instances that a profile admits, and does not look.
"""

NONE = frozenset(
    {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND}
)
"""Codes for no profile, instance or device of that number: MIG mode is off, or this GPU or driver has none."""

_UUID = re.compile(r"MIG-[0-9A-Fa-f-]{36}|MIG-GPU-[0-9A-Fa-f-]{36}/[0-9]{1,3}/[0-9]{1,3}")
"""Drivers before 470 name a MIG device by its GPU and the ids of its instances."""

_OPEN = "nvmlDeviceGetHandleByPciBusId"


# --- the GPU


@contextlib.contextmanager
def on_gpu(backend: "GpuBackend", name: str) -> Iterator[tuple[Session, Any]]:
    """Give a session and the handle of the GPU whose device has that name.

    Raises NvmlError, UnavailableError, DriverMissingError, and TransientError for a GPU that is busy.
    """
    address = address_of(name)
    if address is None:
        raise UnavailableError(f"{shown(name)} is no GPU's name")
    with backend.nvml.session() as session:
        try:
            yield session, session.gpu(address)
        except NvmlError as error:
            if error.code == pynvml.NVML_ERROR_IN_USE:
                raise TransientError(f"{name}: {error}") from None
            raise


@contextlib.contextmanager
def applying() -> Iterator[None]:
    """Have a change tried again while the driver is on its way."""
    try:
        yield
    except UnavailableError as error:
        raise TransientError(str(error)) from None


def unless_gone(backend: "GpuBackend", undo: Callable[[], T], gone: T) -> T:
    """Return what `undo` returns, `gone` where the hardware is gone, with what was on it.

    Instances and modes do not outlive the kernel module, or a GPU's leave. While the module is there and cannot be
    talked to, they may still be there too: that is tried again.
    """
    try:
        return undo()
    except NvmlError as error:
        unknown = error.function == _OPEN and error.code == pynvml.NVML_ERROR_NOT_FOUND
        if not error.is_lost and not unknown:
            raise
    except (DriverMissingError, UnavailableError) as error:
        if module_version(backend.host) is not None:
            raise TransientError(str(error)) from None
    return gone


@contextlib.contextmanager
def observing() -> Iterator[None]:
    """Say that nothing can be said where NVML does not answer."""
    try:
        yield
    except BackendError as error:
        raise UnavailableError(str(error)) from None


# --- GPU instances


@dataclass(frozen=True, slots=True)
class Standing:
    """A GPU instance that stands; `handle` is good until the session ends."""

    id: int
    profile_id: int
    start: int
    size: int
    handle: Any

    def overlaps(self, start: int, size: int) -> bool:
        """Return whether it takes any of the `size` memory slices from `start` on."""
        return self.start < start + size and start < self.start + self.size


def standing(session: Session, gpu: Any, profile_id: int) -> list[Standing]:
    """Return the GPU instances of a profile. Raises NvmlError."""
    try:
        found = handles(session, gpu, profile_id)
    except NvmlError as error:
        if error.code in NONE:
            return []
        raise
    return [standing_of(session, handle) for handle in found]


def handles(session: Session, gpu: Any, profile_id: int) -> list[Any]:
    """Return the handles of the GPU instances of a profile. Raises NvmlError, also where there is no such profile."""
    buffer = (pynvml.c_nvmlGpuInstance_t * MOST)()
    count = ctypes.c_uint(MOST)
    session.call(pynvml.nvmlDeviceGetGpuInstances, gpu, profile_id, buffer, ctypes.byref(count))
    return list(buffer[: count.value])


def standing_of(session: Session, handle: Any) -> Standing:
    """Return the GPU instance of a handle. Raises NvmlError."""
    info = session.call(pynvml.nvmlGpuInstanceGetInfo, handle)
    return Standing(info.id, info.profileId, info.placement.start, info.placement.size, handle)


def every_standing(session: Session, gpu: Any) -> list[Standing]:
    """Return all GPU instances of a GPU, whatever their profile. Raises NvmlError."""
    found = []
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = session.call(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, index, 1)
        except NvmlError as error:
            if error.code in NONE:
                continue
            raise
        found += standing(session, gpu, info.id)
    return found


def create_instance(session: Session, gpu: Any, profile_id: int, start: int, size: int) -> Standing:
    """Make a GPU instance at a place. Raises NvmlError."""
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    handle = session.call(
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, gpu, profile_id, ctypes.byref(placement)
    )
    return standing_of(session, handle)


def destroy(session: Session, instance: Standing) -> None:
    """Destroy a GPU instance with the compute instances in it. Raises NvmlError."""
    for _, compute in compute_in(session, instance.handle):
        session.call(pynvml.nvmlComputeInstanceDestroy, compute)
    session.call(pynvml.nvmlGpuInstanceDestroy, instance.handle)


# --- compute instances


def compute_in(session: Session, instance: Any) -> list[tuple[int, Any]]:
    """Return id and handle of the compute instances in a GPU instance, by id. Raises NvmlError."""
    found: dict[int, Any] = {}
    for info in _compute_profiles(session, instance):
        buffer = (pynvml.c_nvmlComputeInstance_t * MOST)()
        count = ctypes.c_uint(MOST)
        session.call(
            pynvml.nvmlGpuInstanceGetComputeInstances, instance, info.id, buffer, ctypes.byref(count)
        )
        for handle in buffer[: count.value]:
            found[session.call(pynvml.nvmlComputeInstanceGetInfo_v2, handle).id] = handle
    return sorted(found.items())


def create_compute(session: Session, instance: Any) -> int:
    """Make the compute instance that spans a GPU instance; return its id. Raises NvmlError.

    The one with most multiprocessors: the first profile of as many slices can be smaller than the GPU instance (H100
    1g.20gb has 26, of which the plain profile of one slice takes 16).
    """
    profiles = list(_compute_profiles(session, instance))
    if not profiles:
        raise NvmlError(
            "nvmlGpuInstanceGetComputeInstanceProfileInfo",
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            "no profile at all",
        )
    widest = max(profiles, key=lambda info: (info.multiprocessorCount, info.sliceCount))
    handle = session.call(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, widest.id)
    return int(session.call(pynvml.nvmlComputeInstanceGetInfo_v2, handle).id)


def _compute_profiles(session: Session, instance: Any) -> Iterator[Any]:
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield session.call(
                pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, index, shared, 1
            )
        except NvmlError as error:
            if error.code not in NONE:
                raise


# --- MIG devices


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance as programs see it. What the driver does not tell is None.

    memory_mib   of its GPU instance
    """

    uuid: str
    handle: Any
    multiprocessors: int | None
    memory_mib: int | None


def mig_device(session: Session, gpu: Any, instance: int, compute: int) -> MigDevice | None:
    """Return the MIG device of these ids; None where there is none. Raises NvmlError."""
    for device in mig_devices(session, gpu):
        if (
            session.call(pynvml.nvmlDeviceGetGpuInstanceId, device) == instance
            and session.call(pynvml.nvmlDeviceGetComputeInstanceId, device) == compute
        ):
            attributes = session.ask(pynvml.nvmlDeviceGetAttributes_v2, device)
            return MigDevice(
                mig_uuid(session, device),
                device,
                attributes.multiprocessorCount if attributes else None,
                attributes.memorySizeMB if attributes else None,
            )
    return None


def mig_uuid(session: Session, device: Any) -> str:
    """Return the UUID of a MIG device. Raises NvmlError, also where it is none: it gets into files and commands."""
    uuid = str(session.call(pynvml.nvmlDeviceGetUUID, device))
    if not _UUID.fullmatch(uuid):
        raise NvmlError(
            "nvmlDeviceGetUUID", pynvml.NVML_ERROR_UNKNOWN, f"{shown(uuid)} is no UUID of a MIG device"
        )
    return uuid


def mig_devices(session: Session, gpu: Any) -> Iterator[Any]:
    """Yield the handles of the MIG devices of a GPU. Raises NvmlError."""
    for index in range(min(session.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0, MOST)):
        try:
            yield session.call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index)
        except NvmlError as error:
            if error.code not in NONE:  # numbers are not without gaps
                raise
