"""What the driver and the keeper of MPS control daemons say to each other, over a socket in the run directory.

One request for each connection: a line of JSON of at most 64 KiB, and a line in answer. The keeper runs on while the
driver is updated, so that a request names the version of these messages: a keeper answers those that it knows. It takes
requests strictly; the driver overlooks fields of answers that it does not know.
"""

import socket
import time
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from dradriver_gpu.mps.daemons import NAME

VERSION = 1

SOCKET = "keeper.sock"
"""Its name beside the directories of the daemons."""

MAX_BYTES = 64 << 10
MAX_DEVICES = 64
SLICE_SECONDS = 0.2

_Name = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME}\Z")]
_Device = Annotated[str, msgspec.Meta(pattern=r"\A(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{0,90}\Z")]
_Mebibytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", forbid_unknown_fields=True):
    """A request: something for the daemon of a name."""

    version: Literal[1] = 1
    name: _Name


class Start(Message, frozen=True, kw_only=True, tag="start"):
    """Have a daemon run for devices, by UUID; `percentage` and `memory` as in Limits, `user` -1 for nobody."""

    devices: Annotated[tuple[_Device, ...], msgspec.Meta(min_length=1, max_length=MAX_DEVICES)]
    percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    memory: Annotated[tuple[_Mebibytes, ...], msgspec.Meta(max_length=MAX_DEVICES)] = ()
    user: Annotated[int, msgspec.Meta(ge=-1, le=4294967294)] = -1


class Runs(Message, frozen=True, kw_only=True, tag="runs"):
    """Say whether it runs."""


class End(Message, frozen=True, kw_only=True, tag="end"):
    """End it."""


Request = Start | Runs | End

Trouble = Literal["", "failed", "transient", "unavailable"]
"""Why something was not done, as BackendError, TransientError and UnavailableError tell it apart."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a request: `error` is for people, and empty where it was done."""

    runs: bool = False
    trouble: Trouble = ""
    error: str = ""


class MessageError(Exception):
    """What came is no message, or nothing came in time."""


def encode(message: Request | Answer) -> bytes:
    """Return a message as its line."""
    return msgspec.json.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Read a request. Raises MessageError, which names the field and what is allowed."""
    try:
        request: Request = msgspec.json.decode(line, type=Request)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MessageError(f"this is no request of version {VERSION}: {error}") from None
    return request


def decode_answer(line: bytes) -> Answer:
    """Read an answer. Raises MessageError."""
    try:
        return msgspec.json.decode(line, type=Answer)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MessageError(f"this is no answer: {error}") from None


def receive(connection: socket.socket, deadline: float, is_over: Callable[[], bool]) -> bytes:
    """Return the line that the other side sends, without its end.

    Raises MessageError for more than a line, less, or one that is too long, and where it does not come until the
    deadline (time.monotonic) or `is_over`; OSError.
    """
    data = bytearray()
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or is_over():
            raise MessageError("no whole line came in time")
        connection.settimeout(min(left, SLICE_SECONDS))
        try:
            chunk = connection.recv(4096)
        except TimeoutError:
            continue
        if not chunk:
            raise MessageError("the connection ended within a line" if data else "nothing came")
        data += chunk
        if len(data) > MAX_BYTES:
            raise MessageError(f"a line has at most {MAX_BYTES} bytes")
        if b"\n" in data[:-1]:
            raise MessageError("a connection is for one line")
    return bytes(data[:-1])


__all__ = [
    "MAX_BYTES",
    "MAX_DEVICES",
    "SLICE_SECONDS",
    "SOCKET",
    "VERSION",
    "Answer",
    "End",
    "MessageError",
    "Request",
    "Runs",
    "Start",
    "Trouble",
    "decode_answer",
    "decode_request",
    "encode",
    "receive",
]
