"""Where an object was stored otherwise than it was sent."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dradriver.model.text import plain

_MAX_PLACES = 3


def difference(sent: Any, stored: Any) -> str:
    """Return a few of the places for people, as "devices[gpu-0].taints": first what is missing or too much."""
    places = list(islice(_lost(sent, stored, ""), _MAX_PLACES + 1)) or list(
        islice(_changed(sent, stored, ""), _MAX_PLACES + 1)
    )
    more = " and more" if len(places) > _MAX_PLACES else ""
    return ", ".join(places[:_MAX_PLACES]) + more


def _lost(sent: Any, stored: Any, place: str) -> Iterator[str]:
    ours, theirs = _parts(sent), _parts(stored)
    for key in dict.fromkeys((*ours, *theirs)):
        below = _below(place, sent, key)
        if key not in ours or key not in theirs:
            if key != "timeAdded":
                yield below
        else:
            yield from _lost(ours[key], theirs[key], below)


def _changed(sent: Any, stored: Any, place: str) -> Iterator[str]:
    ours, theirs = _parts(sent), _parts(stored)
    if not ours and sent != stored:
        yield place
    for key in ours:
        if key in theirs:
            yield from _changed(ours[key], theirs[key], _below(place, sent, key))


def _parts(value: Any) -> dict[str, Any]:
    """Return the parts of an object, or of a list by the names of its items where they have some."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {
            str(item.get("name", index) if isinstance(item, dict) else index): item
            for index, item in enumerate(value)
        }
    return {}


def _below(place: str, parent: Any, key: str) -> str:
    name = plain(key)
    if isinstance(parent, list):
        return f"{place}[{name}]"
    return f"{place}.{name}" if place else name
