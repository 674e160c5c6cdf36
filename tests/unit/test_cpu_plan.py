"""From an allocation to CPUs: given this machine, this claim and these holders, then these CPUs or this refusal."""

import msgspec
import pytest

from dradriver.backend import ClaimConfig, ContainerAdjustment, Phase, Plan, PlanError, Request, Requested
from dradriver.host import Host
from dradriver.model import Allocated, ClaimRef, Peer, Quantity
from dradriver_cpu import CpuBackend, CpuConfig, CpuOptions, PinCPUs
from hosttree import HostTree, two_sockets

CLAIM = ClaimRef("6f1c9d5e-0a3b-4c52-9d7e-2b8a31c4f001", "default", "solver")
NEIGHBOUR = ClaimRef("0b2e77aa-51d3-4f0c-8a6b-7d90e5c1b002", "default", "web")


@pytest.fixture
def tree(tmp_path_factory: pytest.TempPathFactory) -> HostTree:
    """Two sockets, each a node with two cores of two threads: CPUs 0-1,4-5 (0+4, 1+5) and 2-3,6-7 (2+6, 3+7)."""
    return two_sockets(tmp_path_factory.mktemp("host"))


def allocated(
    device: str, cpu: str | None = None, *, share: str | None = "s1", admin: bool = False
) -> Allocated:
    consumed = {} if cpu is None else {"cpu": Quantity.parse(cpu)}
    return Allocated("req", "cpu.dradriver.io", "node/cpu", device, consumed, share, admin)


class Node:
    """A machine and its backend."""

    def __init__(self, tree: HostTree, reserved: str = "") -> None:
        self.backend = CpuBackend(Host(tree.root), CpuOptions(reserved=reserved))
        self.inventory = self.backend.probe()

    def plan(
        self,
        *asked: Allocated,
        held: dict[str, ClaimRef] | None = None,
        peers: tuple[Peer, ...] = (),
        config: CpuConfig | None = None,
    ) -> Plan:
        content = self.backend.devices(self.inventory)
        configs: dict[type[ClaimConfig], ClaimConfig] = {} if config is None else {CpuConfig: config}
        devices = []
        for index, one in enumerate(asked):
            device = content.device(one.device)
            assert device is not None
            devices.append(Requested(index, one, device, configs))
        return self.backend.plan(Request(CLAIM, tuple(devices)), self.inventory, held or {}, peers)


def pins(plan: Plan) -> list[PinCPUs]:
    return [step for step in plan.steps if isinstance(step, PinCPUs)]


def test_two_cpus_are_one_core_with_the_memory_of_its_node(tree: HostTree) -> None:
    plan = Node(tree).plan(allocated("cpu-numa-1", "2"))
    (step,) = pins(plan)
    assert step.phase is Phase.CONTAINER
    assert step.adjustment() == ContainerAdjustment(cpus="2,6", mems="1")
    assert step.describe() == "pin containers to CPUs 2,6 and memory of NUMA nodes 1"
    assert plan.holds == {"2", "6"}
    (device,) = plan.devices
    assert device.edits.env == ("DRA_CPUSET_6f1c9d5e_0a3b_4c52_9d7e_2b8a31c4f001_0=2,6",)
    assert device.metadata == {"cpus": "2,6"}


def test_cpus_of_others_are_left_to_them(tree: HostTree) -> None:
    plan = Node(tree).plan(allocated("cpu-numa-0", "2"), held={"0": NEIGHBOUR, "2": NEIGHBOUR})
    assert plan.holds == {"1", "5"}


def test_several_devices_of_a_claim_never_share_a_cpu(tree: HostTree) -> None:
    plan = Node(tree).plan(
        allocated("cpu-numa-0", "1"), allocated("cpu-numa-0", "3", share="s2"), allocated("cpu-numa-1", "1")
    )
    assert [device.metadata["cpus"] for device in plan.devices] == ["0", "1,4-5", "2"]
    assert plan.holds == {"0", "1", "2", "4", "5"}
    assert [step.index for step in pins(plan)] == [0, 1, 2]


def test_a_share_without_an_amount_is_one_cpu(tree: HostTree) -> None:
    assert Node(tree).plan(allocated("cpu-numa-0")).holds == {"0"}


def test_a_device_without_share_is_all_of_its_cpus(tree: HostTree) -> None:
    assert Node(tree).plan(allocated("cpu-numa-0", share=None)).holds == {"0", "1", "4", "5"}


def test_a_device_without_share_is_refused_where_any_cpu_of_it_is_held(tree: HostTree) -> None:
    with pytest.raises(PlanError, match="cpu: 4 asked, 3 of 4 free; held: 5 by claim default/web"):
        Node(tree).plan(allocated("cpu-numa-0", share=None), held={"5": NEIGHBOUR})
    with pytest.raises(PlanError, match="4 asked, 3 of 4 free; held: 0 by another device of this claim"):
        Node(tree).plan(allocated("cpu-numa-0", "1"), allocated("cpu-numa-0", share=None))


def test_memory_may_be_left_to_the_runtime(tree: HostTree) -> None:
    (step,) = pins(Node(tree).plan(allocated("cpu-numa-0", "1"), config=CpuConfig(memory="any")))
    assert step.adjustment() == ContainerAdjustment(cpus="0")


def test_admin_access_shows_the_cpus_and_holds_none(tree: HostTree) -> None:
    plan = Node(tree).plan(allocated("cpu-numa-0", admin=True), held={"0": NEIGHBOUR})
    assert plan.holds == frozenset()
    assert plan.steps == ()
    (device,) = plan.devices
    assert device.edits.env == ("DRA_CPUSET_6f1c9d5e_0a3b_4c52_9d7e_2b8a31c4f001_0=0-1,4-5",)


@pytest.mark.parametrize("amount", ["500m", "1500m", "0", "-1"])
def test_parts_of_a_cpu_are_refused(tree: HostTree, amount: str) -> None:
    with pytest.raises(
        PlanError, match=f"cpu-numa-0: cpu {amount} asked: CPUs are given whole, 1 to 4 of them"
    ):
        Node(tree).plan(allocated("cpu-numa-0", amount))


@pytest.mark.parametrize("amount", ["1e999", "9" * 500, "1." + "3" * 400])
def test_a_huge_amount_does_not_make_a_huge_message(tree: HostTree, amount: str) -> None:
    with pytest.raises(PlanError, match=r"cpu-numa-0: .* asked") as caught:
        Node(tree).plan(allocated("cpu-numa-0", amount))
    assert len(str(caught.value)) < 300


def test_a_refusal_names_the_holders(tree: HostTree) -> None:
    held = {"0": NEIGHBOUR, "4": NEIGHBOUR, "2": NEIGHBOUR}
    with pytest.raises(PlanError) as refused:
        Node(tree).plan(allocated("cpu-numa-0", "1"), allocated("cpu-numa-0", "2"), held=held)
    assert str(refused.value) == (
        "device cpu-numa-0: cpu: 2 asked, 1 of 4 free; held: 1 by another device of this claim, "
        "0,4 by claim default/web (0b2e77aa-51d3-4f0c-8a6b-7d90e5c1b002)"
    )


def test_a_refusal_names_three_holders_at_most(tree: HostTree) -> None:
    held = {str(cpu): ClaimRef(f"uid-{cpu}", "default", f"web-{cpu}") for cpu in (5, 4, 1, 0)}
    with pytest.raises(PlanError, match=r"held: 0 by .*, 1 by .*, 4 by .*, the rest by 1 more$"):
        Node(tree).plan(allocated("cpu-numa-0", "1"), held=held)


def test_reserved_cpus_are_given_to_nobody(tree: HostTree) -> None:
    node = Node(tree, reserved="0,4")
    assert node.plan(allocated("cpu-numa-0", "2")).holds == {"1", "5"}
    with pytest.raises(PlanError, match=r"cpu: 3 asked, 2 of 2 free$"):
        node.plan(allocated("cpu-numa-0", "3"))


def test_isolated_cpus_are_had_only_by_name(tree: HostTree) -> None:
    tree.write("sys/devices/system/cpu/isolated", "1,5")
    node = Node(tree)
    assert node.plan(allocated("cpu-numa-0", share=None)).holds == {"0", "4"}
    assert node.plan(allocated("cpu-numa-0-isolated", share=None)).holds == {"1", "5"}


def test_a_cpu_that_goes_offline_is_no_longer_offered(tree: HostTree) -> None:
    tree.online("0-4,6-7")
    node = Node(tree)
    assert node.plan(allocated("cpu-numa-0", share=None)).holds == {"0", "1", "4"}
    with pytest.raises(PlanError, match="cpu: 4 asked, 3 of 3 free"):
        node.plan(allocated("cpu-numa-0", "4"))


def test_memory_comes_from_the_nearest_node_that_has_some(tree: HostTree) -> None:
    tree.node(0, "0-1,4-5", memory_kib=0, distance="10 21 11").node(1, "2-3,6-7", distance="21 10 31")
    tree.node(2, "", distance="11 31 10")
    (step,) = pins(Node(tree).plan(allocated("cpu-numa-0", "1")))
    assert step.adjustment().mems == "2"


def test_without_numa_nodes_memory_is_left_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host")).online("0-1").cores([[0], [1]])
    (step,) = pins(Node(tree).plan(allocated("cpu-machine", "1")))
    assert step.adjustment() == ContainerAdjustment(cpus="0")


def test_the_same_request_gives_the_same_plan(tree: HostTree) -> None:
    node = Node(tree)
    peers = (Peer(Allocated("gpu", "gpu.dradriver.io", "node/gpu", "gpu-0000-41-00-0"), frozenset({1})),)
    asked = allocated("cpu-numa-1", "3")
    assert node.plan(asked, peers=peers) == node.plan(asked, peers=peers)


def test_steps_come_back_from_the_journal(tree: HostTree) -> None:
    plan = Node(tree).plan(allocated("cpu-numa-0", "2"))
    (kind,) = CpuBackend.step_types
    assert [msgspec.convert(msgspec.to_builtins(step), kind) for step in plan.steps] == list(plan.steps)
