"""Prometheus metrics: what they count and show, and how they are served."""

import socket
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from clusterdaemons import free_port
from dradriver.daemon.metrics import Metrics
from dradriver.daemon.publishing import Published
from waiting import PATIENCE, eventually

GPU = "gpu.example.com"


class Fixed:
    """The facts of a daemon at one moment."""

    def __init__(self) -> None:
        self.pools: tuple[Published, ...] = (
            Published(GPU, "node-a/gpu", 3, ("gpu-3",), ("no taints", "no counters"), (), "refused"),
            Published(GPU, "node-a/npu", 0),
        )
        self.is_active = True
        self.is_reachable: bool | None = None

    def published(self) -> tuple[Published, ...]:
        return self.pools

    def health(self) -> Iterable[tuple[str, str, int]]:
        yield GPU, "Healthy", 3
        yield GPU, "Unhealthy", 1

    def claims(self) -> Iterable[tuple[str, int]]:
        yield GPU, 2

    def active(self) -> bool:
        return self.is_active

    def reachable(self) -> bool | None:
        return self.is_reachable


Samples = dict[tuple[str, frozenset[str]], float]


def key(name: str, *values: str) -> tuple[str, frozenset[str]]:
    """Return where a sample with these label values is found."""
    return name, frozenset(values)


def samples(port: int, host: str = "127.0.0.1") -> Samples:
    """Return all samples by name and label values."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def served(metrics: Metrics, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve metrics; return the port."""
    port, stop = free_port(), threading.Event()
    thread = threading.Thread(target=metrics.serving(host, port), args=(stop,))
    thread.start()
    try:
        eventually(lambda: is_open(port))
        yield port
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def is_open(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_calls_and_requests_are_counted_with_their_outcomes() -> None:
    metrics = Metrics(Fixed())
    with served(metrics) as port:
        assert not [name for name, _ in samples(port) if name.startswith("dradriver_call_seconds_count")]
        metrics.call(GPU, "prepare", 0.002, 0)
        metrics.call(GPU, "prepare", 0.7, 3)
        metrics.call(GPU, "unprepare", 0.002, 0)
        metrics.request("get", 200, 0.01)
        metrics.request("get", 0, 10.0)
        found = samples(port)
        assert found[key("dradriver_call_seconds_count", GPU, "prepare")] == 2
        assert found[key("dradriver_call_seconds_sum", GPU, "prepare")] == pytest.approx(0.702)
        assert found[key("dradriver_call_seconds_bucket", GPU, "prepare", "0.0025")] == 1
        assert found[key("dradriver_claims_failed_total", GPU, "prepare")] == 3
        assert key("dradriver_claims_failed_total", GPU, "unprepare") not in found
        assert found[key("dradriver_api_request_seconds_count", "get", "200")] == 1
        assert found[key("dradriver_api_request_seconds_count", "get", "0")] == 1


def test_failures_of_each_driver_and_call_are_counted_from_zero() -> None:
    with served(Metrics(Fixed(), [GPU, "nic.example.com"])) as port:
        found = samples(port)
        assert {
            values: value
            for (name, values), value in found.items()
            if name == "dradriver_claims_failed_total"
        } == {
            frozenset((driver, call)): 0
            for driver in (GPU, "nic.example.com")
            for call in ("prepare", "unprepare")
        }
        assert found[key("dradriver_call_seconds_count", GPU, "unprepare")] == 0
        assert not [name for name, _ in found if name.endswith("_created")]


def test_whether_the_api_server_is_reachable_is_shown_where_there_is_one() -> None:
    facts = Fixed()
    with served(Metrics(facts)) as port:
        assert key("dradriver_api_reachable") not in samples(port)
        facts.is_reachable = False
        assert samples(port)[key("dradriver_api_reachable")] == 0
        facts.is_reachable = True
        assert samples(port)[key("dradriver_api_reachable")] == 1


def test_gauges_show_the_moment_of_the_scrape() -> None:
    facts = Fixed()
    with served(Metrics(facts)) as port:
        found = samples(port)
        assert found[key("dradriver_active")] == 1
        assert found[key("dradriver_devices", GPU, "Unhealthy")] == 1
        assert found[key("dradriver_devices_published", GPU, "node-a/gpu")] == 3
        assert found[key("dradriver_devices_unpublished", GPU, "node-a/gpu")] == 1
        assert found[key("dradriver_publishing_reduced", GPU, "node-a/gpu")] == 2
        assert found[key("dradriver_publishing_failing", GPU, "node-a/gpu")] == 1
        assert found[key("dradriver_publishing_failing", GPU, "node-a/npu")] == 0
        assert found[key("dradriver_claims_prepared", GPU)] == 2
        assert found[key("process_resident_memory_bytes")] > 0
        facts.is_active, facts.pools = False, ()
        found = samples(port)
        assert found[key("dradriver_active")] == 0
        assert key("dradriver_devices_published", GPU, "node-a/gpu") not in found


def test_all_addresses_are_served_where_no_host_is_named() -> None:
    with served(Metrics(Fixed()), "::") as port:
        assert samples(port)[key("dradriver_active")] == 1


def test_the_port_is_free_again_after_the_stop() -> None:
    metrics = Metrics(Fixed())
    with served(metrics) as port:
        pass
    assert not is_open(port)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("127.0.0.1", "127.0.0.1:PORT: Address already in use"),
        ("192.0.2.1", "192.0.2.1:PORT: Cannot assign requested address"),
        ("no.such.host.invalid", "no.such.host.invalid:PORT: "),
    ],
)
def test_an_address_that_cannot_be_had_is_named(host: str, why: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=why.replace("PORT", str(port))) as caught:
            Metrics(Fixed()).serving(host, port)(threading.Event())
        assert str(caught.value).startswith("metrics.address: ")
