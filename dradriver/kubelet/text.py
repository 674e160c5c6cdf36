"""Sentences for the kubelet, which shows them to people in events and in pod status."""

from dradriver.model.text import printable

MAX_CHARACTERS = 1000
"""The kubelet cuts a health message at 1,024 characters, the API server an event at as many."""


def sentence(text: str) -> str:
    """Return `text` as one printable line of at most `MAX_CHARACTERS` that protobuf can encode.

    Blanks and what cannot be printed become what `dradriver.model.text.printable` makes of them.
    """
    line = printable(text[: MAX_CHARACTERS + 1])
    if len(text) <= MAX_CHARACTERS and len(line) <= MAX_CHARACTERS:
        return line
    tail = f"... ({len(text)} characters)"
    return line[: MAX_CHARACTERS - len(tail)] + tail
