"""Slices as files: complete, atomic, stable, restored, and nothing else in the directory touched."""

import contextlib
import json
import os
import resource
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.model import (
    NUMA_NODE,
    Capacity,
    CounterSet,
    Device,
    NodeAllocatable,
    PoolContent,
    Quantity,
    RequestPolicy,
    Taint,
    TaintEffect,
    ValidRange,
    Version,
)
from dradriver.publish import FilePublisher, Publisher, PublishResult
from dradriver.slices import ApiFeatures, NodeAllocatableField

DRIVER, NODE, POOL = "cpu.dradriver.io", "node-a", "node-a/cpu"
CPUS = RequestPolicy(
    Quantity.from_int(1),
    valid_range=ValidRange(Quantity.from_int(1), Quantity.from_int(32), Quantity.from_int(1)),
)


def numa(node: int) -> Device:
    return Device(
        f"cpu-numa-{node}",
        attributes={
            "type": "numa",
            NUMA_NODE: node,
            "smtEnabled": True,
            "microcodeVersion": Version("43.0.1"),
            "firstCPU": "0x1e3",
        },
        capacity={"cpus": Capacity(Quantity.from_int(32), CPUS)},
        shared=True,
        node_allocatable=(NodeAllocatable("cpu", "cpus"),),
    )


SMALL = PoolContent((numa(0), numa(1)))

GOLDEN = """\
# Kept by dradriver: an edit is undone.
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata:
  name: "000-cpu.dradriver.io-node-a-cpu"
spec:
  driver: cpu.dradriver.io
  nodeName: node-a
  pool:
    name: node-a/cpu
    generation: 1
    resourceSliceCount: 1
  devices:
  - name: cpu-numa-0
    attributes:
      type:
        string: numa
      resource.kubernetes.io/numaNode:
        int: 0
      smtEnabled:
        bool: true
      microcodeVersion:
        version: "43.0.1"
      firstCPU:
        string: "0x1e3"
    capacity:
      cpus:
        value: "32"
        requestPolicy:
          default: "1"
          validRange:
            min: "1"
            max: "32"
            step: "1"
    allowMultipleAllocations: true
    nodeAllocatableResources:
      cpu:
        mapping:
          capacityKey: cpus
          capacityMultiplier: "1"
"""


def wide(count: int = 3) -> PoolContent:
    """Return a content of `count` slices, full but for one place each."""
    return PoolContent(
        tuple(Device(f"d-{one}-{part}", thing=f"t-{one}") for one in range(count) for part in range(63))
    )


def publish(publisher: Publisher, content: PoolContent) -> PublishResult:
    return publisher.publish(DRIVER, NODE, POOL, content)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def spec(path: Path) -> Any:
    return yaml.safe_load(path.read_text())["spec"]


def untouched(directory: Path) -> list[tuple[str, int, int]]:
    """Return what changes when a file is written or replaced."""
    stats = [(path.name, path.stat()) for path in directory.iterdir()]
    return sorted((name, status.st_ino, status.st_ctime_ns) for name, status in stats)


def generations(directory: Path) -> list[int]:
    return [spec(directory / name)["pool"]["generation"] for name in files(directory)]


def test_a_small_node_as_a_person_reads_it(tmp_path: Path) -> None:
    result = publish(FilePublisher(tmp_path), PoolContent((numa(0),)))
    path = tmp_path / "cpu.dradriver.io_cpu-000.yaml"
    assert result == PublishResult((path.name,))
    assert path.read_text() == GOLDEN
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_is_a_manifest_that_the_official_client_reads_whole(tmp_path: Path) -> None:
    client = pytest.importorskip("kubernetes.client")
    publish(FilePublisher(tmp_path), SMALL)
    body = yaml.safe_load((tmp_path / "cpu.dradriver.io_cpu-000.yaml").read_text())
    assert json.loads(client.V1ResourceSlice.from_dict(body).to_json()) == body


def test_the_form_is_that_of_the_reader(tmp_path: Path) -> None:
    publish(FilePublisher(tmp_path, ApiFeatures(node_allocatable=NodeAllocatableField.MAPPINGS)), SMALL)
    device = spec(tmp_path / "cpu.dradriver.io_cpu-000.yaml")["devices"][0]
    assert device["nodeAllocatableResourceMappings"] == {
        "cpu": {"capacityKey": "cpus", "allocationMultiplier": "1"}
    }


def test_the_directory_is_made_and_files_are_readable_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        publish(FilePublisher(tmp_path / "a" / "b"), SMALL)
    finally:
        os.umask(before)
    (path,) = (tmp_path / "a" / "b").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_same_again_writes_nothing(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path)
    publish(publisher, wide())
    before = untouched(tmp_path)
    assert publish(publisher, wide()) == PublishResult()
    assert publish(FilePublisher(tmp_path), wide()) == PublishResult()
    assert publisher.verify() == PublishResult()
    assert untouched(tmp_path) == before


def test_a_device_that_falls_ill_is_one_file(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path)
    publish(publisher, wide())
    devices = wide().devices
    ill = replace(devices[70], taints=(Taint("dradriver.io/unhealthy", TaintEffect.NO_EXECUTE),))
    content = PoolContent((*devices[:70], ill, *devices[71:]))
    assert publish(publisher, content).written == ("cpu.dradriver.io_cpu-001.yaml",)
    assert generations(tmp_path) == [1, 1, 1]


def test_generation_and_places_go_on_after_a_restart(tmp_path: Path) -> None:
    publish(FilePublisher(tmp_path), wide(2))
    result = publish(FilePublisher(tmp_path), wide(3))
    assert len(result.written) == 3
    assert generations(tmp_path) == [2, 2, 2]
    without_first = PoolContent(wide(3).devices[63:])
    assert publish(FilePublisher(tmp_path), without_first).written == ("cpu.dradriver.io_cpu-000.yaml",)
    assert "devices" not in spec(tmp_path / "cpu.dradriver.io_cpu-000.yaml")


def test_slices_at_the_end_that_ran_empty_go_at_the_next_start(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path)
    publish(publisher, wide(3))
    publish(publisher, wide(1))
    assert generations(tmp_path) == [2, 2, 2]
    result = publish(FilePublisher(tmp_path), wide(1))
    assert result.removed == ("cpu.dradriver.io_cpu-001.yaml", "cpu.dradriver.io_cpu-002.yaml")
    assert generations(tmp_path) == [3]
    publish(FilePublisher(tmp_path), PoolContent())
    publish(FilePublisher(tmp_path), SMALL)
    assert generations(tmp_path) == [4]


def test_a_wiped_directory_is_restored_as_it_was(tmp_path: Path) -> None:
    directory = tmp_path / "slices"
    publisher = FilePublisher(directory)
    publish(publisher, wide())
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    assert publisher.verify().written == tuple(sorted(before))
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert publisher.verify() == PublishResult()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not: [a, manifest",
        b"&a [*a]",
        b"spec: {driver: other}",
        b"\xff\xfe",
        GOLDEN.replace("node-a", "node-b").encode(),
        GOLDEN.replace("bool: true", "bool: 1").encode(),
        GOLDEN.replace("generation: 1", "generation: 9223372036854775807").encode(),
        GOLDEN.replace("metadata:", "metadata:\n  labels: {edited: by-hand}").encode(),
        GOLDEN.replace("int: 0", "int: 7").encode(),
        GOLDEN.replace("- name: cpu-numa-0", "- name: [cpu-numa-0]").encode(),
        b"0001-01-01T00:00:00+14:00",
    ],
)
def test_an_edited_file_is_restored(tmp_path: Path, content: bytes) -> None:
    publisher = FilePublisher(tmp_path)
    publish(publisher, PoolContent((numa(0),)))
    path = tmp_path / "cpu.dradriver.io_cpu-000.yaml"
    path.write_bytes(content)
    assert publisher.verify().written == (path.name,)
    assert path.read_text() == GOLDEN
    path.write_bytes(content)
    assert publish(FilePublisher(tmp_path), PoolContent((numa(0),))).written == (path.name,)
    assert spec(path)["devices"] == yaml.safe_load(GOLDEN)["spec"]["devices"]


def test_an_edit_without_another_meaning_stays(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path)
    publish(publisher, PoolContent((numa(0),)))
    path = tmp_path / "cpu.dradriver.io_cpu-000.yaml"
    reformatted = json.dumps(yaml.safe_load(GOLDEN)).replace('"32"', '"32000m"')
    path.write_text(reformatted)
    assert publisher.verify() == PublishResult()
    assert publish(FilePublisher(tmp_path), PoolContent((numa(0),))) == PublishResult()
    assert path.read_text() == reformatted


def test_what_is_no_plain_readable_file_is_replaced(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path / "slices")
    publish(publisher, PoolContent((numa(0),)))
    path = tmp_path / "slices" / "cpu.dradriver.io_cpu-000.yaml"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(GOLDEN)
    path.unlink()
    path.symlink_to(elsewhere)
    assert publisher.verify().written == (path.name,)
    path.unlink()
    os.mkfifo(path)
    assert publisher.verify().written == (path.name,)
    path.chmod(0o600)
    assert publisher.verify().written == (path.name,)
    assert not path.is_symlink()
    assert path.read_text() == elsewhere.read_text() == GOLDEN
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_files_of_others_are_not_touched(tmp_path: Path) -> None:
    others = [
        "cpu.dradriver.io_cpu-000.yml",
        "cpu.dradriver.io_cpu-00.yaml",
        "cpu.dradriver.io_cpu-0001.yaml",
        "cpu.dradriver.io_cpu-000-000.yaml",
        "cpu.dradriver.io_cpus-001.yaml",
        "cpu.dradriver.io_memory-001.yaml",
        "cpuxdradriver.io_cpu-001.yaml",
        "notes.txt",
        ".cpu.dradriver.io_cpu-000.yaml.tmp",
    ]
    for name in others:
        (tmp_path / name).write_text("mine")
    stale, draft = "cpu.dradriver.io_cpu-007.yaml", ".cpu.dradriver.io_cpu-000.yaml.0123456789abcdef.tmp"
    for name in (stale, draft):
        (tmp_path / name).write_text("half written")
    publisher = FilePublisher(tmp_path)
    assert publish(publisher, SMALL).removed == (stale,)
    publisher.verify()
    publisher.withdraw(DRIVER, NODE, POOL)
    assert files(tmp_path) == sorted(others)
    assert all((tmp_path / name).read_text() == "mine" for name in others)


def test_pools_stand_beside_each_other(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path)
    publisher.publish(DRIVER, NODE, "node-a/cpu", SMALL)
    publisher.publish(DRIVER, NODE, "node-a/memory", SMALL)
    publisher.publish("memory.dradriver.io", NODE, "node-a/memory", SMALL)
    assert len(files(tmp_path)) == 3
    result = publisher.withdraw(DRIVER, NODE, "node-a/memory")
    assert result.removed == ("cpu.dradriver.io_memory-000.yaml",)
    assert publisher.verify() == PublishResult()
    assert files(tmp_path) == ["cpu.dradriver.io_cpu-000.yaml", "memory.dradriver.io_memory-000.yaml"]


def test_a_node_with_a_new_name_takes_over_its_files(tmp_path: Path) -> None:
    publish(FilePublisher(tmp_path), wide(3))
    result = FilePublisher(tmp_path).publish(DRIVER, "node-b", "node-b/cpu", wide(2))
    assert len(result.written) == 2
    assert len(result.removed) == 1
    assert {spec(path)["nodeName"] for path in tmp_path.iterdir()} == {"node-b"}


def test_what_cannot_be_published_is_told_and_the_rest_is_there(tmp_path: Path) -> None:
    odd = Device("0000:41:00.0")
    long = Device("gpu-0", attributes={"productName": "x" * 65})
    result = publish(FilePublisher(tmp_path), PoolContent((odd, long)))
    assert [left.name for left in result.left_out] == ["0000:41:00.0"]
    assert "productName" in result.warnings[0]
    assert spec(tmp_path / result.written[0])["devices"] == [{"name": "gpu-0"}]


@pytest.mark.parametrize(
    ("driver", "pool"),
    [
        ("../cpu", POOL),
        (DRIVER, "node-a/.."),
        (DRIVER, "node-a/../../etc/cron.d/x"),
        (DRIVER, "node-a/c\n"),
        (DRIVER, f"node-a/{'k' * 230}"),
    ],
)
def test_a_name_never_leads_out_of_the_directory(tmp_path: Path, driver: str, pool: str) -> None:
    with pytest.raises(ValueError, match="name"):
        FilePublisher(tmp_path / "slices").publish(driver, NODE, pool, SMALL)
    assert not files(tmp_path)


@contextlib.contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let no file grow beyond that many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failure_leaves_the_old_file_and_the_next_call_goes_on(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path)
    publish(publisher, wide(2))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with (
        files_limited_to(1000),
        pytest.raises(OSError, match=r"too large: '.*/cpu\.dradriver\.io_cpu-000\.yaml'$"),
    ):
        publish(publisher, wide(3))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(publisher.verify().written) == 3
    assert generations(tmp_path) == [2, 2, 2]


def test_one_pool_that_cannot_be_restored_does_not_hold_up_the_others(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path)
    publisher.publish("a.example.com", NODE, "node-a/cpu", wide(1))
    publisher.publish("b.example.com", NODE, "node-a/cpu", PoolContent((Device("d-0"),)))
    for path in tmp_path.iterdir():
        path.unlink()
    messages = set()
    for _ in range(2):
        with (
            files_limited_to(1000),
            pytest.raises(OSError, match=r"a\.example\.com_cpu-000\.yaml'$") as caught,
        ):
            publisher.verify()
        messages.add(str(caught.value))
        assert files(tmp_path) == ["b.example.com_cpu-000.yaml"]
    assert len(messages) == 1, "the same trouble is told in the same words"
    assert publisher.verify().written == ("a.example.com_cpu-000.yaml",)


def test_a_directory_in_the_place_of_a_slice_is_moved_aside(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path)
    publish(publisher, PoolContent((numa(0),)))
    path = tmp_path / "cpu.dradriver.io_cpu-000.yaml"
    surplus = tmp_path / "cpu.dradriver.io_cpu-001.yaml"
    draft = tmp_path / ".cpu.dradriver.io_cpu-000.yaml.0123456789abcdef.tmp"
    path.unlink()
    for obstacle in (path, surplus):
        obstacle.mkdir()
        (obstacle / "kept").write_text(obstacle.name)
    result = publisher.verify()
    assert (result.written, result.removed) == ((path.name,), (surplus.name,))
    assert path.read_text() == GOLDEN
    aside = sorted(tmp_path.glob(".*.obstacle-????????"))
    assert [(found / "kept").read_text() for found in aside] == [path.name, surplus.name]
    assert publisher.verify() == PublishResult()
    draft.mkdir()
    assert publish(FilePublisher(tmp_path), PoolContent((numa(0),))) == PublishResult()
    publisher.withdraw(DRIVER, NODE, POOL)
    assert not path.exists()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=16) | st.sampled_from(
    [
        "1e3",
        "0:40",
        "y",
        "on",
        "null",
        "~",
        "0x1F",
        "012",
        "1_000",
        "2026-01-02",
        ".inf",
        "=",
        "<<",
        "- a",
        " ",
    ]
)


@settings(max_examples=50, deadline=None)
@given(st.lists(texts, max_size=16))
def test_any_text_is_read_back(tmp_path_factory: pytest.TempPathFactory, values: list[str]) -> None:
    directory = tmp_path_factory.mktemp("slices")
    device = Device("gpu-0", attributes={f"a{number}": value for number, value in enumerate(values)})
    counters = CounterSet("gpu-0", {"slices": Quantity.from_int(7)})
    publish(FilePublisher(directory), PoolContent((device,), (counters,)))
    kept = {
        name: value["string"]
        for name, value in spec(directory / "cpu.dradriver.io_cpu-001.yaml")["devices"][0]
        .get("attributes", {})
        .items()
    }
    assert kept == device.attributes
    assert publish(FilePublisher(directory), PoolContent((device,), (counters,))) == PublishResult()


def test_what_an_earlier_configuration_published_is_withdrawn(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path)
    for driver in ("cpu.example.com", "old.example.com"):
        publisher.publish(driver, "node-a", "node-a/cpu", PoolContent((Device(name="cpu-numa-0"),)))
    (tmp_path / "other.example.com_cpu-000.yaml").write_text("written: by others\n")
    result = FilePublisher(tmp_path).withdraw_others([("cpu.example.com", "node-a/cpu")])
    assert result.removed == ("old.example.com_cpu-000.yaml",)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cpu.example.com_cpu-000.yaml",
        "other.example.com_cpu-000.yaml",
    ]
