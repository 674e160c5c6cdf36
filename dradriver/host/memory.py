"""Memory of the whole host and its huge pages.

Files: kernel, Documentation/filesystems/proc.rst (meminfo) and Documentation/admin-guide/mm/hugetlbpage.rst.
"""

import re
from dataclasses import dataclass

from dradriver.host.fields import int_field
from dradriver.host.notes import Notes
from dradriver.host.root import Host

_POOL = re.compile(r"hugepages-([0-9]{1,12})kB")
_MEMINFO = re.compile(r"^(?:Node +[0-9]+ +)?([A-Za-z_()]+): +([0-9]{1,18})(?: kB)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HugePages:
    """Huge pages of one size: of the host, or of one NUMA node (then `reserved` and `overcommit` are None).

    Counts are pages. `total` holds the persistent ones and `surplus`, the ones taken beyond them on demand.
    """

    size_bytes: int
    total: int
    free: int
    surplus: int
    reserved: int | None = None
    overcommit: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the whole host.

    `total_bytes` is what the kernel manages, memory of GPUs in NUMA nodes included. Values are None where
    /proc/meminfo is absent or lacks them; a kernel without huge pages has no `default_huge_page_bytes`.
    """

    total_bytes: int | None
    default_huge_page_bytes: int | None
    default_huge_pages_total: int | None
    huge_pages: tuple[HugePages, ...]


def read_memory(host: Host, notes: Notes) -> Memory:
    """Read the memory of the host."""
    facts = read_meminfo(host, "proc/meminfo")
    total, page = facts.get("MemTotal"), facts.get("Hugepagesize")
    return Memory(
        total_bytes=None if total is None else total * 1024,
        default_huge_page_bytes=None if page is None else page * 1024,
        default_huge_pages_total=facts.get("HugePages_Total"),
        huge_pages=read_huge_pages(host, "sys/kernel/mm/hugepages", notes),
    )


def read_meminfo(host: Host, path: str) -> dict[str, int]:
    """Return the lines of a meminfo file by name: kB where the file says so, else counts. Empty if absent."""
    return {name: int(value) for name, value in _MEMINFO.findall(host.read_text(path) or "")}


def read_huge_pages(host: Host, directory: str, notes: Notes) -> tuple[HugePages, ...]:
    """Read the huge page pools below `directory`, smallest pages first."""
    pools = []
    for name in host.list_dir(directory):
        match = _POOL.fullmatch(name)
        if match is None:
            continue
        path = f"{directory}/{name}"
        pools.append(
            HugePages(
                size_bytes=int(match[1]) * 1024,
                total=int_field(host, f"{path}/nr_hugepages", notes) or 0,
                free=int_field(host, f"{path}/free_hugepages", notes) or 0,
                surplus=int_field(host, f"{path}/surplus_hugepages", notes) or 0,
                reserved=int_field(host, f"{path}/resv_hugepages", notes),
                overcommit=int_field(host, f"{path}/nr_overcommit_hugepages", notes),
            )
        )
    return tuple(sorted(pools, key=lambda pool: pool.size_bytes))
