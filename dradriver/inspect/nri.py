"""Check of the way to the container runtime: what only it can do is refused while it cannot be asked."""

from collections.abc import Iterable, Sequence
from typing import Any

from dradriver.backend import Backend, Phase
from dradriver.config import Runtime
from dradriver.inspect.files import exists
from dradriver.inspect.result import Check, ok, unknown, warning
from dradriver.nri import NriState, NriStatus

_NAME = "NRI"
_ENABLE = (
    "containerd 2.0 and CRI-O 1.30 have NRI on; containerd 1.7 needs disable = false in "
    '[plugins."io.containerd.nri.v1.nri"] and a restart; in a pod mount the socket\'s directory'
)


def check_nri(
    runtime: Runtime,
    status: NriStatus | None,
    *,
    active: bool | None,
    backends: Iterable[type[Backend[Any, Any]]],
) -> Check:
    """Check whether the runtime is joined.

    status     as the active daemon tells it, None where it does not
    active     whether a daemon holds the lock; None where unknown
    backends   those in use: their claims may need the runtime
    """
    steps = [
        (backend.serves or backend.kind, step.phase) for backend in backends for step in backend.step_types
    ]
    refused = _claims([hardware for hardware, phase in steps if phase is not Phase.PREPARE])
    into_pods = _claims([hardware for hardware, phase in steps if phase is Phase.SANDBOX])
    if not runtime.join and not runtime.needed:
        alone = "not used: no container of a runtime uses what is prepared here"
        if not into_pods:
            return ok(_NAME, alone)
        return warning(_NAME, alone, f"{into_pods} are refused, but with nri.enabled: true and a runtime")
    if not runtime.join:
        mend = (
            f"{refused} are refused: nothing where none is meant to work"
            if refused
            else "nothing: no claim needs it"
        )
        return warning(_NAME, "off in the configuration (nri.enabled)", mend)
    if active is not False and status is not None:
        return _told(status, refused)
    if not exists(runtime.socket):
        return warning(_NAME, f"there is no socket at {runtime.socket}", _absent(refused))
    return unknown(_NAME, f"{runtime.socket} is there, and no daemon tells of it", "start the daemon")


def _claims(hardware: Sequence[str]) -> str:
    """Return what the claims for all this hardware are called together; empty for none."""
    *most, last = [*dict.fromkeys(hardware)] or [""]
    return f"claims for {', '.join(most)}{' and ' if most else ''}{last}" if last else ""


def _absent(refused: str) -> str:
    return f"{refused} are refused until the runtime has NRI: {_ENABLE}" if refused else _ENABLE


def _told(status: NriStatus, refused: str) -> Check:
    match status.state:
        case NriState.ACTIVE:
            return ok(_NAME, f"{status.runtime} is joined")
        case NriState.ABSENT:
            return warning(_NAME, status.trouble, _absent(refused))
        case _:
            mend = "it is tried again until it works" + (
                f"; {refused} are refused meanwhile" if refused else ""
            )
            return warning(_NAME, status.trouble, mend)
