"""One connection to a container runtime: registered, and its questions answered until it ends.

The runtime cuts a plugin off that does not answer in time, and goes on without it: a container would be made as if
there were no claim. So a question that the handler is late with is answered with a refusal before that.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from dradriver.clock import Clock
from dradriver.model.text import plain, shown
from dradriver.nri.events import RefusedError, RuntimeHandler
from dradriver.nri.mux import PLUGIN, RUNTIME, Demultiplexer, MuxError, frames
from dradriver.nri.service import METHODS, SERVICE, Runtime, Service
from dradriver.nri.ttrpc import Code, Frame, FrameReader, Kind, failure, request, success
from dradriver.nri.wire import Wire, WireError
from dradriver.nri.workers import Workers
from dradriver_protos import nri_pb2, ttrpc_pb2

log = logging.getLogger(__name__)

RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

REGISTRATION_SECONDS: Final = 5.0
"""From the connection to the registration: the runtime's limit, too."""

SYNCHRONIZATION_SECONDS: Final = 600.0
"""From then to the first synchronization. The runtime waits with it for pods that are just being made."""

REQUEST_SECONDS: Final = 2.0
"""The runtime's limit for an answer, where it does not name another."""

BUDGET: Final = 0.75
"""The part of that limit after which a question is refused."""

POLL_SECONDS: Final = 0.25
"""How often the end of the daemon and of budgets is looked for."""

MAX_WAITING: Final = 16
MAX_WAITING_BYTES: Final = 8 << 20
"""Questions at work at once, and their size: a runtime asks one at a time."""

_MAX_SAID = 64


class SessionError(Exception):
    """The connection has ended, or is of no use; the message says why."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A call of the runtime that is not answered yet. `due` is the clock's time at which it is refused."""

    stream: int
    method: str
    payload: bytes
    due: float


class Session:
    """One connection. `run` belongs to one thread; the handler is called on the workers."""

    def __init__(
        self,
        wire: Wire,
        handler: RuntimeHandler,
        workers: Workers,
        *,
        name: str,
        index: str,
        clock: Clock,
        joined: Callable[[Runtime], None],
    ) -> None:
        """Make a session on a connection that is open.

        joined   called once the handler was synchronized: from then on nothing happens that we are not asked about
        """
        self._wire = wire
        self._handler = handler
        self._service = Service(handler)
        self._workers = workers
        self._name = name
        self._index = index
        self._clock = clock
        self._joined = joined
        self._demultiplexer = Demultiplexer()
        self._readers = {PLUGIN: FrameReader(), RUNTIME: FrameReader()}
        self._registered = False
        self._active = False
        self._ended = False
        self._last_stream = 0
        self._guard = threading.Lock()
        self._questions: dict[int, _Question] = {}
        self._said: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        """Serve the connection until `stop` is set, which is seen within 0.3 s. Raises SessionError at its end."""
        try:
            self._run(stop)
        except (WireError, MuxError) as error:
            raise SessionError(str(error)) from None
        finally:
            self._wire.close()
            with self._guard:
                self._questions.clear()
                self._ended = True

    def _run(self, stop: threading.Event) -> None:
        message = nri_pb2.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index)
        payload = message.SerializeToString()
        self._send(RUNTIME, request(1, RUNTIME_SERVICE, "RegisterPlugin", payload, REGISTRATION_SECONDS))
        began = self._clock.now()
        while not stop.is_set():
            self._refuse_late()
            self._check_progress(self._clock.now() - began)
            data = self._wire.receive(self._patience())
            for stream, part in self._demultiplexer.feed(data):
                reader = self._readers.get(stream)
                for frame in reader.feed(part) if reader else ():
                    self._take(stream, frame)

    def _patience(self) -> float:
        """Return the seconds until something must be looked at, whatever comes."""
        with self._guard:
            due = min((question.due for question in self._questions.values()), default=None)
        return POLL_SECONDS if due is None else min(POLL_SECONDS, due - self._clock.now())

    def _check_progress(self, seconds: float) -> None:
        if not self._registered and seconds > REGISTRATION_SECONDS:
            raise SessionError(f"the container runtime did not register us in {REGISTRATION_SECONDS:.0f} s")
        if not self._active and seconds > REGISTRATION_SECONDS + SYNCHRONIZATION_SECONDS:
            raise SessionError(
                f"the container runtime did not synchronize in {SYNCHRONIZATION_SECONDS:.0f} s"
            )

    def _send(self, stream: int, frame: bytes) -> None:
        self._wire.send(frames(stream, frame))

    def _fail(self, stream: int, code: Code, message: str) -> None:
        self._send(PLUGIN, failure(stream, code, message))

    def _take(self, stream: int, frame: Frame) -> None:
        if stream == RUNTIME:
            self._take_response(frame)
        elif frame.oversized:
            text = f"a message of {frame.oversized} bytes is too long"
            self._fail(frame.stream, Code.RESOURCE_EXHAUSTED, text)
        elif frame.kind == Kind.REQUEST:
            self._take_request(frame)
        elif frame.kind == Kind.DATA:
            self._fail(frame.stream, Code.INVALID_ARGUMENT, "no call of NRI is a stream")

    def _take_response(self, frame: Frame) -> None:
        """Look at the answer to the registration: it is the only call that we make."""
        if frame.kind != Kind.RESPONSE or frame.stream != 1 or self._registered:
            return
        try:
            answer = ttrpc_pb2.Response.FromString(frame.payload)
        except DecodeError:
            raise SessionError("the answer to the registration cannot be read") from None
        if frame.oversized or answer.status.code != Code.OK:
            raise SessionError(f"the container runtime refused us: {shown(answer.status.message, 200)}")
        self._registered = True

    def _take_request(self, frame: Frame) -> None:
        if frame.stream % 2 == 0 or frame.stream <= self._last_stream:
            self._fail(frame.stream, Code.INVALID_ARGUMENT, "stream ids are odd, and rise")
            return
        self._last_stream = frame.stream
        try:
            asked = ttrpc_pb2.Request.FromString(frame.payload)
        except DecodeError:
            self._fail(frame.stream, Code.INVALID_ARGUMENT, "the request cannot be read")
            return
        if asked.service != SERVICE or asked.method not in METHODS:
            method = f"{plain(asked.service, 100)}/{plain(asked.method, 100)}"
            self._fail(frame.stream, Code.UNIMPLEMENTED, f"there is no method {method} here")
            return
        limit = self._service.runtime.seconds or REQUEST_SECONDS
        if asked.timeout_nano > 0:
            limit = min(limit, asked.timeout_nano / 1e9)
        due = self._clock.now() + BUDGET * limit
        self._ask(_Question(frame.stream, asked.method, asked.payload, due))

    def _ask(self, question: _Question) -> None:
        """Give a question to a worker."""
        with self._guard:
            size = sum(len(other.payload) for other in self._questions.values()) + len(question.payload)
            busy = len(self._questions) >= MAX_WAITING or size > MAX_WAITING_BYTES
            if not busy:
                self._questions[question.stream] = question
        if busy:
            self._fail(question.stream, Code.RESOURCE_EXHAUSTED, "dradriver is at work on earlier questions")
            return
        try:
            self._workers.submit(lambda: self._work(question))
        except RuntimeError as error:
            self._settle(question)
            self._fail(question.stream, Code.UNAVAILABLE, f"dradriver has no thread for it: {error}")

    def _settle(self, question: _Question) -> bool:
        """Take a question from the list; return whether it was still to be answered."""
        with self._guard:
            return self._questions.pop(question.stream, None) is question

    def _work(self, question: _Question) -> None:
        """Answer a question, on a worker's thread."""
        with self._guard:
            if self._questions.get(question.stream) is not question:
                return  # it was refused before its turn came
        answer = self._answer(question)
        if not self._settle(question):
            self._say(f"{question.method} was done too late", logging.WARNING)
            self._handler.unheard()
            return
        try:
            self._send(PLUGIN, answer)
        except WireError as error:
            log.debug("NRI: %s: %s", question.method, error)
            self._handler.unheard()
            return
        if self._service.synchronized:
            self._join()

    def _join(self) -> None:
        """Tell of the first synchronization, unless the connection has ended meanwhile."""
        with self._guard:
            if not self._active and not self._ended:
                self._active = True
                self._joined(self._service.runtime)

    def _answer(self, question: _Question) -> bytes:
        method, stream = question.method, question.stream
        try:
            return success(stream, self._service.answer(method, question.payload))
        except DecodeError:
            return failure(stream, Code.INVALID_ARGUMENT, f"the message of {method} cannot be read")
        except RefusedError as error:
            self._say(f"{method} was refused: {error}", logging.WARNING)
            return failure(stream, Code.FAILED_PRECONDITION, f"dradriver: {error}")
        except Exception as error:
            text = f"{method} failed: {type(error).__name__}: {shown(str(error), 200)}"
            if self._is_new(text):
                log.exception("NRI: %s", text)
            text = f"dradriver: internal error ({type(error).__name__}), see its log"
            return failure(stream, Code.INTERNAL, text)

    def _refuse_late(self) -> None:
        """Answer in place of a handler that is late."""
        now = self._clock.now()
        with self._guard:
            late = [question for question in self._questions.values() if question.due <= now]
        for question in late:
            if self._settle(question):
                self._say(f"{question.method} took too long and was refused", logging.ERROR)
                self._fail(question.stream, Code.UNAVAILABLE, "dradriver came to no answer in time")

    def _say(self, text: str, level: int) -> None:
        """Log a text, once for this connection."""
        if self._is_new(text):
            log.log(level, "NRI: %s", text)

    def _is_new(self, text: str) -> bool:
        with self._guard:
            if text in self._said or len(self._said) >= _MAX_SAID:
                return False
            self._said.add(text)
            return True
