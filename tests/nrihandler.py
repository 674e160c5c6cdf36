"""A handler of NRI's events that keeps what it is told, and answers as it is told to."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dradriver.backend import ContainerAdjustment
from dradriver.clock import SYSTEM, Clock
from dradriver.nri import Container, NriPlugin, Pod, Update
from nriruntime import NEW, NriRuntime, running


class Kept:
    """Keeps all events, as (name, id), and what was synchronized.

    answer   what a container is given
    moved    what is changed of others with every answer
    before   called with the name of each event before it is answered: it may wait, or raise
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.pods: list[Pod] = []
        self.containers: list[Container] = []
        self.synchronized: list[tuple[list[Pod], list[Container]]] = []
        self.unheard_answers = 0
        self.answer = ContainerAdjustment()
        self.moved: Sequence[Update] = ()
        self.before: Callable[[str], None] = lambda name: None
        self.threads: set[str] = set()

    def _keep(self, name: str, thing: Pod | Container) -> None:
        self.threads.add(threading.current_thread().name)
        self.before(name)
        self.events.append((name, thing.id))

    def unheard(self) -> None:
        self.unheard_answers += 1

    def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        self.before("synchronize")
        self.synchronized.append((list(pods), list(containers)))
        return self.moved

    def run_pod(self, pod: Pod) -> None:
        self._keep("run pod", pod)
        self.pods.append(pod)

    def stop_pod(self, pod: Pod) -> None:
        self._keep("stop pod", pod)

    def remove_pod(self, pod: Pod) -> None:
        self._keep("remove pod", pod)

    def create_container(
        self, pod: Pod, container: Container
    ) -> tuple[ContainerAdjustment, Sequence[Update]]:
        self._keep("create", container)
        self.containers.append(container)
        return self.answer, self.moved

    def created_container(self, pod: Pod, container: Container) -> None:
        self._keep("created", container)

    def update_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        self._keep("update", container)
        return [Update(container.id, self.answer), *self.moved]

    def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        self._keep("stop", container)
        return self.moved

    def remove_container(self, pod: Pod, container: Container) -> None:
        self._keep("remove", container)


class Joined:
    """A plugin with a handler that keeps everything, and its runtime."""

    def __init__(self, runtime: NriRuntime, handler: Kept, plugin: NriPlugin, stop: threading.Event) -> None:
        self.runtime = runtime
        self.handler = handler
        self.plugin = plugin
        self.stop = stop


@contextmanager
def joined(directory: Path, version: str = NEW, clock: Clock = SYSTEM, **options: Any) -> Iterator[Joined]:
    """Run a runtime with these options, and a plugin that joins it."""
    runtime = NriRuntime(directory / "nri.sock", version)
    for name, value in options.items():
        setattr(runtime, name, value)
    handler = Kept()
    plugin = NriPlugin(handler, socket=runtime.path, environment={}, clock=clock)
    with runtime, running(plugin.run) as stop:
        yield Joined(runtime, handler, plugin, stop)


def waiting(event: threading.Event) -> Callable[[str], None]:
    """Return what waits for an event before each answer."""

    def wait(name: str) -> None:
        event.wait(20)

    return wait
