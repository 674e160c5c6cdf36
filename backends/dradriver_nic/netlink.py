"""Reading from netlink: framing, attributes and dumps, as bytes.

Not by pyroute2, which decodes every attribute of a message, most of which is counters and settings that nobody here
asks for: listing 2,000 links took it 2.5 s, at each probe, and this 0.1 s. Importing it takes 24 MiB.
Facts: netlink(7), rtnetlink(7), Documentation/userspace-api/netlink/intro.rst.
"""

import itertools
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from dradriver.backend import UnavailableError
from dradriver_nic.netns import inside

NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_REQUEST = 0x001
NLM_F_DUMP_INTR = 0x010
NLM_F_DUMP = 0x300

HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence number and port."""

_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
"""The two upper bits of an attribute's type say that it is nested, or in network byte order."""

_RECEIVE_BYTES = 1 << 17
_TIMEOUT_SECONDS = 5.0
_DUMP_ATTEMPTS = 5


class NetlinkError(OSError):
    """The kernel refused a request, with its number."""


class InterruptedListError(Exception):
    """What was being listed changed meanwhile, so that the list may be neither the old nor the new one."""


class Netlink:
    """A socket that lists what the kernel has. Not for several threads at once.

    protocol    NETLINK_ROUTE, NETLINK_RDMA ...
    namespace   file of the network namespace that it is opened in; None for that of the calling thread
    """

    def __init__(self, protocol: int = socket.NETLINK_ROUTE, namespace: Path | None = None) -> None:
        """Raises UnavailableError where it cannot be opened."""
        try:
            self.socket = inside(namespace, lambda: _opened(protocol))
        except OSError as error:
            where = f" in {namespace}" if namespace else ""
            raise UnavailableError(f"netlink cannot be opened{where}: {error.strerror}") from error
        self._sequence = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def listed(self, kind: int, body: bytes) -> list[bytes]:
        """Return the bodies of all messages that a dump request is answered with, wholly or as good as that goes.

        What changes all the time never gives a list that is whole: after some attempts the last one counts, as what
        changed is told by an event and then listed anew.

        Raises UnavailableError where the kernel does not answer, or refuses.
        """
        for attempt in range(_DUMP_ATTEMPTS):
            found: list[bytes] = []
            try:
                found.extend(self._dump(kind, body))
            except InterruptedListError:
                if attempt == _DUMP_ATTEMPTS - 1:
                    return found
            except OSError as error:
                raise UnavailableError(f"netlink does not answer: {error.strerror or error}") from error
            else:
                return found
        raise AssertionError("unreachable")

    def _dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        interrupted = False
        for kind_now, flags, payload in self.answered(kind, body, NLM_F_DUMP):
            interrupted |= bool(flags & NLM_F_DUMP_INTR)
            if kind_now in {NLMSG_DONE, NLMSG_ERROR}:
                _check(payload)
                if interrupted:
                    raise InterruptedListError
                return
            yield payload

    def answered(self, kind: int, body: bytes, flags: int) -> Iterator[tuple[int, int, bytes]]:
        """Send a request, and yield type, flags and body of each message in answer: the caller knows the last one.

        Raises OSError, also where no answer comes.
        """
        number = next(self._sequence)
        self.socket.send(HEADER.pack(HEADER.size + len(body), kind, NLM_F_REQUEST | flags, number, 0) + body)
        while True:
            for kind_now, flags_now, sequence, payload in messages(self.socket.recv(_RECEIVE_BYTES)):
                if sequence == number:  # and not of a dump that was given up
                    yield kind_now, flags_now, payload


def _opened(protocol: int) -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    try:
        opened.bind((0, 0))
        opened.settimeout(_TIMEOUT_SECONDS)
    except OSError:
        opened.close()
        raise
    return opened


def _check(payload: bytes) -> None:
    """Raise what an answer's error number says; it is negative."""
    number = -struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
    if number:
        raise NetlinkError(number, os.strerror(number))


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield type, flags, sequence number and body of each message in what was received; a broken rest is left."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, at)
        if length < HEADER.size or at + length > len(data):
            return
        yield kind, flags, sequence, data[at + HEADER.size : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes, start: int = 0) -> dict[int, bytes]:
    """Return the attributes behind the first `start` bytes of a body by type; of several of one type the last."""
    return dict(attribute_list(data, start))


def attribute_list(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes behind the first `start` bytes of a body, in their order; a broken rest is left."""
    end = len(data)
    while start + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if length < 4 or start + length > end:
            return
        yield kind & _TYPE_MASK, data[start + 4 : start + length]
        start += (length + 3) & ~3


def attribute(kind: int, value: bytes) -> bytes:
    """Return one attribute as it is sent, padded."""
    return _ATTRIBUTE.pack(len(value) + 4, kind) + value + bytes(-len(value) % 4)
