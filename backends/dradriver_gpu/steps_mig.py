"""What is changed for partitions: MIG mode, and the instances that a partition is."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pynvml

from dradriver.backend import BackendError, Check, HostStep, Observed, TransientError, Work
from dradriver_gpu.instances import (
    Standing,
    applying,
    compute_in,
    create_compute,
    create_instance,
    destroy,
    every_standing,
    mig_device,
    observing,
    on_gpu,
    standing,
    unless_gone,
)
from dradriver_gpu.inventory import GPU, address_of
from dradriver_gpu.mig import read_mode
from dradriver_gpu.nvml import NvmlError, Session
from dradriver_gpu.steps_setting import SettingStep

if TYPE_CHECKING:
    from dradriver_gpu.backend import GpuBackend

log = logging.getLogger(__name__)

MEMORY_TOLERANCE = 16
"""A MIG device may show a sixteenth less memory than its profile: drivers round differently in the two places (a
3g.20gb of an A100 is listed with 20096 MiB, and shows 19968)."""


@dataclass(frozen=True)
class CreatePartition(HostStep["GpuBackend"]):
    """Create a GPU instance of a profile at its first memory slice, and the compute instance that spans it.

    device                      the name of the partition's device
    profile, profile_id         the GPU instance profile, by name for people and by NVML's number
    start, size                 memory slices
    multiprocessors, memory_mib what was published of it, and must be there

    An instance does not tell who made it. What stood in its place before is recorded first, so that one which is
    exactly there afterwards is ours, even where the daemon died before it knew the id.
    """

    device: str
    gpu: str
    profile: str
    profile_id: int
    start: int
    size: int
    multiprocessors: int
    memory_mib: int

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"create {self.profile} at memory slice {self.start} of {self.gpu}"

    def apply(self, backend: "GpuBackend", work: Work) -> None:
        """Create what is missing of both, and record each id as soon as it is known."""
        with applying(), on_gpu(backend, self.gpu) as (session, gpu):
            if "before" not in work.facts:
                work.record({"before": [one.id for one in self._here(session, gpu)]})
            mine = self._mine(session, gpu, work.facts) or self._create(backend, session, gpu, work)
            _record(work, gpuInstance=mine.id)
            there = compute_in(session, mine.handle)
            compute = there[0][0] if there else create_compute(session, mine.handle)
            _record(work, computeInstance=compute)
            _record(work, uuid=self._check(session, gpu, mine.id, compute))
            # Nodes are made by others, a moment later: they are waited for here, where waiting is possible.
            minor = session.call(pynvml.nvmlDeviceGetMinorNumber, gpu)
            backend.editor.instance(GPU(address_of(self.gpu) or "", minor=minor), mine.id, compute)

    def _create(self, backend: "GpuBackend", session: Session, gpu: Any, work: Work) -> Standing:
        if backend.options.foreign_instances == "destroy":
            self._clear(backend, session, gpu, work)
        elif work.facts["before"]:
            raise BackendError(
                f"{self.device}: GPU instance {work.facts['before'][0]} is there already, and was not made for a "
                "claim: it is not touched"
            )
        backend.owned.add(self.gpu, self.profile_id, self.start)
        try:
            return create_instance(session, gpu, self.profile_id, self.start, self.size)
        except NvmlError as error:
            if error.code == pynvml.NVML_ERROR_NOT_SUPPORTED:
                raise BackendError(f"{self.device}: {error}: MIG mode of {self.gpu} is off") from None
            if error.code != pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES:
                raise
            in_the_way = [one for one in every_standing(session, gpu) if one.overlaps(self.start, self.size)]
            names = ", ".join(f"{one.id} (profile {one.profile_id})" for one in in_the_way)
            what = f"GPU instance {names} has memory slices of it" if names else str(error)
            raise BackendError(f"{self.device}: cannot be created: {what}") from None

    def _clear(self, backend: "GpuBackend", session: Session, gpu: Any, work: Work) -> None:
        """Destroy what stands in the way and is not ours."""
        ours = backend.owned.places
        for one in every_standing(session, gpu):
            if one.overlaps(self.start, self.size) and (self.gpu, one.profile_id, one.start) not in ours:
                log.warning(
                    "%s: GPU instance %d (profile %d at %d), which no claim made, is destroyed",
                    self.gpu,
                    one.id,
                    one.profile_id,
                    one.start,
                )
                destroy(session, one)
        # The next one in that place has the same number again, and is ours.
        _record(work, before=[])

    def _check(self, session: Session, gpu: Any, instance: int, compute: int) -> str:
        """Return the UUID of the MIG device, which must have what was published of it."""
        device = mig_device(session, gpu, instance, compute)
        if device is None:
            raise TransientError(
                f"{self.device}: the driver does not show the MIG device of GPU instance {instance} yet"
            )
        if device.multiprocessors is not None and device.multiprocessors < self.multiprocessors:
            raise BackendError(
                f"{self.device}: its compute instance has {device.multiprocessors} multiprocessors, "
                f"{self.multiprocessors} were published"
            )
        least = self.memory_mib - self.memory_mib // MEMORY_TOLERANCE
        if device.memory_mib is not None and device.memory_mib < least:
            raise BackendError(
                f"{self.device}: it has {device.memory_mib} MiB of memory, {self.memory_mib} were published"
            )
        return device.uuid

    def revert(self, backend: "GpuBackend", work: Work) -> None:
        """Destroy both, compute instance first, as far as they are there.

        Neither outlives a reboot: what stands in their place then, somebody else made.
        """
        if "before" not in work.facts:
            return

        def undo() -> None:
            with on_gpu(backend, self.gpu) as (session, gpu):
                mine = self._mine(session, gpu, work.facts)
                if mine:
                    destroy(session, mine)

        if not work.rebooted:
            unless_gone(backend, undo, None)
        backend.owned.discard(self.gpu, self.profile_id, self.start)

    def observe(self, backend: "GpuBackend", work: Work) -> Observed:
        """Look for both."""
        if not work.facts.get("before", True):
            backend.owned.add(self.gpu, self.profile_id, self.start)
        with observing(), on_gpu(backend, self.gpu) as (session, gpu):
            mine = self._mine(session, gpu, work.facts)
            if mine is None:
                backend.owned.discard(self.gpu, self.profile_id, self.start)
                return Observed.UNDONE
            backend.owned.add(self.gpu, self.profile_id, self.start)
            device = mig_device(session, gpu, mine.id, work.facts.get("computeInstance", -1))
        return Observed.DONE if device and device.uuid == work.facts.get("uuid") else Observed.PARTIAL

    def _here(self, session: Session, gpu: Any) -> list[Standing]:
        return [one for one in standing(session, gpu, self.profile_id) if one.start == self.start]

    def _mine(self, session: Session, gpu: Any, facts: Mapping[str, Any]) -> Standing | None:
        """Return the instance that this step made."""
        for one in self._here(session, gpu):
            if one.id not in facts.get("before", ()) and facts.get("gpuInstance", one.id) == one.id:
                return one
        return None


@dataclass(frozen=True)
class UsePartition(HostStep["GpuBackend"]):
    """See that a MIG device that somebody made is the one that was published. Nothing is changed."""

    device: str
    gpu: str
    gpu_instance: int
    compute_instance: int
    uuid: str

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"use {self.uuid}, in GPU instance {self.gpu_instance} of {self.gpu}"

    def apply(self, backend: "GpuBackend", work: Work) -> None:
        """Look for it."""
        with applying():
            found = self._found(backend)
        if found != self.uuid:
            raise BackendError(
                f"{self.device}: the MIG device {self.uuid} is gone"
                + (f", in its place is {found}" if found else "")
            )

    def revert(self, backend: "GpuBackend", work: Work) -> None:
        """Leave it as it is."""

    def observe(self, backend: "GpuBackend", work: Work) -> Observed:
        """Look for it."""
        with observing():
            return Observed.DONE if self._found(backend) == self.uuid else Observed.UNDONE

    def _found(self, backend: "GpuBackend") -> str | None:
        with on_gpu(backend, self.gpu) as (session, gpu):
            device = mig_device(session, gpu, self.gpu_instance, self.compute_instance)
        return device.uuid if device else None


@dataclass(frozen=True)
class SeeUndivided(Check["GpuBackend"]):
    """See that MIG mode of a GPU that is given out whole, or in shares, is off, as when it was published."""

    device: str
    gpu: str

    def describe(self) -> str:
        """Return what is looked at, for people."""
        return f"see that MIG mode of {self.gpu} is off"

    def look(self, backend: "GpuBackend") -> None:
        """Look at it."""
        with applying(), on_gpu(backend, self.gpu) as (session, gpu):
            if is_enabled(session, gpu):
                raise BackendError(
                    f"{self.device}: MIG mode of its GPU is on now: it was switched since the device was published"
                )


@dataclass(frozen=True)
class SwitchMigMode(SettingStep):
    """Have MIG mode on or off for as long as device `index` of the claim is in use, where that takes no reset."""

    enabled: bool

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"switch MIG mode of {self.gpu} {'on' if self.enabled else 'off'}"

    @property
    def _setting(self) -> str:
        return f"{self.gpu}.mig-mode"

    def apply(self, backend: "GpuBackend", work: Work) -> None:
        """Switch it."""
        with applying(), on_gpu(backend, self.gpu) as (session, gpu):
            before = backend.settings.take(
                self._setting,
                self._holder,
                self.enabled,
                read=lambda: is_enabled(session, gpu),
                change=lambda enabled: switch(session, gpu, self.gpu, enabled=enabled),
            )
        _record(work, before=before)

    def _put_back(self, backend: "GpuBackend", work: Work) -> None:
        def restore(before: bool) -> bool:
            with on_gpu(backend, self.gpu) as (session, gpu):
                return self._restore(session, gpu, before)

        def put_back(before: bool) -> bool:
            return unless_gone(backend, lambda: restore(before), gone=True)

        backend.settings.leave(self._setting, self._holder, put_back)

    def _restore(self, session: Session, gpu: Any, before: bool) -> bool:
        """Put it back where nothing is in the way: the next one to use the GPU switches it as it needs it."""
        if is_enabled(session, gpu) == before:
            return True
        if not before and every_standing(session, gpu):
            log.info("%s: MIG mode stays on: there are GPU instances that no claim made", self.gpu)
            return False
        try:
            switch(session, gpu, self.gpu, enabled=before)
        except BackendError as error:
            if isinstance(error, NvmlError) and error.is_lost:
                raise
            log.warning("%s: MIG mode stays %s: %s", self.gpu, "off" if before else "on", error)
            return False
        return True

    def observe(self, backend: "GpuBackend", work: Work) -> Observed:
        """Look at it."""
        with observing(), on_gpu(backend, self.gpu) as (session, gpu):
            return Observed.DONE if is_enabled(session, gpu) == self.enabled else Observed.UNDONE


def is_enabled(session: Session, gpu: Any) -> bool:
    """Return whether MIG mode is on now. Raises NvmlError."""
    modes = read_mode(session, gpu)
    return modes is not None and modes[0]


def switch(session: Session, gpu: Any, name: str, *, enabled: bool) -> None:
    """Switch MIG mode at once or not at all.

    The call succeeds also where the switch stays pending, for the next reset: it is then taken back. Raises
    TransientError for a GPU that is in use, BackendError for one that needs a reset, NvmlError.
    """
    current, pending = session.call(pynvml.nvmlDeviceGetMigMode, gpu)
    wanted = pynvml.NVML_DEVICE_MIG_ENABLE if enabled else pynvml.NVML_DEVICE_MIG_DISABLE
    if current == wanted:
        return
    status = session.call(pynvml.nvmlDeviceSetMigMode, gpu, wanted)
    if status == pynvml.NVML_SUCCESS and is_enabled(session, gpu) == enabled:
        return
    session.call(pynvml.nvmlDeviceSetMigMode, gpu, pending)
    what = f"{name}: MIG mode cannot be switched {'on' if enabled else 'off'}"
    if status == pynvml.NVML_ERROR_IN_USE:
        raise TransientError(f"{what}: the GPU is in use")
    raise BackendError(
        f"{what}: it needs a reset of the GPU, which is not done unasked (NVML status {status})"
    )


def _record(work: Work, **facts: Any) -> None:
    """Record what is not recorded yet."""
    if any(work.facts.get(name, _UNKNOWN) != value for name, value in facts.items()):
        work.record(facts)


_UNKNOWN = object()
