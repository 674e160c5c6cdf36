"""Which kernel events have GPUs probed anew."""

from pathlib import Path

import nvmlnodes
from dradriver.host import Uevent
from dradriver_gpu.hotplug import BusWatch
from gpunode import GpuNode


def test_events_of_gpus_and_of_their_drivers_matter_and_no_others(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(2))
    node.tree.write("sys/bus/pci/devices/0000:99:00.0/vendor", "0x15b3")
    reasons: list[str] = []
    watch = BusWatch(node.host, reasons.append)
    watch.look()
    assert reasons == ["kernel events may have been missed"]
    reasons.clear()

    node.unplug("0000:1b:00.0")
    watch.take(Uevent("pci", "remove", "/devices/pci0000:15/0000:15:01.0/0000:1b:00.0"))
    watch.take(Uevent("pci", "bind", "/devices/pci0000:3d/0000:3d:01.0/0000:43:00.0"))
    watch.take(Uevent("module", "remove", "/module/nvidia"))
    assert reasons == ["remove 0000:1b:00.0", "bind 0000:43:00.0", "remove /module/nvidia"]
    reasons.clear()

    watch.take(Uevent("pci", "add", "/devices/pci0000:3d/0000:3d:01.0"))
    watch.take(Uevent("pci", "add", "/devices/pci0000:97/0000:99:00.0"))
    watch.take(Uevent("pci", "remove", "/devices/pci0000:97/0000:98:00.0"))
    watch.take(Uevent("module", "add", "/module/nvme"))
    assert not reasons

    node.plug(node.stub.node.gpus[0])
    watch.take(Uevent("pci", "add", "/devices/pci0000:15/0000:15:01.0/0000:1b:00.0"))
    assert reasons == ["add 0000:1b:00.0"]


def test_a_gpu_that_is_new_to_the_bus_is_noticed(tmp_path: Path) -> None:
    node = GpuNode(tmp_path, nvmlnodes.h100(1))
    node.unplug("0000:1b:00.0")
    reasons: list[str] = []
    watch = BusWatch(node.host, reasons.append)
    watch.look()
    node.plug(node.stub.node.gpus[0])
    watch.take(Uevent("pci", "add", "/devices/pci0000:15/0000:15:01.0/0000:1b:00.0"))
    assert reasons[1:] == ["add 0000:1b:00.0"]
