"""A real daemon at API servers that cannot store all of it, and at one whose scheduler waits for devices."""

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import commandline
import daemons
from clusterdaemons import CARD, CPU, FAKE, GPU, POOLS, Cluster, cluster, free_port, prepared, taints
from daemons import NODE
from dradriver_fake import Fault, clear_faults, set_fault, set_faults
from waiting import PATIENCE, eventually

GPU_POOL, _, CPU_POOL, _ = POOLS
PARTITION = f"{CARD}-mig-1g-6gb-0"
WHOLE = f"pool {GPU_POOL}: of devices that overlap only the largest is published"
UNSHARED = f"pool {CPU_POOL}: devices are given out whole instead of in shares"
UNTAINTED = f"pool {GPU_POOL}: taints are not published"


def events(of: Cluster) -> list[str]:
    """Return what the Events on the Node say, each as its reason and message."""
    return [f"{one['reason']}: {one['message']}" for one in of.server.store.list("Event")]


def checks(of: Cluster, status: str) -> dict[str, str]:
    """Return what `dradriver check` has to say with that status: name -> what was seen."""
    options = ("--dir", of.node.directory, "--config", of.node.directory / "config.yaml", "-o", "json")
    done = commandline.dradriver("check", *options, environment={"NODE_NAME": NODE})
    return {one["name"]: one["seen"] for one in json.loads(done.stdout)["checks"] if one["status"] == status}


def metric(port: int, name: str) -> dict[str, float]:
    """Return the samples of a metric by pool."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        sample.labels["pool"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_a_server_of_an_earlier_version_gets_the_reduced_form_and_the_full_one_once_it_can_store_it(
    version: str,
) -> None:
    port = free_port()
    with cluster(version=version) as early:
        early.start(f"{FAKE}metrics: {{address: '127.0.0.1:{port}'}}\n")
        early.ready()
        assert set(early.offered(GPU_POOL) or ()) == {CARD}
        assert "allowMultipleAllocations" not in (early.offered(CPU_POOL) or {})["cpu-numa-0"]
        assert early.log().count(WHOLE) == early.log().count(UNSHARED) == 1
        eventually(lambda: len(events(early)) == 3, "there are Events on the Node")
        assert any(one.startswith(f"SlicesReduced: {WHOLE}") for one in events(early))
        reduced = metric(port, "dradriver_publishing_reduced")
        assert reduced == dict.fromkeys(POOLS, 1.0) | {POOLS[1]: 0.0}
        assert metric(port, "dradriver_devices_published")[GPU_POOL] == 1
        seen = eventually(lambda: checks(early, "warning"), "`dradriver check` warns")
        assert "feature gate DRAPartitionableDevices" in seen[f"slices of {GPU_POOL}"]
        assert "feature gate DRAConsumableCapacity" in seen[f"slices of {CPU_POOL}"]

        # What is published can be had, and only once.
        claims = [early.claim(f"claim-{number}", CARD, "cpu-numa-0") for number in range(2)]
        with daemons.kubelet(early.node) as kubelet:
            for driver in (GPU, CPU):
                assert prepared(kubelet.prepare(driver, claims[:1]), claims[:1])
                refusal = kubelet.prepare(driver, claims[1:])[claims[1].uid]
                assert f"default/claim-0 ({claims[0].uid})" in str(refusal)
                assert kubelet.unprepare(driver, claims) == {claim.uid: None for claim in claims}

        writes = early.written()["ResourceSlice"]
        time.sleep(1.5)
        assert early.written()["ResourceSlice"] == writes == 4, "no loop over what is not stored"
        early.server.upgrade("1.36")
        early.server.faults.forget_history()
        early.server.faults.drop_connections()
        eventually(lambda: len(early.offered(GPU_POOL) or ()) == 14, "the GPU and its partitions are offered")
        eventually(lambda: "requestPolicy" in str(early.offered(CPU_POOL)), "CPUs are offered in shares")
        eventually(
            lambda: not any(metric(port, "dradriver_publishing_reduced").values()), "nothing is reduced"
        )
        eventually(lambda: not checks(early, "warning"), "`dradriver check` has nothing to say")


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("DRAPartitionableDevices", WHOLE),
        ("DRAConsumableCapacity", UNSHARED),
        ("DRADeviceTaints", UNTAINTED),
    ],
)
def test_one_gate_that_is_off_costs_what_it_guards(gate: str, said: str) -> None:
    with cluster(gates={gate: False}) as reduced:
        reduced.start()
        reduced.ready()
        hardware = reduced.node.directory / "state/hardware"
        set_fault(hardware, CARD, "sick")
        if gate == "DRADeviceTaints":
            eventually(lambda: reduced.offered(GPU_POOL) == {}, "the sick GPU is withdrawn")
        else:
            eventually(lambda: taints(reduced.offered(GPU_POOL)), "the sick GPU is tainted")
        clear_faults(hardware)
        count = 1 if gate == "DRAPartitionableDevices" else 14
        eventually(
            lambda: len(reduced.offered(GPU_POOL) or ()) == count and not taints(reduced.offered(GPU_POOL)),
            "it is offered again",
        )
        assert said in reduced.log()
        assert f"(feature gate {gate})" in reduced.log()
        others = {WHOLE, UNSHARED, UNTAINTED} - {said}
        assert not [text for text in others if text in reduced.log()]
        assert "Traceback" not in reduced.log()


BINDING = "fake: {node: small, gpuBinding: true}\n"
TOLD = "kubernetes: {bindingConditions: true}\n"
READY, FAILED = "dradriver.io/GPUReady", "dradriver.io/GPUFailed"


@pytest.fixture(scope="module")
def waiting() -> Iterator[Cluster]:
    """A cluster whose pods wait for their GPUs, with a daemon that tells."""
    with cluster() as made:
        made.start(BINDING + TOLD)
        made.ready()
        eventually(lambda: made.asked("watch", "ResourceClaim"), "claims are watched")
        yield made
        assert "Traceback" not in made.log()


def conditions(of: Cluster, claim: Any) -> set[str]:
    return {kind for told in of.told(claim).values() for kind in told}


def test_a_claim_is_told_when_its_gpu_is_ready_and_keeps_that_beside_what_prepare_says(
    waiting: Cluster,
) -> None:
    hardware = waiting.node.directory / "state/hardware"
    device = (waiting.offered(GPU_POOL) or {})[PARTITION]
    assert device["bindingConditions"] == [READY]
    assert device["bindingFailureConditions"] == [FAILED]
    sick = f"{CARD}-mig-1g-6gb-1"
    set_faults(hardware, [Fault(device=CARD, does="unready"), Fault(device=sick, does="sick")])
    eventually(lambda: sick in taints(waiting.offered(GPU_POOL)), "both are known, as what is sick shows")
    claim = waiting.claim("waits", PARTITION)
    waiting.server.requests.clear()
    time.sleep(1.0)
    assert conditions(waiting, claim) == set(), "it is not ready yet"
    clear_faults(hardware)
    eventually(lambda: conditions(waiting, claim) == {READY}, "the claim is told")
    condition = waiting.told(claim)[PARTITION][READY]
    assert (condition["status"], condition["message"]) == ("True", "the GPU is ready")
    with daemons.kubelet(waiting.node) as kubelet:
        assert prepared(kubelet.prepare(GPU, [claim]), [claim])
        eventually(lambda: conditions(waiting, claim) == {READY, "Ready"}, "it is told that it is prepared")
        assert waiting.told(claim)[PARTITION][READY] == condition
        # One for the binding, one for the status: what the two say of one device is kept apart by the server.
        eventually(lambda: waiting.written()["ResourceClaim"] == 2, "two writes")
        assert kubelet.unprepare(GPU, [claim]) == {claim.uid: None}


def test_a_claim_whose_gpu_is_sick_is_told_so_and_others_are_not_kept_waiting(waiting: Cluster) -> None:
    hardware = waiting.node.directory / "state/hardware"
    set_fault(hardware, CARD, "sick", message="XID 79: fallen off the bus")
    eventually(lambda: taints(waiting.offered(GPU_POOL)), "the GPU is known to be sick")
    claim = waiting.claim("sick", PARTITION)
    eventually(lambda: conditions(waiting, claim) == {FAILED}, "the claim is told")
    assert "XID 79" in waiting.told(claim)[PARTITION][FAILED]["message"]
    clear_faults(hardware)
    eventually(lambda: not taints(waiting.offered(GPU_POOL)), "the GPU is well")
    # Whom the API server refuses is tried again, and holds up nobody.
    waiting.server.faults.fail(500, 3, method="PATCH", path="/resourceclaims/refused")
    refused, other = waiting.claim("refused", PARTITION), waiting.claim("other", f"{CARD}-mig-1g-6gb-1")
    eventually(lambda: conditions(waiting, other) == {READY}, "the other is told")
    eventually(lambda: conditions(waiting, refused) == {READY}, "so is the one that was refused, in the end")


def test_without_the_option_nobody_is_watched_and_no_pod_made_to_wait() -> None:
    with cluster() as plain:
        plain.start(BINDING)
        plain.ready()
        plain.watched()
        device = (plain.offered(GPU_POOL) or {})[PARTITION]
        assert not [key for key in device if key.startswith("bind")]
        assert "binding conditions are not published: kubernetes.bindingConditions is not on" in plain.log()
        claim = plain.claim("any", PARTITION)
        with daemons.kubelet(plain.node) as kubelet:
            assert prepared(kubelet.prepare(GPU, [claim]), [claim])
            eventually(lambda: conditions(plain, claim) == {"Ready"}, "it is told that it is prepared")
        assert not plain.asked("list", "ResourceClaim")
        assert not plain.asked("watch", "ResourceClaim")
