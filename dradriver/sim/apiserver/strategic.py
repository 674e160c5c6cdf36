"""Strategic merge patch, as far as kubectl sends it for nodes and pods. Pure.

Only kinds whose lists have merge keys differ from a merge patch; those of resource.k8s.io have none, and a list is
replaced as a whole. Directives about order and kept keys are left out of account.

Facts: k8s.io/apimachinery/pkg/util/strategicpatch.
"""

from collections.abc import Mapping
from typing import Any, Final

from dradriver.sim.apiserver.fieldsets import same
from dradriver.sim.apiserver.shapes import PLAIN, Merge, Shape

_PATCH: Final = "$patch"
_DELETE_FROM: Final = "$deleteFromPrimitiveList/"
_IGNORED: Final = ("$setElementOrder/", "$retainKeys")


def strategically_merged(value: Any, patch: Any, shape: Shape | None) -> Any:
    """Return `value` with the patch applied; without a shape every list is replaced."""
    return _merged(value, patch, shape or PLAIN)


def _merged(value: Any, patch: Any, shape: Shape) -> Any:
    if isinstance(patch, Mapping):
        return _merged_object(value, patch, shape)
    if isinstance(patch, list) and shape.merge is Merge.KEYED:
        return _merged_list(value if isinstance(value, list) else [], patch, shape)
    if isinstance(patch, list) and shape.merge is Merge.SET and isinstance(value, list):
        return [*value, *(item for item in patch if not any(same(item, known) for known in value))]
    return patch


def _merged_object(value: Any, patch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    replaces = patch.get(_PATCH) == "replace"
    result = dict(value) if isinstance(value, Mapping) and not replaces else {}
    for key, change in patch.items():
        if key == _PATCH or key.startswith(_IGNORED):
            continue
        if key.startswith(_DELETE_FROM):
            name = key.removeprefix(_DELETE_FROM)
            gone = change if isinstance(change, list) else []
            result[name] = [item for item in result.get(name) or [] if item not in gone]
        elif change is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), change, shape.child(key, change))
    return result


def _merged_list(values: list[Any], patch: list[Any], shape: Shape) -> list[Any]:
    changes = [item for item in patch if isinstance(item, Mapping)]
    replaces = any(item.get(_PATCH) == "replace" for item in changes)
    result = [] if replaces else list(values)
    for item in changes:
        if item.get(_PATCH) == "replace":
            continue
        place = next((place for place, known in enumerate(result) if _matches(known, item, shape)), None)
        if item.get(_PATCH) == "delete":
            if place is not None:
                del result[place]
        elif place is None:
            result.append(_merged_object({}, item, shape.item))
        else:
            result[place] = _merged_object(result[place], item, shape.item)
    return result


def _matches(known: Any, item: Mapping[str, Any], shape: Shape) -> bool:
    keys = [key for key in shape.keys if key in item]
    return isinstance(known, Mapping) and bool(keys) and all(known.get(key) == item[key] for key in keys)
