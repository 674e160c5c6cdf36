"""What is in pods: the kernel lists links and RDMA devices by network namespace, so the host does not see it.

A step that moves something notes it here before it does, and in every other process before what is seen there counts
(`HostStep.recall`): the facts that it journalled say how the link was.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dradriver_nic.inventory import Link, RdmaDevice

_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved, as it was on the host; no link where the function was bound to another driver."""

    link: Link | None = None
    rdma: tuple[RdmaDevice, ...] = ()


class Away:
    """What is in pods, or about to be, by device name. Safe from all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved: Mapping[str, Moved] = MappingProxyType({})
        self._changed = threading.Event()

    def add(self, device: str, moved: Moved) -> bool:
        """Note that a device is in a pod, or will be; return whether that is new."""
        with self._lock:
            if self._moved.get(device) == moved:
                return False
            self._moved = MappingProxyType({**self._moved, device: moved})
            self._changed.set()
            return True

    def discard(self, device: str) -> None:
        """Forget it, once the device is back, or gone for good."""
        with self._lock:
            if device in self._moved:
                self._moved = MappingProxyType(
                    {name: moved for name, moved in self._moved.items() if name != device}
                )
                self._changed.set()

    @property
    def moved(self) -> Mapping[str, Moved]:
        """All of it, by device name."""
        return self._moved

    def watch(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        """Run until `stop`; call `changed(why)` after something was noted or forgotten."""
        while not stop.is_set():
            if self._changed.wait(_POLL_SECONDS):
                self._changed.clear()
                changed("network interfaces were moved into pods, or came back")
