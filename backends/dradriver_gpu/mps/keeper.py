"""The keeper: starts MPS control daemons for the driver, keeps them while that is updated, and ends them.

Who may ask is root on this host, by the credentials of the socket (SO_PEERCRED, unix(7)). It chooses names, devices and
limits; what is run, and where, is the keeper's own configuration: the control program below its driver root, with
directories below its run directory. Daemons are noted in files, so that a keeper that is started anew finds those of
the one before.
"""

import contextlib
import fcntl
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dradriver.backend import BackendError, TransientError, UnavailableError
from dradriver.host import Host
from dradriver.model import shown
from dradriver_gpu.mps.daemons import Limits, Mps, make_directory
from dradriver_gpu.mps.messages import (
    SLICE_SECONDS,
    SOCKET,
    Answer,
    End,
    MessageError,
    Request,
    Runs,
    Start,
    Trouble,
    decode_request,
    encode,
    receive,
)
from dradriver_gpu.mps.process import NOTE, Process
from dradriver_gpu.tools import Tools

log = logging.getLogger("dradriver.mps")

MAX_CALLERS = 16
MAX_DAEMONS = 256
"""More than any node has GPUs and MIG devices."""

REQUEST_SECONDS = 5.0
WAIT_SECONDS = 25.0
"""How long a request waits for another one about the same daemon."""

LOCK = "keeper.lock"
_LOCK_SECONDS = 0.5


class KeeperError(Exception):
    """The keeper cannot work at all."""


@dataclass
class _Turn:
    lock: threading.Lock
    users: int = 0


class Keeper:
    """Serves the socket of one run directory."""

    def __init__(self, daemons: Mps) -> None:
        self._daemons = daemons
        self._callers = threading.BoundedSemaphore(MAX_CALLERS)
        self._guard = threading.Lock()
        self._turns: dict[str, _Turn] = {}

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop`, then halt all daemons: their directories stay. Raises KeeperError, OSError."""
        directory = make_directory(self._daemons.host, self._daemons.directory)
        with _only_one(directory / LOCK, stop) as alone:
            if not alone:
                return
            self._look()
            path = directory / SOCKET
            with _listening(path) as listener:
                log.info("listening on %s", path)
                self._accept(listener, stop)
            self._wait_for_callers()
            self._halt_all()

    def _look(self) -> None:
        """Say what is there of a keeper before."""
        for name in self._noted():
            if self._daemons.runs(name):
                log.info("MPS control daemon %s runs: kept", name)
            else:
                log.warning("MPS control daemon %s does not run any more", name)

    def _noted(self) -> tuple[str, ...]:
        """Return the daemons that a keeper started: not those of systemd, which have directories here too."""
        daemons = self._daemons
        return tuple(name for name in daemons.names() if daemons.host.exists(f"{daemons.home(name)}/{NOTE}"))

    def _wait_for_callers(self) -> None:
        """Wait until nobody is at work any more, who would start a daemon behind the last look."""
        end = time.monotonic() + WAIT_SECONDS
        for _ in range(MAX_CALLERS):
            if not self._callers.acquire(timeout=max(0.0, end - time.monotonic())):
                log.error("a request is still at work at the end")
                return

    def _halt_all(self) -> None:
        names = self._noted()
        if not names:
            return
        log.info("ending %d MPS control daemons", len(names))
        with ThreadPoolExecutor(min(len(names), 32)) as pool:
            list(pool.map(self._halt, names))

    def _halt(self, name: str) -> None:
        try:
            with self._turn(name):
                self._daemons.halt(name)
        except BackendError as error:
            log.error("%s", error)
        else:
            log.info("MPS control daemon %s was ended", name)

    # --- callers

    def _accept(self, listener: socket.socket, stop: threading.Event) -> None:
        listener.settimeout(SLICE_SECONDS)
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # no file left, or a caller that is gone already
                log.warning("a caller was lost: %s", error.strerror)
                stop.wait(SLICE_SECONDS)
                continue
            while not self._callers.acquire(timeout=SLICE_SECONDS):
                if stop.is_set():
                    connection.close()
                    return
            threading.Thread(target=self._serve, args=(connection, stop), daemon=True).start()

    def _serve(self, connection: socket.socket, stop: threading.Event) -> None:
        try:
            with connection:
                self._talk(connection, stop)
        except OSError as error:
            log.info("a caller was gone before its answer: %s", error.strerror or error)
        except Exception:
            log.exception("a request failed by a fault of the keeper")
        finally:
            self._callers.release()

    def _talk(self, connection: socket.socket, stop: threading.Event) -> None:
        process, user = _peer(connection)
        if user != 0:
            log.warning("process %d of user %d was turned away: root only", process, user)
            answer = Answer(trouble="failed", error="the keeper serves root only")
        else:
            try:
                request = decode_request(receive(connection, time.monotonic() + REQUEST_SECONDS, stop.is_set))
            except MessageError as error:
                log.warning("process %d: %s", process, shown(error, 300))
                answer = Answer(trouble="failed", error=f"the keeper of MPS control daemons: {error}")
            else:
                answer = self.answer(request, stop)
        connection.settimeout(REQUEST_SECONDS)
        connection.sendall(encode(answer))

    def answer(self, request: Request, stop: threading.Event | None = None) -> Answer:
        """Do what is asked."""
        try:
            with self._turn(request.name):
                return self._do(request, stop or threading.Event())
        except BackendError as error:
            log.warning("%s", error)
            return Answer(trouble=_trouble(error), error=str(error))

    def _do(self, request: Request, stop: threading.Event) -> Answer:
        name = request.name
        match request:
            case Runs():
                return Answer(runs=self._daemons.runs(name))
            case End():
                self._daemons.end(name)
                log.info("MPS control daemon %s was ended", name)
            case Start():
                names = self._daemons.names()
                if name not in names and len(names) >= MAX_DAEMONS:
                    raise BackendError(
                        f"the keeper has {MAX_DAEMONS} MPS control daemons: no more are started"
                    )
                limits = Limits(request.percentage, request.memory)
                self._daemons.start(name, request.devices, limits, request.user, stop)
                log.info("MPS control daemon %s runs for %s", name, ", ".join(request.devices))
        return Answer()

    @contextlib.contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Have one request at a time for a daemon: one whose caller died goes on."""
        with self._guard:
            turn = self._turns.setdefault(name, _Turn(threading.Lock()))
            turn.users += 1
        try:
            if not turn.lock.acquire(timeout=WAIT_SECONDS):
                raise TransientError(f"the keeper is still at work on the MPS control daemon {name}")
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            with self._guard:
                turn.users -= 1
                if not turn.users:
                    del self._turns[name]


def make_keeper(host: Host, run_directory: str, driver_root: str) -> Keeper:
    """Return the keeper of a run directory; both directories are below the host root."""
    tools = Tools(host, driver_root)
    return Keeper(Mps(host, run_directory, driver_root, tools, Process(host, run_directory)))


def _trouble(error: BackendError) -> Trouble:
    if isinstance(error, TransientError):
        return "transient"
    return "unavailable" if isinstance(error, UnavailableError) else "failed"


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return process and user of the other side."""
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Listen on a socket that only root may connect to; who holds the lock has no other one beside it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with listener:
        path.unlink(missing_ok=True)
        former = os.umask(0o177)
        try:
            listener.bind(str(path))
        except OSError as error:
            raise KeeperError(f"{path}: {error.strerror or error} (option runDirectory)") from None
        finally:
            os.umask(former)
        listener.listen(MAX_CALLERS)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _only_one(path: Path, stop: threading.Event) -> Iterator[bool]:
    """Wait until no other keeper has the directory; give whether that was before `stop`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield _locked(descriptor, path, stop)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, path: Path, stop: threading.Event) -> bool:
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                log.info("another keeper has %s: waiting for its end", path)
                told = True
            if stop.wait(_LOCK_SECONDS):
                return False
        else:
            return True


__all__ = ["LOCK", "Keeper", "KeeperError", "make_keeper"]
