"""Versions of the API server and their feature gates, as far as they change what resource.k8s.io stores.

The table is that of kube_features.go: the first version that has the gate, and the version from which it is on
by default.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from dradriver.model.text import shown

MINORS: Final = (34, 35, 36, 37)
"""The minor versions of Kubernetes 1 whose rules are known here."""

ADMIN_ACCESS: Final = "DRAAdminAccess"
BINDING_CONDITIONS: Final = "DRADeviceBindingConditions"
CONSUMABLE_CAPACITY: Final = "DRAConsumableCapacity"
DEVICE_STATUS: Final = "DRAResourceClaimDeviceStatus"
DEVICE_TAINTS: Final = "DRADeviceTaints"
DEVICE_TAINT_RULES: Final = "DRADeviceTaintRules"
EXTENDED_RESOURCE: Final = "DRAExtendedResource"
FRACTIONAL_CAPACITY: Final = "DRAFractionalCapacityRange"
LIST_ATTRIBUTES: Final = "DRAListTypeAttributes"
NODE_ALLOCATABLE: Final = "DRANodeAllocatableResources"
PARTITIONABLE_DEVICES: Final = "DRAPartitionableDevices"
PRIORITIZED_LIST: Final = "DRAPrioritizedList"

_NEVER: Final = 999

_GATES: Final[Mapping[str, tuple[int, int]]] = {
    ADMIN_ACCESS: (32, 34),
    BINDING_CONDITIONS: (34, 36),
    CONSUMABLE_CAPACITY: (34, 36),
    DEVICE_STATUS: (32, 33),
    DEVICE_TAINTS: (33, 36),
    DEVICE_TAINT_RULES: (35, _NEVER),
    EXTENDED_RESOURCE: (34, 36),
    FRACTIONAL_CAPACITY: (37, 37),
    LIST_ATTRIBUTES: (36, _NEVER),
    NODE_ALLOCATABLE: (36, _NEVER),
    PARTITIONABLE_DEVICES: (33, 36),
    PRIORITIZED_LIST: (33, 34),
}

_VERSION: Final = re.compile(r"v?1\.([0-9]{1,3})(?:[.+-].*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Gates:
    """A server's minor version, and which of the feature gates are on."""

    minor: int
    enabled: frozenset[str]

    @classmethod
    def of(cls, version: str, overrides: Mapping[str, bool] = {}) -> Self:
        """Return the defaults of `version` ("1.36", "v1.36.2"), with `overrides`, as `--feature-gates` takes them.

        Raises ValueError for a version without rules here, and for a gate that this version does not have.
        """
        match = _VERSION.fullmatch(version)
        minor = int(match[1]) if match else 0
        if minor not in MINORS:
            raise ValueError(
                f"API server version {shown(version)}: allowed are 1.{MINORS[0]} to 1.{MINORS[-1]}"
            )
        known = {name for name, (first, _) in _GATES.items() if first <= minor}
        unknown = sorted(set(overrides) - known)
        if unknown:
            raise ValueError(
                f"feature gate {shown(unknown[0])} of API server 1.{minor}: known are {', '.join(sorted(known))}"
            )
        enabled = {name for name in known if overrides.get(name, _GATES[name][1] <= minor)}
        return cls(minor, frozenset(enabled))

    @staticmethod
    def parse(text: str) -> tuple[str, bool]:
        """Return the gate in `NAME=true` or `NAME=false`. Raises ValueError, which does not name the text."""
        name, equals, value = text.partition("=")
        if not name or not equals or value.lower() not in {"true", "false"}:
            raise ValueError("NAME=true or NAME=false is expected")
        return name, value.lower() == "true"

    def __contains__(self, gate: str) -> bool:
        return gate in self.enabled
