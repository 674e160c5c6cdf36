"""What the server was asked, for tests that count writes."""

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

_KEPT: Final = 100_000


@dataclass(slots=True)
class LoggedRequest:
    """One request.

    time      when it came, in seconds since the Unix epoch
    verb      as in audit logs: get, list, watch, create, update, patch, apply, delete, deletecollection; empty for what
              is no request for objects
    kind      the kind of the objects, `ResourceSlice`; empty likewise
    status    what was answered; 0 where no whole answer was sent
    changed   whether it changed something
    """

    time: float
    method: str
    path: str
    query: Mapping[str, str]
    user_agent: str
    verb: str = ""
    kind: str = ""
    subresource: str = ""
    user: str = ""
    status: int = 0
    changed: bool = False
    content_type: str = field(default="", repr=False)


class RequestLog:
    """The last 100,000 requests, oldest first. Thread-safe."""

    def __init__(self) -> None:
        self._entries: deque[LoggedRequest] = deque(maxlen=_KEPT)
        self._guard = threading.Lock()

    def __iter__(self) -> Iterator[LoggedRequest]:
        with self._guard:
            return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> LoggedRequest:
        """Note a request, and return the entry for what becomes of it."""
        entry = LoggedRequest(
            time.time(),
            method,
            path,
            query,
            headers.get("user-agent", ""),
            content_type=headers.get("content-type", ""),
        )
        with self._guard:
            self._entries.append(entry)
        return entry

    def clear(self) -> None:
        """Forget all requests."""
        with self._guard:
            self._entries.clear()

    def matching(
        self, method: str = "", path: str = "", kind: str = "", verb: str = ""
    ) -> list[LoggedRequest]:
        """Return the requests with that method, kind and verb whose path has a match of the regular expression."""
        pattern = re.compile(path)
        return [
            entry
            for entry in self
            if method.upper() in {"", entry.method}
            and kind in {"", entry.kind}
            and verb in {"", entry.verb}
            and pattern.search(entry.path)
        ]

    def writes(self) -> Counter[str]:
        """Return how many requests changed something, by kind."""
        return Counter(entry.kind for entry in self if entry.changed)
