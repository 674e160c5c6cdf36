"""What ails which device of a GPU: from events and probes to taints and health, and back when it is gone."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apirules import create
from dradriver.backend import Backend, Plan, UnavailableError, decode
from dradriver.engine import Pool as EnginePool
from dradriver.engine.pools import tainted
from dradriver.host import Host
from dradriver.model import Device, Health, PoolContent, TaintEffect
from dradriver.sim.apiserver.rules import Gates
from dradriver.slices import ApiFeatures, Pool, pool_specs
from dradriver_gpu import GpuOptions, xids
from dradriver_gpu.devices import content_of
from dradriver_gpu.examine import Examiner
from dradriver_gpu.geometry import Geometry, Profile, Resources
from dradriver_gpu.health import HealthBook
from dradriver_gpu.inventory import (
    GPU,
    ComputeInstance,
    Driver,
    DriverState,
    GPUInstance,
    GPUInventory,
    MemoryErrors,
    MigMode,
    Passthrough,
    RemappedRows,
)
from dradriver_gpu.symptoms import UNCORRECTED
from waiting import PATIENCE

NONE, NO_SCHEDULE, NO_EXECUTE = TaintEffect.NONE, TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE

RESET, REBOOT, DRAIN = 1, 2, 3


def profile(index: int, number: int, name: str, starts: Iterable[int], size: int, most: int) -> Profile:
    return Profile(
        index,
        number,
        name,
        size,
        most,
        Resources(10 * size, size, size, 0, 0, 0, 1000 * size),
        tuple(starts),
        size,
    )


GEOMETRY = Geometry(
    (
        profile(0, 19, "1g.5gb", range(4), 1, 4),
        profile(1, 14, "2g.10gb", (0, 2), 2, 2),
        profile(4, 0, "4g.20gb", (0,), 4, 1),
    )
)

PARTS = [
    "mig-1g-5gb-0", "mig-1g-5gb-1", "mig-1g-5gb-2", "mig-1g-5gb-3", "mig-2g-10gb-0", "mig-2g-10gb-2", "mig-4g-20gb-0"
]  # fmt: skip


def standing(number: int, suffix: str) -> GPUInstance:
    """Return a GPU instance of ours at a partition's place."""
    place = next(one for one in GEOMETRY.placements if one.suffix == suffix)
    compute = (ComputeInstance(0, f"MIG-{number}"),)
    return GPUInstance(number, place.profile.id, place.start, place.profile.size, place, compute, ours=True)


class Node:
    """Eight GPUs, all offered in every way, and what ails them. Each `devices` is a probe."""

    ALL = {"mode": "partitions", "migMode": "switch", "passthrough": True}  # noqa: RUF012

    def __init__(self, **written: Any) -> None:
        self.options = decode(GpuOptions, {**self.ALL, **written}, "backends.gpu")
        self.seconds = 1_700_000_000.0
        self.book = HealthBook(self.options.ignored_xids, lambda: self.seconds)
        well = GPU(
            "0000:10:00.0",
            memory_bytes=40 << 30,
            mig=MigMode(True, True, switchable=True),
            geometry=GEOMETRY,
            errors=MemoryErrors(0, None, sram_threshold=False),
            rows=RemappedRows(0, 0, pending=False, failed=False),
            recovery=0,
            passthrough=Passthrough("nvidia", 7, 0x10DE, 0x20B0),
        )
        self.gpus = [
            replace(well, address=f"0000:{10 + n}:00.0", uuid=f"GPU-{n}", index=n, minor=n) for n in range(8)
        ]

    def change(self, number: int, **facts: Any) -> None:
        self.gpus[number] = replace(self.gpus[number], **facts)

    def inventory(self) -> GPUInventory:
        return GPUInventory(Driver(DriverState.READY, "/", "580.65.06", (13, 0)), tuple(self.gpus))

    def devices(self) -> list[Device]:
        return list(content_of(self.book.examine(self.inventory()), self.options).devices)

    def xid(self, number: int, xid: int, instance: tuple[int, int | None] = (-1, None)) -> bool:
        gpu_instance = None if instance[0] < 0 else instance[0]
        return self.book.xid(self.gpus[number].address, xid, gpu_instance, instance[1])

    def variants(self, number: int, devices: list[Device]) -> dict[str, Device]:
        """Return the devices of a GPU, by the end of their names."""
        gpu = self.gpus[number]
        return {
            device.name.removeprefix(gpu.name).removeprefix("-"): device
            for device in devices
            if device.physical == gpu.name
        }

    def taints(self, number: int) -> dict[str, list[tuple[str, TaintEffect]]]:
        """Return the taints of the devices of a GPU that have some; no other GPU may have any."""
        devices = self.devices()
        for device in devices:
            assert device.physical == self.gpus[number].name or not device.taints
            assert device.physical == self.gpus[number].name or device.health is Health.HEALTHY
        return {
            name: [
                (f"{taint.key.removeprefix('gpu.dradriver.io/')}={taint.value}", taint.effect)
                for taint in device.taints
            ]
            for name, device in self.variants(number, devices).items()
            if device.taints
        }

    def whole(self, number: int = 0) -> list[tuple[str, TaintEffect]]:
        """Return the taints that all devices of a GPU have."""
        found = self.taints(number)
        assert len({tuple(taints) for taints in found.values()}) <= 1
        assert not found or len(found) == 9
        return found.get("", [])


# --- XIDs


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109, 154])
def test_what_applications_cause_condemns_nothing(xid: int) -> None:
    node = Node()
    assert not node.xid(0, xid)
    assert node.whole() == []
    assert not node.book.has_news


@pytest.mark.parametrize("xid", [62, 64, 79, 95, 119, 120, 140, 143])
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_fatal_xid_condemns_all_variants_of_its_gpu_and_no_other(xid: int, effect: str) -> None:
    node = Node(fatalTaint=effect)
    node.devices()
    assert node.xid(3, xid)
    assert node.whole(3) == [(f"xid={xid}", TaintEffect(effect))]
    devices = node.variants(3, node.devices())
    assert sorted(devices) == sorted(["", "vfio", *PARTS])
    assert {device.health for device in devices.values()} == {Health.UNHEALTHY}
    assert {device.health_message.partition(":")[0] for device in devices.values()} == {f"XID {xid}"}


@pytest.mark.parametrize("xid", [48, 74, 145, 61, 999])
def test_an_xid_that_is_grave_or_unknown_keeps_new_claims_away_only(xid: int) -> None:
    node = Node(fatalTaint="NoExecute")
    assert node.xid(0, xid)
    assert node.whole() == [(f"xid={xid}", NO_SCHEDULE)]


@pytest.mark.parametrize("xid", [63, 69, 92, 94, 121])
def test_an_xid_after_which_the_gpu_works_is_only_told(xid: int) -> None:
    node = Node(fatalTaint="NoExecute")
    assert node.xid(0, xid)
    assert node.whole() == [(f"xid={xid}", NONE)]
    device = node.devices()[0]
    assert device.health is Health.HEALTHY
    assert device.health_message.startswith(f"XID {xid}: ")


def test_xids_are_ignored_as_configured() -> None:
    node = Node(ignoredXids=[79, 999])
    assert not node.xid(0, 79)
    assert not node.xid(0, 999)
    assert node.whole() == []
    assert node.xid(0, 95)


def test_an_xid_that_is_known_is_no_news() -> None:
    node = Node()
    assert node.xid(0, 95)
    before = node.book.has_news
    node.devices()
    assert (before, node.book.has_news) == (True, False)
    assert not node.xid(0, 95)
    assert node.xid(0, 48)
    assert node.xid(1, 95)


def test_a_taint_says_since_when_and_the_worst_comes_first() -> None:
    node = Node(fatalTaint="NoExecute")
    for xid in (92, 74, 95, 62):
        node.xid(0, xid)
        node.seconds += 60.7
    node.devices()
    node.seconds += 3600
    taints = node.devices()[0].taints
    assert [(taint.value, taint.effect, taint.time_added) for taint in taints] == [
        ("95", NO_EXECUTE, "2023-11-14T22:15:21Z"),
        ("62", NO_EXECUTE, "2023-11-14T22:16:22Z"),
        ("74", NO_SCHEDULE, "2023-11-14T22:14:20Z"),
        ("92", NONE, "2023-11-14T22:13:20Z"),
    ]


def test_however_many_xids_there_are_the_taints_can_be_published() -> None:
    node = Node()
    for xid in range(200, 240):
        node.xid(0, xid)
    node.change(0, lost=True, fault="GPU is lost")
    content = tainted(content_of(node.book.examine(node.inventory()), node.options))
    sick = next(device for device in content.devices if device.taints)
    assert sick.taints[0].key == "gpu.dradriver.io/lost"
    assert len(sick.taints) == 13
    assert len(sick.health_message) <= 500
    made = pool_specs(Pool("gpu.dradriver.io", "node-a", "node-a/gpu"), content, ApiFeatures())
    assert not made.left_out
    gates = Gates.of("1.36", {})
    for spec in made.specs:
        create(
            "ResourceSlice",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": "one"},
                "spec": spec,
            },
            gates,
        )


def test_the_table_has_each_xid_once() -> None:
    texts = [xids._IGNORED, xids._NOTES, xids._SICK, xids._FATAL]
    assert sum(map(len, texts)) == len(set().union(*texts))
    assert len(xids._ENGINES) == len(set(xids._ENGINES))
    assert xids.describe(79) == "XID 79: GPU has fallen off the bus"
    assert xids.describe(999) == "XID 999"


# --- instances


def test_the_xid_of_an_instance_concerns_its_partition_alone() -> None:
    node = Node()
    node.change(2, instances=(standing(5, "mig-1g-5gb-1"), standing(6, "mig-2g-10gb-2")))
    node.devices()
    assert node.xid(2, 95, (6, 0))
    assert node.taints(2) == {"mig-2g-10gb-2": [("xid=95", NO_SCHEDULE)]}
    assert node.xid(2, 48, (5, None))
    assert node.taints(2) == {
        "mig-2g-10gb-2": [("xid=95", NO_SCHEDULE)],
        "mig-1g-5gb-1": [("xid=48", NO_SCHEDULE)],
    }
    assert not node.xid(2, 48, (5, None))


def test_what_takes_the_hardware_of_an_instance_that_is_gone_is_not_given_out() -> None:
    node = Node()
    node.change(0, instances=(standing(5, "mig-1g-5gb-1"),))
    node.devices()
    node.xid(0, 95, (5, 0))
    node.devices()
    node.change(0, instances=(standing(5, "mig-1g-5gb-3"),))  # numbers are used again
    found = node.taints(0)
    assert set(found) == {"", "vfio", "mig-1g-5gb-1", "mig-2g-10gb-0", "mig-4g-20gb-0"}
    assert {tuple(taints) for taints in found.values()} == {(("xid=95", NO_SCHEDULE),)}
    node.change(0, instances=(standing(7, "mig-1g-5gb-1"),))
    assert set(node.taints(0)) == set(found)
    node.change(0, recovery=RESET)
    node.devices()
    node.change(0, recovery=0, instances=())
    assert node.taints(0) == {}


def test_what_was_only_told_of_an_instance_is_over_with_it() -> None:
    node = Node()
    node.change(0, instances=(standing(5, "mig-1g-5gb-1"),))
    node.devices()
    node.xid(0, 94, (5, 0))
    assert node.taints(0) == {"mig-1g-5gb-1": [("xid=94", NONE)]}
    node.change(0, instances=())
    assert node.taints(0) == {}


def test_an_instance_is_found_whether_it_was_known_before_or_is_only_now() -> None:
    node = Node()
    node.devices()
    node.xid(0, 95, (5, 0))  # made after the last probe
    node.change(0, instances=(standing(5, "mig-2g-10gb-0"),))
    assert set(node.taints(0)) == {"mig-2g-10gb-0"}
    node.xid(1, 95, (5, 0))  # gone before the next
    assert node.variants(1, node.devices())["mig-1g-5gb-3"].taints  # it is not known what it had


def test_an_xid_of_one_of_several_compute_instances_concerns_that() -> None:
    node = Node(mode="static", migMode="leave", passthrough=False)
    two = replace(
        standing(5, "mig-2g-10gb-0"), compute=(ComputeInstance(0, "MIG-a"), ComputeInstance(1, "MIG-b"))
    )
    node.change(0, instances=(two, standing(6, "mig-1g-5gb-2")))
    node.devices()
    node.xid(0, 95, (5, 1))
    assert set(node.taints(0)) == {"mig-2g-10gb-0-ci-1"}
    node.xid(0, 48, (5, None))
    assert set(node.taints(0)) == {"mig-2g-10gb-0-ci-0", "mig-2g-10gb-0-ci-1"}
    node.xid(0, 79)
    assert len(node.taints(0)) == 3


def test_a_lost_gpu_ails_its_instances_too() -> None:
    node = Node()
    node.change(4, instances=(standing(5, "mig-1g-5gb-1"),))
    node.devices()
    node.change(4, fault="GPU is lost", lost=True)
    assert node.whole(4) == [("lost=", NO_SCHEDULE)]


# --- what probes find


@pytest.mark.parametrize(
    ("action", "taint"),
    [
        (RESET, ("recovery=reset", NO_EXECUTE)),
        (REBOOT, ("recovery=reboot", NO_EXECUTE)),
        (DRAIN, ("recovery=drain", NO_SCHEDULE)),
        (4, ("recovery=drain-and-reset", NO_EXECUTE)),
        (5, ("recovery=imex-domain", NONE)),
        (6, ("recovery=bus-reset", NO_EXECUTE)),
        (7, ("recovery=system-reboot", NO_EXECUTE)),
        (42, ("recovery=action-42", NO_SCHEDULE)),
    ],
)
def test_a_recovery_action_is_a_taint_until_it_is_none(action: int, taint: tuple[str, TaintEffect]) -> None:
    node = Node(fatalTaint="NoExecute")
    node.change(0, recovery=action)
    assert node.whole() == [taint]
    node.change(0, recovery=None)
    assert node.whole() == [taint], "what is not told is as it was"
    node.change(0, recovery=0)
    assert node.whole() == []


@pytest.mark.parametrize(
    ("ill", "taint"),
    [
        ({"errors": MemoryErrors(uncorrected=1)}, ("ecc=uncorrected", NO_SCHEDULE)),
        ({"errors": MemoryErrors(retirement_pending=True)}, ("ecc=retirement-pending", NO_SCHEDULE)),
        ({"errors": MemoryErrors(sram_threshold=True)}, ("ecc=sram-threshold", NO_EXECUTE)),
        ({"rows": RemappedRows(0, 1, pending=True, failed=False)}, ("ecc=remap-pending", NO_SCHEDULE)),
        ({"rows": RemappedRows(0, 1, pending=False, failed=True)}, ("ecc=remap-failed", NO_EXECUTE)),
        ({"link_health": 2}, ("nvlink=unhealthy", NO_SCHEDULE)),
        ({"link_health": 3}, ("nvlink=limited", NONE)),
        ({"fault": "GPU is lost", "lost": True}, ("lost=", NO_EXECUTE)),
        ({"fault": "Unknown Error"}, ("fault=", NO_SCHEDULE)),
    ],
)
def test_what_a_probe_finds_is_a_taint_until_it_is_gone(
    ill: dict[str, Any], taint: tuple[str, TaintEffect]
) -> None:
    node = Node(fatalTaint="NoExecute")
    well = node.gpus[5]
    well_too = replace(well, link_health=1, errors=MemoryErrors(0, False, False))
    node.devices()
    node.change(5, **ill)
    assert node.whole(5) == [taint]
    since = node.variants(5, node.devices())[""].taints[0].time_added
    node.seconds += 100
    assert node.variants(5, node.devices())[""].taints[0].time_added == since
    node.gpus[5] = well_too
    assert node.whole(5) == []
    node.change(5, **ill)
    assert node.variants(5, node.devices())[""].taints[0].time_added != since


def test_rows_that_are_not_told_of_beside_instances_are_as_they_were() -> None:
    node = Node()
    node.change(0, rows=RemappedRows(0, 1, pending=True, failed=False))
    node.devices()
    node.change(0, rows=None)
    assert node.whole() == [("ecc=remap-pending", NO_SCHEDULE)]
    node.change(0, rows=RemappedRows(0, 1, pending=False, failed=False))
    assert node.whole() == []


def test_an_event_and_a_probe_that_say_the_same_are_one_taint() -> None:
    node = Node()
    assert node.book.hear(node.gpus[0].address, UNCORRECTED)
    node.change(0, errors=MemoryErrors(uncorrected=3))
    assert node.whole() == [("ecc=uncorrected", NO_SCHEDULE)]
    node.change(0, errors=MemoryErrors(uncorrected=0))
    assert node.whole() == []


# --- healing


def test_an_xid_stays_until_a_reset_is_seen() -> None:
    node = Node()
    node.xid(0, 95)
    for _ in range(3):
        assert node.whole() == [("xid=95", NO_SCHEDULE)]
    node.change(0, rows=RemappedRows(1, 0, pending=False, failed=False))
    assert node.whole() == [("xid=95", NO_SCHEDULE)]


def _lost(node: Node) -> None:
    node.change(0, fault="GPU is lost", lost=True)


@pytest.mark.parametrize(
    "trouble",
    [
        _lost,
        lambda node: node.change(0, recovery=RESET),
        lambda node: node.change(0, errors=MemoryErrors(uncorrected=2)),
        lambda node: node.change(0, errors=MemoryErrors(retirement_pending=True)),
        lambda node: node.change(0, rows=RemappedRows(0, 1, pending=True, failed=False)),
        lambda node: node.change(0, visible=False, passthrough=Passthrough("vfio-pci", 7, 0x10DE, 0x20B0)),
        lambda node: node.change(
            0, fault="it is bound to no driver", passthrough=Passthrough(None, 7, 0x10DE, 0x20B0)
        ),
    ],
)
def test_a_reset_ends_what_was_before_it(trouble: Callable[[Node], None]) -> None:
    node = Node()
    well = replace(node.gpus[0], errors=MemoryErrors(0, False, False))
    node.devices()
    node.xid(0, 95)
    node.xid(1, 95)
    node.devices()
    if trouble is _lost:
        node.xid(0, 79)
    trouble(node)
    before = node.variants(0, node.devices())[""]
    assert before.taints
    node.gpus[0] = well
    first, second = (node.variants(number, node.devices())[""] for number in (0, 1))
    assert not first.taints
    assert (first.health, first.health_message) == (Health.HEALTHY, "")
    assert [taint.value for taint in second.taints] == ["95"]


def test_a_gpu_that_events_told_to_be_lost_is_so_until_a_probe_finds_it() -> None:
    node = Node()
    node.devices()
    node.xid(0, 79)
    assert node.book.lose(node.gpus[0].address)
    assert not node.book.lose(node.gpus[0].address)
    in_haste = node.book.in_haste()
    assert in_haste
    assert [one.key for one in in_haste.ailments] == ["lost", "xid"]
    assert node.whole() == []


def test_an_xid_after_the_last_look_at_the_trouble_is_not_healed() -> None:
    node = Node()
    node.change(0, recovery=RESET)
    node.devices()
    node.xid(0, 62)
    node.change(0, recovery=0)
    assert node.whole() == [("xid=62", NO_SCHEDULE)]


def test_an_odd_answer_that_passes_heals_no_xid() -> None:
    node = Node()
    node.xid(0, 95)
    node.change(0, fault="nvmlGpuInstanceGetInfo: Unknown Error")
    assert node.whole() == [("xid=95", NO_SCHEDULE), ("fault=", NO_SCHEDULE)]
    node.change(0, fault="")
    assert node.whole() == [("xid=95", NO_SCHEDULE)]


@pytest.mark.parametrize("modules", [(11, 12), (11, None, 11)])
def test_a_driver_that_is_loaded_anew_starts_anew(modules: tuple[int | None, ...]) -> None:
    node = Node()
    node.book.see_module(modules[0])
    node.xid(0, 95)
    node.book.see_module(modules[0])
    assert node.whole() == [("xid=95", NO_SCHEDULE)]
    node.change(0, rows=RemappedRows(0, 1, pending=False, failed=True))
    for module in modules[1:]:
        node.book.see_module(module)
    assert node.whole() == [("ecc=remap-failed", NO_SCHEDULE)]


def test_a_host_that_shows_no_module_heals_nothing() -> None:
    node = Node()
    for _ in range(2):
        node.book.see_module(None)
        node.xid(0, 95)
        assert node.whole() == [("xid=95", NO_SCHEDULE)]


def test_another_board_in_its_place_is_well() -> None:
    node = Node()
    node.devices()
    node.xid(0, 95)
    node.change(0, rows=RemappedRows(0, 1, pending=False, failed=True))
    assert node.whole()
    node.change(0, uuid="GPU-new", rows=None)
    assert node.whole() == []


# --- haste


def test_what_events_told_does_not_wait_for_a_driver_that_does_not_answer() -> None:
    node, hangs, reads = Node(), threading.Event(), [0]
    hangs.set()

    def read() -> GPUInventory:
        reads[0] += 1
        assert hangs.wait(PATIENCE)
        return node.inventory()

    examiner, again = Examiner(read, node.book), threading.Event()
    examiner.changed = lambda _why: again.set()
    assert not examiner.probe().ailments
    hangs.clear()
    node.xid(0, 119)
    assert [one.message for one in examiner.probe().ailments] == ["XID 119: GSP did not answer in time"]
    node.xid(1, 120)
    for _ in range(2):
        assert [one.value for one in examiner.probe().ailments] == ["119", "120"]
    node.change(0, recovery=RESET)
    assert not again.is_set()
    hangs.set()
    assert again.wait(PATIENCE)
    assert {one.key for one in examiner.probe().ailments} == {"xid", "recovery"}
    assert reads == [3]


def test_a_probe_that_was_given_up_keeps_no_event_from_being_shown() -> None:
    node, hangs = Node(), threading.Event()
    hangs.set()

    def read() -> GPUInventory:
        assert hangs.wait(PATIENCE)
        return node.inventory()

    class Hanging(Backend[GPUInventory, GpuOptions]):
        kind = "gpu"
        options_type = GpuOptions
        examiner = Examiner(read, node.book)

        def probe(self) -> GPUInventory:
            return self.examiner.probe()

        def devices(self, inventory: GPUInventory) -> PoolContent:
            return content_of(inventory, self.options)

        def plan(self, *_: Any) -> Plan:
            raise NotImplementedError

    pool = EnginePool("node-a", "gpu.dradriver.io", Hanging(Host(Path("/")), node.options))
    pool.refresh()
    hangs.clear()
    pool.refresh(deadline=time.monotonic() + 0.3)
    assert "did not answer in time" in pool.snapshot.error
    node.xid(2, 119)
    deadline = time.monotonic() + PATIENCE
    while pool.snapshot.error and time.monotonic() < deadline:
        pool.refresh()
    assert {device.physical for device in pool.snapshot.content.devices if device.taints} == {
        node.gpus[2].name
    }
    hangs.set()
    node.change(3, recovery=RESET)
    pool.refresh()
    assert len([device for device in pool.snapshot.content.devices if device.taints]) == 18


def test_without_news_the_driver_is_waited_for() -> None:
    node, hangs = Node(), threading.Event()

    def read() -> GPUInventory:
        assert hangs.wait(PATIENCE)
        return node.inventory()

    examiner = Examiner(read, node.book)
    found: list[GPUInventory] = []
    thread = threading.Thread(target=lambda: found.append(examiner.probe()), daemon=True)
    thread.start()
    thread.join(0.6)
    assert thread.is_alive()
    node.xid(0, 95)  # nothing was ever read: there is nothing to show it on
    thread.join(0.6)
    assert thread.is_alive()
    hangs.set()
    thread.join(PATIENCE)
    assert [one.message for one in found[0].ailments] == ["XID 95: memory error that was not contained"]


def test_what_reading_raises_is_raised() -> None:
    def read() -> GPUInventory:
        raise UnavailableError("the driver was here")

    examiner = Examiner(read, HealthBook())
    for _ in range(2):
        with pytest.raises(UnavailableError, match="the driver was here"):
            examiner.probe()
