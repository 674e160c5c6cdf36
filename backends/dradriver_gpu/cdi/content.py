"""Looking for texts in programs, which tell by them what they are."""

import os
from collections.abc import Collection
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_MAX_BYTES = 256 << 20


def held(path: Path, texts: Collection[str]) -> frozenset[str]:
    """Return those of the texts that a file holds; none where it cannot be read.

    It is read, not mapped: a mapped file that is cut short meanwhile ends the process.
    """
    wanted = {text.encode(): text for text in texts}
    overlap = max(map(len, wanted), default=1) - 1
    found: set[str] = set()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return frozenset()
    try:
        at, before = 0, b""
        while (
            len(found) < len(wanted) and at < _MAX_BYTES and (chunk := os.pread(descriptor, _CHUNK_BYTES, at))
        ):
            at += len(chunk)
            data = before + chunk
            found |= {text for content, text in wanted.items() if content in data}
            before = data[-overlap:] if overlap else b""
    except OSError:
        return frozenset()
    finally:
        os.close(descriptor)
    return frozenset(found)
