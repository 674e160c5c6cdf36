"""Where a device is: the attributes by which devices of all kinds line up, read from the node's own tree."""

from dradriver.host import Host, NodeSockets, pci_place
from dradriver.model import AttributeValue
from dradriver_fake.facts import PCIFunction


class Places:
    """The places of a node's PCI functions. They do not change, so each is read once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sockets = NodeSockets(host)
        self._known: dict[str, dict[str, AttributeValue]] = {}

    def of(self, function: PCIFunction) -> dict[str, AttributeValue]:
        """Return the attributes of the place; what is not known is left out."""
        if function.bdf not in self._known:
            self._known[function.bdf] = pci_place(self._host, function.bdf, self._sockets)
        return self._known[function.bdf]
