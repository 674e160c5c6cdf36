"""What a request must say to be about the object that is there. Pure.

Facts: k8s.io/apiserver pkg/registry/rest (BeforeUpdate), pkg/endpoints/handlers; texts as recorded of a 1.36 server.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dradriver.sim.apiserver.errors import ApiError, FieldError
from dradriver.sim.apiserver.kinds import Kind
from dradriver.sim.apiserver.rules.errors import quoted
from dradriver.sim.apiserver.store import Stored

Body = Mapping[str, Any]

FOREGROUND: Final = "Foreground"
ORPHAN: Final = "Orphan"


class Target(NamedTuple):
    """What a request is about."""

    kind: Kind
    namespace: str
    name: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What a DELETE says besides the object: its preconditions, and what becomes of what the object owns."""

    preconditions: Mapping[str, Any] = field(default_factory=dict)
    propagation: str = ""
    dry_run: bool = False


def parsed(text: bytes) -> Any:
    """Return a body as JSON. Raises ApiError (400)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"error decoding patch: {error}") from None


def delete_options(text: bytes, query: Mapping[str, str]) -> DeleteOptions:
    """Return the options in the body and the parameters of a DELETE. Raises ApiError (400, 422)."""
    body = parsed(text) if text.strip() else {}
    if not isinstance(body, Mapping):
        raise ApiError(400, "DeleteOptions is an object")
    propagation = body.get("propagationPolicy") or query.get("propagationPolicy", "")
    if body.get("orphanDependents") is True:
        propagation = ORPHAN
    if propagation not in {"", "Background", FOREGROUND, ORPHAN}:
        raise ApiError(
            422,
            f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "{propagation}"',
        )
    preconditions = body.get("preconditions") or {}
    if not isinstance(preconditions, Mapping):
        raise ApiError(400, "DeleteOptions: preconditions is an object")
    return DeleteOptions(preconditions, propagation, body.get("dryRun") == ["All"])


def sent_namespace(target: Target, sent: Body) -> str:
    """Return the namespace of an object that was sent. Raises ApiError (400) where it is not that of the URL."""
    if not target.kind.namespaced:
        return ""
    namespace: str = sent["metadata"].get("namespace") or target.namespace
    if namespace != target.namespace:
        raise ApiError(
            400, "the namespace of the provided object does not match the namespace sent on the request"
        )
    return namespace


def check_place(target: Target, sent: Body) -> None:
    """Raise ApiError (400) where an object has not the namespace and the name of the URL."""
    sent_namespace(target, sent)
    name = sent["metadata"].get("name")
    if not name:
        raise ApiError(
            400,
            f"the name of the object ({target.name} based on URL) was undeterminable: name must be provided",
        )
    if name != target.name:
        raise ApiError(
            400, f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )


def check_version(kind: Kind, old: Stored, metadata: Body) -> None:
    """Raise ApiError (409, 422) where an update is of another version, or of another object, than the stored one."""
    uid, version = metadata.get("uid"), metadata.get("resourceVersion") or ""
    if uid and uid != old.uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.uid}"
        raise ApiError.conflict(kind, old.name, why)
    if version and not (version.isascii() and version.isdigit()):
        raise ApiError(500, f"strconv.ParseUint: parsing {quoted(version)}: invalid syntax", reason="")
    if version in {"", "0"} and not kind.unconditional:
        error = FieldError(
            "metadata.resourceVersion",
            "FieldValueInvalid",
            "Invalid value: 0: must be specified for an update",
        )
        raise ApiError.invalid(kind, old.name, [error])
    if version not in {"", "0", str(old.version)}:
        raise ApiError.conflict(kind, old.name)


def check_preconditions(old: Stored, preconditions: Body) -> None:
    """Raise ApiError (409) where a DELETE is of another version, or of another object, than the stored one."""
    uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
    if uid is not None and uid != old.uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.uid}"
        raise ApiError.conflict(old.kind, old.name, why)
    if version is not None and version != str(old.version):
        why = (
            f"Precondition failed: ResourceVersion in precondition: {version}, "
            f"ResourceVersion in object meta: {old.version}"
        )
        raise ApiError.conflict(old.kind, old.name, why)
