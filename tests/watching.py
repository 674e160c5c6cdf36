"""A ListWatch that runs against a server of the test, and answers for that."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dradriver.clock import SYSTEM, Clock
from dradriver.kube import (
    Client,
    Connection,
    ListWatch,
)
from kubeserver import Answer, Request, Server, Wire
from waiting import PATIENCE

PATH = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass
class Seen:
    """A handler that remembers; `fail` may make it raise."""

    all: dict[str, Any] = field(default_factory=dict)
    lists: list[list[str]] = field(default_factory=list)
    changes: list[tuple[str, str]] = field(default_factory=list)
    fail: Callable[[str], None] = lambda what: None

    def replaced(self, objects: list[dict[str, Any]]) -> None:
        self.fail("list")
        self.lists.append([one["metadata"]["name"] for one in objects])
        self.all = {one["metadata"]["name"]: one for one in objects}

    def changed(self, kind: str, changed: dict[str, Any]) -> None:
        name = changed["metadata"]["name"]
        self.fail(name)
        self.changes.append((kind, name))
        if kind == "DELETED":
            self.all.pop(name, None)
        else:
            self.all[name] = changed


class Watching:
    """A ListWatch that runs."""

    def __init__(
        self,
        server: Server,
        clock: Clock,
        seen: Seen,
        query: dict[str, str] | None = None,
        relist: float | None = None,
    ) -> None:
        self.server = server
        self.clock = clock
        self.seen = seen
        self.stop = threading.Event()
        self.client = Client(Connection(server.url, token="secret-token"), clock=clock, qps=20, burst=40)
        self.watch = ListWatch(
            self.client, PATH, query or {}, seen, clock=clock, name="slices", relist=relist
        )
        self.thread = threading.Thread(target=self.watch.run, args=(self.stop,))

    def wait(self, seconds: float) -> None:
        """Let that many seconds of the clock pass."""
        self.clock.wait(threading.Event(), seconds)

    def end(self) -> float:
        """Stop; return how long that took."""
        began = time.monotonic()
        self.stop.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        return time.monotonic() - began


@contextmanager
def watching(
    answer: Answer,
    *,
    clock: Clock = SYSTEM,
    seen: Seen | None = None,
    query: dict[str, str] | None = None,
    relist: float | None = None,
) -> Iterator[Watching]:
    with Server(answer) as server:
        it = Watching(server, clock, seen or Seen(), query, relist)
        it.thread.start()
        try:
            yield it
        finally:
            it.end()
            it.client.close()


def listing(*pages: Any, watch: Answer) -> Answer:
    """Answer lists with the pages, and leave watches to `watch`."""
    by_rest = {"": pages[0]} | {before["metadata"]["continue"]: after for before, after in pairwise(pages)}

    def answer(request: Request, wire: Wire) -> None:
        if request.watch:
            watch(request, wire)
        else:
            wire.send(by_rest[request.query.get("continue", "")])

    return answer


def open_end(request: Request, wire: Wire) -> None:
    wire.begin()
    wire.silence()


def events(*lines: tuple[str, Any], then: Callable[[Wire], object] = Wire.silence) -> Answer:
    def answer(request: Request, wire: Wire) -> None:
        wire.begin()
        for kind, changed in lines:
            wire.line(kind, changed)
        then(wire)

    return answer


def bookmark(version: int) -> tuple[str, Any]:
    return "BOOKMARK", {"kind": "ResourceSlice", "metadata": {"resourceVersion": str(version)}}
