"""The process of the crash tests: works on a whole node, and kills itself at a given point of that work.

It counts the points before and after everything that outlives it: methods of steps, commits of the journal, every
change of the file system by `os`, and answers. All hooks are here; what they wrap is as it is in a daemon.

One interpreter serves many cases: for each line on its standard input, a case in JSON, it forks before it has ever had
a thread or opened a file, and the child is the process that works and dies. It prints one line for each: the wait
status, and the points that the child passed where it came to its end.
"""

import json
import os
import resource
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dradriver.backend import Backend, HostStep
from dradriver.engine import JournalError
from dradriver_fake.boards import boards
from wholenode import BACKENDS, Instance, WholeNode

CHANGES = ("open", "write", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "fsync")


class Points:
    """Counts points, and kills the process at one of them."""

    def __init__(self, fatal: int) -> None:
        self._fatal = fatal
        self._lock = threading.Lock()
        self.names: list[str] = []

    def reach(self, name: str) -> None:
        """Pass a point, or never come back."""
        with self._lock:
            self.names.append(name)
            if len(self.names) == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()

    def around(self, owner: Any, name: str, where: str, counts: Callable[..., bool] | None = None) -> None:
        """Put a point before and after each call of a function; `counts` says which of its calls are meant."""
        real = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            if counts and not counts(*args, **options):
                return real(*args, **options)
            self.reach(f"before {where}")
            try:
                return real(*args, **options)
            finally:
                self.reach(f"after {where}")

        setattr(owner, name, watched)


def watch(points: Points, backends: Sequence[type[Backend[Any, Any]]] = BACKENDS) -> None:
    """Put points around all that outlives the process."""
    for backend in backends:
        for step in backend.step_types:
            if issubclass(step, HostStep):
                for verb in ("apply", "revert", "observe"):
                    points.around(step, verb, f"{verb} of {step.__name__}")
    for name in CHANGES:
        creates = (lambda _, flags, *rest, **more: bool(flags & os.O_CREAT)) if name == "open" else None
        points.around(os, name, f"os.{name}", creates)

    class Connection(sqlite3.Connection):
        writes = False

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            self.writes = sql == "BEGIN IMMEDIATE" or (self.writes and not sql.startswith("BEGIN"))
            if sql != "COMMIT" or not self.writes:
                return super().execute(sql, *parameters)
            points.reach("before commit")
            try:
                return super().execute(sql, *parameters)
            finally:
                points.reach("after commit")

    setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))  # noqa: B010 - a hook is no assignment


def shift_clock(seconds: float) -> None:
    """Let the wall clock jump."""
    now, now_ns = time.time, time.time_ns
    setattr(time, "time", lambda: now() + seconds)  # noqa: B010 - a hook is no assignment
    setattr(time, "time_ns", lambda: now_ns() + int(seconds * 1e9))  # noqa: B010


def say(node: WholeNode, points: Points, what: list[Any]) -> None:
    """Give an answer: from then on the kubelet counts on it."""
    points.reach("before answer")
    with (node.root / "answers").open("a") as file:
        file.write(json.dumps(what, default=list) + "\n")
    points.reach("after answer")


def work(case: dict[str, Any]) -> list[str]:
    """Do what a case asks for; return the points that were passed."""
    node = WholeNode(Path(case["root"]), grouped=case["grouped"], **case["options"])
    points = Points(case.get("fatal", 0))
    watch(points)
    if "file_limit" in case:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (case["file_limit"],) * 2)
    try:
        instance = Instance(node).activate()
    except JournalError as error:
        say(node, points, ["start", "", "", str(error)])
        return points.names
    for verb, driver, names, *clock in case["work"]:
        if clock:
            shift_clock(clock[0])
        answers: dict[str, Any] = getattr(instance, verb)(driver, *names)
        for name, answer in answers.items():
            devices = answer and not isinstance(answer, str)
            told = [list(device.cdi_ids) for device in answer] if devices else answer
            say(node, points, [verb, driver, name, told])
    if case.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    return points.names


def serve(work: Callable[[dict[str, Any]], list[str]]) -> None:
    """Serve cases until the end of the input."""
    boards()  # read once for all children
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(reading)
                names = work(json.loads(line))
                with os.fdopen(writing, "w") as pipe:
                    pipe.write(json.dumps(names))
                status = 0
            except BaseException as error:  # noqa: BLE001 - the other side must see it
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
            finally:
                os._exit(status)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            passed = pipe.read()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{status} {passed or '[]'}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(work)
