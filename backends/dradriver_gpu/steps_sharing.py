"""What is set on a GPU for the way in which its processes share it: time slices, compute mode, MPS."""

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pynvml

from dradriver.backend import (
    BackendError,
    HostStep,
    Observed,
    TransientError,
    UnavailableError,
    Work,
)
from dradriver.backend.settings import holder
from dradriver.model import shown
from dradriver_gpu.instances import (
    applying,
    compute_in,
    mig_device,
    observing,
    on_gpu,
    standing,
    unless_gone,
)
from dradriver_gpu.mps import ControlDaemons, Limits
from dradriver_gpu.nvml import NvmlError
from dradriver_gpu.steps_setting import SettingStep
from dradriver_gpu.tools import SMI

if TYPE_CHECKING:
    from dradriver_gpu.backend import GpuBackend

log = logging.getLogger(__name__)

INTERVALS = ("Default", "Short", "Medium", "Long")
"""Time slices by the numbers that `nvidia-smi compute-policy --set-timeslice` takes."""

_TIME_SLICE = re.compile(r"\bTimeslice\b\W+(Default|Short|Medium|Long)\b", re.IGNORECASE)

_MODES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: "Default",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "Prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "Exclusive_Process",
}


@dataclass(frozen=True)
class SetTimeSlice(SettingStep):
    """Have processes on a GPU run in turn for so long. NVML has no function for it."""

    interval: str

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"set the time slice of {self.gpu} to {self.interval}"

    @property
    def _setting(self) -> str:
        return f"{self.gpu}.time-slice"

    def apply(self, backend: "GpuBackend", work: Work) -> None:
        """Set it."""
        backend.tools.find(SMI)
        with applying():
            uuid = uuid_of(backend, self.gpu)
        before = backend.settings.take(
            self._setting,
            self._holder,
            self.interval,
            read=lambda: self._read(backend, uuid) or INTERVALS[0],
            change=lambda interval: _set_time_slice(backend, uuid, interval),
        )
        work.record({"before": before})

    @staticmethod
    def _read(backend: "GpuBackend", uuid: str) -> str:
        """Return the time slice now; empty where nvidia-smi does not tell it in the words that are known."""
        try:
            match = _TIME_SLICE.search(backend.tools.run(SMI, "compute-policy", "-i", uuid, "-l"))
        except BackendError as error:
            log.info("the time slice of %s is not known: %s", uuid, error)
            return ""
        return match[1].capitalize() if match else ""

    def _put_back(self, backend: "GpuBackend", work: Work) -> None:
        def restore(before: str) -> bool:
            uuid = unless_gone(backend, lambda: uuid_of(backend, self.gpu), gone=None)
            if uuid is None:
                return True
            try:
                if self._read(backend, uuid) != before:
                    _set_time_slice(backend, uuid, before)
            except BackendError as error:
                log.warning("%s: the time slice stays %s: %s", self.gpu, self.interval, error)
                return False
            return True

        backend.settings.leave(self._setting, self._holder, restore)

    def observe(self, backend: "GpuBackend", work: Work) -> Observed:
        """Look whether it was set and nobody put it back: the GPU tells it by a slow program only."""
        held = backend.settings.holds(self._setting, self._holder)
        return Observed.DONE if held and "before" in work.facts else Observed.UNDONE


@dataclass(frozen=True)
class SetComputeMode(SettingStep):
    """Have a GPU in the compute mode EXCLUSIVE_PROCESS: one process, or one MPS server, has it at a time.

    shared   other claims may want the same of this GPU at the same time
    """

    shared: bool = False

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"set the compute mode of {self.gpu} to Exclusive_Process"

    @property
    def _setting(self) -> str:
        return f"{self.gpu}.compute-mode"

    def apply(self, backend: "GpuBackend", work: Work) -> None:
        """Set it."""
        with applying(), on_gpu(backend, self.gpu) as (session, gpu):
            before = backend.settings.take(
                self._setting,
                self._holder,
                pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
                read=lambda: session.call(pynvml.nvmlDeviceGetComputeMode, gpu),
                change=lambda mode: _set_compute_mode(session, gpu, self.gpu, mode),
            )
        work.record({"before": before})

    def _put_back(self, backend: "GpuBackend", work: Work) -> None:
        def undo(before: int) -> None:
            with on_gpu(backend, self.gpu) as (session, gpu):
                _set_compute_mode(session, gpu, self.gpu, before)

        def restore(before: int) -> bool:
            unless_gone(backend, lambda: undo(before), None)
            return True

        known = backend.settings.leave(self._setting, self._holder, restore)
        if not known and not self.shared and "before" in work.facts:
            restore(work.facts["before"])  # the record of settings was lost

    def observe(self, backend: "GpuBackend", work: Work) -> Observed:
        """Look at it."""
        with observing(), on_gpu(backend, self.gpu) as (session, gpu):
            mode = session.call(pynvml.nvmlDeviceGetComputeMode, gpu)
        return Observed.DONE if mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS else Observed.UNDONE


@dataclass(frozen=True)
class RunMps(HostStep["GpuBackend"]):
    """Run an MPS control daemon for GPUs of a claim, or join the one that a shared GPU has.

    name, shared        where claims share the daemon the name is the same in all of them
    gpus                names of the GPUs; of one whose partition is meant only that
    profile_id, start   the partition that a step before makes
    uuid                the MIG device that stood before
    launcher            who keeps the daemon, by the option mpsLauncher
    percentage, limits  active thread percentage and MiB of pinned memory for each GPU; 0 sets nothing
    user                for whom the server is started at once; -1 for nobody
    """

    name: str
    claim: str
    index: int
    gpus: tuple[str, ...]
    launcher: str
    profile_id: int = -1
    start: int = -1
    uuid: str = ""
    percentage: int = 0
    limits: tuple[int, ...] = ()
    user: int = -1
    shared: bool = False

    mends: ClassVar[bool] = True

    def describe(self) -> str:
        """Return what is done, for people."""
        part = self.uuid or (f"memory slice {self.start} of " if self.start >= 0 else "")
        return f"run MPS control daemon {self.name} for {part}{', '.join(self.gpus)}"

    @property
    def _setting(self) -> str:
        return f"{self.name}.mps"

    @property
    def _holder(self) -> str:
        return holder(self.claim, self.index)

    def apply(self, backend: "GpuBackend", work: Work) -> None:
        """Start it where it does not run, and wait until it takes commands."""
        with applying():
            devices = self._devices(backend)
        mps = self._mps(backend)
        limits = Limits(self.percentage, self.limits)
        backend.settings.take(
            self._setting,
            self._holder,
            list(devices),
            read=lambda: None,
            change=lambda _: mps.start(self.name, devices, limits, self.user, work.stop),
        )
        backend.mps_watch.add(self.name, mps)

    def _mps(self, backend: "GpuBackend") -> ControlDaemons:
        mps = backend.mps.get(self.launcher)
        if mps is None:
            raise UnavailableError(f"nobody keeps MPS control daemons as {shown(self.launcher)}")
        return mps

    def _devices(self, backend: "GpuBackend") -> tuple[str, ...]:
        """Return the UUIDs of what it serves."""
        if self.uuid:
            return (self.uuid,)
        if self.start < 0:
            return tuple(uuid_of(backend, gpu) for gpu in self.gpus)
        with on_gpu(backend, self.gpus[0]) as (session, gpu):
            for one in standing(session, gpu, self.profile_id):
                for compute, _ in compute_in(session, one.handle) if one.start == self.start else ():
                    device = mig_device(session, gpu, one.id, compute)
                    if device:
                        return (device.uuid,)
        raise TransientError(f"{self.gpus[0]}: there is no partition at memory slice {self.start} for MPS")

    def revert(self, backend: "GpuBackend", work: Work) -> None:
        """End it, where this was the last claim that used it. None outlives a reboot, nor do its directories."""

        def end(_: Any) -> bool:
            backend.mps_watch.discard(self.name)
            if not work.rebooted:
                self._mps(backend).end(self.name)
            return True

        if not backend.settings.leave(self._setting, self._holder, end) and not self.shared:
            end(None)  # the record of settings was lost

    def observe(self, backend: "GpuBackend", work: Work) -> Observed:
        """Look whether it runs."""
        with observing():
            held = backend.settings.holds(self._setting, self._holder)
            runs = self._mps(backend).runs(self.name)
        if held and runs:
            return Observed.DONE
        return Observed.PARTIAL if held or runs else Observed.UNDONE

    def recall(self, backend: "GpuBackend", work: Work) -> bool:
        """Have the daemon looked at: no probe shows whether it runs."""
        mps = backend.mps.get(self.launcher)
        if mps:
            backend.mps_watch.add(self.name, mps)
        return False


def uuid_of(backend: "GpuBackend", name: str) -> str:
    """Return the UUID of a GPU. Raises as `on_gpu` does."""
    with on_gpu(backend, name) as (session, gpu):
        return str(session.call(pynvml.nvmlDeviceGetUUID, gpu))


def _set_time_slice(backend: "GpuBackend", uuid: str, interval: str) -> None:
    if interval not in INTERVALS:
        raise BackendError(f"time slice {interval!a} is none of {', '.join(INTERVALS)}")
    number = str(INTERVALS.index(interval))
    backend.tools.run(SMI, "compute-policy", "-i", uuid, "--set-timeslice", number)


def _set_compute_mode(session: Any, gpu: Any, name: str, mode: int) -> None:
    if session.call(pynvml.nvmlDeviceGetComputeMode, gpu) == mode:
        return
    try:
        session.call(pynvml.nvmlDeviceSetComputeMode, gpu, mode)
    except NvmlError as error:
        if error.code == pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise BackendError(f"{name} has no compute mode {_MODES.get(mode, mode)}: {error}") from None
        raise


__all__ = ["INTERVALS", "RunMps", "SetComputeMode", "SetTimeSlice", "uuid_of"]
