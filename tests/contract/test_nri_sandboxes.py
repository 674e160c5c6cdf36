"""Claims that go into pods: prepared by an engine, taken into the sandboxes of a runtime, and back."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dradriver.engine import Sandbox
from dradriver.nri import Container, Pod
from nriruntime import NEW, OLD, NriRuntime, Refused, until
from podnode import DRIVER, Killed, PodNode, at_once, pod_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[PodNode]:
    with pod_node(tmp_path) as made:
        yield made


def sandbox(node: PodNode, name: str = "p") -> Sandbox:
    return Sandbox(f"sandbox-{name}", name, "default", name, str(node.namespace(f"ns-{name}")))


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_claim_goes_into_its_pod_and_comes_back(tmp_path: Path, version: str) -> None:
    with pod_node(tmp_path, version) as node, node.daemon():
        claim = node.claim("c", 3, pods=["p"])
        cdi = node.cdi(claim)
        node.check_out(claim)
        assert node.prepare(claim) == node.prepare(claim)
        node.check_out(claim)
        pod = node.pod("p")
        node.check_in(claim, 3, node.number(pod))
        node.runtime.create(pod, cdi=cdi)
        specs = node.specs
        (tmp_path / "cdi" / next(iter(specs))).unlink()
        assert node.cdi(claim) == cdi
        assert node.specs == specs, "a repeat writes the file anew"
        node.runtime.stop_pod(pod)
        node.check_out(claim)
        node.runtime.stop_pod(pod)
        node.runtime.remove_pod(pod)
        node.check_out(claim)
        again = node.pod("p")
        node.check_in(claim, 3, node.number(again))
        node.unprepare(claim)
        assert (node.inside, node.specs, node.open_namespaces()) == ({}, {}, [])
        assert list(node.plugs.glob("fixed-*")) == []
        node.runtime.stop_pod(again)


def test_a_pod_gets_all_of_its_claims_or_none(node: PodNode) -> None:
    with node.daemon():
        claims = [node.claim(name, n, pods=["p"]) for n, name in enumerate("abc")]
        for claim in claims:
            node.cdi(claim)
        fault = node.fault("plug-2.fail")
        with pytest.raises(Refused, match="plug plug-2 does not fit"):
            node.pod("p")
        for claim in claims:
            node.check_out(claim)
        fault.unlink()
        pod = node.pod("p")
        assert set(node.inside.values()) == {node.number(pod)}
        assert len(node.inside) == 6


def test_a_busy_one_is_refused_in_time_and_the_plugin_stays(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p"])
        node.cdi(claim)
        fault = node.fault("plug-0.busy")
        with pytest.raises(Refused, match="plug plug-0 is busy"):
            node.pod("p")
        fault.unlink()
        node.check_out(claim)
        assert node.runtime.plugins
        node.pod("p")


def test_many_that_do_not_come_out_are_refused_in_time_and_come_back_later(node: PodNode) -> None:
    with node.daemon():
        claims = [node.claim(name, n, pods=["p"]) for n, name in enumerate("abcdefgh")]
        for claim in claims:
            node.cdi(claim)
        node.fault("plug-7.fail")
        faults = [node.fault(f"plug-{n}.stuck") for n in range(8)]
        with pytest.raises(Refused, match="plug plug-7 does not fit"):
            node.pod("p")
        assert node.runtime.plugins, "it was in time for all of them together"
        for fault in faults:
            fault.unlink()
        for claim in claims:
            until(lambda claim=claim: node.is_out(claim), "it comes back")  # type: ignore[misc]
            assert node.states(claim) == ["planned", "planned", "out"]


def test_one_that_hangs_is_refused_in_time_and_comes_back_later(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p"])
        node.cdi(claim)
        fault = node.fault("plug-0.hang")
        with pytest.raises(Refused, match="did not answer in time"):
            node.pod("p")
        fault.unlink()
        until(lambda: node.is_out(claim), "it comes back")
        node.check_out(claim)
        assert node.runtime.plugins


def test_a_second_pod_is_refused(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p", "q"])
        cdi = node.cdi(claim)
        first = node.pod("p")
        with pytest.raises(
            Refused, match=r"claim default/c.* is in another pod \(uid 'p'\): one pod at a time"
        ):
            node.pod("q")
        node.check_in(claim, 0, node.number(first))
        node.runtime.stop_pod(first)
        second = node.pod("q")
        node.check_in(claim, 0, node.number(second))
        stranger = node.pod("stranger")
        with pytest.raises(Refused, match="is in another pod"):
            node.runtime.create(stranger, cdi=cdi)
        node.runtime.create(second, cdi=cdi)


def test_containers_are_answered_while_a_claim_is_journalled_that_asks_for_what_is_held(
    node: PodNode,
) -> None:
    with node.daemon():
        cdi = node.cdi(node.claim("c", 0, pods=["p"]))
        pod = node.pod("p")
        asked = (Pod(pod.id, pod.uid, pod.namespace, pod.name), Container("x", pod.id, cdi_devices=cdi))
        with ThreadPoolExecutor(1) as worker, node.journal.transaction():
            worker.submit(node.side.containers.create_container, *asked).result(timeout=10)
            assert not node.side.containers.held()


def test_a_repeat_does_not_depend_on_what_the_claim_says_now(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p"])
        cdi = node.cdi(claim)
        body = json.loads((node.claims / "c.json").read_text())
        (node.claims / "c.json").write_text(json.dumps(body | {"status": {}}))
        assert node.cdi(claim) == cdi
        pod = node.pod("p")
        node.check_in(claim, 0, node.number(pod))
        assert node.cdi(claim) == cdi
        node.check_in(claim, 0, node.number(pod))


def test_a_pod_that_reserved_the_claim_after_prepare_gets_it(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p"])
        node.cdi(claim)
        node.claim("c", 0, pods=["p", "q"])
        pod = node.pod("q")
        node.check_in(claim, 0, node.number(pod))
        made = node.claim("t", 1, pods=["p"], template=True)
        node.cdi(made)
        asked = node.source.asked
        node.pod("other")
        assert node.source.asked == asked, "a claim from a template has one pod for life"


def test_a_pod_without_a_claim_is_made_while_claims_cannot_be_read(node: PodNode) -> None:
    with node.daemon():
        node.cdi(node.claim("c", 0, pods=["p"]))
        node.source.reachable = False
        node.pod("other")
        node.pod("other")
        pod = node.pod("p")
        assert set(node.inside.values()) == {node.number(pod)}


def test_a_pod_of_the_host_network_is_refused(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p"])
        node.cdi(claim)
        with pytest.raises(Refused, match=r"has the host's \(hostNetwork\)"):
            node.runtime.run_pod("p", uid="p", network="")
        node.check_out(claim)
        node.runtime.run_pod("other", uid="other", network="")


def test_a_pod_whose_namespace_is_not_there_is_refused(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p"])
        node.cdi(claim)
        with pytest.raises(Refused, match="No such file"):
            node.runtime.run_pod("p", uid="p", network=str(node.netns / "absent"))
        node.check_out(claim)


def test_the_namespace_is_kept_open_until_the_claim_has_left_it(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p"])
        node.cdi(claim)
        pod = node.pod("p")
        path = Path(pod.linux.namespaces[0].path)
        assert node.open_namespaces() == [str(path)]
        assert node.backend.log[-1][2] == str(path)
        path.unlink()
        del pod.linux.namespaces[:]
        node.runtime.stop_pod(pod)
        assert node.backend.log[-1][0] == "revert"
        assert "/fd/" in node.backend.log[-1][2]
        node.check_out(claim)


def test_a_new_sandbox_takes_over_where_no_stop_was_heard(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p"])
        node.cdi(claim)
        old = node.pod("p")
        new = node.pod("p")
        node.check_in(claim, 0, node.number(new))
        node.runtime.stop_pod(old)
        node.check_in(claim, 0, node.number(new))
        assert len(node.open_namespaces()) == 1


def test_what_does_not_come_out_at_stop_comes_out_later(node: PodNode) -> None:
    with node.daemon():
        claim = node.claim("c", 0, pods=["p"])
        node.cdi(claim)
        pod = node.pod("p")
        fault = node.fault("plug-0.jammed")
        node.runtime.stop_pod(pod)
        assert node.specs == {}, "no container can be made meanwhile"
        assert node.states(claim)[0] == "applying"
        fault.unlink()
        until(lambda: node.is_out(claim), "it comes out")
        node.check_out(claim)


class TestAdmission:
    def test_refused_without_nri(self, node: PodNode) -> None:
        with node.daemon(joined=False, join=False):
            told = node.prepare(node.claim("c", 0, pods=["p"]))
            assert str(told) == (
                "the container runtime must be asked to put plug-0-0 into the pod, and cannot be: "
                "NRI is off in the configuration of dradriver (nri.enabled)"
            )

    def test_refused_where_the_pod_is_not_known(self, node: PodNode) -> None:
        with node.daemon():
            for claim in (node.claim("c", 0), node.claim("g", 1, groups=["group"])):
                assert "reserve the claim for a pod by name (status.reservedFor)" in str(node.prepare(claim))


class TestRestart:
    @pytest.mark.parametrize("stays", [True, False])
    def test_a_claim_that_is_in_its_pod(self, node: PodNode, stays: bool) -> None:
        with node.daemon():
            claim = node.claim("c", 0, pods=["p"])
            cdi = node.cdi(claim)
            pod = node.pod("p")
        number = node.number(pod)
        assert node.open_namespaces() == []
        for spec in (node.root / "cdi").iterdir():
            spec.unlink()
        if not stays:
            node.runtime.pods.clear()
        with node.daemon(joined=False, join=False):
            node.check_in(claim, 0, number)
            assert len(node.open_namespaces()) == 1, "it is opened again"
        with node.daemon():
            if stays:
                node.check_in(claim, 0, number)
                node.runtime.create(pod, cdi=cdi)
                node.check_in(claim, 0, number)
                node.runtime.stop_pod(pod)
            until(lambda: node.is_out(claim), "it comes back")
            node.check_out(claim)

    def test_what_is_in_a_pod_is_seen_before_anything_is_made_of_what_is_seen(
        self, node: PodNode, caplog: pytest.LogCaptureFixture
    ) -> None:
        with node.daemon():
            claim = node.claim("c", 0, pods=["p"])
            node.cdi(claim)
            pod = node.pod("p")
        with node.daemon(settles=False, join=False, joined=False):
            node.check_in(claim, 0, node.number(pod))
            assert "plug-0" in node.pools.all[0].snapshot.index
        assert "no longer on this node" not in caplog.text

    def test_a_claim_that_is_only_half_there_goes_in_again(self, node: PodNode) -> None:
        with node.daemon():
            claim = node.claim("c", 0, pods=["p"])
            node.cdi(claim)
            pod = node.pod("p")
        (node.plugs / "in-plug-0-1").unlink()
        with node.daemon(join=False, joined=False):
            node.check_out(claim)
        with node.daemon():
            until(lambda: node.specs and node.states(claim)[1] == "applied", "it goes in again")
            node.check_in(claim, 0, node.number(pod))

    def test_after_a_reboot_nothing_counts(self, node: PodNode) -> None:
        with node.daemon():
            claim = node.claim("c", 0, pods=["p"])
            node.cdi(claim)
            node.pod("p")
        node.runtime.pods.clear()
        with node.daemon("boot-2"):
            assert node.journal.records() == []
            assert (node.inside, node.specs, node.open_namespaces()) == ({}, {}, [])
            assert all(netns == "" for verb, _, netns in node.backend.log if verb == "revert")

    def test_a_lost_journal_is_taken_over_from_the_files(self, node: PodNode) -> None:
        with node.daemon():
            claim = node.claim("c", 0, pods=["p"])
            node.cdi(claim)
            pod = node.pod("p")
        for file in node.root.glob("journal.db*"):
            file.unlink()
        with node.daemon():
            node.check_in(claim, 0, node.number(pod))
            node.runtime.stop_pod(pod)
            node.check_out(claim)

    def test_the_runtime_starts_again(self, node: PodNode) -> None:
        with node.daemon():
            kept, gone = node.claim("a", 0, pods=["p"]), node.claim("b", 1, pods=["q"])
            node.cdi(kept)
            node.cdi(gone)
            first, second = node.pod("p"), node.pod("q")
            node.runtime.stop()
            del node.runtime.pods[second.id]
            late = node.runtime.run_pod("r", uid="r", network=str(node.namespace("r")))
            node.runtime.start()
            until(lambda: node.states(gone)[-1] == "out", "the claim of the pod that is gone comes back")
            node.check_in(kept, 0, node.number(first))
            del node.runtime.pods[late.id]

    def test_the_runtime_starts_again_and_tells_of_no_end_of_the_pods_that_it_found(
        self, node: PodNode
    ) -> None:
        with node.daemon():
            claim = node.claim("c", 0, pods=["p", "q"])
            cdi = node.cdi(claim)
            first = node.pod("p")
            before = node.runtime.plugin()
            node.runtime.restart()
            node.runtime.plugin(besides=before)
            node.runtime.stop_pod(first)
            node.check_in(claim, 0, node.number(first))
            with pytest.raises(Refused, match="one pod at a time"):
                node.pod("q")
            Path(first.linux.namespaces[0].path).unlink()
            second = node.pod("q")
            node.check_in(claim, 0, node.number(second))
            node.runtime.create(second, cdi=cdi)
            node.runtime.stop_pod(second)
            node.check_out(claim)

    def test_a_pod_that_was_made_without_us_gets_its_claim(self, node: PodNode) -> None:
        with node.daemon():
            claim = node.claim("c", 0, pods=["p"])
            node.cdi(claim)
            node.runtime.stop()
            pod = node.runtime.run_pod("p", uid="p", network=str(node.namespace("p")))
            assert node.inside == {}
            node.runtime.start()
            until(lambda: node.specs, "it goes in")
            until(lambda: node.states(claim)[1] == "applied", "it is journalled")
            node.check_in(claim, 0, node.number(pod))


DEATHS = [(when, part) for when in ("before", "within", "after") for part in (0, 1)]
WRITES = [(left, after) for left in range(6) for after in (False, True)]


def settled(node: PodNode, runtime: NriRuntime, *, lives: bool) -> None:
    """Start again with the pod there or gone, and see that all of the claim is in it or nothing."""
    ref = node.claim("c", 0, pods=["p"])
    box = sandbox(node)
    if lives:
        pod = runtime.run_pod("p", uid="p", network=box.netns)
        pod.id = box.id
        runtime.pods = {box.id: pod}
    with node.daemon():
        if lives:
            until(lambda: node.specs and node.states(ref)[1] == "applied", "it goes in")
            node.check_in(ref, 0, str(Path(box.netns).stat().st_ino))
        else:
            until(lambda: node.is_out(ref), "it comes back")
            node.check_out(ref)
        assert list(node.plugs.glob("fixed-*"))


@pytest.mark.parametrize("lives", [True, False])
class TestKilled:
    @pytest.mark.parametrize(("when", "part"), DEATHS)
    def test_in_a_step(self, node: PodNode, when: str, part: int, lives: bool) -> None:
        with node.daemon(settles=False):
            node.cdi(node.claim("c", 0, pods=["p"]))
            node.backend.dies = (when, part)
            with pytest.raises(Killed):
                node.engine.sandboxes.run(sandbox(node))
        settled(node, node.runtime, lives=lives)

    @pytest.mark.parametrize(("left", "after"), WRITES)
    def test_at_a_write_of_the_journal(self, node: PodNode, left: int, after: bool, lives: bool) -> None:
        with node.daemon(settles=False):
            node.cdi(node.claim("c", 0, pods=["p"]))
            node.journal.left, node.journal.after = left, after
            with suppress(Killed):
                node.engine.sandboxes.run(sandbox(node))
            node.journal.left = None
        settled(node, node.runtime, lives=lives)

    @pytest.mark.parametrize("part", [0, 1])
    def test_on_the_way_back(self, node: PodNode, part: int, lives: bool) -> None:
        with node.daemon(settles=False):
            node.cdi(node.claim("c", 0, pods=["p"]))
            node.engine.sandboxes.run(sandbox(node))
            node.backend.dies = ("back", part)
            with suppress(Killed):
                node.engine.sandboxes.stop("sandbox-p")
        settled(node, node.runtime, lives=lives)

    @pytest.mark.parametrize(("left", "after"), WRITES[:4])
    def test_at_a_write_on_the_way_back(self, node: PodNode, left: int, after: bool, lives: bool) -> None:
        with node.daemon(settles=False):
            node.cdi(node.claim("c", 0, pods=["p"]))
            node.engine.sandboxes.run(sandbox(node))
            node.journal.left, node.journal.after = left, after
            with suppress(Killed):
                node.engine.sandboxes.stop("sandbox-p")
            node.journal.left = None
        settled(node, node.runtime, lives=lives)


def test_fifty_pods_in_parallel(node: PodNode) -> None:
    with node.daemon():

        def life(number: int) -> None:
            claim = node.claim(f"c{number}", number, pods=[f"p{number}"], template=True)
            cdi = node.cdi(claim)
            pod = node.pod(f"p{number}")
            assert node.inside[f"plug-{number}-1"] == node.number(pod)
            container = node.runtime.create(pod, cdi=cdi)
            node.runtime.end(container)
            node.runtime.stop_pod(pod)
            node.runtime.remove_pod(pod)
            node.unprepare(claim)
            done.append(number)

        done: list[int] = []
        at_once([lambda n=n: life(n) for n in range(50)])
        assert sorted(done) == list(range(50))
        assert (node.inside, node.specs, node.open_namespaces()) == ({}, {}, [])
        assert node.journal.records() == []
        assert node.engine.devices_in_use(DRIVER) == frozenset()
        assert len([1 for method, _ in node.runtime.plugins[0].calls if method == "RunPodSandbox"]) == 50
