"""PCI devices and where they hang.

Files: kernel, Documentation/ABI/testing/sysfs-bus-pci. A device's link on the bus resolves to its path under
/sys/devices: host bridge, root port, switches, device. Beside the address nothing is certain to be there: guests
lack NUMA nodes, containers and recorded hosts lack paths, bridges and the targets of links.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dradriver.host.cpuset import CPUSet
from dradriver.host.fields import cpus_field, hex_field, int_field
from dradriver.host.net import read_class_names
from dradriver.host.notes import Notes
from dradriver.host.pcipath import PCIPath, parse_pci_path, pci_address
from dradriver.host.root import Host, parse_int

PCI_DIR = "sys/bus/pci/devices"

_VIRTUAL_FUNCTION = re.compile(r"virtfn([0-9]{1,5})")

GPU_CLASSES = frozenset({0x0300, 0x0302})
"""VGA controller, and 3D controller, which data-centre GPUs are (PCI Code and ID Assignment Specification)."""

BRIDGE = 0x06
"""Base class of bridges; the base class is the upper byte of a class code."""


@dataclass(frozen=True, slots=True)
class PCILink:
    """A PCIe link as the device has trained it, or at most could; each value None where unknown.

    speed: as the kernel writes it, as "16.0 GT/s PCIe". width: lanes.
    """

    speed: str | None
    width: int | None


@dataclass(frozen=True, slots=True)
class PCIDevice:
    """One PCI function.

    address           `dddd:bb:dd.f` in lower case; a domain above 16 bits has more digits
    path              where it hangs; None where the host has no device path
    class_code        24 bits: base class, subclass, programming interface
    numa_node         None where unknown
    local_cpus        CPUs that are near, as the file says: offline ones too, all where unknown
    driver            name of the bound driver
    sriov_total       virtual functions that it could have; None on what is no physical function with SR-IOV
    sriov_num         virtual functions that it has now
    physfn            the physical function of a virtual one
    virtfns           its virtual functions, in their order
    net, infiniband   names of its network interfaces and RDMA devices that are seen in this network namespace
    """

    address: str
    path: PCIPath | None
    class_code: int | None
    vendor: int | None
    device: int | None
    subsystem_vendor: int | None
    subsystem_device: int | None
    driver: str | None
    numa_node: int | None
    local_cpus: CPUSet | None
    iommu_group: int | None
    sriov_total: int | None
    sriov_num: int | None
    physfn: str | None
    virtfns: tuple[str, ...]
    current_link: PCILink
    max_link: PCILink
    net: tuple[str, ...]
    infiniband: tuple[str, ...]

    @property
    def pcie_root(self) -> str | None:
        """The host bridge, as `pcidddd:bb`: the value of `resource.kubernetes.io/pcieRoot`."""
        return self.path.root if self.path else None

    @property
    def pcie_switch(self) -> str | None:
        """The address of the nearest PCIe switch above, by its upstream port; None without a switch."""
        return self.path.switch if self.path else None

    @property
    def base_class(self) -> int | None:
        """The upper byte of the class code, as 0x02 for network controllers."""
        return None if self.class_code is None else self.class_code >> 16


@dataclass(frozen=True, slots=True)
class PCIDevices:
    """What is on the PCI buses, by address in the order of domain, bus, device and function.

    notes: what was odd and how it was taken.
    """

    by_address: Mapping[str, PCIDevice]
    notes: tuple[str, ...]


def read_pci(host: Host) -> PCIDevices:
    """Read all PCI devices. Only reads; never raises for what the files hold."""
    notes = Notes()
    net = _by_device(read_class_names(host, "net"))
    infiniband = _by_device(read_class_names(host, "infiniband"))
    addresses = []
    for name in host.list_dir(PCI_DIR):
        if pci_address(name) == name:
            addresses.append(name)
        else:
            notes.add(f"{PCI_DIR}: an entry that is no PCI address: left out")
    return PCIDevices(
        {
            address: _read(host, address, net.get(address, ()), infiniband.get(address, ()), notes)
            for address in sorted(addresses, key=_order)
        },
        notes.lines(),
    )


def pcie_root(host: Host, address: str) -> str | None:
    """Return the host bridge above a PCI function, as `pci0000:3a`; None where the host does not tell.

    address   in any common form, NVML's `00000000:3B:00.0` too. Raises ValueError for what is none.
    """
    path = _path(host, _known(address))
    return path.root if path else None


def pcie_switch(host: Host, address: str) -> str | None:
    """Return the address of the nearest switch above a PCI function; None without one, or where unknown.

    address   as for `pcie_root`. Raises ValueError.
    """
    path = _path(host, _known(address))
    return path.switch if path else None


def iommu_group(host: Host, address: str) -> int | None:
    """Return the number of the IOMMU group of a PCI function; None without an IOMMU."""
    return parse_int(host.link_name(f"{PCI_DIR}/{address}/iommu_group"))


def _known(address: str) -> str:
    known = pci_address(address)
    if known is None:
        raise ValueError(f"PCI address: {address[:64]!a}: one like 0000:3b:00.0 is expected")
    return known


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split(r"[:.]", address))


def _by_device(names: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, address in names.items():
        if address:
            found[address] = (*found.get(address, ()), name)
    return found


def _path(host: Host, address: str) -> PCIPath | None:
    resolved = host.resolve(f"{PCI_DIR}/{address}")
    path = parse_pci_path(resolved) if resolved else None
    return path if path and path.address == address else None


def _read(
    host: Host, address: str, net: tuple[str, ...], infiniband: tuple[str, ...], notes: Notes
) -> PCIDevice:
    directory = f"{PCI_DIR}/{address}"
    names = frozenset(host.list_dir(directory))
    if not names:
        notes.add(f"{directory}: holds nothing that can be read: all of it taken as unknown")
    path = _path(host, address)

    def hexadecimal(name: str) -> int | None:
        return hex_field(host, f"{directory}/{name}", notes) if name in names else None

    def decimal(name: str) -> int | None:
        return int_field(host, f"{directory}/{name}", notes) if name in names else None

    node = decimal("numa_node")
    physfn = host.link_name(f"{directory}/physfn") if "physfn" in names else None
    return PCIDevice(
        address=address,
        path=path,
        class_code=hexadecimal("class"),
        vendor=hexadecimal("vendor"),
        device=hexadecimal("device"),
        subsystem_vendor=hexadecimal("subsystem_vendor"),
        subsystem_device=hexadecimal("subsystem_device"),
        driver=host.link_name(f"{directory}/driver") if "driver" in names else None,
        numa_node=node if node is not None and node >= 0 else None,
        local_cpus=cpus_field(host, f"{directory}/local_cpulist", notes, mask_path=f"{directory}/local_cpus"),
        iommu_group=iommu_group(host, address) if "iommu_group" in names else None,
        sriov_total=decimal("sriov_totalvfs"),
        sriov_num=decimal("sriov_numvfs"),
        physfn=pci_address(physfn) if physfn else None,
        virtfns=_virtual_functions(host, directory, names),
        current_link=_link(host, directory, "current", names),
        max_link=_link(host, directory, "max", names),
        net=net,
        infiniband=infiniband,
    )


def _virtual_functions(host: Host, directory: str, names: frozenset[str]) -> tuple[str, ...]:
    numbers = sorted(int(match[1]) for match in map(_VIRTUAL_FUNCTION.fullmatch, names) if match)
    targets = (host.link_name(f"{directory}/virtfn{number}") for number in numbers)
    return tuple(address for target in targets if target and (address := pci_address(target)))


def _link(host: Host, directory: str, which: str, names: frozenset[str]) -> PCILink:
    """Read a link; a device that is no PCIe one, or sleeps, says "Unknown" or has width 0 or 255."""
    speed_file, width_file = f"{which}_link_speed", f"{which}_link_width"
    speed = host.read_text(f"{directory}/{speed_file}") if speed_file in names else None
    width = host.read_int(f"{directory}/{width_file}") if width_file in names else None
    return PCILink(
        speed=speed if speed and not speed.startswith("Unknown") else None,
        width=width if width and 0 < width < 255 else None,
    )
