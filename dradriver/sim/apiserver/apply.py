"""Server-side apply: who owns which fields, what an applied configuration changes, and conflicts. Pure.

Facts: sigs.k8s.io/structured-merge-diff/merge (Updater.Apply, Update, prune) and
k8s.io/apimachinery/pkg/util/managedfields (entries, what is never owned, the text of conflicts).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.fieldsets import (
    NONE,
    Fields,
    FieldsError,
    Path,
    below,
    difference,
    fields_of,
    from_json,
    items,
    shown_path,
    to_json,
    with_parents,
    without,
)
from dradriver.sim.apiserver.kinds import Kind
from dradriver.sim.apiserver.shapes import Merge, Shape, shape_of

Body = Mapping[str, Any]

APPLY: Final = "Apply"
UPDATE: Final = "Update"

_NEVER_OWNED: Final[Sequence[Path]] = (
    ("f:apiVersion",),
    ("f:kind",),
    *(
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "generation",
            "managedFields",
            "resourceVersion",
        )
    ),
)
_METADATA: Final[Path] = ("f:metadata",)


class Owner(NamedTuple):
    """Who changes an object, and through which part of the API."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """The fields of one owner, and when they last changed (RFC 3339)."""

    fields: Fields
    time: str


Owners = dict[Owner, Entry]


def read_owners(managed: Any) -> Owners:
    """Return what `metadata.managedFields` says; nothing where it cannot be read, as the API server has it."""
    owners: Owners = {}
    if not isinstance(managed, list):
        return owners
    for entry in managed:
        if not isinstance(entry, Mapping) or entry.get("operation") not in {APPLY, UPDATE}:
            return {}
        owner = Owner(
            str(entry.get("manager") or ""),
            entry["operation"],
            str(entry.get("apiVersion") or ""),
            str(entry.get("subresource") or ""),
        )
        try:
            owners[owner] = Entry(from_json(entry.get("fieldsV1") or {}), str(entry.get("time") or ""))
        except FieldsError:
            return {}
    return owners


def write_owners(owners: Owners) -> list[dict[str, Any]]:
    """Return the entries of `metadata.managedFields`: applied ones first, then by time and name."""
    entries = []
    for owner, entry in sorted(
        owners.items(), key=lambda item: (item[0].operation, item[1].time, item[0].name, item[0].subresource)
    ):
        written: dict[str, Any] = {
            "manager": owner.name,
            "operation": owner.operation,
            "apiVersion": owner.api_version,
            "time": entry.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_json(entry.fields),
        }
        if owner.subresource:
            written["subresource"] = owner.subresource
        entries.append(written)
    return entries


def all_fields(kind: Kind, obj: Body) -> Fields:
    """Return all fields of an object that can be owned; none where its lists have items that cannot be told apart."""
    try:
        fields = fields_of(obj, shape_of(kind.name))
    except FieldsError:
        return NONE
    return fields - below(fields, _NEVER_OWNED)


def owned_after_update(kind: Kind, old: Body, new: Body, *, owners: Owners, owner: Owner, now: str) -> Owners:
    """Return who owns what after `owner` made `new` of `old`, other than by applying. Nothing conflicts."""
    try:
        changes = difference(old, new, shape_of(kind.name))
    except FieldsError:  # duplicate keys, which only applying forbids
        return owners
    written = _ownable(changes.added | changes.modified, owner)
    if not (written or changes.removed):
        return owners
    result = _robbed(owners, owner, changes.modified | changes.added | changes.removed)
    before = owners.get(owner, Entry(NONE, now)).fields
    fields = (before - changes.removed) | written
    if fields:
        result[owner] = Entry(fields, now if fields != before or written else owners[owner].time)
    else:
        result.pop(owner, None)
    return result


def applied(
    kind: Kind, live: Body, config: Body, *, owners: Owners, owner: Owner, force: bool, now: str
) -> tuple[dict[str, Any], Owners]:
    """Return the object after `owner` applied `config` to `live`, and who owns what.

    Fields that the owner applied before, does not apply any more, and nobody else owns are removed. Raises ApiError:
    409 where another owner's field would change, unless `force` takes it over; 500, as the API server has it, for a
    list whose items cannot be told apart.
    """
    shape = shape_of(kind.name)
    try:
        configured = fields_of(config, shape)
        fields = _ownable(configured, owner)
        merged = merge(live, config, shape)
        before = owners.get(owner)
        # The configuration names the object too, which nobody owns and which must not go.
        claimed = configured.union(*(entry.fields for other, entry in owners.items() if other != owner))
        result = merged if before is None else _pruned(merged, shape, before.fields, claimed)
        changes = difference(live, result, shape)
    except FieldsError as error:
        raise ApiError(500, f"failed to create typed patch object: {error}", reason="InternalError") from None
    changed = changes.added | changes.modified
    conflicts = {
        other: entry.fields & changed
        for other, entry in owners.items()
        if other != owner and entry.fields & changed
    }
    if conflicts and not force:
        raise _conflict(conflicts)
    left = _robbed(owners, owner, changed | changes.removed)
    time = before.time if before is not None and before.fields == fields and not changed else now
    left[owner] = Entry(fields, time)
    if not fields:
        del left[owner]
    return result, left


def _ownable(fields: Fields, owner: Owner) -> Fields:
    """Leave out what cannot be owned, and what a write through this part of the API does not reach."""
    unreached: Iterable[Path] = (("f:spec",), _METADATA) if owner.subresource else (("f:status",),)
    return fields - below(fields, (*_NEVER_OWNED, *unreached)) - {_METADATA}


def _robbed(owners: Owners, owner: Owner, fields: Fields) -> Owners:
    """Return the owners when all but `owner` have lost these fields."""
    left: Owners = {}
    for other, entry in owners.items():
        kept = entry if other == owner else Entry(entry.fields - fields, entry.time)
        if kept.fields:
            left[other] = kept
    return left


def merge(live: Any, config: Any, shape: Shape) -> Any:
    """Return `live` with `config` merged into it. Raises FieldsError."""
    if (
        isinstance(config, Mapping)
        and isinstance(live, Mapping)
        and shape.merge in {Merge.FIELDS, Merge.ENTRIES}
    ):
        result = dict(live)
        for name, value in config.items():
            child = shape.child(name, value)
            result[name] = merge(live[name], value, child) if name in live else value
        return result
    if isinstance(config, list) and isinstance(live, list) and shape.merge in {Merge.KEYED, Merge.SET}:
        both = items(live, shape)
        for name, item in items(config, shape).items():
            known = name in both and shape.merge is Merge.KEYED
            both[name] = merge(both[name], item, shape.item) if known else item
        return list(both.values())
    return config


def _pruned(merged: Any, shape: Shape, before: Fields, claimed: Fields) -> Any:
    """Remove what was applied before, but put back what anybody claims now, and what this owner never had."""
    last = with_parents(before, shape)
    all_fields = with_parents(fields_of(merged, shape), shape)
    pruned = without(merged, last, shape)
    for keep in (with_parents(claimed, shape), all_fields - last):
        left = with_parents(fields_of(pruned, shape), shape)
        pruned = without(merged, all_fields - (left | keep), shape)
    return pruned or {}


def _conflict(conflicts: Mapping[Owner, Fields]) -> ApiError:
    causes = []
    texts = []
    for owner, fields in sorted(conflicts.items()):
        with_subresource = f' with subresource "{owner.subresource}"' if owner.subresource else ""
        who = f'conflict with "{owner.name}"{with_subresource} using {owner.api_version}'
        paths = sorted(map(shown_path, fields))
        causes += [{"reason": "FieldManagerConflict", "message": who, "field": path} for path in paths]
        texts += [f"{who}: {path}" for path in paths]
    number = f"{len(texts)} conflict{'s' if len(texts) > 1 else ''}"
    return ApiError(
        409, f"Apply failed with {number}: {'; '.join(texts)}", reason="Conflict", details={"causes": causes}
    )
