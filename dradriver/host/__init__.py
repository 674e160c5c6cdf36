"""The host, read only: files below any root, the topology found in them, and events of the kernel."""

from dradriver.host.allowed import Allowed, Cgroup
from dradriver.host.cache import Cache
from dradriver.host.core_kinds import EFFICIENCY, PERFORMANCE, CoreKinds
from dradriver.host.cpu import CPU, CPULists
from dradriver.host.cpuset import CPUSet
from dradriver.host.memory import HugePages, Memory
from dradriver.host.numa import MemorySideCache, NUMANode
from dradriver.host.root import Host
from dradriver.host.topology import Locality, Topology, read_topology
from dradriver.host.uevents import Uevent, UeventMonitor, UeventsUnavailableError

__all__ = [
    "CPU",
    "EFFICIENCY",
    "PERFORMANCE",
    "Allowed",
    "CPULists",
    "CPUSet",
    "Cache",
    "Cgroup",
    "CoreKinds",
    "Host",
    "HugePages",
    "Locality",
    "Memory",
    "MemorySideCache",
    "NUMANode",
    "Topology",
    "Uevent",
    "UeventMonitor",
    "UeventsUnavailableError",
    "read_topology",
]
