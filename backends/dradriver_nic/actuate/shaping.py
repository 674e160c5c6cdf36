"""Limits of what a link sends and receives, as queueing disciplines of the host.

Packets are taken off the card by filters (u32, mirred), wait in front of an intermediate device (ifb) for as long as a
token bucket (tbf) has them wait, and go on where they were. So the card keeps its own queues, other traffic is not
touched, and nothing of it is in the pod, which could take it off. Facts: tc(8), linux/pkt_sched.h, linux/pkt_cls.h,
drivers/net/ifb.c.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from dradriver_nic import messages as m
from dradriver_nic.actuate.rtnl import Rtnl
from dradriver_nic.netlink import attribute, attribute_list, attributes

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46

CLSACT = "clsact"

_TCA_KIND = 1
_TCA_OPTIONS = 2
_TCA_TBF_PARMS = 1
_TCA_TBF_RATE64 = 4
_TCA_TBF_BURST = 6
_TCA_U32_CLASSID = 1
_TCA_U32_SEL = 5
_TCA_U32_ACT = 7
_TCA_ACT_KIND = 1
_TCA_ACT_OPTIONS = 2
_TCA_MIRRED_PARMS = 2
_TCA_EGRESS_REDIR = 1
_TC_ACT_STOLEN = 4
_TC_U32_TERMINAL = 1
_TC_LINKLAYER_ETHERNET = 1

_TC_H_ROOT = 0xFFFFFFFF
_TC_H_CLSACT = 0xFFFFFFF1
_CLSACT_HANDLE = 0xFFFF0000
INGRESS = 0xFFFFFFF2
EGRESS = 0xFFFFFFF3
"""Parents of the filters of clsact: of what arrives, and of what is sent."""

_PRIORITIES = {INGRESS: 1217, EGRESS: 1218}
"""Before the filters that people add without a priority, which the kernel gives 49152 and less. Two, as the tables of
u32 are common to both directions, told apart by the priority alone (tc_u_common_ptr in cls_u32.c)."""

_ETH_P_ALL = 0x0003

_TC = struct.Struct("=BxxxiIII")
_RATE = struct.Struct("=BBHhHI")
"""struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate."""

_MIRRED = struct.Struct("=IIiiiiI")
_KEY = struct.Struct("=IIii")
"""struct tc_u32_key: mask and value in network order, offset from the network header, mask of a second offset."""

MIN_BURST = 64 << 10
_BURST_SECONDS = 0.001
_MAX_BURST = 1 << 30
_MIN_QUEUE = 128 << 10
_QUEUE_SECONDS = 0.02
_MAX_QUEUE = 64 << 20


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of clsact: where it is, and the number that whoever made it gave it (`flowid`)."""

    parent: int
    handle: int
    info: int
    tag: int

    @property
    def is_ours(self) -> bool:
        """Whether it has the priority that ours have."""
        return self.info >> 16 == _PRIORITIES[self.parent]


def burst_of(bits: int) -> int:
    """Return how many bytes may be sent at once at a rate: a millisecond's, and as much as a large packet has.

    At more than 8 Tbit/s it is less than that: the kernel keeps it in 32 bits.
    """
    return min(_MAX_BURST, max(MIN_BURST, int(bits / 8 * _BURST_SECONDS)))


def queue_of(bits: int) -> int:
    """Return how many bytes may wait at a rate: those of 20 milliseconds."""
    return burst_of(bits) + min(_MAX_QUEUE, max(_MIN_QUEUE, int(bits / 8 * _QUEUE_SECONDS)))


def token_bucket(index: int, bits: int) -> bytes:
    """Return the body that has a link send at most so many bits a second."""
    rate = bits // 8
    spec = _RATE.pack(0, _TC_LINKLAYER_ETHERNET, 0, 0, 0, min(rate, 0xFFFFFFFF))
    parameters = spec + bytes(_RATE.size) + struct.pack("=III", queue_of(bits), 0, 0)
    options = [attribute(_TCA_TBF_PARMS, parameters), m.u32(_TCA_TBF_BURST, burst_of(bits))]
    if rate > 0xFFFFFFFF:
        options.append(attribute(_TCA_TBF_RATE64, struct.pack("=Q", rate)))
    return _TC.pack(0, index, 0, _TC_H_ROOT, 0) + m.text(_TCA_KIND, "tbf") + m.nested(_TCA_OPTIONS, *options)


def clsact(index: int) -> bytes:
    """Return the body about the discipline of a link that filters hang on."""
    return _TC.pack(0, index, _CLSACT_HANDLE, _TC_H_CLSACT, 0) + m.text(_TCA_KIND, CLSACT)


def redirection(index: int, parent: int, mac: str, to: int, tag: int) -> bytes:
    """Return the body of a filter that sends a link's packets over another one.

    parent   EGRESS for packets from a MAC address, INGRESS for those to it; all packets where it is empty
    to       number of the other link
    """
    keys = _keys(parent, mac)
    # struct tc_u32_sel: flags, offshift, nkeys, and offsets that nobody needs here.
    selector = struct.pack("=BBBx", _TC_U32_TERMINAL, 0, len(keys)) + bytes(12) + b"".join(keys)
    mirred = _MIRRED.pack(0, 0, _TC_ACT_STOLEN, 0, 0, _TCA_EGRESS_REDIR, to)
    action = m.nested(
        1,
        m.text(_TCA_ACT_KIND, "mirred"),
        m.nested(_TCA_ACT_OPTIONS, attribute(_TCA_MIRRED_PARMS, mirred)),
    )
    options = m.nested(
        _TCA_OPTIONS,
        m.u32(_TCA_U32_CLASSID, tag),
        attribute(_TCA_U32_SEL, selector),
        m.nested(_TCA_U32_ACT, action),
    )
    info = _PRIORITIES[parent] << 16 | _network_order(_ETH_P_ALL)
    return _TC.pack(0, index, 0, parent, info) + m.text(_TCA_KIND, "u32") + options


def _keys(parent: int, mac: str) -> list[bytes]:
    """Return what is compared: the Ethernet header lies 14 bytes before the network header, the receiver first."""
    if not mac:
        return [_KEY.pack(0, 0, 0, 0)]
    address = bytes.fromhex(mac.replace(":", ""))
    if parent == EGRESS:
        words = [(address[:4], b"\xff\xff\xff\xff", -8), (address[4:] + bytes(2), b"\xff\xff\0\0", -4)]
    else:
        words = [(bytes(2) + address[:2], b"\0\0\xff\xff", -16), (address[2:], b"\xff\xff\xff\xff", -12)]
    return [mask + value + struct.pack("=ii", offset, 0) for value, mask, offset in words]


def _network_order(protocol: int) -> int:
    return int.from_bytes(struct.pack("!H", protocol), "little")


# --- looking


def has_clsact(rtnl: Rtnl, index: int) -> bool:
    """Return whether filters can hang on a link. Raises UnavailableError."""
    for body in rtnl.listed(RTM_GETQDISC, _TC.pack(0, index, 0, 0, 0)):
        _, here, _, _, _ = _TC.unpack_from(body)
        kind = attributes(body, _TC.size).get(_TCA_KIND, b"").rstrip(b"\0")
        if here == index and kind == CLSACT.encode():
            return True
    return False


def has_others_clsact(rtnl: Rtnl, index: int) -> bool:
    """Return whether somebody else let filters hang on a link: not one with filters of ours and no others.

    Raises UnavailableError.
    """
    if not has_clsact(rtnl, index):
        return False
    found = [*filters(rtnl, index)]
    return not found or not all(one.is_ours for one in found)


def filters(rtnl: Rtnl, index: int) -> Iterator[Filter]:
    """Yield the filters of a link's clsact; of tables that filters are kept in nothing. Raises UnavailableError."""
    for parent in (INGRESS, EGRESS):
        for body in rtnl.listed(RTM_GETTFILTER, _TC.pack(0, index, 0, parent, 0)):
            _, here, handle, _, info = _TC.unpack_from(body)
            found = attributes(body, _TC.size)
            options = dict(attribute_list(found.get(_TCA_OPTIONS, b"")))
            is_table = found.get(_TCA_KIND, b"").rstrip(b"\0") == b"u32" and not handle & 0xFFF
            if here != index or not handle or is_table:
                continue
            tag = int.from_bytes(options.get(_TCA_U32_CLASSID, b"")[:4], "little")
            yield Filter(parent, handle, info, tag)


def remove_filters(rtnl: Rtnl, index: int, tag: int) -> None:
    """Remove the filters of a tag from a link. Not while others are added. Raises OSError, UnavailableError.

    The kernel leaves an empty table of a priority where the link has other tables of u32 (u32_delete), so that the last
    filter of ours goes with its priority.
    """
    found = [*filters(rtnl, index)]
    mine = [one for one in found if one.tag == tag]
    left = {(one.parent, one.info) for one in found if one.tag != tag}
    for one in mine:
        handle = one.handle if (one.parent, one.info) in left else 0
        body = _TC.pack(0, index, handle, one.parent, one.info)
        rtnl.change(RTM_DELTFILTER, body + m.text(_TCA_KIND, "u32"))
