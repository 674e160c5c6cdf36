"""Reading the driver and the GPUs: pure reading, each GPU for itself, so that one which fails degrades alone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pynvml

from dradriver.backend import UnavailableError
from dradriver.host import Host
from dradriver.model import shown
from dradriver_gpu.errors import read_errors
from dradriver_gpu.facts import Reader, read_changing, read_fixed
from dradriver_gpu.inventory import GPU, Driver, DriverState, GPUInventory, Passthrough
from dradriver_gpu.nvml import NVML, DriverMissingError, NvmlError, Session
from dradriver_gpu.owned import Owned
from dradriver_gpu.place import Places

_CREATES_AT_PLACES = 460
"""First driver branch that makes instances at a given place (nvmlDeviceCreateGpuInstanceWithPlacement)."""

_UUID = re.compile(r"GPU-[0-9a-fA-F-]{36}")


@dataclass(slots=True)
class _Found:
    """What a probe has found so far.

    nameless   what GPUs answer that do not tell who they are
    """

    driver: Driver
    gpus: dict[str, GPU] = field(default_factory=dict)
    nameless: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Prober:
    """Probes again and again, and remembers what does not change, and which GPUs were there."""

    def __init__(self, host: Host, nvml: NVML, root: str, owned: Owned) -> None:
        """Read nothing yet. `root` is the driver root, for people."""
        self._nvml = nvml
        self._root = root
        self._owned = owned
        self._places = Places(host)
        self._was_ready = False
        self._last: dict[str, GPU] = {}
        self._fixed: dict[tuple[str, str], GPU] = {}

    def probe(self) -> GPUInventory:
        """Read all there is.

        Without a driver there are no GPUs but those that are bound for passing through. Raises UnavailableError where
        the driver was there before and cannot be read now.
        """
        on_bus = self._places.gpus()
        found = self._look()
        if on_bus is None:
            on_bus = frozenset(self._last) if found.nameless else frozenset()
        self._add_hidden(on_bus - found.gpus.keys(), found)
        self._add_gone(found)
        self._last |= found.gpus
        gpus = tuple(found.gpus[address] for address in sorted(found.gpus))
        return GPUInventory(found.driver, gpus, notes=tuple(found.notes), warnings=tuple(found.warnings))

    def _look(self) -> _Found:
        """Read what NVML shows."""
        try:
            with self._nvml.session() as session:
                found = _Found(self._read_driver(session))
                for index in range(session.call(pynvml.nvmlDeviceGetCount)):
                    self._read(Reader(session, index), found)
        except (DriverMissingError, UnavailableError, NvmlError) as error:
            if self._was_ready:
                raise UnavailableError(f"the NVIDIA driver was here and is not now: {error}") from None
            partial = not isinstance(error, DriverMissingError) or error.partial
            state = DriverState.PARTIAL if partial else DriverState.ABSENT
            found = _Found(Driver(state, self._root, reason=str(error)))
            (found.warnings if partial else found.notes).append(str(error))
            return found
        self._was_ready = True
        return found

    def _read_driver(self, session: Session) -> Driver:
        version = session.call(pynvml.nvmlSystemGetDriverVersion)
        cuda = session.ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return Driver(
            DriverState.READY,
            self._root,
            version=version,
            cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
            library=session.library,
        )

    def _read(self, reader: Reader, found: _Found) -> None:
        """Add one GPU, as it is or as it was."""
        gpu: GPU | None
        try:
            reader.open()
            gpu = self._read_open(reader, found.driver.version)
        except NvmlError as error:
            if reader.address is None:
                found.nameless.append(str(error))
                return
            gpu = self._as_it_was(reader.address, str(error), found, lost=error.is_lost)
        found.notes += reader.notes
        if gpu is None:
            return
        if gpu.address in found.gpus or gpu.uuid in {other.uuid for other in found.gpus.values()}:
            found.warnings.append(f"{gpu.name}: NVML shows it twice: it is taken once")
            return
        found.gpus[gpu.address] = gpu

    def _read_open(self, reader: Reader, version: str) -> GPU:
        uuid = reader.session.call(pynvml.nvmlDeviceGetUUID, reader.handle)
        address = reader.address
        if address is None or not _UUID.fullmatch(uuid):
            raise NvmlError("nvmlDeviceGetUUID", pynvml.NVML_ERROR_UNKNOWN, f"{shown(uuid)} is no UUID")
        fixed = self._fixed.get((version, uuid))
        if fixed is None or fixed.address != address:
            fixed = read_fixed(reader, GPU(address, uuid))
        gpu = read_changing(reader, fixed, self._owned.places)
        if not reader.notes:
            self._fixed[version, uuid] = replace(fixed, geometry=gpu.geometry or fixed.geometry)
        return replace(
            gpu,
            place=self._places.attributes(address),
            errors=read_errors(reader),
            passthrough=self._places.passthrough(address),
            creatable=_branch(version) >= _CREATES_AT_PLACES,
        )

    def _as_it_was(self, address: str, fault: str, found: _Found, *, lost: bool) -> GPU | None:
        """Return a GPU that does not answer as it was when it did; None for one that never did."""
        last = self._last.get(address)
        if last is None:
            found.warnings.append(f"the GPU at {address} is left out: {fault}")
            return None
        return replace(last, fault=fault, lost=lost, passthrough=self._places.passthrough(address))

    def _add_gone(self, found: _Found) -> None:
        """Add the GPUs that are off the bus: claims may have them, and they may come back."""
        for address in sorted(self._last.keys() - found.gpus.keys()):
            found.warnings.append(f"the GPU at {address} is gone")
            found.gpus[address] = replace(self._last[address], fault="it is off the PCI bus", lost=True)

    def _add_hidden(self, addresses: Iterable[str], found: _Found) -> None:
        """Add the GPUs on the bus that NVML does not show: passed through ones, and those that it lost."""
        for address in sorted(addresses):
            bound = self._places.passthrough(address)
            gpu = None
            if bound and bound.is_bound:
                last = self._last.get(address) or GPU(address, place=self._places.attributes(address))
                gpu = replace(
                    last,
                    visible=False,
                    fault="",
                    lost=False,
                    index=None,
                    minor=None,
                    instances=(),
                    passthrough=bound,
                )
            elif address in self._last or (found.nameless and bound and bound.driver == "nvidia"):
                unbound = bound is not None and bound.driver != "nvidia"
                fault = "; ".join(dict.fromkeys(found.nameless)) or "NVML does not show it any more"
                fault = f"it is {_bound(bound)}" if unbound else fault
                gpu = self._as_it_was(address, fault, found, lost=not unbound)
            elif found.driver.state is DriverState.READY:
                found.notes.append(
                    f"the GPU at {address} is left out: it is {_bound(bound)}, and not shown by NVML"
                )
            if gpu:
                found.gpus[address] = gpu


def _bound(passthrough: Passthrough | None) -> str:
    driver = passthrough.driver if passthrough else None
    return f"bound to the driver {shown(driver)}" if driver else "bound to no driver"


def _branch(version: str) -> int:
    """Return the branch of a driver version: 580 of 580.65.06; 0 for what is no version."""
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else 0
