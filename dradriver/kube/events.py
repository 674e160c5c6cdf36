"""Events on the Node: what an administrator should find with `kubectl describe node`."""

import logging
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from dradriver.backoff import delays
from dradriver.clock import SYSTEM, Clock
from dradriver.kube.client import Client
from dradriver.kube.errors import KubeError, StatusError, StoppedError, one_line
from dradriver.kube.limits import spread
from dradriver.kube.paths import EVENTS, node_path

REPEAT_SECONDS = 3600.0
"""The same event is not written again within that time; the API server keeps events for as long (--event-ttl)."""

POLL_SECONDS = 1.0
"""How often is looked whether there is something to write."""

MAX_WAITING = 100
"""Events that wait to be written; more are dropped."""

MAX_MESSAGE = 1024
MAX_REASON = 128
"""Characters that the API server accepts (core v1 Event)."""

_MAX_REMEMBERED = 1000
_COMPONENT = "dradriver"

_log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class _Event:
    type: EventType
    reason: str
    message: str
    name: str
    at: float  # of the clock
    time: float  # since the Unix epoch


class EventRecorder:
    """Writes Events about one Node. Nothing waits for it, and nothing fails with it: an Event may get lost.

    An Event refers to the Node by name and UID. The UID is read with the first Event, and again after an hour; where
    that is not possible the name stands for it, as in the kubelet's own Events. `kubectl describe node` finds both.
    """

    def __init__(self, client: Client, node: str, *, clock: Clock = SYSTEM) -> None:
        self._uid = ""
        self._uid_until = 0.0
        self._client = client
        self._node = node
        self._clock = clock
        self._guard = threading.Lock()
        self._waiting: deque[_Event] = deque()
        self._last: dict[tuple[str, str, str], float] = {}
        self._trouble = ""

    def record(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Have an Event written. `reason` is one word in upper camel case, for machines; `message` is for people."""
        now = self._clock.now()
        kind: EventType = "Warning" if warning else "Normal"
        # A name has at most 253 characters.
        name = f"{self._node[:236].rstrip('.-')}.{secrets.token_hex(8)}"
        text = one_line(message, MAX_MESSAGE - len("..."))
        event = _Event(kind, one_line(reason)[:MAX_REASON], text, name, now, time.time())
        key = (event.type, event.reason, event.message)
        with self._guard:
            last = self._last.get(key)
            if last is not None and now - last < REPEAT_SECONDS:
                return
            if len(self._waiting) >= MAX_WAITING:
                _log.debug("event %s is dropped: %d wait already", event.reason, MAX_WAITING)
                return
            if len(self._last) >= _MAX_REMEMBERED:
                recent = {key: at for key, at in self._last.items() if now - at < REPEAT_SECONDS}
                self._last = recent if len(recent) < _MAX_REMEMBERED else {}
            self._last[key] = now
            self._waiting.append(event)

    def run(self, stop: threading.Event) -> None:
        """Write what was recorded, until `stop`. While the server does not answer, events wait for an hour at most."""
        waits = delays(POLL_SECONDS, 30.0)
        pause = POLL_SECONDS
        while not self._clock.wait(stop, pause):
            pause = POLL_SECONDS
            try:
                self._write_all(stop)
                waits = delays(POLL_SECONDS, 30.0)
            except KubeError as error:
                asked = error.retry_after if isinstance(error, StatusError) else None
                pause = max(next(waits), spread(asked or 0.0))

    def _write_all(self, stop: threading.Event) -> None:
        while True:
            with self._guard:
                if not self._waiting:
                    return
                event = self._waiting[0]
            if self._clock.now() - event.at < REPEAT_SECONDS:
                self._write(event, stop)
            with self._guard:
                self._waiting.popleft()

    def _write(self, event: _Event, stop: threading.Event) -> None:
        """Write an event. Raises KubeError where that may succeed later."""
        try:
            self._client.create(EVENTS, self._body(event, stop), stop=stop)
        except StoppedError:
            raise
        except KubeError as error:
            code = error.code if isinstance(error, StatusError) else 0
            if code == 409:
                return  # an earlier attempt, whose answer did not come
            if not self._trouble:
                self._trouble = str(error)
                _log.warning("events on node %s cannot be written: %s", self._node, error)
            if 400 <= code < 500 and code not in {408, 429}:
                return  # the server does not want it
            raise
        if self._trouble:
            self._trouble = ""
            _log.info("events on node %s are written again", self._node)

    def _node_uid(self, stop: threading.Event) -> str:
        """Return the Node's UID, or its name where the server does not tell. Raises KubeError where it is not there."""
        if not self._uid or self._clock.now() >= self._uid_until:
            self._uid = self._node
            try:
                metadata = self._client.get(node_path(self._node), stop=stop)["metadata"]
                self._uid = str(metadata["uid"])
            except StatusError as error:
                if error.code not in {403, 404}:
                    raise
            except (LookupError, TypeError):
                pass  # no Node object
            self._uid_until = self._clock.now() + REPEAT_SECONDS
        return self._uid

    def _body(self, event: _Event, stop: threading.Event) -> dict[str, Any]:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.time))
        node = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node_uid(stop)}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": "default"},
            "involvedObject": node,
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": _COMPONENT, "host": self._node},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._node,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
