"""Checks of the machine and of this process: host root, topology, versions, permissions, clock, events."""

import os
import platform
import sqlite3
import threading
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from dradriver.host import Host, Topology, UeventMonitor, UeventsUnavailableError
from dradriver.inspect.result import Check, counted, error, ok, unknown, warning

_FIRST_YEAR, _LAST_YEAR = 2025, 2100

# What device drivers on a node are given apart from root itself (capabilities(7)).
_CAPABILITIES = {"CAP_DAC_OVERRIDE": 1, "CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def check_host_root(host: Host) -> Check:
    """Check that the host's /sys and /proc are seen below the host root."""
    missing = [
        name
        for name, file in (("sys", "sys/devices/system/cpu/online"), ("proc", "proc/meminfo"))
        if host.read_text(file) is None
    ]
    if missing:
        return error(
            "host root",
            f"{host.root}: no readable {' and no readable '.join(missing)} of a Linux host",
            f"mount the host's /{' and /'.join(missing)} below {host.root}, or name the right place as hostRoot",
        )
    return ok("host root", f"{host.root}: sys and proc are readable")


def check_topology(found: Topology) -> Check:
    """Check that CPUs and NUMA nodes make sense."""
    counts = (("CPU", found.online), ("socket", found.packages), ("NUMA node", found.nodes))
    seen = ", ".join(counted(len(ones), name) for name, ones in counts)
    if found.notes:
        seen += f"; {'; '.join(found.notes)}"
    if not found.online:
        return error("topology", seen, "see host root: without CPUs nothing can be offered")
    if not found.numa_consistent:
        return warning(
            "topology",
            seen,
            "the firmware's NUMA tables contradict themselves: look for a firmware update or a NUMA setting; "
            "until then CPUs are offered as one device",
        )
    return ok("topology", seen)


def check_versions(host: Host) -> Check:
    """Name the versions of what matters. Where one is too old, nothing would have started."""
    kernel = host.read_text("proc/sys/kernel/osrelease")  # a host that is made up has none
    parts = [f"kernel {kernel}"] if kernel else []
    parts.append(f"Python {platform.python_version()}")
    for name in ("dradriver", "grpcio", "protobuf"):
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            parts.append(f"{name} not installed as a package")
    return ok("versions", ", ".join([*parts, f"SQLite {sqlite3.sqlite_version}"]))


def check_permissions(uid: int, status: str | None, *, own_directory: bool) -> Check:
    """Check who this process is.

    status          text of /proc/self/status
    own_directory   everything is kept below a directory of one's own (`--dir`)
    """
    effective = next(
        (line.split()[1] for line in (status or "").splitlines() if line.startswith("CapEff:")), None
    )
    if effective is None:
        capabilities = "capabilities unknown"
    else:
        held = [name for name, bit in _CAPABILITIES.items() if int(effective, 16) >> bit & 1]
        capabilities = f"with {', '.join(held)}" if held else f"without {', '.join(_CAPABILITIES)}"
    seen = f"user {uid}, {capabilities}"
    if uid and not own_directory:
        return warning(
            "permissions",
            seen,
            "run as root, since the kubelet's directories belong to root; or try with --dir, which needs no root",
        )
    return ok("permissions", seen)


def check_clock(now: float, newest: float | None) -> Check:
    """Check the clock.

    now      seconds since the epoch
    newest   when the newest claim in the journal was prepared; None without one
    """
    shown = _time(now)
    year = datetime.fromtimestamp(now, UTC).year
    if not _FIRST_YEAR <= year <= _LAST_YEAR:
        return error("clock", f"{shown}: a year that cannot be", "set the clock, by NTP or by hand")
    if newest is not None and now < newest:
        return warning(
            "clock",
            f"{shown}, and the newest claim was prepared at {_time(newest)}",
            "the clock was set back, or is wrong now: compare it with another machine",
        )
    return ok("clock", shown)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def check_uevents() -> Check:
    """Check that kernel events arrive, by which devices that come and go are seen at once."""
    stop = threading.Event()
    stop.set()
    monitor = UeventMonitor(frozenset({"cpu"}), lambda _event: None, lambda: None)
    try:
        monitor.run(stop)
    except UeventsUnavailableError as problem:
        return warning(
            "kernel events",
            str(problem),
            "devices that come and go are seen at the next rescan only (rescanSeconds); install libudev, and allow "
            "netlink sockets (AF_NETLINK)",
        )
    return ok("kernel events", "can be received")


def check_process(*, own_directory: bool) -> Check:
    """Check who this process is, as `check_permissions` does."""
    return check_permissions(os.geteuid(), Host().read_text("proc/self/status"), own_directory=own_directory)


def unmade(name: str, because: str) -> Check:
    """Return a check that cannot be made as long as another one fails."""
    return unknown(name, f"not looked at: {because}")
