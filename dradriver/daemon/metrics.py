"""Prometheus metrics, served over HTTP where the configuration names an address."""

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from dradriver.daemon.metricserver import MetricServer
from dradriver.daemon.publishing import Published

log = logging.getLogger(__name__)

_CALLS = ("prepare", "unprepare")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Facts(Protocol):
    """What the gauges show, asked for at each scrape. Cheap, and safe from any thread."""

    def published(self) -> tuple[Published, ...]:
        """Return what is published of each pool."""

    def health(self) -> Iterable[tuple[str, str, int]]:
        """Yield (driver, health, number of devices)."""

    def claims(self) -> Iterable[tuple[str, int]]:
        """Yield (driver, number of prepared claims)."""

    def active(self) -> bool:
        """Return whether this instance is the active one."""

    def reachable(self) -> bool | None:
        """Return whether the API server answers and can be watched; None where there is none, or it is not tried."""


class Metrics:
    """The metrics of one daemon."""

    def __init__(self, facts: Facts, drivers: Iterable[str] = ()) -> None:
        """Make the metrics; those of calls are there, with zeros, for each of the drivers from the beginning."""
        # A series with a start time beside each counter and histogram: twice the series, and nobody asks for them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._calls = Histogram(
            "dradriver_call_seconds",
            "Time that calls of the kubelet took.",
            ("driver", "call"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._failed = Counter(
            "dradriver_claims_failed",
            "Claims of the kubelet's calls that were answered with an error.",
            ("driver", "call"),
            registry=self.registry,
        )
        self._requests = Histogram(
            "dradriver_api_request_seconds",
            "Time that requests to the API server took; code 0 where there was no answer.",
            ("verb", "code"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        for driver in drivers:
            for call in _CALLS:
                # A series that begins with the first failure has no rise that an alert could see.
                self._calls.labels(driver, call)
                self._failed.labels(driver, call)
        ProcessCollector(registry=self.registry)
        self.registry.register(_Gauges(facts))

    def call(self, driver: str, call: str, seconds: float, failed: int) -> None:
        """Count one call of the kubelet, with how many of its claims failed."""
        self._calls.labels(driver, call).observe(seconds)
        if failed:
            self._failed.labels(driver, call).inc(failed)

    def request(self, verb: str, code: int, seconds: float) -> None:
        """Count one request to the API server."""
        self._requests.labels(verb, str(code)).observe(seconds)

    def serving(self, host: str, port: int) -> Callable[[threading.Event], None]:
        """Return the loop that serves `/metrics`; it raises OSError where the address cannot be had."""

        def run(stop: threading.Event) -> None:
            server = self._start(host, port)
            thread = threading.Thread(target=server.serve, daemon=True)
            thread.start()
            log.info("metrics are served at http://%s/metrics", _at(host, port))
            try:
                stop.wait()
            finally:
                threading.Thread(target=server.shutdown, daemon=True).start()
                thread.join(1.0)
                server.server_close()

        return run

    def _start(self, host: str, port: int) -> MetricServer:
        try:
            return MetricServer(host, port, self.registry)
        except OSError as error:
            if host == "::" and error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                # A kernel without IPv6 has one kind of address only.
                return self._start("0.0.0.0", port)  # noqa: S104
            raise OSError(f"metrics.address: {_at(host, port)}: {error.strerror or error}") from error


class _Gauges:
    """What stands for itself at the moment of the scrape."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        pools = self._facts.published()
        yield _gauge("active", "Whether this instance is the active one.", [], [([], self._facts.active())])
        reachable = self._facts.reachable()
        if reachable is not None:
            yield _gauge(
                "api_reachable",
                "Whether the API server answers and can be watched.",
                [],
                [([], reachable)],
            )
        yield _gauge(
            "devices",
            "Devices by health.",
            ["driver", "health"],
            [([driver, health], number) for driver, health, number in self._facts.health()],
        )
        yield _gauge(
            "devices_published",
            "Devices in the slices.",
            ["driver", "pool"],
            [([one.driver, one.pool], one.offered) for one in pools],
        )
        yield _gauge(
            "devices_unpublished",
            "Devices and counter sets that are not in the slices.",
            ["driver", "pool"],
            [([one.driver, one.pool], len(one.left_out)) for one in pools],
        )
        yield _gauge(
            "publishing_reduced",
            "Things that the API server cannot store, so that less is published.",
            ["driver", "pool"],
            [([one.driver, one.pool], len(one.reductions)) for one in pools],
        )
        yield _gauge(
            "publishing_failing",
            "Whether the slices are not as they should be.",
            ["driver", "pool"],
            [([one.driver, one.pool], bool(one.trouble)) for one in pools],
        )
        yield _gauge(
            "claims_prepared",
            "Claims that are prepared.",
            ["driver"],
            [([driver], number) for driver, number in self._facts.claims()],
        )


def _at(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _gauge(
    name: str, text: str, labels: list[str], samples: Iterable[tuple[list[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"dradriver_{name}", text, labels=labels)
    for values, value in samples:
        family.add_metric(values, float(value))
    return family
