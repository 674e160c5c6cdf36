"""The keeper of MPS control daemons as a process, on the node below a directory."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dradriver_gpu.mps.messages import SOCKET
from waiting import PATIENCE, eventually

RUN = "run/dradriver-gpu/mps"


class KeeperProcess:
    """Keepers of one host root, one after another or beside each other; all log to one file."""

    def __init__(self, root: Path, log: Path) -> None:
        self.root = root
        self._log = log
        self.socket = root / RUN / SOCKET
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *, ready: bool = True) -> subprocess.Popen[bytes]:
        """Start one; wait until it listens where `ready`."""
        told = self.log().count("listening on")
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dradriver_gpu.mps", "--host-root", str(self.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        if ready:
            eventually(lambda: self.log().count("listening on") > told, "a keeper listens")
        return process

    def log(self) -> str:
        """Return what all of them logged."""
        return self._log.read_text() if self._log.exists() else ""

    def told(self, text: str) -> None:
        """Wait until something is logged."""
        eventually(lambda: text in self.log(), f"{text!r} in the log")

    @staticmethod
    def worker(process: subprocess.Popen[bytes]) -> int:
        """Return the process at work of a keeper."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for child in children.read_text().split():
            if "dradriver_gpu.mps" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
        raise AssertionError("a keeper has a process at work")

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """End one in order; return its exit code."""
        process.send_signal(signal.SIGTERM)
        return process.wait(30)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End one by force, as a container's runtime does not: its daemons stay."""
        process.kill()
        process.wait(30)

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            if process.poll() is None:
                self.kill(process)

    def say(self, data: bytes, *, seconds: float = PATIENCE) -> dict[str, Any]:
        """Send bytes and no more; return the answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(self.socket))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := connection.recv(4096):
                    answer += chunk
        return json.loads(answer) if answer else {}

    def ask(self, do: str, name: str, **fields: Any) -> dict[str, Any]:
        """Send a request; return the answer."""
        return self.say(json.dumps({"do": do, "version": 1, "name": name, **fields}).encode() + b"\n")


@contextlib.contextmanager
def keeping(root: Path, log: Path) -> Iterator[KeeperProcess]:
    """Give keepers of a host root, and end them."""
    made = KeeperProcess(root, log)
    try:
        yield made
    finally:
        made.end()
