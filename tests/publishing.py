"""A publisher at work against the stand-in API server, run as the daemon runs it."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dradriver.clock import SYSTEM, Clock
from dradriver.kube import Client, Connection
from dradriver.model import Device, PoolContent
from dradriver.publish import ApiPublisher, PublishResult
from dradriver.sim.apiserver import ApiServer
from slicereader import visible
from waiting import PATIENCE

DRIVER = "gpu.example.com"
NODE = "node-a"
POOL = f"{NODE}/gpu"

Body = dict[str, Any]


def gpus(count: int, **fields: Any) -> tuple[Device, ...]:
    return tuple(Device(f"gpu-{number:04}", **fields) for number in range(count))


def until(condition: Callable[[], object], seconds: float = PATIENCE, where: str = "") -> float:
    """Wait until the condition holds; return how many seconds that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"it did not come true {where}"
        time.sleep(0.005)
    return time.monotonic() - start


def make_node(server: ApiServer, name: str = NODE) -> str:
    """Create a Node object, and return its UID."""
    uid: str = server.store.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})[
        "metadata"
    ]["uid"]
    return uid


def slices(server: ApiServer, pool: str = POOL) -> list[Body]:
    """Return the stored slices of a pool, by name."""
    return [one for one in server.store.list("ResourceSlice") if one["spec"]["pool"]["name"] == pool]


def offered(server: ApiServer, pool: str = POOL) -> dict[str, Any] | None:
    """Return the devices that the scheduler sees in a pool; None while the pool is not complete."""
    return visible(one["spec"] for one in slices(server, pool))


def names(server: ApiServer, pool: str = POOL) -> set[str] | None:
    """Return the names of those devices."""
    seen = offered(server, pool)
    return None if seen is None else set(seen)


def writes(server: ApiServer) -> int:
    """Return how often slices were changed by requests."""
    return server.requests.writes()["ResourceSlice"]


@contextmanager
def client_of(server: ApiServer, *, clock: Clock = SYSTEM) -> Iterator[Client]:
    client = Client(Connection(server.url), qps=1000, burst=1000, clock=clock)
    try:
        yield client
    finally:
        client.close()


class Hurried(Clock):
    """A clock that can be made to run faster for a time."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()  # who reads it meanwhile sees it go on, not back
        self._passed = self._since = time.monotonic()

    def now(self) -> float:
        with self._guard:
            return self._passed + (time.monotonic() - self._since) * self._speed

    def run_at(self, speed: float) -> None:
        with self._guard:
            now = time.monotonic()
            self._passed += (now - self._since) * self._speed
            self._since, self._speed = now, speed


class Daemon:
    """Publishes what is wanted, restores what others change, and keeps what there is to say of it.

    results    by pool, of the last publish that had success
    errors     all that were raised, in their order
    calls      how often the loop went round
    """

    def __init__(
        self,
        client: Client,
        *,
        drivers: Sequence[str] = (DRIVER,),
        node: str = NODE,
        clock: Clock = SYSTEM,
        period: float = 0.25,
    ) -> None:
        self.publisher = ApiPublisher(client, node, drivers, changed=self.wake, clock=clock)
        self.results: dict[str, PublishResult] = {}
        self.errors: list[str] = []
        self.restored: list[PublishResult] = []
        self.calls = 0
        self._node = node
        self._clock = clock
        self._period = period
        self._guard = threading.Lock()  # of the two below, so that none is taken for published before it is
        self._wanted: dict[tuple[str, str], PoolContent] = {}
        self._due: set[tuple[str, str]] = set()
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=run, args=(self._stop,), name=name)
            for name, run in (*self.publisher.loops(), ("publish", self._run))
        ]

    def __enter__(self) -> "Daemon":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self.wake()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads)

    def want(
        self, *devices: Device, pool: str = POOL, driver: str = DRIVER, content: PoolContent | None = None
    ) -> None:
        with self._guard:
            self._wanted[driver, pool] = content or PoolContent(devices)
            self._due.add((driver, pool))
        self.wake()

    def wake(self) -> None:
        self._changed.set()

    @property
    def settled(self) -> bool:
        """Whether everything that is wanted was published."""
        return not self._due

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._changed.clear()
            self.calls += 1
            for key in list(self._due):
                self._publish(*key)
            try:
                restored = self.publisher.verify()
            except OSError as error:
                self.errors.append(str(error))
            else:
                self._due.update(restored.outdated)
                if restored.written or restored.removed:
                    self.restored.append(restored)
                if restored.outdated:
                    continue
            self._clock.wait(self._changed, self._period)

    def _publish(self, driver: str, pool: str) -> None:
        content = self._wanted[driver, pool]
        try:
            self.results[pool] = self.publisher.publish(driver, self._node, pool, content)
        except OSError as error:
            self.errors.append(str(error))
            return
        with self._guard:
            if self._wanted[driver, pool] is content:
                self._due.discard((driver, pool))
