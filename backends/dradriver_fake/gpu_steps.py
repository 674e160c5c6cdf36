"""What is changed on a GPU: partitions are created, or it is given out as a whole or in shares of its memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dradriver.backend import BackendError, HostStep, Observed, Work
from dradriver_fake.gpu_hardware import GPUHardware, GPUInstance
from dradriver_fake.steps import OwnedStep

if TYPE_CHECKING:
    from dradriver_fake.gpu_backend import FakeGpuBackend


@dataclass(frozen=True)
class CreatePartition(HostStep["FakeGpuBackend"]):
    """Create a GPU instance of a profile at its first memory slice, and the compute instance that spans it.

    An instance does not tell who made it. What stood in its place before is recorded first, so that one which is
    exactly there afterwards is ours, even where the daemon died before it knew the id.
    """

    device: str
    gpu: str
    profile: str
    start: int

    @property
    def names(self) -> tuple[str, ...]:
        """What a fault calls it."""
        return self.device, self.gpu

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"create {self.profile} at memory slice {self.start} of {self.gpu}"

    def apply(self, backend: "FakeGpuBackend", work: Work) -> None:
        """Create what is missing of both, and record each id as soon as it is known."""
        backend.check_on_bus(self.names)
        gpu = backend.gpu(self.gpu)
        if "before" not in work.facts:
            work.record({"before": [instance.id for instance in self._here(gpu)]})
        mine = self._mine(gpu, work.facts)
        if mine is None:
            number = self._create(backend, gpu)
            backend.script.reach("unrecorded", self.names)
        else:
            number = mine.id
        work.record({"gpuInstance": number})
        backend.script.reach("half", self.names)
        compute = mine.compute[0] if mine and mine.compute else gpu.create_compute(number)
        work.record({"computeInstance": compute.id, "uuid": compute.uuid})
        backend.script.reach("created", self.names)

    def _create(self, backend: "FakeGpuBackend", gpu: GPUHardware) -> int:
        foreign = self._here(gpu)
        if foreign:
            raise BackendError(
                f"{self.device}: GPU instance {foreign[0].id} is there already, and was not made for a claim: "
                "it is not touched"
            )
        backend.script.reach("create", self.names)
        return gpu.create_instance(self.profile, self.start)

    def revert(self, backend: "FakeGpuBackend", work: Work) -> None:
        """Destroy both, compute instance first, as far as they are there."""
        if "before" not in work.facts or backend.is_lost(self.names):
            return
        gpu = backend.gpu(self.gpu)
        backend.script.reach("destroy", self.names)
        mine = self._mine(gpu, work.facts)
        if mine:
            for compute in mine.compute:
                gpu.destroy_compute(compute.id)
            gpu.destroy_instance(mine.id)
        backend.script.reach("destroyed", self.names)

    def observe(self, backend: "FakeGpuBackend", work: Work) -> Observed:
        """Look for both."""
        backend.check_in_sight(self.names)
        mine = self._mine(backend.gpu(self.gpu), work.facts)
        if mine is None:
            return Observed.UNDONE
        return Observed.DONE if mine.compute and "uuid" in work.facts else Observed.PARTIAL

    def _here(self, gpu: GPUHardware) -> list[GPUInstance]:
        return [one for one in gpu.instances() if (one.profile, one.start) == (self.profile, self.start)]

    def _mine(self, gpu: GPUHardware, facts: Mapping[str, Any]) -> GPUInstance | None:
        """Return the instance that this step made. Ids are used again, UUIDs are not."""
        for instance in self._here(gpu):
            if instance.id in facts.get("before", ()) or facts.get("gpuInstance", instance.id) != instance.id:
                continue
            if all(compute.uuid == facts.get("uuid", compute.uuid) for compute in instance.compute):
                return instance
        return None


@dataclass(frozen=True)
class UseGPU(OwnedStep["FakeGpuBackend"]):
    """Give out a GPU, or so many bytes of its memory; 0 is all of it."""

    memory: int = 0

    def describe(self) -> str:
        """Return what is done, for people."""
        what = f"{self.memory} bytes of {self.thing}" if self.memory else self.thing
        return f"give {what} to device {self.index} of claim {self.claim}"

    def made(self, backend: "FakeGpuBackend") -> Mapping[int, Mapping[str, Any]]:
        """Return all uses of the GPU."""
        return backend.gpu(self.thing).uses()

    def make(self, backend: "FakeGpuBackend") -> int:
        """Give it out."""
        return backend.gpu(self.thing).use(self.claim, self.index, self.memory)

    def remove(self, backend: "FakeGpuBackend", number: int) -> None:
        """Take it back."""
        backend.gpu(self.thing).end_use(number)
