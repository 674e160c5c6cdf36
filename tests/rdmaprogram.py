"""The program `rdma` of iproute2, with the RDMA side of these tests in place of a kernel's."""

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from netlinkside import RdmaSide, answers

NEEDS_PROGRAM = pytest.mark.skipif(
    not shutil.which("rdma") or not shutil.which("gcc"), reason="there is no program rdma, or no C compiler"
)

_SOURCE = Path(__file__).parent / "rdma_side" / "socket.c"


class SideOfPrograms(RdmaSide):
    """The side of devices that a program moves: file descriptors are the program's."""

    pid = 0

    def namespace_of(self, fd: int) -> int:
        return Path(f"/proc/{self.pid or 'self'}/fd/{fd}").stat().st_ino


@contextlib.contextmanager
def program(side: SideOfPrograms, directory: Path) -> Iterator["Program"]:
    """Give the program, and end what answers it."""
    library, path = directory / "side.so", directory / "side"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True, timeout=60)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        made = Program(side, listening, {"LD_PRELOAD": str(library), "RDMA_SIDE": str(path)})
        thread = threading.Thread(target=made.serve)
        thread.start()
        try:
            yield made
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


class Program:
    """Runs `rdma`."""

    def __init__(self, side: SideOfPrograms, listening: socket.socket, environment: dict[str, str]) -> None:
        self._side = side
        self._listening = listening
        self._environment = environment

    def run(self, *words: str) -> str:
        """Return what it says."""
        done = subprocess.run(
            ["rdma", *words],
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self) -> None:
        """Answer its connections, each in a thread, as it has several at a time."""
        threads = []
        with contextlib.suppress(OSError):
            while True:
                taken, _ = self._listening.accept()
                threads.append(threading.Thread(target=self._answer, args=(taken,)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def _answer(self, taken: socket.socket) -> None:
        credentials = taken.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self._side.pid = struct.unpack("=iII", credentials)[0]
        with taken, contextlib.suppress(BrokenPipeError):
            while message := taken.recv(1 << 16):
                for answer in answers(self._side, message, self._side.home):
                    taken.send(answer)
        self._side.pid = 0
