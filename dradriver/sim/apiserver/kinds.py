"""The kinds of objects that the stand-in serves, and how each behaves. Pure.

Facts: the strategies in kubernetes/pkg/registry (what a create or an update resets, who has a generation), the field
selectors of pkg/apis/*/conversion.go, short names and categories of the storages, as of Kubernetes 1.36.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Path = tuple[str, ...]


class Status(enum.Enum):
    """What becomes of `status` on the main resource."""

    NONE = "the kind has none, or it is an ordinary field"
    RESET = "empty at create, unchanged by an update; written through /status"
    KEPT = "taken at create, unchanged by an update; written through /status"


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One resource. There is one object of this class for each.

    fields         field selectors beyond metadata.name, and where their values are
    namespace_field whether metadata.namespace can be selected by
    generation     whether metadata.generation counts changes of the spec
    unconditional  whether an update may leave out the resourceVersion
    upsert         whether an update creates what is not there
    answer_deleted whether a delete answers with the object; a Status otherwise
    gate           the feature gate without which the kind is not served
    """

    group: str
    version: str
    name: str
    plural: str
    singular: str
    namespaced: bool = False
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: Status = Status.NONE
    fields: Mapping[str, Path] = field(default_factory=dict)
    namespace_field: bool = True
    generation: bool = False
    unconditional: bool = True
    upsert: bool = False
    answer_deleted: bool = False
    gate: str = ""

    @property
    def api_version(self) -> str:
        """As in `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As in messages: `resourceslices.resource.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def prefix(self) -> str:
        """The path of its group and version, without a slash at the end."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def has_status(self) -> bool:
        """Whether there is a /status subresource."""
        return self.status is not Status.NONE

    @property
    def subresources(self) -> tuple[str, ...]:
        """Its subresources by name."""
        return ("status",) if self.has_status else ()

    @property
    def verbs(self) -> tuple[str, ...]:
        """What can be done with it, as discovery tells."""
        return ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


RESOURCE: Final = "resource.k8s.io"
_POLICY: Final = "admissionregistration.k8s.io"

SLICE: Final = Kind(
    RESOURCE,
    "v1",
    "ResourceSlice",
    "resourceslices",
    "resourceslice",
    fields={"spec.nodeName": ("spec", "nodeName"), "spec.driver": ("spec", "driver")},
    namespace_field=False,
    generation=True,
    answer_deleted=True,
)
CLAIM: Final = Kind(
    RESOURCE,
    "v1",
    "ResourceClaim",
    "resourceclaims",
    "resourceclaim",
    namespaced=True,
    status=Status.RESET,
    answer_deleted=True,
)
TEMPLATE: Final = Kind(
    RESOURCE,
    "v1",
    "ResourceClaimTemplate",
    "resourceclaimtemplates",
    "resourceclaimtemplate",
    namespaced=True,
    answer_deleted=True,
)
CLASS: Final = Kind(
    RESOURCE, "v1", "DeviceClass", "deviceclasses", "deviceclass", generation=True, answer_deleted=True
)
TAINT_RULE: Final = Kind(
    RESOURCE,
    "v1beta2",
    "DeviceTaintRule",
    "devicetaintrules",
    "devicetaintrule",
    status=Status.RESET,
    generation=True,
    answer_deleted=True,
    gate="DRADeviceTaintRules",
)
NODE: Final = Kind(
    "",
    "v1",
    "Node",
    "nodes",
    "node",
    short=("no",),
    status=Status.KEPT,
    fields={"spec.unschedulable": ("spec", "unschedulable")},
    namespace_field=False,
)
NAMESPACE: Final = Kind(
    "",
    "v1",
    "Namespace",
    "namespaces",
    "namespace",
    short=("ns",),
    status=Status.RESET,
    fields={"status.phase": ("status", "phase")},
    namespace_field=False,
    answer_deleted=True,
)
POD: Final = Kind(
    "",
    "v1",
    "Pod",
    "pods",
    "pod",
    namespaced=True,
    short=("po",),
    categories=("all",),
    status=Status.RESET,
    fields={
        "spec.nodeName": ("spec", "nodeName"),
        "spec.restartPolicy": ("spec", "restartPolicy"),
        "spec.schedulerName": ("spec", "schedulerName"),
        "spec.serviceAccountName": ("spec", "serviceAccountName"),
        "status.phase": ("status", "phase"),
        "status.podIP": ("status", "podIP"),
        "status.nominatedNodeName": ("status", "nominatedNodeName"),
    },
    answer_deleted=True,
)
EVENT: Final = Kind(
    "",
    "v1",
    "Event",
    "events",
    "event",
    namespaced=True,
    short=("ev",),
    fields={
        **{
            f"involvedObject.{name}": ("involvedObject", name)
            for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        },
        "reason": ("reason",),
        "reportingComponent": ("reportingComponent",),
        "source": ("source", "component"),
        "type": ("type",),
    },
    upsert=True,
)
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases", "lease", namespaced=True)
POLICY: Final = Kind(
    _POLICY,
    "v1",
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    "validatingadmissionpolicy",
    categories=("api-extensions",),
    status=Status.RESET,
    generation=True,
    unconditional=False,
)
BINDING: Final = Kind(
    _POLICY,
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    "validatingadmissionpolicybinding",
    categories=("api-extensions",),
    generation=True,
    unconditional=False,
)

ALL: Final[Sequence[Kind]] = (
    NAMESPACE,
    NODE,
    EVENT,
    POD,
    SLICE,
    CLAIM,
    TEMPLATE,
    CLASS,
    TAINT_RULE,
    LEASE,
    POLICY,
    BINDING,
)
"""Every kind, in the order in which discovery lists the groups."""

BY_NAME: Final[Mapping[str, Kind]] = {kind.name: kind for kind in ALL}
"""Every kind by its name, as `ResourceSlice`."""

BY_RESOURCE: Final[Mapping[tuple[str, str, str], Kind]] = {
    (kind.group, kind.version, kind.plural): kind for kind in ALL
}
"""Every kind by group, version and plural."""
