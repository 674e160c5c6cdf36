"""The plugin: a connection to the container runtime, found again whenever it is lost."""

import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from dradriver.backoff import delays
from dradriver.clock import SYSTEM, Clock
from dradriver.nri.events import RuntimeHandler
from dradriver.nri.service import Runtime
from dradriver.nri.session import Session, SessionError
from dradriver.nri.wire import Wire, WireError, dial, inherited
from dradriver.nri.workers import Workers

log = logging.getLogger(__name__)

SOCKET: Final = Path("/var/run/nri/nri.sock")
NAME: Final = "dradriver"
INDEX: Final = "50"

FIRST_SECONDS: Final = 0.1
CEILING_SECONDS: Final = 5.0
"""The waits between two attempts, doubling from the first to the ceiling."""

STEADY_SECONDS: Final = 30.0
"""A connection that stood so long was good: the waits start anew."""

PASSING_SECONDS: Final = 30.0
"""How long a loss counts as one that will pass, as where the runtime starts again."""

_END_SECONDS = 0.5
_MAX_SAID = 4
_PLUGIN_NAME = re.compile(r"[A-Za-z0-9_.+-]+")


class NriState(Enum):
    """How it stands with the runtime."""

    OFF = "off"
    CONNECTING = "connecting"
    ABSENT = "absent"
    FAILING = "failing"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class NriStatus:
    """How it stands, for people and for whoever depends on it.

    trouble   why the runtime does not ask us; empty while it does
    passing   whether that may be over within seconds
    runtime   the runtime that asks us, or did last
    """

    state: NriState
    trouble: str
    passing: bool
    runtime: str


OFF: Final = NriStatus(
    NriState.OFF, "NRI is off in the configuration of dradriver (nri.enabled)", passing=False, runtime=""
)
"""How it stands where no plugin runs."""


class NriPlugin:
    """Keeps the handler connected to the runtime. One `run` at a time; all else is for any thread."""

    def __init__(
        self,
        handler: RuntimeHandler,
        *,
        socket: Path = SOCKET,
        name: str = NAME,
        index: str = INDEX,
        environment: Mapping[str, str] = os.environ,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make a plugin; nothing is opened.

        socket        where the runtime listens
        name, index   what it is registered as; the runtime calls its plugins in the order of their indices
        environment   a runtime that starts us itself leaves a connected socket, a name and an index there
        """
        self._handler = handler
        self._path = socket
        self._descriptor = environment.get("NRI_PLUGIN_SOCKET", "")
        self._name, self._index = name, index
        if self._descriptor:
            self._name = environment.get("NRI_PLUGIN_NAME") or name
            self._index = environment.get("NRI_PLUGIN_IDX") or index
        if not _PLUGIN_NAME.fullmatch(self._name):
            raise ValueError(f"plugin name {self._name!r}: letters, digits and _.+- are allowed")
        if not re.fullmatch(r"[0-9]{2}", self._index):
            raise ValueError(f"plugin index {self._index!r}: two digits are allowed, as 50")
        self._clock = clock
        self._guard = threading.Lock()
        self._state = NriState.CONNECTING
        self._trouble = f"the container runtime at {socket} is being connected"
        self._since = clock.now()
        self._joined_at: float | None = None
        self._runtime = Runtime()
        self._said: list[str] = []

    @property
    def status(self) -> NriStatus:
        """How it stands now."""
        with self._guard:
            away = self._clock.now() - self._since
            passing = self._state in {NriState.CONNECTING, NriState.FAILING} and away < PASSING_SECONDS
            runtime = str(self._runtime) if self._runtime.name else ""
            return NriStatus(self._state, self._trouble, passing, runtime)

    def run(self, stop: threading.Event) -> None:
        """Be connected until `stop`, which is seen within 0.3 s, but for answers that are just being worked out."""
        workers = Workers("nri")
        waits = delays(FIRST_SECONDS, CEILING_SECONDS)
        try:
            while not stop.is_set():
                if self._attempt(workers, stop) >= STEADY_SECONDS:
                    waits = delays(FIRST_SECONDS, CEILING_SECONDS)
                self._clock.wait(stop, next(waits))
        finally:
            workers.close(_END_SECONDS)

    def _attempt(self, workers: Workers, stop: threading.Event) -> float:
        """Connect, and serve the connection until it ends; return for how many seconds it was good."""
        self._joined_at = None
        try:
            wire = self._connect()
        except FileNotFoundError:
            self._ended(
                NriState.ABSENT, f"there is no socket at {self._path}: NRI is off in the container runtime"
            )
        except OSError as error:
            self._ended(NriState.FAILING, f"{self._path}: {error.strerror or error}")
        except WireError as error:
            self._ended(NriState.FAILING, str(error))
        else:
            session = Session(
                wire,
                self._handler,
                workers,
                name=self._name,
                index=self._index,
                clock=self._clock,
                joined=self._joined,
            )
            try:
                session.run(stop)
            except SessionError as error:
                self._ended(NriState.FAILING, str(error))
        return 0.0 if self._joined_at is None else self._clock.now() - self._joined_at

    def _connect(self) -> Wire:
        if not self._descriptor:
            return dial(self._path)
        descriptor, self._descriptor = self._descriptor, ""
        try:
            return inherited(descriptor)
        except WireError as error:
            raise WireError(f"the socket that the container runtime left: {error}") from None

    def _joined(self, runtime: Runtime) -> None:
        with self._guard:
            self._state, self._trouble, self._runtime = NriState.ACTIVE, "", runtime
            self._joined_at = self._clock.now()
            self._said.clear()
        log.info("NRI: joined %s as %s-%s", runtime, self._index, self._name)

    def _ended(self, state: NriState, trouble: str) -> None:
        """Note that there is no connection, and say so: each reason once until there is one again."""
        with self._guard:
            lost = self._state is NriState.ACTIVE
            if lost:
                self._since = self._clock.now()
            self._state, self._trouble = state, trouble
            new = trouble not in self._said and len(self._said) < _MAX_SAID
            if new:
                self._said.append(trouble)
        if lost:
            log.warning("NRI: the container runtime is lost, and looked for: %s", trouble)
        elif new:
            level = logging.INFO if state is NriState.ABSENT else logging.WARNING
            log.log(level, "NRI: no container runtime yet, and it is looked for: %s", trouble)
