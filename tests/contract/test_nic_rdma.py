"""RDMA devices: the kernel's side of netlink and sysfs below a root, and `rdma` of iproute2 to say what is true."""

import os
from pathlib import Path

import pytest

from dradriver.backend import BackendError, ContainerStep, Observed, PlanError, TransientError
from dradriver_nic import NicBackend
from dradriver_nic.actuate.rdmanl import RdmaNetlink, RdmaSeen
from netlinkside import RdmaSide, SideActuator, SriovNode
from netns import namespace, needs_namespaces
from nicclaims import Life, claimed
from rdmaprogram import NEEDS_PROGRAM, SideOfPrograms, program

CARD = "0000:15:01.0"
DEVICE = "nic-0000-15-01-0"
HOME = Path("/proc/self/ns/net").stat().st_ino


# --- the codec


def socket_of(side: RdmaSide, tmp_path: Path) -> RdmaNetlink:
    return SideActuator(SriovNode(tmp_path), side).rdma()


def test_devices_and_the_mode_are_read(tmp_path: Path) -> None:
    side = RdmaSide(HOME, exclusive=False)
    side.add(0, "mlx5_0")
    side.add(7, "rocep1s0")
    rdma = socket_of(side, tmp_path)
    assert [*rdma.devices()] == [
        RdmaSeen(0, "mlx5_0", 0xB8CEF60300AABB00),
        RdmaSeen(7, "rocep1s0", 0xB8CEF60300AABB07),
    ]
    assert not rdma.exclusive()
    rdma.set_exclusive(exclusive=True)
    assert rdma.exclusive()


@NEEDS_PROGRAM
def test_the_program_rdma_and_ours_mean_the_same(tmp_path: Path) -> None:
    side = SideOfPrograms(HOME)
    side.add(0, "mlx5_0")
    side.add(3, "mlx5_1")
    rdma = socket_of(side, tmp_path / "node")
    with program(side, tmp_path) as tool:
        assert (
            tool.run("dev")
            == "\n".join(
                f"{one.index}: {one.name}: node_guid b8ce:f603:00aa:bb0{one.index} " for one in rdma.devices()
            )
            + "\n"
        )
        tool.run("system", "set", "netns", "shared")
        assert not rdma.exclusive()
        rdma.set_exclusive(exclusive=True)
        assert "netns exclusive" in tool.run("system", "show")
        tool.run("dev", "set", "mlx5_0", "name", "rail0")
        assert [one.name for one in rdma.devices()] == ["rail0", "mlx5_1"]
        rdma.rename(0, "rail7")
        assert "rail7" in tool.run("dev")
        with (tmp_path / "pod").open("w") as file:
            rdma.move(3, file.fileno())
            assert "mlx5_1" not in tool.run("dev")
            assert side.where == {0: HOME, 3: os.fstat(file.fileno()).st_ino}


@needs_namespaces
@NEEDS_PROGRAM
@pytest.mark.skipif(not Path("/run/netns").is_dir(), reason="there are no named network namespaces here")
def test_the_program_moves_a_device_into_a_namespace_as_we_do(tmp_path: Path) -> None:
    side = SideOfPrograms(HOME)
    side.add(3, "mlx5_1")
    with program(side, tmp_path) as tool, namespace() as pod:
        name = f"../..{pod.path}"  # it looks below /run/netns only
        tool.run("dev", "set", "mlx5_1", "netns", name)
        assert side.where[3] == pod.path.stat().st_ino


# --- the step


class Machine:
    """A node with a card that has an RDMA device, which sysfs shows where it is on the host."""

    def __init__(self, directory: Path, *, exclusive: bool = True) -> None:
        self.node = SriovNode(directory)
        self.node.plug(CARD)
        self.node.routes.add(self.node.add_link("eth0"))
        self.node.add_link("fab0", CARD, speed=400_000)
        self.node.add_rdma(CARD, "mlx5_2", 2)
        self.node.tree.write("sys/module/ib_core/parameters/netns_mode", "N" if exclusive else "Y")
        self.node.tree.write("dev/infiniband/rdma_cm", "")
        self.side = RdmaSide(HOME, exclusive=exclusive)
        self.side.add(5, "mlx5_2")
        self.side.on_move = self._moved
        self._directory = self.node.host.path(f"sys/bus/pci/devices/{CARD}/infiniband")
        self._hidden = directory / "hidden"

    def _moved(self, name: str, is_home: bool) -> None:
        if is_home and self._hidden.exists():
            self._hidden.rename(self._directory)
        elif not is_home:
            self._directory.rename(self._hidden)

    def backend(self) -> NicBackend:
        made = self.node.backend({"mode": "pf"})
        made.actuator = SideActuator(self.node, self.side)
        return made

    def pod(self, name: str = "pod") -> Path:
        file = self.node.directory / name
        file.touch()
        return file

    def life(self) -> Life:
        """Plan a claim, without the step that moves the link, which would need a real one."""
        life = claimed(self.backend(), DEVICE)
        assert [record.type for record in life.records][:2] == ["MoveLink", "MoveRdma"]
        life.records.pop(0)
        life.facts.pop(0)
        return life

    @property
    def at_home(self) -> bool:
        return self.side.where[5] == HOME


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_rdma_device_is_in_the_pod_and_back(machine: Machine) -> None:
    life, pod = machine.life(), machine.pod()
    assert life.records[0].text == f"move the RDMA device of {CARD} ({DEVICE}) into the pod"
    for _ in range(2):
        life.start(str(pod)).start(str(pod))
        assert machine.side.where[5] == pod.stat().st_ino
        assert life.observe(str(pod)) == [Observed.DONE]
        (moved,) = life.backend.away.moved[DEVICE].rdma
        assert (moved.name, moved.char_devices[0]) == ("mlx5_2", "/dev/infiniband/issm2")
        assert life.backend.devices(life.backend.probe()).device(DEVICE)
        life.stop(str(pod))
        assert machine.at_home
        assert life.observe() == [Observed.UNDONE]
        assert dict(life.backend.away.moved) == {}
    life.unprepare()


def test_a_name_that_the_pod_gave_it_is_taken_back(machine: Machine) -> None:
    life, pod = machine.life(), machine.pod()
    life.start(str(pod))
    machine.side.names[5] = "mine"
    life.stop(str(pod))
    assert (machine.at_home, machine.side.names[5]) == (True, "mlx5_2")


def test_a_namespace_that_died_gives_it_back_by_itself(machine: Machine) -> None:
    life, pod = machine.life(), machine.pod()
    life.start(str(pod))
    number = pod.stat().st_ino
    machine.side.names[5] = "mine"
    pod.unlink()
    with pytest.raises(TransientError, match="has not come back yet"):
        life.unprepare()
    machine.side.die(number)
    life.restarted(machine.backend()).unprepare()
    assert (machine.at_home, machine.side.names[5]) == (True, "mlx5_2")


def test_a_kill_before_and_after_the_move_is_undone(machine: Machine) -> None:
    life, pod = machine.life(), machine.pod()
    machine.side.refuse = 5  # the record is written, the device is not moved
    with pytest.raises(BackendError, match="cannot be moved: Input/output error"):
        life.start(str(pod))
    machine.side.refuse = 0
    assert life.restarted(machine.backend()).observe(str(pod)) == [Observed.UNDONE]
    life.restarted(machine.backend()).unprepare()
    life.start(str(pod))
    other = machine.backend()
    assert not any(life.restarted(other, rebooted=True).recall())
    assert any(life.restarted(other).recall())
    assert [one.rdma[0].name for one in other.away.moved.values()] == ["mlx5_2"]
    life.restarted(machine.backend()).unprepare()
    assert machine.at_home


def test_a_second_pod_is_refused(machine: Machine) -> None:
    life = machine.life().start(str(machine.pod()))
    with pytest.raises(BackendError, match="neither on the host nor in the pod: one pod at a time"):
        life.start(str(machine.pod("second")))
    life.unprepare()
    assert machine.at_home


def test_a_mode_that_was_changed_meanwhile_is_told(machine: Machine) -> None:
    life = machine.life()
    machine.side.exclusive = False
    with pytest.raises(BackendError, match=r"all network namespaces see it \(rdma system set netns\)"):
        life.start(str(machine.pod()))
    life.unprepare()


def test_after_a_reboot_and_without_modules_nothing_is_undone(machine: Machine) -> None:
    life = machine.life().start(str(machine.pod()))
    life.restarted(machine.backend(), rebooted=True).unprepare()
    assert not machine.at_home
    machine.node.host.path("sys/module/ib_core").rename(machine.node.directory / "unloaded")
    life.unprepare()
    assert not machine.at_home


# --- what containers get


def paths(life: Life) -> list[str]:
    return [node.path for device in life.rendered() for node in device.edits.device_nodes]


NODES = ["/dev/infiniband/umad2", "/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"]


def test_containers_get_the_char_devices_and_may_lock_memory(machine: Machine) -> None:
    life = claimed(machine.backend(), DEVICE)
    assert set(NODES) <= set(paths(life))
    step = life.steps[-1]
    assert isinstance(step, ContainerStep)
    assert step.adjustment().rlimits == {"RLIMIT_MEMLOCK": (1 << 64) - 1}


def test_a_shared_rdma_device_is_not_moved(tmp_path: Path) -> None:
    life = claimed(Machine(tmp_path, exclusive=False).backend(), DEVICE)
    assert [record.type for record in life.records] == ["MoveLink", "LockMemory"]
    assert set(NODES) <= set(paths(life))


def test_nobody_gets_rdma_who_does_not_want_it(machine: Machine) -> None:
    life = claimed(machine.backend(), DEVICE, config={"rdma": False})
    assert [record.type for record in life.records] == ["MoveLink"]
    assert paths(life) == []


def test_rdma_that_is_not_there_is_refused(tmp_path: Path) -> None:
    node = SriovNode(tmp_path)
    node.plug(CARD)
    node.routes.add(node.add_link("eth0"))
    node.add_link("fab0", CARD)
    with pytest.raises(PlanError, match=f"rdma: device {DEVICE} has no RDMA device"):
        claimed(node.backend({"mode": "pf"}), DEVICE, config={"rdma": True})


def test_shares_get_rdma_only_where_it_is_asked_and_can_be(tmp_path: Path) -> None:
    """By it the limit of the share does not count; and what belongs to one namespace cannot be shared."""
    shared = Machine(tmp_path / "a", exclusive=False)
    backend = shared.node.backend({"mode": "shares"})
    assert paths(claimed(backend, DEVICE)) == []
    assert set(NODES) <= set(paths(claimed(backend, DEVICE, config={"rdma": True})))
    exclusive = Machine(tmp_path / "b").node.backend({"mode": "shares"})
    with pytest.raises(PlanError, match="belongs to one network namespace at a time, and cannot be shared"):
        claimed(exclusive, DEVICE, config={"rdma": True})


def test_virtual_functions_that_are_made_get_theirs(tmp_path: Path) -> None:
    machine = Machine(tmp_path, exclusive=False)
    for name, text in (("totalvfs", "2"), ("numvfs", "0"), ("offset", "1"), ("stride", "1")):
        machine.node.write(CARD, f"sriov_{name}", text)
    backend = machine.node.backend({"mode": "on-demand"})
    backend.actuator = SideActuator(machine.node, machine.side)
    life = claimed(backend, "nic-0000-15-01-1")
    assert [record.type for record in life.records] == ["CreateVFs", "MoveLink", "LockMemory"]
    machine.node.make_vfs(CARD, 2, links="vf")
    machine.node.give_vfs(3, 2)
    machine.node.add_rdma("0000:15:01.1", "mlx5_3", 3)
    life.prepare()
    assert paths(life) == [
        *(f"/dev/infiniband/{name}3" for name in ("issm", "umad", "uverbs")),
        "/dev/infiniband/rdma_cm",
    ]
