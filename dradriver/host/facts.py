"""Which files of a host are read: the list by which a snapshot is made, so that it holds these and no other.

A reader that learns to read another file adds it here. Files that hold secrets of the machine beside the facts are
reduced to what readers use.
"""

import re
from dataclasses import dataclass

from dradriver.host.allowed import read_allowed
from dradriver.host.cpuset import CPUSet
from dradriver.host.notes import Notes
from dradriver.host.root import Host

MADE_UP_GROUP = "/recorded"
"""The cgroup of a recorded process: real ones carry names of pods, containers and users."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Files in the directories that match; parts of `directory`, and the names, may hold shell wildcards.

    files   read, links followed
    links   kept as links; what they point to is not looked at
    """

    directory: str
    files: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


_POOL = ("nr_hugepages", "free_hugepages", "surplus_hugepages", "resv_hugepages", "nr_overcommit_hugepages")

FACTS = (
    Facts(
        "sys/devices/system/cpu",
        ("online", "offline", "present", "possible", "isolated", "nohz_full"),
    ),
    Facts("sys/devices/system/cpu/smt", ("active", "control")),
    Facts("sys/devices/system/cpu/types/*", ("cpulist",)),
    Facts("sys/devices/system/cpu/cpu[0-9]*", ("online", "cpu_capacity")),
    Facts(
        "sys/devices/system/cpu/cpu[0-9]*/topology",
        (
            *("physical_package_id", "die_id", "cluster_id", "core_id", "book_id", "drawer_id"),
            *("core_cpus", "core_cpus_list", "thread_siblings", "thread_siblings_list"),
            *("package_cpus", "package_cpus_list", "core_siblings", "core_siblings_list"),
            *("die_cpus", "die_cpus_list", "cluster_cpus", "cluster_cpus_list"),
            *("book_siblings", "book_siblings_list", "drawer_siblings", "drawer_siblings_list"),
        ),
    ),
    Facts(
        "sys/devices/system/cpu/cpu[0-9]*/cache/index*",
        ("level", "type", "id", "size", "shared_cpu_list", "shared_cpu_map"),
    ),
    Facts("sys/devices/system/cpu/cpu[0-9]*/cpufreq", ("cpuinfo_max_freq", "base_frequency")),
    Facts("sys/devices/system/cpu/cpu[0-9]*/regs/identification", ("midr_el1",)),
    Facts("sys/devices/cpu_*", ("cpus",)),
    Facts(
        "sys/devices/system/node",
        ("online", "possible", "has_cpu", "has_memory", "has_normal_memory", "has_generic_initiator"),
    ),
    Facts("sys/devices/system/node/node[0-9]*", ("cpulist", "cpumap", "distance", "meminfo")),
    Facts("sys/devices/system/node/node[0-9]*/hugepages/hugepages-*", _POOL),
    Facts(
        "sys/devices/system/node/node[0-9]*/memory_side_cache/index*",
        ("size", "line_size", "indexing"),
    ),
    Facts("sys/kernel/mm/hugepages/hugepages-*", _POOL),
    Facts(
        "sys/bus/pci/devices/*",
        (
            *("class", "vendor", "device", "subsystem_vendor", "subsystem_device", "revision"),
            *("numa_node", "local_cpulist", "local_cpus", "sriov_totalvfs", "sriov_numvfs"),
            *("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"),
        ),
        ("driver", "iommu_group", "physfn", "virtfn[0-9]*"),
    ),
    Facts(
        "sys/class/net/*",
        ("address", "operstate", "type", "mtu", "speed", "dev_id", "dev_port"),
    ),
    Facts(
        "sys/class/infiniband/*",
        ("node_guid", "sys_image_guid", "node_type", "fw_ver", "board_id"),
    ),
    Facts("sys/class/infiniband/*/ports/*", ("state", "rate", "link_layer", "lid")),
    Facts("proc", ("meminfo", "cmdline")),
    Facts("proc/sys/kernel", ("osrelease",)),
    Facts("proc/sys/kernel/random", ("boot_id",)),
    Facts("proc/driver/nvidia/gpus/*", ("information", "numa_status")),
)

_MEMINFO = re.compile(r"(?:Node +[0-9]+ +)?(?:MemTotal|HugePages_[A-Za-z]+|Hugepagesize):")

# What says how CPUs, memory and devices were set up. Command lines also carry addresses, disk ids and passwords.
_PARAMETERS = frozenset(
    {
        *(
            "isolcpus",
            "nohz_full",
            "rcu_nocbs",
            "irqaffinity",
            "nosmt",
            "maxcpus",
            "nr_cpus",
            "possible_cpus",
        ),
        *("hugepages", "hugepagesz", "default_hugepagesz", "numa", "numa_balancing", "transparent_hugepage"),
        *("iommu", "intel_iommu", "amd_iommu"),
    }
)
_PARAMETER_VALUE = re.compile(r"[A-Za-z0-9,:._-]{0,256}")


def reduced(path: str, text: str) -> str:
    """Return of the text of a file what readers use."""
    name = path.rpartition("/")[2]
    if name == "meminfo":
        return "\n".join(line for line in text.splitlines() if _MEMINFO.match(line))
    if path == "proc/cmdline":
        return " ".join(word for word in text.split() if _is_known_parameter(word))
    return text


def _is_known_parameter(word: str) -> bool:
    name, _, value = word.partition("=")
    return name in _PARAMETERS and _PARAMETER_VALUE.fullmatch(value) is not None


def process_files(host: Host) -> dict[str, str]:
    """Return files that say of a process what `read_allowed` finds for this one, under a made-up cgroup.

    Which mounts and cgroups there are is not among the facts: their names are those of pods and users.
    """
    allowed = read_allowed(host, Notes())
    files = {}
    status = [
        f"{name}:\t{CPUSet(ids)}"
        for name, ids in (("Cpus_allowed_list", allowed.cpus), ("Mems_allowed_list", allowed.mems))
        if ids is not None
    ]
    if status:
        files["proc/self/status"] = "\n".join(status)
    if allowed.cgroup is None:
        return files
    kind = allowed.cgroup.kind
    point, options, cpus, mems = {
        "cgroup2": ("/sys/fs/cgroup", "rw", "cpuset.cpus.effective", "cpuset.mems.effective"),
        "cgroup": ("/sys/fs/cgroup/cpuset", "rw,cpuset", "cpuset.cpus", "cpuset.mems"),
        "cpuset": ("/dev/cpuset", "rw", "cpus", "mems"),
    }[kind]
    files["proc/mounts"] = f"{kind} {point} {kind} {options} 0 0"
    files["proc/self/cgroup"] = f"{'0:' if kind == 'cgroup2' else '1:cpuset'}:{MADE_UP_GROUP}"
    for name, value in ((cpus, allowed.cgroup.cpus), (mems, allowed.cgroup.mems)):
        if value is not None:
            files[f"{point.lstrip('/')}{MADE_UP_GROUP}/{name}"] = str(CPUSet(value))
    return files
