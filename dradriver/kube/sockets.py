"""Sockets that keep the limits of the request that uses them.

A wait in the kernel lasts `limits.SLICE_SECONDS` at most; between two waits the deadline and the wish to stop are
looked at. That holds for connecting, the TLS handshake, sending and receiving, whatever is above.
"""

import errno
import os
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

from dradriver.kube.limits import SLICE_SECONDS, Limits

T = TypeVar("T")

# A peer that vanished is found by the kernel after half a minute, on idle connections too. Values as client-go has
# them for its own health check (30 s and 15 s), tcp(7).
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)


def _patiently(sock: socket.socket, call: Callable[[], T]) -> T:
    """Make a system call again until it is done or the limits say no."""
    limits = Limits.current()
    if limits is None:
        return call()
    while True:
        sock.settimeout(limits.slice())
        try:
            return call()
        except TimeoutError as error:
            if error.errno == errno.ETIMEDOUT:  # the kernel's word that the peer is gone
                raise
            limits.waited()


def _received(count: int) -> int:
    limits = Limits.current()
    if limits is not None:
        limits.received += count
    return count


def _unsent() -> None:
    limits = Limits.current()
    if limits is not None:
        limits.unsent = True


class PatientSocket(socket.socket):
    """A TCP socket that keeps the limits."""

    def recv_into(self, *args: Any) -> int:
        """Receive into a buffer."""
        return _received(_patiently(self, lambda: super(PatientSocket, self).recv_into(*args)))

    def recv(self, *args: Any) -> bytes:
        """Receive."""
        data = _patiently(self, lambda: super(PatientSocket, self).recv(*args))
        _received(len(data))
        return data

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all."""
        try:
            with memoryview(data) as view, view.cast("B") as rest:
                sent = 0
                while sent < len(rest):
                    sent += _patiently(self, lambda: self.send(rest[sent:], flags))  # noqa: B023 - called at once
        except OSError:
            _unsent()
            raise


class PatientTLSSocket(ssl.SSLSocket):
    """A TLS socket that keeps the limits. OpenSSL goes on where a call was cut short by its timeout."""

    def do_handshake(self, block: bool = False) -> None:
        """Shake hands."""
        _patiently(self, lambda: super(PatientTLSSocket, self).do_handshake(block))

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        """Receive; `recv` and `recv_into` end here."""
        data = _patiently(self, lambda: super(PatientTLSSocket, self).read(size, buffer))
        _received(len(data) if isinstance(data, bytes) else data)
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        """Send some; `sendall` ends here."""
        try:
            return _patiently(self, lambda: super(PatientTLSSocket, self).send(data, flags))
        except OSError:
            _unsent()
            raise


def dial(host: str, port: int) -> PatientSocket:
    """Return a connection to the first address of a host that answers; each gets its share of the time left.

    Raises OSError: socket.gaierror of the resolver, whose own limits hold (resolv.conf(5)), or the last address's.
    """
    addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"no address of {host}")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = PatientSocket(family, kind, protocol)
        try:
            for option in _OPTIONS:
                sock.setsockopt(*option)
            _reach(sock, address, len(addresses) - tried)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    try:
        raise failure
    finally:
        del failure  # an exception that its own frame holds is freed late, and with it the socket


def _reach(sock: PatientSocket, address: Any, share: int) -> None:
    limits = Limits.current()
    if limits is None:
        raise RuntimeError("a connection is made within limits only")
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code == errno.EINPROGRESS:
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        with limits.within(limits.left / share, "connection"):
            while not poller.poll(limits.slice() * 1000):
                limits.waited()
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    sock.settimeout(SLICE_SECONDS)  # TLS does not take over a socket that never waits
