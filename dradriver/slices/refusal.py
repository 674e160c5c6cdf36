"""Which devices an API server means that refuses a slice, so that all others can be published."""

import re
from collections.abc import Collection, Iterable

from dradriver.model import shown
from dradriver.slices.encode import Body

# The paths of k8s.io/apimachinery `field.Path`.
_FIELD = re.compile(r"spec\.(devices|sharedCounters)\[([0-9]{1,9})\](?:\.(.+))?", re.DOTALL)

_MAX_CAUSES = 3
_MAX_MESSAGE = 200


def offenders(spec: Body, causes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the devices or counter sets of a refused slice that the causes name, each with the reason.

    spec     as it was sent
    causes   field and message of each cause in the server's answer, as `spec.devices[3].attributes[model]`

    What is wrong with the slice as a whole names nobody: where nothing comes back, see `only`.
    """
    found: dict[str, list[str]] = {}
    for field, message in causes:
        match = _FIELD.fullmatch(field)
        if match is None:
            continue
        things = spec.get(match[1]) or ()
        if int(match[2]) < len(things):
            where = f"{shown(match[3])}: " if match[3] else ""
            text = f"{where}{shown(message, _MAX_MESSAGE)}"
            texts = found.setdefault(things[int(match[2])]["name"], [])
            if text not in texts:
                texts.append(text)
    return {name: f"the API server refuses it: {_joined(texts)}" for name, texts in found.items()}


def only(spec: Body, names: Collection[str]) -> Body:
    """Return the spec with no other devices and counter sets than these, to be tried in a dry run.

    A refusal that names nobody is narrowed down by halves of the names. One that also meets the spec without any
    device is not about devices.
    """
    part = {key: value for key, value in spec.items() if key not in {"devices", "sharedCounters"}}
    for key in ("devices", "sharedCounters"):
        kept = [one for one in spec.get(key) or () if one["name"] in names]
        if kept:
            part[key] = kept
    return part


def _joined(texts: list[str]) -> str:
    more = f" and {len(texts) - _MAX_CAUSES} more" if len(texts) > _MAX_CAUSES else ""
    return "; ".join(texts[:_MAX_CAUSES]) + more
