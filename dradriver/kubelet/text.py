"""Sentences for the kubelet, which shows them to people in events and in pod status."""

MAX_CHARACTERS = 1000
"""The kubelet cuts a health message at 1,024 characters, the API server an event at as many."""


def sentence(text: str) -> str:
    """Return `text` as one printable line of at most `MAX_CHARACTERS` that protobuf can encode.

    Blanks and line ends become one blank; everything else that is not printable, such as a control character,
    a direction mark or a lone surrogate, is escaped.
    """
    beginning = text[: MAX_CHARACTERS + 1]
    line = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in " ".join(beginning.split())
    )
    if len(text) <= MAX_CHARACTERS and len(line) <= MAX_CHARACTERS:
        return line
    tail = f"... ({len(text)} characters)"
    return line[: MAX_CHARACTERS - len(tail)] + tail
