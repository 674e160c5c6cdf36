"""Keeping what is published of the pools as it should be, and what there is to say of it."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dradriver.daemon.complaint import Complaint
from dradriver.engine import Pool
from dradriver.model import PoolContent
from dradriver.publish import Publisher

log = logging.getLogger(__name__)

VERIFY_SECONDS = 1.0
"""How often the published slices are compared with what should be there, beside changes that are heard of."""

UNPUBLISHED = "not published yet"
UNBOUND = "binding conditions are not published: kubernetes.bindingConditions is not on"


@dataclass(frozen=True, slots=True)
class Published:
    """What is published of one pool, as of the last try.

    offered      devices in the slices
    left_out     devices and counter sets that are not, with the reasons
    reductions   what the API server cannot store, and what is published instead
    warnings     what else was dropped
    trouble      why the slices are not as they should be; empty where they are
    """

    driver: str
    pool: str
    offered: int = 0
    left_out: tuple[str, ...] = ()
    reductions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    trouble: str = ""


class Publishing:
    """The loop that publishes: writes what changed, restores what others deleted or edited."""

    def __init__(
        self,
        pools: Sequence[Pool],
        publisher: Publisher,
        node: str,
        told: Callable[[str, str], None] = lambda _reason, _message: None,
        *,
        binding: bool = False,
    ) -> None:
        """Keep the parts; nothing is published yet.

        told      called with a reason in CamelCase and a sentence for what an administrator should know, once for
                  each time that it begins
        binding   whether binding conditions are published: only where somebody will tell claims of them
        """
        self._pools = pools
        self._publisher = publisher
        self._node = node
        self._told = told
        self._binding = binding
        self._due = {pool.name for pool in pools}
        self._changed = threading.Event()
        self._state = {pool.name: Published(pool.driver, pool.name, trouble=UNPUBLISHED) for pool in pools}
        self._failing = {
            pool.name: Complaint(
                log,
                f"the slices of pool {pool.name} are not as they should be",
                f"the slices of pool {pool.name} are as they should be",
            )
            for pool in pools
        }
        self._withdrawing = Complaint(
            log,
            "slices of pools that are no longer configured cannot be looked for and removed",
            "no slices of pools that are no longer configured are left",
        )
        self._restoring = Complaint(
            log,
            "slices that others changed are not restored",
            "slices that others changed are restored again",
        )

    @property
    def state(self) -> tuple[Published, ...]:
        """What is published of each pool."""
        return tuple(self._state.values())

    @property
    def trouble(self) -> str:
        """Why slices that were published are not as they should be; empty where they are."""
        return self._restoring.text or self._withdrawing.text

    def seen(self, pool: Pool) -> None:
        """Publish a pool that changed, soon."""
        self._due.add(pool.name)
        self._changed.set()

    def wake(self) -> None:
        """Look at what is published, or at the stop, now."""
        self._changed.set()

    def run(self, stop: threading.Event) -> None:
        """Publish until `stop`."""
        withdrawn = False
        while not stop.is_set():
            self._changed.clear()
            if not withdrawn:
                withdrawn = self._withdraw_others(stop)
            for pool in self._pools:
                if pool.name in self._due and pool.snapshot.probed and not stop.is_set():
                    self._publish(pool, stop)
            if not stop.is_set():
                self._verify(stop)
            self._changed.wait(VERIFY_SECONDS)

    def withdraw(self) -> None:
        """Remove all slices of this node's pools; what cannot be removed is said."""
        for pool in self._pools:
            try:
                self._publisher.withdraw(pool.driver, self._node, pool.name)
            except OSError as error:
                log.warning("pool %s: its slices stay: %s", pool.name, error)

    # A request that the stop cuts off is no trouble to tell of.

    def _withdraw_others(self, stop: threading.Event) -> bool:
        """Remove slices of pools that an earlier configuration had; return whether that was done."""
        try:
            stale = self._publisher.withdraw_others((pool.driver, pool.name) for pool in self._pools)
        except OSError as error:
            if not stop.is_set():
                self._withdrawing.say(str(error))
            return False
        self._withdrawing.end()
        if stale.removed:
            log.info("slices of pools that are no longer configured: removed: %d", len(stale.removed))
        return True

    def _publish(self, pool: Pool, stop: threading.Event) -> None:
        self._due.discard(pool.name)
        before, content = self._state[pool.name], pool.snapshot.content
        remarks: tuple[str, ...] = ()
        if not self._binding and any(device.binding for device in content.devices):
            content, remarks = _unbound(content), (UNBOUND,)
        try:
            result = self._publisher.publish(pool.driver, self._node, pool.name, content)
        except OSError as error:
            self._due.add(pool.name)
            if not stop.is_set():
                self._failing[pool.name].say(str(error))
                self._state[pool.name] = replace(before, trouble=str(error))
            return
        after = Published(
            pool.driver,
            pool.name,
            result.offered,
            tuple(map(str, result.left_out)),
            result.reductions,
            (*result.warnings, *remarks),
        )
        self._state[pool.name] = after
        self._failing[pool.name].end()
        self._say(before, after)
        if result.written or result.removed:
            log.info(
                "pool %s: devices offered: %d, slices written: %d, removed: %d",
                pool.name,
                result.offered,
                len(result.written),
                len(result.removed),
            )

    def _say(self, before: Published, after: Published) -> None:
        for reason, had, has in (
            ("SlicesReduced", before.reductions, after.reductions),
            ("DeviceNotPublished", before.left_out, after.left_out),
            ("DevicePartlyPublished", before.warnings, after.warnings),
        ):
            for text in has:
                if text not in had:
                    log.warning("pool %s: %s", after.pool, text)
                    self._told(reason, f"pool {after.pool}: {text}")
        if before.reductions and not after.reductions:
            log.info("pool %s: published in full", after.pool)

    def _verify(self, stop: threading.Event) -> None:
        try:
            restored = self._publisher.verify()
        except OSError as error:
            if not stop.is_set():
                self._restoring.say(str(error))
            return
        self._restoring.end()
        for pool in self._pools:
            if (pool.driver, pool.name) in restored.outdated:
                self.seen(pool)
        if restored.written or restored.removed:
            log.warning(
                "slices were changed by others: %d restored, %d removed",
                len(restored.written),
                len(restored.removed),
            )


def _unbound(content: PoolContent) -> PoolContent:
    """Return the content without binding conditions."""
    return replace(content, devices=tuple(replace(device, binding=None) for device in content.devices))
