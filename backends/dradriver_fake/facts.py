"""The facts of a node, as a YAML file gives them: CPUs, NUMA nodes with memory, and what hangs on the PCI buses.

Fields are in the words of sysfs and of the vendor's tools. A file is read strictly: what is not known here is refused.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from dradriver.backend import Strict
from dradriver.model.names import check_subdomain
from dradriver_fake.facts_host import NUMA, Count, CPUs, Name, Positive, Text

Address = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\Z")]
Root = Annotated[str, msgspec.Meta(pattern=r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}\Z")]
Id16 = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{4}\Z")]
ClassCode = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{6}\Z")]
MAC = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}\Z")]


class Link(Strict, frozen=True, kw_only=True):
    """A PCIe link as it was trained."""

    speed: Text | None
    width: Positive | None


class GPUFacts(Strict, frozen=True, kw_only=True):
    """What the driver tells of a GPU."""

    index: Count
    uuid: Name
    product: Text
    memory_mib: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = msgspec.field(name="memoryMiB")
    mig_capable: bool
    nvlinks: Count = 0
    module_id: int | None = None
    memory_numa_node: int | None = None


class VirtualFunctions(Strict, frozen=True, kw_only=True):
    """Virtual functions of a NIC, written short: so many from the address `first` on.

    `rdma` names their RDMA devices, `netdev` their interfaces; the number of the function is added to each.
    """

    count: Annotated[int, msgspec.Meta(ge=1, le=256)]
    first: Address
    device: Id16
    netdev: Name
    driver: Name
    rdma: Name | None = None


class NICFacts(Strict, frozen=True, kw_only=True):
    """What kernel and driver tell of a physical function.

    rate_gbps       speed of the link
    default_route   whether the host's default route leads over it: such a card is never offered
    vfs             its virtual functions, where they are not listed as devices
    """

    model: Text
    netdev: Name
    link_layer: Name
    sriov_num_vfs: Count = msgspec.field(name="sriovNumVFs", default=0)
    driver: Name
    rdma_device: Name | None = None
    rate_gbps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    sriov_total_vfs: Count | None = msgspec.field(name="sriovTotalVFs", default=None)
    mac: MAC | None = None
    mtu: Annotated[int, msgspec.Meta(ge=68, le=65_535)] = 1500
    default_route: bool = False
    vfs: VirtualFunctions | None = None


class VFFacts(Strict, frozen=True, kw_only=True):
    """What kernel and driver tell of a virtual function; one that is bound to vfio-pci shows no interface."""

    physfn: Address
    index: Count
    netdev: Name
    driver: Name
    rdma_device: Name | None = None


class _OnBus(Strict, frozen=True, kw_only=True):
    """What all PCI functions have: the bridges above are listed from the root port down."""

    bdf: Address
    vendor: Id16
    device: Id16
    class_code: ClassCode = msgspec.field(name="class")
    numa_node: Annotated[int, msgspec.Meta(ge=-1)]
    pcie_root: Root
    bridges: tuple[Address, ...] = ()
    subsystem_vendor: Id16 | None = None
    subsystem_device: Id16 | None = None
    link: Link | None = None

    @property
    def name(self) -> str:
        """The name of its device, by its own address: `nic-0000-8a-00-0`."""
        return f"nic-{dashed(self.bdf)}"


class GPUDevice(_OnBus, frozen=True, kw_only=True, tag_field="kind", tag="gpu"):
    """A GPU."""

    gpu: GPUFacts

    @property
    def name(self) -> str:
        """The name of its device: `gpu-0000-41-00-0`."""
        return f"gpu-{dashed(self.bdf)}"


class NICDevice(_OnBus, frozen=True, kw_only=True, tag_field="kind", tag="nic"):
    """A physical function of a network card."""

    nic: NICFacts


class VFDevice(_OnBus, frozen=True, kw_only=True, tag_field="kind", tag="vf"):
    """A virtual function."""

    vf: VFFacts


PCIFunction = GPUDevice | NICDevice | VFDevice


class Assumption(Strict, frozen=True, kw_only=True):
    """A field that is no observation, and why it is as it is."""

    field: str
    why: str
    assumed: bool = True


class NodeFacts(Strict, frozen=True, kw_only=True):
    """A whole node."""

    node: str
    summary: Text
    cpu: CPUs
    numa: NUMA
    devices: tuple[PCIFunction, ...] = ()
    gpu_interconnect: str = ""
    assumed: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        """Refuse addresses that stand twice, and references that lead nowhere."""
        check_subdomain(self.node, "node")
        seen: set[str] = set()
        for device in self.functions():
            if device.bdf in seen:
                raise ValueError(f"devices: {device.bdf} stands twice")
            seen.add(device.bdf)
        physical = {nic.bdf for nic in self.nics}
        for vf in self.vfs:
            if vf.vf.physfn not in physical:
                raise ValueError(f"devices: {vf.bdf}: physfn {vf.vf.physfn} is no NIC of this node")
        nodes = {node.id for node in self.numa.nodes}
        for device in self.devices:
            if device.numa_node != -1 and device.numa_node not in nodes:
                raise ValueError(f"devices: {device.bdf}: numaNode {device.numa_node} is not in numa.nodes")

    @property
    def gpus(self) -> tuple[GPUDevice, ...]:
        """The GPUs."""
        return tuple(device for device in self.devices if isinstance(device, GPUDevice))

    @property
    def nics(self) -> tuple[NICDevice, ...]:
        """The physical functions of network cards."""
        return tuple(device for device in self.devices if isinstance(device, NICDevice))

    @property
    def vfs(self) -> tuple[VFDevice, ...]:
        """The virtual functions: those listed, and those that a NIC has in short."""
        return tuple(device for device in self.functions() if isinstance(device, VFDevice))

    @property
    def network(self) -> tuple[NICDevice | VFDevice, ...]:
        """The functions of network cards, physical and virtual."""
        return (*self.nics, *self.vfs)

    def functions(self) -> Iterator[PCIFunction]:
        """Yield every PCI function, each card with its virtual functions behind it."""
        for device in self.devices:
            yield device
            if isinstance(device, NICDevice) and device.nic.vfs:
                yield from _expanded(device, device.nic.vfs)


def num_vfs(nic: NICDevice) -> int:
    """Return how many virtual functions a NIC has now."""
    return nic.nic.vfs.count if nic.nic.vfs else nic.nic.sriov_num_vfs


def dashed(bdf: str) -> str:
    """Return a PCI address as it stands in names: `0000-41-00-0`."""
    return bdf.replace(":", "-").replace(".", "-")


def _expanded(nic: NICDevice, vfs: VirtualFunctions) -> Iterator[VFDevice]:
    domain, bus, rest = vfs.first.split(":")
    slot, function = rest.split(".")
    first = int(slot, 16) * 8 + int(function)
    if first + vfs.count > 256:
        raise ValueError(
            f"devices: {nic.bdf}: {vfs.count} functions from {vfs.first} on do not fit on its bus"
        )
    for index in range(vfs.count):
        number = first + index
        yield VFDevice(
            bdf=f"{domain}:{bus}:{number // 8:02x}.{number % 8}",
            vendor=nic.vendor,
            device=vfs.device,
            class_code=nic.class_code,
            numa_node=nic.numa_node,
            pcie_root=nic.pcie_root,
            bridges=nic.bridges,
            vf=VFFacts(
                physfn=nic.bdf,
                index=index,
                netdev=f"{vfs.netdev}{index}",
                driver=vfs.driver,
                rdma_device=f"{vfs.rdma}{index}" if vfs.rdma else None,
            ),
        )
