"""A fake node in the configuration: what it serves, where it is kept, and what is refused."""

import json
import threading
from pathlib import Path

import msgspec
import pytest

from dradriver.config import Settings, SettingsError, load, load_backends, standin
from dradriver.slices import Pool, pool_specs
from dradriver_fake import FakeNode
from dradriver_fake.node import read_facts
from fakenode import SHARED, facts_of


def settings(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return load(file, tmp_path / "d", {"NODE_NAME": "node-a"})


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_backends(settings(tmp_path, text))
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{tmp_path}/config.yaml: ")


def test_a_fake_node_is_served_by_four_drivers_on_a_root_of_its_own(tmp_path: Path) -> None:
    found = settings(tmp_path, "fake: {node: small}")
    assert found.host_root == tmp_path / "d" / "state" / "hardware"
    assert not found.host_root.exists(), "reading the configuration makes nothing"
    loaded = load_backends(found)
    assert [(driver, backend.kind) for driver, backend in loaded] == [
        ("gpu.dradriver.io", "gpu"),
        ("nic.dradriver.io", "nic"),
        ("cpu.dradriver.io", "cpu"),
        ("memory.dradriver.io", "memory"),
    ]
    offered = {backend.kind: backend.devices(backend.probe()).devices for _, backend in loaded}
    assert {kind: len(devices) for kind, devices in offered.items()} == {
        "gpu": 14,
        "nic": 4,
        "cpu": 1,
        "memory": 2,
    }
    (cpu,) = offered["cpu"]
    assert cpu.attributes["numCPUs"] == 8


def test_drivers_and_options_can_be_named_as_for_a_real_node(tmp_path: Path) -> None:
    text = "{fake: {node: small}, drivers: [{name: all.io, backends: [nic, cpu]}], backends: {cpu: {reserved: 0-1}}}"
    loaded = load_backends(settings(tmp_path, text))
    assert [(driver, backend.kind) for driver, backend in loaded] == [("all.io", "nic"), ("all.io", "cpu")]
    (cpu,) = loaded[1][1].devices(loaded[1][1].probe()).devices
    assert cpu.attributes["numCPUs"] == 6


def test_the_hardware_is_built_once_and_kept(tmp_path: Path) -> None:
    load_backends(settings(tmp_path, "fake: {node: small}"))
    hardware = tmp_path / "d" / "state" / "hardware"
    boot = (hardware / "proc/sys/kernel/random/boot_id").read_text()
    load_backends(settings(tmp_path, "fake: {node: small, gpuMode: whole}"))
    assert (hardware / "proc/sys/kernel/random/boot_id").read_text() == boot
    assert json.loads((hardware / "fake/options.json").read_text())["gpuMode"] == "whole"


def test_several_processes_may_build_it_at_once(tmp_path: Path) -> None:
    found = settings(tmp_path, "fake: {node: small}")
    failures: list[BaseException] = []

    def build() -> None:
        try:
            load_backends(found)
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [path.name for path in found.host_root.parent.iterdir()] == ["hardware"]


def test_facts_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(facts_of("small"), node="mine")))
    found = settings(tmp_path, f"fake: {{node: {file}, directory: {tmp_path}/hw}}")
    load_backends(found)
    assert json.loads((tmp_path / "hw/fake/node.json").read_text())["facts"]["node"] == "mine"


RECORDED = sorted((SHARED / "nodes").glob("*.yaml"))


@pytest.mark.skipif(not RECORDED, reason=f"{SHARED}: no recorded facts there")
@pytest.mark.parametrize("file", RECORDED, ids=lambda file: str(file.stem))
def test_all_of_a_recorded_node_can_be_published(file: Path, tmp_path: Path) -> None:
    facts = read_facts(file.read_bytes(), file.name)
    for _, backend in load_backends(settings(tmp_path, f"fake: {{node: {file}, nicMode: both}}")):
        content = backend.devices(backend.probe())
        specs = pool_specs(Pool("a.io", "n1", f"n1/{backend.kind}"), content)
        assert not specs.left_out
        assert not specs.warnings
        if backend.kind == "nic":
            assert len(content.devices) == len(facts.nics) + len(facts.vfs)
        elif backend.kind == "gpu":
            assert len({device.thing for device in content.devices}) == len(facts.gpus)
        else:
            assert content.devices


def test_hardware_of_another_node_is_not_touched(tmp_path: Path) -> None:
    load_backends(settings(tmp_path, "fake: {node: small}"))
    message = refusal(tmp_path, "fake: {node: telco-edge}")
    assert message.startswith("fake.directory: ")
    assert "is the hardware of another node ('small')" in message
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    message = refusal(tmp_path, f"fake: {{node: small, directory: {tmp_path}/other}}")
    assert message.startswith(f"fake.directory: {tmp_path}/other holds something else")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fake: {}", "fake: Object missing required field `node`"),
        (
            "fake: {node: dgx}",
            "fake.node: 'dgx' is neither an absolute path nor one of dgx-h100, gb200-tray, ",
        ),
        ("fake: {node: /absent.yaml}", "fake.node: '/absent.yaml' cannot be read: "),
        ("fake: {node: small, gpuMode: mig}", "fake.gpuMode: 'mig' is not one of partitions, whole, shares"),
        ("fake: {node: small, nicMode: sf}", "fake.nicMode: 'sf' is not one of vf, pf, both, shares"),
        ("fake: {node: small, gpus: 8}", "fake.gpus: unknown field 'gpus'; allowed are directory, faults, "),
        (
            "fake: {node: small, gpuModes: {gpu-0: whole}}",
            "fake.gpuModes: 'gpu-0' is none of gpu-0000-43-00-0",
        ),
        ("fake: {node: small, nicModes: {nic-0: pf}}", "fake.nicModes: 'nic-0' is none of nic-0000-44-00-0"),
        ("fake: {node: small, directory: hw}", "fake: directory: an absolute path without '..' is expected"),
        ("fake: {node: small, faults: [{device: a, does: b}]}", "fake.faults[0].does: 'b' is not one of "),
        (
            "fake: {node: small, faults: [{device: '*', does: sick}, {device: gpu-0000-43-00-1, does: sick}]}",
            (
                "fake.faults[1].device: 'gpu-0000-43-00-1' is no device of this node: there are gpu-0000-43-00-0, "
                "nic-0000-44-00-0, nic-0000-01-00-0, and what they are offered as (dradriver devices); near it is "
                "gpu-0000-43-00-0"
            ),
        ),
        (
            "fake: {node: small, gpuMode: whole, faults: [{device: '*-mig-*', does: fail}]}",
            "fake.faults[0].device: '*-mig-*' is no device of this node",
        ),
        (
            "fake: {node: small, faults: [{device: 'gpu-*', does: unready}]}",
            "fake.faults[0].does: unready: GPUs have binding conditions with gpuBinding: true only",
        ),
        (
            "fake: {node: small, gpuBinding: true, faults: [{device: 'nic-*', does: unready}]}",
            "fake.faults[0].does: unready: 'nic-*' is no GPU",
        ),
        (
            "fake: {node: small, faults: [{device: '*-mig-*', does: fail, at: probe}]}",
            "fake.faults[0].device: '*-mig-*' is no whole card",
        ),
        (
            "fake: {node: small, gpuMode: whole, faults: [{device: '*', does: crash, at: half}]}",
            "fake.faults[0].at: half: '*' is no partition",
        ),
        ("fake: dgx-h100", "fake: a map is expected, found 'dgx-h100', a string"),
        ("{fake: {node: small}, hostRoot: /mnt}", "hostRoot: a fake node has a root of its own"),
        ("{fake: {node: small}, backends: {gpu: {mode: x}}}", "backends.gpu.mode: unknown field 'mode'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    assert refusal(tmp_path, text).startswith(expected)


@pytest.mark.parametrize(
    "fault",
    [
        "{device: '*', does: crash, at: half}",
        "{device: gpu-0000-43-00-0-mig-1g-6gb-?, does: sick}",
        "{device: gpu-0000-43-00-0, does: fail, at: probe}",
        "{device: 'gpu-*', does: unready, at: created}",
        "{device: nic-0000-44-00-3, does: hang}",
        "{device: nic-0000-44-00-0, does: vanish}",
    ],
)
def test_faults_of_what_there_is_are_taken(tmp_path: Path, fault: str) -> None:
    assert load_backends(settings(tmp_path, f"fake: {{node: small, gpuBinding: true, faults: [{fault}]}}"))


def test_facts_that_are_wrong_leave_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("node: mine")
    message = refusal(tmp_path, f"fake: {{node: {file}}}")
    assert message.startswith(f"fake.node: {file}: Object missing required field")
    assert not (tmp_path / "d").exists()


def test_a_fake_node_is_what_the_daemon_asks_for(tmp_path: Path) -> None:
    stand_in: standin.StandIn = FakeNode.of({"node": "small"}, tmp_path)
    assert set(stand_in.backends) == {"gpu", "nic"}
