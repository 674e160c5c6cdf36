"""Hardware is probed once at the start, and again when its events say so."""

import threading
import time
from collections.abc import Iterator, Mapping

import pytest

from dradriver.backend import Backend, NoOptions, Plan, Request
from dradriver.daemon.watch import SETTLE_SECONDS, PoolWatch
from dradriver.engine import Pool
from dradriver.host import Host
from dradriver.model import ClaimRef, Peer, PoolContent
from waiting import PATIENCE, eventually


class Counted(Backend[int, NoOptions]):
    """Counts how often it is probed."""

    kind = "counted"

    def __init__(self) -> None:
        super().__init__(Host(), NoOptions())
        self.probes = 0

    def probe(self) -> int:
        self.probes += 1
        return self.probes

    def devices(self, inventory: int) -> PoolContent:
        return PoolContent()

    def plan(
        self, request: Request, inventory: int, held: Mapping[str, ClaimRef], peers: tuple[Peer, ...]
    ) -> Plan:
        raise NotImplementedError


@pytest.fixture
def backend() -> Counted:
    return Counted()


@pytest.fixture
def watch(backend: Counted) -> PoolWatch:
    return PoolWatch(Pool("node", "counted.example.com", backend), 60.0, lambda _pool, _changed: None)


@pytest.fixture
def start(watch: PoolWatch) -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=watch.probes, args=(stop,))
    yield thread
    stop.set()
    watch.wake()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_what_was_asked_for_before_the_first_probe_needs_no_second_one(
    backend: Counted, watch: PoolWatch, start: threading.Thread
) -> None:
    watch.request("kernel events may have been missed")
    start.start()
    assert watch.probed.wait(PATIENCE)
    time.sleep(4 * SETTLE_SECONDS)
    assert backend.probes == 1


def test_an_event_after_the_first_probe_brings_another_one(
    backend: Counted, watch: PoolWatch, start: threading.Thread
) -> None:
    start.start()
    assert watch.probed.wait(PATIENCE)
    watch.request("add /devices/x")
    eventually(lambda: backend.probes == 2, "it is probed again")
