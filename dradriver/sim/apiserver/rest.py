"""What the verbs of the API do with objects: create, update, patch, apply and delete, as the API server does.

Facts: k8s.io/apiserver pkg/registry/rest (BeforeCreate, BeforeUpdate), pkg/registry/generic/registry (Store) and
pkg/endpoints/handlers; the texts of errors as recorded of a 1.36 server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from dradriver.sim.apiserver.apply import (
    APPLY,
    UPDATE,
    Entry,
    Owner,
    Owners,
    all_fields,
    applied,
    owned_after_update,
    read_owners,
    write_owners,
)
from dradriver.sim.apiserver.checks import (
    FOREGROUND,
    ORPHAN,
    DeleteOptions,
    Target,
    check_place,
    check_preconditions,
    check_version,
    delete_options,
    parsed,
    sent_namespace,
)
from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.events import event_problems
from dradriver.sim.apiserver.fieldsets import same
from dradriver.sim.apiserver.kinds import EVENT, NAMESPACE, POD, Kind
from dradriver.sim.apiserver.metadata import counted, kept_metadata, new_metadata
from dradriver.sim.apiserver.patches import merged, patched
from dradriver.sim.apiserver.rules import ADMIN_LABEL
from dradriver.sim.apiserver.rules.times import utc_text
from dradriver.sim.apiserver.shapes import shape_of
from dradriver.sim.apiserver.store import Store, Stored, encode, list_body
from dradriver.sim.apiserver.strategic import strategically_merged
from dradriver.sim.apiserver.validation import Validation

Body = Mapping[str, Any]

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
PATCHES: Final = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)

_UNKNOWN: Final = 'unknown field "'
_NAME_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class User:
    """Who asks, as a validating admission policy sees them in `request.userInfo`."""

    name: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Admit = Callable[[User, str, Mapping[str, Any] | None, Mapping[str, Any] | None], str | None]
"""Says why a change is not admitted, None where it is: called with the user, the operation (CREATE, UPDATE, DELETE),
the new object and the old one, as a validating admission policy is; each is None where there is none."""


class Options(NamedTuple):
    """The parameters of a request that changes something."""

    user: User
    manager: str
    dry_run: bool = False
    field_validation: str = "Warn"
    force: bool = False


class Outcome(NamedTuple):
    """The answer to a change: the status, the JSON body, Warning texts, and whether something was changed."""

    status: int
    body: bytes
    warnings: tuple[str, ...] = ()
    changed: bool = False


class Rest:
    """The verbs that change something. Every method raises ApiError, and holds `store.writing` as long as it works."""

    def __init__(self, store: Store, validation: Validation, admit: Admit | None) -> None:
        self._store = store
        self._validation = validation
        self.admit = admit

    def create(self, target: Target, text: bytes, options: Options) -> Outcome:
        """POST: store a new object."""
        sent, warnings = self._decoded(target, text, options)
        namespace = sent_namespace(target, sent)
        with self._store.writing:
            self._needs_namespace(target.kind, namespace)
            if sent["metadata"].get("resourceVersion") and not options.dry_run:
                raise ApiError(
                    500, "resourceVersion should not be set on objects to be created", reason="InternalError"
                )
            name = sent["metadata"].get("name")
            for _ in range(_NAME_TRIES):
                new = self._new(target.kind, namespace, sent)
                if name or self._found(target.kind, new) is None:
                    break
            return self._created(target.kind, new, {}, options, warnings)

    def _decoded(self, target: Target, text: bytes, options: Options) -> tuple[Body, tuple[str, ...]]:
        body = self._validation.parse(target.kind, text)
        read = self._validation.decode(target.kind, body, options.field_validation)
        return read.obj, read.warnings

    def update(self, target: Target, text: bytes, options: Options) -> Outcome:
        """PUT: replace an object, or its status."""
        sent, warnings = self._decoded(target, text, options)
        check_place(target, sent)
        with self._store.writing:
            old = self._store.find(target.kind, target.namespace, target.name)
            if old is None and target.kind.upsert and not target.subresource:
                new = self._new(target.kind, target.namespace, sent)
                return self._created(target.kind, new, {}, options, warnings)
            if old is None:
                raise ApiError.not_found(target.kind, target.name)
            return self._updated(target, old, sent, owners=None, options=options, warnings=warnings)

    def patch(self, target: Target, content_type: str, text: bytes, options: Options) -> Outcome:
        """PATCH: change some fields of an object, or apply a configuration."""
        if content_type == APPLY_PATCH:
            return self._apply(target, text, options)
        patch = parsed(text)
        with self._store.writing:
            old = self._existing(target)
            sent = _patched(content_type, old, patch)
            if not isinstance(sent, Mapping):
                raise ApiError(422, "the patch leaves no object", reason="Invalid")
            read = self._validation.decode(target.kind, sent, options.field_validation)
            check_place(target, read.obj)
            return self._updated(target, old, read.obj, owners=None, options=options, warnings=read.warnings)

    def _apply(self, target: Target, text: bytes, options: Options) -> Outcome:
        config, warnings = self._configuration(target, text, options)
        owner = Owner(options.manager, APPLY, target.kind.api_version, target.subresource)
        now = utc_text(datetime.now(UTC))
        with self._store.writing:
            old = self._store.find(target.kind, target.namespace, target.name)
            if old is None:
                return self._applied_new(target, config, owner, options, warnings)
            live = self._validation.as_read(old)
            owners = _owners_of(old)
            result, owners = applied(
                target.kind, live, config, owners=owners, owner=owner, force=options.force, now=now
            )
            read = self._validation.decode(target.kind, result, "Ignore")
            return self._updated(target, old, read.obj, owners=owners, options=options, warnings=warnings)

    def _configuration(
        self, target: Target, text: bytes, options: Options
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return what is to be applied, as it was sent: what a kind's defaults would add is not owned.

        Unknown fields do not only warn here: they have no place in the schema that merging goes by.
        """
        body = self._validation.parse(target.kind, text)
        ignoring = options.field_validation == "Ignore"
        read = self._validation.decode(target.kind, body, "Warn" if ignoring else options.field_validation)
        unknown = [
            warning.removeprefix(_UNKNOWN).rstrip('"')
            for warning in read.warnings
            if warning.startswith(_UNKNOWN)
        ]
        place = f"{target.namespace}/{target.name}; {target.kind.api_version}, Kind={target.kind.name}"
        if unknown:
            fields = ", ".join(f".{field}: field not declared in schema" for field in unknown)
            raise ApiError(500, f"failed to create typed patch object ({place}): {fields}", reason="")
        metadata = body.object.get("metadata") or {}
        if metadata.get("managedFields"):
            raise ApiError(400, "metadata.managedFields must be nil")
        config = {**body.object, "metadata": {"name": target.name, **metadata}}
        check_place(target, config)
        return config, () if ignoring else read.warnings

    def _applied_new(
        self, target: Target, config: Body, owner: Owner, options: Options, warnings: tuple[str, ...]
    ) -> Outcome:
        if target.subresource:
            raise ApiError.not_found(target.kind, target.name)
        if uid := config["metadata"].get("uid"):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise ApiError.conflict(target.kind, target.name, why)
        self._needs_namespace(target.kind, target.namespace)
        read = self._validation.decode(target.kind, config, "Ignore")
        new = self._new(target.kind, target.namespace, read.obj)
        _, owners = applied(
            target.kind, {}, config, owners={}, owner=owner, force=True, now=utc_text(datetime.now(UTC))
        )
        return self._created(target.kind, new, owners, options, warnings)

    def delete(self, target: Target, text: bytes, options: Options, query: Mapping[str, str]) -> Outcome:
        """DELETE: remove an object, or mark it where it has finalizers."""
        settings = delete_options(text, query)
        with self._store.writing:
            old = self._existing(target)
            return self._deleted(old, settings, options)

    def delete_all(
        self,
        target: Target,
        selected: Callable[[Body], bool],
        text: bytes,
        options: Options,
        query: Mapping[str, str],
    ) -> Outcome:
        """DELETE of a collection: remove the selected objects; answers with a list of them."""
        settings = delete_options(text, query)
        with self._store.writing:
            objects, _ = self._store.snapshot(target.kind, target.namespace)
            chosen = [stored for stored in objects if selected(stored.obj)]
            outcomes = [
                self._deleted(stored, settings, options)
                for stored in chosen
                if self._store.find(target.kind, *stored.key) is not None
            ]
            listed = list_body(target.kind, chosen, {"resourceVersion": str(self._store.version)})
            return Outcome(200, listed, changed=any(outcome.changed for outcome in outcomes))

    def _admin(self, namespace: str) -> bool:
        """Whether admin access may be asked for in that namespace."""
        found = self._store.find(NAMESPACE, "", namespace) if namespace else None
        labels = found.obj["metadata"].get("labels") if found else None
        return (labels or {}).get(ADMIN_LABEL) == "true"

    def _existing(self, target: Target) -> Stored:
        old = self._store.find(target.kind, target.namespace, target.name)
        if old is None:
            raise ApiError.not_found(target.kind, target.name)
        return old

    def _found(self, kind: Kind, new: Body) -> Stored | None:
        metadata = new["metadata"]
        return self._store.find(kind, metadata.get("namespace", ""), metadata.get("name") or "")

    def _needs_namespace(self, kind: Kind, namespace: str) -> None:
        if kind.namespaced and self._store.find(NAMESPACE, "", namespace) is None:
            raise ApiError.not_found(NAMESPACE, namespace)

    def _new(self, kind: Kind, namespace: str, sent: Body) -> dict[str, Any]:
        return {**sent, "metadata": new_metadata(kind, sent["metadata"], namespace, datetime.now(UTC))}

    def _created(
        self, kind: Kind, new: Body, owners: Owners, options: Options, warnings: tuple[str, ...]
    ) -> Outcome:
        metadata = new["metadata"]
        checked = self._validation.create(kind, new, admin=self._admin(metadata.get("namespace", "")))
        obj = dict(checked.obj)
        if kind is EVENT and (problems := event_problems(obj)):
            raise ApiError.invalid(kind, metadata["name"], problems)
        if kind is POD:
            obj["status"] = {"phase": "Pending"}
        warnings = (*warnings, *checked.warnings)
        self._admitted(kind, metadata["name"], options, new=obj, old=None)
        if self._found(kind, obj) is not None:
            raise ApiError.already_exists(kind, metadata["name"])
        if not owners:
            owner = Owner(options.manager, UPDATE, kind.api_version)
            owners = owned_after_update(
                kind, {}, obj, owners={}, owner=owner, now=metadata["creationTimestamp"]
            )
        obj["metadata"] = {**obj["metadata"], "managedFields": write_owners(owners)}
        if options.dry_run:
            return Outcome(201, encode(obj), warnings)
        return Outcome(201, self._store.put(kind, obj).body, warnings, changed=True)

    def _updated(
        self,
        target: Target,
        old: Stored,
        sent: Body,
        *,
        owners: Owners | None,
        options: Options,
        warnings: tuple[str, ...],
    ) -> Outcome:
        """Store what an update makes of the old object; `owners` are those after applying, None for other updates."""
        kind = target.kind
        check_version(kind, old, sent["metadata"])
        existing = self._validation.as_read(old)
        new = replaced(target, existing, sent)
        admin = self._admin(old.key[0])
        checked = self._validation.update(kind, new, existing, target.subresource, admin=admin)
        obj = dict(checked.obj)
        if kind.generation and checked.spec_changed:
            obj["metadata"] = counted(obj["metadata"], old.obj["metadata"])
        if owners is None:
            owners = self._owners_after(target, old, sent, obj, options)
        obj["metadata"] = {**obj["metadata"], "managedFields": write_owners(owners)}
        warnings = (*warnings, *checked.warnings)
        self._admitted(kind, target.name, options, new=obj, old=old.obj)
        if options.dry_run:
            return Outcome(200, encode(obj), warnings)
        if _unchanged(obj, old.obj):
            return Outcome(200, old.body, warnings)
        if obj["metadata"].get("deletionTimestamp") and not obj["metadata"].get("finalizers"):
            self._store.remove(old)
            return Outcome(200, encode(obj), warnings, changed=True)
        return Outcome(200, self._store.put(kind, obj).body, warnings, changed=True)

    def _owners_after(self, target: Target, old: Stored, sent: Body, new: Body, options: Options) -> Owners:
        """Return who owns what after an update; a client may also hand in the entries itself, or `[{}]` for none."""
        written = sent["metadata"].get("managedFields")
        if written == [{}]:
            return {}
        owners = read_owners(written) or _owners_of(old)
        owner = Owner(options.manager, UPDATE, target.kind.api_version, target.subresource)
        now = utc_text(datetime.now(UTC))
        return owned_after_update(target.kind, old.obj, new, owners=owners, owner=owner, now=now)

    def _admitted(
        self, kind: Kind, name: str, options: Options, *, new: Body | None, old: Body | None
    ) -> None:
        verb = "CREATE" if old is None else "DELETE" if new is None else "UPDATE"
        why = self.admit(options.user, verb, new, old) if self.admit else None
        if why is not None:
            details = {"name": name, "group": kind.group, "kind": kind.plural, "causes": [{"message": why}]}
            raise ApiError(
                422, f'{kind.qualified} "{name}" is forbidden: {why}', reason="Invalid", details=details
            )

    def _deleted(self, old: Stored, settings: "DeleteOptions", options: Options) -> Outcome:
        kind = old.kind
        metadata = old.obj["metadata"]
        check_preconditions(old, settings.preconditions)
        self._admitted(kind, old.name, options, new=None, old=old.obj)
        if options.dry_run or settings.dry_run:
            return Outcome(200, _delete_answer(old))
        if metadata.get("finalizers"):
            if metadata.get("deletionTimestamp"):
                return Outcome(200, old.body)
            marked = {
                **metadata,
                "deletionTimestamp": utc_text(datetime.now(UTC)),
                "deletionGracePeriodSeconds": 0,
            }
            stored = self._store.put(kind, {**old.obj, "metadata": marked})
            return Outcome(200, stored.body, changed=True)
        if settings.propagation == ORPHAN:
            self._orphan(old)
        if settings.propagation == FOREGROUND:
            for dependent in self._store.dependents(old.uid):
                if self._store.find(dependent.kind, *dependent.key) is not None:
                    self._deleted(dependent, DeleteOptions(), options)
        return Outcome(200, _delete_answer(self._store.remove(old)), changed=True)

    def _orphan(self, owner: Stored) -> None:
        for dependent in self._store.dependents(owner.uid):
            metadata = dependent.obj["metadata"]
            left = [one for one in metadata["ownerReferences"] if one.get("uid") != owner.uid]
            self._store.put(
                dependent.kind, {**dependent.obj, "metadata": {**metadata, "ownerReferences": left}}
            )


def _patched(content_type: str, old: Stored, patch: Any) -> Any:
    if content_type == JSON_PATCH:
        return patched(dict(old.obj), patch)
    if not isinstance(patch, Mapping):
        raise ApiError(400, "error decoding patch: an object is expected")
    if content_type == STRATEGIC_PATCH:
        return strategically_merged(old.obj, patch, shape_of(old.kind.name) if not old.kind.group else None)
    return merged(old.obj, patch)


def replaced(target: Target, old: Body, sent: Body) -> dict[str, Any]:
    """Return the object that an update makes, before it is checked: the other side of it stays as it was."""
    if target.subresource:
        new = {name: value for name, value in sent.items() if name == "status"}
        rest = {name: value for name, value in old.items() if name != "status"}
        return rest | new
    return {**sent, "metadata": kept_metadata(sent["metadata"], old["metadata"])}


def _unchanged(new: Body, old: Body) -> bool:
    """Whether an update changes nothing but times in managedFields: then nothing is written."""
    return same(_comparable(new), _comparable(old))


def _owners_of(stored: Stored) -> Owners:
    """Return who owns the fields of an object; of one without entries, all belong to nobody in particular.

    So the API server has it: what was there before the first apply must not be taken for what was given up.
    """
    owners = read_owners(stored.obj["metadata"].get("managedFields"))
    if owners:
        return owners
    nobody = Owner("before-first-apply", UPDATE, stored.kind.api_version)
    created = stored.obj["metadata"]["creationTimestamp"]
    return {nobody: Entry(all_fields(stored.kind, stored.obj), created)}


def _comparable(obj: Body) -> dict[str, Any]:
    metadata = dict(obj["metadata"])
    owners = read_owners(metadata.pop("managedFields", None))
    fields = {"|".join(owner): sorted(map(list, entry.fields)) for owner, entry in owners.items()}
    return {**obj, "metadata": {**metadata, "managedFields": fields}}


def _delete_answer(stored: Stored) -> bytes:
    if stored.kind.answer_deleted:
        return stored.body
    details = {
        "name": stored.name,
        "group": stored.kind.group,
        "kind": stored.kind.plural,
        "uid": stored.uid,
    }
    if not stored.kind.group:
        del details["group"]
    return encode(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    )
