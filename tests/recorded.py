"""Recorded machines: sysfs and procfs trees of real hosts, beside the repository, with expected readings."""

import atexit
import contextlib
import fcntl
import functools
import json
import os
import shutil
import tarfile
import tempfile
import uuid
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
    with (_scratch() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            draft = _scratch() / f"{name}.draft"
            with tarfile.open(tarball) as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(draft)
            draft.rename(root)
    return root


@functools.cache
def _scratch() -> Path:
    """Return a directory that all workers of a run share; the last one to end removes it."""
    # Thousands of tiny files: in memory, where there is such a file system, they cost a third of the time.
    memory = Path("/dev/shm")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
    directory = (memory if memory.is_dir() else Path(tempfile.gettempdir())) / f"dradriver-recorded-{run}"
    directory.mkdir(mode=0o700, exist_ok=True)
    users = os.open(directory / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(users, fcntl.LOCK_SH)
    atexit.register(_leave, directory, users, os.getpid())
    return directory


def _leave(directory: Path, users: int, process: int) -> None:
    if os.getpid() != process:  # a child that was forked
        return
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
