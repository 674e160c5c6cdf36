"""Features of a network driver and its private flags, as `ethtool -K` and `ethtool --set-priv-flags` set them.

By the ioctl, since each kernel and driver that knows features knows it. Facts: linux/ethtool.h, struct
ethtool_get_features_block and its neighbours; the older names are those of ethtool(8).
"""

import re
import socket
import struct
from collections.abc import Mapping
from typing import Self

from dradriver.backend import BackendError
from dradriver.model import shown
from dradriver_nic.ethtool import ask

_GET_STRINGS = 0x1B
_GET_PRIVATE_FLAGS = 0x27
_SET_PRIVATE_FLAGS = 0x28
_GET_COUNTS = 0x37
_GET_FEATURES = 0x3A
_SET_FEATURES = 0x3B

_PRIVATE_FLAGS = 2
_FEATURES = 4
_NAME_BYTES = 32
_MOST_STRINGS = 1024
_REFUSED = 0x1
"""ETHTOOL_F_UNSUPPORTED: some of what was asked cannot be changed."""

_OLDER_NAMES = {
    ("rx", "rx-checksumming"): "rx-checksum",
    ("tx", "tx-checksumming"): "tx-checksum-.*",
    ("sg", "scatter-gather"): "tx-scatter-gather.*",
    ("tso", "tcp-segmentation-offload"): "tx-tcp.*-segmentation",
    ("ufo", "udp-fragmentation-offload"): "tx-udp-fragmentation",
    ("gso", "generic-segmentation-offload"): "tx-generic-segmentation",
    ("gro", "generic-receive-offload"): "rx-gro",
    ("lro", "large-receive-offload"): "rx-lro",
    ("rxvlan", "rx-vlan-offload"): "rx-vlan-hw-parse",
    ("txvlan", "tx-vlan-offload"): "tx-vlan-hw-insert",
    ("ntuple", "ntuple-filters"): "rx-ntuple-filter",
    ("rxhash", "receive-hashing"): "rx-hashing",
}
"""Names that ethtool has for features, or several of them, beside the kernel's."""


class Features:
    """A socket by which a driver's features are read and set, in the network namespace of the calling thread."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def features(self, name: str) -> dict[str, bool]:
        """Return the features of a link that can be changed, and whether they are asked for. Raises OSError."""
        names = self._strings(name, _FEATURES)
        body = self._ask(name, _features_body(_GET_FEATURES, len(names)))
        found = {}
        for number, feature in enumerate(names):
            # struct ethtool_get_features_block: available, requested, active, never_changed, in words of 32.
            available, requested, active, never = struct.unpack_from("=IIII", body, 8 + number // 32 * 16)
            bit = 1 << number % 32
            if feature and available & bit and not never & bit:
                found[feature] = bool((requested | active) & bit)
        return found

    def set_features(self, name: str, wanted: Mapping[str, bool]) -> None:
        """Set features by the kernel's names. Raises BackendError for those that cannot be changed, OSError."""
        names = self._strings(name, _FEATURES)
        numbers = {feature: number for number, feature in enumerate(names)}
        words = [[0, 0] for _ in range((len(names) + 31) // 32)]
        for feature, on in wanted.items():
            number = _known(numbers, feature, "feature")
            words[number // 32][0] |= 1 << number % 32
            words[number // 32][1] |= int(on) << number % 32
        body = struct.pack("=II", _SET_FEATURES, len(words))
        request = body + b"".join(struct.pack("=II", *word) for word in words)
        _, result = ask(self._socket, name, request)
        if result & _REFUSED:
            raise BackendError(f"features {shown(', '.join(wanted))} of {name} cannot all be changed")

    def private_flags(self, name: str) -> dict[str, bool]:
        """Return the driver's private flags; none where it has none. Raises OSError."""
        names = self._strings(name, _PRIVATE_FLAGS)
        if not names:
            return {}
        flags = struct.unpack_from("=I", self._ask(name, struct.pack("=II", _GET_PRIVATE_FLAGS, 0)), 4)[0]
        return {flag: bool(flags >> number & 1) for number, flag in enumerate(names[:32]) if flag}

    def set_private_flags(self, name: str, wanted: Mapping[str, bool]) -> None:
        """Set private flags. Raises BackendError for one that the driver does not have, OSError."""
        names = self._strings(name, _PRIVATE_FLAGS)
        numbers = {flag: number for number, flag in enumerate(names[:32])}
        now = self.private_flags(name)
        for flag in wanted:
            _known(numbers, flag, "private flag")
        flags = sum(int(on) << numbers[flag] for flag, on in {**now, **wanted}.items())
        self._ask(name, struct.pack("=II", _SET_PRIVATE_FLAGS, flags))

    def _strings(self, name: str, kind: int) -> list[str]:
        """Return the names of a set (ETH_SS_), by number."""
        answer = self._ask(name, struct.pack("=IIQI", _GET_COUNTS, 0, 1 << kind, 0))
        if not struct.unpack_from("=Q", answer, 8)[0]:
            return []
        count = min(struct.unpack_from("=I", answer, 16)[0], _MOST_STRINGS)
        body = struct.pack("=III", _GET_STRINGS, kind, count) + bytes(count * _NAME_BYTES)
        answer = self._ask(name, body)
        return [
            answer[start : start + _NAME_BYTES].split(b"\0", 1)[0].decode("utf-8", "replace")
            for start in range(12, 12 + count * _NAME_BYTES, _NAME_BYTES)
        ]

    def _ask(self, name: str, request: bytes) -> bytes:
        return ask(self._socket, name, request)[0]


def _features_body(command: int, count: int) -> bytes:
    words = (count + 31) // 32
    return struct.pack("=II", command, words) + bytes(words * 16)


def _known(numbers: Mapping[str, int], name: str, what: str) -> int:
    if name not in numbers:
        raise BackendError(f"{shown(name)} is no {what} of this driver")
    return numbers[name]


def by_kernel_names(wanted: Mapping[str, bool], known: Mapping[str, bool]) -> dict[str, bool]:
    """Return features by the names that the kernel has for them, given which of them can be changed.

    Raises BackendError for one that cannot.
    """
    found = {}
    for name, on in wanted.items():
        pattern = next((kernel for older, kernel in _OLDER_NAMES.items() if name in older), None)
        names = [name] if name in known else [one for one in known if pattern and re.fullmatch(pattern, one)]
        if not names:
            raise BackendError(f"feature {shown(name)} of the network interface is not there, or is fixed")
        found.update(dict.fromkeys(names, on))
    return found
