"""Rules for `metadata`: what it may say, and what an update cannot change.

Facts: apimachinery `api/validation/objectmeta.go`, pkg/apis/core/validation.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from dradriver.sim.apiserver.rules import names
from dradriver.sim.apiserver.rules.body import compact
from dradriver.sim.apiserver.rules.errors import Literal, Problems

_MAX_ANNOTATIONS: Final = 256 * 1024
_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})

NameRule = Callable[[str], names.Texts]


def without_repeated_owners(meta: dict[str, Any]) -> list[str]:
    """Drop owner references that are there twice, and return the server's warning about it."""
    owners = meta.get("ownerReferences") or []
    kept, uids, repeated = [], set(), []
    for owner in owners:
        if owner["uid"] in uids:
            repeated.append(owner["uid"])
        uids.add(owner["uid"])
        if owner not in kept:
            kept.append(owner)
    if not repeated:
        return []
    meta["ownerReferences"] = kept
    return [
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may "
        "reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
        + ", ".join(dict.fromkeys(repeated))
    ]


def dns_subdomain_name(name: str) -> names.Texts:
    """Check the name of most kinds."""
    return names.subdomain(name)


def class_name(name: str) -> names.Texts:
    """Check the name of a DeviceClass: the same, in newer words."""
    return names.subdomain(name, "bytes")


def namespace_name(name: str) -> names.Texts:
    """Check the name of a Namespace."""
    return names.label(name)


def check_create(
    problems: Problems, meta: Mapping[str, Any], *, namespaced: bool, rule: NameRule, field: str = "metadata"
) -> None:
    """Check the metadata of a new object, and of a changed one where the rules of its kind look at all of it again."""
    prefix, name = meta.get("generateName", ""), meta.get("name", "")
    # Newer kinds (DeviceClass) look at the name alone, which is made of the prefix.
    if prefix and rule is not class_name:
        problems.invalid_for(f"{field}.generateName", prefix, rule(_without_dash(prefix)))
    if name:
        problems.invalid_for(f"{field}.name", name, rule(name))
    else:
        problems.required(f"{field}.name", "name or generateName is required")
    if namespaced:
        namespace = meta.get("namespace", "")
        if namespace:
            problems.invalid_for(f"{field}.namespace", namespace, names.label(namespace))
        else:
            problems.required(f"{field}.namespace")
    if meta.get("generation", 0) < 0:
        problems.invalid(f"{field}.generation", meta["generation"], "must be greater than or equal to 0")
    _check_common(problems, meta, field)
    _check_finalizers(problems, meta, field)
    _check_standard_finalizers(problems, meta, field)


def check_update(problems: Problems, meta: Mapping[str, Any], existing: Mapping[str, Any]) -> None:
    """Check the metadata of a changed object, twice as the server does: before the rules of its kind, and with them."""
    _check_changes(problems, meta, existing, "metadata")
    _check_changes(problems, meta, existing, "metadata")
    _check_standard_finalizers(problems, meta, "metadata")


def _check_changes(
    problems: Problems, meta: Mapping[str, Any], existing: Mapping[str, Any], field: str
) -> None:
    if existing.get("deletionTimestamp"):
        added = sorted(set(meta.get("finalizers") or ()) - set(existing.get("finalizers") or ()))
        if added:
            listed = ", ".join(f'"{one}"' for one in added)
            problems.forbidden(
                f"{field}.finalizers",
                "no new finalizers can be added if the object is being deleted, found new finalizers "
                f"[]string{{{listed}}}",
            )
    for name in ("name", "namespace", "uid"):
        if meta.get(name, "") != existing.get(name, ""):
            problems.invalid(f"{field}.{name}", meta.get(name, ""), "field is immutable")
    _check_common(problems, meta, field)


def check_labels(problems: Problems, meta: Mapping[str, Any], field: str) -> None:
    """Check the labels and annotations of an object or a template."""
    for key, value in (meta.get("labels") or {}).items():
        problems.invalid_for(f"{field}.labels", key, names.label_key(key))
        problems.invalid_for(f"{field}.labels", value, names.label_value(value))
    total = 0
    for key, value in (meta.get("annotations") or {}).items():
        problems.invalid_for(f"{field}.annotations", key, names.label_key(key.lower()))
        total += names.size(key) + names.size(value)
    if total > _MAX_ANNOTATIONS:
        problems.too_long(f"{field}.annotations", _MAX_ANNOTATIONS)


def _without_dash(prefix: str) -> str:
    """Return a prefix with a harmless end: what follows it may make "name-" right."""
    return f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix


def _check_common(problems: Problems, meta: Mapping[str, Any], field: str) -> None:
    check_labels(problems, meta, field)
    controller = ""
    for owner in meta.get("ownerReferences") or ():
        _check_owner(problems, owner, f"{field}.ownerReferences")
        if owner.get("controller"):
            this = f"{owner['kind']}/{owner['name']}"
            if controller:
                problems.invalid(
                    f"{field}.ownerReferences",
                    Literal(compact(meta["ownerReferences"])),
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller} and {this}",
                )
            controller = controller or this


def _check_owner(problems: Problems, owner: Mapping[str, Any], field: str) -> None:
    version = owner["apiVersion"]
    if not version.rpartition("/")[2]:
        problems.invalid(f"{field}.apiVersion", version, "version must not be empty")
    for name in ("kind", "name", "uid"):
        if not owner[name]:
            problems.invalid(f"{field}.{name}", "", "must not be empty")
    if version == "v1" and owner["kind"] == "Event":
        problems.invalid(field, Literal(compact(owner)), "/v1, Kind=Event is disallowed from being an owner")


def _check_finalizers(problems: Problems, meta: Mapping[str, Any], field: str) -> None:
    finalizers = meta.get("finalizers") or ()
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        why = "finalizer orphan and foregroundDeletion cannot be both set"
        problems.invalid(f"{field}.finalizers", Literal(compact(finalizers)), why)
    for name in finalizers:
        problems.invalid_for(f"{field}.finalizers", name, names.label_key(name))


def _check_standard_finalizers(problems: Problems, meta: Mapping[str, Any], field: str) -> None:
    for index, name in enumerate(meta.get("finalizers") or ()):
        if "/" not in name and name not in _FINALIZERS:
            problems.invalid(
                f"{field}.finalizers[{index}]",
                name,
                "name is neither a standard finalizer name nor is it fully qualified",
            )
