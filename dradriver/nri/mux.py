"""The multiplexer of NRI: several byte streams over one socket.

A frame is the number of its stream and the length of its payload, both of 32 bits and big-endian, and the payload. No
frame opens or closes a stream: both sides know them.

Facts: containerd/nri, pkg/net/multiplex.
"""

import struct
from collections.abc import Iterator
from typing import Final

PLUGIN: Final = 1
"""The stream on which the runtime calls us."""

RUNTIME: Final = 2
"""The stream on which we call the runtime."""

MAX_WRITE: Final = 4096
"""Bytes of payload that we send in a frame: Go's reader of the other side refuses a longer one."""

MAX_PAYLOAD: Final = (4 << 20) + 10
"""Bytes of payload that the runtime sends in a frame at most: one message of ttrpc with its header."""

_HEADER = struct.Struct(">II")


class MuxError(Exception):
    """What came is no frame, and nothing that follows can be made sense of."""


class Demultiplexer:
    """Takes the bytes of the socket as they come, and hands the payloads on piece by piece.

    It keeps no more than an unfinished header, whatever lengths are announced.
    """

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (stream, part of its bytes) in the order of arrival. Raises MuxError."""
        view = memoryview(data)
        while view:
            if not self._left:
                missing = _HEADER.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) == _HEADER.size:
                    self._begin()
                continue
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            yield self._stream, part

    def _begin(self) -> None:
        self._stream, self._left = _HEADER.unpack(self._header)
        self._header.clear()
        if self._left > MAX_PAYLOAD:
            raise MuxError(
                f"a frame of {self._left} bytes was announced, at most {MAX_PAYLOAD} are allowed: this is not NRI"
            )


def frames(stream: int, data: bytes) -> bytes:
    """Return the frames that carry `data`."""
    parts = [data[start : start + MAX_WRITE] for start in range(0, len(data), MAX_WRITE)]
    return b"".join(_HEADER.pack(stream, len(part)) + part for part in parts)
