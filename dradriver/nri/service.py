"""The service that a runtime calls: each method decoded, handled and encoded again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from google.protobuf.message import Message

from dradriver.model.text import plain
from dradriver.nri.events import Container, Pod, RefusedError, RuntimeHandler
from dradriver.nri.messages import adjustment_message, container_of, pod_of, with_updates
from dradriver_protos import nri_pb2

SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"

MAX_OBJECTS: Final = 32768
"""Pods and containers that are believed to be on one node."""

Event = nri_pb2.Event
EVENTS: Final = sum(
    1 << (event - 1)
    for event in (
        Event.RUN_POD_SANDBOX,
        Event.STOP_POD_SANDBOX,
        Event.REMOVE_POD_SANDBOX,
        Event.CREATE_CONTAINER,
        Event.POST_CREATE_CONTAINER,
        Event.UPDATE_CONTAINER,
        Event.STOP_CONTAINER,
        Event.REMOVE_CONTAINER,
    )
)
"""What is subscribed to. All of it is as old as NRI is: a runtime refuses a mask with a bit that it does not know."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a runtime says of itself.

    nri       version of its NRI; empty where it does not tell
    seconds   how long it waits for an answer; 0 where it does not tell
    """

    name: str = ""
    version: str = ""
    nri: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        told = " ".join(plain(text, 64) for text in (self.name, self.version) if text)
        return f"{told or 'a container runtime'}{f' (NRI {plain(self.nri, 64)})' if self.nri else ''}"


@dataclass(slots=True)
class _Parts:
    """What came of a synchronization so far."""

    pods: list[Pod] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)


class Service:
    """The methods of one connection.

    runtime        the other side, once it has configured us
    synchronized   whether the handler has taken over all there is
    """

    def __init__(self, handler: RuntimeHandler) -> None:
        self.runtime = Runtime()
        self.synchronized = False
        self._handler = handler
        self._parts = _Parts()

    def answer(self, method: str, payload: bytes) -> bytes:
        """Return the encoded answer to a call of one of METHODS.

        Raises DecodeError for a payload that is none, and what the handler raises.
        """
        kind, call = METHODS[method]
        return call(self, kind.FromString(payload)).SerializeToString()

    def configure(self, message: nri_pb2.ConfigureRequest) -> Message:
        """Take note of the runtime, and subscribe."""
        seconds = max(0, message.request_timeout) / 1000
        self.runtime = Runtime(message.runtime_name, message.runtime_version, message.NRI_version, seconds)
        return nri_pb2.ConfigureResponse(events=EVENTS)

    def synchronize(self, message: nri_pb2.SynchronizeRequest) -> Message:
        """Keep a part, and pass the whole on with the last one."""
        parts = self._parts
        known, more = (len(parts.pods) + len(parts.containers)), len(message.pods) + len(message.containers)
        if known + more > MAX_OBJECTS:
            self._parts = _Parts()
            raise RefusedError(f"more than {MAX_OBJECTS} pods and containers cannot be on one node")
        parts.pods += map(pod_of, message.pods)
        parts.containers += map(container_of, message.containers)
        if message.more:
            return nri_pb2.SynchronizeResponse(more=True)
        self._parts = _Parts()
        updates = self._handler.synchronize(parts.pods, parts.containers)
        answer = with_updates(nri_pb2.SynchronizeResponse(), updates)
        self.synchronized = True
        return answer

    def shutdown(self, message: nri_pb2.Empty) -> Message:
        """Take note that the runtime goes; the connection ends by itself."""
        return message

    def run_pod(self, message: nri_pb2.PodEvent) -> Message:
        """Pass on that a sandbox is there."""
        self._handler.run_pod(pod_of(message.pod))
        return nri_pb2.Empty()

    def stop_pod(self, message: nri_pb2.PodEvent) -> Message:
        """Pass on that a sandbox is being stopped."""
        self._handler.stop_pod(pod_of(message.pod))
        return nri_pb2.Empty()

    def remove_pod(self, message: nri_pb2.PodEvent) -> Message:
        """Pass on that a sandbox is gone."""
        self._handler.remove_pod(pod_of(message.pod))
        return nri_pb2.Empty()

    def create_container(self, message: nri_pb2.CreateContainerRequest) -> Message:
        """Have a container adjusted."""
        adjustment, updates = self._handler.create_container(pod_of(message.pod), _container(message))
        answer = nri_pb2.CreateContainerResponse(adjust=adjustment_message(adjustment))
        return with_updates(answer, updates)

    def created_container(self, message: nri_pb2.ContainerEvent | nri_pb2.StateChangeEvent) -> Message:
        """Pass on that a container was made."""
        self._handler.created_container(pod_of(message.pod), _container(message))
        return nri_pb2.Empty()

    def update_container(self, message: nri_pb2.UpdateContainerRequest) -> Message:
        """Have a change of resources changed."""
        updates = self._handler.update_container(pod_of(message.pod), _container(message))
        return with_updates(nri_pb2.UpdateContainerResponse(), updates)

    def stop_container(self, message: nri_pb2.StopContainerRequest) -> Message:
        """Pass on that a container has ended."""
        updates = self._handler.stop_container(pod_of(message.pod), _container(message))
        return with_updates(nri_pb2.StopContainerResponse(), updates)

    def remove_container(self, message: nri_pb2.ContainerEvent | nri_pb2.StateChangeEvent) -> Message:
        """Pass on that a container is gone."""
        self._handler.remove_container(pod_of(message.pod), _container(message))
        return nri_pb2.Empty()

    def state_change(self, message: nri_pb2.StateChangeEvent) -> Message:
        """Pass on an event in the form that it had before NRI 0.12; those that nobody asked for are passed over."""
        pods = {
            Event.RUN_POD_SANDBOX: self._handler.run_pod,
            Event.STOP_POD_SANDBOX: self._handler.stop_pod,
            Event.REMOVE_POD_SANDBOX: self._handler.remove_pod,
        }
        if message.event in pods:
            pods[message.event](pod_of(message.pod))
        elif message.event == Event.POST_CREATE_CONTAINER:
            return self.created_container(message)
        elif message.event == Event.REMOVE_CONTAINER:
            return self.remove_container(message)
        return nri_pb2.Empty()


def _container(message: Any) -> Container:
    """Return the container of an event, with its pod in any case."""
    container = container_of(message.container)
    return container if container.pod else replace(container, pod=message.pod.id)


METHODS: Final[Mapping[str, tuple[type[Message], Callable[[Service, Any], Message]]]] = {
    "Configure": (nri_pb2.ConfigureRequest, Service.configure),
    "Synchronize": (nri_pb2.SynchronizeRequest, Service.synchronize),
    "Shutdown": (nri_pb2.Empty, Service.shutdown),
    "RunPodSandbox": (nri_pb2.PodEvent, Service.run_pod),
    "StopPodSandbox": (nri_pb2.PodEvent, Service.stop_pod),
    "RemovePodSandbox": (nri_pb2.PodEvent, Service.remove_pod),
    "CreateContainer": (nri_pb2.CreateContainerRequest, Service.create_container),
    "PostCreateContainer": (nri_pb2.ContainerEvent, Service.created_container),
    "UpdateContainer": (nri_pb2.UpdateContainerRequest, Service.update_container),
    "StopContainer": (nri_pb2.StopContainerRequest, Service.stop_container),
    "RemoveContainer": (nri_pb2.ContainerEvent, Service.remove_container),
    "StateChange": (nri_pb2.StateChangeEvent, Service.state_change),
}
