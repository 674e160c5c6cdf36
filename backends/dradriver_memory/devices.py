"""The devices that are published: memory and huge pages that claims share out, page by page."""

from dradriver.model import (
    NUMA_NODE,
    SOCKET_ID,
    AttributeValue,
    Capacity,
    Device,
    NodeAllocatable,
    Quantity,
    RequestPolicy,
    ValidRange,
)
from dradriver_memory.inventory import HUGEPAGES, Offer


def device_of(offer: Offer) -> Device:
    """Return the device of an offer.

    `socketID` is left out for memory without CPUs: the kernel does not tell its socket.
    """
    attributes: dict[str, AttributeValue] = {"type": offer.kind}
    resource = offer.kind
    if offer.kind == HUGEPAGES:
        attributes["pageSize"] = offer.page_size
        resource = f"{HUGEPAGES}-{offer.page_size}"
    if offer.socket is not None:
        attributes["socketID"] = offer.socket
        attributes[SOCKET_ID] = offer.socket
    if offer.node is not None:
        attributes[NUMA_NODE] = offer.node
    return Device(
        name=offer.name,
        attributes=attributes,
        capacity={offer.kind: Capacity(Quantity.from_int(offer.size_bytes, binary=True), _policy(offer))},
        shared=True,
        node_allocatable=(NodeAllocatable(resource, capacity=offer.kind, multiplier=Quantity.from_int(1)),),
    )


def _policy(offer: Offer) -> RequestPolicy:
    """Allow whole pages, one where a request names no amount: such a one is about the place.

    A range must have room for one step (API validation), which a single page has not.
    """
    page = Quantity.from_int(offer.page_bytes, binary=True)
    if offer.size_bytes < 2 * offer.page_bytes:
        return RequestPolicy(default=page, valid_values=(page,))
    return RequestPolicy(default=page, valid_range=ValidRange(min=page, step=page))
