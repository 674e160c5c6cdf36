"""Small sysfs and procfs trees, built from facts, for tests that need a machine of a certain kind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU_DIR = "sys/devices/system/cpu"
NODE_DIR = "sys/devices/system/node"


@dataclass(frozen=True, slots=True)
class HostTree:
    """A tree below `root`; each method adds files and returns the tree."""

    root: Path

    def write(self, path: str, text: str) -> "HostTree":
        """Write a file with the newline that the kernel adds."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return self

    def link(self, path: str, target: str) -> "HostTree":
        """Make a symbolic link, which may dangle."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)
        return self

    def remove(self, path: str) -> "HostTree":
        """Remove a file."""
        (self.root / path).unlink()
        return self

    def online(self, cpus: str) -> "HostTree":
        """Say which CPUs are online, and that there are no others."""
        for name in ("online", "present", "possible"):
            self.write(f"{CPU_DIR}/{name}", cpus)
        return self

    def cpu(self, number: int, **topology: str | int) -> "HostTree":
        """Add a CPU with these files in its topology directory."""
        for name, value in topology.items():
            self.write(f"{CPU_DIR}/cpu{number}/topology/{name}", str(value))
        return self

    def cores(self, cores: Sequence[Sequence[int]], *, package: int = 0) -> "HostTree":
        """Add the CPUs of a socket, given as its cores with their hardware threads."""
        socket = _listed(cpu for core in cores for cpu in core)
        for core_id, core in enumerate(cores):
            for cpu in core:
                self.cpu(
                    cpu,
                    physical_package_id=package,
                    core_id=core_id,
                    core_cpus_list=_listed(core),
                    package_cpus_list=socket,
                )
        return self

    def cache(self, cpus: str, *, index: int, **files: str | int) -> "HostTree":
        """Add a cache to each of `cpus` (a plain comma list), shared by them."""
        for cpu in cpus.split(","):
            directory = f"{CPU_DIR}/cpu{cpu}/cache/index{index}"
            self.write(f"{directory}/shared_cpu_list", cpus)
            for name, value in files.items():
                self.write(f"{directory}/{name}", str(value))
        return self

    def node(
        self,
        number: int,
        cpus: str = "",
        *,
        memory_kib: int | None = 1 << 20,
        distance: str | None = None,
        huge_pages: Mapping[int, tuple[int, int, int]] | None = None,
    ) -> "HostTree":
        """Add a NUMA node; huge pages by size in KiB: total, free, surplus."""
        directory = f"{NODE_DIR}/node{number}"
        self.write(f"{directory}/cpulist", cpus)
        if memory_kib is not None:
            self.write(f"{directory}/meminfo", f"Node {number} MemTotal:       {memory_kib} kB")
        if distance is not None:
            self.write(f"{directory}/distance", distance)
        for size, counts in (huge_pages or {}).items():
            self._pool(f"{directory}/hugepages/hugepages-{size}kB", counts)
        return self

    def memory(
        self, total_kib: int, huge_pages: Mapping[int, tuple[int, int, int]] | None = None
    ) -> "HostTree":
        """Add the memory of the host; huge pages by size in KiB: total, free, surplus."""
        self.write("proc/meminfo", f"MemTotal:       {total_kib} kB\nHugepagesize:       2048 kB")
        for size, counts in (huge_pages or {}).items():
            self._pool(f"sys/kernel/mm/hugepages/hugepages-{size}kB", counts)
        return self

    def _pool(self, directory: str, counts: tuple[int, int, int]) -> None:
        for name, count in zip(("nr", "free", "surplus"), counts, strict=True):
            self.write(f"{directory}/{name}_hugepages", str(count))


def two_sockets(root: Path) -> HostTree:
    """Return a host of two sockets, each a NUMA node of 4 GiB with two cores of two threads: CPUs 0-7."""
    tree = HostTree(root).online("0-7").memory(8 << 20)
    for socket in (0, 1):
        first = socket * 2
        tree.cores([[first, first + 4], [first + 1, first + 5]], package=socket)
        tree.node(
            socket,
            _listed([first, first + 1, first + 4, first + 5]),
            memory_kib=4 << 20,
            distance="10 21" if socket == 0 else "21 10",
        )
    return tree


def _listed(cpus: Iterable[int]) -> str:
    return ",".join(str(cpu) for cpu in cpus)
