"""A small container runtime with NRI, over a real socket: it keeps pods and containers, and asks its plugins.

It has a codec of its own, so that what it understands is what a runtime would. What it does with answers is what
containerd does: updates are applied before the container is made, a refusal fails what it was about, and a plugin that
is silent for two seconds is cut off, after which all goes on without it. Started again, it tells of no end of the pods
that it found.
"""

import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from dradriver_protos import nri_pb2, ttrpc_pb2

M = TypeVar("M", bound=Message)

OLD, NEW = "0.8", "0.12"
"""Versions of NRI: events as StateChange and no CDI devices told, or events by their own names."""

PLUGIN, RUNTIME = 1, 2
REGISTRATION_SECONDS = 5.0
REQUEST_SECONDS = 2.0
PATIENCE = 10.0
"""Seconds to wait for what must happen at all."""

Event = nri_pb2.Event
Pod = nri_pb2.PodSandbox
Container = nri_pb2.Container
Send = Callable[[socket.socket, bytes], None]


class Refused(Exception):  # noqa: N818 - as it is called
    """The plugin answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class CutOff(Exception):  # noqa: N818 - as it is called
    """The plugin is gone: it closed the connection, or was too slow."""


def whole(sock: socket.socket, data: bytes) -> None:
    """Send at once."""
    sock.sendall(data)


def byte_by_byte(sock: socket.socket, data: bytes) -> None:
    """Send each byte by itself."""
    for number in range(len(data)):
        sock.sendall(data[number : number + 1])


def mux(stream: int, data: bytes, size: int = 4 << 20) -> bytes:
    """Return frames of the multiplexer with at most `size` bytes each."""
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(struct.pack(">II", stream, len(part)) + part for part in parts)


def frame(stream: int, kind: int, payload: bytes, flags: int = 0) -> bytes:
    """Return a frame of ttrpc."""
    return struct.pack(">IIBB", len(payload), stream, kind, flags) + payload


class Plugin:
    """A plugin's connection, seen from the runtime.

    name, index   as which it registered
    events        the mask that it asked for
    largest       bytes of the largest payload that it put into one frame of the multiplexer
    calls         every method that it was asked, with the seconds until the answer
    reading       while it is not set, nothing more is read
    """

    def __init__(self, sock: socket.socket, send: Send = whole, mux_size: int = 4 << 20) -> None:
        self.name = self.index = ""
        self.events = 0
        self.largest = 0
        self.calls: list[tuple[str, float]] = []
        self.registered = threading.Event()
        self.ended = threading.Event()
        self.reading = threading.Event()
        self.reading.set()
        self.other: list[bytes] = []
        """Frames of ttrpc that answer no question."""
        self._socket = sock
        self._send = send
        self._mux_size = mux_size
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._streams = itertools.count(1, 2)
        self._answers: dict[int, ttrpc_pb2.Response] = {}
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        with self._lock:
            self._socket.sendall(data)

    def ask(
        self,
        method: str,
        message: Message | bytes,
        reply: type[M],
        seconds: float = REQUEST_SECONDS,
        service: str = "nri.pkg.api.v1alpha1.Plugin",
    ) -> M:
        """Call the plugin and return its answer. Raises Refused, or CutOff after having cut the plugin off."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        with self._asking:
            stream = next(self._streams)
            request = ttrpc_pb2.Request(
                service=service, method=method, payload=payload, timeout_nano=int(seconds * 1e9)
            )
            data = frame(stream, 1, request.SerializeToString())
            began = time.monotonic()
            try:
                with self._lock:
                    self._send(self._socket, mux(PLUGIN, data, self._mux_size))
            except OSError as error:
                raise CutOff(str(error)) from None
        answer = self.answer(stream, seconds)
        self.calls.append((method, time.monotonic() - began))
        if answer.status.code:
            raise Refused(answer.status.code, answer.status.message)
        return reply.FromString(answer.payload)

    def answer(self, stream: int, seconds: float = REQUEST_SECONDS) -> ttrpc_pb2.Response:
        """Return the answer on a stream. Raises CutOff after having cut the plugin off."""
        with self._changed:
            self._changed.wait_for(lambda: stream in self._answers or self.ended.is_set(), seconds)
            found = self._answers.pop(stream, None)
        if found is None:
            self.close()
            raise CutOff("the plugin is gone, or too slow")
        return found

    def close(self) -> None:
        """Cut the plugin off."""
        self.reading.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join(PATIENCE)

    def _read(self) -> None:
        with self._socket, self._socket.makefile("rb") as file:
            streams = {PLUGIN: b"", RUNTIME: b""}
            try:
                while header := file.read(8):
                    stream, length = struct.unpack(">II", header)
                    self.reading.wait()
                    self.largest = max(self.largest, length)
                    streams[stream] += file.read(length)
                    streams[stream] = self._take(stream, streams[stream])
            except (OSError, struct.error):
                pass
        with self._changed:
            self.ended.set()
            self._changed.notify_all()

    def _take(self, stream: int, data: bytes) -> bytes:
        """Work on the frames that are whole; return the rest."""
        while len(data) >= 10:
            length, number, kind, _ = struct.unpack(">IIBB", data[:10])
            if len(data) < 10 + length:
                break
            payload, data = data[10 : 10 + length], data[10 + length :]
            if stream == RUNTIME:
                self._called(number, kind, payload)
            elif kind == 2:
                with self._changed:
                    self._answers[number] = ttrpc_pb2.Response.FromString(payload)
                    self._changed.notify_all()
            else:
                self.other.append(payload)
        return data

    def _called(self, number: int, kind: int, payload: bytes) -> None:
        """Be called by the plugin."""
        call = ttrpc_pb2.Request.FromString(payload)
        known = (kind, call.service, call.method) == (1, "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        if not known or number % 2 == 0:
            self.other.append(payload)
            return
        asked = nri_pb2.RegisterPluginRequest.FromString(call.payload)
        self.name, self.index = asked.plugin_name, asked.plugin_idx
        self.registered.set()

    def accept(self, error: str = "") -> None:
        """Answer the registration."""
        status = ttrpc_pb2.Status(code=2, message=error) if error else None
        answer = ttrpc_pb2.Response(status=status, payload=b"")
        with self._lock:
            self._send(self._socket, mux(RUNTIME, frame(1, 2, answer.SerializeToString()), self._mux_size))


class NriRuntime:
    """A runtime. Pods and containers stay while it stops and starts.

    version    OLD or NEW
    part       how many pods and containers a part of the synchronization holds; 0 for one part
    send       how bytes are written
    mux_size   bytes of the largest payload that it puts into one frame of the multiplexer
    refuse     why it refuses every registration; empty where it does not
    mute       whether it accepts connections and says nothing
    veto       why another plugin refuses every container, after ours was asked; empty where it does not
    """

    def __init__(self, path: Path, version: str = NEW) -> None:
        self.path = path
        self.version = version
        self.part = 0
        self.send: Send = whole
        self.mux_size = 4 << 20
        self.refuse = ""
        self.mute = False
        self.veto = ""
        self.pods: dict[str, Pod] = {}
        self.containers: dict[str, Container] = {}
        self.plugins: list[Plugin] = []
        self.connections: list[Plugin] = []
        self.log: list[str] = []
        self._numbers = itertools.count(1)
        self._ran: set[str] = set()
        self._lock = threading.RLock()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "NriRuntime":
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; a socket that an earlier one left is removed first."""
        self.path.unlink(missing_ok=True)
        self._ran.clear()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.fspath(self.path))
        self._listener.listen()
        self._run(self._accept, self._listener)

    def stop(self) -> None:
        """Go away; the socket's file stays, as it does where a runtime is killed."""
        if self._listener:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.drop()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._threads.clear()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def drop(self) -> None:
        """Close all connections."""
        for plugin in list(self.connections):
            plugin.close()
        self.connections.clear()
        self.plugins.clear()

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            self.attach(connected)

    def attach(self, connected: socket.socket) -> None:
        """Serve a plugin on a connected socket, as one that was started by the runtime."""
        plugin = Plugin(connected, self.send, self.mux_size)
        self.connections.append(plugin)
        self._run(self._welcome, plugin)

    def _welcome(self, plugin: Plugin) -> None:
        """Have a plugin register, configure it and synchronize it, as a runtime does."""
        if self.mute:
            return
        try:
            if not plugin.registered.wait(REGISTRATION_SECONDS) or self.refuse:
                plugin.accept(self.refuse or "too late")
                plugin.close()
                return
            plugin.accept()
            self._configure(plugin)
            with self._lock:
                self._synchronize(plugin)
                self.plugins.append(plugin)
        except (CutOff, Refused, OSError) as error:
            self.log.append(f"welcome: {error}")
            plugin.close()

    def _configure(self, plugin: Plugin) -> None:
        asked = nri_pb2.ConfigureRequest(runtime_name="containerd", runtime_version="v1.7.27")
        if self.version == NEW:
            asked.runtime_version, asked.NRI_version = "v2.4.0", "v0.12.2"
            asked.registration_timeout, asked.request_timeout = 5000, 2000
        answer = plugin.ask("Configure", asked, nri_pb2.ConfigureResponse)
        valid = (1 << (14 if self.version == NEW else 11)) - 1
        if answer.events & ~valid:
            raise Refused(2, f"invalid plugin events: {answer.events:#x}")
        plugin.events = answer.events or valid

    def _synchronize(self, plugin: Plugin) -> None:
        pods = list(self.pods.values())
        containers = [self.shown(one) for one in self.containers.values()]
        while True:
            size = self.part or max(len(pods), len(containers), 1)
            asked = nri_pb2.SynchronizeRequest(
                pods=pods[:size],
                containers=containers[:size],
                more=len(pods) > size or len(containers) > size,
            )
            answer = plugin.ask("Synchronize", asked, nri_pb2.SynchronizeResponse)
            pods, containers = pods[size:], containers[size:]
            if not asked.more:
                self.apply(answer.update)
                return
            if answer.update or not answer.more:
                raise Refused(2, "plugin does not handle split sync requests")

    def plugin(self, besides: Plugin | None = None) -> Plugin:
        """Return the plugin that is there, and waits for its next question."""
        found: Plugin = until(
            lambda: next((one for one in self.plugins if one is not besides), None), "a plugin is there"
        )
        return found

    def shown(self, container: Container) -> Container:
        """Return a container as this version tells of it."""
        told = Container()
        told.CopyFrom(container)
        if self.version == OLD:
            del told.CDI_devices[:]
        return told

    def cpus(self, container: Container) -> str:
        """Return the CPUs that a container has; empty for all."""
        return self.containers[container.id].linux.resources.cpu.cpus

    def mems(self, container: Container) -> str:
        """Return the memory nodes that a container has."""
        return self.containers[container.id].linux.resources.cpu.mems

    def hugepages(self, container: Container) -> dict[str, int]:
        """Return the huge page limits of a container."""
        limits = self.containers[container.id].linux.resources.hugepage_limits
        return {limit.page_size: limit.limit for limit in limits}

    def _each(self, event: nri_pb2.Event, method: str, message: Message, reply: type[M]) -> Iterator[M]:
        """Ask every plugin that wants to know; those that are gone or too slow are no more there."""
        for plugin in list(self.plugins):
            if not plugin.events & (1 << (event - 1)):
                continue
            try:
                yield plugin.ask(method, message, reply)
            except CutOff as error:
                self.log.append(f"{method}: {error}")
                self.plugins.remove(plugin)

    def _tell(self, event: nri_pb2.Event, pod: Pod, container: Container | None = None) -> None:
        """Tell of an event in the form of this version."""
        change = nri_pb2.StateChangeEvent(event=event, pod=pod, container=container)
        names = {
            Event.RUN_POD_SANDBOX: "RunPodSandbox",
            Event.STOP_POD_SANDBOX: "StopPodSandbox",
            Event.REMOVE_POD_SANDBOX: "RemovePodSandbox",
            Event.POST_CREATE_CONTAINER: "PostCreateContainer",
            Event.REMOVE_CONTAINER: "RemoveContainer",
        }
        if self.version == NEW:
            told = (
                nri_pb2.PodEvent(pod=pod)
                if container is None
                else nri_pb2.ContainerEvent(pod=pod, container=self.shown(container))
            )
            try:
                list(self._each(event, names[event], told, nri_pb2.Empty))
            except Refused as error:
                if error.code != 12:
                    raise
            else:
                return
        list(self._each(event, "StateChange", change, nri_pb2.Empty))

    def run_pod(
        self, name: str = "pod", uid: str = "", namespace: str = "default", network: str = "/run/netns/x"
    ) -> Pod:
        """Make a pod. Raises Refused."""
        pod = Pod(id=f"sandbox-{next(self._numbers)}", name=name, uid=uid, namespace=namespace)
        if network:
            pod.linux.namespaces.add(type="network", path=network)
        with self._lock:
            self._tell(Event.RUN_POD_SANDBOX, pod)
            self.pods[pod.id] = pod
            self._ran.add(pod.id)
        return pod

    def stop_pod(self, pod: Pod) -> None:
        """Stop a pod."""
        with self._lock:
            if pod.id in self._ran:
                self._tell(Event.STOP_POD_SANDBOX, pod)

    def remove_pod(self, pod: Pod) -> None:
        """Remove a pod."""
        with self._lock:
            if pod.id in self._ran:
                self._tell(Event.REMOVE_POD_SANDBOX, pod)
            self.pods.pop(pod.id, None)

    def create(
        self,
        pod: Pod,
        name: str = "main",
        cdi: Sequence[str] = (),
        env: Sequence[str] = (),
        hugepages: Sequence[tuple[str, int]] = (),
    ) -> Container:
        """Make a container. Raises Refused."""
        made = Container(
            id=f"container-{next(self._numbers)}",
            pod_sandbox_id=pod.id,
            name=name,
            env=env,
            CDI_devices=[nri_pb2.CDIDevice(name=one) for one in cdi],
        )
        for size, limit in hugepages:
            made.linux.resources.hugepage_limits.add(page_size=size, limit=limit)
        asked = nri_pb2.CreateContainerRequest(pod=pod, container=self.shown(made))
        with self._lock:
            for answer in self._each(
                Event.CREATE_CONTAINER, "CreateContainer", asked, nri_pb2.CreateContainerResponse
            ):
                assert made.id not in {one.container_id for one in answer.update}, "update during creation"
                if not self.veto:
                    self.apply(answer.update)
                self._merge(made, answer.adjust.linux.resources)
                made.env.extend(f"{one.key}={one.value}" for one in answer.adjust.env)
            if self.veto:
                raise Refused(2, self.veto)
            made.state = nri_pb2.ContainerState.CONTAINER_RUNNING
            self.containers[made.id] = made
            self._tell(Event.POST_CREATE_CONTAINER, pod, made)
        return made

    def resize(self, container: Container, resources: nri_pb2.LinuxResources) -> None:
        """Change a container's resources, as the kubelet does for a pod that is resized."""
        pod = self.pods[container.pod_sandbox_id]
        shown = self.shown(self.containers[container.id])
        asked = nri_pb2.UpdateContainerRequest(pod=pod, container=shown, linux_resources=resources)
        with self._lock:
            self._merge(self.containers[container.id], resources)
            for answer in self._each(
                Event.UPDATE_CONTAINER, "UpdateContainer", asked, nri_pb2.UpdateContainerResponse
            ):
                self.apply(answer.update)

    def end(self, container: Container, *, removed: bool = True) -> None:
        """Stop a container, and remove it. A pod that is already forgotten is told by its id alone."""
        pod = self.pods.get(container.pod_sandbox_id) or Pod(id=container.pod_sandbox_id)
        asked = nri_pb2.StopContainerRequest(pod=pod, container=self.shown(container))
        with self._lock:
            self.containers[container.id].state = nri_pb2.ContainerState.CONTAINER_STOPPED
            for answer in self._each(
                Event.STOP_CONTAINER, "StopContainer", asked, nri_pb2.StopContainerResponse
            ):
                self.apply(answer.update)
            if removed:
                del self.containers[container.id]
                self._tell(Event.REMOVE_CONTAINER, pod, container)

    def apply(self, updates: Iterable[nri_pb2.ContainerUpdate]) -> None:
        """Update containers; those that are not there any more are passed over."""
        for update in updates:
            if update.container_id in self.containers:
                self._merge(self.containers[update.container_id], update.linux.resources)

    @staticmethod
    def _merge(container: Container, change: nri_pb2.LinuxResources) -> None:
        """Change a container's resources. What is empty changes nothing: a runtime knows no empty set of CPUs."""
        mine = container.linux.resources
        mine.cpu.cpus = change.cpu.cpus or mine.cpu.cpus
        mine.cpu.mems = change.cpu.mems or mine.cpu.mems
        mine.hugepage_limits.extend(change.hugepage_limits)
        mine.unified.update(change.unified)


def until(check: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `check`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"did not happen within {PATIENCE:.0f} s: {what}")


@contextmanager
def running(loop: Callable[[threading.Event], None]) -> Iterator[threading.Event]:
    """Run a loop in a thread; it must end when it is told to."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            loop(stop)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the loop did not end"
        assert not failed, failed
