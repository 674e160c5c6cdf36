"""Claims are told which binding conditions of their devices hold: what is written, and what is not."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from dradriver.backend import Backend, Binding, NoOptions, Plan, Request
from dradriver.clock import SYSTEM, Clock
from dradriver.daemon import binding
from dradriver.daemon.binding import BindingWatch
from dradriver.engine import Pool
from dradriver.host import Host
from dradriver.kube import Client, Connection
from dradriver.kube.errors import MAX_RETRY_AFTER_SECONDS
from dradriver.model import BindingConditions, ClaimRef, Device, Peer, PoolContent
from dradriver.sim.apiserver import ApiServer
from waiting import PATIENCE, eventually

DRIVER, POOL, NODE = "door.example.com", "node-a/door", "node-a"
OPEN, JAMMED = "example.com/open", "example.com/jammed"
GATE = "gate"
CONDITIONS = {"bindingConditions": [OPEN], "bindingFailureConditions": [JAMMED]}

Body = dict[str, Any]


class DoorBackend(Backend[Mapping[str, Binding], NoOptions]):
    """Doors: a pod may pass only one that is open."""

    kind = "door"

    def __init__(self) -> None:
        super().__init__(Host(), NoOptions())
        self.doors: dict[str, Binding] = {name: Binding() for name in ("front", "back")}
        self.doors[GATE] = Binding(met={OPEN: "the gate is always open"})

    def probe(self) -> Mapping[str, Binding]:
        return dict(self.doors)

    def devices(self, inventory: Mapping[str, Binding]) -> PoolContent:
        return PoolContent(
            tuple(Device(name, binding=BindingConditions((OPEN,), (JAMMED,))) for name in inventory)
        )

    def plan(
        self,
        request: Request,
        inventory: Mapping[str, Binding],
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        raise NotImplementedError

    def binding(self, device: Device, inventory: Mapping[str, Binding]) -> Binding:
        return inventory[device.name]


class House:
    """A pool of doors, claims for them, and what tells the claims."""

    def __init__(self, server: ApiServer, client: Client, clock: Clock = SYSTEM) -> None:
        self.server = server
        self.backend = DoorBackend()
        self.pool = Pool(NODE, DRIVER, self.backend)
        self.pool.refresh()
        self.unread = Pool("node-b", DRIVER, DoorBackend())
        self.watch = BindingWatch(client, [self.pool, self.unread], clock)

    def set(self, door: str, binding: Binding | None) -> None:
        """Let the hardware change, and be looked at."""
        if binding is None:
            del self.backend.doors[door]
        else:
            self.backend.doors[door] = binding
        self.pool.refresh()
        self.watch.seen()

    def open(self, door: str) -> None:
        self.set(door, Binding(met={OPEN: f"the {door} door is open"}))

    def result(self, door: str, **more: Any) -> Body:
        return {
            "request": f"r-{door}",
            "driver": DRIVER,
            "pool": POOL,
            "device": door,
            **CONDITIONS,
            **more,
        }

    def claim(self, name: str, *results: Body, devices: list[Body] | None = None) -> None:
        """Create an allocated claim; `devices` is what its status says of them already."""
        requests = dict.fromkeys(result["request"] for result in results)
        self.server.store.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "devices": {
                        "requests": [{"name": one, "exactly": {"deviceClassName": "any"}} for one in requests]
                    }
                },
                "status": {
                    "allocation": {"devices": {"results": list(results)}},
                    **({"devices": devices} if devices else {}),
                },
            }
        )

    def status(self, name: str) -> Body:
        return dict(self.server.store.get("ResourceClaim", name)["status"])

    def told(self, name: str) -> dict[str, list[str]]:
        """Return the types of the conditions of each device."""
        return {
            entry.get("shareID") or entry["device"]: [one["type"] for one in entry.get("conditions") or ()]
            for entry in self.status(name).get("devices") or ()
        }

    def writes(self) -> list[str]:
        """Return the names of the claims that were written or tried, as often as they were; not those of `settled`."""
        names = [request.path.split("/")[-2] for request in self.server.requests.matching("PATCH")]
        return [name for name in names if not name.startswith(GATE)]

    def settled(self) -> None:
        """Wait until what the claims say now has been looked at: what comes after all of them is told."""
        name = f"{GATE}-{uuid.uuid4()}"
        self.claim(name, self.result(GATE))
        eventually(is_told(self, name, {GATE: [OPEN]}))


@pytest.fixture
def house() -> Iterator[House]:
    with ApiServer() as server:
        client = Client(Connection(server.url), qps=1000, burst=1000)
        made = House(server, client)
        try:
            with running(*(run for _, run in made.watch.loops())):
                yield made
        finally:
            client.close()


@contextmanager
def running(*loops: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run loops in threads; they must end when they are told to."""
    stop = threading.Event()
    threads = [threading.Thread(target=loop, args=(stop,)) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)


@contextmanager
def unwatched(clock: Clock, claims: Sequence[str]) -> Iterator[House]:
    """Yield a house with an open front door, and claims for it that were listed; nothing runs yet."""
    with ApiServer() as server:
        client = Client(Connection(server.url), qps=1000, burst=1000)
        made = House(server, client, clock)
        try:
            for name in claims:
                made.claim(name, made.result("front"))
            made.watch.replaced([server.store.get("ResourceClaim", name) for name in claims])
            made.open("front")
            yield made
        finally:
            client.close()


def is_told(house: House, name: str, wanted: Mapping[str, list[str]]) -> Callable[[], bool]:
    return lambda: house.told(name) == wanted


def test_each_device_is_told_of_as_it_is_ready_and_what_was_said_stays_as_it_was(house: House) -> None:
    house.claim("both", house.result("front"), house.result("back"))
    house.settled()
    assert house.told("both") == {}
    house.open("front")
    eventually(is_told(house, "both", {"front": [OPEN]}))
    first = house.status("both")["devices"]
    time.sleep(1.1)  # times have seconds
    house.open("back")
    eventually(is_told(house, "both", {"front": [OPEN], "back": [OPEN]}))
    assert house.status("both")["devices"][:1] == first
    (condition,) = first[0]["conditions"]
    assert (condition["status"], condition["message"]) == ("True", "the front door is open")
    house.watch.seen()
    house.settled()
    assert house.writes() == ["both", "both"]


def test_a_failure_is_told_in_place_of_what_was_met(house: House) -> None:
    house.claim("both", house.result("front"), house.result("back"))
    house.open("front")
    eventually(is_told(house, "both", {"front": [OPEN]}))
    house.set("front", Binding(failed={JAMMED: "the front\ndoor is jammed"}))
    eventually(is_told(house, "both", {"front": [JAMMED]}))
    assert house.status("both")["devices"][0]["conditions"][0]["message"] == "the front door is jammed"
    house.open("front")
    house.open("back")
    house.settled()
    assert house.told("both") == {"front": [JAMMED]}


def test_a_device_that_is_gone_is_a_failure(house: House) -> None:
    house.set("front", None)
    house.claim("gone", house.result("front"))
    eventually(is_told(house, "gone", {"front": [JAMMED]}))
    (condition,) = house.status("gone")["devices"][0]["conditions"]
    assert condition["message"] == "the device is no longer on this node"


def test_nothing_is_told_of_hardware_that_was_never_read(house: House) -> None:
    house.claim("early", house.result(GATE, pool=house.unread.name))
    house.settled()
    assert house.writes() == []
    house.unread.refresh()
    house.watch.seen()
    eventually(is_told(house, "early", {GATE: [OPEN]}))


def test_shares_of_one_device_are_told_apart(house: House) -> None:
    shares = [str(uuid.uuid4()) for _ in range(2)]
    house.claim("shares", *(house.result("front", shareID=share) for share in shares))
    house.open("front")
    eventually(is_told(house, "shares", {share: [OPEN] for share in shares}))


def test_claims_that_wait_for_others_or_for_nothing_are_left_alone(house: House) -> None:
    house.open("front")
    house.claim("elsewhere", house.result("front", pool="node-c/door"))
    house.claim("foreign", house.result("front", driver="gate.example.com"))
    house.claim(
        "unconditional", {key: house.result("front")[key] for key in ("request", "driver", "pool", "device")}
    )
    unallocated = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "unallocated", "namespace": "default"},
        "spec": {},
    }
    house.server.store.create(unallocated)
    house.claim("mine", house.result("front"))
    eventually(is_told(house, "mine", {"front": [OPEN]}))
    house.settled()
    assert house.writes() == ["mine"]


def test_who_knows_already_is_not_told_again(house: House) -> None:
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Bound", "message": "open since long"}
    condition = {"type": OPEN, "status": "True", **since}
    house.open("front")
    entry = {"driver": DRIVER, "pool": POOL, "device": "front", "conditions": [condition]}
    house.claim("told", house.result("front"), devices=[entry])
    house.settled()
    for status in (False, True):
        lists = len(house.server.requests.matching("GET"))
        house.server.faults.expire_watches(status=status)
        eventually(lambda lists=lists: len(house.server.requests.matching("GET")) > lists)  # type: ignore[misc]
        house.settled()
    assert house.writes() == []
    assert house.status("told")["devices"] == [entry]


def test_what_others_take_away_is_said_again(house: House) -> None:
    house.claim("robbed", house.result("front"), house.result("back"))
    house.open("front")
    eventually(is_told(house, "robbed", {"front": [OPEN]}))
    stored = house.server.store.get("ResourceClaim", "robbed")
    del stored["status"]["devices"]
    house.server.store.replace(stored)
    eventually(is_told(house, "robbed", {"front": [OPEN]}))


def test_a_claim_that_is_allocated_anew_is_told_anew_though_nobody_saw_it_between(house: House) -> None:
    house.claim("again", house.result("front"))
    house.open("front")
    eventually(is_told(house, "again", {"front": [OPEN]}))
    house.settled()
    house.server.faults.refuse()
    stored = house.server.store.get("ResourceClaim", "again")
    del stored["status"]["devices"]
    house.server.store.replace(stored)
    house.server.faults.forget_history()
    house.server.faults.accept()
    eventually(is_told(house, "again", {"front": [OPEN]}))


def test_one_that_is_refused_holds_up_no_other_and_is_told_in_the_end(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.server.faults.fail(403, 2, method="PATCH", path="/refused/")
    house.claim("refused", house.result("front"))
    house.claim("welcome", house.result("back"))
    with caplog.at_level(logging.INFO):
        house.open("front")
        house.open("back")
        eventually(is_told(house, "welcome", {"back": [OPEN]}))
        eventually(lambda: 'resources ["resourceclaims/status"], verbs ["patch"]' in house.watch.trouble)
        eventually(is_told(house, "refused", {"front": [OPEN]}))
        eventually(lambda: not house.watch.trouble)
        eventually(lambda: "binding conditions are written" in caplog.messages)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1, said


def test_one_that_is_refused_in_passing_is_told_and_nothing_is_said(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.server.faults.fail(422, 2, method="PATCH", message="a webhook that errs")
    house.claim("refused", house.result("front"))
    house.open("front")
    eventually(is_told(house, "refused", {"front": [OPEN]}))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert house.writes() == ["refused"] * 3


def test_some_that_are_never_taken_hold_up_no_other(house: House) -> None:
    house.server.faults.fail(500, 10_000, method="PATCH", path="/bad-[0-9]/")
    bad = [f"bad-{number}" for number in range(3)]
    good = [f"good-{number}" for number in range(17)]
    for name in (*bad, *good):
        house.claim(name, house.result("front"))
    house.open("front")
    for name in good:
        eventually(is_told(house, name, {"front": [OPEN]}))
    assert not any(house.told(name) for name in bad)
    assert "500" in house.watch.trouble


class OncePatient(Clock):
    """Who waits by it stops waiting for good."""

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        event.set()
        return True


def test_a_server_that_does_not_answer_is_asked_no_further() -> None:
    names = [f"c-{number}" for number in range(8)]
    with unwatched(OncePatient(), names) as house:
        house.server.faults.fail(500, method="PATCH", path="/c-0/")
        house.server.faults.drop(10_000, method="PATCH")
        house.watch.run(threading.Event())
        assert house.writes() == ["c-0", "c-1"]


def test_a_claim_for_which_the_server_asks_for_time_has_it_and_no_other_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binding, "REQUEST_SECONDS", 600.0)  # no answer is late, however slow the machine is
    clock = Clock(speed=20)
    with unwatched(clock, ["busy", "other"]) as house:
        house.server.faults.fail(429, method="PATCH", path="/busy/", retry_after=3600)
        began = clock.now()
        with running(house.watch.run):
            eventually(is_told(house, "other", {"front": [OPEN]}))
            eventually(lambda: "429" in house.watch.trouble)
            assert not house.told("busy")
            eventually(is_told(house, "busy", {"front": [OPEN]}))
            assert clock.now() - began >= MAX_RETRY_AFTER_SECONDS
            eventually(lambda: not house.watch.trouble)
        assert sorted(house.writes()) == ["busy", "busy", "other"]


def test_a_claim_that_is_deleted_meanwhile_is_forgotten_without_a_word(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.claim("short", house.result("front"))
    house.claim("later", house.result("back"))
    house.settled()
    eventually(lambda: house.server.faults.watches.open)  # the list may have shown both
    house.server.faults.watches.silence()
    house.server.store.delete("ResourceClaim", "short")
    house.open("front")
    eventually(lambda: house.writes() == ["short"])
    house.open("back")
    eventually(is_told(house, "later", {"back": [OPEN]}))
    assert house.writes() == ["short", "later"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_odd_objects_are_passed_over(house: House) -> None:
    """Nobody can create these; but what comes over the wire is looked at before it is believed."""
    odd: list[Body] = [
        {"metadata": {}},
        {"metadata": {"uid": 7}, "status": {"allocation": {"devices": {"results": [1, None]}}}},
        {
            "metadata": {"uid": "u"},
            "status": {"allocation": {"devices": {"results": [house.result("front")]}}},
        },
        {
            "metadata": {"uid": "u", "name": "n", "namespace": "default"},
            "status": {
                "allocation": {"devices": {"results": [house.result("front", shareID=3)]}},
            },
        },
        {
            "metadata": {"uid": "u", "name": "n", "namespace": "default"},
            "status": {
                "allocation": {"devices": {"results": [house.result("front")]}},
                "devices": [{"conditions": [None, {"status": "True"}]}, {"driver": 5, "conditions": None}],
            },
        },
        {
            "metadata": {"uid": "u", "name": "n", "namespace": "default", "resourceVersion": "9" * 5000},
            "status": {
                "allocation": {"devices": {"results": [house.result("front")]}},
                "devices": [{"conditions": 5}],
            },
        },
    ]
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        for obj in odd:
            house.watch.changed(kind, obj)
    house.watch.replaced(odd)
