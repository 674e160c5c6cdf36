"""metav1.Time: RFC 3339 in, whole seconds of UTC out."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from dradriver.sim.apiserver.rules.errors import quoted

_LAYOUT: Final = '"2006-01-02T15:04:05Z07:00"'
_PARTS: Final = re.compile(
    r"(\d{4})(?:-(\d{2})(?:-(\d{2})(?:T(\d{2})(?::(\d{2})(?::(\d{2})(?:[.,]\d+)?(Z|[+-]\d{2}:\d{2})?)?)?)?)?)?",
    re.ASCII,
)
_ELEMENTS: Final = ("2006", "-01", "-02", "T15", ":04", ":05", "Z07:00")


def utc_text(time: datetime) -> str:
    """Return a time as the server writes it."""
    return f"{time.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat()}Z"


def parse_time(text: str) -> str:
    """Return an RFC 3339 time as the server writes it. Raises ValueError, about as Go's time package words it."""
    match = _PARTS.match(text)
    groups = match.groups() if match else (None,) * len(_ELEMENTS)
    if match is None or None in groups:
        raise ValueError(_unparsed(text, match.end() if match else 0, groups.index(None)))
    if match.end() < len(text):
        raise ValueError(f"parsing time {quoted(text)}: extra text: {quoted(text[match.end() :])}")
    *numbers, zone = groups
    try:
        year, month, day, hour, minute, second = (int(number) for number in numbers if number)
        time = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        if zone and zone != "Z":
            offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
            time = time - offset if zone[0] == "+" else time + offset
    except (ValueError, OverflowError):
        raise ValueError(f"parsing time {quoted(text)}: value out of range") from None
    return utc_text(time)


def _unparsed(text: str, end: int, missing: int) -> str:
    element = _ELEMENTS[missing]
    rest = text[end:]
    if element[0] in "-T:" and rest[:1] == element[0]:
        element, rest = element[1:], rest[1:]
    return f"parsing time {quoted(text)} as {_LAYOUT}: cannot parse {quoted(rest)} as {quoted(element)}"
