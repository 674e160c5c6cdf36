"""Faults on command: what can go wrong between a client and an API server, made to happen. Thread-safe.

`Faults` says what becomes of a request; `WatchFaults` what becomes of the open watches. The server asks both.
"""

import random
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dradriver.sim.apiserver.errors import REASONS, ApiError
from dradriver.sim.apiserver.http import Cut, Reply, Request, Response, Silence, cut_off
from dradriver.sim.apiserver.replies import error_response

ERROR_CODES: Final = (500, 503, 429)
_WITHOUT_EFFECT: Final = frozenset({429})
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request.

    after    whether the request takes effect first, and only its answer is lost
    reply    makes the reply from the true one, which is None where the request had no effect
    """

    after: bool
    reply: Callable[[Response | None], Reply]


@dataclass(slots=True)
class _Rule:
    fault: Fault
    left: int
    method: str
    path: re.Pattern[str]

    def concerns(self, request: Request) -> bool:
        return self.left > 0 and self.method in {"", request.method} and bool(self.path.search(request.path))


class Faults:
    """What becomes of requests. Times in seconds; `times` counts the matching requests that a fault is for.

    `method` and `path` (a regular expression, searched for) limit a fault to some requests; the paths of the API start
    with `/api`. Where `after` is said, the request takes effect and the answer is wrong all the same.
    """

    def __init__(self, seed: int = 0) -> None:
        self.latency = 0.0
        """How long every request waits before it is looked at."""
        self.jitter = 0.0
        """How much longer at most, at random."""
        self.error_rate = 0.0
        """The share of requests that fail, from 0 to 1; of those that would change something, every second fails
        after it has taken effect."""
        self.error_codes: Sequence[int] = ERROR_CODES
        """What they are answered; 429 only without effect."""
        self.error_retry_after: int | None = 1
        """Their Retry-After, for 429 and 503."""
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._guard = threading.Lock()
        self._rules: list[_Rule] = []

    def seed(self, seed: int) -> None:
        """Start the sequence of random errors and delays anew."""
        with self._guard:
            self._random.seed(seed)

    def clear(self) -> None:
        """Take back everything."""
        with self._guard:
            self._rules.clear()
            self.latency = self.jitter = self.error_rate = 0.0
            self.error_codes, self.error_retry_after = ERROR_CODES, 1

    def fail(
        self,
        code: int,
        times: int = 1,
        *,
        method: str = "",
        path: str = "",
        retry_after: int | None = None,
        message: str = "",
        after: bool = False,
    ) -> None:
        """Answer the next requests with an error, for 429 or 503 with `Retry-After` where given."""
        error = _error(code, message, retry_after)
        self._add(Fault(after, lambda _: error_response(error)), times, method, path)

    def drop(self, times: int = 1, *, method: str = "", path: str = "", after: bool = False) -> None:
        """Close the connection of the next requests without an answer."""
        self._add(Fault(after, lambda _: Cut()), times, method, path)

    def hang(self, times: int = 1, *, method: str = "", path: str = "", after: bool = False) -> None:
        """Never answer the next requests, and keep their connections open: a half-open connection."""
        self._add(Fault(after, lambda _: Silence()), times, method, path)

    def truncate(self, times: int = 1, *, method: str = "", path: str = "") -> None:
        """Break off the answers of the next requests in the middle of their bodies; they take effect."""
        self._add(Fault(True, lambda reply: cut_off(reply) if reply else Cut()), times, method, path)

    def pending(self) -> int:
        """Return how many requests the faults for "the next ones" are still for."""
        with self._guard:
            return sum(rule.left for rule in self._rules)

    def delay(self) -> float:
        """Return how long the next request waits, in seconds."""
        if not (self.latency or self.jitter):
            return 0.0
        with self._guard:
            return self.latency + self._random.uniform(0.0, self.jitter)

    def pick(self, request: Request) -> Fault | None:
        """Return what becomes of this request; None for nothing out of the ordinary."""
        if not self._rules and not self.error_rate:
            return None
        with self._guard:
            for rule in self._rules:
                if rule.concerns(request):
                    rule.left -= 1
                    self._rules = [rule for rule in self._rules if rule.left > 0]
                    return rule.fault
            if self._random.random() < self.error_rate:
                return self._random_fault(request)
        return None

    def _random_fault(self, request: Request) -> Fault:
        after = request.method not in _READING and self._random.random() < 0.5
        codes = [code for code in self.error_codes if not (after and code in _WITHOUT_EFFECT)]
        code = self._random.choice(codes or [500])
        retry_after = self.error_retry_after if code in {429, 503} else None
        error = _error(code, "an error on command", retry_after)
        return Fault(after, lambda _: error_response(error))

    def _add(self, fault: Fault, times: int, method: str, path: str) -> None:
        with self._guard:
            self._rules.append(_Rule(fault, times, method.upper(), re.compile(path)))


def _error(code: int, message: str, retry_after: int | None) -> ApiError:
    return ApiError(code, message or _TEXTS.get(code, REASONS.get(code, "error")), retry_after=retry_after)


_TEXTS: Final = {
    403: 'requests are forbidden: User "system:anonymous" cannot do that (on command)',
    429: "the server has received too many requests and has asked us to try again later",
    500: "Internal error occurred: on command",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted",
}


class WatchFaults:
    """What becomes of open watches. Each order concerns the watches that are open when it is given."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._watches: set[WatchControl] = set()
        self.gone_status = 0
        """How many of the next watch requests are answered with HTTP status 410."""

    def close(self) -> None:
        """End all watches as a server does at its time limit."""
        self._order("close")

    def truncate(self, clean: bool = False) -> None:
        """Break off all watches in the middle of a line; `clean` ends the HTTP answer properly, as a proxy may."""
        self._order("cut-line" if clean else "truncate")

    def expire(self) -> None:
        """Send all watches an ERROR event with code 410, and end them."""
        self._order("expire")

    def silence(self) -> None:
        """Send nothing on the watches that are open any more, though things happen, and keep them open."""
        self._order("silence")

    def bookmark(self) -> None:
        """Send a bookmark at once on all watches that allow them."""
        self._order("bookmark")

    @property
    def open(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    def add(self, control: "WatchControl") -> None:
        """Note a watch as open."""
        with self._guard:
            self._watches.add(control)

    def discard(self, control: "WatchControl") -> None:
        """Note a watch as ended."""
        with self._guard:
            self._watches.discard(control)

    def takes_gone_status(self) -> bool:
        """Whether this watch request is to be answered with HTTP status 410."""
        with self._guard:
            if self.gone_status <= 0:
                return False
            self.gone_status -= 1
            return True

    def _order(self, order: str) -> None:
        with self._guard:
            watches = list(self._watches)
        for control in watches:
            control.give(order)


class WatchControl:
    """The orders for one watch."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._orders: deque[str] = deque()
        self.silent = False

    def give(self, order: str) -> None:
        """Give an order; any thread may."""
        if order == "silence":
            self.silent = True
        self._orders.append(order)
        self._wake()

    def taken(self) -> list[str]:
        """Return the orders since the last call."""
        orders = []
        while self._orders:
            orders.append(self._orders.popleft())
        return orders
