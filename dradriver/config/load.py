"""From the configuration file, flags and environment to settings that the daemon can start with."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dradriver.backend import ConfigError, decode
from dradriver.config.standin import StandIn, find_stand_in
from dradriver.config.types import (
    DEFAULT_BACKENDS,
    Config,
    Kubernetes,
    Log,
    Nri,
    Standalone,
    default_drivers,
)
from dradriver.documents import read_documents
from dradriver.model import shown
from dradriver.model.names import check_absolute, check_driver, check_subdomain

STATE_DIRECTORY = "plugins/dradriver.io"
MAX_FILE = 1 << 20
"""Bytes of a configuration file."""


class SettingsError(Exception):
    """The configuration is wrong: one line with file, field and what is allowed."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """How the container runtime is worked with.

    join     whether it is connected
    needed   whether what only it can do is refused while it cannot be asked; not so where no runtime is expected
    index    its place among the runtime's plugins, two digits
    """

    join: bool
    needed: bool
    socket: Path
    index: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration with every path absolute and every default filled in.

    instance     tells the daemons of one node apart while one replaces the other: the pod's UID, None outside a pod
    kubernetes   how to reach the API server; None where claims and slices are files
    runtime      how the container runtime is worked with
    metrics      host and port at which Prometheus metrics are served; None where they are not
    stand_in     the node in place of this host, whose root `host_root` then is
    """

    node: str
    instance: str | None
    host_root: Path
    kubelet_root: Path
    state: Path
    cdi: Path
    claims: Path
    slices: Path
    drivers: tuple[tuple[str, tuple[str, ...]], ...]
    options: Mapping[str, Mapping[str, Any]]
    rescan_seconds: int
    log: Log
    source: str
    runtime: Runtime
    kubernetes: Kubernetes | None = None
    device_metadata: bool = True
    metrics: tuple[str, int] | None = None
    stand_in: StandIn | None = None

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.state / "journal.db"

    @property
    def kubeconfig(self) -> Path | None:
        """The kubeconfig file; None where there is no API server, or the pod's service account is used."""
        return Path(self.kubernetes.kubeconfig) if self.kubernetes and self.kubernetes.kubeconfig else None

    @property
    def service_account(self) -> Path:
        """The directory of the pod's service account."""
        return Path((self.kubernetes or Kubernetes()).service_account)

    @property
    def context(self) -> str:
        """The context of the kubeconfig; empty for its current one."""
        return self.kubernetes.context if self.kubernetes else ""

    @property
    def lock(self) -> Path:
        """The lock that the active instance holds."""
        return self.state / "serialize.lock"


def load(
    path: Path | None,
    directory: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    kubeconfig: Path | None = None,
) -> Settings:
    """Return the settings. Raises SettingsError.

    path         the configuration file; None for all defaults
    directory    keeps everything, sockets included, below one directory instead of the system's places
    environment  NODE_NAME, POD_UID
    kubeconfig   works with the API server that this file names, whatever the configuration says of it
    """
    source = str(path) if path else "configuration"
    try:
        config = decode(Config, _read(path) if path else {}, "$")
        if kubeconfig:
            named = replace(config.kubernetes or Kubernetes(), kubeconfig=str(kubeconfig))
            config = replace(config, kubernetes=named)
        return _settings(config, directory, environment, source)
    except ConfigError as error:
        where = error.path.removeprefix("$").lstrip(".")
        raise SettingsError(
            f"{source}: {where}: {error.reason}" if where else f"{source}: {error.reason}"
        ) from None


def _read(path: Path) -> Any:
    try:
        documents = read_documents(path, MAX_FILE)
    except OSError as error:
        raise ConfigError("$", f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError("$", str(error)) from None
    if len(documents) > 1:
        raise ConfigError("$", f"one YAML document is expected, found {len(documents)}")
    return documents[0] if documents else {}


def _settings(
    config: Config, directory: Path | None, environment: Mapping[str, str], source: str
) -> Settings:
    node = _node(config, environment)
    kubelet_root = directory / "kubelet" if directory else _absolute(config.kubelet_root, "kubeletRoot")
    state = _absolute(config.state, "state") if config.state else kubelet_root / STATE_DIRECTORY
    if directory:
        state = directory / "state"
    stand_in = _stand_in(config, state)
    if config.kubernetes and config.standalone:
        raise ConfigError(
            "standalone", "there is an API server, which `kubernetes` names: leave one of them out"
        )
    standalone = config.standalone or Standalone()
    return Settings(
        node=node,
        instance=environment.get("POD_UID") or None,
        host_root=stand_in.host_root if stand_in else _absolute(config.host_root, "hostRoot"),
        kubelet_root=kubelet_root,
        state=state,
        cdi=directory / "cdi" if directory else _absolute(config.cdi, "cdi"),
        claims=_standalone(standalone, "claims", directory or state),
        slices=_standalone(standalone, "slices", directory or state),
        drivers=_drivers(config, stand_in),
        options=config.backends,
        rescan_seconds=config.rescan_seconds,
        log=config.log,
        source=source,
        runtime=_runtime(config.nri, directory, own=directory is not None or stand_in is not None),
        kubernetes=_kubernetes(config.kubernetes),
        device_metadata=config.device_metadata,
        metrics=_address(config.metrics.address, "metrics.address"),
        stand_in=stand_in,
    )


def _stand_in(config: Config, state: Path) -> StandIn | None:
    if config.fake is None:
        return None
    if config.host_root != "/":
        raise ConfigError("hostRoot", "a fake node has a root of its own: leave this out")
    return find_stand_in("fake", config.fake, state)


def _node(config: Config, environment: Mapping[str, str]) -> str:
    for path, value in (("node", config.node), ("NODE_NAME", environment.get("NODE_NAME", ""))):
        if value:
            return _checked(path, value)
    return _checked("host name", socket.gethostname().lower())


def _checked(path: str, node: str) -> str:
    try:
        return check_subdomain(node, "node name")
    except ValueError as error:
        raise ConfigError(path, str(error)) from None


def _absolute(value: str, path: str) -> Path:
    try:
        return Path(check_absolute(value))
    except ValueError as error:
        raise ConfigError(path, str(error)) from None


def _kubernetes(kubernetes: Kubernetes | None) -> Kubernetes | None:
    if kubernetes and kubernetes.kubeconfig:
        _absolute(kubernetes.kubeconfig, "kubernetes.kubeconfig")
    if kubernetes:
        _absolute(kubernetes.service_account, "kubernetes.serviceAccount")
    if kubernetes and kubernetes.context and not kubernetes.kubeconfig:
        raise ConfigError("kubernetes.context", "a context is one of a kubeconfig: name the file too")
    return kubernetes


def _runtime(nri: Nri, directory: Path | None, *, own: bool) -> Runtime:
    """`own` says that the daemon is by itself: no container of a runtime uses what it prepares."""
    socket = _absolute(nri.socket, "nri.socket")
    if len(nri.index) != 2 or not (nri.index.isascii() and nri.index.isdigit()):
        raise ConfigError("nri.index", f"two digits are expected, as 50, found {shown(nri.index)}")
    return Runtime(
        join=not own if nri.enabled == "auto" else nri.enabled,
        needed=not own or nri.enabled is True,
        socket=directory / "nri.sock" if directory else socket,
        index=nri.index,
    )


def _standalone(standalone: Standalone, name: str, base: Path) -> Path:
    value = getattr(standalone, name)
    return _absolute(value, f"standalone.{name}") if value else base / name


def _drivers(config: Config, stand_in: StandIn | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    seen: dict[str, str] = {}
    own = stand_in.backends if stand_in else ()
    drivers = config.drivers or default_drivers((*own, *DEFAULT_BACKENDS))
    for n, driver in enumerate(drivers):
        path = f"drivers[{n}]"
        try:
            check_driver(driver.name)
        except ValueError as error:
            raise ConfigError(f"{path}.name", str(error)) from None
        if driver.name in {other.name for other in drivers[:n]}:
            raise ConfigError(f"{path}.name", f"{shown(driver.name)} stands twice")
        for backend in driver.backends:
            if backend in seen:
                raise ConfigError(f"{path}.backends", f"{shown(backend)} already serves {seen[backend]}")
            seen[backend] = driver.name
    return tuple((driver.name, driver.backends) for driver in drivers)


def _address(text: str, path: str) -> tuple[str, int] | None:
    """Return host and port of `host:port`, `[v6]:port`, or `:port` for all addresses."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not 0 < number < 65536 or (":" in host and not bracketed):
        raise ConfigError(path, f"host:port is expected, as 127.0.0.1:9155 or :9155, found {shown(text)}")
    return (host[1:-1] if bracketed else host) or "::", number
