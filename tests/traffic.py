"""Real traffic between two network namespaces: whether it flows, and how fast."""

import contextlib
import socket
import threading
import time
from pathlib import Path

from dradriver_nic.netns import inside

_BLOCK = 64 << 10
_WARM_SECONDS = 0.3


def reaches(source: Path, to: Path, address: str, port: int = 5001) -> str:
    """Send a word by TCP from one namespace to an address of another; return from which address it came."""
    with inside(to, lambda: socket.create_server((address, port), family=_family(address))) as server:
        server.settimeout(10)
        with inside(source, lambda: socket.create_connection((address, port), timeout=10)) as client:
            taken, peer = server.accept()
            with taken:
                client.sendall(b"hello")
                assert taken.recv(16) == b"hello"
                return str(peer[0])


def rate(source: Path, to: Path, address: str, seconds: float = 2.0, port: int = 5002) -> float:
    """Return how many bits a second of payload pass by TCP from one namespace to an address of another."""
    with contextlib.ExitStack() as stack:
        server = inside(to, lambda: socket.create_server((address, port), family=_family(address)))
        stack.enter_context(server)
        client = stack.enter_context(
            inside(source, lambda: socket.create_connection((address, port), timeout=10))
        )
        taken, _ = server.accept()
        stack.enter_context(taken)
        taken.settimeout(10)
        stop = threading.Event()
        sender = threading.Thread(target=_send, args=(client, stop))
        sender.start()
        try:
            return _received(taken, seconds)
        finally:
            stop.set()
            taken.close()
            sender.join()


def _send(client: socket.socket, stop: threading.Event) -> None:
    block = bytes(_BLOCK)
    with contextlib.suppress(OSError):
        while not stop.is_set():
            client.send(block)


def _received(taken: socket.socket, seconds: float) -> float:
    buffer = bytearray(4 * _BLOCK)
    start = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < start:
        taken.recv_into(buffer)
    start, count = time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < seconds:
        count += taken.recv_into(buffer)
    return count * 8 / elapsed


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
