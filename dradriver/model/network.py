"""What is known of a network device inside the pod (k8s.io/api/resource/v1 `NetworkDeviceData`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkData:
    """An interface as the pod sees it; what is unknown stays empty.

    interface          its name inside the pod
    ips                its addresses with their prefix lengths, such as `10.9.8.7/24` and `2001:db8::1/64`
    hardware_address   its MAC address, or the 20 bytes of an InfiniBand port, in hexadecimal with colons
    """

    interface: str = ""
    ips: tuple[str, ...] = ()
    hardware_address: str = ""
