"""The socket of a container runtime: bytes in, bytes out, and no wait without a limit."""

import contextlib
import os
import select
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Final

CONNECT_SECONDS: Final = 5.0
SEND_SECONDS: Final = 2.0
"""How long the runtime may take to read: as long as it waits for an answer."""

_READ = 65536


class WireError(Exception):
    """The connection is of no more use; the message says why."""


class Wire:
    """A connection. One thread receives, any sends."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        connected.setblocking(False)
        self._socket = connected
        self._sending = threading.Lock()
        self._closed = False
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)

    def receive(self, seconds: float) -> bytes:
        """Return what has come, empty where nothing came within that time. Raises WireError at the end."""
        if not self._readable.poll(max(0.0, seconds) * 1000):
            return b""
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise WireError(f"the connection broke: {error.strerror}") from None
        if not data:
            raise WireError("the container runtime closed the connection")
        return data

    def send(self, data: bytes) -> None:
        """Send all of it. Raises WireError, after which nothing more can be sent."""
        with self._sending:
            if self._closed:
                raise WireError("the connection is closed")
            try:
                self._send(data)
            except (OSError, WireError) as error:
                # Half a frame may be out: nothing behind it would be understood.
                self._shut()
                raise WireError(f"nothing can be sent: {error}") from None

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        end = time.monotonic() + SEND_SECONDS
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        while view:
            try:
                sent = self._socket.send(view)
                view = view[sent:]
            except BlockingIOError:
                left = end - time.monotonic()
                if left <= 0 or not writable.poll(left * 1000):
                    raise WireError("the container runtime does not read") from None

    def _shut(self) -> None:
        """Wake up whoever receives; the descriptor stays taken until `close`."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection. For the thread that receives."""
        with self._sending:
            self._closed = True
            self._socket.close()


def dial(path: Path) -> Wire:
    """Connect to the socket at a path. Raises FileNotFoundError where none is there, other OSErrors, WireError."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise WireError(f"{path} is no socket")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(CONNECT_SECONDS)
        made.connect(os.fspath(path))
    except BaseException:
        made.close()
        raise
    return Wire(made)


def inherited(descriptor: str) -> Wire:
    """Take over a connected socket that was left to this process. Raises WireError where it is none."""
    try:
        number = int(descriptor)
        if number < 0 or not stat.S_ISSOCK(os.fstat(number).st_mode):
            raise WireError(f"file descriptor {number} is no socket")
        os.set_inheritable(number, False)
        return Wire(socket.socket(fileno=number))
    except (ValueError, OverflowError):
        raise WireError("it is no number of a file descriptor") from None
    except OSError as error:
        raise WireError(f"file descriptor {number}: {error.strerror}") from None
