"""RDMA devices by netlink: which there are, whether each belongs to one network namespace, and moving them.

pyroute2 does not have it. Facts: rdma/rdma_netlink.h, rdma-system(8), rdma-dev(8), drivers/infiniband/core/nldev.c.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dradriver_nic.actuate.rtnl import Rtnl
from dradriver_nic.netlink import attribute, attributes

NETLINK_RDMA = 20

_NLDEV = 5
_GET = _NLDEV << 10 | 1
_SET = _NLDEV << 10 | 2
_SYS_GET = _NLDEV << 10 | 6
_SYS_SET = _NLDEV << 10 | 7

_DEV_INDEX = 1
_DEV_NAME = 2
_NODE_GUID = 6
_SYS_NETNS_MODE = 66
_NET_NS_FD = 68

_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class RdmaSeen:
    """An RDMA device of a network namespace: its number, which stays, its name, and its node's GUID."""

    index: int
    name: str
    node_guid: int = 0


class RdmaNetlink(Rtnl):
    """A socket to the RDMA subsystem in one network namespace."""

    def __init__(self, namespace: Path | None = None) -> None:
        """Raises UnavailableError, also where the kernel has no RDMA."""
        super().__init__(namespace, NETLINK_RDMA)

    def devices(self) -> Iterator[RdmaSeen]:
        """Yield the devices that are seen in the namespace. Raises UnavailableError."""
        for body in self.listed(_GET, b""):
            found = attributes(body)
            if _DEV_INDEX in found:
                yield RdmaSeen(
                    _U32.unpack_from(found[_DEV_INDEX])[0],
                    found.get(_DEV_NAME, b"").split(b"\0", 1)[0].decode("utf-8", "replace"),
                    _U64.unpack_from(found[_NODE_GUID])[0] if _NODE_GUID in found else 0,
                )

    def exclusive(self) -> bool:
        """Return whether each device belongs to one network namespace. Raises OSError."""
        found = attributes(self.get(_SYS_GET, b""))
        return not found.get(_SYS_NETNS_MODE, b"\1")[0]

    def set_exclusive(self, *, exclusive: bool) -> None:
        """Have each device belong to one network namespace, or all to all. Raises OSError.

        The kernel refuses it while there are network namespaces beside the first one.
        """
        self.change(_SYS_SET, attribute(_SYS_NETNS_MODE, bytes((not exclusive,))))

    def move(self, index: int, fd: int) -> None:
        """Move a device into the network namespace that a file is open of. Raises OSError."""
        self.change(_SET, attribute(_DEV_INDEX, _U32.pack(index)) + attribute(_NET_NS_FD, _U32.pack(fd)))

    def rename(self, index: int, name: str) -> None:
        """Give a device a name. Raises OSError."""
        body = attribute(_DEV_INDEX, _U32.pack(index)) + attribute(_DEV_NAME, name.encode() + b"\0")
        self.change(_SET, body)
