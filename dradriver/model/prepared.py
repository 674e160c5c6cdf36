"""What the kubelet is told of a prepared claim."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One prepared device (kubelet API `Device`).

    requests    base request names
    cdi_ids     qualified CDI names, the device's own first: the kubelet shows the first one in the pod's status
    share_id    only for a share of a device
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None
