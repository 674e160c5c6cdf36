"""The whole way of a GPU's trouble in a real daemon: from the driver to the slices and the kubelet's health stream."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import daemons
import nvmlnodes
from dradriver.model import Health
from gpunode import GpuNode
from nvmlstub import DOUBLE_BIT_ECC
from waiting import eventually

GPU = "gpu.dradriver.io"
SOON = 4.0
"""Seconds within which an event must be told of. It takes a fifth of a second, but for a machine that has more to do;
nothing but the event makes it so: the next probe is an hour away."""

THIRD = "gpu-0000-61-00-0"


@pytest.fixture
def hardware(tmp_path: Path) -> GpuNode:
    return GpuNode(tmp_path, nvmlnodes.h100(4))


@pytest.fixture
def host(hardware: GpuNode) -> Iterator[daemons.Node]:
    with daemons.node() as host:
        host.start(
            f"""
hostRoot: {hardware.directory}
rescanSeconds: 3600
drivers: [{{name: {GPU}, backends: [gpu]}}]
backends: {{gpu: {{mode: partitions, migMode: switch, passthrough: true, fatalTaint: NoExecute}}}}
"""
        )
        host.ready(2)
        hardware.stub.record()
        hardware.stub.wait_for_call("nvmlEventSetWait_v2", "returned")
        hardware.stub.record(calls=False)
        # The probe after the events are asked for is over.
        time.sleep(0.5)
        yield host


def taints(host: daemons.Node) -> dict[str, set[tuple[str, str, str]]]:
    """Return key, value and effect of the taints of the devices that have some."""
    return {
        name: {(taint["key"], taint.get("value", ""), taint["effect"]) for taint in device["taints"]}
        for name, device in host.devices().items()
        if device.get("taints")
    }


def seconds_until_told(host: daemons.Node, text: str, times: int) -> float:
    """Return the seconds until a text stands so many times in the slices; reading them as YAML takes as long."""
    began = time.monotonic()
    eventually(
        lambda: sum(path.read_text().count(text) for path in host.slices.glob("*.yaml")) == times, text
    )
    return time.monotonic() - began


UNHEALTHY = ("dradriver.io/unhealthy", "", "NoSchedule")


def test_an_event_is_in_the_slices_and_in_the_health_stream_at_once(
    hardware: GpuNode, host: daemons.Node
) -> None:
    assert len(host.devices()) == 4 * 27
    assert taints(host) == {}
    with daemons.kubelet(host) as kubelet, kubelet.watch_health(GPU) as stream:
        assert {state.health for state in next(stream).values()} == {Health.HEALTHY}
        began = time.monotonic()
        hardware.stub.lose(3)
        ill = next(one for one in stream if any(state.health is Health.UNHEALTHY for state in one.values()))
        assert time.monotonic() - began < SOON
        sick = {name for (_, name), state in ill.items() if state.health is Health.UNHEALTHY}
        assert sick == {name for name in host.devices() if name.startswith(THIRD)}
        assert len(sick) == 27
        assert "lost" in ill[f"{daemons.NODE}/gpu", THIRD].message
        fatal = {(f"{GPU}/xid", "79", "NoExecute"), (f"{GPU}/lost", "", "NoExecute"), UNHEALTHY}
        assert seconds_until_told(host, "dradriver.io/xid", 27) < SOON
        assert set(taints(host)) == sick
        eventually(lambda: all(one == fatal for one in taints(host).values()), "both are told")

        hardware.stub.find(3)
        well = next(one for one in stream if all(state.health is Health.HEALTHY for state in one.values()))
        assert {state.message for state in well.values()} == {""}
        eventually(lambda: not taints(host), "the taints are gone")


def test_what_events_tell_is_there_while_the_driver_hangs(hardware: GpuNode, host: daemons.Node) -> None:
    with hardware.stub.hanging("nvmlDeviceGetMigMode", index=3):
        hardware.stub.xid(3, 119)
        assert seconds_until_told(host, "dradriver.io/xid", 27) < SOON
        hardware.stub.xid(1, 48)
        assert seconds_until_told(host, "dradriver.io/xid", 2 * 27) < SOON
        assert {name[:16] for name in taints(host)} == {THIRD, "gpu-0000-43-00-0"}
    hardware.stub.ask_recovery(3, 1)
    eventually(
        lambda: (f"{GPU}/recovery", "reset", "NoExecute") in taints(host).get(THIRD, ()),
        "a reset is asked for",
    )
    hardware.stub.ask_recovery(3, 0)
    eventually(lambda: len(taints(host)) == 27, "the third GPU is well again")


def test_a_daemon_that_is_started_again_finds_what_lasts(hardware: GpuNode, host: daemons.Node) -> None:
    hardware.stub.xid(0, 95)
    hardware.stub.change(1, ecc_uncorrected=1)
    hardware.stub.event(1, DOUBLE_BIT_ECC)
    seconds_until_told(host, "dradriver.io/xid", 27)
    seconds_until_told(host, "dradriver.io/ecc", 27)
    daemons.terminate(host.processes[-1])
    host.start((host.directory / "config.yaml").read_text())
    seconds_until_told(host, "dradriver.io/xid", 0)
    seconds_until_told(host, "dradriver.io/ecc", 27)
    found = taints(host)
    assert len(found) == 27
    assert all(one == {(f"{GPU}/ecc", "uncorrected", "NoSchedule"), UNHEALTHY} for one in found.values())
