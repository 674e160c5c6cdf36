"""Typed fields of sysfs: a value that is absent is None, one that cannot be read is None and a note."""

import re

from dradriver.host.cpuset import CPUSet
from dradriver.host.notes import Notes
from dradriver.host.root import Host, parse_int
from dradriver.model.text import shown

_SIZE = re.compile(r"([0-9]{1,15})([KMG]?)")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,8}")
_FACTOR = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def int_field(host: Host, path: str, notes: Notes, *, cpu: int | None = None) -> int | None:
    """Read a decimal number."""
    text = host.read_text(path)
    if not text:
        return None
    value = parse_int(text)
    if value is None:
        notes.add(f"{_generic(path, cpu)}: {shown(text)} is not a number: taken as unknown", cpu)
    return value


def hex_field(host: Host, path: str, notes: Notes) -> int | None:
    """Read a hexadecimal number such as `0x060400`."""
    text = host.read_text(path)
    if not text:
        return None
    if not _HEX.fullmatch(text):
        notes.add(f"{path}: {shown(text)} is not a hexadecimal number: taken as unknown")
        return None
    return int(text, 16)


def size_field(host: Host, path: str, notes: Notes, *, cpu: int | None = None) -> int | None:
    """Read a size such as `32K` or `103079215104`, in bytes."""
    text = host.read_text(path)
    if not text:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        notes.add(f"{_generic(path, cpu)}: {shown(text)} is not a size: taken as unknown", cpu)
        return None
    return int(match[1]) * _FACTOR[match[2]]


def cpus_field(
    host: Host, list_path: str, notes: Notes, *, mask_path: str | None = None, cpu: int | None = None
) -> CPUSet | None:
    """Read a set of CPUs from its list file or, where that is absent or broken, from its mask file."""
    text = host.read_text(list_path)
    if text is not None:
        try:
            return CPUSet.parse(text)
        except ValueError as error:
            notes.add(f"{_generic(list_path, cpu)}: {error}: taken as unknown", cpu)
    if mask_path is None:
        return None
    text = host.read_text(mask_path)
    if text is None:
        return None
    try:
        return CPUSet.parse_mask(text)
    except ValueError as error:
        notes.add(f"{_generic(mask_path, cpu)}: {error}: taken as unknown", cpu)
        return None


def ids_field(host: Host, path: str, notes: Notes) -> tuple[int, ...] | None:
    """Read a list of ids, such as NUMA nodes, in the format of CPU lists."""
    ids = cpus_field(host, path, notes)
    return None if ids is None else tuple(ids)


def _generic(path: str, cpu: int | None) -> str:
    """Return `path` without the number of the CPU, so that the same remark on many CPUs is one remark."""
    return path if cpu is None else path.replace(f"/cpu{cpu}/", "/cpuN/")
