"""What steps change the host with."""

import threading
from collections import defaultdict
from pathlib import Path

from dradriver.backend.settings import Settings
from dradriver.backend.vfio import Vfio
from dradriver.host import Host
from dradriver_nic import messages as m
from dradriver_nic.actuate.found import Seen
from dradriver_nic.actuate.podspace import PodSpace
from dradriver_nic.actuate.rdmanl import RdmaNetlink
from dradriver_nic.actuate.rtnl import Rtnl
from dradriver_nic.actuate.sriov import Sriov


def holder_of(claim: str, index: int) -> str:
    """Return who holds what is set for device `index` of a claim, by the claim's UID."""
    return f"{claim}/{index}"


class Actuator:
    """The kernel's interfaces by which the links of a host are changed.

    namespace   file of the host's network namespace; None for that of this process
    settings    what claims share and the last one puts back
    """

    def __init__(self, host: Host, run_directory: str, namespace: Path | None = None) -> None:
        """Touch nothing yet. `run_directory` is below the host root."""
        self.host = host
        self.namespace = namespace
        self.settings = Settings(host, run_directory)
        self.vfio = Vfio(host)
        self._guard = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.sriov = Sriov(host)

    def lock(self, card: str) -> threading.Lock:
        """Return the lock of a card, for changes that look first whether others need something of it."""
        with self._guard:
            return self._locks[card]

    def take_up(self, home: Rtnl, card: Seen, device: str, holder: str) -> None:
        """Have a card's link up for a holder, which needs it for shares or for virtual functions.

        device   name of the card's own device, in whatever mode it is offered: all who need the link up see each other

        Raises BackendError, RefusedError, OSError.
        """
        self.settings.take(
            f"{device}.up",
            holder,
            True,
            read=lambda: card.link.up,
            change=lambda is_up: home.change(m.RTM_NEWLINK, m.up(card.index, is_up=is_up)),
        )

    def let_down(self, home: Rtnl, card: Seen | None, device: str, holder: str) -> None:
        """Let a holder go; the last one sets the link down where it was so, and where it is there still."""

        def set_back(before: bool) -> bool:
            if card and not before:
                home.change(m.RTM_NEWLINK, m.up(card.index, is_up=False))
            return True

        self.settings.leave(f"{device}.up", holder, set_back)

    def home(self) -> Rtnl:
        """Return a socket in the host's network namespace. Raises UnavailableError."""
        return Rtnl(self.namespace)

    def rdma(self, pod: PodSpace | None = None) -> RdmaNetlink:
        """Return a socket to RDMA devices of the host, or of a pod. Raises UnavailableError."""
        return RdmaNetlink(pod.path if pod else self.namespace)

    def home_file(self) -> Path:
        """Return the file of the host's network namespace."""
        return self.namespace or Path("/proc/thread-self/ns/net")
