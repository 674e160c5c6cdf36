"""Memory and huge pages as shares of NUMA nodes: containers are bound to the nodes, huge pages limited."""

from dradriver_memory.backend import MemoryBackend
from dradriver_memory.config import MemoryOptions
from dradriver_memory.plan import BindMemory, LimitHugepages

__all__ = ["BindMemory", "LimitHugepages", "MemoryBackend", "MemoryOptions"]
