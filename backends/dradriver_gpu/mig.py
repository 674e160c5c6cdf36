"""Reading MIG from NVML: mode, geometry and instances of a GPU.

Traps of NVML (nvml.h) and of its binding: profiles are asked for by an enum index, everything else takes the id that
comes back; placements of old drivers are told in MIG mode only, by a function that the binding does not know; lists are
written into buffers whose size is not looked at.
"""

import ctypes
import re
from typing import Any

import pynvml

from dradriver_gpu.geometry import Geometry, Profile, Resources, profile_name
from dradriver_gpu.instances import MOST, NONE, handles, mig_devices, mig_uuid, standing_of
from dradriver_gpu.inventory import ComputeInstance, GPUInstance
from dradriver_gpu.nvml import NvmlError, Session

_NAME = re.compile(r"(?:MIG )?([0-9]+g\.[0-9]+gb(?:[+-][a-z.]+)?)")


def read_mode(session: Session, gpu: Any) -> tuple[bool, bool] | None:
    """Return the MIG mode now and after the next reset; None on a GPU without MIG. Raises NvmlError."""
    modes = session.ask(pynvml.nvmlDeviceGetMigMode, gpu)
    if modes is None:
        return None
    current, pending = (mode == pynvml.NVML_DEVICE_MIG_ENABLE for mode in modes)
    return current, pending


def read_field(session: Session, gpu: Any, field: int) -> int | None:
    """Return a field value that is an unsigned number; None where the GPU has none. Raises NvmlError."""
    values = session.ask(pynvml.nvmlDeviceGetFieldValues, gpu, [field])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    value = values[0].value
    is_long = values[0].valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    return int(value.ullVal if is_long else value.uiVal)


def text_of(structure: Any, field: str) -> str:
    """Return a text in a structure of the binding, which decodes some of them; empty where it is none."""
    try:
        text = getattr(structure, field, "")
    except UnicodeDecodeError:
        return ""
    return text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)


def read_geometry(session: Session, gpu: Any, total_bytes: int) -> Geometry | None:
    """Return what instances the GPU can have; None where the driver does not tell now.

    total_bytes   the GPU's memory, of which profiles are named where the driver has no names

    Raises NvmlError.
    """
    profiles: list[Profile] = []
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _profile_info(session, gpu, index)
        if info is None:
            continue
        placements = _placements(session, gpu, info.id)
        if placements:
            profile = _profile(info, placements, index, total_bytes)
            if any(profile.id == other.id or profile.name == other.name for other in profiles):
                raise _senseless(f"MIG profile {profile.name} (id {profile.id}) is listed twice")
            profiles.append(profile)
    return Geometry(tuple(profiles)) if profiles else None


def _profile(info: Any, placements: list[tuple[int, int]], index: int, total_bytes: int) -> Profile:
    """Return a profile with its places.

    Raises NvmlError where its numbers make no sense. It is not passed over: what stands of it would not be seen.
    """
    name = _name(info, index, total_bytes)
    places = ", ".join(f"{start}:{size}" for start, size in placements[:MOST])
    starts, sizes = {start for start, _ in placements}, {size for _, size in placements}
    size = min(sizes)
    if len(sizes) > 1 or not 0 < size <= MOST - max(starts) or not 0 < info.instanceCount <= MOST:
        raise _senseless(f"{info.instanceCount} instances of MIG profile {name} at memory slices {places}")
    return Profile(
        index=index,
        id=info.id,
        name=name,
        slices=info.sliceCount,
        max_instances=info.instanceCount,
        resources=Resources(
            multiprocessors=info.multiprocessorCount,
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpeg_engines=info.jpegCount,
            ofa_engines=info.ofaCount,
            memory_mib=info.memorySizeMB,
        ),
        starts=tuple(sorted(starts)),
        size=size,
    )


def read_instances(
    session: Session, gpu: Any, name: str, geometry: Geometry, ours: frozenset[tuple[str, int, int]]
) -> tuple[GPUInstance, ...]:
    """Return the GPU instances of a GPU in MIG mode, by id, with the compute instances in them.

    name   the GPU's name, by which `ours` has its places (see `owned`)

    Raises NvmlError.
    """
    compute = _compute_instances(session, gpu)
    found = []
    for profile in geometry.profiles:
        for handle in handles(session, gpu, profile.id):
            one = standing_of(session, handle)
            placement = next(
                (
                    place
                    for place in geometry.placements
                    if place.profile is profile and place.start == one.start
                ),
                None,
            )
            found.append(
                GPUInstance(
                    id=one.id,
                    profile_id=profile.id,
                    start=one.start,
                    size=one.size,
                    placement=placement,
                    compute=tuple(compute.get(one.id, ())),
                    ours=(name, profile.id, one.start) in ours,
                )
            )
    return tuple(sorted(found, key=lambda instance: instance.id))


def _profile_info(session: Session, gpu: Any, index: int) -> Any | None:
    """Return a profile in the form with a name (driver 510), or in the form without."""
    try:
        return session.call(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, index)
    except NvmlError as error:
        if error.code in NONE:
            return None
        if error.code != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
    try:
        return session.call(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, index, 1)
    except NvmlError as error:
        if error.code in NONE:
            return None
        raise


def _senseless(text: str) -> NvmlError:
    """Return the error for a profile that no GPU has: taken as it is, it would come to counters without end."""
    return NvmlError(
        "nvmlDeviceGetGpuInstanceProfileInfo",
        pynvml.NVML_ERROR_UNKNOWN,
        f"an answer that makes no sense: {text}",
    )


def _name(info: Any, index: int, total_bytes: int) -> str:
    match = _NAME.fullmatch(text_of(info, "name"))
    return match[1] if match else profile_name(index, info.sliceCount, info.memorySizeMB, total_bytes)


def _placements(session: Session, gpu: Any, profile_id: int) -> list[tuple[int, int]]:
    """Return first memory slice and size of each place; none where the driver does not tell."""
    count = ctypes.c_uint()
    try:
        session.call(_get_placements, gpu, profile_id, None, count)
        if count.value > MOST:
            raise _senseless(f"{count.value} places of MIG profile {profile_id}")
        buffer = (pynvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
        session.call(_get_placements, gpu, profile_id, buffer, count)
    except NvmlError as error:
        if error.code in NONE:
            return []
        raise
    return [(place.start, place.size) for place in buffer[: count.value]]


def _get_placements(gpu: Any, profile_id: int, buffer: Any, count: ctypes.c_uint) -> None:
    """Ask by the function that works without MIG mode (driver 470), or by the one before it."""
    try:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, buffer, ctypes.byref(count))
    except pynvml.NVMLError_FunctionNotFound:
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstancePossiblePlacements")  # noqa: SLF001
        pynvml._nvmlCheckReturn(function(gpu, profile_id, buffer, ctypes.byref(count)))  # noqa: SLF001


def _compute_instances(session: Session, gpu: Any) -> dict[int, list[ComputeInstance]]:
    """Return the compute instances, which are the MIG devices, by GPU instance."""
    found: dict[int, list[ComputeInstance]] = {}
    for device in mig_devices(session, gpu):
        instance = session.call(pynvml.nvmlDeviceGetGpuInstanceId, device)
        attributes = session.ask(pynvml.nvmlDeviceGetAttributes_v2, device)
        found.setdefault(instance, []).append(
            ComputeInstance(
                id=session.call(pynvml.nvmlDeviceGetComputeInstanceId, device),
                uuid=_uuid(session, device),
                resources=_resources(attributes) if attributes else None,
                slices=attributes.computeInstanceSliceCount if attributes else None,
            )
        )
    return {instance: sorted(compute, key=lambda one: one.id) for instance, compute in found.items()}


def _uuid(session: Session, device: Any) -> str | None:
    try:
        return mig_uuid(session, device)
    except NvmlError as error:
        if error.is_lost:
            raise
        return None


def _resources(attributes: Any) -> Resources:
    return Resources(
        multiprocessors=attributes.multiprocessorCount,
        copy_engines=attributes.sharedCopyEngineCount,
        decoders=attributes.sharedDecoderCount,
        encoders=attributes.sharedEncoderCount,
        jpeg_engines=attributes.sharedJpegCount,
        ofa_engines=attributes.sharedOfaCount,
        memory_mib=attributes.memorySizeMB,
    )
