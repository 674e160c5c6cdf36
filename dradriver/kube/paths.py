"""Paths of the API server's objects that a node driver works with."""

from urllib.parse import quote

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
"""Events of objects without a namespace, as a Node, are kept in the namespace `default`."""


def slice_path(name: str) -> str:
    """Return the path of a ResourceSlice."""
    return f"{SLICES}/{_segment(name)}"


def claim_path(namespace: str, name: str, subresource: str = "") -> str:
    """Return the path of a ResourceClaim, or of a subresource of it as "status"."""
    below = f"/{_segment(subresource)}" if subresource else ""
    return f"/apis/resource.k8s.io/v1/namespaces/{_segment(namespace)}/resourceclaims/{_segment(name)}{below}"


def node_path(name: str) -> str:
    """Return the path of a Node."""
    return f"{NODES}/{_segment(name)}"


def _segment(name: str) -> str:
    """Return a name as one segment of a path. Raises ValueError where it would lead elsewhere."""
    if name in {"", ".", ".."}:
        raise ValueError(f"name {name!r} cannot be part of a path: a name of an object is expected")
    return quote(name, safe="")
