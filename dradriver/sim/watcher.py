"""The kubelet's plugin watcher: finds registration sockets and registers what answers on them."""

import contextlib
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dradriver.sim.kubelet import KubeletError, RegisteredPlugin, get_info, notify, registration_sockets

POLL_SECONDS: Final = 0.05
FIRST_BACKOFF_SECONDS: Final = 0.5
MAX_BACKOFF_SECONDS: Final = 120.0

Identity = tuple[int, int, int]


class EventKind(Enum):
    """What happened to a registration socket."""

    CREATED = "created"
    REMOVED = "removed"
    REGISTERED = "registered"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RegistrationEvent:
    """One thing that happened; `plugin` once GetInfo was answered, `detail` where something went wrong."""

    kind: EventKind
    socket: Path
    plugin: RegisteredPlugin | None = None
    detail: str = ""


def accept(plugin: RegisteredPlugin) -> str:
    """Refuse what the kubelet refuses of a DRA driver; return why, or nothing."""
    if plugin.type != "DRAPlugin":
        return f"no handler registered for plugin type: {plugin.type}"
    if not plugin.name:
        return "DRA driver name is empty"
    if not plugin.endpoint.startswith("/"):
        return "endpoint is not an absolute path"
    if not any(version in {"v1.DRAPlugin", "v1beta1.DRAPlugin"} for version in plugin.versions):
        return f"none of the DRA services supported by the plugin: {', '.join(plugin.versions)}"
    return ""


class RegistrationWatcher:
    """Watches `plugins_registry` like a kubelet, and keeps what happened in `events`. A context manager.

    Each socket that is there or appears is dialled: GetInfo, judged by `judge` (an empty string accepts), Notify.
    A failure is tried again after 0.5 s, doubling up to two minutes, for as long as the same socket is there.
    The directory is polled, so a socket that was there for less than 50 ms may be missed.
    """

    def __init__(self, root: Path, judge: Callable[[RegisteredPlugin], str] = accept) -> None:
        self._root = root
        self._registry = root / "plugins_registry"
        self._judge = judge
        self._happened = threading.Condition()
        self._events: list[RegistrationEvent] = []
        self._known: dict[Path, Identity] = {}
        self._registered: dict[Path, RegisteredPlugin] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def events(self) -> tuple[RegistrationEvent, ...]:
        """All that happened, in order."""
        with self._happened:
            return tuple(self._events)

    @property
    def registered(self) -> tuple[RegisteredPlugin, ...]:
        """The plugins that are registered now."""
        with self._happened:
            return tuple(self._registered.values())

    def __enter__(self) -> Self:
        self._registry.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._start(self._watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        with self._happened:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()

    def wait(self, kind: EventKind, count: int = 1, timeout: float = 20.0) -> RegistrationEvent:
        """Return the event that is the `count`th of its kind. Raises TimeoutError with all events so far."""
        with self._happened:
            if not self._happened.wait_for(lambda: len(self._of(kind)) >= count, timeout):
                raise TimeoutError(
                    f"{len(self._of(kind))} events {kind.value} instead of {count}: {self._events}"
                )
            return self._of(kind)[count - 1]

    def restart(self) -> None:
        """Forget all, as a kubelet that restarts, and register what is there."""
        with self._happened:
            self._known.clear()
            self._registered.clear()

    def wipe(self) -> None:
        """Restart with the socket directories emptied: all of the registry, and the sockets of all drivers."""
        shutil.rmtree(self._registry, ignore_errors=True)
        for socket in self._root.glob("plugins/*/*"):
            if socket.is_socket():
                socket.unlink(missing_ok=True)
        self._registry.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.restart()

    def _of(self, kind: EventKind) -> list[RegistrationEvent]:
        return [event for event in self._events if event.kind is kind]

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="plugin-watcher", daemon=True)
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
        thread.start()

    def _add(self, event: RegistrationEvent) -> None:
        self._events.append(event)
        self._happened.notify_all()

    def _watch(self) -> None:
        while not self._stop.is_set():
            present = {
                socket: identity
                for socket in registration_sockets(self._registry)
                if (identity := _identity(socket))
            }
            with self._happened:
                for socket in self._known.keys() - present.keys():
                    del self._known[socket]
                    self._registered.pop(socket, None)
                    self._add(RegistrationEvent(EventKind.REMOVED, socket))
                for socket, identity in present.items():
                    if self._known.get(socket) != identity:
                        self._known[socket] = identity
                        self._registered.pop(socket, None)
                        self._add(RegistrationEvent(EventKind.CREATED, socket))
                        self._start(self._register, socket, identity)
            self._stop.wait(POLL_SECONDS)

    def _register(self, socket: Path, identity: Identity) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while not self._stop.is_set() and self._is_current(socket, identity):
            event = self._attempt(socket)
            with self._happened:
                if self._known.get(socket) == identity:
                    if event.kind is EventKind.REGISTERED and event.plugin is not None:
                        self._registered[socket] = event.plugin
                    self._add(event)
            if event.kind is EventKind.REGISTERED:
                return
            self._stop.wait(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)

    def _is_current(self, socket: Path, identity: Identity) -> bool:
        with self._happened:
            return self._known.get(socket) == identity

    def _attempt(self, socket: Path) -> RegistrationEvent:
        plugin = get_info(socket)
        if plugin.error:
            return RegistrationEvent(EventKind.FAILED, socket, detail=plugin.error)
        refusal = self._judge(plugin)
        try:
            notify(socket, not refusal, refusal)
        except KubeletError as error:
            return RegistrationEvent(EventKind.FAILED, socket, plugin, str(error))
        kind = EventKind.REFUSED if refusal else EventKind.REGISTERED
        return RegistrationEvent(kind, socket, plugin, refusal)


def _identity(socket: Path) -> Identity | None:
    # The time as well, since a new socket may get the inode number of one that is gone.
    with contextlib.suppress(OSError):
        status = socket.stat(follow_symlinks=False)
        return status.st_dev, status.st_ino, status.st_mtime_ns
    return None
