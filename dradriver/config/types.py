"""The configuration file as types. docs/configuration.md describes every field."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from dradriver.backend import Strict

Seconds = Annotated[int, msgspec.Meta(ge=1, le=86400)]


class DriverConfig(Strict, frozen=True, kw_only=True):
    """One DRA driver name, and the backends that serve under it."""

    name: str
    backends: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class Standalone(Strict, frozen=True, kw_only=True):
    """Working without a cluster: claims are read from files, slices are kept as files."""

    claims: str = ""
    slices: str = ""


class Kubernetes(Strict, frozen=True, kw_only=True):
    """The API server: how to reach it, and what is written there."""

    kubeconfig: str = ""
    context: str = ""
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    qps: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 20.0
    burst: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 40
    claim_status: bool = True
    binding_conditions: bool = False
    withdraw_at_stop: bool = False


class Nri(Strict, frozen=True, kw_only=True):
    """The container runtime, which is asked by NRI for what a container must have from its start."""

    enabled: Literal["auto"] | bool = "auto"
    socket: str = "/var/run/nri/nri.sock"
    index: str = "50"


class Metrics(Strict, frozen=True, kw_only=True):
    """Prometheus metrics over HTTP."""

    address: str = ""


class Log(Strict, frozen=True, kw_only=True):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


DEFAULT_BACKENDS = ("cpu", "memory")


def default_drivers(kinds: Iterable[str]) -> tuple[DriverConfig, ...]:
    """Return a driver for each kind of hardware, under its usual name."""
    return tuple(DriverConfig(name=f"{kind}.dradriver.io", backends=(kind,)) for kind in kinds)


class Config(Strict, frozen=True, kw_only=True):
    """The configuration file."""

    node: str = ""
    host_root: str = "/"
    kubelet_root: str = "/var/lib/kubelet"
    state: str = ""
    cdi: str = "/var/run/cdi"
    drivers: Annotated[tuple[DriverConfig, ...], msgspec.Meta(min_length=1)] | None = None
    backends: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    fake: dict[str, Any] | None = None
    kubernetes: Kubernetes | None = None
    standalone: Standalone | None = None
    device_metadata: bool = True
    nri: Nri = Nri()
    rescan_seconds: Seconds = 30
    metrics: Metrics = Metrics()
    log: Log = Log()
