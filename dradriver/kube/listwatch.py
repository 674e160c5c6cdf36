"""List and watch: what there is of a kind, and what happens to it, for as long as somebody wants to know."""

import logging
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from dradriver.backoff import delays
from dradriver.clock import SYSTEM, Clock
from dradriver.kube.answers import decode_cut
from dradriver.kube.client import Client
from dradriver.kube.errors import (
    KubeError,
    MalformedError,
    StatusError,
    StoppedError,
    UnreachableError,
    one_line,
    status_error,
)
from dradriver.kube.limits import spread
from dradriver.kube.waking import Waking
from dradriver.model.text import shown

FIRST_SECONDS = 0.2
CEILING_SECONDS = 30.0
"""The waits between two watches, doubling from the first to the ceiling."""

STEADY_SECONDS = 30.0
"""A watch that stood so long was good: the waits start anew. They also do where it brought something, but not more
often than that, since a server that sends one event and ends would otherwise be asked several times a second."""

SETTLE_SECONDS = 5.0
"""A watch that stood so long, or brought something, works."""

PAGE = 500
"""Objects a page of a list."""

LIST_SECONDS = 60.0
"""For one page."""

WATCH_SECONDS = (240, 360)
"""How long the server is asked to keep a watch, at random in between."""

GRACE_SECONDS = 30.0
"""How much later the client ends it itself."""

EARLY_SECONDS = 5.0
"""A watch that ended so long before its time was interrupted: the server may have been restarted, or be another."""

_MAX_PAGES = 1000
_RELIST_AFTER = 3
_REPORT_AFTER = 2

_log = logging.getLogger(__name__)


class Handler(Protocol):
    """What wants to know. Called in the thread that runs the ListWatch, one call at a time.

    A call that raises is logged, and followed by a new list after a wait: nothing is lost by it.
    """

    def replaced(self, objects: list[dict[str, Any]]) -> None:
        """Be given all objects, at the start and whenever changes may have been missed.

        As the server sends them: in a list they have neither `apiVersion` nor `kind`.
        """

    def changed(self, kind: str, changed: dict[str, Any]) -> None:
        """Be given an object that was "ADDED", "MODIFIED" or "DELETED". The same may come twice."""


class _HandlerError(Exception):
    """The handler has failed."""


class _PutBackError(Exception):
    """The server is at an older resource version than it was."""


class ListWatch:
    """Keeps a handler informed of the objects at a path, as far as `query` (selectors) lets them through.

    A watch that ends goes on where it was; where the server cannot, three times in a row does not, or is at an older
    version than it was, all is listed anew. A server with an older store (put back from a backup, or begun empty) shows
    that only where something happens there: with `relist` all is also listed after each watch that was interrupted.
    Between two attempts there is a wait, which grows to half a minute while they fail, and ends early when another
    request of the client has success.

    Half-open connections: the kernel finds a peer that is gone within half a minute (keep-alive). A server that is
    there and silent is left `GRACE_SECONDS` after the time that it was asked to end the watch.

    synced  set once the handler has all objects for the first time
    """

    def __init__(
        self,
        client: Client,
        path: str,
        query: dict[str, str],
        handler: Handler,
        *,
        clock: Clock = SYSTEM,
        name: str = "",
        relist: float | None = None,
    ) -> None:
        """Keep the parts; nothing is asked yet.

        name     for the log; the path if empty
        relist   after how many seconds, about, all is listed anew in any case: for a list that is short
        """
        self.synced = threading.Event()
        self._client = client
        self._path = path
        self._query = dict(query)
        self._handler = handler
        self._clock = clock
        self._name = name or path
        self._version = ""
        self._trouble = ""
        self._complaint = ""
        self._failures = 0
        self._good_until = clock.now()
        self._waits = delays(FIRST_SECONDS, CEILING_SECONDS)
        self._anew_at = clock.now()
        self._opened_at: float | None = None
        self._works = False
        self._brought = False
        self._relist = relist
        self._listed_at = clock.now()
        self._due_at = clock.now()
        self._down = False
        self._waking = Waking(clock)

    @property
    def trouble(self) -> str:
        """Why the objects cannot be watched now; empty while they can."""
        return self._trouble

    def run(self, stop: threading.Event) -> None:
        """List and watch until `stop`, which is seen within 0.3 s."""
        self._version = ""
        self._good_until = self._clock.now()
        while not stop.is_set():
            self._rest(self._attempt(stop), stop)

    def _rest(self, pause: float, stop: threading.Event) -> None:
        """Wait, at least as long as the server wants to be left."""
        wait = max(next(self._waits), pause)
        if not self._down:
            # Who was refused is none the wiser for a success of others.
            self._clock.wait(stop, wait)
            return
        self._clock.wait(stop, pause)
        if self._waking.sleep(self._client.successes, wait - pause, stop):
            self._waits = delays(FIRST_SECONDS, CEILING_SECONDS)

    def _attempt(self, stop: threading.Event) -> float:
        """List where that is needed, and watch until the watch ends; return how long the server wants to be left."""
        self._opened_at, self._works, self._brought, self._down = None, False, False, False
        pause = 0.0
        interrupted = False
        try:
            if not self._version:
                self._list(stop)
            self._watch(stop)
            why = "the server ended the watch at once"
            interrupted = self._clock.now() < self._due_at - EARLY_SECONDS
        except StoppedError as error:
            why = str(error)
        except StatusError as error:
            why = str(error)
            self._down = error.code >= 500
            interrupted = self._opened_at is not None
            if error.expired or error.too_new:
                self._version = ""
            if error.retry_after:
                pause = spread(error.retry_after)
        except KubeError as error:
            why = str(error)
            self._down = interrupted = True
        except (_HandlerError, _PutBackError) as error:
            why = str(error)
            self._version = ""
        if interrupted and self._relist is not None:
            self._version = ""
        if not stop.is_set():
            self._ended(why)
        return pause

    def _ended(self, why: str) -> None:
        """Draw the conclusions from an attempt that has ended."""
        now = self._clock.now()
        lived = now - self._opened_at if self._opened_at is not None else 0.0
        if lived >= STEADY_SECONDS or (self._brought and now - self._anew_at >= STEADY_SECONDS):
            self._waits = delays(FIRST_SECONDS, CEILING_SECONDS)
            self._anew_at = now
            self._waking.worked()
        if self._works:
            self._good_until = now
            _log.debug("%s: the watch has ended: %s", self._name, why)
            return
        self._failures += 1
        if self._failures % _RELIST_AFTER == 0:
            self._version = ""  # perhaps it is this version that the server has trouble with
        if self._failures >= _REPORT_AFTER and not self._trouble:
            self._trouble = why
            _log.warning("%s: cannot be watched, and is tried again until it can: %s", self._name, why)

    def _working(self) -> None:
        """Note that the watch works."""
        if self._works:
            return
        self._works = True
        self._failures = 0
        if self._trouble:
            self._trouble = ""
            seconds = self._clock.now() - self._good_until
            _log.info("%s: is watched again after %.1f s", self._name, seconds)

    def _waiting(self) -> None:
        if self._opened_at is not None and self._clock.now() - self._opened_at >= SETTLE_SECONDS:
            self._working()

    def _list(self, stop: threading.Event) -> None:
        objects: list[dict[str, Any]] = []
        version, rest = "", ""
        for _ in range(_MAX_PAGES):
            query = {**self._query, "limit": str(PAGE)} | ({"continue": rest} if rest else {})
            answer = self._client.list(
                self._path, query, deadline=self._clock.now() + LIST_SECONDS, stop=stop
            )
            items, version, rest = _page(answer)
            objects += items
            if not rest:
                break
        else:
            raise UnreachableError(f"the list has no end: {_MAX_PAGES} pages were read")
        with self._handling():
            self._handler.replaced(objects)
        self._version = version
        self._listed_at = self._clock.now()
        self.synced.set()

    def _watch(self, stop: threading.Event) -> None:
        seconds = random.randint(*WATCH_SECONDS)  # noqa: S311 - spreading, not secrecy
        query = self._query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        with self._client.watch(
            self._path, query, seconds=seconds + GRACE_SECONDS, stop=stop, waiting=self._waiting
        ) as lines:
            self._opened_at = self._clock.now()
            self._due_at = self._opened_at + seconds
            self._take(lines)
        if self._relist is not None and self._clock.now() - self._listed_at >= spread(self._relist * 0.8):
            self._version = ""

    def _take(self, lines: Iterator[bytes]) -> None:
        for line in lines:
            if not line.strip():
                continue
            kind, changed = _event(line)
            if kind == "ERROR":
                raise status_error(changed)
            version = _version(changed)
            if _is_older(version, self._version):
                raise _PutBackError(
                    f"the server is at version {shown(version, 40)}, and was at {shown(self._version, 40)}"
                )
            if kind != "BOOKMARK":
                with self._handling():
                    self._handler.changed(kind, changed)
            # An object without a version is passed on, and comes again after a cut.
            self._version = version or self._version
            self._brought = True
            self._working()

    @contextmanager
    def _handling(self) -> Iterator[None]:
        """Log what the handler raises, the same thing once, and raise _HandlerError for it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever the handler raises, the loop goes on
            text = f"{type(error).__name__}: {one_line(str(error))}"
            if text != self._complaint:
                self._complaint = text
                _log.exception("%s: what was seen could not be handled", self._name)
            raise _HandlerError(f"what was seen could not be handled: {text}") from None


def _page(answer: Any) -> tuple[list[dict[str, Any]], str, str]:
    """Return the objects of a page, the version of the list, and what the next page is asked for by."""
    metadata = answer.get("metadata") if isinstance(answer, dict) else None
    items = answer.get("items") if isinstance(answer, dict) else None
    if not isinstance(metadata, dict) or not isinstance(items, list | None):
        raise UnreachableError("the answer is no list object")
    items = items or []
    if not all(isinstance(item, dict) and isinstance(item.get("metadata"), dict) for item in items):
        raise UnreachableError("the list has an item that is no object")
    rest = metadata.get("continue") or ""
    version = metadata.get("resourceVersion")
    if not isinstance(version, str) or not version or not isinstance(rest, str):
        raise UnreachableError("the list has no resourceVersion: nothing can be watched from there")
    return items, version, rest


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    """Return kind and object of an event. Raises UnreachableError: what follows such a line is no better."""
    try:
        event = decode_cut(line)
    except MalformedError:
        raise UnreachableError(f"a line of the watch is not JSON: {_beginning(line)}") from None
    kind = event.get("type") if isinstance(event, dict) else None
    changed = event.get("object") if isinstance(event, dict) else None
    if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"} or not isinstance(changed, dict):
        raise UnreachableError(f"a line of the watch is no event: {_beginning(line)}")
    if kind != "ERROR" and not isinstance(changed.get("metadata"), dict):
        raise UnreachableError(f"an event of the watch has no object: {_beginning(line)}")
    return kind, changed


def _version(changed: dict[str, Any]) -> str:
    version = changed["metadata"].get("resourceVersion")
    return version if isinstance(version, str) else ""


def _is_older(version: str, known: str) -> bool:
    """Whether a resource version is older than another: those of a kind are numbers that rise (KEP-5504)."""
    return all(text.isascii() and text.isdecimal() for text in (version, known)) and _rank(version) < _rank(
        known
    )


def _rank(number: str) -> tuple[int, str]:
    """Return what numbers compare by, of however many digits: Python reads no more than 4,300."""
    digits = number.lstrip("0")
    return len(digits), digits


def _beginning(line: bytes) -> str:
    return shown(line[:80].decode("utf-8", "replace"), 80)
