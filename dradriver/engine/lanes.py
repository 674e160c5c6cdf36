"""Lanes: the bounded executors on which a backend's vendor calls run.

NVML, netlink and sysfs block, and may hang for ever. A call that outlives its time is left behind in its lane, so
a hanging vendor library costs its own backend only; a lane whose workers all hang refuses at once.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from dradriver.backend import BackendError

T = TypeVar("T")


class HungError(BackendError):
    """A call did not come back in time. Until `future` is done it may still be running."""

    def __init__(self, message: str, future: "Future[Any]") -> None:
        super().__init__(message)
        self.future = future


class _Call:
    """One call of a lane; abandoned once its caller has gone while it ran."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        self.abandoned = False


class Lane:
    """A few daemon threads, started when needed, that run one backend's calls."""

    def __init__(self, name: str, workers: int = 4) -> None:
        self.name = name
        self._workers = workers
        self._threads = 0
        self._outstanding = 0
        self._stuck = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Call] = queue.SimpleQueue()

    def call(self, work: Callable[[], T], deadline: float, what: str) -> T:
        """Run `work` and return its result; raise HungError at `deadline` (time.monotonic() seconds)."""
        call = _Call(work)
        self._staff(call, what)
        self._queue.put(call)
        try:
            return call.future.result(max(0.0, deadline - time.monotonic()))  # type: ignore[no-any-return]
        except TimeoutError:
            if self._abandon(call):
                raise self._hung(what, "did not answer in time", call) from None
            return call.future.result()  # type: ignore[no-any-return]

    def _staff(self, call: _Call, what: str) -> None:
        """See to it that a worker will come to the call. Raises HungError where none will."""
        with self._lock:
            if self._stuck >= self._workers:
                call.future.cancel()
                raise self._hung(what, "is not asked: all calls to it hang", call)
            if self._outstanding >= self._threads < self._workers:
                self._start(call, what)
            self._outstanding += 1

    def _start(self, call: _Call, what: str) -> None:
        """Start one more worker; the lock is held. Without any, the machine's shortage is the answer."""
        name = f"lane-{self.name}-{self._threads + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:
            if not self._threads:
                call.future.cancel()
                raise self._hung(what, f"is not asked: {error}", call) from None
            return
        self._threads += 1

    def _hung(self, what: str, why: str, call: _Call) -> HungError:
        return HungError(f"{what}: backend {self.name} {why}", call.future)

    def _abandon(self, call: _Call) -> bool:
        """Leave a call to itself; return False where it has ended after all."""
        with self._lock:
            if call.future.done():
                return False
            if not call.future.cancel():
                call.abandoned = True
                self._stuck += 1
            return True

    def _work(self) -> None:
        while True:
            call = self._queue.get()
            if call.future.set_running_or_notify_cancel():
                try:
                    call.future.set_result(call.work())
                except BaseException as error:  # noqa: BLE001 - handed to the caller as it is
                    call.future.set_exception(error)
            with self._lock:
                self._outstanding -= 1
                self._stuck -= call.abandoned
            del call
