"""Lists: selected, in pages, of one moment. A page's token names the moment, of which a few are kept."""

import base64
import binascii
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.kinds import Kind
from dradriver.sim.apiserver.selectors import Selector
from dradriver.sim.apiserver.store import Store, Stored, encode, list_body
from dradriver.sim.apiserver.tables import table

_MOMENTS: Final = 32
_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class _Token(NamedTuple):
    """Where a page starts; version -1 stands for whatever there is by then."""

    version: int
    after: tuple[str, str]

    def text(self) -> str:
        content = {"v": "meta.k8s.io/v1", "rv": self.version, "start": list(self.after)}
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> "_Token":
        try:
            padded = text + "=" * (-len(text) % 4)
            content = json.loads(base64.urlsafe_b64decode(padded))
            namespace, name = content["start"]
            return cls(int(content["rv"]), (str(namespace), str(name)))
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise ApiError(400, f"continue key is not valid: {error}") from None


class Lists:
    """Answers lists from a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = threading.Lock()
        self._moments: OrderedDict[tuple[str, str, int], list[Stored]] = OrderedDict()

    def forget(self) -> None:
        """Forget the moments of lists under way: their tokens have expired."""
        with self._guard:
            self._moments.clear()

    def answer(
        self, kind: Kind, namespace: str, selector: Selector, query: Mapping[str, str], as_table: str
    ) -> bytes:
        """Return the JSON of a list, or of a table of it. Raises ApiError (400, 410, 504)."""
        token = _Token.read(query["continue"]) if query.get("continue") else None
        objects, version = self._moment(kind, namespace, token, query)
        if token is not None:
            objects = [stored for stored in objects if stored.key > token.after]
        if not selector.unlimited:
            objects = [stored for stored in objects if selector.matches(stored.obj)]
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        limit = _limit(query)
        if limit and len(objects) > limit:
            left = len(objects) - limit
            objects = objects[:limit]
            metadata["continue"] = _Token(version, objects[-1].key).text()
            if selector.unlimited:
                metadata["remainingItemCount"] = left
        if as_table:
            return encode(table(kind.name, objects, metadata, as_table))
        return list_body(kind, objects, metadata)

    def _moment(
        self, kind: Kind, namespace: str, token: _Token | None, query: Mapping[str, str]
    ) -> tuple[list[Stored], int]:
        if token is not None and token.version >= 0:
            with self._guard:
                kept = self._moments.get((kind.name, namespace, token.version))
            if kept is None:
                metadata = {"continue": _Token(-1, token.after).text()}
                raise ApiError.expired(_TOO_OLD, metadata)
            return kept, token.version
        objects, version = self._store.snapshot(kind, namespace)
        if token is None:
            _check_version(query, version)
        if query.get("limit"):
            with self._guard:
                self._moments[kind.name, namespace, version] = objects
                while len(self._moments) > _MOMENTS:
                    self._moments.popitem(last=False)
        return objects, version


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ApiError(400, f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text or 0)


def _check_version(query: Mapping[str, str], current: int) -> None:
    text = query.get("resourceVersion", "")
    if not text:
        return
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ApiError(400, f"Invalid value: {text!r}: invalid resourceVersion")
    if int(text) > current:
        causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
        raise ApiError(
            504,
            f"Too large resource version: {text}, current: {current}",
            details={"causes": causes},
            retry_after=1,
        )
    if query.get("resourceVersionMatch") == "Exact" and int(text) != current:
        raise ApiError.expired("The resourceVersion for the provided list is too old.")
