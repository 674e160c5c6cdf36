"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386). Pure: the objects that are patched stay as they are."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.fieldsets import same

MAX_OPERATIONS: Final = 10_000
"""As many as the API server takes in one JSON patch (its limit against patches that explode)."""

_MAX_DIGITS: Final = 9
"""Of an index: no list here is so long, and Python reads no number of any length."""


def merged(value: Any, patch: Any) -> Any:
    """Return `value` with a merge patch applied: objects are merged, null removes, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(value) if isinstance(value, Mapping) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), change)
    return result


def patched(value: Any, operations: Any) -> Any:
    """Return `value` with a JSON patch applied.

    Raises ApiError: 400 for what is no patch, 422 for a path that is not there or a test that fails, 413 for too many
    operations.
    """
    if not isinstance(operations, list) or not all(
        isinstance(operation, Mapping) for operation in operations
    ):
        raise ApiError(400, "error decoding patch: a JSON array of operations is expected")
    if len(operations) > MAX_OPERATIONS:
        raise ApiError(
            413,
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}",
        )
    result = copy.deepcopy(value)
    for operation in operations:
        result = _applied(result, operation)
    return result


def _applied(document: Any, operation: Mapping[str, Any]) -> Any:
    name = operation.get("op")
    apply = _OPERATIONS.get(name) if isinstance(name, str) else None
    if apply is None:
        raise ApiError(422, f"Unexpected kind: {name}", reason="Invalid")
    return apply(document, _pointer(operation.get("path")), operation)


def _pointer(path: Any) -> list[str]:
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise ApiError(422, f"the path {path!r} is no JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _missing(parts: Sequence[str]) -> ApiError:
    return ApiError(
        422, f"the server rejected our request due to an error in our request: no value at /{'/'.join(parts)}"
    )


def _index(part: str, parts: Sequence[str], end: int) -> int:
    if not part.isascii() or not part.isdigit() or len(part) > _MAX_DIGITS or int(part) >= end:
        raise _missing(parts)
    return int(part)


def _get(document: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(part, parts, len(document))]
        else:
            raise _missing(parts)
    return document


def _add(document: Any, parts: Sequence[str], value: Any) -> Any:
    if not parts:
        return value
    target, last = _get(document, parts[:-1]), parts[-1]
    if isinstance(target, dict):
        target[last] = value
    elif isinstance(target, list):
        place = len(target) if last == "-" else _index(last, parts, len(target) + 1)
        target.insert(place, value)
    else:
        raise _missing(parts)
    return document


def _remove(document: Any, parts: Sequence[str]) -> Any:
    if not parts:
        return None
    target, last = _get(document, parts[:-1]), parts[-1]
    if isinstance(target, dict) and last in target:
        del target[last]
    elif isinstance(target, list):
        del target[_index(last, parts, len(target))]
    else:
        raise _missing(parts)
    return document


def _replace(document: Any, parts: Sequence[str], value: Any) -> Any:
    if not parts:
        return value
    target, last = _get(document, parts[:-1]), parts[-1]
    if isinstance(target, dict) and last in target:
        target[last] = value
    elif isinstance(target, list):
        target[_index(last, parts, len(target))] = value
    else:
        raise _missing(parts)
    return document


def _op_add(document: Any, parts: Sequence[str], operation: Mapping[str, Any]) -> Any:
    return _add(document, parts, copy.deepcopy(operation.get("value")))


def _op_remove(document: Any, parts: Sequence[str], operation: Mapping[str, Any]) -> Any:
    del operation
    return _remove(document, parts)


def _op_replace(document: Any, parts: Sequence[str], operation: Mapping[str, Any]) -> Any:
    return _replace(document, parts, copy.deepcopy(operation.get("value")))


def _op_move(document: Any, parts: Sequence[str], operation: Mapping[str, Any]) -> Any:
    origin = _pointer(operation.get("from"))
    value = _get(document, origin)
    return _add(_remove(document, origin), parts, value)


def _op_copy(document: Any, parts: Sequence[str], operation: Mapping[str, Any]) -> Any:
    return _add(document, parts, copy.deepcopy(_get(document, _pointer(operation.get("from")))))


def _op_test(document: Any, parts: Sequence[str], operation: Mapping[str, Any]) -> Any:
    if not same(_get(document, parts), operation.get("value")):
        raise ApiError(
            422,
            "the server rejected our request due to an error in our request: "
            f"testing value /{'/'.join(parts)} failed",
        )
    return document


_OPERATIONS: Final[Mapping[str, Callable[[Any, Sequence[str], Mapping[str, Any]], Any]]] = {
    "add": _op_add,
    "remove": _op_remove,
    "replace": _op_replace,
    "move": _op_move,
    "copy": _op_copy,
    "test": _op_test,
}
