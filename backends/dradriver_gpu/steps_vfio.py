"""A GPU made ready for a virtual machine: bound to vfio-pci, with all that shares its IOMMU group and its board."""

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pynvml

from dradriver.backend import BackendError, HostStep, Observed, TransientError, UnavailableError, Work
from dradriver.backend.vfio import VFIO, Function
from dradriver.model import shown
from dradriver_gpu.instances import applying, on_gpu
from dradriver_gpu.inventory import address_of

if TYPE_CHECKING:
    from dradriver_gpu.backend import GpuBackend

log = logging.getLogger(__name__)

_DRIVER = re.compile(r"[A-Za-z0-9_-]{0,64}")


@dataclass(frozen=True)
class BindVfio(HostStep["GpuBackend"]):
    """Bind a GPU to vfio-pci for as long as a claim has it, and back to the driver that it had.

    companions  names of the claim's other GPUs that go the same way: they may be of one group
    """

    gpu: str
    companions: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"bind {self.gpu} to {VFIO}"

    def apply(self, backend: "GpuBackend", work: Work) -> None:
        """Bind it, and the other functions of its board that are of its group."""
        address = _address(self.gpu)
        if not backend.vfio.is_there(address):
            raise BackendError(f"{self.gpu} is not on the bus")
        with _there(backend, address, self.gpu):
            self._take(backend, work, address)

    def _take(self, backend: "GpuBackend", work: Work, address: str) -> None:
        ours = self._ours(backend, address)
        if "before" not in work.facts:
            before = {one.address: [one.driver, backend.vfio.override(one.address)] for one in ours}
            work.record({"before": _checked(before)})  # what could not be put back is not taken
        if not all(one.driver == VFIO for one in ours):
            self._bind(backend, work, address, ours)
        backend.vfio.check_node(address, self.gpu)

    def _bind(self, backend: "GpuBackend", work: Work, address: str, ours: list[Function]) -> None:
        served = backend.vfio.driver(address) == "nvidia"
        node = f"/dev/nvidia{self._free(backend, work)}" if served else ""
        with self._let_go(backend):
            if node:
                backend.vfio.check_free(node)
            for one in ours:
                with _there(backend, one.address, one.address):
                    backend.vfio.bind(one.address, VFIO, VFIO)

    def _ours(self, backend: "GpuBackend", address: str) -> list[Function]:
        """Return the functions that are bound: those of its board. All others of the group must be harmless."""
        board = address.rpartition(".")[0]
        others = {_address(name) for name in self.companions}

        def is_ours(one: Function) -> bool:
            return one.slot == board or one.address in others

        group = backend.vfio.check_viable(address, is_ours, self.gpu)
        return [one for one in group if one.slot == board and not one.is_bridge]

    def _free(self, backend: "GpuBackend", work: Work) -> int:
        """See that nobody computes on the GPU, and have the driver let go of it; return N of its /dev/nvidiaN."""
        with applying(), on_gpu(backend, self.gpu) as (session, gpu):
            processes = [
                *(session.ask(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ()),
                *(session.ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses, gpu) or ()),
            ]
            if processes:
                numbers = ", ".join(str(process.pid) for process in processes[:5])
                raise TransientError(f"{self.gpu} is in use by processes {numbers}")
            persistence = session.ask(pynvml.nvmlDeviceGetPersistenceMode, gpu)
            if persistence == pynvml.NVML_FEATURE_ENABLED:
                if "persistence" not in work.facts:
                    work.record({"persistence": persistence})
                session.call(pynvml.nvmlDeviceSetPersistenceMode, gpu, pynvml.NVML_FEATURE_DISABLED)
            return int(session.call(pynvml.nvmlDeviceGetMinorNumber, gpu))

    @contextlib.contextmanager
    def _let_go(self, backend: "GpuBackend") -> Iterator[None]:
        """Have our own process let go of all GPUs meanwhile."""
        try:
            with backend.nvml.closed():
                yield
        except UnavailableError as error:
            raise TransientError(str(error)) from None

    def revert(self, backend: "GpuBackend", work: Work) -> None:
        """Bind each function to the driver that it had; what has left the bus, or leaves it meanwhile, needs none.

        After a reboot they have the drivers that they are to have.
        """
        if work.rebooted:
            return
        before = _drivers(work)
        address = _address(self.gpu)
        here = {
            one: drivers for one, drivers in before.items() if backend.vfio.is_there(_function(one, address))
        }
        taken = [one for one, (driver, _) in here.items() if backend.vfio.driver(one) == VFIO != driver]
        for node in sorted({backend.vfio.node(one) for one in taken}):
            backend.vfio.check_free(node)
        failures = []
        for one, (driver, override) in here.items():
            try:
                if backend.vfio.driver(one) in {VFIO, "", driver}:
                    backend.vfio.bind(one, driver, override)
            except BackendError as error:
                if backend.vfio.is_there(one):
                    failures.append(error)
        if failures:
            raise failures[0]
        if "persistence" in work.facts and here.get(address, [""])[0] == "nvidia":
            self._persist(backend)

    def _persist(self, backend: "GpuBackend") -> None:
        try:
            with on_gpu(backend, self.gpu) as (session, gpu):
                session.call(pynvml.nvmlDeviceSetPersistenceMode, gpu, pynvml.NVML_FEATURE_ENABLED)
        except BackendError as error:
            log.warning("%s: persistence mode stays off: %s", self.gpu, error)

    def observe(self, backend: "GpuBackend", work: Work) -> Observed:
        """Look at the drivers."""
        before = work.facts.get("before", {})
        address = _address(self.gpu)
        bound = [backend.vfio.driver(_function(one, address)) == VFIO for one in before]
        if not any(bound):
            return Observed.UNDONE
        return Observed.DONE if all(bound) else Observed.PARTIAL


@contextlib.contextmanager
def _there(backend: "GpuBackend", address: str, who: str) -> Iterator[None]:
    """Say of what fails that the function left the bus, where it did. Raises BackendError."""
    try:
        yield
    except BackendError:
        if backend.vfio.is_there(address):
            raise
        raise BackendError(f"{who} left the bus while it was bound to {VFIO}") from None


def _address(name: str) -> str:
    address = address_of(name)
    if address is None:
        raise UnavailableError(f"{shown(name)} is no GPU's name")
    return address


def _drivers(work: Work) -> dict[str, list[str]]:
    """Return driver and override of each function as they were; they come back from a journal."""
    return _checked(work.facts.get("before", {}))


def _checked(before: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return what was given, where all of it are names of drivers. Raises UnavailableError."""
    for function, names in before.items():
        for name in names:
            if not _DRIVER.fullmatch(name):
                raise UnavailableError(
                    f"{shown(function)} cannot be bound back to the driver {shown(name)}: a name of at most 64 "
                    "letters, digits, - and _ is expected"
                )
    return before


def _function(address: str, of: str) -> str:
    """Return the address of a function on the board of another; it comes back from a journal."""
    board, _, number = address.rpartition(".")
    if board != of.rpartition(".")[0] or not (len(number) == 1 and number in "01234567"):
        raise UnavailableError(f"{shown(address)} is no function of the board at {of}")
    return address
