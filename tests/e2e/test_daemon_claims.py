"""A real daemon on this host, called over its sockets: claims for the machine's own CPUs and memory."""

import json
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import daemons
from daemons import cpu_result, memory_result
from dradriver.model import ClaimRef
from dradriver.sim.kubelet import Kubelet
from dradriver_cdi import Spec, validate

CPU, MEMORY = "cpu.dradriver.io", "memory.dradriver.io"


@pytest.fixture(scope="module")
def host() -> Iterator[daemons.Node]:
    """A node with a running daemon, and this host's hardware."""
    with daemons.node() as node:
        node.start()
        node.ready()
        yield node


@pytest.fixture
def kubelet(host: daemons.Node) -> Iterator[Kubelet]:
    with daemons.kubelet(host) as small:
        yield small


@pytest.fixture
def device(host: daemons.Node) -> str:
    """The CPU device with most CPUs; none of the tests needs more than one node's."""
    devices = {name: body for name, body in host.devices().items() if "cpu" in body.get("capacity", {})}
    return max(devices, key=lambda name: int(devices[name]["capacity"]["cpu"]["value"]))


def nothing_is_left(node: daemons.Node) -> bool:
    return not list(node.cdi.iterdir())


def cdi_spec(node: daemons.Node, driver: str, claim: ClaimRef) -> dict[str, Any]:
    """Return the CDI file of a claim, held to the rules of CDI."""
    (path,) = node.cdi.glob(f"{driver}-claim-{claim.uid}.json")
    body = json.loads(path.read_text())
    validate(Spec.from_dict(body))
    return dict(body)


def environment(spec: dict[str, Any]) -> dict[str, str]:
    (device,) = spec["devices"]
    return dict(entry.split("=", 1) for entry in device["containerEdits"]["env"])


def memory_device(node: daemons.Node) -> str:
    return next(name for name, body in node.devices().items() if "memory" in body.get("capacity", {}))


def test_one_cpu_and_64_mib_of_this_host_are_prepared_repeated_and_given_back(
    host: daemons.Node, kubelet: Kubelet, device: str
) -> None:
    memory = memory_device(host)
    claim = host.claim("first", [cpu_result("1", device), memory_result("64Mi", memory)])

    prepared = {driver: kubelet.prepare(driver, [claim])[claim.uid] for driver in (CPU, MEMORY)}

    for driver, name in ((CPU, device), (MEMORY, memory)):
        devices = prepared[driver]
        assert not isinstance(devices, str), devices
        (entry,) = devices
        assert entry.device == name
        assert entry.cdi_ids == (f"{driver}/claim={claim.uid}-0",)
        spec = cdi_spec(host, driver, claim)
        assert [one["name"] for one in spec["devices"]] == [f"{claim.uid}-0"]
    cpuset = next(
        value
        for key, value in environment(cdi_spec(host, CPU, claim)).items()
        if key.startswith("DRA_CPUSET_")
    )
    assert int(cpuset) in range(os.cpu_count() or 1)

    before = {path.name: path.read_bytes() for path in host.cdi.iterdir()}
    again = {driver: kubelet.prepare(driver, [claim])[claim.uid] for driver in (CPU, MEMORY)}
    assert again == prepared
    assert {path.name: path.read_bytes() for path in host.cdi.iterdir()} == before

    for driver in (CPU, MEMORY):
        assert kubelet.unprepare(driver, [claim]) == {claim.uid: None}
    assert nothing_is_left(host)


def test_a_cpu_that_is_held_is_refused_with_the_name_of_its_holder(
    host: daemons.Node, kubelet: Kubelet, device: str
) -> None:
    everything = host.devices()[device]["capacity"]["cpu"]["value"]
    first = host.claim("holder", [cpu_result(everything, device)])
    second = host.claim("late", [cpu_result("1", device)])
    assert not isinstance(kubelet.prepare(CPU, [first])[first.uid], str)

    refusal = kubelet.prepare(CPU, [second])[second.uid]

    assert isinstance(refusal, str)
    assert f"default/holder ({first.uid})" in refusal
    kubelet.unprepare(CPU, [first])
    assert not isinstance(kubelet.prepare(CPU, [second])[second.uid], str)
    kubelet.unprepare(CPU, [second])
    assert nothing_is_left(host)


def opaque(parameters: Any, requests: list[str] | None = None, driver: str = CPU) -> dict[str, Any]:
    return {
        "source": "FromClaim",
        "requests": requests or [],
        "opaque": {"driver": driver, "parameters": parameters},
    }


def config(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "dradriver.io/v1alpha1", "kind": "CpuConfig", **fields}


LONG = "x" * 10_000


@pytest.mark.parametrize(
    ("result", "configs", "expected"),
    [
        ({"consumedCapacity": {"cpu": "500m"}}, [], "500m"),
        ({"consumedCapacity": {"cpu": "-1"}}, [], "-1"),
        ({"consumedCapacity": {"cpu": "0"}}, [], "0"),
        ({"consumedCapacity": {"cpu": "100000"}}, [], "100"),
        ({"consumedCapacity": {"cpu": "one"}}, [], "consumedCapacity['cpu']: quantity 'one'"),
        ({"consumedCapacity": "1"}, [], r"claim.status.allocation.devices.results[0].consumedCapacity"),
        ({"device": "cpu-numa-77"}, [], "device 'cpu-numa-77' of pool node-a/cpu is not on this node"),
        (
            {"device": "../../etc/passwd"},
            [],
            "device '../../etc/passwd' of pool node-a/cpu is not on this node",
        ),
        ({"device": LONG}, [], "(10000 characters) of pool node-a/cpu is not on this node"),
        ({"pool": "node-b/cpu"}, [], "pool 'node-b/cpu' is not one of this node's, which are node-a/cpu"),
        ({"pool": LONG}, [], "(10000 characters) is not one of this node's"),
        ({"request": 7}, [], "results[0].request: a string is expected, found '7', an integer"),
        ({}, [opaque(config(memory="far"))], "parameters.memory: 'far' is not one of local, any"),
        ({}, [opaque(config(memroy="any"))], "parameters.memroy: unknown field 'memroy'; allowed are memory"),
        ({}, [opaque(config(**{LONG: 1}))], "(10000 characters)"),
        ({}, [opaque(config(memory=LONG))], "(10000 characters) is not one of"),
        ({}, [opaque(config(memory=["any"]))], "parameters.memory: "),
        (
            {},
            [opaque(config() | {"apiVersion": "v1"})],
            "parameters.apiVersion: dradriver.io/v1alpha1 is expected",
        ),
        (
            {},
            [opaque(config() | {"kind": "GpuConfig"})],
            "parameters.kind: 'GpuConfig' is unknown; known are ",
        ),
        ({}, [opaque("text")], "parameters: an object with apiVersion and kind is expected"),
        ({}, [opaque(None)], "parameters: an object with apiVersion and kind is expected"),
    ],
)
def test_a_bad_claim_gets_its_own_error_and_changes_nothing(
    host: daemons.Node,
    kubelet: Kubelet,
    device: str,
    result: dict[str, Any],
    configs: list[dict[str, Any]],
    expected: str,
) -> None:
    bad = host.claim("bad", [cpu_result("1", device) | result], configs)
    good = host.claim("good", [cpu_result("1", device)])

    answers = kubelet.prepare(CPU, [bad, good])

    refusal = answers[bad.uid]
    assert isinstance(refusal, str)
    assert expected in refusal
    assert len(refusal) < 1_200
    assert refusal.isprintable()
    assert not isinstance(answers[good.uid], str)
    assert [path.name for path in host.cdi.iterdir()] == [f"{CPU}-claim-{good.uid}.json"]
    assert kubelet.unprepare(CPU, [bad, good]) == {bad.uid: None, good.uid: None}
    assert nothing_is_left(host)


def test_a_claim_that_is_replaced_unallocated_or_absent_is_refused(
    host: daemons.Node, kubelet: Kubelet, device: str
) -> None:
    claim = host.claim("replaced", [cpu_result("1", device)])
    old = ClaimRef(str(uuid.uuid4()), claim.namespace, claim.name)
    absent = ClaimRef(str(uuid.uuid4()), "default", "absent")
    pending = ClaimRef(str(uuid.uuid4()), "default", "pending")
    metadata = {"name": "pending", "namespace": "default", "uid": pending.uid}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    host.write_claim("pending.yaml", kind | {"metadata": metadata})

    answers = kubelet.prepare(CPU, [old, absent, pending])

    assert answers[old.uid] == f"claim was replaced: its uid is now '{claim.uid}'"
    assert "no such claim" in str(answers[absent.uid])
    assert answers[pending.uid] == "claim is not allocated"
    assert nothing_is_left(host)


def test_results_of_other_drivers_are_none_of_our_business(
    host: daemons.Node, kubelet: Kubelet, device: str
) -> None:
    foreign = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0"}
    mixed = host.claim("mixed", [foreign, cpu_result("1", device)])
    other = host.claim("other", [foreign], [opaque({"anything": 1}, driver="gpu.nvidia.com")])

    answers = kubelet.prepare(CPU, [mixed, other])

    devices = answers[mixed.uid]
    assert not isinstance(devices, str), devices
    assert [entry.device for entry in devices] == [device]
    assert answers[other.uid] == ()
    kubelet.unprepare(CPU, [mixed, other])
    assert nothing_is_left(host)


@pytest.mark.parametrize("uid", ["", "../../../etc/passwd", "a b", "a\nb", "-rf", "uid=1", LONG, "é" * 40])
def test_a_hostile_uid_reaches_nothing(host: daemons.Node, kubelet: Kubelet, uid: str) -> None:
    claim = ClaimRef(uid, "default", "hostile")
    answer = kubelet.prepare(CPU, [claim])[uid]
    assert isinstance(answer, str)
    assert re.search(r"uid .* is not a UID", answer)
    assert len(answer) < 300
    assert kubelet.unprepare(CPU, [claim]) == {uid: None}
    assert nothing_is_left(host)


def test_unknown_claims_are_unprepared_already(host: daemons.Node, kubelet: Kubelet) -> None:
    unknown = [ClaimRef(str(uuid.uuid4()), "default", f"unknown-{n}") for n in range(100)]
    assert kubelet.unprepare(MEMORY, unknown) == {claim.uid: None for claim in unknown}


def test_the_directories_of_the_driver_are_its_own(host: daemons.Node) -> None:
    for driver in (CPU, MEMORY):
        assert (host.kubelet_root / "plugins" / driver).stat().st_mode & 0o777 == 0o700
    assert (host.directory / "state").stat().st_mode & 0o777 == 0o700


def test_present_devices_are_healthy_in_both_versions_of_the_stream(
    host: daemons.Node, kubelet: Kubelet
) -> None:
    for version in ("v1alpha1", "v1"):
        with kubelet.watch_health(CPU, version) as stream:
            states = next(stream)
        offered = {name for name, body in host.devices().items() if "cpu" in body.get("capacity", {})}
        assert {name for _, name in states} == offered
        assert {state.health.value for state in states.values()} == {"Healthy"}
