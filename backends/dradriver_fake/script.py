"""The fault script at work: which faults are there now, and what happens at an operation.

The script is what the configuration says and, after it, what `fake/faults.yaml` says. How often each fault was met, and
since when it is known, is kept in `fake/progress.json`, so that a daemon that was killed by one goes on behind it. A
file that is written anew begins anew.
"""

import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dradriver.backend import BackendError, ConfigError, TransientError, UnavailableError
from dradriver_fake.faults import Deed, Fault, Point, decode_faults, encode_faults
from dradriver_fake.hardware import Hardware, write_json
from dradriver_fake.yamlfile import parse_yaml

FILE = "faults.yaml"

_MESSAGES = {
    "vanish": "is not on the bus",
    "sick": "is sick, as the fault script says",
    "odd": "answers oddly: what its driver tells of it makes no sense",
    "unready": "is not ready yet, as the fault script says",
    "fail": "fails, as the fault script says",
    "busy": "is busy, as the fault script says",
}


class _Run(msgspec.Struct):
    """How far a fault is: known since, met how often, started when. Seconds of the machine's monotonic clock."""

    since: float
    seen: int = 0
    started: float | None = None


@dataclass(frozen=True, slots=True)
class Ailment:
    """A state that is there now."""

    fault: Fault

    @property
    def does(self) -> Deed:
        """What it does."""
        return self.fault.does

    @property
    def message(self) -> str:
        """What is wrong, for people."""
        return self.fault.message or _MESSAGES[self.fault.does]


@dataclass(frozen=True, slots=True)
class Ailments:
    """All states that are there now."""

    every: tuple[Ailment, ...] = ()

    def of(self, names: Sequence[str], does: Deed) -> Ailment | None:
        """Return the first ailment of that kind of what goes by these names."""
        return next((one for one in self.every if one.does == does and one.fault.concerns(names)), None)


class Script:
    """The faults of one fake node."""

    def __init__(self, hardware: Hardware, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is read yet. `clock` gives seconds since the machine was started, the same for all processes."""
        self._hardware = hardware
        self._clock = clock
        self._file = hardware.directory / FILE
        self._read: tuple[object, tuple[tuple[str, Fault], ...]] | None = None

    def ailments(self) -> Ailments:
        """Return the states that are there now. Raises UnavailableError where the file is wrong."""
        faults = self._faults()
        if not faults:
            return Ailments()
        runs = self._runs(faults)
        now = self._clock()
        there = [
            Ailment(fault) for key, fault in faults if fault.is_state and self._is_on(fault, runs[key], now)
        ]
        return Ailments(tuple(there))

    def from_file(self) -> tuple[Fault, ...]:
        """Return the faults of the file. Raises UnavailableError where it is wrong."""
        return tuple(fault for _, fault in self._faults()[len(self._hardware.options.faults) :])

    def reach(self, point: Point, names: Sequence[str]) -> None:
        """Let happen what happens at an operation on what goes by these names.

        Raises UnavailableError, TransientError or BackendError; comes back late; or kills the process.
        """
        faults = self._faults()
        if not any(fault.point == point and fault.concerns(names) for _, fault in faults):
            return
        for key, fault in self._count(faults, point, names):
            self._do(key, fault, point, names)

    def signature(self) -> object:
        """Return what differs once the script, or what is there of it, is another."""
        try:
            return self._stamp(), self.ailments()
        except BackendError as error:
            return self._stamp(), str(error)

    def _count(
        self, faults: Sequence[tuple[str, Fault]], point: Point, names: Iterable[str]
    ) -> list[tuple[str, Fault]]:
        """Count the operation; return the faults that it is to meet."""
        met = []
        with self._hardware.locked():
            runs = self._load(faults)
            now = self._clock()
            for key, fault in faults:
                if fault.point != point or not fault.concerns(names):
                    continue
                run = runs[key]
                run.seen += 1
                if fault.is_state:
                    if run.seen == fault.nth:
                        run.started = now
                elif self._is_on(fault, run, now) and fault.nth <= run.seen < fault.nth + (
                    fault.times or 1 << 40
                ):
                    met.append((key, fault))
            self._save(runs)
        return met

    def _do(self, key: str, fault: Fault, point: Point, names: Sequence[str]) -> None:
        message = f"{names[0]}: {point}: {fault.message or _MESSAGES.get(fault.does, '')}"
        match fault.does:
            case "fail" if point in {"probe", "observe"}:
                raise UnavailableError(message)
            case "fail":
                raise BackendError(message)
            case "busy":
                raise TransientError(message)
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                end = self._clock() + (fault.seconds if fault.seconds is not None else 1e9)
                while self._clock() < end and any(key == other for other, _ in self._faults()):
                    time.sleep(0.02)

    @staticmethod
    def _is_on(fault: Fault, run: _Run, now: float) -> bool:
        if fault.is_state and fault.at:
            if run.started is None:
                return False
            begin = run.started
        else:
            begin = run.since
        begin += fault.after
        lasts = None if fault.does == "hang" else fault.seconds
        return begin <= now and (lasts is None or now < begin + lasts)

    def _stamp(self) -> object:
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _faults(self) -> tuple[tuple[str, Fault], ...]:
        """Return the script, each fault with a key. Raises UnavailableError."""
        stamp = self._stamp()
        if self._read is None or self._read[0] != stamp:
            try:
                self._read = stamp, tuple(self._keyed(stamp))
            except (ConfigError, OSError) as error:
                raise UnavailableError(f"the fault script cannot be read: {error}") from None
        return self._read[1]

    def _keyed(self, stamp: object) -> Iterable[tuple[str, Fault]]:
        yield from _with_keys(self._hardware.options.faults, "configuration")
        if stamp is not None:
            with contextlib.suppress(FileNotFoundError):
                faults = decode_faults(parse_yaml(self._file.read_bytes(), str(self._file)), str(self._file))
                yield from _with_keys(faults, f"file {stamp}")

    def _runs(self, faults: Sequence[tuple[str, Fault]]) -> dict[str, _Run]:
        """Return how far each fault is, and keep it where one is new."""
        try:
            runs = self._stored()
        except FileNotFoundError:
            runs = {}
        now = self._clock()
        if all(key in runs and runs[key].since <= now for key, _ in faults):
            return runs
        with self._hardware.locked():
            runs = self._load(faults)
            self._save(runs)
            return runs

    def _stored(self) -> dict[str, _Run]:
        return msgspec.json.decode(self._progress.read_bytes(), type=dict[str, _Run])

    def _load(self, faults: Sequence[tuple[str, Fault]]) -> dict[str, _Run]:
        """Return how far each fault is, new ones and those of an earlier start of the machine at the beginning."""
        now = self._clock()
        try:
            stored = self._stored()
        except FileNotFoundError:
            stored = {}
        known = {key: run for key, run in stored.items() if run.since <= now}
        return {key: known.get(key, _Run(now)) for key, _ in faults}

    def _save(self, runs: dict[str, _Run]) -> None:
        write_json(self._progress, msgspec.to_builtins(runs))

    @property
    def _progress(self) -> Path:
        return self._hardware.directory / "progress.json"


def _with_keys(faults: Iterable[Fault], source: str) -> Iterable[tuple[str, Fault]]:
    for index, fault in enumerate(faults):
        text = json.dumps([source, index, msgspec.to_builtins(fault)])
        yield hashlib.sha256(text.encode()).hexdigest()[:16], fault


def set_faults(root: Path, faults: Sequence[Fault]) -> None:
    """Let these faults be there on a fake node from now on, beside those of the configuration; none for an end."""
    file = root / "fake" / FILE
    value: Any = encode_faults(faults)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text("".join(f"- {json.dumps(one)}\n" for one in value))
    temporary.rename(file)


def set_fault(root: Path, device: str, does: Deed, **fields: Any) -> None:
    """Let one fault be there on a fake node from now on, in place of others that were set so.

    `fields` are those of `Fault` as they stand in YAML (`at`, `nth`, `times`, `after`, `for`). Raises ConfigError.
    """
    set_faults(root, decode_faults([{"device": device, "does": does, **fields}], "faults"))


def clear_faults(root: Path) -> None:
    """End all faults that were set by `set_fault` or by a file."""
    (root / "fake" / FILE).unlink(missing_ok=True)
