"""The one place where the server meets the rules: bodies are read, objects checked, refusals made errors."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from dradriver.sim.apiserver import rules
from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.kinds import Kind
from dradriver.sim.apiserver.store import Stored

Body = Mapping[str, Any]
_T = TypeVar("_T")

_GATED_SINCE: Final = 36
"""The minor version from which DeviceTaintRules are served as v1beta2: 1.35 has the gate, with an older API."""


class PanickedError(Exception):
    """The handler of a real server panics at this request: it closes the connection without an answer."""


class Validation:
    """The rules of one version of the server with its feature gates, both of which can be switched."""

    def __init__(self, version: str, gates: Mapping[str, bool]) -> None:
        """Raises ValueError for a version or a gate without rules."""
        self.switch(version, gates)

    def switch(self, version: str, gates: Mapping[str, bool]) -> None:
        """Take other rules from now on. Raises ValueError."""
        self._gates = rules.Gates.of(version, gates)
        self.version = version

    def serves(self, kind: Kind) -> bool:
        """Whether the version with its gates has the kind."""
        return not kind.gate or (kind.gate in self._gates and self._gates.minor >= _GATED_SINCE)

    def parse(self, kind: Kind, text: bytes) -> rules.Body:
        """Read a request's body as JSON. Raises ApiError (400)."""
        return _checked(kind, lambda: rules.Body.parse(text))

    def decode(self, kind: Kind, obj: rules.Body | Body, how: str) -> rules.Result:
        """Read a request's body, or what a patch has made; `how` is the fieldValidation. Raises ApiError (400)."""
        return _checked(kind, lambda: rules.decode(kind.name, obj, self._gates, how))

    def create(self, kind: Kind, obj: Body, *, admin: bool) -> rules.Result:
        """Complete and check a new object, which was read here; `admin` allows admin access. Raises ApiError."""
        return _checked(kind, lambda: rules.create(kind.name, obj, self._gates, admin=admin))

    def update(self, kind: Kind, obj: Body, existing: Body, subresource: str, *, admin: bool) -> rules.Result:
        """Complete and check a changed object, which was read here. Raises ApiError."""
        return _checked(
            kind, lambda: rules.update(kind.name, obj, existing, self._gates, subresource, admin=admin)
        )

    def as_read(self, stored: Stored) -> Body:
        """Return a stored object as it would be had it come through the API: a test may have put anything there.

        Raises ApiError (400) for one that cannot be read at all.
        """
        if stored.checked:
            return stored.obj
        read = self.decode(stored.kind, stored.obj, "Ignore").obj
        try:
            filled = self.create(stored.kind, copy.deepcopy(read), admin=True).obj
        except ApiError:
            return read
        return {**filled, **{name: read[name] for name in ("metadata", "status") if name in read}}


def _checked(kind: Kind, check: Callable[[], _T]) -> _T:
    try:
        return check()
    except rules.Refused as refused:
        if not refused.code:
            raise PanickedError(refused.message) from None
        details: dict[str, Any] = {}
        if refused.causes:
            causes = [
                {"reason": cause.reason, "message": cause.message, "field": cause.field}
                for cause in refused.causes
            ]
            details = {"group": kind.group, "kind": kind.name, "causes": causes}
        raise ApiError(refused.code, refused.message, reason=refused.reason, details=details) from None
