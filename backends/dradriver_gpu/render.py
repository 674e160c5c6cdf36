"""What a container gets for its GPUs, once they are ready. Pure but for a look at the device nodes."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dradriver.backend import (
    ContainerEdits,
    DeviceNode,
    Mount,
    Plan,
    PlanError,
    PlannedDevice,
    Request,
    Step,
)
from dradriver.host import PCI_DIR
from dradriver.model import AttributeValue
from dradriver_gpu.inventory import GPU, GPUInventory
from dradriver_gpu.plan import MPS, Asked, asked_of, share_of
from dradriver_gpu.steps_mig import CreatePartition
from dradriver_gpu.steps_sharing import RunMps
from dradriver_gpu.target import Kind, Target

if TYPE_CHECKING:
    from dradriver_gpu.backend import GpuBackend

PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks for a control daemon of itself
SHM = "/dev/shm"  # noqa: S108

_NODE = re.compile("/dev/nvidia([0-9]+)")

_Facts = Mapping[str, Any]


def render_gpus(
    backend: "GpuBackend", request: Request, plan: Plan, facts: tuple[_Facts, ...], inventory: GPUInventory
) -> tuple[PlannedDevice, ...]:
    """Return what the containers get. `facts` is what each step recorded.

    Raises PlanError for a device that is not there, MissingNodeError and UnavailableError for what of it is not.
    """
    asked = [asked_of(requested, inventory) for requested in request.devices]
    if any(one.target.kind is not Kind.PASSTHROUGH for one in asked):
        backend.editor.check(inventory.driver)
    recorded = dict(_by_device(plan, facts))
    mps = next((step for step in plan.steps if isinstance(step, RunMps)), None)
    devices = []
    for one in asked:
        edits, metadata = _device(backend, one.target, recorded.get(one.name, {}))
        if mps and one.strategy == MPS:
            edits = edits + _clients(backend, mps, one)
        devices.append(PlannedDevice(one.requested.allocated, edits, metadata))
    return tuple(devices)


def strayed(device: str, edits: ContainerEdits, inventory: GPUInventory) -> str:
    """Return which other GPU a device's edits lead to now; empty where they lead to none.

    A GPU that does not answer counts for nothing: its minor number is the one of old.
    """
    minors = {match[1] for node in edits.device_nodes if (match := _NODE.fullmatch(node.path))}
    for gpu in inventory.gpus:
        is_other = device != gpu.name and not device.startswith(f"{gpu.name}-")
        if is_other and gpu.visible and not gpu.fault and str(gpu.minor) in minors:
            return f"/dev/nvidia{gpu.minor} of device {device} is {gpu.name} now"
    return ""


def _by_device(plan: Plan, facts: tuple[_Facts, ...]) -> Iterator[tuple[str, _Facts]]:
    step: Step[Any]
    for step, known in zip(plan.steps, facts, strict=True):
        if isinstance(step, CreatePartition):
            yield step.device, known


def _device(
    backend: "GpuBackend", target: Target, known: _Facts
) -> tuple[ContainerEdits, dict[str, AttributeValue]]:
    """Return the edits of a device, and what is known of it beyond what is published."""
    match target.kind:
        case Kind.WHOLE | Kind.SHARE:
            return backend.editor.gpu(target.gpu), {}
        case Kind.PASSTHROUGH:
            return _passed_through(backend, target.gpu), {}
        case Kind.EXISTING if target.instance and target.compute:
            return _instance(backend, target, target.instance.id, target.compute.id), {}
    if known:
        edits = _instance(backend, target, known["gpuInstance"], known["computeInstance"])
        return edits, {"uuid": known["uuid"]}
    # Admin access: as it stands, made for somebody else.
    if target.instance and target.instance.compute:
        compute = target.instance.compute[0]
        return _instance(backend, target, target.instance.id, compute.id), {"uuid": compute.uuid or ""}
    raise PlanError(f"{target.gpu.name}: the partition is not there any more")


def _instance(backend: "GpuBackend", target: Target, instance: int, compute: int) -> ContainerEdits:
    placement = target.placement or (target.instance.placement if target.instance else None)
    graphics = placement is not None and "+gfx" in placement.profile.name
    return backend.editor.instance(target.gpu, instance, compute, graphics=graphics)


def _clients(backend: "GpuBackend", step: RunMps, one: Asked) -> ContainerEdits:
    """Return what lets processes reach the control daemon, and what limits those of a share."""
    mps = backend.mps[step.launcher]
    env = [f"CUDA_MPS_PIPE_DIRECTORY={PIPE_DIRECTORY}"]
    if step.shared:
        percentage, limit = share_of(one)
        if percentage:
            env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}")
        if limit:
            env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limit}M")
    options = ("bind", "rw", "nosuid", "nodev")
    return ContainerEdits(
        env=tuple(env),
        mounts=(
            Mount(mps.pipe(step.name), PIPE_DIRECTORY, options=options),
            Mount(mps.shm(step.name), SHM, options=options),
        ),
    )


def _passed_through(backend: "GpuBackend", gpu: GPU) -> ContainerEdits:
    """Return what a virtual machine monitor opens: the group of old, and the device by itself where there is iommufd.

    Facts: Documentation/driver-api/vfio.rst, "VFIO Device cdev".
    """
    group = gpu.passthrough.iommu_group if gpu.passthrough else None
    if group is None:
        raise PlanError(f"{gpu.name} is in no IOMMU group")
    nodes = [DeviceNode("/dev/vfio/vfio"), DeviceNode(f"/dev/vfio/{group}")]
    devices = backend.host.list_dir(f"{PCI_DIR}/{gpu.address}/vfio-dev")
    device = next((name for name in devices if re.fullmatch("vfio[0-9]+", name)), None)
    if device and backend.host.exists("dev/iommu"):
        nodes += [DeviceNode("/dev/iommu"), DeviceNode(f"/dev/vfio/devices/{device}")]
    return ContainerEdits(device_nodes=tuple(nodes))
