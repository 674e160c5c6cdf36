"""A node with NVIDIA GPUs: the stub NVML library in a driver root, and below it what the kernel shows of the GPUs."""

import contextlib
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from dradriver.backend import decode
from dradriver.host import Host
from dradriver_gpu import GpuBackend, GpuOptions
from hosttree import HostTree
from nvmlfacts import Gpu, Node
from nvmlstub import Stub

PCI = "sys/bus/pci"
GPUS = "proc/driver/nvidia/gpus"


class GpuNode:
    """A host root with the driver and the GPUs of a node.

    host    its root directory
    stub    the levers on the driver and the GPUs
    tree    for more files
    """

    def __init__(
        self,
        directory: Path,
        node: Node,
        *,
        root: str = "/",
        missing: Collection[str] = (),
        driver: bool = True,
    ) -> None:
        """Build it. `root` is the driver root; without `driver` neither library nor kernel module is there yet."""
        self.directory = directory / "host"
        self.directory.mkdir(parents=True)
        self.host = Host(self.directory)
        self.root = root
        self.tree = HostTree(self.directory)
        self.stub = Stub(directory / "stub", node, missing=missing)
        for gpu in node.gpus:
            self.plug(gpu)
        if driver:
            self.load()

    def options(self, options: Mapping[str, Any]) -> GpuOptions:
        """Return options as they are written in the configuration."""
        return decode(GpuOptions, {"driverRoot": self.root, **options}, "backends.gpu")

    @contextlib.contextmanager
    def backend(self, options: Mapping[str, Any] | None = None) -> Iterator[GpuBackend]:
        """Make a backend on this host; it is closed in the end, since a process has one NVML library at a time."""
        backend = GpuBackend(self.host, self.options(options or {}))
        try:
            yield backend
        finally:
            backend.close()

    # --- the driver

    def load(self) -> None:
        """Install the driver that the stub now stands for, and load its kernel module."""
        self.install()
        self.tree.write("sys/module/nvidia/version", self.stub.node.driver)
        for gpu in self.stub.node.gpus:
            self.bind(gpu.bus_id, "nvidia")

    def install(self) -> Path:
        """Install the library only."""
        return self.stub.install(self.directory / self.root.strip("/"))

    def unload(self) -> None:
        """Unload the kernel module: its library stays, and does not work."""
        for gpu in self.stub.node.gpus:
            self.unbind(gpu.bus_id)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.directory / "sys/module/nvidia")

    def remove(self) -> None:
        """Remove the library."""
        for library in self.directory.rglob("libnvidia-ml.so*"):
            library.unlink()

    # --- PCI

    def plug(self, gpu: Gpu) -> None:
        """Put a GPU on the bus, bound to no driver."""
        path = str(gpu.facts.get("pci-path") or f"pci{gpu.bus_id[:7]}")
        directory = f"sys/devices/{path}/{gpu.bus_id}"
        ids = int(str(gpu.facts["pci-device"]), 0)
        self.tree.write(f"{directory}/vendor", f"0x{ids & 0xFFFF:04x}")
        self.tree.write(f"{directory}/device", f"0x{ids >> 16:04x}")
        self.tree.write(f"{directory}/class", "0x030200")
        self.tree.write(f"{directory}/numa_node", str(gpu.facts.get("numa-node", -1)))
        self.tree.link(f"{directory}/iommu_group", f"/sys/kernel/iommu_groups/{20 + gpu.slot}")
        self.tree.link(f"{PCI}/devices/{gpu.bus_id}", f"/{directory}")

    def unplug(self, address: str) -> None:
        """Take a GPU off the bus."""
        self.unbind(address)
        shutil.rmtree(self.host.path(f"{PCI}/devices/{address}"))
        (self.directory / f"{PCI}/devices/{address}").unlink()

    def bind(self, address: str, driver: str, *, taken: bool = True) -> None:
        """Bind a GPU to a kernel driver, which has taken it or is about to."""
        self.unbind(address)
        device = self.host.path(f"{PCI}/devices/{address}")
        directory = self.directory / PCI / "drivers" / driver
        directory.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(f"/{PCI}/drivers/{driver}")
        (directory / address).symlink_to(f"/{PCI}/devices/{address}")
        if driver == "nvidia" and taken:
            self.tree.write(f"{GPUS}/{address}/information", f"Bus Location: {address}")

    def unbind(self, address: str) -> None:
        """Bind a GPU to no driver."""
        (self.host.path(f"{PCI}/devices/{address}") / "driver").unlink(missing_ok=True)
        for driver in (self.directory / PCI).glob("drivers/*"):
            (driver / address).unlink(missing_ok=True)
        shutil.rmtree(self.directory / GPUS / address, ignore_errors=True)
