"""What drivers say of their links by ethtool's ioctl: their name, firmware and speed (linux/ethtool.h)."""

import fcntl
import socket
import struct
from array import array
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from dradriver.backend import UnavailableError
from dradriver_nic.inventory import Link
from dradriver_nic.netns import inside

_SIOCETHTOOL = 0x8946
_GET_DRIVER = 0x00000003
_GET_LINK_SETTINGS = 0x0000004C

_DRIVER = struct.Struct("=I32s32s32s32s")
_DRIVER_BYTES = 196
_SETTINGS_BYTES = 48
_SPEED_AT = 4
_WORDS_AT = 15
"""In struct ethtool_link_settings: how many words a mask of link modes has, asked for by a first call with 0."""

_UNKNOWN_SPEED = 0xFFFFFFFF

_NO_FIRMWARE = frozenset({"", "N/A", "n/a"})


class Ethtool:
    """A socket by which drivers are asked; of a network namespace, None for that of the calling thread."""

    def __init__(self, namespace: Path | None = None) -> None:
        """Raises UnavailableError where there is no such namespace."""
        try:
            self._socket = inside(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        except OSError as error:
            raise UnavailableError(f"ethtool cannot be used: {error.strerror}") from error
        self._words: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def completed(self, link: Link) -> Link:
        """Return the link with what its driver says; a link that is gone by now as it is."""
        driver, firmware, bus_info = self._driver(link.name)
        # Kernels before 5.14 do not say by rtnetlink which device is behind a link.
        device, bus = (link.device, link.bus) if link.device or link.kind else (bus_info, "")
        return replace(
            link,
            driver=driver,
            firmware=firmware,
            speed_mbps=self._speed(link.name),
            device=device,
            bus=bus,
        )

    def _driver(self, name: str) -> tuple[str, str, str]:
        answer = self._ask(name, struct.pack("=I", _GET_DRIVER).ljust(_DRIVER_BYTES, b"\0"))
        if answer is None:
            return "", "", ""
        _, driver, _, firmware, bus_info = (
            part.split(b"\0", 1)[0].decode("utf-8", "replace").strip() if isinstance(part, bytes) else ""
            for part in _DRIVER.unpack_from(answer)
        )
        return driver, "" if firmware in _NO_FIRMWARE else firmware, bus_info

    def _speed(self, name: str) -> int | None:
        """Return the speed in Mbit/s; None where it is not known, as without a carrier."""
        if self._words is None:
            answer = self._ask(name, struct.pack("=I", _GET_LINK_SETTINGS).ljust(_SETTINGS_BYTES, b"\0"))
            if answer is None:
                return None
            # The kernel answers with the negative of what it has.
            self._words = -struct.unpack_from("=b", answer, _WORDS_AT)[0]
        request = bytearray(_SETTINGS_BYTES + 3 * 4 * self._words)
        struct.pack_into("=I", request, 0, _GET_LINK_SETTINGS)
        struct.pack_into("=b", request, _WORDS_AT, self._words)
        answer = self._ask(name, bytes(request))
        speed = struct.unpack_from("=I", answer, _SPEED_AT)[0] if answer else _UNKNOWN_SPEED
        return speed if 0 < speed < _UNKNOWN_SPEED else None

    def _ask(self, name: str, request: bytes) -> bytes | None:
        """Return the answer to a request; None where the driver, or the link, does not know of it."""
        try:
            return ask(self._socket, name, request)[0]
        except OSError:
            return None


def ask(asking: socket.socket, name: str, request: bytes) -> tuple[bytes, int]:
    """Return the answer of a link's driver to a request, and what the ioctl itself returned. Raises OSError."""
    buffer = array("B", request)
    # struct ifreq: the link's name, and where the request is, which the answer is written over.
    interface = struct.pack("16sP", name.encode()[:15], buffer.buffer_info()[0]).ljust(40, b"\0")
    result = fcntl.ioctl(asking.fileno(), _SIOCETHTOOL, bytearray(interface), True)
    return buffer.tobytes(), result if isinstance(result, int) else 0
