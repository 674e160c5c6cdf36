"""Functions for programs of pods, as DPDK: bound to vfio-pci and back, with the network interface that they had."""

from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import (
    BackendError,
    ContainerAdjustment,
    ContainerStep,
    Observed,
    PlanError,
    TransientError,
)
from dradriver_nic import NicBackend
from netlinkside import SideActuator, SriovNode
from nicclaims import Life, claimed

CARD = "0000:15:01.0"
VF = "0000:15:01.1"
DEVICE = "nic-0000-15-01-1"
OTHER = "nic-0000-15-01-2"
CONFIG = {"driver": "vfio-pci"}


@pytest.fixture
def node(tmp_path: Path) -> SriovNode:
    made = SriovNode(tmp_path)
    made.plug(CARD, total=2, driver="ice")
    made.routes.add(made.add_link("eth0"))
    made.add_link("fab0", CARD, speed=25_000)
    made.tree.write("sys/bus/pci/drivers_probe", "")
    for driver in ("ice", "iavf", "vfio-pci"):
        made.tree.write(f"sys/bus/pci/drivers/{driver}/unbind", "")
    for number, address in enumerate(made.make_vfs(CARD, 2, driver="iavf", links="vf"), start=70):
        made.write(address, "driver_override", "(null)")
        made.tree.link(
            f"sys/kernel/iommu_groups/{number}/devices/{address}", f"/sys/bus/pci/devices/{address}"
        )
        made.tree.link(f"sys/devices/pci0000:00/{address}/iommu_group", f"/sys/kernel/iommu_groups/{number}")
        made.tree.write(f"dev/vfio/{number}", "")
    made.give_vfs(3, 2)
    return made


def backend_of(node: SriovNode) -> NicBackend:
    made = node.backend()
    made.actuator = SideActuator(node)
    return made


def driver(node: SriovNode, address: str = VF) -> str:
    target = node.host.read_link(f"sys/bus/pci/devices/{address}/driver")
    return target.rpartition("/")[2] if target else ""


def paths(life: Life) -> list[str]:
    return [one.path for device in life.rendered() for one in device.edits.device_nodes]


def test_a_function_is_bound_and_comes_back_with_its_interface(node: SriovNode) -> None:
    before = next(link for link in node.links.values() if link.device == VF)
    backend = backend_of(node)
    life = claimed(backend, DEVICE, config={**CONFIG, "vf": {"vlan": 7}})
    assert [record.type for record in life.records] == ["SetVF", "BindVfio", "LockMemory"]
    life.prepare()
    assert (driver(node), node.host.read_text(f"sys/bus/pci/devices/{VF}/driver_override")) == (
        "vfio-pci",
        "vfio-pci",
    )
    assert life.observe() == [Observed.DONE, Observed.DONE]
    assert paths(life) == ["/dev/vfio/vfio", "/dev/vfio/70"]
    assert life.rendered()[0].network is None
    published = {device.name for device in backend.devices(backend.probe()).devices}
    assert DEVICE in published
    other = backend_of(node)
    assert life.restarted(other).recall() == [False, True, False]
    assert other.away.moved.keys() == backend.away.moved.keys()
    life.prepare()
    life.unprepare()
    assert (driver(node), node.host.read_text(f"sys/bus/pci/devices/{VF}/driver_override")) == ("iavf", "")
    after = next(link for link in node.links.values() if link.device == VF)
    assert (after.name, after.mac, after.mtu) == (before.name, before.mac, before.mtu)
    assert life.observe()[1] is Observed.UNDONE


def test_programs_may_lock_memory(node: SriovNode) -> None:
    step = claimed(backend_of(node), DEVICE, config=CONFIG).steps[-1]
    assert isinstance(step, ContainerStep)
    assert step.adjustment() == ContainerAdjustment(rlimits={"RLIMIT_MEMLOCK": (1 << 64) - 1})
    assert step.describe() == "let containers lock memory without a limit"


def test_one_that_is_bound_already_is_given_as_it_is(node: SriovNode) -> None:
    node.unbound(VF)
    node.bind(VF, "vfio-pci")
    life = claimed(backend_of(node), DEVICE).prepare()
    assert paths(life) == ["/dev/vfio/vfio", "/dev/vfio/70"]
    life.unprepare()
    assert driver(node) == "vfio-pci"
    with pytest.raises(PlanError, match="is bound to vfio-pci: it has no network interface to configure"):
        claimed(backend_of(node), DEVICE, config={"interface": {"name": "x0"}})


def test_a_group_with_something_of_others_is_refused(node: SriovNode) -> None:
    stranger = node.plug("0000:15:02.0", driver="nvme", kind="0x010802")
    node.tree.link(f"sys/kernel/iommu_groups/70/devices/{stranger}", f"/sys/bus/pci/devices/{stranger}")
    life = claimed(backend_of(node), DEVICE, config=CONFIG)
    with pytest.raises(
        BackendError, match=r"IOMMU group 70 is not viable: it also has 0000:15:02.0 \(driver nvme\)"
    ):
        life.prepare()
    life.unprepare()
    assert driver(node) == "iavf"


def test_two_functions_of_one_group_go_together_or_not_at_all(node: SriovNode) -> None:
    other = "0000:15:01.2"
    (node.directory / f"sys/kernel/iommu_groups/71/devices/{other}").rename(
        node.directory / f"sys/kernel/iommu_groups/70/devices/{other}"
    )
    link = node.directory / f"sys/devices/pci0000:00/{other}/iommu_group"
    link.unlink()
    link.symlink_to("/sys/kernel/iommu_groups/70")
    life = claimed(backend_of(node), DEVICE, OTHER, config=CONFIG)
    assert life.plan.holds == {"iommu-group:70"}
    life.prepare()
    life.unprepare()
    held = dict.fromkeys(life.plan.holds, life.ref)
    with pytest.raises(PlanError, match="has another device of its IOMMU group"):
        claimed(backend_of(node), OTHER, name="other", config=CONFIG, held=held)


def test_a_driver_that_refuses_the_function_is_told_and_undone(node: SriovNode) -> None:
    node.refusing.add("vfio-pci")
    life = claimed(backend_of(node), DEVICE, config=CONFIG)
    with pytest.raises(BackendError, match="was not taken by vfio-pci"):
        life.prepare()
    life.unprepare()
    assert driver(node) == "iavf"


@pytest.mark.parametrize("own", ["a port of bond0", "the host's default route leads over it"])
@pytest.mark.parametrize("config", [CONFIG, {"interface": {"hardwareAddr": "02:00:00:00:00:09"}}])
def test_a_function_that_became_the_hosts_own_is_neither_bound_nor_changed(
    node: SriovNode, own: str, config: dict[str, Any]
) -> None:
    """As the port of a bond that somebody made since the last probe."""
    backend = backend_of(node)
    life = claimed(backend, DEVICE, config=config)
    index = next(link.index for link in node.links.values() if link.device == VF)
    if "bond" in own:
        node.values[index]["MASTER"] = node.add_link("bond0")
    else:
        node.routes = {index}
    with pytest.raises(BackendError, match=f"device {DEVICE} is the host's own now: .*{own}"):
        life.prepare()
    life.unprepare()
    assert (driver(node), node.requests, backend.away.moved) == ("iavf", [], {})


def test_a_node_that_is_not_there_yet_is_waited_for(node: SriovNode) -> None:
    (node.directory / "dev/vfio/70").unlink()
    life = claimed(backend_of(node), DEVICE, config=CONFIG)
    with pytest.raises(TransientError, match="device node /dev/vfio/70 is not there yet"):
        life.prepare()
    life.unprepare()
    assert driver(node) == "iavf"


def test_after_a_reboot_drivers_are_left_as_they_are(node: SriovNode) -> None:
    life = claimed(backend_of(node), DEVICE, config=CONFIG).prepare()
    life.restarted(backend_of(node), rebooted=True).unprepare()
    assert driver(node) == "vfio-pci"


def test_what_a_function_without_vfio_is_told_leaves_its_driver(node: SriovNode) -> None:
    claimed(backend_of(node), DEVICE, config={"vf": {"trust": True}}).prepare().unprepare()
    assert driver(node) == "iavf"


def test_what_is_no_function_cannot_be_bound(tmp_path: Path) -> None:
    node = SriovNode(tmp_path)
    node.routes.add(node.add_link("eth0"))
    node.add_link("veth7", LINKINFO={"attrs": [("IFLA_INFO_KIND", "veth")]})
    backend = node.backend({"virtualLinks": ["veth"]})
    with pytest.raises(PlanError, match="is no PCI function, so it cannot be bound to vfio-pci"):
        claimed(backend, "nic-link-veth7", config=CONFIG)
