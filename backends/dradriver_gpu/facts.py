"""Reading one GPU: what never changes while the driver is loaded, and what may change from probe to probe.

Facts: nvml.h. Values are named as the established tools name them, and left out where the number is not known.
"""

import ctypes
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pynvml

from dradriver.host import pci_address
from dradriver_gpu.geometry import Geometry
from dradriver_gpu.inventory import GPU, Fabric, GPUInstance, MigMode, RemappedRows
from dradriver_gpu.mig import read_field, read_geometry, read_instances, read_mode, text_of
from dradriver_gpu.nvml import NvmlError, Session

T = TypeVar("T")

_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "Rubin",
}

_BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}

_ADDRESSING = {
    pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE: "None",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM: "HMM",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS: "ATS",
}


_HOPPER = (9, 0)
"""Compute capability from which on MIG mode changes without a reset (MIG User Guide)."""


@dataclass(slots=True)
class Reader:
    """Asks one GPU.

    address   known once `open` was called
    notes     what it answered oddly; the fact is then left out
    """

    session: Session
    index: int
    handle: Any = None
    address: str | None = None
    notes: list[str] = field(default_factory=list)

    def open(self) -> None:
        """Find the GPU. Raises NvmlError, also where its PCI address makes no sense."""
        self.handle = self.session.call(pynvml.nvmlDeviceGetHandleByIndex, self.index)
        text = text_of(self.session.call(pynvml.nvmlDeviceGetPciInfo_v3, self.handle), "busId")
        self.address = pci_address(text)
        if self.address is None:
            raise NvmlError(
                "nvmlDeviceGetPciInfo_v3", pynvml.NVML_ERROR_UNKNOWN, f"{text[:32]!a} is no PCI address"
            )

    def read(self, what: str, how: Callable[[], T]) -> T | None:
        """Return what a reading returns; None, with a note, where it fails. Raises NvmlError of a GPU that is lost."""
        try:
            return how()
        except NvmlError as error:
            if error.is_lost:
                raise
            self.notes.append(f"GPU {self.address}: {what} is not known: {error}")
            return None

    def ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Ask for a fact that old drivers or some GPUs do not have."""
        return self.read(
            function.__name__.removeprefix("nvmlDeviceGet"),
            lambda: self.session.ask(function, self.handle, *arguments),
        )

    def field(self, number: int) -> int | None:
        """Ask for a field value."""
        return self.read(f"field {number}", lambda: read_field(self.session, self.handle, number))


def read_fixed(reader: Reader, gpu: GPU) -> GPU:
    """Return the GPU with what does not change while a driver is loaded. Raises NvmlError of a GPU that is lost."""
    memory = reader.ask(pynvml.nvmlDeviceGetMemoryInfo)
    brand = reader.ask(pynvml.nvmlDeviceGetBrand)
    architecture = reader.ask(pynvml.nvmlDeviceGetArchitecture)
    addressing = reader.ask(pynvml.nvmlDeviceGetAddressingMode)
    return replace(
        gpu,
        product=reader.ask(pynvml.nvmlDeviceGetName) or None,
        brand=None if brand is None else _BRANDS.get(brand),
        architecture=None if architecture is None else _ARCHITECTURES.get(architecture),
        compute_capability=reader.ask(pynvml.nvmlDeviceGetCudaComputeCapability),
        memory_bytes=int(memory.total) or None if memory else None,
        module_id=reader.read("the module id", lambda: _module_id(reader)),
        memory_node=reader.ask(pynvml.nvmlDeviceGetNumaNodeId),
        addressing=None if addressing is None else _ADDRESSING.get(addressing),
        virtualization=reader.ask(pynvml.nvmlDeviceGetVirtualizationMode),
        event_types=reader.ask(pynvml.nvmlDeviceGetSupportedEventTypes),
    )


def read_changing(reader: Reader, gpu: GPU, ours: frozenset[tuple[str, int, int]]) -> GPU:
    """Return the GPU with what may be otherwise at the next probe.

    Raises NvmlError of a GPU that is lost, and of one whose MIG mode or instances cannot be read: what is offered
    depends on them.
    """
    ecc = reader.ask(pynvml.nvmlDeviceGetEccMode)
    rows = reader.ask(pynvml.nvmlDeviceGetRemappedRows)
    mode = _mode(reader, gpu)
    geometry = gpu.geometry if mode else None
    if mode and geometry is None:
        geometry = _geometry(reader, gpu)
    fabric, link_health = _fabric(reader)
    return replace(
        gpu,
        index=reader.index,
        minor=reader.ask(pynvml.nvmlDeviceGetMinorNumber),
        mig=mode,
        max_mig_devices=reader.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount) if mode else None,
        geometry=geometry,
        instances=_instances(reader, gpu.name, mode, geometry, ours),
        fabric=fabric,
        link_health=link_health,
        compute_mode=reader.ask(pynvml.nvmlDeviceGetComputeMode),
        ecc_enabled=None if ecc is None else ecc[0] == pynvml.NVML_FEATURE_ENABLED,
        ecc_pending=None if ecc is None else ecc[1] == pynvml.NVML_FEATURE_ENABLED,
        rows=None if rows is None else RemappedRows(rows[0], rows[1], bool(rows[2]), bool(rows[3])),
        recovery=reader.field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
    )


def _mode(reader: Reader, gpu: GPU) -> MigMode | None:
    modes = read_mode(reader.session, reader.handle)
    if modes is None:
        return None
    resetless = reader.field(pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED)
    if resetless is None:  # drivers before 535 do not tell
        resetless = gpu.compute_capability is not None and gpu.compute_capability >= _HOPPER
    return MigMode(*modes, switchable=bool(resetless))


def _geometry(reader: Reader, gpu: GPU) -> Geometry | None:
    total = gpu.memory_bytes or 0
    return reader.read("MIG geometry", lambda: read_geometry(reader.session, reader.handle, total))


def _instances(
    reader: Reader,
    name: str,
    mode: MigMode | None,
    geometry: Geometry | None,
    ours: frozenset[tuple[str, int, int]],
) -> tuple[GPUInstance, ...]:
    if mode is None or not mode.enabled or geometry is None:
        return ()
    try:
        return read_instances(reader.session, reader.handle, name, geometry, ours)
    except NvmlError as error:
        if error.is_lost:
            raise
    # An instance that is destroyed while it is read fails the reading.
    return read_instances(reader.session, reader.handle, name, geometry, ours)


def _module_id(reader: Reader) -> int | None:
    # A number of our own: the binding's default argument is one object for all calls, of all threads.
    return reader.session.ask(pynvml.nvmlDeviceGetModuleId, reader.handle, ctypes.c_uint())


def _fabric(reader: Reader) -> tuple[Fabric | None, int | None]:
    """Return the NVLink domain, and the summary of how its links are, which drivers tell from 570 on."""
    newest = reader.read("the health of its NVLinks", lambda: _newest_fabric_info(reader))
    info = newest or reader.read("the NVLink domain", lambda: _fabric_info(reader))
    return None if info is None else _domain(info), None if newest is None else int(newest.healthSummary)


def _newest_fabric_info(reader: Reader) -> Any | None:
    return _filled(reader, pynvml.nvmlDeviceGetGpuFabricInfoV, pynvml.c_nvmlGpuFabricInfo_v3_t())


def _fabric_info(reader: Reader) -> Any | None:
    return _filled(reader, pynvml.nvmlDeviceGetGpuFabricInfoV, pynvml.c_nvmlGpuFabricInfo_v2_t()) or _filled(
        reader, pynvml.nvmlDeviceGetGpuFabricInfo, pynvml.c_nvmlGpuFabricInfo_t()
    )


def _filled(reader: Reader, function: Callable[..., Any], structure: Any) -> Any | None:
    told = reader.session.ask(function, reader.handle, ctypes.byref(structure))
    return None if told is None else structure


def _domain(info: Any) -> Fabric | None:
    """Return the NVLink domain; None for a GPU that has not, or not yet, joined one that reaches beyond its node."""
    cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
    if (
        info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        or info.status != pynvml.NVML_SUCCESS
        or not cluster.int
    ):
        return None
    return Fabric(str(cluster), info.cliqueId)
