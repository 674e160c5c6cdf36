"""Which object, or which collection, a path is about. Pure."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from dradriver.sim.apiserver.kinds import BY_RESOURCE, NAMESPACE, Kind

_NAMESPACES = "namespaces"


class Route(NamedTuple):
    """A collection, where `name` is empty, or an object or a part of it."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def route(path: str, served: Collection[Kind]) -> Route | None:
    """Return what the path is about; None where nothing is served there."""
    parts = path.removeprefix("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        return _rest("", parts[1], parts[2:], served)
    if parts[0] == "apis" and len(parts) > 3:
        return _rest(parts[1], parts[2], parts[3:], served)
    return None


def _rest(group: str, version: str, parts: Sequence[str], served: Collection[Kind]) -> Route | None:
    namespace = ""
    if parts[0] == _NAMESPACES and len(parts) > 2 and parts[2] not in NAMESPACE.subresources:
        namespace, parts = parts[1], parts[2:]
        if not namespace:
            return None
    kind = BY_RESOURCE.get((group, version, parts[0]))
    if kind is None or kind not in served or len(parts) > 3 or (len(parts) > 1 and not all(parts[1:])):
        return None
    name = parts[1] if len(parts) > 1 else ""
    subresource = parts[2] if len(parts) > 2 else ""
    if subresource and subresource not in kind.subresources:
        return None
    if namespace and not kind.namespaced:
        return None
    if kind.namespaced and not namespace and name:
        return None
    return Route(kind, namespace, name, subresource)
