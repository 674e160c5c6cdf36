"""Showing strings that came from outside."""


def shown(value: object, limit: int = 64) -> str:
    """Return `value` quoted for a message: control characters escaped, cut after `limit` characters.

    Claim names, UIDs and configuration come from users; a log line or an error must neither be split by
    them nor grow with them.
    """
    text = value if isinstance(value, str) else str(value)
    cut = text[:limit]
    quoted = ascii(cut)
    if len(text) > limit:
        return f"{quoted}... ({len(text)} characters)"
    return quoted
