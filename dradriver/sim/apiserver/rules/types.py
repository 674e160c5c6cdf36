"""The fields of the kinds that the stand-in serves, by version of the server.

Facts: k8s.io/api resource/v1 (0.34 to 0.37), core/v1 `NodeSelector`, k8s.io/apimachinery meta/v1. The other kinds
are taken as they come: only their metadata has rules.
"""

import functools
from collections.abc import Mapping
from typing import Final

from dradriver.sim.apiserver.rules.schema import (
    Anything,
    Boolean,
    Field,
    Integer,
    ListOf,
    MapOf,
    QuantityType,
    Raw,
    String,
    Struct,
    Time,
    present,
)

_STRING: Final = String()
_BOOL: Final = Boolean()
_INT: Final = Integer()
_QUANTITY: Final = QuantityType()
_TIME: Final = Time()
_RAW: Final = Raw()
_STRINGS: Final = ListOf(_STRING)
_ANY: Final = Anything()

_OWNER: Final = Struct(
    "v1.OwnerReference",
    [
        Field("apiVersion", _STRING, always=True, go="APIVersion"),
        Field("kind", _STRING, always=True),
        Field("name", _STRING, always=True),
        Field("uid", _STRING, always=True, go="UID"),
        Field("controller", _BOOL, pointer=True),
        Field("blockOwnerDeletion", _BOOL, pointer=True),
    ],
)
_MANAGED: Final = Struct(
    "v1.ManagedFieldsEntry",
    [
        Field("manager", _STRING),
        Field("operation", _STRING),
        Field("apiVersion", _STRING, go="APIVersion"),
        Field("time", _TIME, pointer=True),
        Field("fieldsType", _STRING),
        Field("fieldsV1", _ANY, pointer=True),
        Field("subresource", _STRING),
    ],
)
METADATA: Final = Struct(
    "v1.ObjectMeta",
    [
        Field("name", _STRING),
        Field("generateName", _STRING),
        Field("namespace", _STRING),
        Field("selfLink", _STRING),
        Field("uid", _STRING, go="UID"),
        Field("resourceVersion", _STRING),
        Field("generation", _INT),
        Field("creationTimestamp", _TIME, pointer=True),
        Field("deletionTimestamp", _TIME, pointer=True),
        Field("deletionGracePeriodSeconds", _INT, pointer=True),
        Field("labels", MapOf(_STRING)),
        Field("annotations", MapOf(_STRING)),
        Field("ownerReferences", ListOf(_OWNER)),
        Field("finalizers", _STRINGS),
        Field("managedFields", ListOf(_MANAGED)),
    ],
)
_CONDITION: Final = Struct(
    "v1.Condition",
    [
        Field("type", _STRING, always=True),
        Field("status", String("v1.ConditionStatus"), always=True),
        Field("observedGeneration", _INT),
        Field("lastTransitionTime", _TIME, pointer=True, always=True),
        Field("reason", _STRING, always=True),
        Field("message", _STRING, always=True),
    ],
)
_REQUIREMENT: Final = Struct(
    "v1.NodeSelectorRequirement",
    [
        Field("key", _STRING, always=True),
        Field("operator", String("v1.NodeSelectorOperator"), always=True),
        Field("values", _STRINGS),
    ],
)
_TERM: Final = Struct(
    "v1.NodeSelectorTerm",
    [Field("matchExpressions", ListOf(_REQUIREMENT)), Field("matchFields", ListOf(_REQUIREMENT))],
)
TERMS: Final = ListOf(_TERM)
_NODE_SELECTOR: Final = Struct("v1.NodeSelector", [Field("nodeSelectorTerms", TERMS, always=True)])

_OPAQUE: Final = Struct(
    "v1.OpaqueDeviceConfiguration",
    [Field("driver", _STRING, always=True), Field("parameters", _RAW, pointer=True, always=True)],
)
_SELECTOR: Final = Struct(
    "v1.DeviceSelector",
    [
        Field(
            "cel",
            Struct("v1.CELDeviceSelector", [Field("expression", _STRING, always=True)]),
            pointer=True,
            go="CEL",
        )
    ],
)
_TOLERATION: Final = Struct(
    "v1.DeviceToleration",
    [
        Field("key", _STRING),
        Field("operator", String("v1.DeviceTolerationOperator")),
        Field("value", _STRING),
        Field("effect", String("v1.DeviceTaintEffect")),
        Field("tolerationSeconds", _INT, pointer=True),
    ],
)
_COUNTERS: Final = MapOf(Struct("v1.Counter", [Field("value", _QUANTITY, always=True)]))

RAW_PLACES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "DeviceClass": (("spec", "config", "*", "opaque", "parameters"),),
    "ResourceClaim": (
        ("spec", "devices", "config", "*", "opaque", "parameters"),
        ("status", "allocation", "devices", "config", "*", "opaque", "parameters"),
        ("status", "devices", "*", "data"),
    ),
    "ResourceClaimTemplate": (("spec", "spec", "devices", "config", "*", "opaque", "parameters"),),
}
"""Where the kinds have opaque parts that are taken as bytes."""


@functools.cache
def kind_types(minor: int) -> Mapping[str, Struct]:
    """Return the type of each kind of resource.k8s.io in Kubernetes 1.`minor`."""
    claim_spec = _claim_spec()
    template_spec = Struct(
        "v1.ResourceClaimTemplateSpec",
        [Field("metadata", METADATA, always=True, inline=True), Field("spec", claim_spec, always=True)],
    )
    return {
        "ResourceSlice": _whole("ResourceSlice", Field("spec", _slice_spec(minor), always=True)),
        "ResourceClaim": _whole(
            "ResourceClaim",
            Field("spec", claim_spec, always=True),
            Field("status", _claim_status(), always=True),
        ),
        "ResourceClaimTemplate": _whole("ResourceClaimTemplate", Field("spec", template_spec, always=True)),
        "DeviceClass": _whole("DeviceClass", Field("spec", _class_spec(), always=True)),
    }


@functools.cache
def other_type(kind: str) -> Struct:
    """Return the type of a kind whose own fields have no rules here."""
    return Struct(
        f"v1.{kind}",
        [
            Field("kind", _STRING),
            Field("apiVersion", _STRING, go="APIVersion"),
            Field("metadata", METADATA, always=True),
        ],
        open=True,
    )


def _whole(kind: str, *fields: Field) -> Struct:
    meta = [
        Field("kind", _STRING),
        Field("apiVersion", _STRING, go="APIVersion"),
        Field("metadata", METADATA, always=True),
    ]
    return Struct(f"v1.{kind}", [*meta, *fields])


def _class_spec() -> Struct:
    config = Struct("v1.DeviceClassConfiguration", [Field("opaque", _OPAQUE, pointer=True)])
    return Struct(
        "v1.DeviceClassSpec",
        [
            Field("selectors", ListOf(_SELECTOR)),
            Field("config", ListOf(config)),
            Field("extendedResourceName", _STRING, pointer=True),
        ],
    )


def _slice_spec(minor: int) -> Struct:
    pool = Struct(
        "v1.ResourcePool",
        [
            Field("name", _STRING, always=True),
            Field("generation", _INT, always=True),
            Field("resourceSliceCount", _INT, always=True),
        ],
    )
    counter_set = Struct("v1.CounterSet", [Field("name", _STRING, always=True), Field("counters", _COUNTERS)])
    devices = ListOf(_device(minor))
    return Struct(
        "v1.ResourceSliceSpec",
        [
            Field("driver", _STRING, always=True),
            Field("pool", pool, always=True),
            Field("nodeName", _STRING, pointer=True),
            Field("nodeSelector", _NODE_SELECTOR, pointer=True),
            Field("allNodes", _BOOL, pointer=True),
            # 1.34 has no omitempty here: a slice without devices has "devices": null.
            Field("devices", devices, always=minor < 35),
            Field("perDeviceNodeSelection", _BOOL, pointer=True),
            Field("sharedCounters", ListOf(counter_set)),
        ],
    )


def _device(minor: int) -> Struct:
    consumption = Struct(
        "v1.DeviceCounterConsumption",
        [Field("counterSet", _STRING, always=True), Field("counters", _COUNTERS)],
    )
    taint = Struct(
        "v1.DeviceTaint",
        [
            Field("key", _STRING, always=True),
            Field("value", _STRING),
            Field("effect", String("v1.DeviceTaintEffect"), always=True),
            Field("timeAdded", _TIME, pointer=True),
        ],
    )
    return Struct(
        "v1.Device",
        present(
            [
                Field("name", _STRING, always=True),
                Field("attributes", MapOf(_attribute(minor), "v1.QualifiedName")),
                Field("capacity", MapOf(_capacity(), "v1.QualifiedName")),
                Field("consumesCounters", ListOf(consumption)),
                Field("nodeName", _STRING, pointer=True),
                Field("nodeSelector", _NODE_SELECTOR, pointer=True),
                Field("allNodes", _BOOL, pointer=True),
                Field("taints", ListOf(taint)),
                Field("bindsToNode", _BOOL, pointer=True),
                Field("bindingConditions", _STRINGS),
                Field("bindingFailureConditions", _STRINGS),
                Field("allowMultipleAllocations", _BOOL, pointer=True),
                _node_allocatable(minor),
            ]
        ),
    )


def _attribute(minor: int) -> Struct:
    lists = [
        Field("ints", ListOf(_INT), go="IntValues"),
        Field("bools", ListOf(_BOOL), go="BoolValues"),
        Field("strings", _STRINGS, go="StringValues"),
        Field("versions", _STRINGS, go="VersionValues"),
    ]
    return Struct(
        "v1.DeviceAttribute",
        [
            Field("int", _INT, pointer=True, go="IntValue"),
            Field("bool", _BOOL, pointer=True, go="BoolValue"),
            Field("string", _STRING, pointer=True, go="StringValue"),
            Field("version", _STRING, pointer=True, go="VersionValue"),
            *(lists if minor >= 36 else ()),
        ],
    )


def _capacity() -> Struct:
    bounds = Struct(
        "v1.CapacityRequestPolicyRange",
        [
            Field("min", _QUANTITY, pointer=True),
            Field("max", _QUANTITY, pointer=True),
            Field("step", _QUANTITY, pointer=True),
        ],
    )
    policy = Struct(
        "v1.CapacityRequestPolicy",
        [
            Field("default", _QUANTITY, pointer=True, always=True),
            Field("validValues", ListOf(_QUANTITY)),
            Field("validRange", bounds, pointer=True),
        ],
    )
    return Struct(
        "v1.DeviceCapacity",
        [Field("value", _QUANTITY, always=True), Field("requestPolicy", policy, pointer=True)],
    )


def _node_allocatable(minor: int) -> Field | None:
    if minor == 36:
        entry = Struct(
            "v1.NodeAllocatableResourceMapping",
            [
                Field("capacityKey", _STRING, pointer=True),
                Field("allocationMultiplier", _QUANTITY, pointer=True),
            ],
        )
        return Field("nodeAllocatableResourceMappings", MapOf(entry, "v1.ResourceName"))
    if minor < 36:
        return None
    mapping = Struct(
        "v1.NodeAllocatableMapping",
        [
            Field("capacityKey", _STRING, pointer=True),
            Field("capacityMultiplier", _QUANTITY, pointer=True),
            Field("deviceMultiplier", _QUANTITY, pointer=True),
        ],
    )
    overhead = Struct(
        "v1.NodeAllocatableOverhead",
        [Field("perPod", _QUANTITY, pointer=True), Field("perContainer", _QUANTITY, pointer=True)],
    )
    resource = Struct(
        "v1.NodeAllocatableResource",
        [Field("mapping", mapping, pointer=True), Field("overhead", overhead, pointer=True)],
    )
    return Field("nodeAllocatableResources", MapOf(resource, "v1.ResourceName"))


def _claim_spec() -> Struct:
    capacity = Struct("v1.CapacityRequirements", [Field("requests", MapOf(_QUANTITY, "v1.QualifiedName"))])
    wanted = [
        Field("deviceClassName", _STRING, always=True),
        Field("selectors", ListOf(_SELECTOR)),
        Field("allocationMode", String("v1.DeviceAllocationMode")),
        Field("count", _INT),
    ]
    rest = [Field("tolerations", ListOf(_TOLERATION)), Field("capacity", capacity, pointer=True)]
    exactly = Struct("v1.ExactDeviceRequest", [*wanted, Field("adminAccess", _BOOL, pointer=True), *rest])
    sub = Struct("v1.DeviceSubRequest", [Field("name", _STRING, always=True), *wanted, *rest])
    request = Struct(
        "v1.DeviceRequest",
        [
            Field("name", _STRING, always=True),
            Field("exactly", exactly, pointer=True),
            Field("firstAvailable", ListOf(sub)),
        ],
    )
    constraint = Struct(
        "v1.DeviceConstraint",
        [
            Field("requests", _STRINGS),
            Field("matchAttribute", _STRING, pointer=True),
            Field("distinctAttribute", _STRING, pointer=True),
        ],
    )
    config = Struct(
        "v1.DeviceClaimConfiguration",
        [Field("requests", _STRINGS), Field("opaque", _OPAQUE, pointer=True)],
    )
    devices = Struct(
        "v1.DeviceClaim",
        [
            Field("requests", ListOf(request), always=True),
            Field("constraints", ListOf(constraint)),
            Field("config", ListOf(config)),
        ],
    )
    return Struct("v1.ResourceClaimSpec", [Field("devices", devices, always=True)])


def _claim_status() -> Struct:
    result = Struct(
        "v1.DeviceRequestAllocationResult",
        [
            Field("request", _STRING, always=True),
            Field("driver", _STRING, always=True),
            Field("pool", _STRING, always=True),
            Field("device", _STRING, always=True),
            Field("adminAccess", _BOOL, pointer=True),
            Field("tolerations", ListOf(_TOLERATION)),
            Field("bindingConditions", _STRINGS),
            Field("bindingFailureConditions", _STRINGS),
            Field("shareID", _STRING, pointer=True),
            Field("consumedCapacity", MapOf(_QUANTITY, "v1.QualifiedName")),
        ],
    )
    config = Struct(
        "v1.DeviceAllocationConfiguration",
        [
            Field("source", String("v1.AllocationConfigSource"), always=True),
            Field("requests", _STRINGS),
            Field("opaque", _OPAQUE, pointer=True),
        ],
    )
    devices = Struct(
        "v1.DeviceAllocationResult", [Field("results", ListOf(result)), Field("config", ListOf(config))]
    )
    allocation = Struct(
        "v1.AllocationResult",
        [
            Field("devices", devices, always=True),
            Field("nodeSelector", _NODE_SELECTOR, pointer=True),
            Field("allocationTimestamp", _TIME, pointer=True),
        ],
    )
    consumer = Struct(
        "v1.ResourceClaimConsumerReference",
        [
            Field("apiGroup", _STRING, go="APIGroup"),
            Field("resource", _STRING, always=True),
            Field("name", _STRING, always=True),
            Field("uid", _STRING, always=True, go="UID"),
        ],
    )
    network = Struct(
        "v1.NetworkDeviceData",
        [
            Field("interfaceName", _STRING),
            Field("ips", _STRINGS, go="IPs"),
            Field("hardwareAddress", _STRING),
        ],
    )
    device = Struct(
        "v1.AllocatedDeviceStatus",
        [
            Field("driver", _STRING, always=True),
            Field("pool", _STRING, always=True),
            Field("device", _STRING, always=True),
            Field("shareID", _STRING, pointer=True),
            Field("conditions", ListOf(_CONDITION), always=True),
            Field("data", _RAW, pointer=True),
            Field("networkData", network, pointer=True),
        ],
    )
    return Struct(
        "v1.ResourceClaimStatus",
        [
            Field("allocation", allocation, pointer=True),
            Field("reservedFor", ListOf(consumer)),
            Field("devices", ListOf(device)),
        ],
    )
