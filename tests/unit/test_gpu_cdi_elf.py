"""What shared objects say of themselves, and files that are none."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver_gpu.cdi.content import held
from dradriver_gpu.cdi.elf import AARCH64, X86, X86_64, read_shared_object
from drivertree import shared_object

WHOLE = shared_object("libcuda.so.1", ["libdl.so.2", "libc.so.6"])


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("machine", "bits"), [(X86_64, 64), (AARCH64, 64), (X86, 32)])
def test_the_name_and_what_it_needs_are_read(tmp_path: Path, machine: int, bits: int) -> None:
    data = shared_object("libcuda.so.1", ["libdl.so.2"], machine=machine, bits=bits)
    found = read_shared_object(written(tmp_path / "library", data))
    assert found
    assert (found.bits, found.machine) == (bits, machine)
    assert (found.soname, found.needed) == ("libcuda.so.1", ("libdl.so.2",))


def test_a_library_of_the_compiler_is_read(tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    (tmp_path / "code.c").write_text("#include <math.h>\ndouble f(double x) { return cos(x); }\n")
    library = tmp_path / "libtest.so.12.34"
    command = ["gcc", "code.c", "-shared", "-fPIC", "-o", library.name, "-Wl,-soname,libtest.so.12", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    found = read_shared_object(library)
    assert found
    assert found.soname == "libtest.so.12"
    assert "libm.so.6" in found.needed


def test_a_library_without_a_name_has_none(tmp_path: Path) -> None:
    found = read_shared_object(written(tmp_path / "library", shared_object()))
    assert found
    assert (found.soname, found.needed) == ("", ())


@pytest.mark.parametrize("size", [0, 3, 16, 63, 64, 100, 200, len(WHOLE) - 1])
def test_what_is_cut_off_is_none(tmp_path: Path, size: int) -> None:
    assert read_shared_object(written(tmp_path / "library", WHOLE[:size])) is None


def test_what_is_no_file_is_none_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("pipe", "directory", "nothing"):
        assert read_shared_object(tmp_path / name) is None


def test_other_files_are_none(tmp_path: Path) -> None:
    big_endian = WHOLE[:5] + b"\2" + WHOLE[6:]
    other_width = WHOLE[:4] + b"\3" + WHOLE[5:]
    script = b"/* GNU ld script */\nGROUP ( /lib/libcuda.so.1 )\n" * 10
    for data in (big_endian, other_width, script, b"\x7fELF" * 100):
        assert read_shared_object(written(tmp_path / "library", data)) is None


def test_sizes_that_nobody_has_are_not_believed(tmp_path: Path) -> None:
    many = WHOLE[:56] + struct.pack("<H", 0xFFFF) + WHOLE[58:]
    assert read_shared_object(written(tmp_path / "library", many)) is None
    huge = bytearray(WHOLE)
    struct.pack_into("<Q", huge, 64 + 56 + 32, 1 << 62)  # p_filesz of the dynamic section
    assert read_shared_object(written(tmp_path / "library", bytes(huge))) is None


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_no_byte_makes_it_fail(tmp_path_factory: pytest.TempPathFactory, at: int, byte: int) -> None:
    data = WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    read_shared_object(written(tmp_path_factory.getbasetemp() / "changed", data))


def test_texts_are_found_across_the_pieces_that_are_read(tmp_path: Path) -> None:
    data = b"\0" * ((1 << 20) - 3) + b"create-symlinks" + b"\0" * 50
    file = written(tmp_path / "program", data)
    assert held(file, ["create-symlinks", "update-ldcache"]) == {"create-symlinks"}
    assert held(tmp_path / "nothing", ["create-symlinks"]) == frozenset()
