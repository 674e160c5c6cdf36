"""GPUs that come to the PCI bus or leave it, change their driver, and the driver's coming and going: kernel uevents."""

import re
import threading
from collections.abc import Callable

from dradriver.host import PCI_DIR, Host, Uevent, UeventMonitor
from dradriver_gpu.place import is_nvidia

_ADDRESS = re.compile(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$")
_MODULES = frozenset({"/module/nvidia", "/module/vfio_pci"})


class BusWatch:
    """Picks the events of NVIDIA's PCI functions, and of the kernel modules that drive them."""

    def __init__(self, host: Host, changed: Callable[[str], None]) -> None:
        """`changed(why)` is called for each event that matters."""
        self._host = host
        self._changed = changed
        self._known: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`. Raises UeventsUnavailableError."""
        subsystems = frozenset({"pci", "module"})
        UeventMonitor(subsystems, on_event=self.take, on_resync=self.look).run(stop)

    def look(self) -> None:
        """Look at the whole bus: before the first event, and after some were missed."""
        self._known |= {name for name in self._host.list_dir(PCI_DIR) if is_nvidia(self._host, name)}
        self._changed("kernel events may have been missed")

    def take(self, event: Uevent) -> None:
        """Take one event."""
        if event.subsystem == "module":
            if event.devpath in _MODULES:
                self._changed(f"{event.action} {event.devpath}")
            return
        match = _ADDRESS.search(event.devpath)
        # A function that was taken away can no longer be asked whose it was.
        if match and (match[1] in self._known or is_nvidia(self._host, match[1])):
            self._known.add(match[1])
            self._changed(f"{event.action} {match[1]}")
