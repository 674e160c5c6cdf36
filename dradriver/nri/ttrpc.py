"""ttrpc: calls over a stream of bytes.

A frame is a header (length of the payload and stream id of 32 bits, type and flags of 8 bits, big-endian) and the
payload: a Request or a Response of ttrpc.proto. Each call has a stream id of its own; those of a client are odd and
rise.

Facts: containerd/ttrpc, PROTOCOL.md and channel.go.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from dradriver_protos import ttrpc_pb2

MAX_MESSAGE: Final = 4 << 20
"""Bytes of a payload."""

_HEADER = struct.Struct(">IIBB")


class Kind(IntEnum):
    """Types of frames. There may be others some day."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class Code(IntEnum):
    """Outcomes of a call, as gRPC numbers them."""

    OK = 0
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `oversized` is the length of a payload that was too long, and was passed over."""

    stream: int
    kind: int
    payload: bytes
    oversized: int = 0


class FrameReader:
    """Takes the bytes of one stream as they come, and gives whole frames. It keeps at most one frame's bytes."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._payload = bytearray()
        self._left: int | None = None
        self._oversized = 0

    def feed(self, data: memoryview) -> Iterator[Frame]:
        """Yield the frames that end in `data`. Any bytes are some frames."""
        while data or self._left == 0:
            if self._left is None:
                missing = _HEADER.size - len(self._header)
                self._header += data[:missing]
                data = data[missing:]
                if len(self._header) == _HEADER.size:
                    self._left = int.from_bytes(self._header[:4], "big")
                    self._oversized = self._left if self._left > MAX_MESSAGE else 0
                continue
            part, data = data[: self._left], data[self._left :]
            self._left -= len(part)
            if not self._oversized:
                self._payload += part
            if not self._left:
                yield self._end()

    def _end(self) -> Frame:
        _, stream, kind, _ = _HEADER.unpack(self._header)
        done = Frame(stream, kind, bytes(self._payload), self._oversized)
        self._header.clear()
        self._payload = bytearray()
        self._left = None
        return done


def frame(stream: int, kind: Kind, payload: bytes) -> bytes:
    """Return a frame. Raises ValueError for a payload that is too long."""
    if len(payload) > MAX_MESSAGE:
        raise ValueError(f"a message of {len(payload)} bytes: at most {MAX_MESSAGE} are allowed")
    return _HEADER.pack(len(payload), stream, kind, 0) + payload


def request(stream: int, service: str, method: str, payload: bytes, seconds: float) -> bytes:
    """Return the frame of a call that is waited for so long."""
    message = ttrpc_pb2.Request(
        service=service, method=method, payload=payload, timeout_nano=int(seconds * 1e9)
    )
    return frame(stream, Kind.REQUEST, message.SerializeToString())


def success(stream: int, payload: bytes) -> bytes:
    """Return the frame of an answer. Raises ValueError for one that is too long."""
    return frame(stream, Kind.RESPONSE, ttrpc_pb2.Response(payload=payload).SerializeToString())


def failure(stream: int, code: Code, message: str) -> bytes:
    """Return the frame that says why there is no answer."""
    # Text from outside may hold what UTF-8 cannot.
    text = message[:1000].encode(errors="backslashreplace").decode()
    status = ttrpc_pb2.Status(code=code, message=text)
    return frame(stream, Kind.RESPONSE, ttrpc_pb2.Response(status=status).SerializeToString())
