"""What a shared object says of itself: its machine, its SONAME, and what it needs.

Format: System V ABI, "Object Files" and "Dynamic Linking"; elf.h. Little-endian objects only, as are all machines that
NVIDIA has drivers for. The files are tens of megabytes: only headers and the dynamic section are read.
"""

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

X86, ARM, X86_64, AARCH64 = 3, 40, 62, 183
"""Machines: EM_386, EM_ARM, EM_X86_64, EM_AARCH64."""

_MAGIC = b"\x7fELF"
_32_BIT, _64_BIT, _LITTLE_ENDIAN = 1, 2, 1
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME = 0, 1, 5, 14

# Far above any real object: a driver's largest library has some 10 segments and needs a dozen others.
_MAX_SEGMENTS = 128
_MAX_DYNAMIC_BYTES = 64 << 10
_MAX_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class SharedObject:
    """A shared object.

    bits      32 or 64
    machine   EM_* number
    soname    the name under which the dynamic linker looks for it; empty for none
    needed    SONAMEs of what it is linked against
    """

    bits: int
    machine: int
    soname: str
    needed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Form:
    """Where the fields are in objects of one width: offsets and formats."""

    bits: int
    header: struct.Struct
    segment: struct.Struct
    segment_fields: tuple[int, int, int, int]
    entry: struct.Struct


# Of the header e_type to e_shstrndx; of a segment the places of p_type, p_offset, p_vaddr and p_filesz.
_FORMS = {
    _32_BIT: _Form(
        32, struct.Struct("<HHIIIIIHHHHHH"), struct.Struct("<8I"), (0, 1, 2, 4), struct.Struct("<iI")
    ),
    _64_BIT: _Form(
        64, struct.Struct("<HHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), (0, 2, 3, 5), struct.Struct("<qQ")
    ),
}


def read_shared_object(path: Path) -> SharedObject | None:
    """Read a shared object; None for what is none, is cut off, or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return _read(descriptor)
    except (OSError, struct.error, ValueError, OverflowError):
        return None
    finally:
        os.close(descriptor)


def _read(file: int) -> SharedObject | None:
    start = os.pread(file, 64, 0)
    if start[:4] != _MAGIC or start[5:6] != bytes([_LITTLE_ENDIAN]):
        return None
    form = _FORMS.get(start[4])
    if form is None:
        return None
    _, machine, _, _, offset, _, _, _, size, count, *_ = form.header.unpack_from(start, 16)
    if size != form.segment.size or count > _MAX_SEGMENTS:
        return None
    segments = [
        tuple(fields[place] for place in form.segment_fields)
        for fields in form.segment.iter_unpack(_whole(file, size * count, offset))
    ]
    loaded = [(at, where, length) for kind, at, where, length in segments if kind == _PT_LOAD]
    dynamic = next(((at, length) for kind, at, _, length in segments if kind == _PT_DYNAMIC), None)
    if dynamic is None or dynamic[1] > _MAX_DYNAMIC_BYTES:
        return None
    entries = list(_entries(form.entry, _whole(file, dynamic[1], dynamic[0])))
    # Every library of a driver is there to its end: what was cut off while it was copied cannot be given out.
    if max((at + length for at, _, length in loaded), default=0) > os.fstat(file).st_size:
        return None
    strings = _placed(next((value for tag, value in entries if tag == _DT_STRTAB), 0), loaded)
    names = [(tag, _name(file, strings + value)) for tag, value in entries if tag in {_DT_SONAME, _DT_NEEDED}]
    return SharedObject(
        bits=form.bits,
        machine=machine,
        soname=next((name for tag, name in names if tag == _DT_SONAME), ""),
        needed=tuple(name for tag, name in names if tag == _DT_NEEDED),
    )


def _entries(form: struct.Struct, data: bytes) -> Iterator[tuple[int, int]]:
    for tag, value in form.iter_unpack(data[: len(data) // form.size * form.size]):
        if tag == _DT_NULL:
            return
        yield tag, value


def _placed(address: int, loaded: list[tuple[int, int, int]]) -> int:
    """Return where in the file that is which is loaded at an address. Raises ValueError for nothing."""
    for at, where, length in loaded:
        if where <= address < where + length:
            return at + address - where
    raise ValueError(f"nothing is loaded at {address:#x}")


def _name(file: int, at: int) -> str:
    name, end, _ = os.pread(file, _MAX_NAME_BYTES, at).partition(b"\0")
    if not end:
        raise ValueError("a name does not end")
    return name.decode("ascii")


def _whole(file: int, size: int, at: int) -> bytes:
    data = os.pread(file, size, at)
    if len(data) != size:
        raise ValueError("it is cut off")
    return data
