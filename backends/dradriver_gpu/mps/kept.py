"""Control daemons that the keeper keeps, a program in a pod of its own: the driver's side of its socket."""

import socket
import threading
import time
from collections.abc import Callable

from dradriver.backend import BackendError, TransientError, UnavailableError
from dradriver.backoff import delays
from dradriver.host import Host
from dradriver_gpu.mps.daemons import ControlDaemons, Limits
from dradriver_gpu.mps.messages import (
    SOCKET,
    Answer,
    End,
    MessageError,
    Request,
    Runs,
    Start,
    decode_answer,
    encode,
    receive,
)
from dradriver_gpu.mps.process import NOTE, is_alive

CONNECT_SECONDS = 2.0
"""How long a keeper that has gone may take to come back: it starts within a second."""

ANSWER_SECONDS = 30.0
"""How long the keeper may take: a daemon is ready within a second or so, one that does not end is killed in 15."""

_NOBODYS = "no-daemon"
"""Called neither as those of claims nor as those of GPUs."""


class KeptMps(ControlDaemons):
    """Control daemons that are asked for at the keeper's socket."""

    def __init__(self, host: Host, directory: str) -> None:
        """Touch nothing yet. `directory` is below the host root, and the keeper's own."""
        super().__init__(host, directory)
        self._socket = f"{self.directory}/{SOCKET}"

    def trouble(self) -> str:
        """Return why no daemon can be asked for now, for people; empty where nothing speaks against it."""
        return "" if self.host.exists(self._socket) else self._nobody()

    def unanswered(self) -> str:
        """Ask the keeper for something that changes nothing; return why it does not answer, empty where it does."""
        try:
            self._ask(Runs(name=_NOBODYS))
        except BackendError as error:
            return str(error)
        return ""

    def _nobody(self) -> str:
        return (
            f"no keeper of MPS control daemons listens on {self._socket}: it is a DaemonSet beside the driver's, made "
            "by the value access.gpu.mpsKeeper of the chart (docs/install.md)"
        )

    def start(
        self, name: str, devices: tuple[str, ...], limits: Limits, user: int, stop: threading.Event
    ) -> None:
        """Have the keeper start a daemon, or find it."""
        self._ask(
            Start(name=name, devices=devices, percentage=limits.percentage, memory=limits.memory, user=user),
            stop.is_set,
        )

    def runs(self, name: str) -> bool:
        """Ask the keeper; without one look whether the host has the process that it noted."""
        try:
            return self._ask(Runs(name=name)).runs
        except UnavailableError:
            return self._is_alive(name)

    def end(self, name: str) -> None:
        """Have the keeper end a daemon. Without one nothing needs to be done about one that does not run any more."""
        try:
            self._ask(End(name=name))
        except UnavailableError as error:
            if self._is_alive(name):
                raise UnavailableError(f"the MPS control daemon {name} cannot be ended: {error}") from None
            self.remove(name)

    def _is_alive(self, name: str) -> bool:
        return is_alive(self.host.path(f"{self.home(name)}/{NOTE}"), self.host.path("proc"))

    def _ask(self, request: Request, is_over: Callable[[], bool] = lambda: False) -> Answer:
        """Return the answer to a request. Raises what the keeper met, UnavailableError where there is none."""
        try:
            with self._connect(is_over) as connection:
                connection.sendall(encode(request))
                answer = decode_answer(receive(connection, time.monotonic() + ANSWER_SECONDS, is_over))
        except (MessageError, TimeoutError, ConnectionError) as error:
            raise TransientError(f"the keeper of MPS control daemons: {error}") from None
        except OSError as error:
            raise BackendError(f"{self._socket}: {error.strerror or error}") from None
        match answer.trouble:
            case "":
                return answer
            case "transient":
                raise TransientError(answer.error)
            case "unavailable":
                raise UnavailableError(answer.error)
        raise BackendError(answer.error)

    def _connect(self, is_over: Callable[[], bool]) -> socket.socket:
        """Connect; a keeper whose socket is there and does not listen may come back, and has a little time for it."""
        path = str(self.host.path(self._socket))
        end = time.monotonic() + CONNECT_SECONDS
        for delay in delays(ceiling=0.5):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                connection.settimeout(CONNECT_SECONDS)
                connection.connect(path)
            except FileNotFoundError:
                connection.close()
                break
            except (ConnectionRefusedError, BlockingIOError):
                connection.close()
                if time.monotonic() + delay > end or is_over():
                    break
                time.sleep(delay)
            except BaseException:
                connection.close()
                raise
            else:
                return connection
        raise UnavailableError(self._nobody())


__all__ = ["KeptMps"]
