"""Check of the way to the container runtime: what only it can do is refused while it cannot be asked."""

from dradriver.config import Runtime
from dradriver.inspect.files import exists
from dradriver.inspect.result import Check, ok, unknown, warning
from dradriver.nri import NriState, NriStatus

_NAME = "NRI"
_ENABLE = (
    "claims for CPUs and memory are refused until the runtime has NRI: containerd 2.0 and CRI-O 1.30 have it on; "
    'containerd 1.7 needs disable = false in [plugins."io.containerd.nri.v1.nri"] and a restart; in a pod mount the '
    "socket's directory"
)


def check_nri(runtime: Runtime, status: NriStatus | None, *, active: bool | None) -> Check:
    """Check whether the runtime is joined.

    status   as the active daemon tells it, None where it does not
    active   whether a daemon holds the lock; None where unknown
    """
    if not runtime.join:
        if runtime.needed:
            mend = "nothing where no claim for CPUs or memory is meant to work: they are refused"
            return warning(_NAME, "off in the configuration (nri.enabled)", mend)
        return ok(_NAME, "not used: no container of a runtime uses what is prepared here")
    if active is not False and status is not None:
        return _told(status)
    if not exists(runtime.socket):
        return warning(_NAME, f"there is no socket at {runtime.socket}", _ENABLE)
    return unknown(_NAME, f"{runtime.socket} is there, and no daemon tells of it", "start the daemon")


def _told(status: NriStatus) -> Check:
    match status.state:
        case NriState.ACTIVE:
            return ok(_NAME, f"{status.runtime} is joined")
        case NriState.ABSENT:
            return warning(_NAME, status.trouble, _ENABLE)
        case _:
            mend = "it is tried again until it works; claims for CPUs and memory are refused meanwhile"
            return warning(_NAME, status.trouble, mend)
