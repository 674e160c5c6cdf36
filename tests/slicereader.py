"""What a consumer of ResourceSlices sees of a pool, by the rules of the scheduler."""

from collections.abc import Iterable, Mapping
from typing import Any

Spec = Mapping[str, Any]


def visible(specs: Iterable[Spec]) -> dict[str, Spec] | None:
    """Return the devices of one pool by name; None while it is not complete.

    Only slices of the highest generation count, and only when there are as many as each of them states
    (k8s.io/dynamic-resource-allocation `structured`, `gatherPools`).
    """
    by_generation: dict[int, list[Spec]] = {}
    for spec in specs:
        by_generation.setdefault(spec["pool"]["generation"], []).append(spec)
    if not by_generation:
        return None
    newest = by_generation[max(by_generation)]
    if any(spec["pool"]["resourceSliceCount"] != len(newest) for spec in newest):
        return None
    devices: dict[str, Spec] = {}
    for spec in newest:
        for device in spec.get("devices") or ():
            if device["name"] in devices:
                return None
            devices[device["name"]] = device
    return devices
