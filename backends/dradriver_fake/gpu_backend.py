"""The backend `gpu` of a fake node."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from dradriver.backend import (
    Binding,
    ContainerEdits,
    Mount,
    Plan,
    PlanError,
    PlannedDevice,
    Request,
    Requested,
    Step,
    UnavailableError,
)
from dradriver.model import AttributeValue, ClaimRef, Device, Health, Peer, PoolContent, shown
from dradriver.model.text import plain
from dradriver_fake.backend import FakeBackend
from dradriver_fake.boards import Placement
from dradriver_fake.gpu_devices import FAILED, GPU, MEMORY, READY, GPUInventory, content_of, mode_of, parts_of
from dradriver_fake.gpu_hardware import GPUHardware
from dradriver_fake.gpu_steps import CreatePartition, UseGPU
from dradriver_fake.targets import remarks_of

CONTAINER_DIR = "/run/dradriver-fake"


class FakeGpuBackend(FakeBackend[GPUInventory]):
    """GPUs of a fake node."""

    kind = "gpu"
    serves = "GPUs"
    step_types: ClassVar[tuple[type[Step[Any]], ...]] = (CreatePartition, UseGPU)

    def gpu(self, name: str) -> GPUHardware:
        """Return a GPU of the node, on the bus or not. Raises UnavailableError where the node has none of that name."""
        for gpu in self.hardware.facts.gpus:
            if gpu.name == name:
                return GPUHardware(self.hardware, gpu)
        raise UnavailableError(f"GPU {shown(name)} is none of this node")

    def is_plugged(self, names: Sequence[str]) -> bool:
        """Return whether the GPU is there."""
        return self.gpu(names[-1]).is_present

    def lose(self, name: str) -> None:
        """Let a GPU lose all that was created on it; a partition is taken away as by an administrator."""
        for facts in self.hardware.facts.gpus:
            gpu = GPUHardware(self.hardware, facts)
            if name == facts.name:
                gpu.lose()
            for placement in gpu.board.placements() if gpu.board else ():
                if name == f"{facts.name}-{placement.suffix}":
                    gpu.lose(placement)

    def probe(self) -> GPUInventory:
        """Read which GPUs are on the bus, and what the fault script says of them."""
        self.begin_probe()
        options = self.hardware.options
        found = []
        for facts in self.hardware.facts.gpus:
            self.script.reach("probe", (facts.name,))
            if self.is_lost((facts.name,)):
                continue
            board = self.gpu(facts.name).board
            wanted = options.gpu_modes.get(facts.name, options.gpu_mode)
            mode = mode_of(facts, board, wanted)
            found.append(GPU(facts, board, mode, options.gpu_binding, self.places.of(facts)))
        inventory = GPUInventory(tuple(found), self.script.ailments(), remarks_of(self))
        for name, gpu, placement in parts_of(inventory):
            if placement and inventory.ailments.of((name,), "vanish"):
                self.is_lost((name, gpu.name))
        return inventory

    def devices(self, inventory: GPUInventory) -> PoolContent:
        """Offer them whole, as partitions or as shares."""
        return content_of(inventory)

    def binding(self, device: Device, inventory: GPUInventory) -> Binding:
        """Hold a pod up while its GPU is not ready, and give up on one that is ill."""
        if device.health is not Health.HEALTHY:
            return Binding(failed={FAILED: device.health_message})
        late = inventory.ailments.of((device.name, device.physical), "unready")
        return Binding() if late else Binding(met={READY: "the GPU is ready"})

    def base_edits(self, inventory: GPUInventory) -> ContainerEdits:
        """Give every container with a GPU the driver's files, and keep its own hands off."""
        if not inventory.gpus:
            return ContainerEdits()
        driver = self.hardware.directory / "driver"
        return ContainerEdits(
            env=("NVIDIA_VISIBLE_DEVICES=void",),
            mounts=tuple(
                _read_only(f"{driver}/{name}", f"{CONTAINER_DIR}/driver/{name}")
                for name in ("version", "libfake-ml.so.1")
            ),
        )

    def plan(
        self, request: Request, inventory: GPUInventory, held: Mapping[str, ClaimRef], peers: tuple[Peer, ...]
    ) -> Plan:
        """Create partitions, and note who has GPUs and shares."""
        parts = {name: (gpu, placement) for name, gpu, placement in parts_of(inventory)}
        devices, steps = [], []
        for requested in request.devices:
            if requested.device.name not in parts:
                raise PlanError(f"device {shown(requested.device.name)} is not on the bus")
            gpu, placement = parts[requested.device.name]
            if not requested.allocated.admin:
                steps.append(_step(request, requested, gpu, placement))
            devices.append(PlannedDevice(requested.allocated, ContainerEdits()))
        return Plan(tuple(devices), tuple(steps))

    def render(
        self,
        request: Request,
        plan: Plan,
        facts: tuple[Mapping[str, Any], ...],
        inventory: GPUInventory,
    ) -> tuple[PlannedDevice, ...]:
        """Give the container the UUID, which a partition has only since it was created, and a file of it."""
        recorded: Iterator[tuple[Step[Any], Mapping[str, Any]]] = zip(plan.steps, facts, strict=True)
        uuids = {gpu.name: gpu.facts.gpu.uuid for gpu in inventory.gpus}
        rendered = []
        for requested in request.devices:
            edits, metadata = ContainerEdits(), dict[str, AttributeValue]()
            if not requested.allocated.admin:
                step, known = next(recorded)
                if isinstance(step, CreatePartition):
                    uuid, file = known.get("uuid"), f"{step.gpu}/ci-{known.get('computeInstance')}.json"
                else:
                    uuid, file = (
                        uuids.get(requested.device.name),
                        f"{requested.device.name}/use-{known.get('id')}.json",
                    )
                source = f"{self.hardware.directory}/gpus/{file}"
                target = f"{CONTAINER_DIR}/{requested.device.name}-{requested.index}.json"
                uid = re.sub("[^A-Za-z0-9]", "_", request.claim.uid)
                edits = ContainerEdits(
                    env=(f"DRA_GPU_{uid}_{requested.index}={uuid}",), mounts=(_read_only(source, target),)
                )
                metadata["uuid"] = str(uuid)
            rendered.append(PlannedDevice(requested.allocated, edits, metadata))
        return tuple(rendered)


def _step(request: Request, requested: Requested, gpu: GPU, placement: Placement | None) -> Step[Any]:
    name = requested.device.name
    if placement:
        return CreatePartition(name, gpu.name, placement.profile.name, placement.start)
    memory = 0
    if requested.device.shared:
        capacity = requested.device.capacity[MEMORY]
        amount = requested.allocated.consumed.get(MEMORY)
        if amount is None and requested.allocated.share_id is not None and capacity.policy:
            amount = capacity.policy.default
        memory = (amount or capacity.value).to_int()
        if memory < 1:
            raise PlanError(
                f"device {name}: {MEMORY} {plain(str(amount), 64)} asked: more than nothing is expected"
            )
    return UseGPU(name, gpu.name, request.claim.uid, requested.index, memory)


def _read_only(source: str, target: str) -> Mount:
    return Mount(source, target, options=("bind", "ro", "nosuid", "nodev"))
