"""One active instance: waiting for the lock that it holds for life, and the gate at which calls wait for it."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from dradriver.engine import Engine
from dradriver.filelock import FileLock
from dradriver.model import ClaimRef, PreparedDevice

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05

PATIENCE_SECONDS = 5.0
"""How long a call waits where this instance cannot become active; for another instance to end it waits to its end."""


def acquire(lock: FileLock, stop: threading.Event) -> bool:
    """Wait for the lock of the active instance; return False where `stop` came first. Raises OSError.

    It is polled: a thread that blocks in flock() could not be told to stop.
    """
    lock.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock.path.parent.chmod(0o700)
    waiting = False
    while not lock.try_acquire():
        if not waiting:
            log.info("another instance is active: standing by")
            waiting = True
        if stop.wait(POLL_SECONDS):
            return False
    return True


class Gate:
    """Passes the kubelet's calls on to the engine once this instance is active, and lets them wait before.

    Either instance may get any call during a rolling update, so that one which comes too early is not an error.
    """

    def __init__(
        self,
        active: Callable[[], bool],
        unprepared: Callable[[str], None],
        called: Callable[[str, str, float, int], None] | None = None,
    ) -> None:
        """Make a closed gate.

        active       asked before each call: whether this instance is still the only one
        unprepared   told of each driver whose claims were unprepared
        called       told of each call: driver, "prepare" or "unprepare", seconds, number of claims that failed
        """
        self._active = active
        self._called = called
        self._unprepared = unprepared
        self._changed = threading.Condition()
        self._engine: Engine | None = None
        self._closed = False
        self._failed = False
        self._reason = "another instance of dradriver is active on this node"

    def open(self, engine: Engine) -> None:
        """Let calls through."""
        with self._changed:
            self._engine = engine
            self._changed.notify_all()

    def explain(self, reason: str) -> None:
        """Keep why this instance cannot become active, for the calls that come meanwhile."""
        with self._changed:
            self._failed = True
            self._reason = reason

    def close(self) -> None:
        """Turn away the calls that wait: the daemon stops."""
        with self._changed:
            self._closed = True
            self._reason = "dradriver is stopping on this node"
            self._changed.notify_all()

    @property
    def engine(self) -> Engine | None:
        """The engine, where this instance is active."""
        return self._engine

    def prepare(
        self, driver: str, claims: Sequence[ClaimRef], deadline: float
    ) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Prepare the claims as Engine.prepare does, once this instance is active."""
        began = time.monotonic()
        engine = self._wait(deadline)
        answers: Mapping[str, tuple[PreparedDevice, ...] | str]
        if engine is None:
            answers = {claim.uid: f"not prepared: {self._reason}" for claim in claims}
        else:
            answers = engine.prepare(driver, claims, deadline)
        self._count(driver, "prepare", began, answers)
        return answers

    def unprepare(self, driver: str, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str | None]:
        """Undo the claims as Engine.unprepare does, once this instance is active."""
        began = time.monotonic()
        engine = self._wait(deadline)
        answers: Mapping[str, str | None]
        if engine is None:
            answers = {claim.uid: f"not unprepared: {self._reason}" for claim in claims}
        else:
            try:
                answers = engine.unprepare(driver, claims, deadline)
            finally:
                self._unprepared(driver)
        self._count(driver, "unprepare", began, answers)
        return answers

    def _count(self, driver: str, call: str, began: float, answers: Mapping[str, object]) -> None:
        if self._called:
            failed = sum(isinstance(answer, str) for answer in answers.values())
            self._called(driver, call, time.monotonic() - began, failed)

    def _wait(self, deadline: float) -> Engine | None:
        end = min(deadline, time.monotonic() + PATIENCE_SECONDS) if self._failed else deadline
        with self._changed:
            self._changed.wait_for(
                lambda: self._engine is not None or self._closed, max(0.0, end - time.monotonic())
            )
            if self._engine is not None and not self._active():
                self._reason = "its lock file is gone from under dradriver, which is starting again"
                return None
            return self._engine
