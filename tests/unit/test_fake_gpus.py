"""GPUs of a fake node: how they are offered, and what a claim creates and leaves behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dradriver.model import Device, Quantity, Version
from dradriver.slices import Pool, pool_specs
from dradriver_fake import reboot
from dradriver_fake.boards import board_of
from dradriver_fake.gpu_devices import counters
from fakenode import Machine, environment, machine, node_with_board

GPU = "gpu-0000-43-00-0"
HALF = f"{GPU}-mig-2g-12gb-2"
QUARTER = f"{GPU}-mig-1g-6gb-2"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path) as made:
        yield made


def text(quantities: Any) -> dict[str, str]:
    return {name: str(quantity) for name, quantity in quantities.items()}


SLICES = {f"memory-slice-{number}": "1" for number in range(8)}


def golden(sms: int, copy: int, decoders: int, jpeg: int, ofa: int, memory: str) -> dict[str, str]:
    return {
        "multiprocessors": str(sms),
        "copy-engines": str(copy),
        "decoders": str(decoders),
        "encoders": "0",
        "jpeg-engines": str(jpeg),
        "ofa-engines": str(ofa),
        "memory": memory,
        **SLICES,
    }


@pytest.mark.parametrize(
    ("pci_device", "expected"),
    [
        ("0x20b0", golden(98, 7, 5, 1, 1, "40192Mi")),  # A100 40GB
        ("0x20b2", golden(98, 7, 5, 1, 1, "79Gi")),  # A100 80GB
        ("0x2330", golden(132, 8, 7, 7, 1, "81152Mi")),  # H100
        ("0x2335", golden(132, 8, 7, 7, 1, "143104Mi")),  # H200
        ("0x2901", golden(148, 16, 7, 7, 1, "182592Mi")),  # B200
    ],
)
def test_the_counters_of_a_gpu_are_what_its_largest_profile_has(
    pci_device: str, expected: dict[str, str], tmp_path: Path
) -> None:
    board = board_of(pci_device)
    assert board
    assert text(counters(board)) == expected
    with machine(tmp_path, node_with_board(pci_device, 200_000)) as made:
        content = made.pool("gpu").snapshot.content
        (counter_set,) = content.counter_sets
        assert (counter_set.name, text(counter_set.counters)) == (GPU, expected)
        assert len(content.devices) == 26
        whole = content.devices[-1]
        assert whole.name == GPU
        drawn = {name: amount for name, amount in expected.items() if amount != "0"}
        assert text(whole.consumes[GPU]) == drawn, "the whole GPU takes all"


def test_a_partition_of_an_h100_is_described_in_the_words_of_the_field(tmp_path: Path) -> None:
    with machine(tmp_path, "dgx-h100") as made:
        device = made.devices("gpu")["gpu-0000-1b-00-0-mig-1g-10gb-4"]
    assert device.thing == "gpu-0000-1b-00-0"
    assert device.attributes == {
        "type": "mig",
        "profile": "1g.10gb",
        "parentUUID": "GPU-0d985f52-a9e7-5e2b-bc0c-c92b9f91651c",
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": Version("9.0.0"),
        "driverVersion": Version("580.95.5"),
        "cudaDriverVersion": Version("13.0.0"),
        "resource.kubernetes.io/pcieRoot": "pci0000:15",
        "resource.kubernetes.io/pciBusID": "0000:1b:00.0",
        "resource.kubernetes.io/numaNode": 0,
        "dradriver.io/pcieSwitch": "0000:16:00.0",
        "dradriver.io/socketID": 0,
    }
    assert text({name: capacity.value for name, capacity in device.capacity.items()}) == {
        "multiprocessors": "16",
        "copyEngines": "1",
        "decoders": "1",
        "encoders": "0",
        "jpegEngines": "1",
        "ofaEngines": "0",
        "memory": "9984Mi",
    }
    assert text(device.consumes["gpu-0000-1b-00-0"]) == {
        "multiprocessors": "16",
        "copy-engines": "1",
        "decoders": "1",
        "jpeg-engines": "1",
        "memory": "9984Mi",
        "memory-slice-4": "1",
    }


@pytest.mark.parametrize("node", ["dgx-h100", "gb200-tray", "small", "telco-edge"])
@pytest.mark.parametrize("mode", ["partitions", "whole", "shares"])
def test_everything_that_is_offered_can_be_published(node: str, mode: str, tmp_path: Path) -> None:
    nic_mode = {"partitions": "vf", "whole": "both", "shares": "shares"}[mode]
    with machine(tmp_path, node, gpuMode=mode, nicMode=nic_mode) as made:
        for pool in made.pools.all:
            specs = pool_specs(Pool(pool.driver, "n1", pool.name), pool.snapshot.content)
            assert not specs.left_out
            assert not specs.warnings
            for spec in specs.specs:
                assert len(spec.get("devices", ())) <= 64


def first_fit(devices: tuple[Device, ...], *profiles: str) -> list[str]:
    """Allocate as the scheduler does: for each wish the first device that fits beside the ones before."""
    free: dict[str, Quantity] = {}
    given = []
    for profile in profiles:
        for device in devices:
            drawn = device.consumes[GPU]
            if device.attributes.get("profile") == profile and all(
                free.get(name, amount) >= amount for name, amount in drawn.items()
            ):
                full = {name: Quantity.from_int(0) for name in drawn if name.startswith("memory-slice")}
                free |= full
                given.append(device.name.removeprefix(f"{GPU}-mig-"))
                break
        else:
            given.append("none")
    return given


def test_partitions_are_given_out_so_that_large_ones_still_fit(tmp_path: Path) -> None:
    with machine(tmp_path, node_with_board("0x2330", 81559)) as made:
        devices = made.pool("gpu").snapshot.content.devices
    small, large = "1g.10gb", "4g.40gb"
    assert first_fit(devices, *[small] * 3, large) == ["1g-10gb-6", "1g-10gb-4", "1g-10gb-5", "4g-40gb-0"]
    assert first_fit(devices, small, "3g.40gb", "2g.20gb") == ["1g-10gb-6", "3g-40gb-0", "2g-20gb-4"]
    assert first_fit(devices, "3g.40gb", large) == ["3g-40gb-4", "4g-40gb-0"]
    assert first_fit(devices, "1g.20gb", "2g.20gb", large) == ["1g-20gb-6", "2g-20gb-4", "4g-40gb-0"]


def test_modes_are_for_the_node_and_for_single_gpus(tmp_path: Path) -> None:
    one, other = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
    with machine(tmp_path, "dgx-h100", gpuMode="whole", gpuModes={other: "shares"}) as made:
        devices = made.devices("gpu")
        assert len(devices) == 8
        assert not made.pool("gpu").snapshot.content.counter_sets
        assert not devices[one].consumes
        assert devices[other].shared
        policy = devices[other].capacity["memory"].policy
        assert policy
        assert policy.default == Quantity.parse("1Gi")


def test_a_gpu_that_cannot_do_mig_is_offered_whole(tmp_path: Path) -> None:
    with machine(tmp_path, node_with_board("0x26b9", 46068)) as made:
        (device,) = made.devices("gpu").values()
        assert device.attributes["architecture"] == "Ada Lovelace"
        assert not device.consumes
    with machine(tmp_path / "unknown", node_with_board("0xffff", 46068)) as made:
        (device,) = made.devices("gpu").values()
        assert "architecture" not in device.attributes


def test_a_partition_is_created_for_its_claim_and_destroyed_at_its_end(small: Machine) -> None:
    claim = small.claim("a", HALF)
    answer = small.prepare(claim)
    assert not isinstance(answer, str)
    assert answer[0].cdi_ids == ("gpu.dradriver.io/claim=uid-a-0", "gpu.dradriver.io/base=gpu")

    (instance,) = small.gpu.gpu(GPU).instances()
    assert (instance.profile, instance.start) == ("2g.12gb", 2)
    (edits,) = small.edits(claim)
    assert environment(edits)["DRA_GPU_uid_a_0"] == instance.compute[0].uuid, (
        "known only since it was created"
    )
    mount, _ = edits["mounts"]  # the other is the metadata
    assert instance.compute[0].uuid in Path(mount["hostPath"]).read_text()
    base = small.specs()["base"]["devices"][0]["containerEdits"]
    assert all(Path(mount["hostPath"]).is_file() for mount in base["mounts"])

    assert small.prepare(claim) == answer
    assert small.gpu.gpu(GPU).instances() == (instance,), "a repeat creates nothing"
    assert small.unprepare(claim) is None
    assert not small.leftovers
    assert small.unprepare(claim) is None
    assert not small.complaints


def test_a_partition_outlives_the_daemon_and_no_reboot(small: Machine) -> None:
    claim = small.claim("a", HALF)
    small.prepare(claim)
    (instance,) = small.gpu.gpu(GPU).instances()
    again = small.restart()
    assert again.gpu.gpu(GPU).instances() == (instance,)
    (edits,) = again.edits(claim)
    assert environment(edits)["DRA_GPU_uid_a_0"] == instance.compute[0].uuid
    again.close()
    reboot(again.host_root)
    assert not again.leftovers
    booted = Machine(again.root, again.node)
    assert "claim-uid-a" not in booted.specs()
    assert not isinstance(booted.prepare(claim), str)
    assert booted.unprepare(claim) is None
    assert not booted.complaints
    booted.close()


def test_an_instance_that_this_daemon_did_not_make_is_not_touched(small: Machine) -> None:
    gpu = small.gpu.gpu(GPU)
    foreign = gpu.create_instance("2g.12gb", 2)
    answer = small.prepare(small.claim("a", HALF))
    assert isinstance(answer, str)
    assert f"GPU instance {foreign} is there already, and was not made for a claim" in answer
    assert isinstance(small.prepare(small.claim("b", QUARTER)), str), "its memory slices are taken as well"
    assert [instance.id for instance in gpu.instances()] == [foreign]


def test_ids_come_back_and_an_instance_of_another_with_our_id_is_not_ours(small: Machine) -> None:
    claim = small.claim("a", HALF)
    small.prepare(claim)
    gpu = small.gpu.gpu(GPU)
    (mine,) = gpu.instances()
    gpu.destroy_compute(mine.compute[0].id)
    gpu.destroy_instance(mine.id)
    assert gpu.create_instance("2g.12gb", 2) == mine.id
    gpu.create_compute(mine.id)
    assert small.unprepare(claim) is None
    assert len(gpu.instances()) == 1


def test_a_partition_that_an_administrator_destroyed_is_made_anew(small: Machine) -> None:
    claim = small.claim("a", HALF)
    small.prepare(claim)
    gpu = small.gpu.gpu(GPU)
    (mine,) = gpu.instances()
    gpu.destroy_compute(mine.compute[0].id)
    gpu.destroy_instance(mine.id)
    assert not isinstance(small.prepare(claim), str)
    (anew,) = gpu.instances()
    assert anew.compute[0].uuid != mine.compute[0].uuid
    (edits,) = small.edits(claim)
    assert environment(edits)["DRA_GPU_uid_a_0"] == anew.compute[0].uuid


def test_a_whole_gpu_and_a_partition_of_it_exclude_each_other(small: Machine) -> None:
    whole = small.claim("whole", GPU)
    assert not isinstance(small.prepare(whole), str)
    (edits,) = small.edits(whole)
    assert environment(edits)["DRA_GPU_uid_whole_0"].startswith("GPU-")
    answer = small.prepare(small.claim("part", QUARTER))
    assert isinstance(answer, str)
    assert "held by claim default/whole (uid-whole)" in answer
    assert small.unprepare(whole) is None
    assert not isinstance(small.prepare(small.claim("late", QUARTER)), str)


def test_memory_is_shared_until_there_is_none_left(tmp_path: Path) -> None:
    with machine(tmp_path, gpuMode="shares") as made:
        first, second = made.claim("a", GPU, memory="16Gi"), made.claim("b", GPU, memory="8Gi")
        assert not isinstance(made.prepare(first), str)
        assert not isinstance(made.prepare(second), str)
        uses = made.gpu.gpu(GPU).uses()
        assert [use["memory"] >> 30 for use in uses.values()] == [16, 8]
        answer = made.prepare(made.claim("c", GPU, memory="1Gi"))
        assert isinstance(answer, str)
        assert "memory of device gpu-0000-43-00-0: 1Gi asked, 0 of 24Gi left" in answer
        whole = made.claim("whole", GPU)
        assert "is held by claim" in str(made.prepare(whole))
        for claim in (first, second):
            assert made.unprepare(claim) is None
        assert not made.leftovers
        assert not isinstance(made.prepare(whole), str), "as a server without shares allocates it"
        assert [use["memory"] >> 20 for use in made.gpu.gpu(GPU).uses().values()] == [24576]
        assert "held by claim default/whole" in str(made.prepare(first))
        assert made.unprepare(whole) is None
        assert not made.leftovers
        assert not made.complaints
