"""Where ResourceClaims are read from."""

from typing import Any, Protocol

from dradriver.model import ClaimRef


class ClaimNotFoundError(Exception):
    """There is no claim of that namespace and name."""


class ClaimSource(Protocol):
    """A place that has ResourceClaims by namespace and name."""

    def get(self, ref: ClaimRef, deadline: float) -> Any:
        """Return the object as plain JSON types, read now, before `deadline` (time.monotonic() seconds).

        Raises ClaimNotFoundError, or TransientError where asking again may help. The UID is the caller's to
        compare.
        """
