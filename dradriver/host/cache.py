"""CPU caches.

Files: kernel, Documentation/ABI/testing/sysfs-devices-system-cpu, `cpuN/cache/indexK/`. They are absent on
s390x and in many guests, and ids and sizes are absent on many machines.
"""

from dataclasses import dataclass

from dradriver.host.cpu import CPU_DIR
from dradriver.host.cpuset import CPUSet
from dradriver.host.fields import cpus_field, int_field, size_field
from dradriver.host.notes import Notes
from dradriver.host.root import Host


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache and the online CPUs that share it.

    `type` is as the kernel writes it: "Data", "Instruction", "Unified". `id` is unique among the caches of
    the level and type where the kernel gives it; the sharing set always is.
    """

    level: int
    type: str
    id: int | None
    size_bytes: int | None
    cpus: CPUSet


def read_caches(host: Host, online: CPUSet, notes: Notes) -> tuple[Cache, ...]:
    """Read every cache once, sorted by level, type and first CPU.

    The kernel numbers the caches of a CPU from the first level up, so CPUs that share a cache have it under
    the same index: its other files are read from the first of them only.
    """
    seen: set[tuple[str, CPUSet]] = set()
    caches: dict[tuple[int, str, CPUSet], Cache] = {}
    for cpu in online:
        directory = f"{CPU_DIR}/cpu{cpu}/cache"
        for index in host.list_dir(directory):
            if not index.startswith("index"):
                continue
            path = f"{directory}/{index}"
            cpus = cpus_field(
                host, f"{path}/shared_cpu_list", notes, mask_path=f"{path}/shared_cpu_map", cpu=cpu
            )
            shared = (cpus or CPUSet()) & online | CPUSet((cpu,))
            if (index, shared) in seen:
                continue
            seen.add((index, shared))
            cache = _read(host, path, cpu, shared, notes)
            if cache is not None:
                caches.setdefault((cache.level, cache.type, cache.cpus), cache)
    return tuple(sorted(caches.values(), key=lambda cache: (cache.level, cache.type, cache.cpus.first)))


def _read(host: Host, path: str, cpu: int, cpus: CPUSet, notes: Notes) -> Cache | None:
    level = int_field(host, f"{path}/level", notes, cpu=cpu)
    kind = host.read_text(f"{path}/type")
    if level is None or not kind:
        notes.add(f"{CPU_DIR}/cpuN/cache/{path.rpartition('/')[2]}: no level or type: left out", cpu)
        return None
    return Cache(
        level=level,
        type=kind,
        id=int_field(host, f"{path}/id", notes, cpu=cpu),
        size_bytes=size_field(host, f"{path}/size", notes, cpu=cpu),
        cpus=cpus,
    )
