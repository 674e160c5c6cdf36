"""The kubelet's side of the plugin protocols, as a small client for tests and for debugging any DRA driver.

It knows the public protocols only: what is registered is found through the sockets, and answers are judged as the
kubelet (1.36) judges them.
"""

import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc

from dradriver.kubelet import KUBELET_ROOT, unix_target
from dradriver.model import ClaimRef, Health, PreparedDevice, shown
from dradriver_protos import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)

GET_INFO_SECONDS: Final = 1.0
NOTIFY_SECONDS: Final = 5.0
CALL_SECONDS: Final = 45.0

_DRA: Final[Mapping[str, tuple[Any, Any]]] = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
_HEALTH: Final[Mapping[str, tuple[Any, Any]]] = {
    "v1": (health_v1_pb2, health_v1_pb2_grpc),
    "v1alpha1": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}
_HEALTH_VALUES: Final = {0: Health.UNKNOWN, 1: Health.HEALTHY, 2: Health.UNHEALTHY}

# Without a pool of its own a channel shares the connection, and its back-off, of earlier ones to the same path.
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


class KubeletError(Exception):
    """What the simulated kubelet has to say of a driver."""


class PluginNotFoundError(KubeletError):
    """No plugin of that name answers."""


class CallError(KubeletError):
    """A call failed as such. `code` is the gRPC status, as `DEADLINE_EXCEEDED`."""

    def __init__(self, what: str, error: grpc.RpcError) -> None:
        self.code: str = error.code().name
        self.details: str = error.details() or ""
        super().__init__(f"{what} failed: {self.code}: {shown(self.details, 500)}")


class AnswerError(KubeletError):
    """An answer that the kubelet would not accept. `answer` holds what could be read of it."""

    def __init__(self, what: str, problems: Sequence[str], answer: Mapping[str, object]) -> None:
        self.problems = tuple(problems)
        self.answer = answer
        super().__init__(f"{what}: {'; '.join(problems)}")


@dataclass(frozen=True, slots=True)
class RegisteredPlugin:
    """What a registration socket answered to GetInfo. All but `socket` is empty where `error` is not."""

    socket: Path
    type: str = ""
    name: str = ""
    endpoint: str = ""
    versions: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """One device in a health message. Times in seconds, `updated` since the Unix epoch."""

    health: Health
    message: str
    updated: int
    timeout: int


class Kubelet:
    """Calls the plugins below one kubelet directory. A context manager; any thread may use it.

    The connection to a driver is kept, as the kubelet keeps it, until its socket is another one. Where a driver is
    named, it is looked up anew at each call; a `RegisteredPlugin` in its place is called as it is.
    """

    def __init__(self, root: Path = KUBELET_ROOT, call_seconds: float = CALL_SECONDS) -> None:
        """`call_seconds` is how long a call of a driver may take."""
        self._call_seconds = call_seconds
        self.registry = root / "plugins_registry"
        self._guard = threading.Lock()
        self._channels: dict[str, tuple[tuple[int, int], grpc.Channel]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; open health streams end."""
        with self._guard:
            channels = [channel for _, channel in self._channels.values()]
            self._channels.clear()
        for channel in channels:
            channel.close()

    def plugins(self) -> list[RegisteredPlugin]:
        """Ask every registration socket who it is, of whatever type, in the order of their names."""
        return [get_info(socket) for socket in registration_sockets(self.registry)]

    def plugin(self, driver: str) -> RegisteredPlugin:
        """Return the newest instance of `driver` that answers. Raises PluginNotFoundError."""
        found = [plugin for plugin in self.plugins() if plugin.type == "DRAPlugin" and plugin.name == driver]
        if not found:
            raise PluginNotFoundError(f"no DRA driver {shown(driver)} answers in {self.registry}")
        return max(found, key=lambda plugin: _modified(plugin.socket))

    def notify(self, plugin: RegisteredPlugin, ok: bool, error: str = "") -> None:
        """Tell a plugin how its registration ended. Raises CallError."""
        notify(plugin.socket, ok, error)

    def prepare(
        self, driver: str | RegisteredPlugin, claims: Sequence[ClaimRef]
    ) -> dict[str, tuple[PreparedDevice, ...] | str]:
        """Call NodePrepareResources of the driver; return the devices, or the error, of each claim by UID.

        Raises PluginNotFoundError, CallError, and AnswerError for an answer that the kubelet would not accept.
        """
        answer: dict[str, tuple[PreparedDevice, ...] | str] = {
            uid: entry.error or tuple(_device(device) for device in entry.devices)
            for uid, entry in self._call(driver, "NodePrepareResources", claims).items()
        }
        problems = _coverage(claims, answer)
        for uid, devices in answer.items():
            if not isinstance(devices, str):
                problems += [
                    f"claim {shown(uid)}: {problem}" for device in devices for problem in _gaps(device)
                ]
        if problems:
            raise AnswerError("NodePrepareResources", problems, answer)
        return answer

    def unprepare(self, driver: str | RegisteredPlugin, claims: Sequence[ClaimRef]) -> dict[str, str | None]:
        """Call NodeUnprepareResources of the driver; return None or the error of each claim by UID.

        Raises as `prepare` does.
        """
        answer: dict[str, str | None] = {
            uid: entry.error or None
            for uid, entry in self._call(driver, "NodeUnprepareResources", claims).items()
        }
        if problems := _coverage(claims, answer):
            raise AnswerError("NodeUnprepareResources", problems, answer)
        return answer

    def watch_health(self, driver: str | RegisteredPlugin, version: str = "v1alpha1") -> "HealthWatch":
        """Open the health stream of the driver, `v1alpha1` or `v1`, whether it is advertised or not."""
        if version not in _HEALTH:
            raise ValueError(f"health version {shown(version)}: one of {', '.join(_HEALTH)} is allowed")
        messages, services = _HEALTH[version]
        plugin = self._found(driver)
        stub = services.DRAResourceHealthStub(self._channel(plugin.endpoint))
        return HealthWatch(
            f"health stream of {plugin.name}", stub.NodeWatchResources(messages.NodeWatchResourcesRequest())
        )

    def _found(self, driver: str | RegisteredPlugin) -> RegisteredPlugin:
        return driver if isinstance(driver, RegisteredPlugin) else self.plugin(driver)

    def _call(
        self, driver: str | RegisteredPlugin, method: str, claims: Sequence[ClaimRef]
    ) -> Mapping[str, Any]:
        plugin = self._found(driver)
        version = next((version for version in plugin.versions if version in _DRA), None)
        if version is None:
            raise KubeletError(
                f"driver {shown(plugin.name)} speaks {', '.join(map(shown, plugin.versions)) or 'no version'}: "
                f"one of {', '.join(_DRA)} is needed"
            )
        messages, services = _DRA[version]
        request = getattr(messages, f"{method}Request")(
            claims=[
                messages.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims
            ]
        )
        call = getattr(services.DRAPluginStub(self._channel(plugin.endpoint)), method)
        try:
            answer: Mapping[str, Any] = call(request, timeout=self._call_seconds).claims
        except grpc.RpcError as error:
            raise CallError(f"{method} of {plugin.name}", error) from error
        return answer

    def _channel(self, endpoint: str) -> grpc.Channel:
        status = Path(endpoint).stat() if Path(endpoint).exists() else None
        identity = (status.st_ino, status.st_mtime_ns) if status else (0, 0)
        with self._guard:
            kept = self._channels.get(endpoint)
            if kept is not None and kept[0] == identity:
                return kept[1]
            channel = grpc.insecure_channel(unix_target(endpoint), options=_OPTIONS)
            self._channels[endpoint] = (identity, channel)
        if kept is not None:
            kept[1].close()
        return channel


class HealthWatch:
    """The messages of one health stream: each is all devices that it names, by (pool, device).

    Iterating ends when the driver ends the stream or `cancel` is called, and raises CallError when it breaks.
    """

    def __init__(self, what: str, call: Any) -> None:
        self._what = what
        self._call = call
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[Mapping[tuple[str, str], ReportedHealth]]:
        return self

    def __next__(self) -> Mapping[tuple[str, str], ReportedHealth]:
        try:
            message = next(self._call)
        except grpc.RpcError as error:
            if self._cancelled.is_set():
                raise StopIteration from None
            raise CallError(self._what, error) from error
        return {
            (entry.device.pool_name, entry.device.device_name): ReportedHealth(
                _HEALTH_VALUES.get(entry.health, Health.UNKNOWN),
                entry.message,
                entry.last_updated_time,
                entry.health_check_timeout_seconds,
            )
            for entry in message.devices
        }

    def cancel(self) -> None:
        """End the stream, from any thread."""
        self._cancelled.set()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


def registration_sockets(registry: Path) -> list[Path]:
    """Return the sockets that the kubelet would dial: directly in `registry`, without a leading dot."""
    try:
        entries = sorted(registry.iterdir())
    except FileNotFoundError:
        return []
    return [entry for entry in entries if not entry.name.startswith(".") and entry.is_socket()]


def get_info(socket: Path) -> RegisteredPlugin:
    """Dial a registration socket and ask who is there, with the kubelet's deadline of one second."""
    with grpc.insecure_channel(unix_target(socket), options=_OPTIONS) as channel:
        stub = registration_pb2_grpc.RegistrationStub(channel)
        try:
            info = stub.GetInfo(registration_pb2.InfoRequest(), timeout=GET_INFO_SECONDS)
        except grpc.RpcError as error:
            return RegisteredPlugin(socket, error=str(CallError("GetInfo", error)))
    # As the kubelet does for plugins that serve both on one socket.
    endpoint = info.endpoint or str(socket)
    return RegisteredPlugin(socket, info.type, info.name, endpoint, tuple(info.supported_versions))


def notify(socket: Path, ok: bool, error: str = "") -> None:
    """Tell the plugin behind a registration socket how its registration ended. Raises CallError."""
    status = registration_pb2.RegistrationStatus(plugin_registered=ok, error=error)
    with grpc.insecure_channel(unix_target(socket), options=_OPTIONS) as channel:
        stub = registration_pb2_grpc.RegistrationStub(channel)
        try:
            stub.NotifyRegistrationStatus(status, timeout=NOTIFY_SECONDS)
        except grpc.RpcError as failure:
            raise CallError("NotifyRegistrationStatus", failure) from failure


def _modified(socket: Path) -> int:
    try:
        status = socket.stat()
    except OSError:
        return 0
    return status.st_mtime_ns if stat.S_ISSOCK(status.st_mode) else 0


def _device(message: Any) -> PreparedDevice:
    # v1beta1 has no such field at all.
    share_id = getattr(message, "share_id", "") or None
    return PreparedDevice(
        requests=tuple(message.request_names),
        pool=message.pool_name,
        device=message.device_name,
        cdi_ids=tuple(message.cdi_device_ids),
        share_id=share_id,
    )


def _coverage(claims: Sequence[ClaimRef], answer: Mapping[str, object]) -> list[str]:
    asked = {claim.uid for claim in claims}
    left_out = [f"left out claim {shown(uid)}" for uid in sorted(asked - answer.keys())]
    return left_out + [
        f"answered for claim {shown(uid)}, which is unknown" for uid in sorted(answer.keys() - asked)
    ]


def _gaps(device: PreparedDevice) -> list[str]:
    gaps = []
    if not device.requests or not all(device.requests):
        gaps.append("no request name")
    if any("/" in request for request in device.requests):
        gaps.append("a request name with a subrequest, where base names are needed")
    if not device.pool:
        gaps.append("no pool name")
    if not device.device:
        gaps.append("no device name")
    return [f"device {shown(device.device)} has {gap}" for gap in gaps]
