"""Showing strings that came from outside."""

from collections.abc import Mapping, Set

_MAX_BITS = 1024


def shown(value: object, limit: int = 64) -> str:
    """Return `value` quoted for a message: control characters escaped, cut after `limit` characters.

    Claim names, UIDs and configuration come from users; a log line or an error must neither be split by
    them nor grow with them. Of an object or a list only the size is told: one that refers to itself again and again
    is small in memory and endless as text.
    """
    text = value if isinstance(value, str) else _text(value)
    cut = text[:limit]
    quoted = ascii(cut)
    if len(text) > limit:
        return f"{quoted}... ({len(text)} characters)"
    return quoted


def _text(value: object) -> str:
    match value:
        case Mapping():
            return f"an object of {len(value)} fields"
        case list() | tuple() | Set():
            return f"a list of {len(value)} items"
        case int() if value.bit_length() > _MAX_BITS:
            return f"an integer of {value.bit_length()} bits"  # Python refuses to print the longest ones
        case _:
            return str(value)


def printable(text: str) -> str:
    """Return `text` as one line of printable characters.

    Blanks and line ends become one blank; everything else that is not printable, such as a control character, a
    direction mark or a lone surrogate, is escaped.
    """
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def plain(text: str, limit: int = 253) -> str:
    """Return `text` as it is where it is short and of printable ASCII without blanks, else as `shown` does.

    For names that are almost always well formed, where quotes would only be in the way.
    """
    if text.isascii() and text.isprintable() and " " not in text and len(text) <= limit:
        return text
    return shown(text)
