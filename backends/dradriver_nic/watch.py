"""Events of links, addresses, routes and PCI functions: all they say is that the cards should be read anew.

Facts: rtnetlink(7), and netlink(7) on ENOBUFS: what the kernel could not deliver is lost, and to be read anew.
"""

import contextlib
import errno
import logging
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dradriver.backend import UnavailableError
from dradriver.host import UeventMonitor, UeventsUnavailableError
from dradriver.model.text import plain
from dradriver_nic import messages as m
from dradriver_nic.inventory import Link
from dradriver_nic.kernel import is_default_route, kind_and_name, link_of
from dradriver_nic.netlink import messages
from dradriver_nic.netns import inside

log = logging.getLogger(__name__)

LIMIT_SECONDS = 0.1
"""One notice for all that happens within that time; the first event is told of at once."""

OPENING_SECONDS = 0.02
"""All sources open within that time, and each says that something may have been missed: that is one notice."""

_GROUPS = sum(1 << (number - 1) for number in (1, 5, 7, 9, 11))
"""RTNLGRP_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR and _IPV6_ROUTE."""

_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 4 << 20
_RECEIVE_BYTES = 1 << 16
_WAIT_MS = 250

_OF_PODS = frozenset({"veth", "ifb"})
"""Kinds of links that come and go with each pod, and never say anything of a card unless they are offered."""

SUBSYSTEMS = frozenset({"pci", "infiniband"})


class Limiter:
    """Passes on that something happened, at most once in `LIMIT_SECONDS`, the first time at once."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._due = threading.Event()
        self._why = ""

    def note(self, why: str) -> None:
        """Note that something happened. From any thread."""
        self._why = why
        self._due.set()

    def run(self, stop: threading.Event) -> None:
        """Pass it on, until `stop`."""
        stop.wait(OPENING_SECONDS)
        while not stop.is_set():
            if self._due.wait(_WAIT_MS / 1000):
                self._due.clear()
                self._changed(self._why)
                stop.wait(LIMIT_SECONDS)


@dataclass(frozen=True)
class LinkWatch:
    """Hears of links, addresses and default routes.

    Pods come and go all the time, and each has the kernel tell of the cards that its links are made on, though nothing
    of these changes: a link of which the same is told again is not noted.

    kinds          kinds of links that are offered though they come and go with pods
    namespace      file of the network namespace; None for that of this process
    buffer_bytes   how much the kernel keeps of what was not read yet, as far as this process may ask for it
    """

    note: Callable[[str], None]
    kinds: frozenset[str] = frozenset()
    namespace: Path | None = None
    buffer_bytes: int = _BUFFER_BYTES
    _told: dict[tuple[int, int], Link] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`. Raises UnavailableError where events cannot be had."""
        try:
            listener = inside(self.namespace, self._opened)
        except OSError as error:
            raise UnavailableError(f"events of links cannot be had: {error.strerror}") from error
        with listener:
            poller = select.poll()
            poller.register(listener, select.POLLIN)
            self._told.clear()
            self.note("events may have been missed before")
            while not stop.is_set():
                if poller.poll(_WAIT_MS):
                    self._take(listener)

    def _opened(self) -> socket.socket:
        listener = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        try:
            try:
                listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, self.buffer_bytes)
            except OSError:  # without CAP_NET_ADMIN: as much as anybody may have
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
            listener.bind((0, _GROUPS))
        except OSError:
            listener.close()
            raise
        return listener

    def _take(self, listener: socket.socket) -> None:
        """Take what is there. Raises UnavailableError."""
        try:
            data = listener.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                self._told.clear()
                self.note("more happened to links than could be read: events were missed")
                return
            raise UnavailableError(f"events of links cannot be read: {error.strerror}") from error
        for kind, _, _, body in messages(data):
            with contextlib.suppress(struct.error):  # shorter than its own head: nothing that we know
                why = self._why(kind, body)
                if why:
                    self.note(why)

    def _why(self, kind: int, body: bytes) -> str:
        """Return what happened, where it may say something of a card."""
        if kind in {m.RTM_NEWLINK, m.RTM_DELLINK}:
            of, name = kind_and_name(body)
            if of in _OF_PODS and of not in self.kinds:
                return ""
            if self._is_old(kind, body):
                return ""
            return f"link {plain(name)} {'changed' if kind == m.RTM_NEWLINK else 'is gone'}"
        if kind in {m.RTM_NEWADDR, m.RTM_DELADDR}:
            _, _, _, scope, _ = m.ADDRESS.unpack_from(body)
            return "an address changed" if scope < m.RT_SCOPE_LINK else ""
        if kind in {m.RTM_NEWROUTE, m.RTM_DELROUTE} and is_default_route(body):
            return "a default route changed"
        return ""

    def _is_old(self, kind: int, body: bytes) -> bool:
        """Return whether an event says of a link what the last one said. Raises struct.error."""
        now = link_of(body)
        key = body[0], now.index  # bridges tell of their ports in another way, as another family
        if kind == m.RTM_DELLINK:
            self._told.pop(key, None)
            return False
        before, self._told[key] = self._told.get(key), now
        return before == now


def watch_functions(stop: threading.Event, note: Callable[[str], None]) -> None:
    """Hear of PCI functions and RDMA devices until `stop`; where that cannot be, only probing sees them."""
    monitor = UeventMonitor(
        SUBSYSTEMS,
        on_event=lambda event: note(f"{event.action} {event.devpath}"),
        on_resync=lambda: note("kernel events may have been missed"),
    )
    try:
        monitor.run(stop)
    except UeventsUnavailableError as error:
        log.warning("virtual functions that come and go are seen by probing only: %s", error)
