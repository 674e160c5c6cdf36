"""The directory that stands for a node: `sys` and `proc` as the kernel shows them, and `fake` with the hardware behind.

    fake/node.json          the facts, and which file they come from
    fake/options.json      the options of the configuration
    fake/faults.yaml        faults by command (see docs/fake.md); absent where there are none
    fake/driver/            what every container with a GPU gets
    fake/gpus/<name>/       one for each GPU on the bus, with what was created on it
    fake/nics/<name>/       one for each function of a card, with what was done to it
    fake/complaints         what the hardware was asked for and must never be: one line each

All that is created is a file that names its id. Files appear and disappear whole, and operations of any number of
threads and processes come one after the other.
"""

import contextlib
import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from dradriver.backend import BackendError, UnavailableError
from dradriver_fake.facts import NodeFacts
from dradriver_fake.options import FakeOptions
from dradriver_fake.tree import new_boot

KINDS = ("gpus", "nics")


class HardwareError(BackendError):
    """The hardware refuses. `code` is the word that the vendor's library has for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message}: {code}")
        self.code = code


class Hardware:
    """The hardware below the root directory of a fake node."""

    def __init__(self, root: Path) -> None:
        """`root` is the host root; nothing is read yet."""
        self.root = root
        self.directory = root / "fake"

    @cached_property
    def facts(self) -> NodeFacts:
        """The facts of the node. Raises UnavailableError where the directory is that of none."""
        try:
            return msgspec.convert(
                json.loads((self.directory / "node.json").read_bytes())["facts"], NodeFacts
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnavailableError(f"{self.directory}: no fake node is here: {error}") from None

    @cached_property
    def options(self) -> FakeOptions:
        """How it is offered. Raises UnavailableError."""
        try:
            return msgspec.json.decode((self.directory / "options.json").read_bytes(), type=FakeOptions)
        except (OSError, ValueError) as error:
            raise UnavailableError(f"{self.directory}: no options: {error}") from None

    def thing(self, kind: str, name: str) -> Path:
        """Return the directory of a GPU ("gpus") or a function of a card ("nics")."""
        return self.directory / kind / name

    def present(self, kind: str) -> frozenset[str]:
        """Return the names of what is on the bus: a directory that is taken away is a device that is pulled out."""
        try:
            return frozenset(entry.name for entry in os.scandir(self.directory / kind) if entry.is_dir())
        except FileNotFoundError:
            return frozenset()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all others out, of this process and of any other."""
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def complain(self, error: HardwareError) -> HardwareError:
        """Write down what should never have been asked for, and return the error to raise."""
        line = f"{time.strftime('%H:%M:%S')} {error}\n"
        with (self.directory / "complaints").open("a") as file:
            file.write(line)
        return error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def read_all(directory: Path, prefix: str) -> dict[int, dict[str, Any]]:
    """Return the contents of the files `<prefix>-<id>.json` in a directory, by id; nothing where it is gone."""
    found: dict[int, dict[str, Any]] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in directory.glob(f"{prefix}-*.json"):
            with contextlib.suppress(FileNotFoundError):
                found[int(path.stem.rpartition("-")[2])] = json.loads(path.read_text())
    return dict(sorted(found.items()))


def free_id(used: Mapping[int, Any], first: int = 1) -> int:
    """Return the lowest id that is free: like the vendor's, ids come back soon after they were given up."""
    number = first
    while number in used:
        number += 1
    return number


def leftovers(root: Path) -> tuple[str, ...]:
    """Return what is created on a fake node now, one line each. With no claim prepared, each is a leak."""
    found = []
    for kind in KINDS:
        for path in sorted((root / "fake" / kind).glob("*/*.json")):
            with contextlib.suppress(FileNotFoundError):
                found.append(f"{path.parent.name}/{path.stem} {path.read_text()}")
    return tuple(found)


def complaints(root: Path) -> tuple[str, ...]:
    """Return what the hardware of a fake node had to refuse though it should never have been asked."""
    try:
        return tuple((root / "fake" / "complaints").read_text().splitlines())
    except FileNotFoundError:
        return ()


def reboot(root: Path) -> None:
    """Reboot a fake node whose daemon has ended: another boot id, and nothing of what was created is left."""
    with Hardware(root).locked():
        for kind in KINDS:
            for path in (root / "fake" / kind).glob("*/*.json"):
                path.unlink(missing_ok=True)
        new_boot(root)


def pull_out(root: Path, kind: str, name: str) -> None:
    """Take a device out of a fake node, with all that was created on it."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(root / "fake" / kind / name)


def put_in(root: Path, kind: str, name: str) -> None:
    """Put a device back into a fake node."""
    (root / "fake" / kind / name).mkdir(exist_ok=True)
