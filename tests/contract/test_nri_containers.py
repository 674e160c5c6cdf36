"""Claims prepared by an engine, containers made by a runtime: who gets which CPUs and which memory.

The node has eight CPUs, cores 0+4 and 1+5 on NUMA node 0, 2+6 and 3+7 on node 1.
"""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dradriver.config import Runtime
from dradriver.daemon.runtime import runtime_side
from dradriver.engine import Pools
from dradriver.host import Host
from dradriver.nri import NriState
from dradriver_protos import nri_pb2
from nriruntime import NEW, OLD, NriRuntime, Refused, until
from runtimenode import CPU, MEMORY, RuntimeNode, runtime_node

ALL = "0-7"


@pytest.fixture(params=[OLD, NEW])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RuntimeNode]:
    with runtime_node(tmp_path) as made:
        yield made


def test_containers_of_a_claim_get_its_cpus_and_all_others_the_rest(tmp_path: Path, version: str) -> None:
    with runtime_node(tmp_path, version) as node, node.daemon():
        before = node.plain()
        assert node.cpus(before) == "", "nobody's CPUs are touched while there is no claim"
        claim = node.claim("c", ("cpu-numa-0", 2), pods=["p"])
        pod = node.pod("p")
        cdi, env = node.cdi(claim), node.env(claim)
        assert node.cpus(before) == "", "nobody is updated unasked"
        first = node.runtime.create(pod, cdi=cdi, env=env)
        assert (node.cpus(first), node.runtime.mems(first)) == ("0,4", "0")
        assert node.cpus(before) == "1-3,5-7", "moved away before the first container ran"
        after = node.plain()
        sidecar = node.runtime.create(pod, "sidecar")
        assert node.cpus(after) == node.cpus(sidecar) == "1-3,5-7"
        node.runtime.end(first)
        again = node.runtime.create(pod, cdi=cdi, env=env)
        assert node.cpus(again) == "0,4", "they are held between two containers"
        assert node.cpus(after) == "1-3,5-7"
        node.runtime.end(again)
        node.runtime.end(sidecar)
        node.unprepare(claim)
        node.runtime.stop_pod(pod)
        node.runtime.remove_pod(pod)
        node.runtime.end(node.plain())
        assert {node.cpus(before), node.cpus(after)} == {ALL}
        assert node.runtime.log == []


def test_claims_come_and_go_and_never_share_a_cpu(tmp_path: Path, version: str) -> None:
    with runtime_node(tmp_path, version) as node, node.daemon():
        others = [node.plain() for _ in range(3)]
        running = {}
        for n in range(12):
            name = f"c{n}"
            claim = node.claim(name, (f"cpu-numa-{n % 2}", 1 + n % 2), pods=[name])
            running[name] = (
                claim,
                node.runtime.create(node.pod(name), cdi=node.cdi(claim), env=node.env(claim)),
            )
            taken: set[int] = set()
            for _, container in running.values():
                mine = set(numbers(node.cpus(container)))
                assert mine
                assert not mine & taken
                taken |= mine
            rest = set(range(8)) - taken
            assert rest
            assert [set(numbers(node.cpus(one))) for one in others] == [rest] * 3
            if len(running) == 4:
                claim, container = running.pop(next(iter(running)))
                node.runtime.end(container)
                node.unprepare(claim)


def numbers(cpus: str) -> list[int]:
    """Return the CPUs of a kernel list."""
    found: list[int] = []
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def test_reserved_cpus_are_left_out_of_claims_and_of_the_rest(node: RuntimeNode) -> None:
    with node.daemon(reserved="0,4"):
        assert node.cpus(node.plain()) == "1-3,5-7", "also while there is no claim"
        claim = node.claim("c", ("cpu-numa-0", 2))
        assert node.cpus(node.runtime.create(node.pod(), cdi=node.cdi(claim))) == "1,5"
        assert node.cpus(node.plain()) == "2-3,6-7"


def test_where_claims_have_all_the_others_run_on_reserved_cpus(node: RuntimeNode) -> None:
    with node.daemon(reserved="0"):
        other = node.plain()
        claim = node.claim("c", ("cpu-numa-0", 3), ("cpu-numa-1", 4))
        assert node.cpus(node.runtime.create(node.pod(), cdi=node.cdi(claim))) == "1-7"
        assert node.cpus(other) == node.cpus(node.plain()) == "0"


def test_a_claim_that_would_leave_nothing_to_others_is_refused(node: RuntimeNode) -> None:
    with node.daemon():
        first = node.claim("a", ("cpu-numa-0", 4), ("cpu-numa-1", 3))
        container = node.runtime.create(node.pod(), cdi=node.cdi(first))
        last = node.claim("b", ("cpu-numa-1", 1))
        told = node.prepare(last)
        assert isinstance(told, str)
        assert "containers without a claim none to run on: set backends.cpu.reserved" in told
        assert len(numbers(node.cpus(node.plain()))) == 1
        node.runtime.end(container)
        node.unprepare(first)
        assert node.cdi(last), "there is room again"


def test_isolated_cpus_are_for_claims_only(node: RuntimeNode) -> None:
    node.host.write("sys/devices/system/cpu/isolated", "3,7")
    with node.daemon():
        claim = node.claim("c", ("cpu-numa-1-isolated", 1))
        isolated = node.runtime.create(node.pod(), cdi=node.cdi(claim))
        assert node.cpus(isolated) in {"3", "7"}
        assert node.cpus(node.plain()) == "", "the kernel keeps others off them by itself"
        shared = node.claim("d", ("cpu-numa-0", 2))
        node.runtime.create(node.pod(), cdi=node.cdi(shared))
        assert node.cpus(node.plain()) == "1-2,5-6"


def test_cpus_that_go_offline_are_nobody_s(node: RuntimeNode) -> None:
    with node.daemon():
        claim = node.claim("c", ("cpu-numa-0", 2))
        pod = node.pod()
        cdi = node.cdi(claim)
        node.host.online("0-3,5-6")
        until(lambda: node.online == "0-3,5-6", "it is seen")
        assert node.cpus(node.runtime.create(pod, cdi=cdi)) == "0", "CPU 4 is offline"
        assert node.cpus(node.plain()) == "1-3,5-6"
        node.host.online("1-3,5-6")
        until(lambda: node.online == "1-3,5-6", "it is seen")
        with pytest.raises(Refused, match="the claim's CPUs 0,4 are not online"):
            node.runtime.create(pod, cdi=cdi)


def test_where_nothing_is_left_neither_claims_nor_others_get_containers(node: RuntimeNode) -> None:
    """As where CPUs go offline that others ran on."""
    with node.daemon():
        other = node.plain()
        claim = node.claim("c", ("cpu-numa-0", 2))
        cdi = node.cdi(claim)
        node.host.online("0,4")
        until(lambda: node.online == "0,4", "it is seen")
        for devices in ([], cdi):
            with pytest.raises(Refused, match="containers without a claim none to run on"):
                node.runtime.create(node.pod(), cdi=devices)
        node.runtime.end(other)
        assert node.cpus(node.runtime.create(node.pod(), cdi=cdi)) == "0,4", "nobody is in its way any more"


def test_a_node_whose_cpus_cannot_be_read(node: RuntimeNode) -> None:
    with node.daemon():
        claim = node.claim("c", ("cpu-numa-0", 2))
        pod, cdi = node.pod(), node.cdi(claim)
        for name in ("online", "present", "possible"):
            node.host.remove(f"sys/devices/system/cpu/{name}")
        for number in range(8):
            (node.host.root / f"sys/devices/system/cpu/cpu{number}").rename(node.root / f"gone-{number}")
        until(lambda: not node.online, "it is seen")
        with pytest.raises(Refused, match="the CPUs of this node cannot be read"):
            node.plain(pod)
        assert node.cpus(node.runtime.create(pod, cdi=cdi)) == "0,4"


def test_memory_and_huge_pages(tmp_path: Path, version: str) -> None:
    with runtime_node(tmp_path, version) as node:
        node.host.node(1, "2-3,6-7", memory_kib=4 << 20, huge_pages={2048: (512, 0, 0), 1 << 20: (1, 0, 0)})
        with node.daemon():
            claim = node.claim(
                "c",
                ("memory-numa-0", 1 << 30),
                ("hugepages-2mi-numa-1", 64 << 20),
                ("hugepages-1gi-numa-1", 1 << 30),
                pods=["p"],
            )
            names, env = node.cdi(claim, MEMORY), node.env(claim)
            pod = node.pod("p")
            old = [("2MB", 0), ("1GB", 0)]
            one = node.runtime.create(pod, "one", cdi=names[1:2], env=env[2:4], hugepages=old)
            assert node.runtime.hugepages(one) == {"2MB": 64 << 20, "1GB": 0}
            assert (node.runtime.mems(one), node.cpus(one)) == ("1", "")
            every = node.runtime.create(pod, "every", cdi=names, env=env, hugepages=old)
            assert node.runtime.hugepages(every) == {"2MB": 64 << 20, "1GB": 1 << 30}
            assert (node.runtime.mems(every), node.cpus(every)) == ("0-1", "")


def test_memory_that_is_claimed_knows_better_than_cpus_where_it_is(node: RuntimeNode) -> None:
    with node.daemon():
        claim = node.claim("c", ("cpu-numa-0", 2), ("memory-numa-1", 1 << 30))
        container = node.runtime.create(node.pod(), cdi=node.cdi(claim, CPU, MEMORY))
        assert (node.cpus(container), node.runtime.mems(container)) == ("0,4", "1")


def test_devices_of_several_claims_add_up(node: RuntimeNode) -> None:
    with node.daemon():
        one = node.claim("a", ("cpu-numa-0", 2), ("cpu-numa-1", 1))
        two = node.claim("b", ("cpu-numa-1", 2))
        first, second = node.cdi(one)
        pod = node.pod()
        assert node.cpus(node.runtime.create(pod, cdi=[first])) == "0,4"
        both = node.runtime.create(pod, cdi=[first, second, *node.cdi(two)])
        assert node.runtime.mems(both) == "0-1"
        assert len(numbers(node.cpus(both))) == 5


def test_a_resize_changes_neither_cpus_nor_huge_pages(tmp_path: Path, version: str) -> None:
    with runtime_node(tmp_path, version) as node:
        node.host.node(0, "0-1,4-5", memory_kib=4 << 20, huge_pages={2048: (512, 0, 0)})
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2), ("hugepages-2mi-numa-0", 64 << 20), pods=["p"])
            names = node.cdi(claim, CPU, MEMORY)
            container = node.runtime.create(node.pod("p"), cdi=names, env=node.env(claim))
            other = node.plain()
            change = nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(cpus=ALL, mems="0-1"))
            change.hugepage_limits.add(page_size="2MB", limit=0)
            for one in (container, other):
                node.runtime.resize(one, change)
            assert (node.cpus(container), node.runtime.mems(container)) == ("0,4", "0")
            assert node.runtime.hugepages(container) == {"2MB": 64 << 20}
            assert node.cpus(other) == "1-3,5-7"
            node.runtime.resize(container, nri_pb2.LinuxResources())
            assert node.cpus(container) == "0,4"


def test_a_container_of_a_claim_that_is_not_prepared_is_refused(node: RuntimeNode) -> None:
    with node.daemon():
        claim = node.claim("c", ("cpu-numa-0", 2))
        names = node.cdi(claim)
        node.unprepare(claim)
        for cdi in (names, [f"{CPU}/claim=uid-never-0"], [f"{CPU}/claim=-7"]):
            with pytest.raises(Refused, match="is not prepared with a device"):
                node.runtime.create(node.pod(), cdi=cdi)
        node.cdi(claim)
        with pytest.raises(
            Refused, match=r"claim 'uid-c' of cpu\.dradriver\.io is not prepared with a device 5"
        ):
            node.runtime.create(node.pod(), cdi=[f"{CPU}/claim=uid-c-5"])
        others = ["other.io/claim=uid-c-0", f"{CPU}/base=cpu", f"{CPU}/claim=uid-c-x", "odd", ""]
        container = node.runtime.create(node.pod(), cdi=others)
        assert node.cpus(container) == "1-3,5-7", "those are no devices of claims of ours"


@pytest.mark.parametrize("state", ["preparing", "unpreparing"])
def test_a_container_of_a_claim_that_is_under_work_is_refused(
    node: RuntimeNode, tmp_path: Path, state: str
) -> None:
    with node.daemon():
        cdi = node.cdi(node.claim("c", ("cpu-numa-0", 2)))
        pod = node.pod()
        node.runtime.create(pod, cdi=cdi)
        with sqlite3.connect(tmp_path / "journal.db") as db:
            db.execute("UPDATE claim SET state = ?", (state,))
        db.close()
        with pytest.raises(
            Refused, match=r"claim 'uid-c' of cpu\.dradriver\.io is not prepared on this node"
        ):
            node.runtime.create(pod, cdi=cdi)


def test_a_claim_that_is_prepared_anew_with_other_cpus(node: RuntimeNode) -> None:
    with node.daemon():
        claim = node.claim("c", ("cpu-numa-0", 2))
        first = node.runtime.create(node.pod(), cdi=node.cdi(claim))
        node.runtime.end(first)
        node.unprepare(claim)
        node.claim("c", ("cpu-numa-1", 4))
        assert node.cpus(node.runtime.create(node.pod(), cdi=node.cdi(claim))) == "2-3,6-7"
        assert node.cpus(node.plain()) == "0-1,4-5"


class TestOldRuntimes:
    """Where the runtime does not tell CDI devices, a variable counts: if it can be believed."""

    @pytest.fixture
    def node(self, tmp_path: Path) -> Iterator[RuntimeNode]:
        with runtime_node(tmp_path, OLD) as made:
            yield made

    def test_a_pod_that_has_not_reserved_the_claim_is_not_believed(self, node: RuntimeNode) -> None:
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2), pods=["p"])
            node.cdi(claim)
            forged = node.runtime.create(node.pod("q"), env=node.env(claim))
            foreign = node.runtime.create(node.pod("p", namespace="other"), env=node.env(claim))
            assert node.cpus(forged) == node.cpus(foreign) == "1-3,5-7"
            assert node.cpus(node.runtime.create(node.pod("p"), env=node.env(claim))) == "0,4"

    def test_a_second_pod_that_reserves_it_later_is_believed(self, node: RuntimeNode) -> None:
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2), pods=["p"])
            node.cdi(claim)
            node.claim("c", ("cpu-numa-0", 2), pods=["p", "q"])
            assert node.cpus(node.runtime.create(node.pod("q"), env=node.env(claim))) == "0,4"

    def test_of_a_pod_group_s_claim_the_namespace_counts(self, node: RuntimeNode) -> None:
        group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2), consumers=[group])
            node.cdi(claim)
            assert node.cpus(node.runtime.create(node.pod("x"), env=node.env(claim))) == "0,4"
            foreign = node.runtime.create(node.pod("x", namespace="other"), env=node.env(claim))
            assert node.cpus(foreign) == "1-3,5-7"

    def test_after_a_restart_the_claim_is_asked_for_once(self, node: RuntimeNode) -> None:
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2), pods=["p"])
            node.cdi(claim)
            env = node.env(claim)
        with node.daemon():
            node.source.asked = 0
            for _ in range(3):
                assert node.cpus(node.runtime.create(node.pod("p"), env=env)) == "0,4"
            assert node.source.asked == 1
            assert node.cpus(node.runtime.create(node.pod("q"), env=env)) == "1-3,5-7"

    def test_while_the_claim_cannot_be_read_the_namespace_has_to_do(self, node: RuntimeNode) -> None:
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2), pods=["p"])
            node.cdi(claim)
            env = node.env(claim)
        node.source.reachable = False
        with node.daemon():
            assert node.cpus(node.runtime.create(node.pod("p"), env=env)) == "0,4"
            foreign = node.runtime.create(node.pod("p", namespace="other"), env=env)
            assert node.cpus(foreign) == "1-3,5-7"
            assert node.source.asked <= 2, "it is left alone for a while"

    def test_a_claim_that_was_deleted_or_replaced_is_nobody_s(self, node: RuntimeNode) -> None:
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2), pods=["p"])
            node.cdi(claim)
            env = node.env(claim)
        (node.claims / "c.json").unlink()
        with node.daemon():
            assert node.cpus(node.runtime.create(node.pod("p"), env=env)) == "1-3,5-7"

    def test_variables_of_all_kinds_are_harmless(self, node: RuntimeNode) -> None:
        with node.daemon():
            node.cdi(node.claim("c", ("cpu-numa-0", 2), pods=["p"]))
            env = ["DRADRIVER_", "DRADRIVER_CPU_DRADRIVER_IO_UID_C_0", "=", "", "DRADRIVER_X=1", "A=\u20ac"]
            assert node.cpus(node.runtime.create(node.pod("q"), env=env)) == "1-3,5-7"


def test_where_devices_are_told_variables_do_not_count_beside_them(node: RuntimeNode) -> None:
    with node.daemon():
        mine = node.claim("a", ("cpu-numa-0", 2), pods=["p"])
        other = node.claim("b", ("cpu-numa-1", 2), pods=["p"])
        names = node.cdi(mine)
        node.cdi(other)
        container = node.runtime.create(node.pod("p"), cdi=names, env=node.env(other))
        assert node.cpus(container) == "0,4"


def test_what_was_done_without_us_is_mended(tmp_path: Path, version: str) -> None:
    with runtime_node(tmp_path, version) as node:
        old = node.plain()
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2), pods=["p"])
            names, env = node.cdi(claim), node.env(claim)
        pinned = node.runtime.create(node.pod("p"), cdi=names, env=env)
        stopped = node.plain()
        node.runtime.end(stopped, removed=False)
        other = node.plain()
        assert {node.cpus(one) for one in (old, pinned, other)} == {""}, "nobody was there"
        node.runtime.part = 1
        with node.daemon():
            assert (node.cpus(pinned), node.runtime.mems(pinned)) == ("0,4", "0")
            assert node.cpus(old) == node.cpus(other) == "1-3,5-7"
            assert node.cpus(stopped) == ""
            node.runtime.end(pinned)
        node.runtime.drop()
        with node.daemon(joined=False):
            node.unprepare(claim)
            node.joined()
            node.runtime.end(node.plain())
            assert {node.cpus(old), node.cpus(other)} == {ALL}, "what an earlier daemon has taken comes back"


def test_a_runtime_that_starts_again_finds_everything_as_it_was(tmp_path: Path, version: str) -> None:
    with runtime_node(tmp_path, version) as node, node.daemon():
        claim = node.claim("c", ("cpu-numa-0", 2), pods=["p"])
        pinned = node.runtime.create(node.pod("p"), cdi=node.cdi(claim), env=node.env(claim))
        first = node.runtime.plugin()
        node.runtime.stop()
        without = node.plain()
        node.runtime.start()
        node.runtime.plugin(besides=first)
        assert (node.cpus(pinned), node.cpus(without)) == ("0,4", "1-3,5-7")


def test_a_claim_that_is_undone_under_a_running_container_is_taken_from_it(node: RuntimeNode) -> None:
    with node.daemon():
        first = node.claim("a", ("cpu-numa-0", 2))
        left = node.runtime.create(node.pod("a"), cdi=node.cdi(first))
        node.unprepare(first)
        second = node.claim("b", ("cpu-numa-0", 2))
        container = node.runtime.create(node.pod("b"), cdi=node.cdi(second))
        assert (node.cpus(container), node.cpus(left)) == ("0,4", "1-3,5-7")


def test_moves_that_came_with_a_container_that_was_not_made_are_told_again(node: RuntimeNode) -> None:
    with node.daemon():
        other = node.plain()
        claim = node.claim("c", ("cpu-numa-0", 2))
        cdi = node.cdi(claim)
        node.runtime.veto = "another plugin says no"
        with pytest.raises(Refused, match="another plugin says no"):
            node.runtime.create(node.pod(), cdi=cdi)
        assert node.cpus(other) == "", "nothing of it was done"
        node.runtime.veto = ""
        node.runtime.create(node.pod(), cdi=cdi)
        assert node.cpus(other) == "1-3,5-7"
        moved = [method for method, _ in node.runtime.plugin().calls]
        node.runtime.create(node.pod(), cdi=cdi)
        assert moved.count("PostCreateContainer") == 2


def test_moves_that_nobody_heard_of_are_told_again(node: RuntimeNode) -> None:
    with node.daemon():
        other = node.plain()
        node.runtime.create(node.pod(), cdi=node.cdi(node.claim("c", ("cpu-numa-0", 2))))
        node.runtime.containers[other.id].linux.resources.cpu.cpus = ALL
        node.side.containers.unheard()
        node.plain()
        assert node.cpus(other) == "1-3,5-7"


def test_a_pod_that_is_removed_is_forgotten_with_its_containers(node: RuntimeNode) -> None:
    with node.daemon():
        pod = node.pod("p")
        node.plain(pod)
        node.runtime.containers.clear()
        node.runtime.remove_pod(pod)
        (answer,) = updates(node, node.claim("c", ("cpu-numa-0", 2)))
        assert answer.update == []


def updates(node: RuntimeNode, claim: object) -> list[nri_pb2.CreateContainerResponse]:
    """Return the answers for a container of a claim, without acting on them."""
    pod = node.pod("q")
    asked = nri_pb2.CreateContainerRequest(
        pod=pod,
        container=nri_pb2.Container(
            id="asked",
            CDI_devices=[nri_pb2.CDIDevice(name=name) for name in node.cdi(claim)],  # type: ignore[arg-type]
        ),
    )
    return [
        one.ask("CreateContainer", asked, nri_pb2.CreateContainerResponse) for one in node.runtime.plugins
    ]


def test_who_loses_cpus_must_lose_them(node: RuntimeNode) -> None:
    with node.daemon():
        other = node.plain()
        first = node.claim("a", ("cpu-numa-0", 2))
        (answer,) = updates(node, first)
        assert [(one.container_id, one.ignore_failure) for one in answer.update] == [(other.id, False)]
        node.runtime.apply(answer.update)
        node.side.containers.unheard()
        node.runtime.create(node.pod(), cdi=node.cdi(first))
        node.unprepare(first)
        (answer,) = updates(node, node.claim("b", ("cpu-numa-0", 1)))
        assert (answer.update[0].container_id, answer.update[0].ignore_failure) == (other.id, True)


def test_a_step_of_another_version_is_not_guessed_at(
    node: RuntimeNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with node.daemon():
        claim = node.claim("c", ("cpu-numa-0", 2))
        cdi = node.cdi(claim)
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("UPDATE step SET body = replace(body, 'PinCPUs', 'PinTight')")
    db.close()
    with node.daemon(), pytest.raises(Refused, match="knows no step 'PinTight'"):
        node.runtime.create(node.pod(), cdi=cdi)
    assert caplog.text.count("what the containers of claim default/c (uid-c) of cpu.dradriver.io get") == 1


class TestPrepare:
    """What needs the runtime is refused where that cannot be asked."""

    def test_a_claim_waits_for_a_runtime_that_is_just_starting_again(self, node: RuntimeNode) -> None:
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2))
            node.runtime.stop()
            until(lambda: node.side.status.trouble, "it is lost")
            told: list[object] = []
            thread = threading.Thread(target=lambda: told.append(node.prepare(claim)))
            thread.start()
            node.runtime.start()
            thread.join(20)
            assert not isinstance(told[0], str), told

    def test_it_is_refused_where_the_call_has_no_time_to_wait(self, node: RuntimeNode) -> None:
        with node.daemon():
            claim = node.claim("c", ("cpu-numa-0", 2))
            repeated = node.claim("d", ("cpu-numa-0", 1))
            node.cdi(repeated)
            node.runtime.stop()
            until(lambda: node.side.status.trouble, "it is lost")
            for ref in (claim, repeated):
                assert str(node.prepare(ref, seconds=0.5)).startswith(
                    "the container runtime must be asked to pin containers to CPUs "
                )
            assert node.engine.claims() == {CPU: 1}

    def test_it_is_refused_at_once_where_there_is_no_nri(self, tmp_path: Path) -> None:
        node = RuntimeNode(tmp_path)
        with node.daemon(joined=False):
            until(lambda: node.side.status.state is NriState.ABSENT, "there is no socket")
            claim = node.claim("c", ("cpu-numa-0", 2), ("memory-numa-0", 1 << 30))
            expected = (
                f"cannot be: there is no socket at {tmp_path}/nri.sock: NRI is off in the container runtime"
            )
            assert str(node.prepare(claim)).endswith(expected)
            assert str(node.prepare(claim, MEMORY)).endswith(expected)
            assert node.engine.claims() == {}
            assert list((tmp_path / "cdi").glob("*")) == []

    def test_it_is_refused_where_nri_is_off_in_the_configuration(self, node: RuntimeNode) -> None:
        with node.daemon(joined=False, join=False):
            told = node.prepare(node.claim("c", ("cpu-numa-0", 2)))
            assert str(told).endswith("NRI is off in the configuration of dradriver (nri.enabled)")
            assert node.runtime.connections == []

    def test_where_no_runtime_is_meant_there_is_nothing_of_it(self, tmp_path: Path) -> None:
        node = RuntimeNode(tmp_path)
        settings = Runtime(join=False, needed=False, socket=tmp_path / "nri.sock", index="50")
        with node.daemon(joined=False):
            pools = Pools("n", [])
            assert runtime_side(settings, tmp_path / "absent", pools, Host(tmp_path), node.source) is None

    def test_what_concerns_no_container_needs_no_runtime(self, tmp_path: Path) -> None:
        node = RuntimeNode(tmp_path)
        with node.daemon(joined=False):
            claim = node.claim("c", ("cpu-numa-0", 2))
            file = node.claims / "c.json"
            file.write_text(file.read_text().replace('"shareID"', '"adminAccess": true, "shareID"'))
            assert len(node.cdi(claim)) == 1

    def test_no_claim_is_lost_while_runtimes_come_and_go(self, node: RuntimeNode) -> None:
        with node.daemon():

            def restart() -> None:
                for _ in range(4):
                    node.runtime.restart()
                    node.runtime.plugin()

            thread = threading.Thread(target=restart)
            thread.start()
            number = 0
            while thread.is_alive():
                number += 1
                claim = node.claim(f"c{number}", ("cpu-numa-0", 1))
                assert node.cdi(claim)
                node.unprepare(claim)
            thread.join()
            assert number


def test_a_node_without_cpu_claims_keeps_its_hands_off(tmp_path: Path) -> None:
    """Where no backend gives out CPUs, sets that others have made stay."""
    with runtime_node(tmp_path) as node, node.daemon():
        node.side.shared._managed = False
        container = node.plain()
        node.runtime.containers[container.id].linux.resources.cpu.cpus = "2"
        node.runtime.resize(container, nri_pb2.LinuxResources())
        node.runtime.drop()
        until(lambda: node.runtime.plugins, "it has come back")
        node.plain()
        assert node.cpus(container) == "2"


def test_pods_in_parallel(node: RuntimeNode) -> None:
    """A runtime asks one question at a time; the engine is called by as many as there are pods."""
    with node.daemon(reserved="0"):
        claims = [node.claim(f"c{n}", ("cpu-numa-0", 1)) for n in range(24)]
        failed: list[object] = []

        def live(n: int) -> None:
            for _ in range(3):
                told = node.prepare(claims[n])
                if isinstance(told, str):
                    assert "asked, 0 of 3 free" in told
                    continue
                try:
                    pod = node.pod(f"p{n}")
                    container = node.runtime.create(pod, cdi=[told[0].cdi_ids[0]])
                    if node.cpus(container) not in {"1", "4", "5"}:
                        failed.append(node.cpus(container))
                    node.runtime.end(container)
                    node.unprepare(claims[n])
                    node.runtime.stop_pod(pod)
                    node.runtime.remove_pod(pod)
                except (AssertionError, Refused) as error:
                    failed.append(error)

        threads = [threading.Thread(target=live, args=(n,)) for n in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failed == []
        assert node.runtime.log == []
        assert isinstance(node.runtime, NriRuntime)
        assert node.engine.claims() == {}
