"""GPUs bound to vfio-pci for virtual machines, and back, on an emulated PCI bus."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpumachine import GpuMachine, build, machine
from gpunode import GpuNode
from nvmlfacts import Node, Process
from nvmlnodes import h100, l40s
from pcibus import Bus

FIRST, SECOND = "0000:1b:00.0", "0000:43:00.0"
GPU, OTHER = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
AUDIO = "0000:1b:00.1"


class LooseBus(Bus):
    """A bus that a function leaves once something happens to it.

    leaves   what happens to it, "unbind" or "bind", by address
    """

    def __init__(self, gpus: GpuNode) -> None:
        super().__init__(gpus)
        self.leaves: dict[str, str] = {}

    def unplug(self, address: str) -> None:
        """Have a function leave now."""
        self._all.pop(address, None)
        del self._natural[address]
        for entry in (self._root / "sys/kernel/iommu_groups").glob(f"*/devices/{address}"):
            entry.unlink()
        self._gpus.unplug(address)
        self._show()

    def _unbind(self, address: str) -> None:
        super()._unbind(address)
        self._happened("unbind", address)

    def _probe(self, address: str) -> None:
        if address in self._natural:
            super()._probe(address)
            self._happened("bind", address)

    def _happened(self, what: str, address: str) -> None:
        if self.leaves.get(address) == what:
            self.unplug(address)


@contextmanager
def at_work(
    root: Path, node: Node | None = None, bus: type[Bus] = Bus, **options: Any
) -> Iterator[tuple[GpuNode, Any, GpuMachine]]:
    """Give a node whose GPUs can be passed through, its bus, and an engine on it."""
    gpus = build(root, node or h100(2))
    with bus(gpus).serving() as served, machine(root, passthrough=True, mode="whole", **options) as made:
        yield gpus, served, made


def test_a_gpu_is_bound_to_vfio_for_a_claim_and_back_after_it(tmp_path: Path) -> None:
    with at_work(tmp_path) as (_, bus, made):
        claim = made.prepared("vm", f"{GPU}-vfio")
        assert bus.log == [("unbind", FIRST, "nvidia"), ("bind", FIRST, "vfio-pci")]
        assert bus.override(FIRST) == "vfio-pci"
        record = made.record(claim)
        assert record
        assert record.steps[0].facts == {"before": {FIRST: ["nvidia", ""]}}
        (edits,) = made.edits(claim)
        assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/vfio/vfio", "/dev/vfio/20"]
        made.refresh()
        assert {GPU, f"{GPU}-vfio"} <= set(made.devices) or f"{GPU}-vfio" in made.devices
        made.prepared("other", OTHER)
        made.undone(claim)
        assert (bus.driver(FIRST), bus.override(FIRST)) == ("nvidia", "")
        made.refresh()
        made.prepared("whole", GPU)


def test_a_device_file_of_its_own_is_given_where_there_is_iommufd(tmp_path: Path) -> None:
    with at_work(tmp_path) as (gpus, _, made):
        gpus.host.path(f"sys/bus/pci/devices/{FIRST}/vfio-dev/vfio3").mkdir(parents=True)
        gpus.tree.write("dev/iommu", "")
        (edits,) = made.edits(made.prepared("vm", f"{GPU}-vfio"))
        paths = [node["path"] for node in edits["deviceNodes"]]
        assert paths[2:] == ["/dev/iommu", "/dev/vfio/devices/vfio3"]


def test_all_functions_of_the_board_go_and_come_back(tmp_path: Path) -> None:
    with at_work(tmp_path, l40s(1)) as (gpus, bus, made):
        address = gpus.stub.node.gpus[0].bus_id
        audio, bridge = f"{address[:-1]}1", "0000:00:01.0"
        bus.add(audio, "snd_hda_intel", 20)
        bus.add(bridge, "pcieport", 20, "0x060400")
        bus.add("0000:00:1f.0", "", 20, "0x060100")
        (whole,) = [name for name in made.devices if not name.endswith("-vfio")]
        claim = made.prepared("vm", f"{whole}-vfio")
        assert (bus.driver(address), bus.driver(audio), bus.driver(bridge)) == (
            "vfio-pci",
            "vfio-pci",
            "pcieport",
        )
        made.undone(claim)
        assert (bus.driver(address), bus.driver(audio)) == ("nvidia", "snd_hda_intel")


def test_a_group_with_somebody_elses_device_is_refused_by_name(tmp_path: Path) -> None:
    with at_work(tmp_path) as (_, bus, made):
        bus.add("0000:1c:00.0", "mlx5_core", 20, "0x020000")
        reason = made.refusal("vm", f"{GPU}-vfio")
        assert "IOMMU group 20 is not viable: it also has 0000:1c:00.0 (driver mlx5_core)" in reason
        assert bus.log == []


def test_gpus_of_one_group_go_together_or_not_at_all(tmp_path: Path) -> None:
    gpus = build(tmp_path, h100(2))
    for address in (FIRST, SECOND):
        link = gpus.host.path(f"sys/bus/pci/devices/{address}") / "iommu_group"
        link.unlink()
        link.symlink_to("/sys/kernel/iommu_groups/20")
    with Bus(gpus).serving() as bus:
        group = gpus.directory / "sys/kernel/iommu_groups"
        (group / f"21/devices/{SECOND}").rename(group / f"20/devices/{SECOND}")
        with machine(tmp_path, passthrough=True, mode="whole") as made:
            assert f"it also has {SECOND} (driver nvidia)" in made.refusal("one", f"{GPU}-vfio")
            claim = made.prepared("both", f"{GPU}-vfio", f"{OTHER}-vfio")
            assert bus.driver(FIRST) == bus.driver(SECOND) == "vfio-pci"
            made.undone(claim)
            assert bus.driver(FIRST) == bus.driver(SECOND) == "nvidia"


def test_a_gpu_that_is_bound_already_stays_so(tmp_path: Path) -> None:
    gpus = build(tmp_path, h100(2))
    with Bus(gpus).serving() as bus:
        gpus.host.path(f"sys/bus/pci/devices/{FIRST}/driver_override").write_text("vfio-pci\n")
        gpus.bind(FIRST, "vfio-pci")
        bus._show()
        with machine(tmp_path, passthrough=True, mode="whole") as made:
            claim = made.prepared("vm", f"{GPU}-vfio")
            made.undone(claim)
        assert bus.log == []
        assert (bus.driver(FIRST), bus.override(FIRST)) == ("vfio-pci", "vfio-pci")


def test_holders_of_the_gpu_are_named(tmp_path: Path) -> None:
    with at_work(tmp_path) as (gpus, bus, made):
        opened = bus.open(4711, "nvidia-persiste", "/dev/nvidia0")
        bus.open(4712, "dcgmi", "/dev/nvidia1")
        reason = made.refusal("vm", f"{GPU}-vfio", seconds=3.0)
        assert reason == "/dev/nvidia0 is in use by nvidia-persiste (4711)"
        assert bus.driver(FIRST) == "nvidia"
        opened.unlink()
        gpus.stub.replace(0, replace(gpus.stub.node.gpus[0], processes=(Process(99),)))
        assert f"{GPU} is in use by processes 99" in made.refusal("vm", f"{GPU}-vfio", seconds=3.0)
        assert bus.log == []


def test_a_virtual_machine_that_runs_holds_up_unprepare(tmp_path: Path) -> None:
    with at_work(tmp_path) as (_, bus, made):
        claim = made.prepared("vm", f"{GPU}-vfio")
        opened = bus.open(4711, "qemu-system-x86", "/dev/vfio/20")
        assert made.unprepare(claim, seconds=3.0) == "/dev/vfio/20 is in use by qemu-system-x86 (4711)"
        opened.unlink()
        made.undone(claim)
        assert bus.driver(FIRST) == "nvidia"


def test_persistence_mode_is_off_meanwhile(tmp_path: Path) -> None:
    with at_work(tmp_path) as (gpus, _, made):
        with made.gpu.nvml.session() as session:
            pynvml.nvmlDeviceSetPersistenceMode(session.gpu(FIRST), 1)
        claim = made.prepared("vm", f"{GPU}-vfio")
        made.undone(claim)
        state = gpus.stub.state()[0]
        assert state.persistence == 1


@pytest.mark.parametrize("missing", ["vfio-pci is not loaded", "vfio-pci refuses"])
def test_without_vfio_the_gpu_goes_back(tmp_path: Path, missing: str) -> None:
    with at_work(tmp_path) as (gpus, bus, made):
        if missing.endswith("refuses"):
            bus.refusing.add("vfio-pci")
            expected = "was not taken by vfio-pci"
        else:
            shutil.rmtree(gpus.directory / "sys/bus/pci/drivers/vfio-pci")
            expected = "cannot be bound to vfio-pci: the kernel has no such driver loaded"
        assert expected in made.refusal("vm", f"{GPU}-vfio")
        assert (bus.driver(FIRST), bus.override(FIRST)) in {("nvidia", ""), ("nvidia", "(null)")}


def test_an_unplugged_gpu_needs_no_way_back(tmp_path: Path) -> None:
    with at_work(tmp_path) as (gpus, bus, made):
        claim = made.prepared("vm", f"{GPU}-vfio")
        done = len(bus.log)
        gpus.unplug(FIRST)
        made.undone(claim)
        assert made.record(claim) is None
        assert bus.log[done:] == []
        assert bus.driver(SECOND) == "nvidia"


@contextmanager
def board(tmp_path: Path) -> Iterator[tuple[LooseBus, GpuMachine, str, str, str]]:
    """Give a GPU with an audio function: the bus, the engine, the addresses of both, and the name of the whole GPU."""
    with at_work(tmp_path, l40s(1), LooseBus) as (gpus, bus, made):
        (first,) = (gpu.bus_id for gpu in gpus.stub.node.gpus)
        audio = f"{first[:-1]}1"
        bus.add(audio, "snd_hda_intel", 20)
        whole = next(name for name in made.devices if not name.endswith("-vfio"))
        yield bus, made, first, audio, whole


@pytest.mark.parametrize("when", ["unbind", "bind"])
def test_a_gpu_that_is_unplugged_while_it_is_bound_is_told_of(tmp_path: Path, when: str) -> None:
    with at_work(tmp_path, l40s(2), LooseBus) as (gpus, bus, made):
        first, second = (gpu.bus_id for gpu in gpus.stub.node.gpus)
        audio = f"{first[:-1]}1"
        bus.add(audio, "snd_hda_intel", 20)
        whole = next(name for name in made.devices if not name.endswith("-vfio"))
        bus.leaves[first] = when
        reason = made.refusal("vm", f"{whole}-vfio")
        assert reason == f"{whole} left the bus while it was bound to vfio-pci"
        assert bus.driver(audio) == "snd_hda_intel"
        assert bus.override(audio) in {"", "(null)"}
        assert bus.driver(second) == "nvidia"


def test_a_function_of_the_board_that_is_unplugged_while_it_is_bound_leaves_the_gpu_as_it_was(
    tmp_path: Path,
) -> None:
    with board(tmp_path) as (bus, made, first, audio, whole):
        bus.leaves[audio] = "unbind"
        reason = made.refusal("vm", f"{whole}-vfio")
        assert reason == f"{audio} left the bus while it was bound to vfio-pci"
        assert (bus.driver(first), bus.override(first)) == ("nvidia", "")


@pytest.mark.parametrize("when", ["unbind", "bind"])
def test_a_gpu_that_is_unplugged_on_its_way_back_needs_none(tmp_path: Path, when: str) -> None:
    with board(tmp_path) as (bus, made, first, audio, whole):
        claim = made.prepared("vm", f"{whole}-vfio")
        bus.leaves[first] = when
        made.undone(claim)
        assert (bus.driver(audio), bus.override(audio)) == ("snd_hda_intel", "")


def test_a_driver_that_does_not_take_its_function_back_keeps_no_other_from_its_own(tmp_path: Path) -> None:
    with board(tmp_path) as (bus, made, first, audio, whole):
        claim = made.prepared("vm", f"{whole}-vfio")
        bus.refusing.add("nvidia")
        assert made.unprepare(claim) == f"{first} was not taken by nvidia: it is bound to none"
        assert bus.driver(audio) == "snd_hda_intel"
        bus.refusing.clear()
        made.undone(claim)
        assert bus.driver(first) == "nvidia"


def test_a_virtual_machine_that_has_what_is_left_of_a_board_holds_up_unprepare(tmp_path: Path) -> None:
    with board(tmp_path) as (bus, made, first, audio, whole):
        claim = made.prepared("vm", f"{whole}-vfio")
        opened = bus.open(4711, "qemu-system-x86", "/dev/vfio/20")
        bus.unplug(first)
        assert made.unprepare(claim, seconds=3.0) == "/dev/vfio/20 is in use by qemu-system-x86 (4711)"
        assert bus.driver(audio) == "vfio-pci"
        opened.unlink()
        made.undone(claim)
        assert bus.driver(audio) == "snd_hda_intel"


def test_a_group_is_given_to_one_claim(tmp_path: Path) -> None:
    with at_work(tmp_path) as (_, _, made):
        claim = made.prepared("vm", f"{GPU}-vfio")
        assert str(claim) in made.refusal("other", f"{GPU}-vfio")
        assert str(claim) in made.refusal("whole", GPU)


def test_a_bound_gpu_is_found_again_after_a_restart(tmp_path: Path) -> None:
    gpus = build(tmp_path, h100(2))
    with Bus(gpus).serving() as bus:
        with machine(tmp_path, passthrough=True, mode="whole") as made:
            claim = made.prepared("vm", f"{GPU}-vfio")
        with machine(tmp_path, passthrough=True, mode="whole") as made:
            record = made.record(claim)
            assert record
            assert not isinstance(made.prepare(claim), str)
            made.undone(claim)
        assert bus.driver(FIRST) == "nvidia"


def test_sharing_is_not_decided_for_a_virtual_machine(tmp_path: Path) -> None:
    with at_work(tmp_path) as (_, _, made):
        reason = made.refusal("vm", f"{GPU}-vfio", config={"sharing": {"exclusive": True}})
        assert (
            "GpuConfig.sharing.exclusive: how a GPU is shared in a virtual machine is decided there" in reason
        )
