"""The pools of this node: for each backend its last inventory and what it offers of it."""

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dradriver.backend import Backend, BackendError, ClaimConfig, ContainerEdits
from dradriver.engine.lanes import HungError, Lane
from dradriver.model import (
    NUMA_NODE,
    Allocated,
    CounterSet,
    Device,
    Health,
    Peer,
    PoolContent,
    Taint,
    TaintEffect,
)
from dradriver.model.names import pool_name

log = logging.getLogger(__name__)

PROBE_SECONDS = 30.0

UNHEALTHY = Taint("dradriver.io/unhealthy", TaintEffect.NO_SCHEDULE)
"""Who must have such a device all the same tolerates it; pods that have it go on, and their status tells."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a backend saw last.

    base     what every container with a device of the pool needs
    probed   whether the hardware was ever read; all is empty before
    behind   what edits are made of beyond what is published
    error    why nothing newer was seen, empty where all is well
    begun    time.monotonic() at the start of the last attempt to look
    """

    inventory: Any = None
    content: PoolContent = field(default_factory=PoolContent)
    index: Mapping[str, Device] = field(default_factory=dict)
    counter_sets: Mapping[str, CounterSet] = field(default_factory=dict)
    base: ContainerEdits = field(default_factory=ContainerEdits)
    behind: object = None
    probed: bool = False
    error: str = ""
    begun: float = float("-inf")

    @property
    def shown(self) -> tuple[object, ...]:
        """What slices, health lists and CDI files are made of."""
        return self.content, self.error, self.probed, self.base, self.behind


class Pool:
    """One backend of one driver on this node."""

    def __init__(self, node: str, driver: str, backend: Backend[Any, Any]) -> None:
        self.driver = driver
        self.backend = backend
        self.name = pool_name(node, backend.kind)
        self.lane = Lane(backend.kind)
        self.snapshot = Snapshot()
        self._lock = threading.Lock()
        self._hung: HungError | None = None
        self._guard = threading.Lock()
        self._outdated = 0
        self._said = PoolContent()

    def refresh(self, deadline: float | None = None, since: float | None = None) -> bool:
        """Probe the hardware; return whether what others see of it changed (`Snapshot.shown`).

        A backend that cannot be read, hangs or fails keeps its last inventory; one that still hangs is not asked
        again.

        deadline   time.monotonic() seconds
        since      do nothing where a probe began after that time already
        """
        deadline = time.monotonic() + PROBE_SECONDS if deadline is None else deadline
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        try:
            if since is not None and self.snapshot.begun >= since:
                return False
            is_new = None
            while is_new is None:
                is_new = self._refreshed(deadline)
        finally:
            self._lock.release()
        return is_new

    def _refreshed(self, deadline: float) -> bool | None:
        """Take in what is seen now; None where that was outdated while it was looked at."""
        with self._guard:
            before, outdated = self.snapshot, self._outdated
        begun = time.monotonic()
        try:
            after = self._look(deadline)
        except Exception as error:
            level = logging.WARNING if isinstance(error, BackendError) else logging.ERROR
            text = str(error) or type(error).__name__
            if text != before.error:
                log.log(level, "pool %s: %s", self.name, text, exc_info=level == logging.ERROR)
            after = replace(before, error=text)
        with self._guard:
            if self._outdated != outdated:
                return None
            self.snapshot = replace(after, begun=begun)
        if after.probed:
            self._say(after.content)
        return after.shown != before.shown

    def _say(self, content: PoolContent) -> None:
        said, self._said = self._said, content
        if content.warnings != said.warnings:
            for warning in content.warnings:
                log.warning("pool %s: %s", self.name, warning)
        if content.notes != said.notes:
            for note in content.notes:
                log.debug("pool %s: %s", self.name, note)

    def outdate(self) -> None:
        """Have what was seen so far, or is being looked at, count no more: the backend knows now of what it misses.

        Until the next probe the pool is as one that was never read.
        """
        with self._guard:
            self._outdated += 1
            self.snapshot = Snapshot()

    def _look(self, deadline: float) -> Snapshot:
        if self._hung and not self._hung.future.done():
            raise HungError(str(self._hung), self._hung.future)
        self._hung = None
        try:
            return self.lane.call(self._probe, deadline, "probe")
        except HungError as error:
            self._hung = error
            raise

    def _probe(self) -> Snapshot:
        inventory = self.backend.probe()
        content = tainted(self.backend.devices(inventory))
        return Snapshot(
            inventory,
            content,
            {device.name: device for device in content.devices},
            {counters.name: counters for counters in content.counter_sets},
            self.backend.base_edits(inventory),
            self.backend.behind(inventory),
            probed=True,
        )


def tainted(content: PoolContent) -> PoolContent:
    """Return the content with a taint on each unhealthy device, which keeps new claims away from it."""
    return replace(
        content,
        devices=tuple(
            replace(device, taints=(*device.taints, UNHEALTHY))
            if device.health is Health.UNHEALTHY
            else device
            for device in content.devices
        ),
    )


class Pools:
    """All pools of this node."""

    def __init__(self, node: str, members: Iterable[tuple[str, Backend[Any, Any]]]) -> None:
        """Make a pool for each (driver name, backend). A backend kind stands there once."""
        self.node = node
        self.all = tuple(Pool(node, driver, backend) for driver, backend in members)
        self._by_name = {pool.name: pool for pool in self.all}
        self._by_kind = {pool.backend.kind: pool for pool in self.all}
        if len(self._by_kind) != len(self.all):
            raise ValueError("a backend stands under one driver only, and once")

    @functools.cached_property
    def config_types(self) -> Mapping[str, type[ClaimConfig]]:
        """Every type of claim configuration that a backend understands, by name."""
        return {kind.__name__: kind for pool in self.all for kind in pool.backend.config_types}

    @property
    def drivers(self) -> tuple[str, ...]:
        """The driver names, each once."""
        return tuple(dict.fromkeys(pool.driver for pool in self.all))

    def of_driver(self, driver: str) -> tuple[Pool, ...]:
        """Return the pools of a driver."""
        return tuple(pool for pool in self.all if pool.driver == driver)

    def named(self, name: str) -> Pool | None:
        """Return the pool of that name."""
        return self._by_name.get(name)

    def of_kind(self, kind: str) -> Pool | None:
        """Return the pool of the backend of that kind."""
        return self._by_kind.get(kind)

    def peer(self, allocated: Allocated) -> Peer:
        """Return what is known here of where an allocated device is."""
        pool = self._by_name.get(allocated.pool)
        device = pool.snapshot.index.get(allocated.device) if pool else None
        if pool is None or pool.driver != allocated.driver or device is None:
            return Peer(allocated)
        node = device.attributes.get(NUMA_NODE)
        nodes = node if isinstance(node, tuple) else (node,)
        return Peer(allocated, frozenset(n for n in nodes if isinstance(n, int)))


def refresh_all(pools: Iterable[Pool], changed: Callable[[Pool], None] = lambda _: None) -> None:
    """Probe several pools at once, so that a slow backend delays no other; call `changed` for each that changed."""

    def one(pool: Pool) -> None:
        if pool.refresh():
            changed(pool)

    threads = [threading.Thread(target=one, args=(pool,), daemon=True) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
