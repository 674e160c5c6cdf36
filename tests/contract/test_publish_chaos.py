"""Slices at an API server where everything happens at once: in the end they are right, and nothing is left over."""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from dradriver.model import Device, Taint, TaintEffect
from dradriver.sim.apiserver import ApiServer
from publishing import NODE, POOL, Daemon, client_of, gpus, make_node, names, slices, until, writes

SICK = Taint("dradriver.io/unhealthy", TaintEffect.NO_EXECUTE)
OTHER = f"{NODE}/nic"

SEEDS = (3, 17)
ALL_SEEDS = range(40)


class Trouble:
    """What others, the hardware and the server do, at random."""

    def __init__(self, server: ApiServer, daemon: Daemon, seed: int) -> None:
        self.server = server
        self.daemon = daemon
        self.chance = random.Random(seed)
        self.things: dict[str, tuple[Device, ...]] = {POOL: (), OTHER: ()}

    def happen(self) -> None:
        self.chance.choice(
            [
                self.hardware,
                self.hardware,
                self.hardware,
                self.deleted,
                self.edited,
                self.doubled,
                self.wiped,
                self.watches,
                self.network,
                self.node,
                self.gate,
            ]
        )()

    def hardware(self) -> None:
        pool = self.chance.choice([POOL, OTHER])
        devices = list(gpus(self.chance.choice([0, 3, 100, 130])))
        for _ in range(min(3, len(devices))):
            index = self.chance.randrange(len(devices))
            devices[index] = Device(devices[index].name, taints=(SICK,))
        self.things[pool] = tuple(devices)
        self.daemon.want(*devices, pool=pool)

    def _some_slice(self) -> dict[str, Any] | None:
        objects = self.server.store.list("ResourceSlice")
        return self.chance.choice(objects) if objects else None

    def deleted(self) -> None:
        if one := self._some_slice():
            self._attempt(lambda: self.server.store.delete("ResourceSlice", one["metadata"]["name"]))

    def edited(self) -> None:
        if one := self._some_slice():
            match self.chance.randrange(4):
                case 0:
                    one["spec"].pop("devices", None)
                case 1:
                    one["spec"]["pool"]["generation"] += self.chance.choice([-1, 1, 5])
                case 2:
                    one["metadata"].pop("ownerReferences", None)
                case _:
                    one["metadata"]["annotations"] = {"note": str(self.chance.random())}
            self._attempt(lambda: self.server.store.replace(one))

    def doubled(self) -> None:
        if one := self._some_slice():
            name = f"{one['metadata']['name'][:-5]}{self.chance.randrange(10**5):05}"
            one["metadata"] = {"name": name, "labels": one["metadata"].get("labels", {})}
            self._attempt(lambda: self.server.store.create(one))

    def wiped(self) -> None:
        self.server.faults.wipe_slices(NODE)

    def watches(self) -> None:
        faults = self.server.faults
        orders: list[Callable[[], object]] = [
            faults.watches.close,
            faults.watches.truncate,
            faults.expire_watches,
            partial(faults.expire_watches, status=True),
        ]
        self.chance.choice(orders)()

    def network(self) -> None:
        faults = self.server.faults
        orders: list[Callable[[], object]] = [
            faults.drop_connections,
            partial(faults.refuse, 0.2),
            partial(faults.drop, 2, after=True),
            partial(faults.truncate, 1, method="POST"),
            partial(faults.fail, 503, 2, retry_after=1),
        ]
        self.chance.choice(orders)()

    def node(self) -> None:
        self._attempt(lambda: self.server.store.delete("Node", NODE))
        make_node(self.server)

    def gate(self) -> None:
        self.server.upgrade(gates={"DRADeviceTaints": self.chance.random() < 0.5})

    @staticmethod
    def _attempt(action: Callable[[], object]) -> None:
        try:
            action()
        except (KeyError, ValueError):
            return  # the publisher was faster


def test_whatever_happens_the_slices_are_right_in_the_end(everything: bool) -> None:
    for seed in ALL_SEEDS if everything else SEEDS:
        _play(seed)


def _play(seed: int) -> None:
    with ApiServer() as server, client_of(server) as client, Daemon(client) as daemon:
        make_node(server)
        server.faults.seed(seed)
        server.faults.error_rate = 0.1
        trouble = Trouble(server, daemon, seed)
        daemon.want(pool=POOL)
        daemon.want(pool=OTHER)
        for _ in range(30):
            trouble.happen()
            time.sleep(trouble.chance.uniform(0, 0.1))
        server.faults.clear()
        server.upgrade(gates={})
        server.faults.expire_watches()
        uid = server.store.get("Node", NODE)["metadata"]["uid"]

        def right() -> bool:
            return daemon.settled and all(
                names(server, pool) == {device.name for device in devices}
                and {one["metadata"]["ownerReferences"][0]["uid"] for one in slices(server, pool)} == {uid}
                for pool, devices in trouble.things.items()
            )

        until(right, 40, f"seed {seed}")
        server.requests.clear()
        calls = daemon.calls
        until(lambda: daemon.calls >= calls + 3)
        assert right(), f"seed {seed}"
        assert writes(server) == 0, f"seed {seed}"
