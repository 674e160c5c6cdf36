"""Virtual functions: how many a card has, and what its physical function enforces on each.

Facts: kernel, Documentation/PCI/pci-iov-howto.rst, Documentation/ABI/testing/sysfs-bus-pci (sriov_numvfs), and
IFLA_VFINFO_LIST of rtnetlink(7).
"""

import os
from collections.abc import Iterator

from dradriver.backend import BackendError
from dradriver.host import PCI_DIR, Host, pci_address
from dradriver_nic import messages as m
from dradriver_nic.inventory import VFSettings


class Sriov:
    """The virtual functions of a host's cards, by the kernel's files."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def count(self, physical: str) -> int:
        """Return how many virtual functions a physical one has now. Raises BackendError where it can have none."""
        count = self._host.read_int(f"{PCI_DIR}/{physical}/sriov_numvfs")
        if count is None:
            raise BackendError(f"{physical} is not on the bus, or has no SR-IOV")
        return count

    def set_count(self, physical: str, count: int) -> None:
        """Make virtual functions, or remove all. The kernel knows nothing in between. Raises BackendError."""
        path = f"{PCI_DIR}/{physical}/sriov_numvfs"
        try:
            descriptor = os.open(self._host.path(path), os.O_WRONLY | os.O_CLOEXEC | os.O_TRUNC)
            try:
                os.write(descriptor, f"{count}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise BackendError(f"/{path}: {count} virtual functions: {error.strerror}") from None

    def address(self, physical: str, number: int) -> str | None:
        """Return the address of a virtual function; None where it is not there."""
        return pci_address(self._host.link_name(f"{PCI_DIR}/{physical}/virtfn{number}") or "")

    def driver(self, address: str) -> str:
        """Return the driver that a function is bound to; empty for none."""
        return self._host.link_name(f"{PCI_DIR}/{address}/driver") or ""


def changes(index: int, now: VFSettings, wanted: VFSettings) -> Iterator[tuple[str, bytes]]:
    """Yield what is to be set, in words, with the request for it, so that a virtual function becomes as wanted.

    index   number of the link of its physical function
    """
    number = wanted.number
    if wanted.mac and wanted.mac != now.mac:
        yield "MAC address", m.vf(index, m.vf_mac(number, wanted.mac))
    tag = (wanted.vlan, wanted.qos, wanted.vlan_proto if wanted.vlan else 0)
    if tag != (now.vlan, now.qos, now.vlan_proto if now.vlan else 0):
        yield "VLAN", m.vf(index, m.vf_vlan(number, wanted.vlan, wanted.qos, wanted.vlan_proto))
    for what, kind, value, value_now in (
        ("spoof check", m.IFLA_VF_SPOOFCHK, wanted.spoof_check, now.spoof_check),
        ("trust", m.IFLA_VF_TRUST, wanted.trust, now.trust),
        ("link state", m.IFLA_VF_LINK_STATE, wanted.link_state, now.link_state),
    ):
        if value is not None and value != value_now:
            yield what, m.vf(index, m.vf_number(kind, number, int(value)))
    rates = (wanted.min_rate, wanted.max_rate)
    if rates not in {(now.min_rate, now.max_rate), (None, None)}:
        yield "rate", m.vf(index, m.vf_rate(number, wanted.min_rate or 0, wanted.max_rate or 0))
