"""The daemon: every room put together, started and stopped in the right order."""

import logging
import threading
import time
from pathlib import Path

from dradriver.claims import DirectoryClaims
from dradriver.config import Settings, load_backends
from dradriver.daemon.active import ActiveLock, Gate
from dradriver.daemon.health import device_states
from dradriver.daemon.supervisor import Supervisor
from dradriver.daemon.watch import PoolWatch
from dradriver.engine import CDIFiles, Engine, Journal, JournalError, Pool, Pools, open_journal
from dradriver.host import Host
from dradriver.kubelet import HealthBoard, Plugin, SocketPaths, remove_dead
from dradriver.publish import FilePublisher
from dradriver_cdi import Store

log = logging.getLogger(__name__)

STOP_SECONDS = 4.0
"""From the signal to the end; running calls get most of it."""

VERIFY_SECONDS = 1.0
"""How often the published slices are compared with what should be there."""

FIRST_PROBE_SECONDS = 5.0
"""How long recovery waits for hardware that is slow to answer before it goes on without."""


class Daemon:
    """One instance of dradriver on one node."""

    def __init__(self, settings: Settings) -> None:
        """Load the backends; nothing is started. Raises SettingsError."""
        self.settings = settings
        self.pools = Pools(settings.node, load_backends(settings))
        self.gate = Gate()
        self.health = HealthBoard()
        self._supervisor = Supervisor()
        self._lock = ActiveLock(settings.lock)
        self._journal: Journal | None = None
        self._watches = [PoolWatch(pool, settings.rescan_seconds, self._seen) for pool in self.pools.all]
        self._plugins: list[Plugin] = []
        self._publisher = FilePublisher(settings.slices)
        self._unpublished = {pool.name for pool in self.pools.all}
        self._unpublished_changed = threading.Event()
        self._remarks: dict[str, tuple[str, ...]] = {}

    def start(self) -> None:
        """Serve the sockets and begin to probe. Raises OSError or ValueError where a socket cannot be made."""
        paths = [
            SocketPaths.of(driver, self.settings.kubelet_root, self.settings.instance)
            for driver in self.pools.drivers
        ]
        for watch, pool in zip(self._watches, self.pools.all, strict=True):
            self._supervisor.start(f"probe-{pool.backend.kind}", watch.probes)
            self._supervisor.start(f"events-{pool.backend.kind}", watch.events)
        for path in paths:
            plugin = Plugin(path.driver, path, self.gate, self.health)
            plugin.start()
            self._plugins.append(plugin)
            self._supervisor.start(f"sockets-{path.driver}", plugin.run)
            log.info("%s is served at %s", path.driver, path.service)
        self._supervisor.start("becoming active", self._activate)

    def stop(self) -> list[str]:
        """Stop within STOP_SECONDS; return the names of loops that did not end."""
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
        self._unpublished_changed.set()
        for thread in stopping:
            thread.join(max(0.0, deadline - 0.5 - time.monotonic()))
        left = self._supervisor.end(max(0.1, deadline - 0.4 - time.monotonic()))
        if self.gate.engine:
            self.gate.engine.close()
        if self._journal:
            self._journal.close()
        for pool in self.pools.all:
            pool.backend.close()
        self._lock.release()
        return left

    def _activate(self, stop: threading.Event) -> None:
        """Become the active instance: wait for the lock, recover, let calls through, publish."""
        try:
            if not self._lock.acquire(stop):
                return
            engine = self._recovered()
        except Exception as error:
            self.gate.explain(str(error) or type(error).__name__)
            self._lock.release()
            raise
        self.gate.open(engine)
        log.info("active on node %s", self.settings.node)
        for plugin in self._plugins:
            remove_dead(plugin.paths)
        self._supervisor.start("settle", engine.run)
        self._supervisor.start("publish", self._publish)
        for pool in self.pools.all:
            self._changed(pool)

    def _recovered(self) -> Engine:
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
        boot = Host(self.settings.host_root).boot_id() or "unknown"
        engine = Engine(
            self.pools,
            DirectoryClaims(self.settings.claims),
            self._journal,
            CDIFiles(Store(self.settings.cdi)),
            boot,
            changed=self._changed,
        )
        engine.recover()
        return engine

    def _seen(self, pool: Pool, changed: bool) -> None:
        """Pass on what a probe found: to the kubelet's health streams at once, to the slices soon.

        The health is looked at after each probe: a device that is gone is listed until its last claim is.
        """
        mine = self.pools.of_driver(pool.driver)
        in_use = self.gate.engine.devices_in_use(pool.driver) if self.gate.engine else frozenset()
        before = self.health.snapshot(pool.driver).states
        self.health.update(pool.driver, device_states(mine, in_use, before))
        if changed:
            self._unpublished.add(pool.name)
            self._unpublished_changed.set()

    def _changed(self, pool: Pool) -> None:
        self._seen(pool, changed=True)

    def _publish(self, stop: threading.Event) -> None:
        """Keep the slices as they should be: write what changed, restore what others deleted or edited."""
        stale = self._publisher.withdraw_others((pool.driver, pool.name) for pool in self.pools.all)
        if stale.removed:
            log.info("slices of pools that are no longer configured: removed: %d", len(stale.removed))
        while not stop.is_set():
            self._unpublished_changed.clear()
            for pool in self.pools.all:
                if pool.name in self._unpublished and pool.snapshot.probed:
                    self._publish_pool(pool)
            restored = self._publisher.verify()
            if restored.written or restored.removed:
                log.warning(
                    "slices were changed by others: %d restored, %d removed",
                    len(restored.written),
                    len(restored.removed),
                )
            self._unpublished_changed.wait(VERIFY_SECONDS)

    def _publish_pool(self, pool: Pool) -> None:
        self._unpublished.discard(pool.name)
        content = pool.snapshot.content
        try:
            result = self._publisher.publish(pool.driver, self.settings.node, pool.name, content)
        except OSError:
            self._unpublished.add(pool.name)
            raise
        remarks = (*map(str, result.left_out), *result.warnings)
        if remarks != self._remarks.get(pool.name, ()):
            self._remarks[pool.name] = remarks
            for text in remarks:
                log.warning("pool %s: %s", pool.name, text)
        if result.written or result.removed:
            log.info(
                "pool %s: devices offered: %d, slices written: %d, removed: %d",
                pool.name,
                len(content.devices) - len(result.left_out),
                len(result.written),
                len(result.removed),
            )


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
