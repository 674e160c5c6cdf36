"""Binding PCI functions to vfio-pci and back, by the kernel's files.

Facts: the kernel's Documentation/ABI/testing/sysfs-bus-pci (driver_override, unbind, drivers_probe) and
Documentation/driver-api/vfio.rst, and its test of a group (viable is what has no driver, a vfio driver or pci-stub, or
is a bridge).
Unbinding waits in the kernel until nobody has the device open, so that who has it is looked for first.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dradriver.backend.errors import BackendError, TransientError
from dradriver.host import PCI_DIR, Host, iommu_group
from dradriver.host.pci import BRIDGE
from dradriver.model.text import plain

VFIO = "vfio-pci"

_GROUPS = "sys/kernel/iommu_groups"
_HARMLESS = frozenset({"", VFIO, "pci-stub"})
_NAMED = 5
_SETTLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Function:
    """A PCI function of an IOMMU group. `driver` is empty for none."""

    address: str
    driver: str
    is_bridge: bool

    @property
    def slot(self) -> str:
        """Its address without the function: what is on one board."""
        return self.address.rpartition(".")[0]


class Vfio:
    """The PCI bus of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    # --- looking

    def is_there(self, address: str) -> bool:
        """Return whether a function is on the bus."""
        return self._host.exists(f"{PCI_DIR}/{address}")

    def driver(self, address: str) -> str:
        """Return the driver that a function is bound to; empty for none."""
        return self._host.link_name(f"{PCI_DIR}/{address}/driver") or ""

    def group(self, address: str) -> int | None:
        """Return the number of a function's IOMMU group; None without an IOMMU."""
        return iommu_group(self._host, address)

    def members(self, address: str) -> tuple[Function, ...]:
        """Return all functions of a function's group, itself among them. Raises BackendError without a group."""
        group = self.group(address)
        if group is None:
            raise BackendError(
                f"{address} is in no IOMMU group: the IOMMU is off (intel_iommu=on, or the firmware)"
            )
        names = self._host.list_dir(f"{_GROUPS}/{group}/devices") or (address,)
        return tuple(Function(name, self.driver(name), self._is_bridge(name)) for name in names)

    def _is_bridge(self, address: str) -> bool:
        return (self._host.read_hex(f"{PCI_DIR}/{address}/class") or 0) >> 16 == BRIDGE

    def check_viable(
        self, address: str, is_ours: Callable[[Function], bool], who: str
    ) -> tuple[Function, ...]:
        """Return all functions of a function's group, none of which somebody else has. Raises BackendError.

        is_ours   whether a function goes the same way, whatever its driver is now
        who       what the function is of, for people
        """
        members = self.members(address)
        strangers = [one for one in members if not (one.is_bridge or one.driver in _HARMLESS or is_ours(one))]
        if strangers:
            named = ", ".join(f"{one.address} (driver {plain(one.driver)})" for one in strangers)
            raise BackendError(
                f"{who}: its IOMMU group {self.group(address)} is not viable: it also has {named}, which would have to "
                "be given away with it"
            )
        return members

    def node(self, address: str) -> str:
        """Return the device node of a function's group."""
        return f"/dev/vfio/{self.group(address)}"

    def check_node(self, address: str, who: str) -> None:
        """Raise TransientError where the device node of a function's group is not there. `who` as above."""
        node = self.node(address)
        if not self._host.exists(node):
            raise TransientError(f"{who}: device node {node} is not there yet")

    def holders(self, node: str) -> tuple[str, ...]:
        """Return the processes that have a device node open, as `name (number)`, as far as they are seen here."""
        found = []
        for process in self._host.list_dir("proc"):
            if not process.isdecimal():
                continue
            directory = f"proc/{process}/fd"
            if any(
                self._host.read_link(f"{directory}/{fd}") == node for fd in self._host.list_dir(directory)
            ):
                name = self._host.read_text(f"proc/{process}/comm") or "a process"
                found.append(f"{plain(name, 32)} ({process})")
        return tuple(found)

    def check_free(self, node: str) -> None:
        """Raise TransientError where somebody has a device node open."""
        holders = self.holders(node)
        if holders:
            more = f" and {len(holders) - _NAMED} more" if len(holders) > _NAMED else ""
            raise TransientError(f"{node} is in use by {', '.join(holders[:_NAMED])}{more}")

    # --- changing

    def override(self, address: str) -> str:
        """Return which driver alone may have a function; empty for whichever wants it."""
        text = self._host.read_text(f"{PCI_DIR}/{address}/driver_override") or ""
        return "" if text == "(null)" else text

    def bind(self, address: str, driver: str, override: str = "") -> None:
        """Bind a function to a driver, from the one that it is bound to; to none where `driver` is empty.

        override   which driver alone may have it from then on

        Raises BackendError where the driver does not take it, or is not loaded.
        """
        if self.driver(address) == driver:
            if self.override(address) != override:
                self._override(address, override)
            return
        if driver and not self._host.exists(f"sys/bus/pci/drivers/{driver}"):
            raise BackendError(
                f"{address} cannot be bound to {plain(driver)}: the kernel has no such driver loaded"
            )
        # The override keeps all other drivers from the function, whoever looks for new devices meanwhile.
        self._override(address, driver)
        if self.driver(address):
            self._write(f"{PCI_DIR}/{address}/driver/unbind", address)
            self._wait(address, "")
        if driver:
            with contextlib.suppress(BackendError):  # a driver that refuses it: told below
                self._write("sys/bus/pci/drivers_probe", address)
            self._wait(address, driver)
        if override != driver:
            self._override(address, override)
        if self.driver(address) != driver:
            now = (
                f"it is bound to {plain(self.driver(address))}"
                if self.driver(address)
                else "it is bound to none"
            )
            raise BackendError(f"{address} was not taken by {plain(driver) or 'no driver'}: {now}")

    def _override(self, address: str, driver: str) -> None:
        self._write(f"{PCI_DIR}/{address}/driver_override", f"{driver}\n")

    def _write(self, path: str, text: str) -> None:
        try:
            descriptor = os.open(self._host.path(path), os.O_WRONLY | os.O_CLOEXEC | os.O_TRUNC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise BackendError(f"/{path}: {text.strip()!a}: {error.strerror}") from None

    def _wait(self, address: str, driver: str) -> None:
        """Wait a little until a function is bound so: some drivers probe in a thread of their own."""
        end = time.monotonic() + _SETTLE_SECONDS
        for _ in _ticks(end):
            if self.driver(address) == driver:
                return


def _ticks(end: float) -> Iterator[None]:
    yield
    while time.monotonic() < end:
        time.sleep(0.01)
        yield
