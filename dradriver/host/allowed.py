"""What CPUs and memory nodes this process may use: a container's cpuset is often smaller than its host."""

import re
from dataclasses import dataclass

from dradriver.host.cpuset import CPUSet
from dradriver.host.fields import cpus_field, ids_field
from dradriver.host.notes import Notes
from dradriver.host.root import Host

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The cpuset that confines this process.

    kind: "cgroup2", "cgroup" (version 1) or "cpuset" (its file system before cgroups). path: from the host's
    root. CPUs and nodes as the files say; None where they do not tell.
    """

    kind: str
    path: str
    cpus: CPUSet | None
    mems: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Allowed:
    """Limits of this process: what the scheduler applies (its status) and what its cgroup says.

    None is unknown.
    """

    cpus: CPUSet | None
    mems: tuple[int, ...] | None
    cgroup: Cgroup | None


def read_allowed(host: Host, notes: Notes) -> Allowed:
    """Read the limits of this process (cgroups(7), cpuset(7), proc_pid_status(5))."""
    status = dict(
        line.split(":", 1)
        for line in (host.read_text("proc/self/status") or "").splitlines()
        if line.startswith(("Cpus_allowed_list:", "Mems_allowed_list:"))
    )
    return Allowed(
        cpus=_parsed(status.get("Cpus_allowed_list"), notes),
        mems=None if (mems := _parsed(status.get("Mems_allowed_list"), notes)) is None else tuple(mems),
        cgroup=_read_cgroup(host, notes),
    )


def _parsed(text: str | None, notes: Notes) -> CPUSet | None:
    if text is None:
        return None
    try:
        return CPUSet.parse(text)
    except ValueError as error:
        notes.add(f"proc/self/status: {error}: taken as unknown")
        return None


def _read_cgroup(host: Host, notes: Notes) -> Cgroup | None:
    """Find the hierarchy that has the cpuset controller: version 1 if mounted there, else version 2."""
    mounts: dict[str, tuple[str, bool]] = {}
    for line in (host.read_text("proc/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        point, kind, options = _unescaped(fields[1]), fields[2], fields[3].split(",")
        has_cpusets = kind in {"cpuset", "cgroup2"} or (kind == "cgroup" and "cpuset" in options)
        if has_cpusets and _is_path(point):
            mounts.setdefault(kind, (point, kind == "cpuset" or "noprefix" in options))
    for kind in ("cgroup", "cpuset"):
        if kind in mounts:
            return _version_1(host, kind, *mounts[kind], notes)
    return _version_2(host, mounts["cgroup2"][0], notes) if "cgroup2" in mounts else None


def _version_1(host: Host, kind: str, point: str, bare: bool, notes: Notes) -> Cgroup | None:
    group = _group(host, "cpuset")
    if group is None:
        return None
    path = f"{point}{group}"
    prefix = "" if bare else "cpuset."
    cpus = cpus_field(host, f"{path}/{prefix}cpus", notes)
    mems = ids_field(host, f"{path}/{prefix}mems", notes)
    return Cgroup(kind, path, cpus, mems)


def _version_2(host: Host, point: str, notes: Notes) -> Cgroup | None:
    """Read the effective sets of the nearest group that has them: the controller need not reach the leaf."""
    group = _group(host, "")
    if group is None:
        return None
    path = f"{point}{group}".rstrip("/")
    while len(path) >= len(point.rstrip("/")):
        cpus = cpus_field(host, f"{path}/cpuset.cpus.effective", notes)
        mems = ids_field(host, f"{path}/cpuset.mems.effective", notes)
        if cpus is not None or mems is not None or "/" not in path:
            return Cgroup("cgroup2", path, cpus, mems)
        path = path.rpartition("/")[0]
    return None


def _group(host: Host, controller: str) -> str | None:
    """Return the group of this process in the hierarchy of `controller` ("" for version 2), as `/a/b`."""
    for line in (host.read_text("proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        found = number == "0" and not controllers if not controller else controller in controllers.split(",")
        if found and _is_path(group):
            return group
    group = host.read_text("proc/self/cpuset") or ""
    return group if _is_path(group) else None


def _is_path(text: str) -> bool:
    """Return whether `text` may be read: a group outside the mount is `/..` (cgroup_namespaces(7))."""
    return text.startswith("/") and "\0" not in text and ".." not in text.split("/")


def _unescaped(point: str) -> str:
    """Return a mount point with the kernel's octal escapes for blanks undone (proc_pid_mounts(5))."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), point)
