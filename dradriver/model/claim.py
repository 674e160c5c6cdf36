"""What a claim asks of one driver on this node: the decoded allocation of a ResourceClaim.

Facts: k8s.io/api/resource/v1 `ResourceClaim`, `DeviceRequestAllocationResult`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dradriver.model.quantity import Quantity
from dradriver.model.text import plain


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim by identity. The UID is the identity; the names are for people and the API.

    As text it is one line of bounded length, whatever the names are.
    """

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{plain(self.namespace)}/{plain(self.name)} ({plain(self.uid)})"


@dataclass(frozen=True, slots=True)
class Allocated:
    """One allocation result of a claim.

    request      full request name, `request/subrequest` where the claim listed alternatives
    consumed     capacity name without the driver's own domain -> amount of a shared device
    share_id     one per allocation of a shared device, else None
    admin        admin access: such a use looks at the device and never owns it
    """

    request: str
    driver: str
    pool: str
    device: str
    consumed: Mapping[str, Quantity] = field(default_factory=dict)
    share_id: str | None = None
    admin: bool = False

    @property
    def base_request(self) -> str:
        """The request name without the alternative: what the kubelet's API calls the request name."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another device of the same claim, of whatever driver, with what is known of where it is.

    `numa_nodes` is empty where the device is not one of this daemon's or its place is unknown.
    """

    allocated: Allocated
    numa_nodes: frozenset[int] = frozenset()
