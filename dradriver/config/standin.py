"""A node in place of this host: found by the entry point group `dradriver.nodes`, imported only where configured."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from dradriver.backend import Backend, ConfigError

GROUP = "dradriver.nodes"


class StandIn(Protocol):
    """What the entry point's `of(options, state directory)` returns.

    host_root   what takes the place of `/` once `build` has been called
    backends    the classes that serve its hardware, by kind, in place of installed ones of that kind
    """

    @property
    def host_root(self) -> Path: ...

    @property
    def backends(self) -> Mapping[str, type[Backend[Any, Any]]]: ...

    def build(self) -> None:
        """Make what is not there yet. Raises ConfigError or OSError."""


def find_stand_in(name: str, options: Mapping[str, Any], state: Path) -> StandIn:
    """Return the stand-in that is installed under that name; nothing is built yet. Raises ConfigError."""
    for point in entry_points(group=GROUP, name=name):
        try:
            kind = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(name, f"cannot be imported: {error}") from None
        made: StandIn = kind.of(options, state)
        return made
    raise ConfigError(name, "is not installed")
