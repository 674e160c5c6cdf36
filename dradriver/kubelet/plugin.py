"""One driver as the kubelet knows it: two sockets, and the servers on them."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from dradriver.filelock import FileLock
from dradriver.kubelet.health import HealthBoard
from dradriver.kubelet.service import Preparer, add_services
from dradriver.kubelet.sockets import SocketPaths, acquire, bind_path, unix_target
from dradriver.kubelet.streams import MAX_STREAMS, HealthStreams
from dradriver.kubelet.text import sentence
from dradriver.model import shown
from dradriver_protos import PLUGIN_TYPE, SUPPORTED_VERSIONS, registration_pb2, registration_pb2_grpc

CALL_WORKERS = 16
"""Prepare and Unprepare calls that can always run at a time, however many streams are open."""

POLL_SECONDS = 0.5
"""How often the sockets are looked at."""

DRAIN_SECONDS = 45.0
"""What a call may still take on a server whose socket was replaced: the kubelet's own deadline."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """What the kubelet last said of the registration.

    registered  None until it said anything since the registration socket was last bound
    since       when that was, in seconds since the Unix epoch
    error       the kubelet's own words where it refused
    """

    registered: bool | None
    since: float
    error: str = ""


class Plugin:
    """A driver's servers: one for the DRA service and the health streams, one for the registration.

    The kubelet waits one second for GetInfo, so that must not queue behind calls that work on hardware.
    """

    def __init__(self, driver: str, paths: SocketPaths, preparer: Preparer, health: HealthBoard) -> None:
        if driver != paths.driver:
            raise ValueError(
                f"driver {shown(driver)} has the sockets of {shown(paths.driver)}: the two must agree"
            )
        self.driver = driver
        self.paths = paths
        self._preparer = preparer
        self._health = health
        self._registration = Registration(None, time.time())
        self._stream_slots = threading.Semaphore(MAX_STREAMS)
        self._guard = threading.Lock()
        self._locks = tuple(FileLock(paths.lock_file(socket)) for socket in paths.sockets)
        self._servers: dict[Path, _Server] = {}
        self._replaced: list[_Server] = []
        self._pools: tuple[ThreadPoolExecutor, ...] = ()
        self._bindings = 0

    @property
    def registration(self) -> Registration:
        """What the kubelet last said."""
        return self._registration

    def start(self) -> None:
        """Serve both sockets, the service first. The kubelet calls from now on.

        Raises SocketInUseError where another process has the names, OSError where a directory or a socket
        cannot be made, RuntimeError if started already. Nothing is left behind then.
        """
        with self._guard:
            if self._pools:
                raise RuntimeError(f"{self.driver} is already started")
            try:
                self._pools = (
                    _started(CALL_WORKERS + MAX_STREAMS, f"{self.driver}-call"),
                    _started(2, f"{self.driver}-registration"),
                )
                self._serve()
            except BaseException:
                self._end(grace=0.0)
                raise

    def stop(self, grace: float = 5.0) -> None:
        """Remove the sockets and end: streams at once, running calls after at most `grace` seconds."""
        with self._guard:
            self._end(grace)

    def run(self, stop: threading.Event) -> None:
        """Until `stop`, bind anew what is missing: the directories may be wiped under a running driver.

        A socket that appears is also what makes the kubelet register the driver again.
        """
        complaint = ""
        while not stop.wait(POLL_SECONDS):
            try:
                with self._guard:
                    if self._pools:
                        self._serve()
            except OSError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    _log.error("%s: sockets are gone and cannot be bound anew: %s", self.driver, complaint)
            else:
                complaint = ""

    def _serve(self) -> None:
        """Serve what is not served; the caller holds the guard."""
        if all(lock.held() for lock in self._locks) and all(
            (server := self._servers.get(socket)) is not None and server.intact()
            for socket in self.paths.sockets
        ):
            return
        self.paths.make_directories()
        for lock in self._locks:
            acquire(lock)
        calls, registrations = self._pools
        self._bind(self.paths.service, calls, self._add_service)
        self._bind(self.paths.registration, registrations, self._add_registration)

    def _bind(
        self, socket: Path, workers: Executor, add: Callable[[grpc.Server], HealthStreams | None]
    ) -> None:
        old = self._servers.get(socket)
        if old is not None and old.intact():
            return
        server = _Server(socket, bind_path(socket, self._bindings), workers, add)
        self._bindings += 1
        self._servers[socket] = server
        if old is not None:
            _log.warning("%s: %s was gone or another's, bound anew", self.driver, socket)
            old.stop(DRAIN_SECONDS)
            self._replaced = [*(server for server in self._replaced if not server.ended()), old]

    def _add_service(self, server: grpc.Server) -> HealthStreams:
        add_services(server, self.driver, self._preparer)
        streams = HealthStreams(self.driver, self._health, self._stream_slots)
        streams.add_to(server)
        return streams

    def _add_registration(self, server: grpc.Server) -> None:
        self._registration = Registration(None, time.time())
        registration_pb2_grpc.add_RegistrationServicer_to_server(
            _RegistrationServicer(self.driver, self.paths.service, self._notified), server
        )

    def _notified(self, registered: bool, error: str) -> None:
        last = self._registration
        self._registration = Registration(registered, time.time(), error)
        if (registered, error) == (last.registered, last.error):
            return
        if registered:
            _log.info("%s: registered with the kubelet", self.driver)
        else:
            _log.error("%s: the kubelet refused the registration: %s", self.driver, shown(error, 500))

    def _end(self, grace: float) -> None:
        # The registration first: the kubelet then turns to another instance before this one stops answering.
        servers = [*reversed(self._servers.values()), *self._replaced]
        for server in servers:
            server.stop(grace)
        end = time.monotonic() + grace + 1.0
        for server in servers:
            server.wait(max(0.0, end - time.monotonic()))
        for pool in self._pools:
            pool.shutdown(wait=False)
        for lock in self._locks:
            lock.release(remove=True)
        self._servers, self._replaced, self._pools = {}, [], ()


def _started(workers: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads all run.

    One that cannot start a thread raises in gRPC's polling thread, which then is gone for good: a shortage must
    show here, not at a call. Raises OSError.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
    all_here = threading.Barrier(workers + 1)
    try:
        for _ in range(workers):
            pool.submit(all_here.wait)
        all_here.wait()
    except RuntimeError as error:
        all_here.abort()
        pool.shutdown(wait=False)
        raise OSError(f"{name}: {workers} threads are needed: {error}") from None
    return pool


class _Server:
    """A gRPC server on one socket file."""

    def __init__(
        self,
        socket: Path,
        bound: Path,
        workers: Executor,
        add: Callable[[grpc.Server], HealthStreams | None],
    ) -> None:
        """Bind, start, and only then let the socket appear at `socket`.

        A client that finds a socket is answered at once that way. And at its end gRPC removes the path that it
        bound, whosever that is by then; the path that clients know is touched here alone.
        """
        self._socket = socket
        self._server = grpc.server(workers)
        self._streams = add(self._server)
        self._stopped: threading.Event | None = None
        try:
            self._server.add_insecure_port(unix_target(bound))
            self._server.start()
            bound.chmod(0o600)
            self._identity = _identity(bound)
            # The holder of the name's lock is this process: what is there was left by a dead one.
            socket.unlink(missing_ok=True)
            bound.rename(socket)
        except (OSError, RuntimeError) as error:
            self._server.stop(None)
            raise OSError(f"cannot serve {socket}: {error}") from error

    def intact(self) -> bool:
        """Return whether clients that dial the path reach this server."""
        return self._identity is not None and _identity(self._socket) == self._identity

    def stop(self, grace: float) -> None:
        """Begin to stop: remove the socket, take no more calls, end the streams."""
        if self.intact():
            self._socket.unlink(missing_ok=True)
        self._stopped = self._server.stop(grace)
        if self._streams is not None:
            self._streams.close()

    def wait(self, timeout: float) -> None:
        """Wait until the running calls have ended."""
        if self._stopped is not None:
            self._stopped.wait(timeout)

    def ended(self) -> bool:
        """Return whether it was stopped and its calls have ended."""
        return self._stopped is not None and self._stopped.is_set()


class _RegistrationServicer(registration_pb2_grpc.RegistrationServicer):
    def __init__(self, driver: str, endpoint: Path, notified: Callable[[bool, str], None]) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._notified = notified

    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del request, context
        return registration_pb2.PluginInfo(
            type=PLUGIN_TYPE,
            name=self._driver,
            endpoint=str(self._endpoint),
            supported_versions=SUPPORTED_VERSIONS,
        )

    def NotifyRegistrationStatus(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del context
        self._notified(
            request.plugin_registered, "" if request.plugin_registered else sentence(request.error)
        )
        return registration_pb2.RegistrationStatusResponse()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino
