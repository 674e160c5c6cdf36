"""Rules for the status of ResourceClaims: allocation, reservation, what drivers say of their devices.

Facts: pkg/apis/resource/validation `validateResourceClaimStatusUpdate` and below, pkg/registry/resource/resourceclaim,
k8s.io/apimachinery meta/v1/validation `ValidateConditions`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dradriver.sim.apiserver.rules import claims, gates, names
from dradriver.sim.apiserver.rules.body import compact
from dradriver.sim.apiserver.rules.errors import Literal, Problems
from dradriver.sim.apiserver.rules.gates import Gates
from dradriver.sim.apiserver.rules.lists import (
    check_binding,
    check_distinct,
    check_opaque,
    check_raw,
    few_enough,
)
from dradriver.sim.apiserver.rules.schema import Struct
from dradriver.sim.apiserver.rules.selectors import check_node_selector

_MAX_RESULTS: Final = 32
_MAX_CONFIGS: Final = 64
_MAX_CONSUMERS: Final = 256
_MAX_CONDITIONS: Final = 8
_MAX_REASON: Final = 1024
_MAX_MESSAGE: Final = 32 * 1024
_MAX_ADDRESSES: Final = 16
_MAX_INTERFACE: Final = 256
_MAX_HARDWARE: Final = 128
_STATUSES: Final = ("False", "True", "Unknown")

Body = Mapping[str, Any]
Shared = tuple[str, str, str, str]


def set_defaults(status: dict[str, Any]) -> None:
    """Fill in what a scheduler may leave out."""
    for result in _results(status):
        claims.default_operators(result.get("tolerations") or ())


def drop_deallocated(status: dict[str, Any], existing: Body) -> None:
    """Remove what was said of devices that were allocated and are not any more."""
    gone = {_device(result) for result in _results(existing)} - {
        _device(result) for result in _results(status)
    }
    if gone and status.get("devices"):
        status["devices"] = [device for device in status["devices"] if _device(device) not in gone]


def drop_disabled(status: dict[str, Any], existing: Body, on: Gates) -> None:
    """Drop the fields of features that are off, silently, unless the existing status uses the feature already."""
    results, old = _results(status), _results(existing)
    devices = status.get("devices") or ()
    for gate, fields in (
        (gates.ADMIN_ACCESS, ("adminAccess",)),
        (gates.BINDING_CONDITIONS, ("bindingConditions", "bindingFailureConditions")),
        (gates.CONSUMABLE_CAPACITY, ("shareID", "consumedCapacity")),
    ):
        if gate not in on and not any(name in result for result in old for name in fields):
            for result in results:
                for name in fields:
                    result.pop(name, None)
            if gate == gates.CONSUMABLE_CAPACITY:
                for device in devices:
                    device.pop("shareID", None)
    if gates.DEVICE_STATUS not in on and not existing.get("devices"):
        status.pop("devices", None)


def check_status(
    problems: Problems, status: Body, existing: Body, claim: Body, struct: Struct, *, admin: bool
) -> None:
    """Check a changed status.

    claim    the stored claim, whose spec and deletion count
    struct   the type of an AllocationResult
    admin    whether the namespace allows admin access
    """
    allocation, old = status.get("allocation"), existing.get("allocation")
    claims.check_admin_results(problems, _results(status), _results(existing), admin=admin)
    _check_reserved(problems, status, existing, deleted=bool(claim["metadata"].get("deletionTimestamp")))
    allocated = {_shared(result) for result in _results(status)}
    devices = status.get("devices") or ()
    for index, device in enumerate(devices):
        _check_device(problems, f"status.devices[{index}]", device, allocated)
    check_distinct(problems, "status.devices", devices, _shared, lambda device: _shown(_shared(device)))
    if allocation is None:
        return
    if old is None:
        _check_allocation(problems, allocation, claims.request_names(claim["spec"]))
    elif not struct.same(allocation, old):
        shown = Literal(compact(struct.internal(allocation)))
        problems.invalid("status.allocation", shown, "field is immutable")


def _results(status: Body) -> Sequence[Any]:
    return ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()


def _device(one: Body) -> tuple[str, str, str]:
    return one["driver"], one["pool"], one["device"]


def _shared(one: Body) -> Shared:
    return (*_device(one), one.get("shareID", ""))


def _shown(shared: Shared) -> Literal:
    return Literal(compact(dict(zip(("Driver", "Pool", "Device", "ShareID"), shared, strict=True))))


def _check_reserved(problems: Problems, status: Body, existing: Body, *, deleted: bool) -> None:
    field, consumers = "status.reservedFor", status.get("reservedFor") or ()
    if few_enough(problems, field, consumers, _MAX_CONSUMERS):
        for index, consumer in enumerate(consumers):
            for name in ("resource", "name", "uid"):
                if not consumer[name]:
                    problems.required(f"{field}[{index}].{name}")
        check_distinct(problems, field, consumers, lambda consumer: consumer["uid"])
    if not consumers:
        return
    if status.get("allocation") is None:
        problems.forbidden(field, "may not be specified when `allocated` is not set")
    elif deleted and any(consumer not in (existing.get("reservedFor") or ()) for consumer in consumers):
        problems.forbidden(
            field,
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
        )


def _check_allocation(problems: Problems, allocation: Body, known: claims.RequestNames) -> None:
    field, devices = "status.allocation.devices", allocation["devices"]
    results = devices.get("results") or ()
    if few_enough(problems, f"{field}.results", results, _MAX_RESULTS):
        for index, result in enumerate(results):
            _check_result(problems, f"{field}.results[{index}]", result, known)
    configs = devices.get("config") or ()
    if few_enough(problems, f"{field}.config", configs, _MAX_CONFIGS):
        for index, config in enumerate(configs):
            place = f"{field}.config[{index}]"
            if not config["source"]:
                problems.required(f"{place}.source")
            elif config["source"] not in {"FromClaim", "FromClass"}:
                problems.unsupported(f"{place}.source", config["source"], ("FromClaim", "FromClass"))
            claims.check_request_list(problems, f"{place}.requests", config.get("requests") or (), known)
            check_opaque(problems, place, config)
    if allocation.get("nodeSelector") is not None:
        check_node_selector(problems, "status.allocation.nodeSelector", allocation["nodeSelector"])


def _check_result(problems: Problems, field: str, result: Body, known: claims.RequestNames) -> None:
    claims.check_request_reference(problems, f"{field}.request", result["request"], known)
    _check_identity(problems, field, result)
    check_binding(problems, field, result)


def _check_identity(problems: Problems, field: str, one: Body) -> None:
    names.check_driver(problems, f"{field}.driver", one["driver"])
    names.check_pool(problems, f"{field}.pool", one["pool"])
    problems.invalid_for(f"{field}.device", one["device"], names.label(one["device"]))
    if "shareID" in one:
        names.check_uid(problems, f"{field}.shareID", one["shareID"])


def _check_device(problems: Problems, field: str, device: Body, allocated: set[Shared]) -> None:
    _check_identity(problems, field, device)
    shared = _shared(device)
    if shared not in allocated:
        problems.invalid(field, _shown(shared), "must be an allocated device in the claim")
    conditions = device["conditions"] or ()
    few_enough(problems, f"{field}.conditions", conditions, _MAX_CONDITIONS)
    _check_conditions(problems, f"{field}.conditions", conditions)
    if device.get("data") is not None:
        check_raw(problems, f"{field}.data", device["data"])
    if device.get("networkData") is not None:
        _check_network(problems, f"{field}.networkData", device["networkData"])


def _check_conditions(problems: Problems, field: str, conditions: Sequence[Body]) -> None:
    seen = set()
    for index, condition in enumerate(conditions):
        place, kind, status, reason = (
            f"{field}[{index}]",
            condition["type"],
            condition["status"],
            condition["reason"],
        )
        if kind in seen:
            problems.duplicate(f"{place}.type", kind)
        seen.add(kind)
        problems.invalid_for(f"{place}.type", kind, names.label_key(kind))
        if status not in _STATUSES:
            problems.unsupported(f"{place}.status", status, _STATUSES)
        if condition.get("observedGeneration", 0) < 0:
            problems.invalid(
                f"{place}.observedGeneration",
                condition["observedGeneration"],
                "must be greater than or equal to zero",
            )
        if condition["lastTransitionTime"] is None:
            problems.required(f"{place}.lastTransitionTime")
        if reason:
            problems.invalid_for(f"{place}.reason", reason, names.condition_reason(reason))
            if names.size(reason) > _MAX_REASON:
                problems.too_long(f"{place}.reason", _MAX_REASON)
        else:
            problems.required(f"{place}.reason")
        if names.size(condition["message"]) > _MAX_MESSAGE:
            problems.too_long(f"{place}.message", _MAX_MESSAGE)


def _check_network(problems: Problems, field: str, network: Body) -> None:
    for name, limit in (("interfaceName", _MAX_INTERFACE), ("hardwareAddress", _MAX_HARDWARE)):
        if names.size(network.get(name, "")) > limit:
            problems.too_long(f"{field}.{name}", limit)
    addresses = network.get("ips") or ()
    if few_enough(problems, f"{field}.ips", addresses, _MAX_ADDRESSES):
        for index, address in enumerate(addresses):
            names.check_interface_address(problems, f"{field}.ips[{index}]", address)
        check_distinct(problems, f"{field}.ips", addresses, lambda address: address)
