"""What containers are due, what is left to the others, whose claim it is, and what `dradriver check` says."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.backend import Backend, ContainerAdjustment, DeviceNode, TransientError
from dradriver.claims import ClaimNotFoundError
from dradriver.clock import Clock
from dradriver.config import Runtime
from dradriver.containers import Reservations, SharedCPUs
from dradriver.engine import Pool, Record, State
from dradriver.engine.containers import ContainerClaim, combined
from dradriver.host import CPUSet, Host
from dradriver.inspect.nri import check_nri
from dradriver.model import ClaimRef
from dradriver.nri import NriState, NriStatus, Pod
from dradriver_cpu.backend import CpuBackend
from dradriver_cpu.config import CpuOptions
from dradriver_gpu.backend import GpuBackend
from dradriver_memory.backend import MemoryBackend
from dradriver_memory.config import MemoryOptions
from dradriver_nic import NicBackend
from hosttree import HostTree, two_sockets

Adjustment = ContainerAdjustment


def test_nothing_is_due_for_nothing() -> None:
    assert combined([]) == combined([Adjustment()]) == Adjustment()


def test_cpus_and_huge_pages_add_up() -> None:
    made = combined(
        [
            Adjustment(cpus="0-1", mems="0", hugepage_limits={"2MB": 4}),
            Adjustment(cpus="4", mems="1", hugepage_limits={"2MB": 8, "1GB": 1}),
        ]
    )
    assert made == Adjustment(cpus="0-1,4", mems="0-1", hugepage_limits={"2MB": 12, "1GB": 1})


def test_memory_by_itself_knows_better_where_it_is_than_cpus() -> None:
    cpus, memory = Adjustment(cpus="0-1", mems="0"), Adjustment(mems="2")
    assert combined([cpus, memory]).mems == combined([memory, cpus]).mems == "2"
    assert combined([cpus, memory, Adjustment(mems="3")]).mems == "2-3"
    assert combined([Adjustment(cpus="0"), cpus]).mems == "0"


def test_other_things_are_joined() -> None:
    one = DeviceNode("/dev/a", type="c", major=1, minor=2)
    two = DeviceNode("/dev/b", type="c", major=1, minor=3)
    made = combined(
        [
            Adjustment(unified={"a": "1"}, env={"A": "1"}, devices=(one,), rlimits={"RLIMIT_MEMLOCK": 1}),
            Adjustment(
                unified={"a": "1", "b": "2"},
                env={"B": "2"},
                devices=(one, two),
                rlimits={"RLIMIT_MEMLOCK": 5},
            ),
        ]
    )
    assert made == Adjustment(
        unified={"a": "1", "b": "2"},
        env={"A": "1", "B": "2"},
        devices=(one, two),
        rlimits={"RLIMIT_MEMLOCK": 5},
    )


@pytest.mark.parametrize("name", ["unified", "env"])
def test_two_wishes_that_exclude_each_other_are_an_error(name: str) -> None:
    one: dict[str, Any] = {name: {"x": "1"}}
    two: dict[str, Any] = {name: {"x": "2"}}
    with pytest.raises(ValueError, match=r"two devices of the container want different things of .* x"):
        combined([Adjustment(**one), Adjustment(**two)])


def pools(root: Path, *reserved: str) -> list[Pool]:
    host = Host(root)
    made = [Pool("n", "memory.io", MemoryBackend(host, MemoryOptions()))]
    return made + [Pool("n", "cpu.io", CpuBackend(host, CpuOptions(reserved=cpus))) for cpus in reserved]


@pytest.mark.parametrize(
    ("reserved", "isolated", "held", "left", "limited"),
    [
        ("", "", "", "0-7", False),
        ("", "", "0,4", "1-3,5-7", True),
        ("0", "", "", "1-7", True),
        ("0", "", "1", "2-7", True),
        ("0", "", "1-7", "0", True),
        ("", "", "0-7", "", True),
        ("", "7", "", "0-6", False),
        ("", "7", "7", "0-6", False),
        ("7", "7", "0-6", "", True),
        ("", "0-7", "", "0-7", False),
        ("0-7", "", "", "0-7", False),
        ("99", "", "", "0-7", False),
    ],
)
def test_what_is_left(
    tmp_path: Path, reserved: str, isolated: str, held: str, left: str, limited: bool
) -> None:
    tree = two_sockets(tmp_path)
    tree.write("sys/devices/system/cpu/isolated", isolated)
    found = SharedCPUs(Host(tree.root), pools(tree.root, reserved)).left(CPUSet.parse(held))
    assert (str(found.cpus), found.limited, found.text) == (left, limited, left)


@given(*[st.sets(st.integers(0, 7))] * 3)
def test_nobody_is_given_cpus_that_claims_hold(
    tmp_path_factory: pytest.TempPathFactory, reserved: set[int], isolated: set[int], held: set[int]
) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host")).online("0-7")
    tree.write("sys/devices/system/cpu/isolated", str(CPUSet(isolated)))
    found = SharedCPUs(Host(tree.root), pools(tree.root, str(CPUSet(reserved)))).left(CPUSet(held))
    assert found.cpus.isdisjoint(CPUSet(held))
    usual = CPUSet(range(8)) - CPUSet(isolated) or CPUSet(range(8))
    assert found.cpus <= usual
    assert bool(found.cpus) == (not usual <= CPUSet(held))
    assert found.limited or found.cpus == usual


def test_where_cpus_cannot_be_read_none_are_given(tmp_path: Path) -> None:
    shared = SharedCPUs(Host(tmp_path), pools(tmp_path, ""))
    assert (str(shared.left(CPUSet()).cpus), shared.left(CPUSet()).limited) == ("", False)
    assert shared.left(CPUSet((1,))).limited


def test_only_a_backend_that_gives_out_cpus_makes_others_move(tmp_path: Path) -> None:
    assert not SharedCPUs(Host(tmp_path), pools(tmp_path)).managed
    assert SharedCPUs(Host(tmp_path), pools(tmp_path, "")).managed


CLAIM = ContainerClaim("cpu.io", ClaimRef("u1", "team", "c"), State.PREPARED, 1, {}, CPUSet())
RECORD = Record("cpu.io", CLAIM.ref, State.PREPARED, "", 1.0)
MINE, OTHER = Pod("s1", "pod-1", "team"), Pod("s2", "pod-2", "team")


def claim(*pods: str, uid: str = "u1") -> dict[str, Any]:
    return {
        "metadata": {"uid": uid, "name": "c"},
        "status": {"reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]},
    }


class Source:
    """A claim, or what happens instead."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked = 0

    def get(self, ref: ClaimRef, deadline: float) -> Any:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_pod_for_which_the_claim_was_reserved_at_prepare() -> None:
    source = Source(claim("pod-1"))
    known = Reservations(source)
    known.prepared(RECORD, claim("pod-1"))
    assert known.allow(CLAIM, MINE)
    assert source.asked == 0
    assert not known.allow(CLAIM, OTHER)
    assert not known.allow(CLAIM, Pod("s", "pod-1", "other"))
    assert source.asked == 1


def test_what_cannot_be_read_is_asked_for_again_after_a_while() -> None:
    source = Source(TransientError("gone"), claim("pod-2"))
    known = Reservations(source, Clock(1000.0))
    assert known.allow(CLAIM, MINE), "its namespace has to do"
    assert known.allow(CLAIM, MINE)
    while source.asked < 2:
        known.allow(CLAIM, MINE)
    assert not known.allow(CLAIM, Pod("s", "pod-1", "other"))
    assert known.allow(CLAIM, OTHER)


def test_while_nothing_can_be_read_what_was_known_counts() -> None:
    known = Reservations(Source(OSError("gone")))
    known.prepared(RECORD, claim("pod-1"))
    known.prepared(RECORD, None)
    assert known.allow(CLAIM, MINE)
    assert not known.allow(CLAIM, OTHER)


@pytest.mark.parametrize("answer", [ClaimNotFoundError("no"), claim("pod-1", uid="u2"), claim(), {}, None, 7])
def test_a_claim_that_is_not_reserved_for_it_is_not_its(answer: object) -> None:
    assert not Reservations(Source(answer, answer)).allow(CLAIM, MINE)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "status", "reservedFor", "uid", "resource"]), inner)
    ),
    max_leaves=10,
)


@given(json)
def test_no_claim_object_brings_it_down(found: object) -> None:
    known = Reservations(Source(found))
    known.prepared(RECORD, found)
    assert known.allow(CLAIM, MINE) in {True, False}


ACTIVE = NriStatus(NriState.ACTIVE, "", passing=False, runtime="containerd v2.4.0")
ABSENT = NriStatus(NriState.ABSENT, "there is no socket", passing=False, runtime="")
FAILING = NriStatus(NriState.FAILING, "Connection refused", passing=True, runtime="containerd v2.4.0")


@pytest.mark.parametrize(
    ("join", "needed", "status", "active", "expected"),
    [
        (True, True, ACTIVE, True, ("ok", "containerd v2.4.0 is joined")),
        (True, True, ABSENT, True, ("warning", "there is no socket")),
        (True, True, FAILING, True, ("warning", "Connection refused")),
        (True, True, ACTIVE, False, ("warning", "there is no socket at {socket}")),
        (True, True, None, True, ("warning", "there is no socket at {socket}")),
        (False, True, None, True, ("warning", "off in the configuration (nri.enabled)")),
        (False, False, None, True, ("ok", "not used: no container of a runtime uses what is prepared here")),
    ],
)
def test_what_check_says(
    tmp_path: Path,
    join: bool,
    needed: bool,
    status: NriStatus | None,
    active: bool,
    expected: tuple[str, str],
) -> None:
    socket = tmp_path / "nri.sock"
    runtime = Runtime(join, needed, socket, "50")
    found = check_nri(runtime, status, active=active, backends=[CpuBackend, MemoryBackend, GpuBackend])
    assert (found.status.value, found.seen) == (expected[0], expected[1].format(socket=socket))
    assert bool(found.mend) == (expected[0] != "ok")
    assert ("claims for CPUs and memory are refused" in found.mend) == (expected[0] != "ok")


@pytest.mark.parametrize(
    ("backends", "refused"),
    [
        ([NicBackend], "claims for network cards are refused"),
        ([CpuBackend, NicBackend], "claims for network cards are refused"),
        ([CpuBackend], ""),
    ],
)
def test_check_says_what_cannot_go_into_pods_of_no_runtime(
    tmp_path: Path, backends: list[type[Backend[Any, Any]]], refused: str
) -> None:
    runtime = Runtime(join=False, needed=False, socket=tmp_path / "nri.sock", index="50")
    found = check_nri(runtime, None, active=True, backends=backends)
    assert (found.status.value, found.mend[: len(refused)]) == ("warning" if refused else "ok", refused)


def test_what_check_says_of_a_socket_without_a_daemon(tmp_path: Path) -> None:
    socket = tmp_path / "nri.sock"
    socket.touch()
    found = check_nri(Runtime(True, True, socket, "50"), None, active=False, backends=[CpuBackend])
    assert (found.status.value, found.mend) == ("unknown", "start the daemon")
