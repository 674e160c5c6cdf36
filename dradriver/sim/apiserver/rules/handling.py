"""The way of an object through the server, in front of its storage: decode, default, drop, validate.

Facts: apiserver `endpoints/handlers` and `registry/rest`, the strategies in kubernetes/pkg/registry/resource.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dradriver.model.text import shown
from dradriver.sim.apiserver.kinds import BY_NAME, Kind
from dradriver.sim.apiserver.kinds import Status as StatusPart
from dradriver.sim.apiserver.rules import claims, classes, metadata, slices, status
from dradriver.sim.apiserver.rules.body import Body, compact, with_raw
from dradriver.sim.apiserver.rules.errors import Literal, Problems, Refused, quoted
from dradriver.sim.apiserver.rules.gates import Gates
from dradriver.sim.apiserver.rules.schema import DecodeError, Notes, Struct, unknown_fields
from dradriver.sim.apiserver.rules.times import utc_text
from dradriver.sim.apiserver.rules.types import RAW_PLACES, kind_types, other_type

_WHOLE_METADATA_SINCE: Final = 36
"""The server that checks all of the metadata again when a spec is changed."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """An object as it is stored, the texts of the Warning headers, and whether metadata.generation counts a change."""

    obj: Object
    warnings: tuple[str, ...] = ()
    spec_changed: bool = True


@dataclass(frozen=True, slots=True)
class _Work:
    """An object on its way, and what decides about it."""

    kind: Kind
    made: Object
    existing: Mapping[str, Any] | None
    gates: Gates
    admin: bool


def decode(kind: str, obj: Mapping[str, Any] | Body, gates: Gates, validation: str = "Warn") -> Result:
    """Return `obj` with the fields that its kind has, its values in the server's spelling, and the warnings.

    `validation` is the request's `fieldValidation`: Ignore, Warn or Strict. Empty lists are still there, which
    the checks tell from nothing. Raises Refused (400).
    """
    known = _kind(kind)
    made, warnings = _decoded(known, _struct(known, gates), obj, validation)
    return Result(made, tuple(warnings))


def create(
    kind: str, obj: Mapping[str, Any], gates: Gates, *, admin: bool = False, now: datetime | None = None
) -> Result:
    """Return `obj` as a server with these gates stores it when it is created.

    obj     what `decode` returned, with a new object's metadata; it is used up
    admin   whether the namespace allows admin access (`ADMIN_LABEL`)
    now     the server's clock

    What only a store knows is left to it: resourceVersion, managedFields, whether the name is taken. Raises Refused.
    """
    known = _kind(kind)
    struct = _struct(known, gates)
    made = dict(obj)
    meta = made["metadata"]
    warnings = metadata.without_repeated_owners(meta)
    if known.status is StatusPart.RESET:
        made["status"] = {}
    _fill(known, made, utc_text(now or datetime.now(UTC)))
    work = _Work(known, made, None, gates, admin)
    _drop(work)
    problems = Problems()
    _check_spec(problems, work)
    metadata.check_create(problems, meta, namespaced=known.namespaced, rule=_name_rule(known, gates))
    problems.refuse(known.name, known.group, meta.get("name", ""))
    warnings += _warnings(known, made)
    struct.finish(made)
    return Result(made, tuple(warnings))


def update(
    kind: str,
    obj: Mapping[str, Any],
    existing: Mapping[str, Any],
    gates: Gates,
    subresource: str = "",
    *,
    admin: bool = False,
) -> Result:
    """Return `obj` as a server with these gates stores it in the place of `existing`, which came from here too.

    obj     what `decode` returned, with the metadata that the object is to have; it is used up
    admin   whether the namespace allows admin access (`ADMIN_LABEL`)

    Raises Refused.
    """
    known = _kind(kind)
    if subresource and subresource not in known.subresources:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    struct = _struct(known, gates)
    made = dict(obj)
    meta, old = made["metadata"], existing["metadata"]
    warnings = metadata.without_repeated_owners(meta)
    _fill(known, made, utc_text(datetime.now(UTC)))
    problems = Problems()
    work = _Work(known, made, existing, gates, admin)
    changed = False
    if subresource:
        _update_status(problems, work, existing)
    else:
        changed = _update_spec(problems, work, existing)
    if not subresource and gates.minor >= _WHOLE_METADATA_SINCE and known.name in kind_types(gates.minor):
        metadata.check_create(problems, meta, namespaced=known.namespaced, rule=_name_rule(known, gates))
    metadata.check_update(problems, meta, old)
    problems.refuse(known.name, known.group, meta.get("name", ""))
    if not subresource:
        warnings += _warnings(known, made)
    struct.finish(made)
    return Result(made, tuple(warnings), changed)


def _kind(name: str) -> Kind:
    try:
        return BY_NAME[name]
    except KeyError:
        raise ValueError(f"kind {shown(name)}: served are {', '.join(sorted(BY_NAME))}") from None


def _struct(kind: Kind, gates: Gates) -> Struct:
    return kind_types(gates.minor).get(kind.name) or other_type(kind.name)


def _decoded(
    kind: Kind, struct: Struct, obj: Mapping[str, Any] | Body, validation: str
) -> tuple[Object, list[str]]:
    body = obj if isinstance(obj, Body) else Body(obj)
    value = dict(body.object)
    _check_type(kind, value)
    if body.text and kind.name in RAW_PLACES:
        value = dict(with_raw(value, body.text, RAW_PLACES[kind.name]))
    notes = Notes()
    try:
        made = struct.decode(value, notes)
    except DecodeError as error:
        raise _undecodable(kind, kind.name, str(error)) from None
    made |= {"apiVersion": kind.api_version, "kind": kind.name}
    found = [f"duplicate field {quoted(path)}" for path in body.duplicates]
    if notes.unknown and validation != "Ignore":
        found += unknown_fields(struct, value)
    if found and validation == "Strict":
        raise _undecodable(kind, kind.name, f"strict decoding error: {', '.join(found)}")
    return made, [] if validation == "Ignore" else found


def _check_type(kind: Kind, value: Mapping[str, Any]) -> None:
    version, name = (value.get("apiVersion") or kind.api_version), (value.get("kind") or kind.name)
    if version != kind.api_version:
        raise Refused(
            400,
            "BadRequest",
            f"the API version in the data ({version}) does not match the expected API version ({kind.api_version})",
        )
    if name != kind.name:
        raise _undecodable(
            kind,
            name,
            f'no kind "{name}" is registered for version "{kind.api_version}" in scheme '
            '"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30"',
        )


def _undecodable(kind: Kind, name: str, why: str) -> Refused:
    return Refused(
        400,
        "BadRequest",
        f'{name} in version "{kind.version}" cannot be handled as a {kind.name}: {why}',
    )


def _name_rule(kind: Kind, gates: Gates) -> metadata.NameRule:
    if kind.name == "Namespace":
        return metadata.namespace_name
    if kind.name == "DeviceClass" and gates.minor >= 36:
        return metadata.class_name
    return metadata.dns_subdomain_name


def _fill(kind: Kind, made: Object, now: str) -> None:
    """Set the defaults of the kind."""
    match kind.name:
        case "ResourceSlice":
            slices.set_defaults(made["spec"], now)
        case "ResourceClaim":
            claims.set_defaults(made["spec"])
            status.set_defaults(made["status"])
        case "ResourceClaimTemplate":
            claims.set_defaults(made["spec"]["spec"])
        case "Namespace":
            name = made["metadata"].get("name", "")
            made["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
            made.setdefault("spec", {"finalizers": ["kubernetes"]})
            if not made.get("status"):
                made["status"] = {"phase": "Active"}


def _drop(work: _Work) -> None:
    """Drop the fields of gates that are off."""
    made, gates = work.made, work.gates
    old = work.existing["spec"] if work.existing else None
    match work.kind.name:
        case "ResourceSlice":
            slices.drop_disabled(made["spec"], old, gates)
        case "ResourceClaim":
            claims.drop_disabled(made["spec"], old, gates)
        case "ResourceClaimTemplate":
            claims.drop_disabled(made["spec"]["spec"], old["spec"] if old else None, gates)
        case "DeviceClass":
            classes.drop_disabled(made["spec"], old, gates)


def _check_spec(problems: Problems, work: _Work) -> None:
    gates = work.gates
    spec: Any = work.made.get("spec")
    old = work.existing["spec"] if work.existing else None
    match work.kind.name:
        case "ResourceSlice":
            slices.check_spec(problems, spec, old, gates)
        case "ResourceClaim":
            claims.check_admin(problems, spec, admin=work.admin)
            claims.check_spec(problems, "spec", spec, gates)
        case "ResourceClaimTemplate":
            claims.check_admin(problems, spec["spec"], admin=work.admin)
            metadata.check_labels(problems, spec["metadata"], "spec.metadata")
            claims.check_spec(problems, "spec.spec", spec["spec"], gates)
        case "DeviceClass":
            kept = frozenset() if old is None else _unchanged_parts(_spec_type(work), spec, old)
            classes.check_spec(problems, spec, gates, kept=kept)


def _update_spec(problems: Problems, work: _Work, existing: Mapping[str, Any]) -> bool:
    """Check the update of an object but for its status, and return whether its generation counts it."""
    kind, made = work.kind, work.made
    if kind.has_status:
        _keep(made, existing, ("status",))
    if kind.name not in kind_types(work.gates.minor):
        return bool(made.get("spec") != existing.get("spec"))
    spec = _spec_type(work)
    # A slice's generation counts what was sent, also where a gate then drops it; a class's what is stored.
    sent = not spec.same(made["spec"], existing["spec"])
    _drop(work)
    stored = not spec.same(made["spec"], existing["spec"])
    if kind.generation:
        _check_spec(problems, work)
    elif stored:
        problems.invalid("spec", Literal(compact(spec.internal(made["spec"]))), "field is immutable")
    return sent if kind.name == "ResourceSlice" else stored


def _update_status(problems: Problems, work: _Work, existing: Mapping[str, Any]) -> None:
    made = work.made
    _keep(made, existing, ("spec",))
    if work.kind.name != "ResourceClaim":
        return
    old = existing.get("status") or {}
    status.drop_deallocated(made["status"], old)
    status.drop_disabled(made["status"], old, work.gates)
    whole = kind_types(work.gates.minor)["ResourceClaim"]
    allocation = whole.field_type("status").field_type("allocation")
    status.check_status(problems, made["status"], old, existing, allocation, admin=work.admin)


def _keep(made: Object, existing: Mapping[str, Any], parts: Iterable[str]) -> None:
    """Take parts from what is stored, since this request does not write them."""
    for part in parts:
        if part in existing:
            made[part] = existing[part]
        else:
            made.pop(part, None)


def _unchanged_parts(struct: Struct, spec: Mapping[str, Any], old: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(
        name
        for name in ("selectors", "config")
        if struct.field_type(name).same(spec.get(name), old.get(name))
    )


def _spec_type(work: _Work) -> Struct:
    spec: Struct = kind_types(work.gates.minor)[work.kind.name].field_type("spec")
    return spec


def _warnings(kind: Kind, made: Object) -> list[str]:
    return slices.warnings(made["spec"]) if kind.name == "ResourceSlice" else []
