"""Where GPUs are: on the PCI bus, whether or not a driver shows them, and next to which CPUs and devices."""

from dradriver.host import GPU_CLASSES, PCI_DIR, Host, NodeSockets, iommu_group, pci_place
from dradriver.model import AttributeValue
from dradriver_gpu.inventory import Passthrough

_NVIDIA = 0x10DE


class Places:
    """The NVIDIA GPUs of the PCI bus. What cannot change while a GPU is on the bus is read once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sockets = NodeSockets(host)
        self._is_gpu: dict[str, bool] = {}
        self._known: dict[str, dict[str, AttributeValue]] = {}
        self._ids: dict[str, tuple[int | None, int | None, int | None]] = {}

    def gpus(self) -> frozenset[str] | None:
        """Return the addresses of the GPUs on the bus; None where the host shows no bus."""
        names = self._host.list_dir(PCI_DIR)
        if not names:
            return None
        for gone in self._is_gpu.keys() - set(names):
            for known in (self._is_gpu, self._known, self._ids):
                known.pop(gone, None)
        for name in names:
            if name not in self._is_gpu:
                kind = self._host.read_hex(f"{PCI_DIR}/{name}/class") or 0
                self._is_gpu[name] = is_nvidia(self._host, name) and kind >> 8 in GPU_CLASSES
        return frozenset(name for name, is_gpu in self._is_gpu.items() if is_gpu)

    def attributes(self, address: str) -> dict[str, AttributeValue]:
        """Return the attributes of a GPU's place; what is not known is left out."""
        if address not in self._known:
            self._known[address] = pci_place(self._host, address, self._sockets)
        return self._known[address]

    def passthrough(self, address: str) -> Passthrough | None:
        """Return the driver that a GPU is bound to now, and its ids; None for what is not on the bus."""
        directory = f"{PCI_DIR}/{address}"
        if address not in self._ids:
            vendor = self._host.read_hex(f"{directory}/vendor")
            if vendor is None:
                return None
            group = iommu_group(self._host, address)
            self._ids[address] = group, vendor, self._host.read_hex(f"{directory}/device")
        group, vendor, device = self._ids[address]
        return Passthrough(self._host.link_name(f"{directory}/driver"), group, vendor, device)


def is_nvidia(host: Host, address: str) -> bool:
    """Return whether a PCI function is one of NVIDIA's."""
    return host.read_hex(f"{PCI_DIR}/{address}/vendor") == _NVIDIA
