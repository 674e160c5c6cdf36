"""Checks of what is published, as the active daemon tells of it."""

from collections.abc import Collection
from pathlib import Path

from dradriver.daemon.publishing import Published
from dradriver.daemon.report import FILE, Report, read_report
from dradriver.inspect.result import Check, counted, error, ok, unknown, warning
from dradriver.publish.owner import NO_NODE

_GATES = "enable the feature gate in the cluster, or live with less: docs/devices.md says with what"
_TRIED = "it is tried again until it works"
_MENDS = (
    (
        NO_NODE,
        "see which there are (kubectl get nodes): create it, or set node or NODE_NAME to the name that this node has",
    ),
    ("needs the rule", "give the account that dradriver uses this rule"),
    ("it needs Kubernetes 1.34", "update the cluster"),
    ("connection refused", "see that the API server runs, and that the kubeconfig names it"),
    (
        "certificate",
        "see that the kubeconfig, or the pod's service account, has the certificate of the API server's CA",
    ),
)
"""What a reason contains, and what to do about it."""

_REST = "nothing where the rest will do: the rest is published"
_NOTHING = "nothing of this pool is published until this is mended"


def unpublished_mend(offered: int) -> str:
    """Return what to do about things that are not published, beside which so many devices are."""
    return _REST if offered else _NOTHING


def told_report(state: Path) -> Report | str | None:
    """Return what the daemon last told in its state directory: None for nothing, text for why it cannot be read."""
    try:
        return read_report(state)
    except (OSError, ValueError) as problem:
        return f"{state / FILE}: {problem}"


def check_published(
    report: Report | str | None,
    node: str,
    drivers: Collection[str],
    *,
    active: bool | None,
    known: Collection[str] = (),
) -> list[Check]:
    """Check that the slices are as they should be, and whole.

    report   as of `told_report`
    node     the name of the node in the configuration
    drivers  the drivers in the configuration
    active   whether a daemon holds the lock; None where unknown
    known    what was said already of what cannot be published
    """
    if isinstance(report, str):
        return [unknown("published slices", report, "run as root")]
    if report is None and active:
        return [
            unknown("published slices", "the active daemon has told nothing yet", "ask again in a moment")
        ]
    if report is None or active is False:
        return [unknown("published slices", "no daemon is active, which would tell", "start the daemon")]
    where = report.server or "files"
    return [
        *_other(report, node, drivers),
        *(check for pool in report.pools for check in _pool(pool, where, known)),
        *(error("published slices", _at(where, text), _mend(text)) for text in report.troubles),
    ]


def _other(report: Report, node: str, drivers: Collection[str]) -> list[Check]:
    """Check that the daemon, which this is told by, has the configuration that all else is checked by."""
    served = list(dict.fromkeys(pool.driver for pool in report.pools))
    differences = [
        f"the active daemon has {what} {theirs}, and the configuration read here {ours}"
        for what, theirs, ours, same in (
            ("node", report.node, node, report.node == node),
            ("drivers", ", ".join(served), ", ".join(drivers), set(served) == set(drivers)),
        )
        if not same
    ]
    mend = "check with the daemon's own configuration (--config, NODE_NAME), or restart it where that has changed"
    return [warning("published slices", text, mend) for text in differences]


def _mend(text: str) -> str:
    """Return what to do about the reason why something does not work."""
    return next((f"{mend}; {_TRIED}" for part, mend in _MENDS if part in text), _TRIED)


def _pool(pool: Published, where: str, known: Collection[str]) -> list[Check]:
    name = f"slices of {pool.pool}"
    if pool.trouble:
        first = error(name, _at(where, pool.trouble), _mend(pool.trouble))
    else:
        first = ok(name, f"{where}: {counted(pool.offered, 'device')}")
    dropped = [text for text in (*pool.left_out, *pool.warnings) if text not in known]
    return [
        first,
        *(warning(name, text, _GATES) for text in pool.reductions),
        *(warning(name, text, unpublished_mend(pool.offered)) for text in dropped),
    ]


def _at(where: str, text: str) -> str:
    return text if where in text else f"{where}: {text}"
