"""The whole loop on one machine: a stand-in API server, a daemon in a process of its own, and the small kubelet."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from dradriver.config import SettingsError, load
from dradriver.kube import Client, from_kubeconfig
from dradriver.kube.paths import SLICES
from dradriver.model.names import pool_name
from dradriver.sim.apiserver import ApiServer
from dradriver.sim.apiserver.rules.gates import DEVICE_STATUS, Gates
from dradriver.sim.kubelet import Kubelet
from dradriver.sim.pods import PodRunner, ensure_node
from dradriver.sim.watcher import EventKind, RegistrationWatcher

READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
_LOG_LINES: Final = 20
_EXIT_CONFIGURATION: Final = 2
"""With which the daemon ends where its configuration is wrong."""

NODE: Final = "node-a"
"""The node's name, unless the configuration has another."""


class SimulationError(Exception):
    """A part of the simulation does not do what it should."""


class SimulatedCluster:
    """An API server without a cluster, and a node of it. A context manager, which starts and ends all.

    Everything is kept below `directory`: the kubeconfig, the daemon's log, state, sockets and CDI files.
    """

    def __init__(
        self,
        directory: Path,
        config: Path,
        version: str = "1.36",
        gates: Mapping[str, bool] = MappingProxyType({}),
        port: int = 0,
    ) -> None:
        """Keep what is to be started. Raises SettingsError, ValueError for a version or a gate that is not known.

        config   the daemon's configuration
        version  of Kubernetes, as `1.36`; `gates` are turned on and off beyond its defaults
        port     of the API server; 0 takes a free one
        """
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.log = directory / "daemon.log"
        self.settings = load(config, directory, {"NODE_NAME": NODE})
        self.node = self.settings.node
        self.server = ApiServer(version=version, gates=gates, port=port)
        self.keeps_device_status = DEVICE_STATUS in Gates.of(version, gates)
        self.kubelet = Kubelet(self.settings.kubelet_root)
        self.watcher = RegistrationWatcher(self.settings.kubelet_root)
        self._config = config
        self._stack = ExitStack()
        self._port = port
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start all; the daemon may not be ready yet. Raises SimulationError and OSError."""
        try:
            self._start_server()
            self.server.write_kubeconfig(self.kubeconfig)
            self.client = Client(
                from_kubeconfig(self.kubeconfig), user_agent="dradriver-sim", qps=1000, burst=1000
            )
            self._stack.callback(self.client.close)
            ensure_node(self.client, self.node)
            self.pods = PodRunner(self.client, self.kubelet)
            self._stack.enter_context(self.watcher)
            self._stack.enter_context(self.kubelet)
            self._start_daemon()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start_server(self) -> None:
        try:
            self._stack.enter_context(self.server)
        except OSError as error:
            raise SimulationError(f"port {self._port} cannot be had: {error.strerror}") from None

    def _start_daemon(self) -> None:
        command = [sys.executable, "-m", "dradriver.daemon"]
        command += ["--config", str(self._config), "--dir", str(self.directory)]
        command += ["--kubeconfig", str(self.kubeconfig)]
        with self.log.open("wb") as log:
            self._daemon = subprocess.Popen(  # noqa: S603 - this very program
                command,
                env={**os.environ, "NODE_NAME": self.node},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the one who waits for this program; the daemon is ended by it, in order.
                start_new_session=True,
            )
        self._stack.callback(self.stop_daemon)

    def alive(self) -> bool:
        """Return whether the daemon still runs."""
        return self._daemon is not None and self._daemon.poll() is None

    def stop_daemon(self) -> int:
        """End the daemon as a node does; return its exit code, negative where it had to be killed."""
        if self._daemon is None:
            return 0
        if self._daemon.poll() is None:
            self._daemon.send_signal(signal.SIGTERM)
        try:
            return self._daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            return self._daemon.wait()

    def wait_until_ready(self) -> None:
        """Wait until all drivers are registered and all pools published. Raises SimulationError."""
        self.wait(self._missing)

    def wait(self, missing: Callable[[], str], seconds: float = READY_SECONDS) -> None:
        """Wait until `missing` names nothing any more.

        Raises SimulationError with what it names, SettingsError where the daemon says that its configuration is wrong.
        """
        deadline = time.monotonic() + seconds
        while text := missing():
            code = self._daemon.poll() if self._daemon else None
            if code == _EXIT_CONFIGURATION:
                raise SettingsError(self._log_lines()[-1].removeprefix("dradriver: "))
            if code is not None:
                raise SimulationError(f"the daemon ended with code {code}")
            if time.monotonic() >= deadline:
                raise SimulationError(f"after {seconds:.0f} s: {text}")
            time.sleep(0.05)

    def slices(self) -> list[dict[str, Any]]:
        """Return the slices of the node, in the order of their names."""
        found = self.client.get(SLICES, {"fieldSelector": f"spec.nodeName={self.node}"})["items"]
        return sorted(found, key=lambda one: one["metadata"]["name"])

    def _missing(self) -> str:
        registered = {
            event.plugin.name
            for event in self.watcher.events
            if event.kind is EventKind.REGISTERED and event.plugin
        }
        silent = [driver for driver, _ in self.settings.drivers if driver not in registered]
        if silent:
            return f"not registered with the kubelet: {', '.join(silent)}"
        pools = [one["spec"]["pool"] for one in self.slices()]
        for _, kinds in self.settings.drivers:
            for kind in kinds:
                name = pool_name(self.node, kind)
                mine = [pool for pool in pools if pool["name"] == name]
                if not mine or len(mine) != mine[0]["resourceSliceCount"]:
                    return f"pool {name} is not published"
        return ""

    def log_end(self) -> str:
        """Return the end of the daemon's log under a headline."""
        return "\n  ".join(["the end of the daemon's log:", *self._log_lines()[-_LOG_LINES:]])

    def _log_lines(self) -> list[str]:
        try:
            return self.log.read_text(errors="replace").splitlines() or ["nothing was logged"]
        except OSError as error:
            return [str(error)]
