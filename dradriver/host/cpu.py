"""CPUs of a host: which there are, and what each shares with which others.

Files and their meaning: kernel, Documentation/ABI/stable/sysfs-devices-system-cpu and
Documentation/admin-guide/cputopology.rst.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dradriver.host.cpuset import CPUSet
from dradriver.host.fields import cpus_field, int_field
from dradriver.host.notes import Notes
from dradriver.host.root import Host

CPU_DIR = "sys/devices/system/cpu"

# Ids that are not known are -1; x86 keeps cluster ids in 16 bits.
_UNKNOWN_CLUSTER = 0xFFFF


@dataclass(frozen=True, slots=True)
class CPULists:
    """The CPU lists of the whole host. A list is None where the kernel has no such file."""

    online: CPUSet
    offline: CPUSet | None
    present: CPUSet | None
    possible: CPUSet | None
    isolated: CPUSet | None
    nohz_full: CPUSet | None


@dataclass(frozen=True, slots=True)
class CPU:
    """One online CPU (hardware thread).

    Ids are the platform's: sparse, repeated from one socket to the next (`core_id`), or None where the kernel
    does not know them (-1; 65535 for clusters). The sets hold online CPUs, this one among them; those of one
    level are disjoint. `core` is this CPU alone where nothing is known; the other sets are None where the
    kernel does not export the level. A level that is exported though the platform lacks it (die on arm64) has
    a set for each CPU and no id. `core_kind` is "performance" or "efficiency", None where all CPUs are equal
    or nothing tells.
    """

    number: int
    package_id: int | None
    die_id: int | None
    cluster_id: int | None
    core_id: int | None
    core: CPUSet
    package: CPUSet | None
    die: CPUSet | None
    cluster: CPUSet | None
    book: CPUSet | None
    drawer: CPUSet | None
    core_kind: str | None


@dataclass(frozen=True, slots=True)
class _Level:
    """Files of one level, newest names first; list and mask."""

    name: str
    files: tuple[str, ...]


# package_cpus and core_cpus came with Linux 5.3; core_siblings and thread_siblings mean the same.
_LEVELS = (
    _Level("core", ("core_cpus", "thread_siblings")),
    _Level("package", ("package_cpus", "core_siblings")),
    _Level("die", ("die_cpus",)),
    _Level("cluster", ("cluster_cpus",)),
    _Level("book", ("book_siblings",)),
    _Level("drawer", ("drawer_siblings",)),
)


def read_cpu_lists(host: Host, notes: Notes) -> CPULists:
    """Read the CPU lists of the host.

    Without `cpu/online` (before Linux 2.6.28), the CPUs whose `cpuN/online` is not 0 are online.
    """
    online = cpus_field(host, f"{CPU_DIR}/online", notes)
    if online is None:
        online = _online_by_directory(host)
        notes.add(f"{CPU_DIR}/online: absent: online CPUs taken from the cpuN directories")
    if not online:
        notes.add(f"{CPU_DIR}: no CPU is online")

    def listed(name: str) -> CPUSet | None:
        return cpus_field(host, f"{CPU_DIR}/{name}", notes)

    return CPULists(
        online=online,
        offline=listed("offline"),
        present=listed("present"),
        possible=listed("possible"),
        isolated=listed("isolated"),
        nohz_full=listed("nohz_full"),
    )


def read_cpus(host: Host, online: CPUSet, core_kinds: Mapping[int, str], notes: Notes) -> dict[int, CPU]:
    """Read the topology of each online CPU."""
    # Levels differ by architecture: to list the directory costs less than to try each file.
    files = {cpu: frozenset(host.list_dir(f"{CPU_DIR}/cpu{cpu}/topology")) for cpu in online}
    raw = {
        level.name: {cpu: _sharing(host, cpu, level, files[cpu], notes) for cpu in online}
        for level in _LEVELS
    }
    sets = {name: _partition(name, by_cpu, online, notes) for name, by_cpu in raw.items()}

    def known_id(cpu: int, name: str) -> int | None:
        return _id(host, cpu, name, notes) if name in files[cpu] else None

    return {
        cpu: CPU(
            number=cpu,
            package_id=known_id(cpu, "physical_package_id"),
            die_id=known_id(cpu, "die_id"),
            cluster_id=known_id(cpu, "cluster_id"),
            core_id=known_id(cpu, "core_id"),
            core=sets["core"].get(cpu) or CPUSet((cpu,)),
            package=sets["package"].get(cpu),
            die=sets["die"].get(cpu),
            cluster=sets["cluster"].get(cpu),
            book=sets["book"].get(cpu),
            drawer=sets["drawer"].get(cpu),
            core_kind=core_kinds.get(cpu),
        )
        for cpu in online
    }


def distinct(sets: Iterable[CPUSet | None]) -> tuple[CPUSet, ...]:
    """Return the different ones of `sets`, by their first CPU."""
    return tuple(sorted({cpus for cpus in sets if cpus}, key=lambda cpus: cpus.first))


def _online_by_directory(host: Host) -> CPUSet:
    numbers = [
        int(name[3:]) for name in host.list_dir(CPU_DIR) if name.startswith("cpu") and name[3:].isdecimal()
    ]
    return CPUSet(cpu for cpu in numbers if host.read_text(f"{CPU_DIR}/cpu{cpu}/online") != "0")


def _id(host: Host, cpu: int, name: str, notes: Notes) -> int | None:
    value = int_field(host, f"{CPU_DIR}/cpu{cpu}/topology/{name}", notes, cpu=cpu)
    if value == -1 or (name == "cluster_id" and value == _UNKNOWN_CLUSTER):
        notes.add(f"{CPU_DIR}/cpuN/topology/{name}: {value}: taken as unknown", cpu)
        return None
    return value


def _sharing(host: Host, cpu: int, level: _Level, files: frozenset[str], notes: Notes) -> CPUSet | None:
    """Return the CPUs that share this level with `cpu`, as the files say."""
    for name in level.files:
        if files.isdisjoint({name, f"{name}_list"}):
            continue
        path = f"{CPU_DIR}/cpu{cpu}/topology/{name}"
        cpus = cpus_field(host, f"{path}_list", notes, mask_path=path, cpu=cpu)
        if cpus is None:
            continue
        if cpu not in cpus:
            notes.add(f"{CPU_DIR}/cpuN/topology/{name}: lacks the CPU itself: CPU added", cpu)
            cpus |= CPUSet((cpu,))
        return cpus
    return None


def _partition(
    name: str, by_cpu: Mapping[int, CPUSet | None], online: CPUSet, notes: Notes
) -> dict[int, CPUSet]:
    """Return a set for each CPU such that any two are equal or disjoint: overlapping ones are joined.

    To join is the safe side: what may share hardware is then given out together.
    """
    joined: list[CPUSet] = []
    overlap = False
    for cpus in {cpus & online for cpus in by_cpu.values() if cpus}:
        merged = cpus
        apart = []
        for other in joined:
            if other.isdisjoint(cpus):
                apart.append(other)
            else:
                merged |= other
                overlap = True
        joined = [*apart, merged]
    if overlap:
        notes.add(f"{CPU_DIR}: {name} sets overlap without being equal: joined")
    return {cpu: cpus for cpus in joined for cpu in cpus}
