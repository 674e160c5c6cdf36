"""What a container runtime tells of pods and containers, and who answers it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dradriver.backend import ContainerAdjustment


class RefusedError(Exception):
    """The container, or the pod, must not be made so; the message is for the person who reads the pod's event."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod's sandbox.

    id                  the runtime's
    uid                 the pod object's, as the kubelet gave it; both it and the names are empty where the runtime
                        has already forgotten the pod
    network_namespace   path of its network namespace; None for a pod in the host's, or where nothing is known of it
    """

    id: str
    uid: str = ""
    namespace: str = ""
    name: str = ""
    network_namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """A container.

    env           `NAME=value`; anything may stand there, the user writes it
    cdi_devices   qualified names, as the kubelet gave them; runtimes tell them from NRI 0.10 on
    running       whether it is, or may soon be, a process that resources matter to
    cpus, mems, hugepage_limits   what it has: kernel lists, and bytes by page size; empty where nothing was set
    """

    id: str
    pod: str = ""
    name: str = ""
    env: Sequence[str] = ()
    cdi_devices: Sequence[str] = ()
    running: bool = True
    cpus: str = ""
    mems: str = ""
    hugepage_limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Update:
    """A change of a container that is there: the resources of the adjustment, whose other fields do not count.

    required   whether what the runtime is about must fail where this does; only the resources that two plugins want
               to set make it fail in every runtime
    """

    container: str
    adjustment: ContainerAdjustment
    required: bool = False


class RuntimeHandler(Protocol):
    """Answers the runtime. Called from several threads, though a runtime has one question at a time.

    All of it must come back well within two seconds: whatever takes longer is answered for it, with a refusal. So is
    what raises: RefusedError with its text, anything else as an internal error. A refused creation is tried again.

    Between two connections anything may have happened: `synchronize` then has the whole truth.
    """

    def unheard(self) -> None:
        """Take note that an answer did not reach the runtime: nothing of what it asked for was done."""

    def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """Take over all there is, and return what must be changed of it."""

    def run_pod(self, pod: Pod) -> None:
        """Work on a pod whose sandbox is there and whose containers are not."""

    def stop_pod(self, pod: Pod) -> None:
        """Work on a pod that is being stopped: its containers have ended. May come more than once."""

    def remove_pod(self, pod: Pod) -> None:
        """Forget a pod."""

    def create_container(
        self, pod: Pod, container: Container
    ) -> tuple[ContainerAdjustment, Sequence[Update]]:
        """Return how a container is made, and what must be changed of others before that.

        Another plugin may still refuse the container. Nothing is changed then, and it is not told of here.
        """

    def created_container(self, pod: Pod, container: Container) -> None:
        """Take note of a container that was made, and of the changes that came with it as done."""

    def update_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Return what is changed, of this container and of others, as somebody changes its resources."""

    def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Take note of a container that has ended; return what is changed of others."""

    def remove_container(self, pod: Pod, container: Container) -> None:
        """Forget a container."""
