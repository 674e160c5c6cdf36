"""One active instance: the lock that it holds for life, and the gate at which calls wait for it."""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dradriver.engine import Engine
from dradriver.model import ClaimRef, PreparedDevice

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05


class ActiveLock:
    """The flock on `serialize.lock`. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self, stop: threading.Event) -> bool:
        """Wait for the lock; return False where `stop` came first.

        It is polled: a thread that blocks in flock() could not be told to stop.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.parent.chmod(0o700)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        waiting = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waiting:
                    log.info("another instance is active: standing by")
                    waiting = True
                if stop.wait(POLL_SECONDS):
                    os.close(fd)
                    return False
            else:
                self._fd = fd
                return True

    def release(self) -> None:
        """Let another instance become active."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Gate:
    """Passes the kubelet's calls on to the engine once this instance is active, and lets them wait before.

    Either instance may get any call during a rolling update, so that one which comes too early is not an error.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._engine: Engine | None = None
        self._closed = False
        self._reason = "another instance of dradriver is active on this node"

    def open(self, engine: Engine) -> None:
        """Let calls through."""
        with self._changed:
            self._engine = engine
            self._changed.notify_all()

    def explain(self, reason: str) -> None:
        """Keep why this instance is not active, for calls that cannot wait any longer."""
        with self._changed:
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
        engine = self._wait(deadline)
        if engine is None:
            return {claim.uid: f"not prepared: {self._reason}" for claim in claims}
        return engine.prepare(driver, claims, deadline)

    def unprepare(self, driver: str, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str | None]:
        """Undo the claims as Engine.unprepare does, once this instance is active."""
        engine = self._wait(deadline)
        if engine is None:
            return {claim.uid: f"not unprepared: {self._reason}" for claim in claims}
        return engine.unprepare(driver, claims, deadline)

    def _wait(self, deadline: float) -> Engine | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._engine is not None or self._closed, max(0.0, deadline - time.monotonic())
            )
            return self._engine
