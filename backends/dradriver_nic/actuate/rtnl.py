"""Requests by which the kernel changes something: one at a time, each answered, a refusal in the kernel's own words.

Not by pyroute2: importing it takes 24 MiB, and 0.6 s of the start, for a dozen kinds of messages. Facts: rtnetlink(7),
Documentation/userspace-api/netlink/intro.rst (extended acknowledgements, strict checking of requests).
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from dradriver.backend import BackendError
from dradriver.model.text import plain
from dradriver_nic.netlink import HEADER, NLMSG_ERROR, Netlink, NetlinkError, attributes

NLM_F_ACK = 0x004
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800

_NLM_F_CAPPED = 0x100
_NLM_F_ACK_TLVS = 0x200
_NLMSGERR_ATTR_MSG = 1

_SOL_NETLINK = 270
_CAP_ACK = 10
_EXT_ACK = 11
_GET_STRICT_CHK = 12


class RefusedError(NetlinkError):
    """The kernel refused a request; `errno` says how, and the text what."""


class Rtnl(Netlink):
    """A socket by which links, and what belongs to them, are changed in one network namespace.

    Not for several threads at once. Lists are of what the request's body names, where the kernel checks bodies strictly
    (4.20), and of everything else too before.
    """

    def __init__(self, namespace: Path | None = None, protocol: int = socket.NETLINK_ROUTE) -> None:
        """`namespace` is that of the calling thread where it is None. Raises UnavailableError."""
        super().__init__(protocol, namespace)
        for option in (_CAP_ACK, _EXT_ACK, _GET_STRICT_CHK):
            with contextlib.suppress(OSError):
                self.socket.setsockopt(_SOL_NETLINK, option, 1)

    def change(self, kind: int, body: bytes, flags: int = 0) -> None:
        """Have something changed. Raises RefusedError, and OSError where no answer comes."""
        for _ in self._answers(kind, body, NLM_F_ACK | flags):
            pass

    def get(self, kind: int, body: bytes) -> bytes:
        """Return the body of the message that answers a request for one thing. Raises RefusedError, OSError."""
        return next(self._answers(kind, body, 0))

    def _answers(self, kind: int, body: bytes, flags: int) -> Iterator[bytes]:
        for kind_now, flags_now, payload in self.answered(kind, body, flags):
            if kind_now == NLMSG_ERROR:
                _check(flags_now, payload)
                return
            yield payload


def _check(flags: int, payload: bytes) -> None:
    """Raise what an acknowledgement says (struct nlmsgerr): a negative error number, and perhaps a sentence."""
    number = -struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
    if not number:
        return
    text = os.strerror(number)
    start = 4 + HEADER.size
    if not flags & _NLM_F_CAPPED and len(payload) >= start:
        # The request stands in between, as long as its own header says.
        start = 4 + ((struct.unpack_from("=I", payload, 4)[0] + 3) & ~3)
    said = attributes(payload, start).get(_NLMSGERR_ATTR_MSG) if flags & _NLM_F_ACK_TLVS else None
    if said:
        text += f" ({plain(said.split(bytes(1), 1)[0].decode('utf-8', 'replace'), 200)})"
    raise RefusedError(number, text)


def why(error: Exception) -> str:
    """Return what an error says, without its number."""
    return str(getattr(error, "strerror", None) or error)


@contextlib.contextmanager
def naming(device: str) -> Iterator[None]:
    """Have a BackendError say which device it is about: a pod may have several."""
    try:
        yield
    except BackendError as error:
        raise type(error)(f"{device}: {error}") from error


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """Have a refusal by the kernel say what was to be done: raises BackendError in its place."""
    try:
        yield
    except OSError as error:
        raise BackendError(f"{what}: {why(error)}") from error
