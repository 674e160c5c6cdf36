"""Test hardware for GPUs: a `libnvidia-ml.so.1` in C that serves facts, and the levers on it.

The library (tests/nvml_stub) is built with gcc, once for each driver that it stands for, and loads into the real
binding or into any process. All that it knows is in one directory: what the tests write there takes effect in
running processes at once. The state file is the hardware: MIG mode and instances, shared by all processes.
"""

import contextlib
import fcntl
import os
import platform
import shutil
import struct
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from nvmlbuild import LIBRARY, build, missing_in
from nvmlfacts import Gpu, Node, Value
from waiting import PATIENCE

MULTIARCH = f"{platform.machine()}-linux-gnu"

# Events, as nvml.h has them.
SINGLE_BIT_ECC, DOUBLE_BIT_ECC, XID, MIG_CHANGE = 0x1, 0x2, 0x8, 0x100
UNAVAILABLE, RECOVERY_ACTION = 0x4000, 0x8000


# --- the hardware's state


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance: the memory slices from `start` on."""

    id: int
    profile: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance, which is the MIG device at `index`."""

    index: int
    gpu_instance: int
    id: int
    profile: int
    start: int
    size: int
    compute_mode: int


@dataclass(frozen=True, slots=True)
class GpuState:
    """What was set on a GPU, and its instances; equal before and after work that leaves nothing behind."""

    mig: bool
    mig_pending: bool
    compute_mode: int
    persistence: int
    gpu_instances: tuple[GpuInstance, ...]
    compute_instances: tuple[ComputeInstance, ...]


_MAGIC = b"NVMLSTB1"
_MAX_FAULTS, _MAX_GPUS, _INSTANCES = 256, 64, 16
_HEADER = struct.Struct(f"8sII{_MAX_FAULTS}I")
_GPU = struct.Struct("4I")
_GI = struct.Struct("5I")  # live, generation, profile, start, size
_CI = struct.Struct("8I")  # live, generation, GPU instance, id, profile, start, size, compute mode
_GPU_SIZE = _GPU.size + _INSTANCES * (_GI.size + _CI.size)
_GENERATION, _LOG_FLAG = 8, 12
_HITS = 16


def _offset(slot: int) -> int:
    return _HEADER.size + slot * _GPU_SIZE


def _parse(data: bytes) -> GpuState:
    mig, compute_mode, persistence, _ = _GPU.unpack_from(data)
    after = _GPU.size + _INSTANCES * _GI.size
    gpu_instances = [
        GpuInstance(number, *rest)
        for number, (live, _, *rest) in enumerate(_GI.iter_unpack(data[_GPU.size : after]))
        if live
    ]
    compute_instances = [
        ComputeInstance(index, *rest)
        for index, (live, _, *rest) in enumerate(_CI.iter_unpack(data[after:]))
        if live
    ]
    return GpuState(
        mig=mig & 0xFF == 1,
        mig_pending=mig >> 8 == 1,
        compute_mode=compute_mode,
        persistence=persistence,
        gpu_instances=tuple(gpu_instances),
        compute_instances=tuple(compute_instances),
    )


# --- faults and calls


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the library recorded it. `what` is returned, waits or dies."""

    nanoseconds: int
    pid: int
    function: str
    slot: int
    what: str
    code: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong in a function of the library, or in all that begin with a name that ends in `*`.

    From the `first` matching call on it hits `count` calls, 0 for all; with `begin` and `end` only calls between these
    times (seconds since 1970). `action`: fail CODE, late CODE (the work is done), sleep MS, hang FILE, kill, killafter.
    """

    function: str
    action: str
    argument: str = ""
    slot: int = -1
    first: int = 1
    count: int = 1
    begin: float = 0.0
    end: float = 0.0

    def line(self) -> str:
        """Return the line of the faults file."""
        when = f"{self.begin:.6f} {self.end:.6f}"
        return f"{self.function} {self.slot} {self.first} {self.count} {when} {self.action} {self.argument}".rstrip()


class Stub:
    """A node's driver and GPUs in a directory.

    `library` is what to load; `install` puts one into a driver root. Everything else changes the hardware below the
    feet of whoever uses it.
    """

    def __init__(self, directory: Path, node: Node, *, missing: Collection[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._node = node
        self._faults: list[Fault] = []
        self._missing = missing_in(node.driver) | frozenset(missing)
        (directory / "events").touch()
        (directory / "faults").touch()
        (directory / "state").write_bytes(
            _HEADER.pack(_MAGIC, 0, 0, *([0] * _MAX_FAULTS)) + bytes(_MAX_GPUS * _GPU_SIZE)
        )
        for gpu in node.gpus:
            self._start(gpu)
        self._write_facts()
        self.library = self._copy_to(directory / LIBRARY)

    def _copy_to(self, path: Path) -> Path:
        """Copy the library: the dynamic loader takes one file for one library, wherever it is linked."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name("nvml-stub.new")
        shutil.copyfile(build(self._missing), new)
        new.rename(path)  # a process that has the library loaded keeps the file that it has
        return path

    def install(self, root: Path, directory: str = f"usr/lib/{MULTIARCH}") -> Path:
        """Put the library into a driver root as drivers do, with the version in the name and a link to it."""
        library = self._copy_to(root / directory / f"libnvidia-ml.so.{self.node.driver}")
        link = library.with_name(LIBRARY)
        link.unlink(missing_ok=True)
        link.symlink_to(library.name)
        library.with_name("nvml-stub").write_text(f"{self.directory.absolute()}\n")
        return link

    # --- facts

    @property
    def node(self) -> Node:
        """The node as it is now."""
        return self._node

    def _write_facts(self) -> None:
        file = self.directory / "facts.new"
        file.write_text(self._node.text())
        file.rename(self.directory / "facts")
        self._tell()

    def _tell(self) -> None:
        """Have processes read facts and faults again, waiting ones too."""
        with self._state() as fd:
            (generation,) = struct.unpack("I", os.pread(fd, 4, _GENERATION))
            os.pwrite(fd, struct.pack("I", generation + 1), _GENERATION)
        self._append("- 0 0 - -")

    def become(self, node: Node) -> None:
        """Make it another node: other facts, another driver (for the library, see `install`), GPUs more or less.

        Sessions of NVML that are open keep their GPUs and the order of them. State stays with the slots.
        """
        new = {gpu.slot for gpu in node.gpus} - {gpu.slot for gpu in self._node.gpus}
        for gpu in node.gpus:
            if gpu.slot in new:
                self._start(gpu)
        self._node = node
        self._write_facts()

    def change(self, index: int, **facts: Value | None) -> None:
        """Change facts of a GPU, `_` for `-`; None takes a fact away, which makes its query unsupported."""
        self.replace(index, self._node.gpus[index].having(**facts))

    def replace(self, index: int, gpu: Gpu) -> None:
        """Put these facts in the place of a GPU's."""
        self.become(self._node.with_gpu(index, gpu))

    def answer(self, index: int, **answers: int) -> None:
        """Have functions answer a code for this GPU, from now on."""
        self.replace(index, self._node.gpus[index].answering(**answers))

    # --- state

    @contextlib.contextmanager
    def _state(self) -> Iterator[int]:
        fd = os.open(self.directory / "state", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)

    def _start(self, gpu: Gpu) -> None:
        """Give a GPU the state of one that has just been started."""
        mode = int(gpu.facts.get("mig-at-start", 0)) * 0x101
        persistence = int(gpu.facts.get("persistence-at-start", 0))
        with self._state() as fd:
            os.pwrite(fd, _GPU.pack(mode, 0, persistence, 0), _offset(gpu.slot))
            for place in range(_INSTANCES):
                os.pwrite(fd, struct.pack("I", 0), _offset(gpu.slot) + _GPU.size + place * _GI.size)
                after = _GPU.size + _INSTANCES * _GI.size
                os.pwrite(fd, struct.pack("I", 0), _offset(gpu.slot) + after + place * _CI.size)

    def state(self) -> tuple[GpuState, ...]:
        """Return the state of every GPU, in the order of the node."""
        data = (self.directory / "state").read_bytes()
        return tuple(
            _parse(data[_offset(gpu.slot) : _offset(gpu.slot) + _GPU_SIZE]) for gpu in self._node.gpus
        )

    def set_mig(self, index: int, *, enabled: bool) -> None:
        """Have MIG mode on or off, without the driver's permission."""
        with self._state() as fd:
            os.pwrite(fd, struct.pack("I", int(enabled) * 0x101), _offset(self._node.gpus[index].slot))

    def reset(self, index: int) -> None:
        """Reset a GPU: instances are gone, the pending MIG mode is current, the compute mode is the default."""
        gpu = self._node.gpus[index]
        pending = int(self.state()[index].mig_pending)
        self._start(gpu.having(mig_at_start=pending))

    def reboot(self) -> None:
        """Reboot: as a reset of all; MIG mode survives on Ampere only, where it is kept on the board."""
        for index, gpu in enumerate(self._node.gpus):
            if int(gpu.facts.get("mig-without-reset", 0)):
                self._start(gpu)
            else:
                self.reset(index)

    # --- events

    def _append(self, line: str) -> None:
        fd = os.open(self.directory / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)

    def event(self, index: int, kind: int, data: int = 0, *, instance: tuple[int, int] | None = None) -> None:
        """Send an event of a GPU, or of one of its instances (GPU instance and compute instance id)."""
        gpu_instance, compute_instance = instance or ("-", "-")
        uuid = self._node.gpus[index].uuid
        self._append(f"{uuid} {kind:#x} {data} {gpu_instance} {compute_instance}")

    def xid(self, index: int, number: int, *, instance: tuple[int, int] | None = None) -> None:
        """Send an XID."""
        self.event(index, XID, number, instance=instance)

    def lose(self, index: int) -> None:
        """Have a GPU fall off the bus: XID 79, then nothing of it answers."""
        self.xid(index, 79)
        self.change(index, lost=1)

    def find(self, index: int) -> None:
        """Have a lost GPU back."""
        self.change(index, lost=None)

    def ask_recovery(self, index: int, action: int) -> None:
        """Have the driver ask for a recovery: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset."""
        self.change(index, recovery_action=action)
        self.event(index, RECOVERY_ACTION, action)

    # --- faults

    def _write_faults(self) -> None:
        file = self.directory / "faults.new"
        file.write_text("".join(f"{fault.line()}\n" for fault in self._faults))
        file.rename(self.directory / "faults")
        with self._state() as fd:
            os.pwrite(fd, bytes(4 * _MAX_FAULTS), _HITS)
        self._tell()

    def faults(self, *faults: Fault) -> None:
        """Have these faults and no others; their calls are counted from now on."""
        self._faults = list(faults)
        self._write_faults()

    def fail(self, function: str, code: int, *, index: int = -1, first: int = 1, count: int = 1) -> None:
        """Have calls of a function fail with a code: `count` of them (0 for all) from the `first` on."""
        self.faults(*self._faults, Fault(function, "fail", str(code), self._slot(index), first, count))

    @contextlib.contextmanager
    def hanging(self, function: str, *, index: int = -1) -> Iterator[None]:
        """Have calls of a function hang for as long as the context lasts."""
        handle, name = tempfile.mkstemp(prefix="hang-", dir=self.directory)
        os.close(handle)
        fault = Fault(function, "hang", Path(name).name, self._slot(index), count=0)
        self.faults(*self._faults, fault)
        try:
            yield
        finally:
            Path(name).unlink()
            self.faults(*(other for other in self._faults if other != fault))

    def _slot(self, index: int) -> int:
        return -1 if index < 0 else self._node.gpus[index].slot

    def hits(self) -> tuple[int, ...]:
        """Return how many calls each fault has matched."""
        data = (self.directory / "state").read_bytes()
        return struct.unpack_from(f"{len(self._faults)}I", data, _HITS)

    # --- calls

    def record(self, *, calls: bool = True) -> None:
        """Record calls from now on, or no more."""
        with self._state() as fd:
            os.pwrite(fd, struct.pack("I", int(calls)), _LOG_FLAG)

    def calls(self) -> list[Call]:
        """Return the calls recorded, of all processes."""
        file = self.directory / "calls"
        text = file.read_text() if file.exists() else ""
        calls = []
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # it is being written
            nanoseconds, pid, function, slot, what, code = line.split()
            calls.append(Call(int(nanoseconds), int(pid), function, int(slot), what, int(code)))
        return calls

    def wait_for_call(self, function: str, what: str = "waits", seconds: float = PATIENCE) -> Call:
        """Wait until a call is recorded, by default one that a fault holds up."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for call in self.calls():
                if (call.function, call.what) == (function, what):
                    return call
            time.sleep(0.005)
        raise TimeoutError(f"no call of {function} that {what}")
