"""From an allocation to a binding: given this machine and this claim, then these memory nodes and limits."""

from pathlib import Path

import msgspec
import pytest

from dradriver.backend import ContainerAdjustment, Phase, Plan, PlanError, Request, Requested
from dradriver.host import Host
from dradriver.model import Allocated, ClaimRef, Quantity
from dradriver_memory import BindMemory, LimitHugepages, MemoryBackend, MemoryOptions
from hosttree import HostTree, two_sockets

CLAIM = ClaimRef("6f1c9d5e-0a3b-4c52-9d7e-2b8a31c4f001", "default", "solver")
UID = "6f1c9d5e_0a3b_4c52_9d7e_2b8a31c4f001"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two nodes of 4 GiB; the first has 512 huge pages of 2 MiB and one of 1 GiB."""
    tree = two_sockets(tmp_path)
    tree.node(0, "0-1,4-5", memory_kib=4 << 20, huge_pages={2048: (512, 0, 0), 1 << 20: (1, 0, 0)})
    return tree.root


def share(
    device: str, amount: str | None = None, *, share_id: str | None = "s1", admin: bool = False
) -> Allocated:
    capacity = device.partition("-")[0]
    consumed = {} if amount is None else {capacity: Quantity.parse(amount)}
    return Allocated("req", "memory.dradriver.io", "node/memory", device, consumed, share_id, admin)


def plan(root: Path, *asked: Allocated) -> Plan:
    backend = MemoryBackend(Host(root), MemoryOptions())
    inventory = backend.probe()
    content = backend.devices(inventory)
    devices = []
    for index, one in enumerate(asked):
        device = content.device(one.device)
        assert device is not None
        devices.append(Requested(index, one, device))
    return backend.plan(Request(CLAIM, tuple(devices)), inventory, {}, ())


def test_memory_binds_to_its_node(root: Path) -> None:
    made = plan(root, share("memory-numa-1", "1Gi"))
    assert made.steps == (BindMemory(0, "1"),)
    assert made.steps[0].phase is Phase.CONTAINER
    assert made.steps[0].describe() == "bind containers to memory of NUMA nodes 1"
    assert BindMemory(0, "1").adjustment() == ContainerAdjustment(mems="1")
    assert made.holds == frozenset()
    (device,) = made.devices
    assert device.edits.env == (f"DRA_MEMORY_{UID}_0=numaNode=1,bytes=1073741824",)
    assert device.metadata == {"memory": 1 << 30}


def test_huge_pages_are_limited_and_bound(root: Path) -> None:
    made = plan(root, share("hugepages-2mi-numa-0", "64Mi"), share("hugepages-1gi-numa-0", "1Gi"))
    assert made.steps == (
        LimitHugepages(0, "0", "2MB", 64 << 20),
        LimitHugepages(1, "0", "1GB", 1 << 30),
    )
    assert LimitHugepages(0, "0", "2MB", 64 << 20).adjustment() == ContainerAdjustment(
        mems="0", hugepage_limits={"2MB": 64 << 20}
    )
    assert made.steps[0].describe() == "limit huge pages of 2MB on NUMA nodes 0 to 67108864 bytes"
    assert [device.edits.env for device in made.devices] == [
        (f"DRA_HUGEPAGES_{UID}_0=numaNode=0,pageSize=2Mi,bytes=67108864",),
        (f"DRA_HUGEPAGES_{UID}_1=numaNode=0,pageSize=1Gi,bytes=1073741824",),
    ]


def test_a_share_without_an_amount_is_one_page_and_no_share_is_all(root: Path) -> None:
    assert plan(root, share("hugepages-2mi-numa-0")).steps == (LimitHugepages(0, "0", "2MB", 2 << 20),)
    whole = plan(root, share("hugepages-2mi-numa-0", share_id=None))
    assert whole.steps == (LimitHugepages(0, "0", "2MB", 1 << 30),)
    memory = plan(root, share("memory-numa-1", share_id=None))
    assert memory.steps == (BindMemory(0, "1"),)
    assert memory.devices[0].metadata == {"memory": 4 << 30}


@pytest.mark.parametrize(
    ("device", "amount", "message"),
    [
        ("hugepages-2mi-numa-0", "3Mi", "whole pages of 2Mi; nearest allowed are 2Mi and 4Mi"),
        ("hugepages-2mi-numa-0", "0", "whole pages of 2Mi; nearest allowed are 2Mi"),
        ("hugepages-2mi-numa-0", "-4Mi", "whole pages of 2Mi; nearest allowed are 2Mi"),
        ("hugepages-2mi-numa-0", "5000M", "whole pages of 2Mi; nearest allowed are 1Gi"),
        ("hugepages-1gi-numa-0", "1", "whole pages of 1Gi; nearest allowed are 1Gi"),
        ("memory-numa-1", "10k", "whole pages of 4Ki; nearest allowed are 8Ki and 12Ki"),
        ("memory-numa-1", "9" * 500, "whole pages of 4Ki; nearest allowed are 4Gi"),
        ("memory-numa-1", "500m", "whole pages of 4Ki; nearest allowed are 4Ki"),
    ],
)
def test_parts_of_a_page_are_refused(root: Path, device: str, amount: str, message: str) -> None:
    with pytest.raises(PlanError, match=f"device {device}: .{{1,120}} asked: it is given in {message}$"):
        plan(root, share(device, amount))


def test_admin_access_shows_all_and_does_nothing(root: Path) -> None:
    made = plan(root, share("hugepages-2mi-numa-0", admin=True))
    assert made.steps == ()
    (device,) = made.devices
    assert device.edits.env == (f"DRA_HUGEPAGES_{UID}_0=numaNode=0,pageSize=2Mi,bytes=1073741824",)


def test_a_machine_without_nodes_binds_nothing(tmp_path: Path) -> None:
    tree = HostTree(tmp_path).online("0").memory(1 << 20, {2048: (4, 4, 0)})
    made = plan(tree.root, share("memory-machine", "1Mi"), share("hugepages-2mi-machine", "2Mi"))
    assert made.steps == (LimitHugepages(1, "", "2MB", 2 << 20),)
    assert made.devices[0].edits.env == (f"DRA_MEMORY_{UID}_0=bytes=1048576",)


def test_steps_come_back_from_the_journal(root: Path) -> None:
    made = plan(root, share("memory-numa-0", "1Mi"), share("hugepages-2mi-numa-0", "2Mi"))
    kinds = {kind.__name__: kind for kind in MemoryBackend.step_types}
    for step in made.steps:
        assert msgspec.convert(msgspec.to_builtins(step), kinds[type(step).__name__]) == step
