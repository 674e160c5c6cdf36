"""GPU events on the stub driver: from an XID, an ECC error or a lost GPU to the devices concerned, and back."""

import time
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

import nvmlnodes
from dradriver.backend import UnavailableError
from dradriver.model import Health
from gpunode import GpuNode
from gpuwatch import BEGUN, watching
from nvmlclients import Operator
from nvmlstub import DOUBLE_BIT_ECC, MIG_CHANGE, UNAVAILABLE, XID, Fault
from waiting import eventually

ALL = {"mode": "partitions", "migMode": "switch", "passthrough": True}
RETIREMENT, RETIREMENT_FAILURE, FATAL_POISON = 0x400, 0x800, 0x2000


# --- XIDs


def test_an_xid_taints_every_variant_of_its_gpu_and_nothing_else(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(8))
    with watching(node, ALL) as watched:
        before = watched.content()
        node.stub.xid(3, 95)
        watched.wait("gpu-0000-61-00-0: XID 95")
        content = watched.content()
        assert [device.name for device in content.devices] == [device.name for device in before.devices]
        assert content.counter_sets == before.counter_sets
        sick = [device for device in content.devices if device.taints]
        assert sick == [device for device in content.devices if device.physical == "gpu-0000-61-00-0"]
        assert len(sick) == 27
        assert {device.health for device in sick} == {Health.UNHEALTHY}


def test_xids_of_applications_have_nothing_probed(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with watching(node, {"ignoredXids": [62]}) as watched:
        for xid in (13, 31, 43, 45, 68, 109, 62):
            node.stub.xid(0, xid)
        for _ in range(3):
            node.stub.xid(1, 95)
        node.stub.xid(1, 48)
        watched.wait("XID 48")
        assert watched.count("XID") == 2
        assert watched.taints() == {"gpu-0000-43-00-0": ["xid=48", "xid=95"]} or watched.taints() == {
            "gpu-0000-43-00-0": ["xid=95", "xid=48"]
        }


@pytest.mark.parametrize("mode", ["partitions", "static"])
def test_the_xid_of_an_instance_is_that_of_its_partition(tmp_path: Path, mode: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.a100_40(2).each(mig_at_start=1))
    operator = Operator(node.stub)
    first = operator.create(0, 9, 4, compute_profile=2)
    second = operator.create(0, 19, 0, compute_profile=0)
    with watching(node, {"mode": mode}) as watched:
        if mode == "partitions":
            for profile, start in ((9, 4), (19, 0)):
                watched.backend.owned.add("gpu-0000-07-00-0", profile, start)
        node.stub.xid(0, 94, instance=(first, 0))
        node.stub.xid(0, 95, instance=(second, 0))
        watched.wait("XID", 2)
        assert watched.taints() == {
            "gpu-0000-07-00-0-mig-3g-20gb-4": ["xid=94"],
            "gpu-0000-07-00-0-mig-1g-5gb-0": ["xid=95"],
        }
        assert watched.device("gpu-0000-07-00-0-mig-3g-20gb-4").health is Health.HEALTHY
        assert watched.device("gpu-0000-07-00-0-mig-1g-5gb-0").health is Health.UNHEALTHY


def test_a_change_of_mig_instances_has_the_gpus_probed(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.a100_40(2).each(mig_at_start=1))
    made = "gpu-0000-0f-00-0-mig-3g-20gb-4"
    with watching(node, {"mode": "static"}) as watched:
        assert watched.content().device(made) is None
        Operator(node.stub).create(1, 9, 4, compute_profile=2)
        node.stub.event(1, MIG_CHANGE)
        watched.wait("gpu-0000-0f-00-0: its MIG instances changed")
        assert watched.count("gpu-0000-07-00-0") == 0
        assert watched.device(made).health is Health.HEALTHY


# --- other events


@pytest.mark.parametrize(
    ("kind", "taint"),
    [
        (DOUBLE_BIT_ECC, "ecc=uncorrected"),
        (RETIREMENT_FAILURE, "ecc=remap-failed"),
        (FATAL_POISON, "ecc=poison"),
        (UNAVAILABLE, "lost="),
    ],
)
def test_events_that_say_what_is_wrong_are_taints(tmp_path: Path, kind: int, taint: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with watching(node) as watched:
        node.stub.event(1, kind)
        watched.wait("gpu-0000-43-00-0: ")
        assert watched.taints() == {"gpu-0000-43-00-0": [taint]}


def test_memory_errors_last_until_the_reset(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with watching(node) as watched:
        node.stub.change(0, ecc_uncorrected=1, rows_pending=1)
        node.stub.event(0, DOUBLE_BIT_ECC)
        watched.wait("gpu-0000-1b-00-0: ")
        assert set(watched.taints()["gpu-0000-1b-00-0"]) == {"ecc=uncorrected", "ecc=remap-pending"}
        node.stub.event(0, RETIREMENT)
        watched.wait("memory was retired")
        node.stub.change(0, ecc_uncorrected=0, rows_pending=0, rows_uncorrected=1)
        assert watched.taints() == {}


def test_a_recovery_action_lasts_until_it_is_none_and_takes_the_xids_with_it(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.b200(4))
    with watching(node) as watched:
        node.stub.xid(2, 62)
        node.stub.ask_recovery(2, 1)
        watched.wait("its recovery action changed")
        assert set(watched.taints()["gpu-0000-52-00-0"]) == {"xid=62", "recovery=reset"}
        node.stub.ask_recovery(2, 0)
        watched.wait("its recovery action changed", 2)
        assert watched.taints() == {}


@pytest.mark.parametrize(
    ("facts", "taint"),
    [
        ({"recovery_action": 2}, "recovery=reboot"),
        ({"recovery_action": 3}, "recovery=drain"),
        ({"rows_failure": 1}, "ecc=remap-failed"),
        ({"rows_pending": 1}, "ecc=remap-pending"),
        ({"ecc_uncorrected": 7}, "ecc=uncorrected"),
        ({"retired_pending": 1}, "ecc=retirement-pending"),
        ({"sram_threshold_exceeded": 1}, "ecc=sram-threshold"),
        ({"fabric_health_summary": 2}, "nvlink=unhealthy"),
    ],
)
def test_what_was_there_before_the_daemon_is_found(tmp_path: Path, facts: dict[str, int], taint: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    node.stub.change(1, **facts)
    with node.backend() as backend:
        first, second = backend.devices(backend.probe()).devices
    assert not first.taints
    assert [f"{one.key.partition('/')[2]}={one.value}" for one in second.taints] == [taint]


# --- lost GPUs


def test_a_lost_gpu_is_left_out_of_the_set_and_taken_in_again(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(8))
    with watching(node, ALL) as watched:
        before = watched.content()
        node.stub.lose(3)
        watched.wait("gpu-0000-61-00-0 lost")
        taints = watched.taints()
        assert len(taints) == 27
        assert all(name.startswith("gpu-0000-61-00-0") for name in taints)
        assert {tuple(sorted(one)) for one in taints.values()} == {("lost=", "xid=79")}

        node.stub.xid(6, 48)
        watched.wait("gpu-0000-d1-00-0: XID 48")
        assert len(watched.taints()) == 2 * 27
        node.stub.find(3)
        watched.wait("GPU 3 answers again")
        assert len(watched.taints()) == 27
        node.stub.xid(3, 64)
        watched.wait("gpu-0000-61-00-0: XID 64")
        assert len(watched.taints()) == 2 * 27
        assert [device.name for device in watched.content().devices] == [one.name for one in before.devices]


def test_lost_gpus_cost_no_time(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(4))
    with watching(node) as watched:
        node.stub.lose(0)
        node.stub.lose(1)
        watched.wait("gpu-0000-43-00-0 lost")
        node.stub.record()
        time.sleep(1)
        node.stub.record(calls=False)
    waits = [call for call in node.stub.calls() if call.function == "nvmlEventSetWait_v2"]
    assert len(waits) < 40


def test_events_are_not_missed_while_a_set_is_made_anew(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(8))
    with watching(node) as watched:
        node.stub.faults(Fault("nvmlEventSetCreate", "sleep", "300"))
        node.stub.lose(0)
        for number in range(1, 8):
            time.sleep(0.05)
            node.stub.xid(number, 95)
        for gpu in node.stub.node.gpus[1:]:
            watched.wait(f"gpu-{gpu.bus_id.replace(':', '-').replace('.', '-')}: XID 95")
        assert len(watched.taints()) == 8


def test_a_gpu_that_is_lost_from_the_start_is_heard_once_it_is_back(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    node.stub.change(1, lost=1)
    with watching(node) as watched:
        node.stub.xid(2, 95)
        watched.wait("gpu-0000-52-00-0: XID 95")
        node.stub.find(1)
        watched.wait("GPU 1 answers again")
        node.stub.xid(1, 95)
        watched.wait("gpu-0000-43-00-0: XID 95")
        assert set(watched.taints()) == {"gpu-0000-52-00-0", "gpu-0000-43-00-0"}


def test_a_gpu_off_the_bus_stays_published_until_it_is_back(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    with watching(node, ALL) as watched:
        before = watched.content()
        full = node.stub.node
        node.stub.xid(1, 79)
        watched.wait("XID 79")
        node.unplug("0000:43:00.0")
        node.stub.become(type(full)(full.driver, (full.gpus[0], full.gpus[2])))
        content = watched.content()
        assert [device.name for device in content.devices] == [device.name for device in before.devices]
        assert content.counter_sets == before.counter_sets
        assert len(watched.taints()) == 27
        assert set(watched.taints()["gpu-0000-43-00-0"]) == {"lost=", "xid=79"}

        node.plug(full.gpus[1])
        node.stub.become(full)
        node.bind("0000:43:00.0", "nvidia")
        assert watched.content().devices == before.devices
        watched.hear(node.stub, 1, 95)


def test_a_gpu_that_its_driver_is_about_to_take_is_shown_once_it_has(tmp_path: Path) -> None:
    """The kernel links it to the driver before, and NVML may be asked in between."""
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with node.backend({"mode": "whole"}) as backend:
        before = backend.devices(backend.probe()).devices
        full = node.stub.node
        node.unplug("0000:43:00.0")
        node.stub.become(replace(full, gpus=full.gpus[:1]))
        backend.probe()
        node.plug(full.gpus[1])
        node.bind("0000:43:00.0", "nvidia", taken=False)
        taints = {device.name: device.taints for device in backend.devices(backend.probe()).devices}
        assert taints["gpu-0000-43-00-0"]
        node.stub.become(full)
        node.bind("0000:43:00.0", "nvidia")
        assert backend.devices(backend.probe()).devices == before


# --- drivers


@pytest.mark.parametrize("driver", ["450.51.06", "535.104.05", "550.54.15", "595.58.03"])
def test_old_drivers_are_heard_as_far_as_they_tell(tmp_path: Path, driver: str) -> None:
    node = GpuNode(tmp_path, nvmlnodes.a100_40(2, driver))
    with watching(node, {"mode": "whole"}) as watched:
        node.stub.xid(1, 119)
        node.stub.event(0, DOUBLE_BIT_ECC)
        watched.wait("XID 119")
        watched.wait("could not be corrected")
        assert watched.taints() == {
            "gpu-0000-07-00-0": ["ecc=uncorrected"],
            "gpu-0000-0f-00-0": ["xid=119"],
        }


@pytest.mark.parametrize("facts", [{"event_types": 0}, {"event_types": None}, {"event_types": XID}])
def test_a_gpu_with_fewer_events_keeps_no_other_from_being_heard(
    tmp_path: Path, facts: dict[str, int]
) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(3))
    node.stub.change(1, **facts)
    with watching(node) as watched:
        node.stub.xid(0, 95)
        node.stub.xid(2, 95)
        watched.wait("XID 95", 2)
        node.stub.change(1, rows_failure=1)
        assert set(watched.taints()) == {"gpu-0000-1b-00-0", "gpu-0000-43-00-0", "gpu-0000-52-00-0"}


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_a_driver_without_event_sets_is_probed(
    tmp_path: Path, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2), missing={function})
    with watching(node, begun=False) as watched:
        node.stub.change(0, recovery_action=1)
        eventually(lambda: "GPU events are not heard" in caplog.text)
        time.sleep(0.5)
        assert watched.taints() == {"gpu-0000-1b-00-0": ["recovery=reset"]}
    told = [record for record in caplog.records if "GPU events are not heard" in record.getMessage()]
    assert len(told) == 1


def test_a_driver_that_comes_later_is_heard(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2), driver=False)
    with watching(node, begun=False) as watched:
        assert not watched.content().devices
        node.load()
        watched.wait(BEGUN)
        assert len(watched.content().devices) == 2
        watched.hear(node.stub, 0, 95)


def test_a_driver_that_is_loaded_anew_is_heard_anew_and_has_no_xids(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with watching(node) as watched:
        node.stub.xid(0, 95)
        watched.wait("XID 95")
        assert len(watched.taints()) == 1
        well = node.stub.node
        node.unload()
        node.stub.become(well.without_driver())
        node.stub.faults(
            Fault("nvmlSystemGetDriverVersion", "fail", str(pynvml.NVML_ERROR_UNINITIALIZED)),
            Fault("nvmlEventSetWait_v2", "fail", str(pynvml.NVML_ERROR_UNINITIALIZED)),
        )
        with pytest.raises(UnavailableError, match="is not now"):
            watched.content()
        node.stub.faults()
        node.stub.become(well)
        node.load()
        watched.wait(BEGUN, 2)
        assert watched.taints() == {}
        watched.hear(node.stub, 1, 62)


def test_the_library_is_not_kept_open_where_that_is_not_wanted(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with watching(node, {"closeWhenIdle": True}, begun=False) as watched:
        node.stub.record()
        node.stub.xid(0, 95)
        node.stub.change(1, recovery_action=1)
        time.sleep(0.5)
        node.stub.record(calls=False)
        assert node.stub.calls() == []
        assert watched.taints() == {"gpu-0000-43-00-0": ["recovery=reset"]}


# --- hanging calls


def test_events_are_shown_while_the_driver_hangs(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(8))
    with watching(node) as watched:
        before = watched.content()
        with node.stub.hanging("nvmlDeviceGetMigMode", index=3):
            node.stub.xid(3, 119)
            watched.wait("XID 119")
            assert watched.taints() == {"gpu-0000-61-00-0": ["xid=119"]}
            node.stub.xid(5, 95)
            watched.wait("XID 95")
            assert set(watched.taints()) == {"gpu-0000-61-00-0", "gpu-0000-c3-00-0"}
            assert watched.count("answer again") == 0
        watched.wait("the GPUs answer again")
        node.stub.change(1, recovery_action=1)
        assert len(watched.taints()) == 3
        assert [one.name for one in watched.content().devices] == [one.name for one in before.devices]


def test_a_wait_that_hangs_keeps_nothing_from_being_probed(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    with watching(node) as watched:
        node.stub.record()
        with node.stub.hanging("nvmlEventSetWait_v2"):
            node.stub.wait_for_call("nvmlEventSetWait_v2")
            node.stub.change(1, recovery_action=2)
            assert watched.taints() == {"gpu-0000-43-00-0": ["recovery=reboot"]}
        node.stub.xid(0, 95)
        watched.wait("XID 95")
