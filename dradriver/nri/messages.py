"""Between NRI's messages and the types that handlers work with."""

from collections.abc import Iterable
from typing import TypeVar

from dradriver.backend import ContainerAdjustment
from dradriver.nri.events import Container, Pod, Update
from dradriver_protos import nri_pb2


def pod_of(message: nri_pb2.PodSandbox) -> Pod:
    """Return what is wanted of a pod."""
    namespaces = message.linux.namespaces
    network = next((one.path for one in namespaces if one.type == "network"), None)
    return Pod(message.id, message.uid, message.namespace, message.name, network or None)


def container_of(message: nri_pb2.Container) -> Container:
    """Return what is wanted of a container."""
    resources = message.linux.resources
    return Container(
        id=message.id,
        pod=message.pod_sandbox_id,
        name=message.name,
        env=tuple(message.env),
        cdi_devices=tuple(device.name for device in message.CDI_devices),
        running=message.state != nri_pb2.ContainerState.CONTAINER_STOPPED,
        cpus=resources.cpu.cpus,
        mems=resources.cpu.mems,
        # Of two limits for one size the runtime applies the last.
        hugepage_limits={limit.page_size: limit.limit for limit in resources.hugepage_limits},
    )


def adjustment_message(adjustment: ContainerAdjustment) -> nri_pb2.ContainerAdjustment | None:
    """Return an adjustment for the runtime, None for one that changes nothing.

    Raises ValueError for a device node without type or numbers: the runtime cannot look them up.
    """
    if adjustment == ContainerAdjustment():
        return None
    made = nri_pb2.ContainerAdjustment()
    for name, value in adjustment.env.items():
        made.env.add(key=name, value=value)
    for kind, limit in adjustment.rlimits.items():
        made.rlimits.add(type=kind, hard=limit, soft=limit)
    for node in adjustment.devices:
        if not node.type or node.major is None or node.minor is None:
            raise ValueError(f"device node {node.path}: type, major and minor are needed")
        device = made.linux.devices.add(path=node.path, type=node.type, major=node.major, minor=node.minor)
        if node.file_mode is not None:
            device.file_mode.value = node.file_mode
        if node.uid is not None:
            device.uid.value = node.uid
        if node.gid is not None:
            device.gid.value = node.gid
    resources = _resources(adjustment)
    if resources is not None:
        made.linux.resources.CopyFrom(resources)
    return made


Answer = TypeVar(
    "Answer",
    nri_pb2.SynchronizeResponse,
    nri_pb2.CreateContainerResponse,
    nri_pb2.UpdateContainerResponse,
    nri_pb2.StopContainerResponse,
)


def with_updates(answer: Answer, updates: Iterable[Update]) -> Answer:
    """Return an answer with updates for the runtime added; those that change nothing are left out.

    There may be one for each container of the node, so they are made in their place: a message that is put into
    another one is copied.
    """
    last, changes = ContainerAdjustment(), None
    for update in updates:
        if update.adjustment is not last:  # many containers get the same
            last, changes = update.adjustment, _changes(update.adjustment)
        if changes is not None:
            answer.update.add(
                container_id=update.container, linux=changes, ignore_failure=not update.required
            )
    return answer


def _changes(adjustment: ContainerAdjustment) -> nri_pb2.LinuxContainerUpdate | None:
    resources = _resources(adjustment)
    return None if resources is None else nri_pb2.LinuxContainerUpdate(resources=resources)


def _resources(adjustment: ContainerAdjustment) -> nri_pb2.LinuxResources | None:
    if not (adjustment.cpus or adjustment.mems or adjustment.hugepage_limits or adjustment.unified):
        return None
    made = nri_pb2.LinuxResources(unified=dict(adjustment.unified))
    if adjustment.cpus or adjustment.mems:
        made.cpu.cpus = adjustment.cpus
        made.cpu.mems = adjustment.mems
    for size, limit in adjustment.hugepage_limits.items():
        made.hugepage_limits.add(page_size=size, limit=limit)
    return made
