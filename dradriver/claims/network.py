"""Network devices as the claim API writes them: `NetworkDeviceData` within its limits. Pure.

Facts: k8s.io/api/resource/v1 `NetworkDeviceData`; canonical addresses as k8s.io/apimachinery's
`IsValidInterfaceAddress` wants them. The server refuses the whole object over one wrong address.
"""

import ipaddress
import re
from typing import Any

from dradriver.model import NetworkData, shown

MAX_INTERFACE_NAME = 256
MAX_HARDWARE_ADDRESS = 128
MAX_IPS = 16
"""The first two in bytes of UTF-8."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def network_body(network: NetworkData) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the object, without what the API would refuse, and sentences on what was left out."""
    body: dict[str, Any] = {}
    faults: list[str] = []
    for name, value, limit in (
        ("interfaceName", network.interface, MAX_INTERFACE_NAME),
        ("hardwareAddress", network.hardware_address, MAX_HARDWARE_ADDRESS),
    ):
        size = len(value.encode(errors="replace"))
        if _SURROGATE.search(value):
            faults.append(f"{name} {shown(value)} is not Unicode text")
        elif size > limit:
            faults.append(f"{name} {shown(value)} has {size} bytes: at most {limit} are allowed")
        elif value:
            body[name] = value
    ips: dict[str, None] = {}
    for text in network.ips:
        try:
            ips[canonical_address(text)] = None
        except ValueError:
            faults.append(f"ips: {shown(text)} is not an address with its prefix length, such as 10.9.8.7/24")
    if len(ips) > MAX_IPS:
        faults.append(f"ips: {len(ips)} addresses: at most {MAX_IPS} are allowed, the rest is left out")
    if ips:
        body["ips"] = list(ips)[:MAX_IPS]
    return body, tuple(faults)


def canonical_address(text: str) -> str:
    """Return `address/prefix length` in the one form that the API takes. Raises ValueError.

    An IPv4 address in IPv6's clothes becomes a plain one; a zone (`%eth0`) is not part of an address here.
    """
    address, slash, length = text.partition("/")
    found = ipaddress.ip_address(address.partition("%")[0])
    if not slash or not length.isascii() or not length.isdecimal() or int(length) > found.max_prefixlen:
        raise ValueError(text)
    bits = int(length)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        if bits < 96:
            raise ValueError(text)
        found, bits = found.ipv4_mapped, bits - 96
    return f"{found}/{bits}"
