"""A real daemon on a fake DGX: what it publishes, prepares, reports and leaves behind."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import daemons
from dradriver.backend import API_VERSION
from dradriver.model import ClaimRef, Health
from dradriver.sim.kubelet import Kubelet
from dradriver_cdi import Spec, validate
from dradriver_fake import clear_faults, complaints, leftovers, set_fault
from gpumachine import gpu_config
from nicdaemons import opaque
from waiting import PATIENCE, eventually

CONFIG = "fake: {node: dgx-h100}"
GPU, NIC, CPU = "gpu.dradriver.io", "nic.dradriver.io", "cpu.dradriver.io"
TYPE = {"apiVersion": API_VERSION}
FIRST, SECOND = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"


@pytest.fixture(scope="module")
def dgx() -> Iterator[daemons.Node]:
    """A node with a running daemon, and the hardware of a DGX."""
    with daemons.node() as node:
        node.start(CONFIG)
        node.ready(slices=8)
        yield node
        root = node.directory / "state/hardware"
        assert not leftovers(root), "nothing leaked"
        assert not complaints(root)


@pytest.fixture
def kubelet(dgx: daemons.Node) -> Iterator[Kubelet]:
    with daemons.kubelet(dgx) as small:
        yield small


def result(device: str, request: str = "r", **more: Any) -> dict[str, Any]:
    kind = device.partition("-")[0]
    pool = f"{daemons.NODE}/{kind}"
    return {"request": request, "driver": f"{kind}.dradriver.io", "pool": pool, "device": device, **more}


def prepare(kubelet: Kubelet, driver: str, claim: ClaimRef) -> Any:
    return kubelet.prepare(driver, [claim])[claim.uid]


def cdi_spec(node: daemons.Node, name: str) -> dict[str, Any]:
    body = json.loads((node.cdi / f"{name}.json").read_text())
    validate(Spec.from_dict(body))
    return dict(body)


def test_all_of_the_node_is_published(dgx: daemons.Node) -> None:
    by_driver: dict[str, int] = {}
    for spec in dgx.published():
        by_driver[spec["driver"]] = by_driver.get(spec["driver"], 0) + len(spec.get("devices", ()))
    assert by_driver == {GPU: 8 * 26, NIC: 10, CPU: 2, "memory.dradriver.io": 4}
    assert "is not published" not in dgx.log()
    assert "is dropped" not in dgx.log()
    devices = dgx.devices()
    switch = "dradriver.io/pcieSwitch"
    assert devices[FIRST]["attributes"][switch] == devices["nic-0000-18-00-0"]["attributes"][switch]


def test_a_partition_a_card_and_cpus_of_one_claim_are_prepared_and_given_back(
    dgx: daemons.Node, kubelet: Kubelet
) -> None:
    partition = f"{FIRST}-mig-3g-40gb-4"
    claim = dgx.claim(
        "aligned",
        [
            result(partition, "gpu"),
            result("nic-0000-18-00-0", "nic"),
            daemons.cpu_result("8", "cpu-numa-0"),
        ],
    )
    answers = {driver: prepare(kubelet, driver, claim) for driver in (GPU, NIC, CPU)}
    assert [device.device for device in answers[GPU]] == [partition]
    (device,) = cdi_spec(dgx, f"{GPU}-claim-{claim.uid}")["devices"]
    assert any("=MIG-" in entry for entry in device["containerEdits"]["env"])
    base = cdi_spec(dgx, f"{GPU}-base")
    assert base["devices"][0]["containerEdits"]["mounts"]
    root = dgx.directory / "state/hardware"
    assert len(leftovers(root)) == 3, "a GPU instance, a compute instance and a card in a pod"
    assert {driver: prepare(kubelet, driver, claim) for driver in answers} == answers
    for driver in answers:
        assert kubelet.unprepare(driver, [claim]) == {claim.uid: None}
    assert not leftovers(root)


def test_configuration_is_checked_as_for_real_hardware(dgx: daemons.Node, kubelet: Kubelet) -> None:
    sharing = gpu_config({"sharing": {"timeSlicing": {"interval": "Long"}}})
    card = opaque({"interface": {"name": "net1", "mtu": 9000}})
    claim = dgx.claim(
        "configured", [result(SECOND, "gpu"), result("nic-0000-18-00-0", "nic")], [sharing, card]
    )
    for driver in (GPU, NIC):
        assert not isinstance(prepare(kubelet, driver, claim), str)
        assert kubelet.unprepare(driver, [claim]) == {claim.uid: None}
    for config, driver, message in (
        (gpu_config({"sharing": {"timeslicing": {}}}), GPU, "sharing.timeslicing: unknown field"),
        (opaque({"interface": {"name": "a/b"}}), NIC, "is no name of an interface"),
    ):
        wrong = dgx.claim("wrong", [result(SECOND, "gpu"), result("nic-0000-18-00-0", "nic")], [config])
        assert message in prepare(kubelet, driver, wrong)
    unknown = gpu_config({}) | {"opaque": {"driver": GPU, "parameters": {**TYPE, "kind": "TpuConfig"}}}
    refused = prepare(kubelet, GPU, dgx.claim("unknown", [result(SECOND, "gpu")], [unknown]))
    assert "'TpuConfig' is unknown; known are CpuConfig, GpuConfig, NicConfig" in refused


def test_a_gpu_that_vanishes_is_withdrawn_and_published_again(dgx: daemons.Node, kubelet: Kubelet) -> None:
    root = dgx.directory / "state/hardware"
    claim = dgx.claim("held", [result(f"{SECOND}-mig-1g-10gb-6")])
    assert not isinstance(prepare(kubelet, GPU, claim), str)
    set_fault(root, SECOND, "vanish")
    eventually(lambda: SECOND not in dgx.devices(), "the GPU is withdrawn")
    assert len([name for name in dgx.devices() if name.startswith("gpu-")]) == 7 * 26
    refused = prepare(kubelet, GPU, dgx.claim("late", [result(SECOND)]))
    assert f"device '{SECOND}' of pool {daemons.NODE}/gpu is not on this node" in refused
    clear_faults(root)
    eventually(lambda: SECOND in dgx.devices(), "the GPU is published again")
    assert kubelet.unprepare(GPU, [claim]) == {claim.uid: None}


def test_a_sick_gpu_is_reported_by_the_health_stream(dgx: daemons.Node, kubelet: Kubelet) -> None:
    root = dgx.directory / "state/hardware"
    with kubelet.watch_health(GPU) as stream:
        states = islice(stream, 100)
        assert {state.health for state in next(states).values()} == {Health.HEALTHY}
        set_fault(root, SECOND, "sick", message="XID 48: double bit ECC error")
        found = next(one for one in states if any(state.health is Health.UNHEALTHY for state in one.values()))
    unhealthy = {name for (_, name), state in found.items() if state.health is Health.UNHEALTHY}
    assert len(unhealthy) == 26
    assert all(name.startswith(SECOND) for name in unhealthy)
    assert found[f"{daemons.NODE}/gpu", SECOND].message == "XID 48: double bit ECC error"
    clear_faults(root)


def test_a_daemon_that_is_killed_between_two_ids_leaves_nothing() -> None:
    fault = f"{{device: {FIRST}, does: crash, at: half, times: 1}}"
    config = f"fake: {{node: dgx-h100, faults: [{fault}]}}"
    with daemons.node() as node:
        killed = node.start(config)
        node.ready(slices=8)
        root = node.directory / "state/hardware"
        claim = node.claim("a", [result(f"{FIRST}-mig-7g-80gb-0")])
        with daemons.kubelet(node) as small, pytest.raises(Exception, match=r"."):
            small.prepare(GPU, [claim])
        killed.wait(PATIENCE)
        assert [line.split()[0] for line in leftovers(root)] == [f"{FIRST}/gi-1"]
        node.start(config)
        eventually(lambda: not leftovers(root), "the half partition is destroyed")
        eventually(lambda: node.log().count("active on node") == 2, "the second daemon is active")
        with daemons.kubelet(node) as small:
            assert not isinstance(prepare(small, GPU, claim), str)
            assert small.unprepare(GPU, [claim]) == {claim.uid: None}
        assert not leftovers(root)
        assert not complaints(root)
