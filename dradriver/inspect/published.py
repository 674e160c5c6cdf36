"""Checks of what is published, as the active daemon tells of it."""

from collections.abc import Collection
from pathlib import Path

from dradriver.daemon.publishing import Published
from dradriver.daemon.report import FILE, read_report
from dradriver.inspect.result import Check, counted, error, ok, unknown, warning

_GATES = "enable the feature gate in the cluster, or live with less: docs/devices.md says with what"
_TRIED = "see to what it says: it is tried again until it works"


def check_published(state: Path, *, active: bool | None, known: Collection[str] = ()) -> list[Check]:
    """Check that the slices are as they should be, and whole.

    state    the daemon's state directory
    active   whether a daemon holds the lock; None where unknown
    known    what was said already of what cannot be published
    """
    try:
        report = read_report(state)
    except (OSError, ValueError) as problem:
        return [unknown("published slices", f"{state / FILE}: {problem}", "run as root")]
    if report is None or active is False:
        return [unknown("published slices", "no daemon is active, which would tell", "start the daemon")]
    where = report.server or "files"
    return [
        *(check for pool in report.pools for check in _pool(pool, where, known)),
        *(error("published slices", _at(where, text), _TRIED) for text in report.troubles),
    ]


def _pool(pool: Published, where: str, known: Collection[str]) -> list[Check]:
    name = f"slices of {pool.pool}"
    if pool.trouble:
        first = error(name, _at(where, pool.trouble), _TRIED)
    else:
        first = ok(name, f"{where}: {counted(pool.offered, 'device')}")
    dropped = [text for text in (*pool.left_out, *pool.warnings) if text not in known]
    return [
        first,
        *(warning(name, text, _GATES) for text in pool.reductions),
        *(warning(name, text, "nothing where the rest will do: the rest is published") for text in dropped),
    ]


def _at(where: str, text: str) -> str:
    return text if where in text else f"{where}: {text}"
