"""Watches: the changes of one kind as a stream of lines, as long as the client and the server want.

Facts: https://kubernetes.io/docs/reference/using-api/api-concepts/ (resume, bookmarks, streaming lists); a version that
is too old is told as an ERROR event in the stream, not as a status (apiserver/pkg/storage/cacher).
"""

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dradriver.sim.apiserver.errors import ApiError, FieldError
from dradriver.sim.apiserver.faults import WatchControl, WatchFaults
from dradriver.sim.apiserver.http import Exchange
from dradriver.sim.apiserver.kinds import Kind
from dradriver.sim.apiserver.selectors import Selector
from dradriver.sim.apiserver.store import Change, ExpiredError, Store, Stored, Subscription, encode, head
from dradriver.sim.apiserver.tables import table

MIN_SECONDS: Final = 1800.0
"""How long a watch without timeoutSeconds lasts at least; at most twice that, at random."""

_SILENT_SECONDS: Final = 60.0

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch request asks for.

    since     the resourceVersion to resume from; None starts with the objects that there are, or from now
    initial   whether to start with the objects that there are
    table     "" for plain objects, else what the rows of tables carry ("Metadata", "Object", "None")
    """

    kind: Kind
    namespace: str
    selector: Selector
    since: int | None
    initial: bool
    initial_end: bool
    bookmarks: bool
    seconds: float
    table: str = ""


def watch_options(
    kind: Kind, namespace: str, selector: Selector, query: Mapping[str, str], as_table: str
) -> WatchOptions:
    """Return the options behind a request's parameters. Raises ApiError (400, 422)."""
    version = _version(query.get("resourceVersion", ""))
    streaming = query.get("sendInitialEvents")
    if streaming is not None and query.get("resourceVersionMatch") != "NotOlderThan":
        error = FieldError(
            "resourceVersionMatch",
            "FieldValueForbidden",
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )
        raise ApiError.invalid(_LIST_OPTIONS, "", [error])
    initial = streaming == "true" if streaming is not None else version == 0
    seconds = _seconds(query.get("timeoutSeconds", ""))
    return WatchOptions(
        kind,
        namespace,
        selector,
        since=None if initial or version == 0 else version,
        initial=initial,
        initial_end=streaming == "true",
        bookmarks=query.get("allowWatchBookmarks") in {"true", "1"},
        seconds=seconds or random.uniform(MIN_SECONDS, 2 * MIN_SECONDS),  # noqa: S311 - spreading, not secrecy
        table=as_table,
    )


_LIST_OPTIONS: Final = Kind("meta.k8s.io", "v1", "ListOptions", "listoptions", "listoptions")


def _version(text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        error = FieldError(
            "resourceVersion", "FieldValueInvalid", f'Invalid value: "{text}": must be a non-negative integer'
        )
        raise ApiError.invalid(_LIST_OPTIONS, "", [error])
    return int(text)


def _seconds(text: str) -> float:
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ApiError(400, f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return float(text or 0)


class Watch:
    """One watch. Made when the request comes, so that nothing is missed before the stream starts."""

    def __init__(
        self, store: Store, options: WatchOptions, faults: WatchFaults, bookmark_seconds: float
    ) -> None:
        self._store = store
        self._options = options
        self._faults = faults
        self._bookmark_seconds = bookmark_seconds
        self._described = False
        self._expired = ""
        self._initial: list[Stored] = []
        self._subscription: Subscription | None = None
        try:
            self._subscription, self._version = store.subscribe(options.kind, options.since)
        except ExpiredError as error:
            self._expired = str(error)
            self._version = store.version
        if options.initial:
            self._initial, self._version = store.snapshot(options.kind, options.namespace)
        if options.since is not None:
            self._version = options.since

    def run(self, exchange: Exchange) -> bool:
        """Send events until the time is over (True), or the stream breaks (False). Raises GoneError."""
        if self._subscription is None:
            exchange.send(_error_line(ApiError.expired(self._expired)))
            return True
        control = WatchControl(self._subscription.wake)
        self._faults.add(control)
        try:
            return self._stream(exchange, self._subscription, control)
        finally:
            self._faults.discard(control)

    def close(self) -> None:
        """Give back what the watch holds."""
        if self._subscription is not None:
            self._store.unsubscribe(self._subscription)

    def _stream(self, exchange: Exchange, subscription: Subscription, control: WatchControl) -> bool:
        end = time.monotonic() + self._options.seconds
        bookmark = time.monotonic() + self._bookmark_seconds
        self._send(exchange, control, self._first_lines())
        while True:
            for order in control.taken():
                if order == "bookmark":
                    self._send(exchange, control, self._bookmark(subscription))
                elif order != "silence":
                    return self._end(exchange, order)
            now = time.monotonic()
            self._send(exchange, control, self._lines(subscription.take()))
            if now >= bookmark:
                bookmark = now + self._bookmark_seconds
                self._send(exchange, control, self._bookmark(subscription))
            if now >= end and not control.silent:
                return True
            pause = _SILENT_SECONDS if control.silent else min(end, bookmark) - now
            if not exchange.wait(subscription.fileno(), pause):
                return False

    def _end(self, exchange: Exchange, order: str) -> bool:
        if order == "expire":
            error = ApiError.expired(f"too old resource version: {self._version} ({self._store.version})")
            exchange.send(_error_line(error))
            return True
        if order == "truncate":
            line = self._bookmark_line(self._version, {})
            exchange.send_raw(b"%x\r\n%b" % (len(line), line[: len(line) // 2]))
            return False
        if order == "cut-line":
            line = self._bookmark_line(self._version, {})
            exchange.send(line[: len(line) // 2])
        return True

    @staticmethod
    def _send(exchange: Exchange, control: WatchControl, lines: Iterable[bytes]) -> None:
        data = b"".join(lines)
        # Asked once the lines are there: what happens after the order to be silent is never among them.
        if data and not control.silent:
            exchange.send(data)

    def _first_lines(self) -> Iterator[bytes]:
        options = self._options
        for stored in self._initial:
            if options.selector.matches(stored.obj):
                yield self._line("ADDED", stored)
        if options.initial_end and options.bookmarks:
            yield self._bookmark_line(self._version, {INITIAL_EVENTS_END: "true"})

    def _bookmark(self, subscription: Subscription) -> Iterator[bytes]:
        """Yield what is to be sent first, and the bookmark where the client wants some."""
        version = self._store.version
        yield from self._lines(subscription.take())
        self._version = max(self._version, version)
        if self._options.bookmarks:
            yield self._bookmark_line(self._version, {})

    def _lines(self, changes: Iterable[Change]) -> Iterator[bytes]:
        for change in changes:
            if change.version <= self._version:
                continue  # in the first objects already
            self._version = change.version
            if line := self._seen(change):
                yield line

    def _seen(self, change: Change) -> bytes:
        """Return the event as this watch sees it: an object that moves out of the selection is deleted for it."""
        new = change.type != "DELETED" and self._selected(change.new)
        old = change.old is not None and self._selected(change.old)
        if new:
            return self._line("MODIFIED" if old else "ADDED", change.new)
        if not old or change.old is None:
            return b""
        if change.type == "DELETED":
            return self._line("DELETED", change.new)
        version = {"resourceVersion": str(change.version)}
        last = {**change.old.obj, "metadata": {**change.old.obj["metadata"], **version}}
        return self._line("DELETED", Stored(change.old.kind, last, change.version))

    def _selected(self, stored: Stored) -> bool:
        namespace = self._options.namespace
        return namespace in {"", stored.key[0]} and self._options.selector.matches(stored.obj)

    def _line(self, kind: str, stored: Stored) -> bytes:
        if not self._options.table:
            return b'{"type":"%b","object":%b%b}\n' % (kind.encode(), head(stored.kind), stored.inner)
        return self._table_line(kind, [stored], {"resourceVersion": str(stored.version)})

    def _table_line(self, kind: str, objects: list[Stored], metadata: Mapping[str, Any]) -> bytes:
        columns, self._described = not self._described, True
        rows = table(self._options.kind.name, objects, metadata, self._options.table, columns)
        return encode({"type": kind, "object": rows}) + b"\n"

    def _bookmark_line(self, version: int, annotations: Mapping[str, str]) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        if self._options.table:
            return self._table_line("BOOKMARK", [], metadata)
        kind = self._options.kind
        bookmark = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata}
        return encode({"type": "BOOKMARK", "object": bookmark}) + b"\n"


def _error_line(error: ApiError) -> bytes:
    return encode({"type": "ERROR", "object": error.status()}) + b"\n"
