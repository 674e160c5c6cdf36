"""The daemon: every room put together, started and stopped in the right order."""

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dradriver.config import Settings, load_backends
from dradriver.containers import AdmissionWithoutRuntime
from dradriver.daemon.active import Gate, acquire
from dradriver.daemon.complaint import Complaint
from dradriver.daemon.facts import Facts
from dradriver.daemon.health import device_states
from dradriver.daemon.publishing import Publishing
from dradriver.daemon.report import Report, Reporter
from dradriver.daemon.runtime import RuntimeSide, runtime_side
from dradriver.daemon.supervisor import Supervisor
from dradriver.daemon.surroundings import surroundings
from dradriver.daemon.watch import PoolWatch
from dradriver.engine import (
    CDIFiles,
    Engine,
    Journal,
    JournalError,
    MetadataFiles,
    Pool,
    Pools,
    Record,
    open_journal,
)
from dradriver.filelock import FileLock
from dradriver.host import Host
from dradriver.kube import unobserved
from dradriver.kubelet import HealthBoard, Plugin, SocketPaths, remove_dead
from dradriver_cdi import Store

if TYPE_CHECKING:
    from dradriver.daemon.metrics import Metrics

log = logging.getLogger(__name__)

STOP_SECONDS = 4.0
"""From the signal to the end, the deletion of slices left aside; running calls get most of it."""

WITHDRAW_SECONDS = 5.0
"""How long the stop waits, where the slices are to be deleted, for the API server."""

LOOP_SECONDS = 1.0
"""How long the loops get to end by themselves, before the connections to the API server are cut."""

GUARD_SECONDS = 1.0
"""How often the daemon sees after its own state, and tells of its publishing."""

FIRST_PROBE_SECONDS = 5.0
"""How long recovery waits for hardware that is slow to answer before it goes on without."""


class Daemon:
    """One instance of dradriver on one node."""

    def __init__(self, settings: Settings) -> None:
        """Load the backends; nothing is started. Raises SettingsError."""
        self.settings = settings
        self.pools = Pools(settings.node, load_backends(settings))
        self._lock = FileLock(settings.lock)
        self._metrics = self._made_metrics()
        self.gate = Gate(self._is_alone, self._report_if_gone, self._metrics.call if self._metrics else None)
        self.health = HealthBoard()
        self.ended = threading.Event()
        self.failed = ""
        self._supervisor = Supervisor()
        self._state_files: tuple[tuple[Path, int], ...] = ()
        self._journal: Journal | None = None
        self._runtime: RuntimeSide | None = None
        self._watches = [PoolWatch(pool, settings.rescan_seconds, self._seen) for pool in self.pools.all]
        self._plugins: list[Plugin] = []
        self._around = surroundings(
            settings,
            self.pools,
            self._wake_publishing,
            self._metrics.request if self._metrics else unobserved,
        )
        self.publishing = Publishing(
            self.pools.all,
            self._around.publisher,
            settings.node,
            self._around.told,
            binding=self._around.binds,
        )
        self._reporter = Reporter(settings.state)
        self._reporting = Complaint(
            log,
            "the report for `dradriver check` cannot be written",
            "the report for `dradriver check` is written",
            logging.WARNING,
        )
        self._in_use: dict[str, frozenset[tuple[str, str]]] = {}
        self._listing = threading.Lock()

    @property
    def reachable(self) -> bool | None:
        """Whether the API server answers and can be watched; None where there is none."""
        return self._around.reachable

    def start(self) -> None:
        """Serve the sockets and begin to probe. Raises OSError or ValueError where a socket cannot be made."""
        paths = [
            SocketPaths.of(driver, self.settings.kubelet_root, self.settings.instance)
            for driver in self.pools.drivers
        ]
        watched = [
            (pool.backend.kind, watch) for pool, watch in zip(self.pools.all, self._watches, strict=True)
        ]
        # Events are heard before the first probe: it sees all that came before them, and need not be repeated.
        for kind, watch in watched:
            self._supervisor.start(f"events-{kind}", watch.events)
        for path in paths:
            plugin = Plugin(path.driver, path, self.gate, self.health)
            plugin.start()
            self._plugins.append(plugin)
            self._supervisor.start(f"sockets-{path.driver}", plugin.run)
            log.info("%s is served at %s", path.driver, path.service)
        for kind, watch in watched:
            self._supervisor.start(f"probe-{kind}", watch.probes)
        self._supervisor.start("becoming active", self._activate)
        self._supervisor.start("state", self._guard_state)
        if self._metrics and self.settings.metrics:
            self._supervisor.start("metrics", self._metrics.serving(*self.settings.metrics))

    def stop(self) -> list[str]:
        """Stop within STOP_SECONDS; return the names of loops that did not end.

        Where the slices are to be deleted at the stop, that may take up to WITHDRAW_SECONDS more.
        """
        deadline = time.monotonic() + STOP_SECONDS
        self._supervisor.stop.set()
        self.gate.close()
        stopping = [
            threading.Thread(target=plugin.stop, args=(STOP_SECONDS - 1.5,), daemon=True)
            for plugin in self._plugins
        ]
        for thread in stopping:
            thread.start()
        for watch in self._watches:
            watch.wake()
        self.publishing.wake()
        for thread in stopping:
            thread.join(max(0.0, deadline - 0.5 - time.monotonic()))
        left = self._supervisor.end(max(0.1, min(LOOP_SECONDS, deadline - 0.8 - time.monotonic())))
        kubernetes = self.settings.kubernetes
        if self.gate.engine and kubernetes and kubernetes.withdraw_at_stop:
            withdrawing = threading.Thread(target=self.publishing.withdraw, daemon=True)
            began = time.monotonic()
            withdrawing.start()
            withdrawing.join(WITHDRAW_SECONDS)
            deadline += time.monotonic() - began
        # What waits for an API server that does not answer ends by this.
        self._around.close()
        if left:
            left = self._supervisor.end(max(0.4, deadline - 0.4 - time.monotonic()))
        if self.gate.engine:
            self.gate.engine.close()
        # Another process may hold the journal, and a vendor library may hang: neither holds the end up.
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(0.5)
        return left

    def _close(self) -> None:
        if self._runtime:
            self._runtime.close()
        if self._journal:
            self._journal.close()
        for pool in self.pools.all:
            pool.backend.close()
        self._lock.release()

    def _activate(self, stop: threading.Event) -> None:
        """Become the active instance: wait for the lock, recover, let calls through, publish."""
        try:
            if not acquire(self._lock, stop):
                return
            engine, journal, before = self._recovered()
        except Exception as error:
            self.gate.explain(str(error) or type(error).__name__)
            self._lock.release()
            raise
        self._state_files = tuple(
            (path, path.stat().st_ino) for path in self._journal_files() if path.exists()
        )
        self.gate.open(engine)
        for pool in self.pools.all:
            if pool.snapshot.shown != before[pool.name]:
                engine.refresher.request(pool)
        for driver in self.pools.drivers:
            self._report(driver)
        log.info("active on node %s", self.settings.node)
        self._supervisor.start("settle", engine.run)
        self._supervisor.start("refresh", engine.refresher.run)
        self._supervisor.start("publish", self.publishing.run)
        loops = [*self._around.loops(journal), *(self._runtime.loops() if self._runtime else ())]
        for name, run in loops:
            self._supervisor.start(name, run)
        self._supervisor.start("dead sockets", self._remove_dead)

    def _journal_files(self) -> tuple[Path, ...]:
        journal = self.settings.journal
        return journal, journal.with_name(f"{journal.name}-wal")

    def _is_alone(self) -> bool:
        """Whether the lock and the journal are still those that others find; cheap, for every call."""
        try:
            return self._lock.held() and all(
                path.stat(follow_symlinks=False).st_ino == inode for path, inode in self._state_files
            )
        except OSError:
            return False

    def _guard_state(self, stop: threading.Event) -> None:
        """End the daemon where its state is gone from under it: another instance cannot see that this one lives."""
        while not stop.wait(GUARD_SECONDS):
            if self.gate.engine and not self._is_alone():
                self.failed = f"the lock or the journal in {self.settings.state} was removed or replaced"
                self.ended.set()
                return
            if self.gate.engine:
                self._tell()

    def _tell(self) -> None:
        """Keep the report of what is published up to date."""
        troubles = (self.publishing.trouble, *self._around.troubles())
        report = Report(
            self.settings.node,
            self._around.server,
            self.publishing.state,
            tuple(dict.fromkeys(filter(None, troubles))),
            self._runtime.status if self._runtime else None,
        )
        try:
            self._reporter.write(report)
        except OSError as error:
            self._reporting.say(str(error))
        else:
            self._reporting.end()

    def _wake_publishing(self) -> None:
        self.publishing.wake()

    def _made_metrics(self) -> "Metrics | None":
        if self.settings.metrics is None:
            return None
        # Imported only where it is used: it costs every node memory.
        from dradriver.daemon.metrics import Metrics  # noqa: PLC0415

        return Metrics(Facts(self), self.pools.drivers)

    def _remove_dead(self, stop: threading.Event) -> None:
        """Remove the sockets of instances that died, at once and then now and again."""
        while True:
            for plugin in self._plugins:
                try:
                    remove_dead(plugin.paths)
                except OSError as error:
                    log.warning("%s: sockets of dead instances cannot be removed: %s", plugin.driver, error)
            if stop.wait(self.settings.rescan_seconds):
                return

    def _recovered(self) -> tuple[Engine, Journal, dict[str, object]]:
        """Return the engine with all claims settled, its journal, and what was seen of each pool before."""
        deadline = time.monotonic() + FIRST_PROBE_SECONDS
        for watch in self._watches:
            watch.probed.wait(max(0.0, deadline - time.monotonic()))
        if self._journal is None:
            self._journal, aside = open_journal(self.settings.journal)
            if aside:
                log.error(
                    "the journal was unreadable and is rebuilt from CDI files; the old one is %s", aside
                )
        _check_mapping(self._journal, self.pools)
        host = Host(self.settings.host_root)
        if self._runtime is None:
            self._runtime = runtime_side(
                self.settings.runtime, self.settings.journal, self.pools, host, self._around.claims
            )
        # An id that cannot be read says nothing of a reboot.
        boot = host.boot_id() or self._journal.fact("boot") or ""
        engine = Engine(
            self.pools,
            self._around.claims,
            self._journal,
            CDIFiles(
                Store(self.settings.cdi),
                MetadataFiles(self.settings.kubelet_root, enabled=self.settings.device_metadata),
            ),
            boot,
            changed=self._changed,
            prepared=self._prepared,
            admission=self._runtime.admission if self._runtime else AdmissionWithoutRuntime(),
        )
        before: dict[str, object] = {pool.name: pool.snapshot.shown for pool in self.pools.all}
        engine.recover()
        if self._runtime:
            self._runtime.attend(engine)
        return engine, self._journal, before

    def _prepared(self, record: Record, claim: object) -> None:
        """Pass on that a claim was prepared."""
        self._around.prepared(record, claim)
        if self._runtime:
            self._runtime.prepared(record, claim)

    def _seen(self, pool: Pool, changed: bool) -> None:
        """Pass on what a probe found: to the slices soon, to the kubelet's health streams at once."""
        if changed:
            self.publishing.seen(pool)
            if self.gate.engine:
                self.gate.engine.refresher.request(pool)
        # What a claim waits for may show in the inventory alone, and change nothing of the offer.
        self._around.seen()
        self._report(pool.driver)

    def _changed(self, pool: Pool) -> None:
        self._seen(pool, changed=True)

    def _report_if_gone(self, driver: str) -> None:
        """After an Unprepare: only a device that is no longer found may leave the health list by it."""
        found = {(pool.name, name) for pool in self.pools.of_driver(driver) for name in pool.snapshot.index}
        if not self.health.snapshot(driver).states.keys() <= found:
            self._report(driver)

    def _report(self, driver: str) -> None:
        """Bring the health list of a driver up to date; a device that is gone is listed until its last claim is."""
        with self._listing:
            if self.gate.engine:
                try:
                    self._in_use[driver] = self.gate.engine.devices_in_use(driver)
                except JournalError as error:
                    log.warning("%s: the devices in use are taken as before: %s", driver, error)
            before = self.health.snapshot(driver).states
            pools = self.pools.of_driver(driver)
            self.health.update(driver, device_states(pools, self._in_use.get(driver, frozenset()), before))


def _check_mapping(journal: Journal, pools: Pools) -> None:
    """Refuse a configuration under which claims that are prepared now could never be undone."""
    for record in journal.records():
        for device in record.devices:
            pool = pools.of_kind(device.backend)
            if pool is None or (pool.driver, pool.name) != (record.driver, device.allocated.pool):
                raise JournalError(
                    f"claim {record.ref} is prepared under driver {record.driver} in pool {device.allocated.pool}, "
                    "which the configuration no longer has: put it back, end the pods that use it, then change it"
                )


def make_directories(settings: Settings, directory: Path) -> None:
    """Make the directories of a daemon that keeps everything below `directory`. Raises OSError."""
    for path in (directory, settings.kubelet_root, settings.claims, settings.slices):
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
