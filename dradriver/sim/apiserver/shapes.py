"""How the parts of an object merge when it is applied: which lists have keys, and what is replaced as a whole. Pure.

Only what differs from the rule is written down. By the rule an object is merged field by field, a list is replaced as
a whole, and everything else is a plain value.

Facts: the listType, listMapKey, structType and mapType markers in k8s.io/api (resource/v1, core/v1,
admissionregistration/v1) and k8s.io/apimachinery/pkg/apis/meta/v1.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


class Merge(enum.Enum):
    """How a value is merged."""

    FIELDS = "an object, field by field"
    ENTRIES = "an object whose keys are data"
    KEYED = "a list of objects, matched by the values of some fields"
    SET = "a list of distinct values"
    ATOMIC = "as a whole"


@dataclass(frozen=True, slots=True)
class Shape:
    """How a value and what is below it merges. `keys` are those of a list; `element` is the shape of its items."""

    merge: Merge = Merge.FIELDS
    fields: Mapping[str, "Shape"] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    element: "Shape | None" = None

    def child(self, name: str, value: Any) -> "Shape":
        """Return the shape of the field `name`, whose value is needed where nothing is written down of it."""
        declared = self.fields.get(name)
        if declared is not None:
            return declared
        return PLAIN if isinstance(value, Mapping) else ATOMIC

    @property
    def item(self) -> "Shape":
        """The shape of a list's items."""
        return self.element or PLAIN


PLAIN: Final = Shape()
ATOMIC: Final = Shape(Merge.ATOMIC)
ENTRIES: Final = Shape(Merge.ENTRIES)
SET: Final = Shape(Merge.SET)


def fields(**shapes: Shape) -> Shape:
    """Return the shape of an object with these fields out of the ordinary."""
    return Shape(Merge.FIELDS, shapes)


def keyed(*keys: str, **shapes: Shape) -> Shape:
    """Return the shape of a list whose items are matched by `keys` and have these fields out of the ordinary."""
    return Shape(Merge.KEYED, {}, tuple(sorted(keys)), Shape(Merge.FIELDS, shapes))


_METADATA: Final = fields(
    labels=ENTRIES,
    annotations=ENTRIES,
    finalizers=SET,
    ownerReferences=Shape(Merge.KEYED, {}, ("uid",), ATOMIC),
)
_CONDITIONS: Final = keyed("type")
_CONTAINER: Final = keyed(
    "name",
    env=keyed("name"),
    ports=keyed("containerPort", "protocol"),
    volumeMounts=keyed("mountPath"),
    volumeDevices=keyed("devicePath"),
    resources=fields(claims=keyed("name"), limits=ENTRIES, requests=ENTRIES),
)
_POD_SPEC: Final = fields(
    containers=_CONTAINER,
    initContainers=_CONTAINER,
    ephemeralContainers=_CONTAINER,
    volumes=keyed("name"),
    imagePullSecrets=keyed("name"),
    hostAliases=keyed("ip"),
    resourceClaims=keyed("name"),
    schedulingGates=keyed("name"),
    topologySpreadConstraints=keyed("topologyKey", "whenUnsatisfiable"),
    nodeSelector=ATOMIC,
)

_OBJECTS: Final[Mapping[str, Shape]] = {
    "ResourceSlice": fields(metadata=_METADATA, spec=fields(nodeSelector=ATOMIC)),
    "ResourceClaim": fields(
        metadata=_METADATA,
        status=fields(
            reservedFor=keyed("uid"),
            devices=keyed("driver", "device", "pool", "shareID", data=ATOMIC, conditions=_CONDITIONS),
            allocation=fields(nodeSelector=ATOMIC),
        ),
    ),
    "Node": fields(
        metadata=_METADATA,
        spec=fields(podCIDRs=SET),
        status=fields(conditions=_CONDITIONS, addresses=keyed("type"), allocatable=ENTRIES, capacity=ENTRIES),
    ),
    "Namespace": fields(metadata=_METADATA, status=fields(conditions=_CONDITIONS)),
    "Pod": fields(
        metadata=_METADATA,
        spec=_POD_SPEC,
        status=fields(
            conditions=_CONDITIONS,
            podIPs=keyed("ip"),
            hostIPs=keyed("ip"),
            resourceClaimStatuses=keyed("name"),
        ),
    ),
    "DeviceTaintRule": fields(metadata=_METADATA, status=fields(conditions=_CONDITIONS)),
    "ValidatingAdmissionPolicy": fields(
        metadata=_METADATA,
        spec=fields(variables=keyed("name"), matchConditions=keyed("name")),
        status=fields(conditions=_CONDITIONS),
    ),
}
_OTHER: Final = fields(metadata=_METADATA)


def shape_of(kind: str) -> Shape:
    """Return the shape of a whole object of that kind."""
    return _OBJECTS.get(kind, _OTHER)
