"""Uevents of the kernel: what it tells of devices that come, go and change.

Read from the kernel itself (NETLINK_KOBJECT_UEVENT, netlink(7)), since udevd need not run where a container
is. Events of network interfaces reach only the network namespace of the interface.
"""

import errno
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any

# How long one wait lasts at most, so that a request to stop is seen in time.
_WAIT_MS = 250

# A burst, as when a card makes its virtual functions, is hundreds of events of up to 8 KiB.
_BUFFER_BYTES = 4 << 20


class UeventsUnavailableError(Exception):
    """The kernel's events cannot be received; the message says why."""


@dataclass(frozen=True, slots=True)
class Uevent:
    """One event.

    subsystem: as "pci". action: as "add", "remove", "change", "bind". devpath: below /sys, as `/devices/...`.
    """

    subsystem: str
    action: str
    devpath: str


@dataclass(frozen=True, slots=True)
class UeventMonitor:
    """Hands the events of some subsystems to a callback.

    on_resync is called when the monitor has opened, and each time the kernel has dropped events because they
    were not read fast enough: what was read from sysfs before is then to be read again.
    """

    subsystems: frozenset[str]
    on_event: Callable[[Uevent], None]
    on_resync: Callable[[], None]

    def run(self, stop: Event) -> None:
        """Receive until `stop` is set, which is seen within half a second; callbacks run in this thread.

        Raises UeventsUnavailableError if the monitor cannot be opened or breaks, and what callbacks raise.
        """
        monitor = self._open()
        poller = select.poll()
        poller.register(monitor.fileno(), select.POLLIN)
        self.on_resync()
        while not stop.is_set():
            for _, ready in poller.poll(_WAIT_MS):
                if ready & ~select.POLLIN:
                    self._take_error(monitor)
                else:
                    self._take_event(monitor)

    def _open(self) -> Any:  # pyudev has no types
        try:
            # Late, as it loads libudev, which a host without hotplug can do without.
            import pyudev  # noqa: PLC0415

            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
            for subsystem in sorted(self.subsystems):
                monitor.filter_by(subsystem)
            with suppress(OSError):  # needs CAP_NET_ADMIN; a smaller buffer costs a resync
                monitor.set_receive_buffer_size(_BUFFER_BYTES)
            monitor.start()
        except (ImportError, OSError) as error:
            raise UeventsUnavailableError(f"kernel events: cannot open the monitor: {error}") from error
        return monitor

    def _take_event(self, monitor: Any) -> None:
        try:
            device = monitor.poll(0)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                self.on_resync()
                return
            if error.errno is None:  # an error came up since our own poll: the next one shows it
                return
            raise UeventsUnavailableError(f"kernel events: cannot read an event: {error}") from error
        if device is not None and device.subsystem in self.subsystems:
            self.on_event(Uevent(device.subsystem, device.action or "", device.device_path))

    def _take_error(self, monitor: Any) -> None:
        """Fetch the error of the socket, which clears it: pyudev's own poll hides which one it is."""
        with socket.fromfd(monitor.fileno(), socket.AF_NETLINK, socket.SOCK_RAW) as shared:
            number = shared.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number == errno.ENOBUFS:
            self.on_resync()
        elif number:
            raise UeventsUnavailableError(f"kernel events: the monitor broke: {errno.errorcode.get(number)}")
