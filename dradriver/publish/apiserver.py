"""The publisher with an API server: ResourceSlices of this node, written, watched, and kept as they should be."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from dradriver.clock import SYSTEM, Clock
from dradriver.kube import SLICES, Client, ListWatch
from dradriver.model import PoolContent, shown
from dradriver.publish.api import PublishResult
from dradriver.publish.errors import PublishError
from dradriver.publish.keeper import PoolKeeper
from dradriver.publish.learn import Learner
from dradriver.publish.link import Link, delete_slice, list_slices, selector
from dradriver.publish.owner import NodeOwner
from dradriver.publish.reconcile import MANAGED_BY, MANAGER
from dradriver.publish.retry import OUTAGE_SECONDS, Patience, Reachable, Retry
from dradriver.publish.stored import Reader, SliceCache, Stored
from dradriver.slices import Pool

RELIST_SECONDS = 600.0
"""How often the slices are listed in any case, which for those of one driver on one node costs little."""

PORTION = 5
PORTION_SECONDS = 0.25
"""How many slices that are not configured are removed at once, and in what time about: others may have put thousands
there, and what is configured is not to wait for their removal."""

Loop = tuple[str, Callable[[threading.Event], None]]
"""A name, and a function `run(stop)` that returns when `stop` is set."""


class _Driver:
    """One driver: its slices as they are stored, and the watch that tells of them."""

    def __init__(self, link: Link, watch: ListWatch) -> None:
        self.link = link
        self.watch = watch
        self.retry = Retry(link.clock, link.reachable)
        self.patience = Patience(link.clock)
        self.lists = 0
        self.swept: tuple[int, int] | None = None
        self.removed: list[str] = []


class _Portion:
    """What may be removed at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = PORTION
        self._until = clock.now() + PORTION_SECONDS

    def take(self) -> bool:
        """Whether there is one more to it; the first one is in any case."""
        self._left -= 1
        return self._left == PORTION - 1 or (self._left >= 0 and self._clock.now() < self._until)


class ApiPublisher:
    """Publishes to the API server that `client` talks to. See `Publisher`.

    Requests are made in `publish`, `verify` and the `withdraw` functions only, one at a time. The loops of `loops`
    watch what is stored, and call `changed` when something is to be done: without them slices are published, but what
    others do to them goes unnoticed. After a failure each pool waits, longer each time: a call meanwhile raises the
    last error and asks for nothing.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        drivers: Iterable[str],
        *,
        changed: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Keep the parts; nothing is asked yet.

        drivers   names of all drivers that will be published
        changed   called from the loops' threads: `verify` is due
        """
        self._client = client
        self._node = node
        self._clock = clock
        self._lock = threading.RLock()
        self._reachable = Reachable(successes=client.successes)
        self._learner = Learner(client, node, clock)
        self._learning = Retry(clock, self._reachable)
        self._owner = NodeOwner(client, node)
        self._drivers = {driver: self._driver(driver, changed) for driver in dict.fromkeys(drivers)}
        self._kept: dict[tuple[str, str], PoolKeeper] = {}
        self._configured: frozenset[tuple[str, str]] | None = None
        self._withdrawing = Retry(clock, self._reachable)
        self._leftover: deque[Stored] = deque()
        self._reader = Reader(node)
        self._outages = 0
        self._began = clock.now()

    def loops(self) -> tuple[Loop, ...]:
        """Return the loops to be run in threads of their own, from the start to the end."""
        return tuple((f"slices-{name}", driver.watch.run) for name, driver in self._drivers.items())

    @property
    def trouble(self) -> str:
        """Why it cannot be seen now what others do to the slices; empty while it can."""
        return next((one.watch.trouble for one in self._drivers.values() if one.watch.trouble), "")

    def publish(self, driver: str, node: str, pool: str, content: PoolContent) -> PublishResult:
        """Make the slices of a pool say `content`, and remember it; the names in the result are object names.

        Raises OSError; ValueError where a name is none, or not this publisher's node or one of its drivers.
        """
        named = self._checked(driver, node, pool)
        with self._lock:
            self._notice()
            keeper = self._kept.get((driver, pool))
            if keeper is None:
                keeper = self._kept[driver, pool] = PoolKeeper(named, self._drivers[driver].link)
            return keeper.publish(content)

    def verify(self) -> PublishResult:
        """Restore what others removed or edited, as far as the watch told of it.

        Each pool by itself; the first OSError is raised when all have been looked after.
        """
        written: list[str] = []
        removed: list[str] = []
        outdated: list[tuple[str, str]] = []
        failed: OSError | None = None
        with self._lock:
            self._notice()
            tasks: list[Callable[[], PublishResult]] = [self._learn_again]
            tasks += [keeper.restore for keeper in self._kept.values()]
            tasks += [partial(self._sweep, driver) for driver in self._drivers.values()]
            tasks.append(self._clear)
            for task in tasks:
                try:
                    result = task()
                except OSError as error:
                    failed = failed or error
                    continue
                written += result.written
                removed += result.removed
                outdated += result.outdated
        if failed:
            raise failed.with_traceback(None)
        return PublishResult(tuple(written), tuple(removed), outdated=tuple(outdated))

    def withdraw_others(self, keep: Iterable[tuple[str, str]]) -> PublishResult:
        """Remove slices of this node that an earlier configuration published, whatever their driver.

        Those of drivers that are not configured any more are known by their label. From now on `verify` removes
        slices of other pools, too; where there are many, most of them are left to it.
        """
        with self._lock:
            self._configured = frozenset(keep)
            self._withdrawing.check()
            try:
                self._leftover = deque(filter(self._is_stale, self._on_this_node()))
            except OSError as error:
                self._withdrawing.failed(error)
                raise
            return self._clear()

    def _clear(self) -> PublishResult:
        """Remove a portion of what an earlier configuration left."""
        if not self._leftover:
            return PublishResult()
        self._withdrawing.check()
        removed = []
        portion = _Portion(self._clock)
        try:
            while self._leftover and portion.take():
                stored = self._leftover[0]
                if self._is_stale(stored):
                    delete_slice(self._client, stored)
                    removed.append(stored.name)
                self._leftover.popleft()
        except OSError as error:
            self._withdrawing.failed(error)
            raise
        self._withdrawing.succeeded()
        return PublishResult(removed=tuple(removed))

    def withdraw(self, driver: str, node: str, pool: str) -> PublishResult:
        """Remove all slices of a pool, and forget it."""
        named = self._checked(driver, node, pool)
        with self._lock:
            keeper = self._kept.get((driver, pool)) or PoolKeeper(named, self._drivers[driver].link)
            result = keeper.withdraw()
            self._kept.pop((driver, pool), None)
            return result

    def _driver(self, name: str, changed: Callable[[], None]) -> _Driver:
        cache = SliceCache(changed, self._node, name)
        link = Link(
            self._client, name, self._node, cache, self._learner, self._owner, self._reachable, self._clock
        )
        query = {"fieldSelector": selector(self._node, name)}
        watch = ListWatch(
            self._client,
            SLICES,
            query,
            cache,
            clock=self._clock,
            name=f"slices of {name}",
            relist=RELIST_SECONDS,
        )
        return _Driver(link, watch)

    def _checked(self, driver: str, node: str, pool: str) -> Pool:
        named = Pool(driver, node, pool)
        if node != self._node:
            raise ValueError(f"node {shown(node)} is another than this publisher's: {shown(self._node)}")
        if driver not in self._drivers:
            raise ValueError(
                f"driver {shown(driver)} is none of this publisher's: {', '.join(map(shown, self._drivers))}"
            )
        return named

    def _notice(self) -> None:
        """Draw the conclusions where the server was away: it may be another since, and much may have happened there.

        A watch that had to begin anew tells of it, one that began late, or a request that is answered after a time
        without.
        """
        smooth = not self._reachable.failures and self._clock.now() - self._began < OUTAGE_SECONDS
        outages = self._reachable.outages
        away = outages != self._outages
        for driver in self._drivers.values():
            cache = driver.link.cache
            if cache.lists != driver.lists:
                self._reachable.recoveries += 1
                away = away or driver.lists > 0 or not smooth
                driver.lists = cache.lists
            elif outages != self._outages:
                cache.doubt()
        self._outages = outages
        if away:
            self._learner.doubt()
            self._owner.renew()

    def _learn_again(self) -> PublishResult:
        if self._kept and self._learner.is_due:
            self._learning.check()
            driver = next(iter(self._kept))[0]
            try:
                self._learner.get(driver)
            except OSError as error:
                self._learning.failed(error)
                raise
            self._learning.succeeded()
        return PublishResult()

    def _sweep(self, driver: _Driver) -> PublishResult:
        """Remove a portion of the slices that appeared under a pool of ours that is not configured.

        They are told of when the last one is gone.
        """
        cache = driver.link.cache
        if self._configured is None or driver.swept == cache.state:
            return PublishResult()
        driver.retry.check()
        if driver.patience.exhausted:
            raise PublishError(
                f"driver {driver.link.driver}: others publish in pools that are not configured, again and again: "
                "their slices are removed less often"
            )
        state = cache.state
        portion = _Portion(self._clock)
        try:
            for stored in filter(self._is_stale, cache.slices()):
                if not portion.take():
                    driver.retry.succeeded()
                    return PublishResult()
                driver.link.delete(stored)
                driver.removed.append(stored.name)
        except OSError as error:
            driver.retry.failed(error)
            raise
        driver.retry.succeeded()
        removed, driver.removed = tuple(driver.removed), []
        if removed:
            driver.patience.restored()
        driver.swept = state
        return PublishResult(removed=removed)

    def _on_this_node(self) -> list[Stored]:
        return self._reader.all(list_slices(self._client, f"spec.nodeName={self._node}"))

    def _is_stale(self, stored: Stored) -> bool:
        """Whether a slice is ours, of a pool that is neither configured nor published."""
        pool = stored.driver, stored.pool
        if self._configured is None or pool in self._configured or pool in self._kept:
            return False
        labels = stored.body["metadata"].get("labels") or {}
        return stored.driver in self._drivers or labels.get(MANAGED_BY) == MANAGER
