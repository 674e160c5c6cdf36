"""Requests to the API server: plain JSON, each within a deadline, no more a second than allowed."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlencode

import msgspec
import urllib3

from dradriver.clock import SYSTEM, Clock
from dradriver.kube.answers import decode, decode_cut
from dradriver.kube.connection import Access, Connection
from dradriver.kube.errors import KubeError, MalformedError, error_of_answer, one_line
from dradriver.kube.limits import Limits, Rate
from dradriver.kube.transport import Transport, discard
from dradriver.kube.waking import Successes

DEFAULT_SECONDS = 30.0
"""For a request without a deadline of its own, with all that belongs to it."""

Observed = Callable[[str, int, float], None]
"""Told of each request: verb as in Kubernetes' RBAC, HTTP status or 0 without an answer, and seconds."""

_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"

_log = logging.getLogger(__name__)


def default_user_agent() -> str:
    """Return the name by which the server's audit log and metrics know us, as `dradriver/0.1.0 (linux/x86_64)`."""
    try:
        own = version("dradriver")
    except PackageNotFoundError:
        own = "unknown"
    return f"dradriver/{own} (linux/{os.uname().machine})"


def unobserved(verb: str, code: int, seconds: float) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class _Request:
    verb: str
    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: Any = None
    content_type: str = _JSON
    urgent: bool = False

    @property
    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


class Client:
    """A client of one API server. Safe to use from several threads, each of which has a connection of its own.

    Deadlines are times of the clock; without one a request has `DEFAULT_SECONDS`. Whatever goes wrong raises
    KubeError: StatusError for an answer that says no, MalformedError for one that cannot be read, UnreachableError for
    none. A request is sent once, with two exceptions: a connection that the server had closed while it was idle is
    replaced, and after a 401 credentials that have changed meanwhile are tried. All else is the caller's, who knows
    what is worth a repetition. Redirects are not followed. Warnings in answers are logged at level debug.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str = "",
        qps: float = 20.0,
        burst: int = 40,
        clock: Clock = SYSTEM,
        observed: Observed = unobserved,
    ) -> None:
        """`qps` requests a second are sent, after `burst` at once, beside urgent ones. `observed` must not raise."""
        self.clock = clock
        self.successes = Successes()
        self._connection = connection
        self._headers = {"User-Agent": user_agent or default_user_agent(), "Accept": _JSON}
        self._rate = Rate(qps, burst, clock)
        self._observed = observed
        self._closed = threading.Event()
        self._guard = threading.Lock()
        self._transport: Transport | None = None

    @property
    def server(self) -> str:
        """The server's URL."""
        return self._connection.server

    def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        deadline: float | None = None,
        stop: threading.Event | None = None,
        urgent: bool = False,
    ) -> Any:
        """Return an object. Where `stop` is set meanwhile, StoppedError comes at once.

        urgent   somebody waits, whose calls are limited already: it does not count as one of the requests a second
        """
        return self._exchange(_Request("get", "GET", path, query, urgent=urgent), deadline, stop)

    def list(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        deadline: float | None = None,
        stop: threading.Event | None = None,
    ) -> Any:
        """Return a list object, or a page of it; as `get`, but observed under its own name."""
        return self._exchange(_Request("list", "GET", path, query), deadline, stop)

    def create(
        self,
        path: str,
        body: Any,
        query: Mapping[str, str] | None = None,
        *,
        deadline: float | None = None,
        stop: threading.Event | None = None,
    ) -> Any:
        """Create an object, and return it as stored. `stop` as for `get`."""
        return self._exchange(_Request("create", "POST", path, query, body), deadline, stop)

    def replace(self, path: str, body: Any) -> Any:
        """Replace an object, and return it as stored."""
        return self._exchange(_Request("update", "PUT", path, body=body))

    def delete(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Any = None,
        deadline: float | None = None,
    ) -> Any:
        """Delete an object; `body` is a DeleteOptions object, as with preconditions."""
        return self._exchange(_Request("delete", "DELETE", path, query, body), deadline)

    def apply(self, path: str, body: Any, *, manager: str, deadline: float | None = None) -> Any:
        """Apply fields of an object server side, as field manager `manager`, and return it as stored.

        Fields that another manager owns are taken over.
        """
        query = {"fieldManager": manager, "force": "true"}
        # The content type asks for YAML; JSON is a part of it.
        return self._exchange(_Request("patch", "PATCH", path, query, body, _APPLY), deadline)

    @contextmanager
    def watch(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        seconds: float,
        stop: threading.Event,
        waiting: Callable[[], None] | None = None,
    ) -> Iterator[Iterator[bytes]]:
        """Yield the lines of a watch as they come, for at most `seconds`: then, at `stop` and at any cut, KubeError.

        That limit is what ends a watch of which nothing comes any more though the connection stands. That the server
        begins to answer may take `DEFAULT_SECONDS`. `waiting` is called several times a second while nothing comes.
        """
        limits = self._limits(self.clock.now() + seconds, stop, waiting)
        with limits.within(DEFAULT_SECONDS, "answer"):
            transport, response = self._open(_Request("watch", "GET", path, query), limits)
        try:
            yield transport.lines(response, limits)
        finally:
            discard(response)

    def close(self) -> None:
        """End: requests under way fail within a moment, later ones at once."""
        self._closed.set()
        with self._guard:
            if self._transport is not None:
                self._transport.clear()

    def _limits(
        self, deadline: float, stop: threading.Event | None, waiting: Callable[[], None] | None = None
    ) -> Limits:
        stops = (self._closed,) if stop is None else (stop, self._closed)
        return Limits(self.clock, deadline, *stops, waiting=waiting)

    def _exchange(
        self, request: _Request, deadline: float | None = None, stop: threading.Event | None = None
    ) -> Any:
        limits = self._limits(self.clock.now() + DEFAULT_SECONDS if deadline is None else deadline, stop)
        transport, response = self._open(request, limits)
        data = transport.read(response, limits)
        try:
            # Only who asks for one object by its name needs to know that a part of it cannot be read.
            return decode(data) if request.verb == "get" else decode_cut(data)
        except MalformedError as error:
            raise MalformedError(f"{self.server}: {error}") from None

    def _open(self, request: _Request, limits: Limits) -> tuple[Transport, urllib3.BaseHTTPResponse]:
        """Return an answer that says yes. Raises KubeError for all others."""
        access = self._connection.access(limits)
        transport, response = self._send(request, access, limits)
        if response.status == 401:
            renewed = self._renewed(access, limits)
            if renewed != access:
                discard(response)
                transport, response = self._send(request, renewed, limits)
        for warning in response.headers.getlist("Warning"):
            _log.debug("%s warns: %s", self.server, one_line(warning))
        if 200 <= response.status < 300:
            self.successes.note()
            return transport, response
        body = transport.read(response, limits)
        raise error_of_answer(
            response.status, response.reason or "", body, response.headers.get("Retry-After")
        )

    def _renewed(self, used: Access, limits: Limits) -> Access:
        try:
            return self._connection.renewed(used, limits)
        except KubeError as error:
            _log.debug("the credentials cannot be renewed: %s", error)
            return used

    def _send(
        self, request: _Request, access: Access, limits: Limits
    ) -> tuple[Transport, urllib3.BaseHTTPResponse]:
        headers, body = dict(self._headers), None
        if access.authorization:
            headers["Authorization"] = access.authorization
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            body = msgspec.json.encode(request.body)
        transport = self._transport_of(access)
        if not request.urgent:
            self._rate.take(limits)
        began, code = self.clock.now(), 0
        try:
            response = transport.send(request.method, request.target, headers, body, limits)
            code = response.status
        finally:
            self._observed(request.verb, code, self.clock.now() - began)
        return transport, response

    def _transport_of(self, access: Access) -> Transport:
        with self._guard:
            if self._transport is None or not self._transport.serves(access):
                self._transport = Transport(access)
            return self._transport
