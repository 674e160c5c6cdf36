"""Kinds of cores on machines whose CPUs are not equal (Intel hybrid, Arm big.LITTLE)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from dradriver.host.cpu import CPU_DIR
from dradriver.host.cpuset import CPUSet
from dradriver.host.fields import cpus_field
from dradriver.host.notes import Notes
from dradriver.host.root import Host, parse_int

PERFORMANCE = "performance"
EFFICIENCY = "efficiency"

# Cores of one kind differ a little in capacity, by what the best of them can boost to. Kinds differ by a
# gap; on the recorded machines it is a quarter of the largest capacity and more.
_CAPACITY_GAP = 0.1

_TYPE_KINDS = {"intel_core": PERFORMANCE, "intel_atom": EFFICIENCY}

# The kernel's perf device per kind of core (arch/x86/events/intel); lowpower: the E-cores of the SoC tile.
_PMU_KINDS = {"cpu_core": PERFORMANCE, "cpu_atom": EFFICIENCY, "cpu_lowpower": EFFICIENCY}


@dataclass(frozen=True, slots=True)
class CoreKinds:
    """What tells CPUs apart: for each source, its values and the online CPUs that have them.

    cpu_types: `/sys/devices/system/cpu/types/*/cpulist`.
    pmu_device: `/sys/devices/cpu_{core,atom,lowpower}/cpus`.
    cpu_capacity: `cpuN/cpu_capacity`; 1024 is the largest.
    max_freq_khz, base_freq_khz: `cpuN/cpufreq/{cpuinfo_max_freq,base_frequency}`.
    midr: `cpuN/regs/identification/midr_el1` (arm64).
    A source in which all CPUs are equal is empty.
    """

    cpu_types: Mapping[str, CPUSet]
    pmu_device: Mapping[str, CPUSet]
    cpu_capacity: Mapping[str, CPUSet]
    max_freq_khz: Mapping[str, CPUSet]
    base_freq_khz: Mapping[str, CPUSet]
    midr: Mapping[str, CPUSet]

    def by_cpu(self) -> dict[int, str]:
        """Return "performance" or "efficiency" for each CPU; empty where CPUs are equal or nothing tells.

        The first source that tells wins: the kernel's own types, its perf devices, the capacity it schedules
        by. Frequencies and MIDR do not rank cores: one core of a kind may boost higher than the next.
        """
        for kinds in (
            _named(self.cpu_types, lambda name: _TYPE_KINDS.get("_".join(name.split("_")[:2]))),
            _named(self.pmu_device, _PMU_KINDS.get),
            _by_capacity(self.cpu_capacity),
        ):
            if len(set(kinds.values())) > 1:
                return kinds
        return {}


def read_core_kinds(host: Host, online: CPUSet, notes: Notes) -> CoreKinds:
    """Read what tells the online CPUs apart."""
    files = {cpu: frozenset(host.list_dir(f"{CPU_DIR}/cpu{cpu}")) for cpu in online}

    def per_cpu(name: str) -> dict[str, CPUSet]:
        top = name.partition("/")[0]
        return _telling(_values(host, [cpu for cpu in online if top in files[cpu]], name))

    return CoreKinds(
        cpu_types=_telling(_lists(host, f"{CPU_DIR}/types", "cpulist", online, notes)),
        pmu_device=_telling(
            {
                name: cpus & online
                for name in _PMU_KINDS
                if (cpus := cpus_field(host, f"sys/devices/{name}/cpus", notes))
            }
        ),
        cpu_capacity=per_cpu("cpu_capacity"),
        max_freq_khz=per_cpu("cpufreq/cpuinfo_max_freq"),
        base_freq_khz=per_cpu("cpufreq/base_frequency"),
        midr=per_cpu("regs/identification/midr_el1"),
    )


def _lists(host: Host, directory: str, file: str, online: CPUSet, notes: Notes) -> dict[str, CPUSet]:
    return {
        name: cpus & online
        for name in host.list_dir(directory)
        if (cpus := cpus_field(host, f"{directory}/{name}/{file}", notes))
    }


def _values(host: Host, cpus: Iterable[int], name: str) -> dict[str, CPUSet]:
    by_value: dict[str, list[int]] = {}
    for cpu in cpus:
        value = host.read_text(f"{CPU_DIR}/cpu{cpu}/{name}")
        if value:
            by_value.setdefault(value, []).append(cpu)
    return {value: CPUSet(having) for value, having in by_value.items()}


def _telling(values: Mapping[str, CPUSet]) -> dict[str, CPUSet]:
    """Return `values` without empty sets; nothing at all if only one is left."""
    kept = {value: cpus for value, cpus in values.items() if cpus}
    return kept if len(kept) > 1 else {}


def _named(values: Mapping[str, CPUSet], kind_of: Callable[[str], str | None]) -> dict[int, str]:
    return {cpu: kind for name, cpus in values.items() if (kind := kind_of(name)) for cpu in cpus}


def _by_capacity(values: Mapping[str, CPUSet]) -> dict[int, str]:
    """Split at the widest gap between capacities, if it is wide enough to be one between kinds."""
    capacities = sorted(value for text in values if (value := parse_int(text)) is not None and value >= 0)
    if len(capacities) < 2:
        return {}
    gap, lowest_performance = max((high - low, high) for low, high in pairwise(capacities))
    if gap < _CAPACITY_GAP * capacities[-1]:
        return {}
    return {
        cpu: PERFORMANCE if value >= lowest_performance else EFFICIENCY
        for text, cpus in values.items()
        if (value := parse_int(text)) is not None
        for cpu in cpus
    }
