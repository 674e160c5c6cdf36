"""The kernel's side of a PCI bus below a host root: what happens when drivers are unbound, and functions probed.

The control files are FIFOs that a thread reads, since their content is not what was written to them: `unbind` of each
driver, and `drivers_probe`. `driver_override` is a file that the kernel only keeps.
"""

import os
import selectors
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpunode import GpuNode

DEVICES, DRIVERS = "sys/bus/pci/devices", "sys/bus/pci/drivers"


class Bus:
    """The bus of a node with GPUs. NVML shows those that the driver `nvidia` has.

    refusing   drivers that take nothing
    log        what happened: ("unbind" or "bind", address, driver)
    """

    def __init__(self, gpus: GpuNode) -> None:
        self._gpus = gpus
        self._root = gpus.directory
        self._all = {gpu.bus_id: gpu for gpu in gpus.stub.node.gpus}
        self._natural = dict.fromkeys(self._all, "nvidia")
        self._stop = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.refusing: set[str] = set()
        self.log: list[tuple[str, str, str]] = []
        for address, gpu in self._all.items():
            self._group(address, 20 + gpu.slot)
            self._gpus.host.path(f"{DEVICES}/{address}/driver_override").write_text("(null)\n")
        for driver in ("nvidia", "vfio-pci"):
            self.load(driver)
        self._fifo("sys/bus/pci/drivers_probe")
        (self._root / "dev/vfio").mkdir(parents=True)

    def _fifo(self, path: str) -> None:
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(file)
        # Open for both, so that it never ends, whoever comes and goes.
        self._selector.register(os.open(file, os.O_RDWR | os.O_NONBLOCK), selectors.EVENT_READ, path)

    def _group(self, address: str, number: int) -> None:
        entry = self._root / f"sys/kernel/iommu_groups/{number}/devices/{address}"
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.symlink_to(f"/{DEVICES}/{address}")

    def load(self, driver: str) -> None:
        """Load a driver."""
        self._fifo(f"{DRIVERS}/{driver}/unbind")

    def add(self, address: str, driver: str, group: int, kind: str = "0x040300") -> None:
        """Put another function on the bus, bound to a driver."""
        directory = f"sys/devices/pci0000:00/{address}"
        self._gpus.tree.write(f"{directory}/class", kind).write(f"{directory}/driver_override", "(null)")
        self._gpus.tree.link(f"{directory}/iommu_group", f"/sys/kernel/iommu_groups/{group}")
        self._gpus.tree.link(f"{DEVICES}/{address}", f"/{directory}")
        self._group(address, group)
        self._natural[address] = driver
        if driver:
            if not (self._root / DRIVERS / driver).exists():
                self.load(driver)
            self._gpus.bind(address, driver)

    def driver(self, address: str) -> str:
        """Return the driver of a function."""
        target = self._gpus.host.read_link(f"{DEVICES}/{address}/driver")
        return target.rpartition("/")[2] if target else ""

    def override(self, address: str) -> str:
        """Return the driver that alone may have a function."""
        return self._gpus.host.path(f"{DEVICES}/{address}/driver_override").read_text().strip()

    def open(self, process: int, name: str, node: str) -> Path:
        """Have a process with a device node open; return the file descriptor, to be closed by removal."""
        self._gpus.tree.write(f"proc/{process}/comm", name)
        self._gpus.tree.link(f"proc/{process}/fd/7", node)
        return self._root / f"proc/{process}/fd/7"

    def _run(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.02):
                try:
                    addresses = os.read(key.fd, 4096).decode().split()
                except BlockingIOError:
                    continue
                for address in addresses:
                    if key.data.endswith("/unbind"):
                        self._unbind(address)
                    else:
                        self._probe(address)

    def _unbind(self, address: str) -> None:
        self.log.append(("unbind", address, self.driver(address)))
        self._gpus.unbind(address)
        self._show()

    def _probe(self, address: str) -> None:
        wanted = self.override(address)
        driver = self._natural[address] if wanted in {"", "(null)"} else wanted
        if driver and driver not in self.refusing and (self._root / DRIVERS / driver).exists():
            self.log.append(("bind", address, driver))
            if driver == "nvidia":  # its probing is over when the link is there
                self._show(address)
            self._gpus.bind(address, driver)
        self._show()

    def _show(self, also: str = "") -> None:
        """Have NVML show the GPUs that its driver has, and make and remove the nodes of groups."""
        shown = tuple(
            gpu for address, gpu in self._all.items() if address == also or self.driver(address) == "nvidia"
        )
        self._gpus.stub.become(replace(self._gpus.stub.node, gpus=shown))
        for address in self._natural:
            group = (self._gpus.host.read_link(f"{DEVICES}/{address}/iommu_group") or "").rpartition("/")[2]
            node = self._root / "dev/vfio" / group
            members = (self._root / f"sys/kernel/iommu_groups/{group}/devices").iterdir()
            if any(self.driver(member.name) == "vfio-pci" for member in members):
                node.touch()
            else:
                node.unlink(missing_ok=True)

    @contextmanager
    def serving(self) -> Iterator["Bus"]:
        """Serve while the context lasts."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
