"""Reading the driver and the GPUs: pure reading, each GPU for itself, so that one that fails or hangs does so alone."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pynvml

from dradriver.backend import UnavailableError
from dradriver.host import Host
from dradriver.model import shown
from dradriver_gpu.aside import Bounded
from dradriver_gpu.errors import read_errors
from dradriver_gpu.facts import Reader, read_changing, read_fixed
from dradriver_gpu.inventory import GPU, Driver, DriverState, GPUInventory, Passthrough
from dradriver_gpu.nvml import NVML, DriverHangsError, DriverMissingError, NvmlError, Session
from dradriver_gpu.owned import Owned
from dradriver_gpu.place import Places

_CREATES_AT_PLACES = 460
"""First driver branch that makes instances at a given place (nvmlDeviceCreateGpuInstanceWithPlacement)."""

GPU_SECONDS = 10.0
"""How long reading one GPU may take: some seconds where the driver has to start it first (no persistence mode).

So long, too, the driver may take to tell its version and how many GPUs there are.
"""

_MOST = 256
"""More GPUs than any node has."""

_UUID = re.compile(r"GPU-[0-9a-fA-F-]{36}")


@dataclass(slots=True)
class _Found:
    """What a probe has found so far.

    nameless   what GPUs answer that do not tell who they are
    """

    driver: Driver
    gpus: dict[str, GPU] = field(default_factory=dict)
    nameless: list[NvmlError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Answer:
    """What a GPU answers: what it is, or what is wrong. `address` is known as soon as it has told it."""

    address: str | None = None
    gpu: GPU | None = None
    error: NvmlError | None = None
    notes: list[str] = field(default_factory=list)


class _Reading(Bounded[None]):
    """The reading of one GPU."""

    def __init__(self, read: Callable[[_Answer], None], late: Callable[[], None]) -> None:
        self.answer = _Answer()
        super().__init__("gpu-reading", lambda: read(self.answer), late)


class Prober:
    """Probes again and again, and remembers what does not change, and which GPUs were there.

    changed   called, with a reason, when a GPU answers, or the driver, that was not waited for any more
    """

    def __init__(self, host: Host, nvml: NVML, root: str, owned: Owned) -> None:
        """Read nothing yet. `root` is the driver root, for people."""
        self._nvml = nvml
        self._root = root
        self._owned = owned
        self._places = Places(host)
        self._was_ready = False
        self._last: dict[str, GPU] = {}
        self._fixed: dict[tuple[str, str], GPU] = {}
        self._hung: dict[int, _Reading] = {}
        self._silent: Bounded[tuple[Driver, int]] | None = None
        self.changed: Callable[[str], None] = lambda _why: None

    def probe(self) -> GPUInventory:
        """Read all there is.

        Without a driver there are no GPUs but those that are bound for passing through. Raises UnavailableError where
        the driver was there before and cannot be read now, or hangs.
        """
        on_bus = self._places.gpus()
        found = self._look()
        if on_bus is None:
            on_bus = frozenset(self._last) if found.nameless else frozenset()
        self._add_hidden(on_bus - found.gpus.keys(), found)
        self._add_gone(found)
        _condemn_twins(found)
        self._last |= found.gpus
        gpus = tuple(found.gpus[address] for address in sorted(found.gpus))
        return GPUInventory(found.driver, gpus, notes=tuple(found.notes), warnings=tuple(found.warnings))

    def _look(self) -> _Found:
        """Read what NVML shows."""
        try:
            with self._nvml.session() as session:
                driver, count = self._driver(session)
                found = _Found(driver)
                for index in range(min(count, _MOST)):
                    self._read(session, index, found)
        except DriverHangsError as error:
            raise UnavailableError(f"the NVIDIA driver hangs: {error}") from None
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

    def _driver(self, session: Session) -> tuple[Driver, int]:
        """Return the driver and how many GPUs it has; one that still hangs is not asked again.

        Raises NvmlError, DriverHangsError, and UnavailableError where the driver is gone.
        """
        asked = self._silent
        if asked is None or asked.done.is_set():
            asked = Bounded(
                "gpu-driver",
                lambda: self._read_driver(session),
                lambda: self.changed("the driver answers again"),
            )
            self._silent = None if asked.ends_within(GPU_SECONDS) else asked
        if self._silent:
            raise DriverHangsError(f"{session.library}: nothing was answered within {GPU_SECONDS:g} s")
        return asked.result()

    def _read_driver(self, session: Session) -> tuple[Driver, int]:
        """Ask the driver. One that hangs keeps the library from being closed."""
        with session.shared():
            return self._ask_driver(session), session.call(pynvml.nvmlDeviceGetCount)

    def _ask_driver(self, session: Session) -> Driver:
        version = session.call(pynvml.nvmlSystemGetDriverVersion)
        cuda = session.ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return Driver(
            DriverState.READY,
            self._root,
            version=version,
            cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
            library=session.library,
        )

    def _read(self, session: Session, index: int, found: _Found) -> None:
        """Add one GPU, as it is or as it was."""
        answer = self._answer(session, index, found.driver.version)
        if answer.address is None:
            found.nameless += [answer.error] if answer.error else []
            return
        gpu = answer.gpu
        if answer.error:
            gpu = self._as_it_was(answer.address, str(answer.error), found, lost=answer.error.is_lost)
            gpu = gpu and replace(gpu, visible=True)
        found.notes += answer.notes
        if gpu is None:
            return
        if gpu.address in found.gpus:
            found.warnings.append(f"{gpu.name}: NVML shows it twice: it is taken once")
            return
        twin = next((other for other in found.gpus.values() if gpu.uuid and gpu.uuid == other.uuid), None)
        if twin:
            found.warnings.append(
                f"{gpu.name} is left out: NVML gives it the UUID of {twin.name}, {twin.uuid}"
            )
            return
        found.gpus[gpu.address] = gpu

    def _answer(self, session: Session, index: int, version: str) -> _Answer:
        """Return what a GPU answers within its time; one that still hangs is not asked again.

        Raises UnavailableError where the driver is gone.
        """
        reading = self._hung.pop(index, None)
        if reading is None or reading.done.is_set():
            reading = _Reading(
                lambda answer: self._ask(session, index, version, answer),
                lambda: self.changed("a GPU answers again"),
            )
            reading.ends_within(GPU_SECONDS)
        if reading.done.is_set():
            reading.result()
            return reading.answer
        self._hung[index] = reading
        text = f"it did not answer within {GPU_SECONDS:g} s"
        return _Answer(reading.answer.address, error=NvmlError("NVML", pynvml.NVML_ERROR_TIMEOUT, text))

    def _ask(self, session: Session, index: int, version: str, answer: _Answer) -> None:
        """Read a GPU. One that hangs keeps the library from being closed."""
        with session.shared():
            reader = Reader(session, index)
            answer.notes = reader.notes
            try:
                reader.open()
                answer.address = reader.address
                answer.gpu = self._read_open(reader, version)
            except NvmlError as error:
                answer.error = error

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
                fault = "; ".join(dict.fromkeys(map(str, found.nameless))) or "NVML does not show it any more"
                fault = f"it is {_bound(bound)}" if unbound else fault
                lost = not unbound and (not found.nameless or any(one.is_lost for one in found.nameless))
                gpu = self._as_it_was(address, fault, found, lost=lost)
            elif found.driver.state is DriverState.READY:
                found.notes.append(
                    f"the GPU at {address} is left out: it is {_bound(bound)}, and not shown by NVML"
                )
            if gpu:
                found.gpus[address] = gpu


def _condemn_twins(found: _Found) -> None:
    """Make GPUs of one minor number unusable: nobody could tell which of them a container gets by it."""
    by_minor: dict[int, list[GPU]] = {}
    for gpu in found.gpus.values():
        if gpu.minor is not None and not gpu.fault:
            by_minor.setdefault(gpu.minor, []).append(gpu)
    for minor, twins in by_minor.items():
        for gpu in twins if len(twins) > 1 else ():
            others = " and ".join(other.name for other in twins if other is not gpu)
            fault = f"NVML gives it the minor number of {others}: /dev/nvidia{minor} is one of them"
            found.gpus[gpu.address] = replace(gpu, fault=fault)


def _bound(passthrough: Passthrough | None) -> str:
    driver = passthrough.driver if passthrough else None
    return f"bound to the driver {shown(driver)}" if driver else "bound to no driver"


def _branch(version: str) -> int:
    """Return the branch of a driver version: 580 of 580.65.06; 0 for what is no version."""
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else 0
