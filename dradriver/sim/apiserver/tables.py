"""Objects as tables, for `kubectl get`. Pure.

Facts: kubernetes/pkg/printers/internalversion (columns and cells of each kind), k8s.io/apimachinery/pkg/util/duration
(ages) and metav1.Table.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from dradriver.sim.apiserver.store import Stored

Body = Mapping[str, Any]
Cells = list[Any]

_ROLE: Final = "node-role.kubernetes.io/"


class Column(NamedTuple):
    """One column; those with `wide` are shown with `-o wide` only."""

    name: str
    description: str = ""
    wide: bool = False


class _Table(NamedTuple):
    columns: Sequence[Column]
    cells: Callable[[Body, datetime], Cells]


def table(
    kind: str,
    objects: Sequence[Stored],
    metadata: Mapping[str, Any],
    include: str = "Metadata",
    columns: bool = True,
) -> dict[str, Any]:
    """Return a metav1.Table.

    include   what each row carries: "Metadata", "Object" or "None"
    columns   whether to describe the columns: a watch does so only at first
    """
    now = datetime.now(UTC)
    shown = _TABLES.get(kind, _OTHER)
    result: dict[str, Any] = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    result["columnDefinitions"] = [_definition(column) for column in shown.columns] if columns else None
    rows = []
    for stored in objects:
        row: dict[str, Any] = {"cells": shown.cells(stored.obj, now)}
        if include != "None":
            row["object"] = stored.obj if include == "Object" else _partial(stored.obj)
        rows.append(row)
    result["rows"] = rows
    return result


def _definition(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": "string",
        "format": "name" if column.name == "Name" else "",
        "description": column.description,
        "priority": 1 if column.wide else 0,
    }


def _partial(obj: Body) -> dict[str, Any]:
    metadata = obj["metadata"]
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}


def human_duration(span: timedelta) -> str:
    """Return a span of time as kubectl shows ages: `35s`, `4m12s`, `3h`, `2d4h`, `400d`."""
    seconds = int(span.total_seconds())
    if seconds < -1:
        return "<invalid>"
    unit, rest = next((unit, rest) for limit, unit, rest in _UNITS if seconds < limit)
    whole, left = divmod(max(seconds, 0), _SECONDS[unit])
    text = f"{whole}{unit}"
    return text + (f"{left // _SECONDS[rest]}{rest}" if rest and left >= _SECONDS[rest] else "")


_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}
_UNITS: Final = (
    (2 * 60, "s", ""),
    (10 * 60, "m", "s"),
    (3 * 3600, "m", ""),
    (8 * 3600, "h", "m"),
    (2 * 86400, "h", ""),
    (8 * 86400, "d", "h"),
    (2 * 365 * 86400, "d", ""),
    (8 * 365 * 86400, "y", "d"),
    (float("inf"), "y", ""),
)
"""Up to how many seconds an age is shown in which unit, and with what smaller one."""


def _since(text: Any, now: datetime) -> str:
    if not isinstance(text, str) or not text:
        return "<unknown>"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return "<invalid>"
    return human_duration(now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC)))


def _age(obj: Body, now: datetime) -> str:
    return _since(obj["metadata"].get("creationTimestamp"), now)


def _at(obj: Any, *path: str) -> Any:
    for name in path:
        obj = obj.get(name) if isinstance(obj, Mapping) else None
    return obj


def _objects(value: Any) -> list[Body]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _plain(obj: Body, now: datetime) -> Cells:
    return [obj["metadata"]["name"], _age(obj, now)]


def _slice(obj: Body, now: datetime) -> Cells:
    spec = obj.get("spec")
    node, driver, pool = _at(spec, "nodeName"), _at(spec, "driver"), _at(spec, "pool", "name")
    return [obj["metadata"]["name"], node, driver, pool, _age(obj, now)]


def _claim(obj: Body, now: datetime) -> Cells:
    states = []
    deleted = bool(obj["metadata"].get("deletionTimestamp"))
    if deleted:
        states.append("deleted")
    if _at(obj, "status", "allocation") is not None:
        states.append("allocated")
        if _at(obj, "status", "reservedFor"):
            states.append("reserved")
    elif not deleted:
        states.append("pending")
    return [obj["metadata"]["name"], ",".join(states), _age(obj, now)]


def _node(obj: Body, now: datetime) -> Cells:
    conditions = {
        condition.get("type"): condition.get("status")
        for condition in _objects(_at(obj, "status", "conditions"))
    }
    ready = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    if _at(obj, "spec", "unschedulable"):
        ready += ",SchedulingDisabled"
    labels = obj["metadata"].get("labels") or {}
    roles = sorted(label.removeprefix(_ROLE) for label in labels if label.startswith(_ROLE))
    addresses = {
        address.get("type"): address.get("address")
        for address in reversed(_objects(_at(obj, "status", "addresses")))
    }
    info = _at(obj, "status", "nodeInfo")
    return [
        obj["metadata"]["name"],
        ready,
        ",".join(roles) or "<none>",
        _age(obj, now),
        _at(info, "kubeletVersion") or "",
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        _at(info, "osImage") or "<unknown>",
        _at(info, "kernelVersion") or "<unknown>",
        _at(info, "containerRuntimeVersion") or "<unknown>",
    ]


def _namespace(obj: Body, now: datetime) -> Cells:
    return [obj["metadata"]["name"], _at(obj, "status", "phase") or "", _age(obj, now)]


def _pod(obj: Body, now: datetime) -> Cells:
    spec, status = obj.get("spec"), obj.get("status")
    containers = _objects(_at(status, "containerStatuses"))
    ready = sum(bool(container.get("ready")) for container in containers)
    restarts = sum(
        count for count in (_at(one, "restartCount") for one in containers) if isinstance(count, int)
    )
    state = "Terminating" if obj["metadata"].get("deletionTimestamp") else _pod_state(status, containers)
    return [
        obj["metadata"]["name"],
        f"{ready}/{len(_objects(_at(spec, 'containers')))}",
        state,
        str(restarts),
        _age(obj, now),
        _at(status, "podIP") or "<none>",
        _at(spec, "nodeName") or "<none>",
        _at(status, "nominatedNodeName") or "<none>",
        "<none>",
    ]


def _pod_state(status: Any, containers: Sequence[Body]) -> str:
    state = _at(status, "reason") or _at(status, "phase") or ""
    for container in reversed(containers):
        for how in ("waiting", "terminated"):
            state = _at(container, "state", how, "reason") or state
    return str(state)


def _event(obj: Body, now: datetime) -> Cells:
    involved = obj.get("involvedObject")
    count = _at(obj, "series", "count") or obj.get("count") or 1
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = _at(obj, "series", "lastObservedTime") or obj.get("lastTimestamp") or first
    source = ", ".join(filter(None, (_at(obj, "source", "component"), _at(obj, "source", "host"))))
    return [
        _since(last, now),
        obj.get("type") or "",
        obj.get("reason") or "",
        f"{str(_at(involved, 'kind') or '').lower()}/{_at(involved, 'name') or ''}",
        _at(involved, "fieldPath") or "",
        source or obj.get("reportingComponent") or "",
        str(obj.get("message") or "").strip(),
        _since(first, now),
        str(count),
        obj["metadata"]["name"],
    ]


def _lease(obj: Body, now: datetime) -> Cells:
    return [obj["metadata"]["name"], _at(obj, "spec", "holderIdentity") or "", _age(obj, now)]


def _policy(obj: Body, now: datetime) -> Cells:
    spec = obj.get("spec")
    kind = _at(spec, "paramKind")
    shown = f"{_at(kind, 'apiVersion')}/{_at(kind, 'kind')}" if kind else "<unset>"
    return [obj["metadata"]["name"], str(len(_objects(_at(spec, "validations")))), shown, _age(obj, now)]


def _binding(obj: Body, now: datetime) -> Cells:
    spec = obj.get("spec")
    reference = _at(spec, "paramRef")
    place = "/".join(filter(None, (_at(reference, "namespace"), _at(reference, "name"))))
    return [obj["metadata"]["name"], _at(spec, "policyName") or "", place or "<unset>", _age(obj, now)]


_NAME: Final = Column("Name", "Name must be unique within a namespace.")
_AGE: Final = Column("Age", "Time since the object was created.")

_OTHER: Final = _Table((_NAME, _AGE), _plain)

_TABLES: Final[Mapping[str, _Table]] = {
    "ResourceSlice": _Table(
        (
            _NAME,
            Column("Node", "The node that provides the resources of this pool."),
            Column("Driver", "The DRA driver that provides the capacity information."),
            Column("Pool", "The pool that the slice belongs to."),
            _AGE,
        ),
        _slice,
    ),
    "ResourceClaim": _Table(
        (
            _NAME,
            Column("State", "A summary of the current state (allocated, pending, reserved, etc.)."),
            _AGE,
        ),
        _claim,
    ),
    "Node": _Table(
        (
            _NAME,
            Column("Status", "The status of the node"),
            Column("Roles", "The roles of the node"),
            _AGE,
            Column("Version", "Kubelet version reported by the node."),
            Column("Internal-IP", "", True),
            Column("External-IP", "", True),
            Column("OS-Image", "", True),
            Column("Kernel-Version", "", True),
            Column("Container-Runtime", "", True),
        ),
        _node,
    ),
    "Namespace": _Table((_NAME, Column("Status", "The status of the namespace"), _AGE), _namespace),
    "Pod": _Table(
        (
            _NAME,
            Column("Ready", "The aggregate readiness state of this pod for accepting traffic."),
            Column("Status", "The aggregate status of the containers in this pod."),
            Column("Restarts", "The number of times the containers in this pod have been restarted."),
            _AGE,
            Column("IP", "", True),
            Column("Node", "", True),
            Column("Nominated Node", "", True),
            Column("Readiness Gates", "", True),
        ),
        _pod,
    ),
    "Event": _Table(
        (
            Column("Last Seen", "The time at which the most recent occurrence was recorded."),
            Column("Type", "Type of this event (Normal, Warning)."),
            Column("Reason", "A short, machine understandable reason."),
            Column("Object", "The object that this event is about."),
            Column("Subobject", "", True),
            Column("Source", "", True),
            Column("Message", "A human-readable description."),
            Column("First Seen", "", True),
            Column("Count", "", True),
            Column("Name", "", True),
        ),
        _event,
    ),
    "Lease": _Table((_NAME, Column("Holder", "The holder of the lease."), _AGE), _lease),
    "ValidatingAdmissionPolicy": _Table(
        (
            _NAME,
            Column("Validations", "Number of validation rules"),
            Column("ParamKind", "The kind of resource for params"),
            _AGE,
        ),
        _policy,
    ),
    "ValidatingAdmissionPolicyBinding": _Table(
        (_NAME, Column("PolicyName", "The policy that is bound"), Column("ParamRef", "The parameters"), _AGE),
        _binding,
    ),
}
