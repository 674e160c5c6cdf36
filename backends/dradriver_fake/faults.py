"""Faults: what goes wrong with which device, as the configuration or the file `faults.yaml` says."""

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from dradriver.backend import Strict, decode

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Times = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]

Deed = Literal["vanish", "sick", "odd", "unready", "fail", "busy", "hang", "crash"]
Point = Literal["probe", "observe", "create", "unrecorded", "half", "created", "destroy", "destroyed"]

_STATES = {"vanish", "sick", "odd", "unready"}


class Fault(Strict, frozen=True, kw_only=True):
    """One thing that goes wrong.

    device    name of a device, or of the card that it is a part of; `*` and `?` stand for any letters
    does      vanish: it is not on the bus; a card loses what was created on it
              sick: it is reported unhealthy; odd: its driver answers nonsense, so it is reported unhealthy
              unready: a GPU with binding conditions does not meet them
              fail: the operation ends with an error; busy: with one that passes by itself
              hang: the operation does not end; crash: the daemon is killed (SIGKILL) in the midst of it
    at        where the last four happen, "create" where not said:
              probe and observe: as the hardware is looked at
              create: before anything is made; unrecorded: made, and the daemon does not know yet
              half: after the first of two parts; created: after the last
              destroy: before anything is removed; destroyed: after that
              Of the first four it says what starts them; nothing does where it is not said: they are there at once
    nth       the first time that counts, from 1 on
    times     how many times it happens; always where not said
    after     seconds until it is there: from when the script is first seen, or from what starts it
    for       seconds until it is gone again; of a hang, how long each one takes
    message   said instead of the usual message
    """

    device: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9*?-]{1,63}\Z")]
    does: Deed
    at: Point | None = None
    nth: Times = 1
    times: Times | None = None
    after: Seconds = 0.0
    seconds: Seconds | None = msgspec.field(name="for", default=None)
    message: Annotated[str, msgspec.Meta(pattern=r"^[ -~]{0,200}\Z")] = ""

    def __post_init__(self) -> None:
        """Refuse a state that happens a number of times."""
        if self.is_state and self.times is not None:
            raise ValueError(f"times: a device that is {self.does} is so for a time: use for")

    @property
    def is_state(self) -> bool:
        """Whether it lasts, rather than happening at an operation."""
        return self.does in _STATES

    @property
    def point(self) -> Point | None:
        """The operation at which it is counted; None for a state that nothing starts."""
        return self.at if self.at or self.is_state else "create"

    def concerns(self, names: Iterable[str]) -> bool:
        """Return whether one of a device's names is meant."""
        return any(fnmatch.fnmatchcase(name, self.device) for name in names)


def decode_faults(value: Any, path: str) -> tuple[Fault, ...]:
    """Return a list of faults from plain JSON types; nothing at all is an empty list. Raises ConfigError."""
    return decode(tuple[Fault, ...], [] if value is None else value, path)


def encode_faults(faults: Sequence[Fault]) -> Any:
    """Return faults as plain JSON types, without what is not said."""
    return [
        {key: value for key, value in msgspec.to_builtins(fault).items() if value not in {None, "", 0.0}}
        for fault in faults
    ]
