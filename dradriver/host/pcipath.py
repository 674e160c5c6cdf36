"""PCI addresses, and what the path of a device under /sys/devices says."""

import re
from dataclasses import dataclass

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class PCIPath:
    """Where a PCI function hangs.

    sysfs    the path, as `sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0`
    root     the host bridge: the first part of the form `pcidddd:bb`
    above    addresses of what is between it and the function, from the host bridge down, on the bus or not
    switch   upstream port of the nearest PCIe switch above; None without one
    """

    sysfs: str
    root: str
    above: tuple[str, ...]
    address: str
    switch: str | None


def pci_address(text: str) -> str | None:
    """Return a PCI address as sysfs writes it: lower case, a domain of at least four digits; None for anything else.

    NVML and nvidia-smi write domains with eight digits, lspci leaves the domain 0 out.
    """
    lower = text.lower()
    match = _ADDRESS.fullmatch(lower if lower.count(":") == 2 else f"0000:{lower}")
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}" if match else None


def parse_pci_path(sysfs: str) -> PCIPath | None:
    """Return what a resolved path of a PCI function, or of something below one, says; None where it has no PCI part.

    The function is the last address in the path. Host bridges may be below others (Intel VMD), or below devices
    of the platform (Arm, Hyper-V).
    """
    parts = [part for part in sysfs.split("/") if part]
    roots = [n for n, part in enumerate(parts) if _ROOT.fullmatch(part)]
    functions = [n for n, part in enumerate(parts) if _ADDRESS.fullmatch(part)]
    if not roots or not functions or functions[-1] < roots[-1]:
        return None
    last = functions[-1]
    above = tuple(parts[n] for n in functions if roots[0] < n < last)
    return PCIPath(
        sysfs="/".join(parts[: last + 1]),
        root=parts[roots[0]],
        above=above,
        address=parts[last],
        switch=_switch([parts[n] for n in functions if roots[-1] < n < last]),
    )


def _switch(bridges: list[str]) -> str | None:
    """Return the upstream port of the last switch among the bridges below a host bridge.

    A switch is two bridges in a row: an upstream port, and below it a downstream port. The first bridge is the
    root port, so a bridge that is left over at the end leads to a conventional bus. The port types themselves
    are in the part of the configuration space that only root may read.
    """
    pairs = (len(bridges) - 1) // 2
    return bridges[2 * pairs - 1] if pairs > 0 else None
