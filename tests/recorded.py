"""Recorded machines: sysfs and procfs trees of real hosts, beside the repository, with expected readings."""

import atexit
import functools
import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"

_TOPOLOGY = SHARED / "data" / "topology"


@functools.cache
def expectations() -> dict[str, dict[str, Any]]:
    """Return, by dump name, what a prober should find; empty if the dumps are not there."""
    file = _TOPOLOGY / "expected.json"
    if not file.exists():
        return {}
    dumps: dict[str, dict[str, Any]] = json.loads(file.read_text())["dumps"]
    return {name: dump["expect"] for name, dump in dumps.items()}


def dump_names() -> list[str]:
    """Return the names of all dumps."""
    return sorted(expectations())


@functools.cache
def unpacked(name: str) -> Path:
    """Return the root directory of a dump, unpacked once for the whole run; skips the test if there is none.

    Links may dangle. The filter, which Python has from 3.11.4 on, refuses all that would lead out of the directory.
    """
    tarball = _TOPOLOGY / f"{name}.tar.xz"
    if not tarball.exists():
        pytest.skip(f"{tarball}: recorded machine not there")
    root = _scratch() / name
    with tarfile.open(tarball) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(root)
    return root


@functools.cache
def _scratch() -> Path:
    # Thousands of tiny files: in memory, where there is such a file system, they cost a third of the time.
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="dradriver-recorded-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
