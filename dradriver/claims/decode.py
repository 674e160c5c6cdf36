"""Reading a ResourceClaim: what was allocated, and the configuration that came with it. Pure.

Facts: k8s.io/api/resource/v1 `ResourceClaim`, `AllocationResult`, `DeviceAllocationConfiguration`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from dradriver.backend import API_VERSION, ClaimConfig, ConfigError, decode
from dradriver.model import Allocated, ClaimRef, Quantity, json_quantity, shown
from dradriver.model.names import check_label, check_uid, short_name

API_VERSIONS = tuple(f"resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1beta1"))
"""Those whose claims have allocations of one form."""

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim made from a template: what the pod calls it (`spec.resourceClaims[].name`)."""

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_SURROGATE = re.compile("[\ud800-\udfff]")


T = TypeVar("T")


class ClaimError(Exception):
    """The claim cannot be prepared as it stands; the message is for the pod's event."""


class _Lenient(msgspec.Struct, frozen=True, rename="camel"):
    """A part of an API object. Fields that newer servers add are passed over."""


class _Opaque(_Lenient, frozen=True, rename="camel"):
    driver: str
    parameters: Any = None


class _Config(_Lenient, frozen=True, rename="camel"):
    source: str = ""
    requests: tuple[str, ...] | None = None
    opaque: _Opaque | None = None


class _Result(_Lenient, frozen=True, rename="camel"):
    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    admin_access: bool | None = None
    consumed_capacity: dict[str, Any] | None = None


class _Devices(_Lenient, frozen=True, rename="camel"):
    results: tuple[_Result, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Allocation(_Lenient, frozen=True, rename="camel"):
    devices: _Devices = _Devices()


class _Consumer(_Lenient, frozen=True, rename="camel"):
    resource: str = ""
    uid: str = ""


class _Status(_Lenient, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] | None = None


class _Metadata(_Lenient, frozen=True, rename="camel"):
    name: str
    namespace: str = "default"
    uid: str = ""
    annotations: dict[str, Any] | None = None


class _Named(_Lenient, frozen=True, rename="camel"):
    metadata: _Metadata


class _Claim(_Lenient, frozen=True, rename="camel"):
    metadata: _Metadata
    status: _Status | None = None


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """One opaque configuration entry of an allocation.

    requests   the requests that it is for, all where empty
    path       where it stands in the claim, for messages
    """

    driver: str
    requests: tuple[str, ...]
    parameters: Any
    path: str

    def names(self, allocated: Allocated) -> bool:
        """Whether the entry names the request of that result, in full or by its base."""
        return allocated.request in self.requests or allocated.base_request in self.requests


@dataclass(frozen=True, slots=True)
class Claim:
    """An allocated claim: the results of all drivers, and the configuration, class before claim.

    pod_claim   what the pod calls a claim that was made from a template, else empty
    pods        the UIDs of the pods that it is reserved for by name
    """

    ref: ClaimRef
    results: tuple[Allocated, ...]
    configs: tuple[OpaqueConfig, ...]
    pod_claim: str = ""
    pods: tuple[str, ...] = ()


def claim_ref(obj: object) -> ClaimRef:
    """Return the identity of a ResourceClaim object."""
    metadata = _parse(obj, _Named).metadata
    return ClaimRef(metadata.uid, metadata.namespace, metadata.name)


def read_claim(obj: object, ref: ClaimRef, driver: str = "") -> Claim:
    """Return what was allocated to the claim `ref`, or raise ClaimError where `obj` is not it or says nothing.

    With a `driver`, an amount that cannot be read is an error in its own results only: those of others are not ours
    to judge, and are passed over.
    """
    claim = _parse(obj, _Claim)
    if claim.metadata.uid != ref.uid:
        raise ClaimError(f"claim was replaced: its uid is now {shown(claim.metadata.uid)}")
    try:
        check_uid(ref.uid)
    except ValueError as error:
        raise ClaimError(f"claim.metadata.uid: {error}") from None
    allocation = claim.status.allocation if claim.status else None
    if allocation is None:
        raise ClaimError("claim is not allocated")
    devices = allocation.devices
    path = "status.allocation.devices"
    _check_text(cast("Mapping[str, Any]", obj)["status"]["allocation"].get("devices"), path)
    results = tuple(
        _allocated(result, f"{path}.results[{n}]", strict=driver in {"", result.driver})
        for n, result in enumerate(devices.results or ())
    )
    entries = [(entry, f"{path}.config[{n}]") for n, entry in enumerate(devices.config or ())]
    entries.sort(key=lambda entry: entry[0].source != "FromClass")
    configs = tuple(
        OpaqueConfig(entry.opaque.driver, entry.requests or (), entry.opaque.parameters, where)
        for entry, where in entries
        if entry.opaque
    )
    consumers = (claim.status.reserved_for if claim.status else None) or ()
    pods = tuple(dict.fromkeys(one.uid for one in consumers if one.resource == "pods" and one.uid))
    return Claim(ref, results, configs, _pod_claim(claim.metadata.annotations or {}), pods)


def _pod_claim(annotations: Mapping[str, Any]) -> str:
    """Return the pod's name of the claim. Anybody may write an annotation: what is no such name counts as none."""
    name = annotations.get(POD_CLAIM)
    try:
        return check_label(name, POD_CLAIM) if isinstance(name, str) else ""
    except ValueError:
        return ""


def _parse(obj: object, kind: type[T]) -> T:
    if not isinstance(obj, Mapping) or obj.get("kind") != "ResourceClaim":
        raise ClaimError("not a ResourceClaim object")
    version = obj.get("apiVersion")
    if version not in API_VERSIONS:
        raise ClaimError(f"claim.apiVersion: {shown(version)} is not one of {', '.join(API_VERSIONS)}")
    try:
        return decode(kind, obj, "claim")
    except ConfigError as error:
        raise ClaimError(str(error)) from None


def _check_text(value: Any, path: str) -> None:
    """Raise ClaimError where a string cannot be written as UTF-8: it could be neither journalled nor passed on."""
    try:
        msgspec.json.encode(value)
    except (OverflowError, RecursionError, TypeError, ValueError):
        pass  # For such a string, or for something else: the walk tells.
    else:
        return
    pending = [(value, path)]
    while pending:
        value, path = pending.pop()
        match value:
            case str() if _SURROGATE.search(value):
                raise ClaimError(
                    f"{path}: {shown(value)} is not Unicode text: there is a surrogate by itself"
                )
            case Mapping():
                for key, inner in value.items():
                    where = f"{path}.{key}" if _PLAIN.fullmatch(key) else f"{path}[{shown(key)}]"
                    pending += [(inner, where), (key, where)]
            case list() | tuple():
                pending.extend((inner, f"{path}[{n}]") for n, inner in enumerate(value))


def _allocated(result: _Result, path: str, *, strict: bool) -> Allocated:
    consumed: dict[str, Quantity] = {}
    try:
        _read_amounts(result, path, consumed)
    except ClaimError:
        if strict:
            raise
    return Allocated(
        request=result.request,
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        consumed=consumed,
        share_id=result.share_id,
        admin=bool(result.admin_access),
    )


def _read_amounts(result: _Result, path: str, consumed: dict[str, Quantity]) -> None:
    """Add what the result consumes to `consumed`."""
    for name, amount in (result.consumed_capacity or {}).items():
        key = short_name(name, result.driver)
        where = f"{path}.consumedCapacity[{shown(name)}]"
        if key in consumed:
            raise ClaimError(f"{where}: given twice, with and without the driver's domain")
        try:
            consumed[key] = json_quantity(amount)
        except ValueError as error:
            raise ClaimError(f"{where}: {error}") from None


def layered(
    allocated: Allocated,
    entries: Sequence[OpaqueConfig],
    own: Sequence[type[ClaimConfig]],
    known: Mapping[str, type[ClaimConfig]],
) -> dict[str, dict[str, Any]]:
    """Return the configuration for one result by kind: fields of later entries win over those of earlier ones.

    own     the types that the result's backend understands
    known   every type that any backend of this daemon understands, by kind

    An entry of another backend's type is passed over where it names no request, and an error where it names this
    one. Each entry is checked by itself, so that a wrong field is reported where it stands. Raises ClaimError.
    """
    kinds = {kind.__name__: kind for kind in own}
    merged: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry.driver != allocated.driver or (entry.requests and not entry.names(allocated)):
            continue
        path = f"{entry.path}.opaque.parameters"
        kind, fields = _fields(entry.parameters, path, known)
        if kind not in kinds:
            if entry.requests:
                raise ClaimError(
                    f"{path}.kind: {kind} does not fit request {shown(allocated.request)}, "
                    f"whose device takes {_listed(kinds)}"
                )
            continue
        typed(kinds[kind], fields, path)
        merged[kind] = merged.get(kind, {}) | fields
    for kind, fields in merged.items():
        typed(kinds[kind], fields, f"{kind} (of class and claim together)")
    return merged


def typed(kind: type[ClaimConfig], fields: Mapping[str, Any], path: str) -> ClaimConfig:
    """Return the fields as that type; raise ClaimError with the path of what is wrong."""
    try:
        return decode(kind, fields, path)
    except ConfigError as error:
        raise ClaimError(str(error)) from None


def _fields(parameters: Any, path: str, known: Mapping[str, type[ClaimConfig]]) -> tuple[str, dict[str, Any]]:
    if not isinstance(parameters, Mapping):
        raise ClaimError(f"{path}: an object with apiVersion and kind is expected")
    version = parameters.get("apiVersion")
    if version != API_VERSION:
        found = "and is missing" if version is None else f"found {shown(version)}"
        raise ClaimError(f"{path}.apiVersion: {API_VERSION} is expected, {found}")
    kind = parameters.get("kind")
    if not isinstance(kind, str) or kind not in known:
        raise ClaimError(f"{path}.kind: {shown(kind)} is unknown; known are {_listed(known)}")
    return kind, {key: value for key, value in parameters.items() if key not in {"apiVersion", "kind"}}


def _listed(kinds: Mapping[str, object]) -> str:
    return ", ".join(sorted(kinds)) or "no configuration"
