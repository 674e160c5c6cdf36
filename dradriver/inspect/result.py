"""What a check has to say."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Status(Enum):
    """How a check ended, from the best to the worst."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    seen   what was found, for people
    mend   what to do about it; empty where nothing is to be done
    """

    name: str
    status: Status
    seen: str
    mend: str = ""

    def view(self) -> dict[str, Any]:
        """Return the check as plain JSON types."""
        return {
            "name": self.name,
            "status": self.status.value,
            "seen": self.seen,
            **({"mend": self.mend} if self.mend else {}),
        }


def ok(name: str, seen: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name, Status.OK, seen)


def unknown(name: str, seen: str, mend: str = "") -> Check:
    """Return a check that could not be made, or does not tell."""
    return Check(name, Status.UNKNOWN, seen, mend)


def warning(name: str, seen: str, mend: str) -> Check:
    """Return a check that found what may do harm, or will later."""
    return Check(name, Status.WARNING, seen, mend)


def error(name: str, seen: str, mend: str) -> Check:
    """Return a check that found what keeps devices or claims from working."""
    return Check(name, Status.ERROR, seen, mend)


def worst(checks: Iterable[Check]) -> Status:
    """Return the worst status."""
    order = list(Status)
    return max((check.status for check in checks), key=order.index, default=Status.OK)


def counted(number: int, name: str) -> str:
    """Return a number of things, as `1 device`, `2 devices`."""
    return f"{number} {name}{'' if number == 1 else 's'}"
