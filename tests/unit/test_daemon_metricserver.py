"""The server of the metrics: who holds connections takes neither threads nor descriptors from the daemon."""

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge

from dradriver.daemon import metricserver
from dradriver.daemon.metricserver import MAX_CONNECTIONS, MetricServer
from waiting import PATIENCE, eventually


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricServer]:
    monkeypatch.setattr(metricserver, "REQUEST_SECONDS", 1.0)
    registry = CollectorRegistry()
    Gauge("up", "Whether.", registry=registry).set(1)
    made = MetricServer("127.0.0.1", 0, registry)
    thread = threading.Thread(target=made.serve)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join(PATIENCE)
        made.server_close()


def scraped(server: MetricServer) -> bool:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.server_port}/metrics", timeout=PATIENCE
        ) as answer:
            return b"up 1.0" in answer.read()
    except (urllib.error.URLError, OSError):
        return False


def test_idle_connections_are_few_and_are_cut_off(server: MetricServer) -> None:
    assert scraped(server)
    threads = threading.active_count()
    with ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), PATIENCE))
            for _ in range(50)
        ]
        # Those beyond the limit are closed at once, the others in time.
        assert [one.recv(1) for one in idle[MAX_CONNECTIONS:]] == [b""] * (50 - MAX_CONNECTIONS)
        assert threading.active_count() <= threads + MAX_CONNECTIONS
        assert [one.recv(1) for one in idle[:MAX_CONNECTIONS]] == [b""] * MAX_CONNECTIONS
        eventually(lambda: scraped(server))
    eventually(lambda: threading.active_count() <= threads)


def test_one_that_sends_a_little_now_and_then_is_cut_off_too(server: MetricServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), PATIENCE) as slow:
        slow.settimeout(0.05)
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            try:
                slow.sendall(b"G")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("it was never cut off")
    eventually(lambda: scraped(server))
