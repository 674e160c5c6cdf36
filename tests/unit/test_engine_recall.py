"""What steps have put out of sight is told to the backend, and what was seen without knowing counts no more."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from dradriver.backend import (
    Backend,
    HostStep,
    NoOptions,
    Observed,
    Plan,
    Request,
    Step,
    UnavailableError,
    Work,
)
from dradriver.engine import Pool, Pools, Record, State, StepState, recall
from dradriver.engine.records import step_record
from dradriver.host import Host
from dradriver.model import ClaimRef, Device, Peer, PoolContent
from waiting import PATIENCE, eventually

DRIVER = "hidden.example.com"


@dataclass(frozen=True)
class Hide(HostStep["Hidden"]):
    """Hides a thing; its facts say that it did."""

    thing: str

    def apply(self, backend: "Hidden", work: Work) -> None: ...

    def revert(self, backend: "Hidden", work: Work) -> None: ...

    def observe(self, backend: "Hidden", work: Work) -> Observed:
        raise AssertionError("nothing is looked at")

    def recall(self, backend: "Hidden", work: Work) -> bool:
        if work.facts.get("hidden") == "?":
            raise UnavailableError("recorded by another version")
        is_new = bool(work.facts.get("hidden")) and self.thing not in backend.known
        backend.known |= {self.thing} if is_new else set()
        return is_new


class Hidden(Backend[tuple[str, ...], NoOptions]):
    """Sees nothing but what it knows of. `go` holds up probes once they have looked."""

    kind = "hidden"
    step_types: ClassVar[tuple[type[Step[Any]], ...]] = (Hide,)

    def __init__(self) -> None:
        super().__init__(Host(), NoOptions())
        self.known: set[str] = set()
        self.probes = 0
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def probe(self) -> tuple[str, ...]:
        if self.error:
            raise self.error
        seen = tuple(sorted(self.known))
        self.probes += 1
        self.go.wait(PATIENCE)
        return seen

    def devices(self, inventory: tuple[str, ...]) -> PoolContent:
        return PoolContent(tuple(Device(name) for name in ("seen", *inventory)), warnings=("odd",))

    def plan(
        self,
        request: Request,
        inventory: tuple[str, ...],
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        raise NotImplementedError


@pytest.fixture
def backend() -> Hidden:
    return Hidden()


@pytest.fixture
def pools(backend: Hidden) -> Pools:
    return Pools("n", [(DRIVER, backend)])


@pytest.fixture
def pool(pools: Pools) -> Pool:
    return pools.all[0]


def record(backend: Hidden, thing: str, state: StepState = StepState.APPLIED, **facts: Any) -> Record:
    """Return a claim that has hidden a thing, or something of that."""
    step = replace(step_record(backend, Hide(thing)), state=state, facts=facts or {"hidden": True})
    return Record(DRIVER, ClaimRef(f"uid-{thing}", "ns", thing), State.PREPARED, "boot-1", 1.0, steps=(step,))


def names(pool: Pool) -> set[str]:
    return set(pool.snapshot.index)


def test_what_was_seen_before_counts_no_more(backend: Hidden, pools: Pools, pool: Pool) -> None:
    pool.refresh()
    assert names(pool) == {"seen"}
    assert recall(pools, [record(backend, "a")], "boot-1") == (pool,)
    assert (names(pool), pool.snapshot.probed) == (set(), False)
    assert pool.refresh()
    assert names(pool) == {"seen", "a"}
    assert recall(pools, [record(backend, "a")], "boot-1") == (), "it is known by now"
    assert names(pool) == {"seen", "a"}


def test_nothing_old_comes_back_where_the_hardware_cannot_be_read_then(
    backend: Hidden, pools: Pools, pool: Pool
) -> None:
    pool.refresh()
    backend.error = UnavailableError("the kernel does not answer")
    recall(pools, [record(backend, "a")], "")
    pool.refresh()
    assert (names(pool), pool.snapshot.probed) == (set(), False)
    assert pool.snapshot.error == "the kernel does not answer"


def test_a_probe_that_was_under_way_is_made_again(backend: Hidden, pools: Pools, pool: Pool) -> None:
    backend.go.clear()
    probing = threading.Thread(target=pool.refresh)
    probing.start()
    eventually(lambda: backend.probes == 1)
    recall(pools, [record(backend, "a")], "boot-1")
    backend.go.set()
    probing.join(PATIENCE)
    assert (backend.probes, names(pool)) == (2, {"seen", "a"})


@pytest.mark.parametrize(
    ("state", "boot", "hidden"),
    [
        (StepState.APPLYING, "boot-1", True),
        (StepState.APPLIED, "", True),
        (StepState.PLANNED, "boot-1", False),
        (StepState.REVERTED, "boot-1", False),
        (StepState.APPLIED, "boot-2", False),
    ],
)
def test_only_what_was_begun_since_the_last_reboot_is_told(
    backend: Hidden, pools: Pools, state: StepState, boot: str, hidden: bool
) -> None:
    assert bool(recall(pools, [record(backend, "a", state)], boot)) is hidden
    assert backend.known == ({"a"} if hidden else set())


def test_a_claim_that_cannot_be_read_costs_no_other(
    backend: Hidden, pools: Pools, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    odd = record(backend, "odd")
    odd = replace(odd, steps=(replace(odd.steps[0], type="Unknown"),))
    assert recall(pools, [record(backend, "late", hidden="?"), odd, record(backend, "a")], "") == (pool,)
    assert backend.known == {"a"}
    assert "claim ns/late (uid-late) of hidden.example.com: what it moved is not known" in caplog.text
    assert "knows no step 'Unknown'" in caplog.text


def test_what_a_pool_warns_of_is_not_said_again(
    backend: Hidden, pools: Pools, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    pool.refresh()
    recall(pools, [record(backend, "a")], "")
    pool.refresh()
    assert caplog.text.count("pool n/hidden: odd") == 1
