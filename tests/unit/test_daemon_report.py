"""What the active daemon tells of its publishing, and what `dradriver check` makes of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dradriver.daemon.publishing import Published
from dradriver.daemon.report import FILE, Report, Reporter, read_report
from dradriver.inspect import Check, Status
from dradriver.inspect.published import check_published, told_report
from dradriver.kube import StatusError
from dradriver.publish.errors import explained
from dradriver.publish.owner import NO_NODE

SERVER = "https://10.0.0.1:443"
WELL = Published("gpu.example.com", "node-a/gpu", offered=3)


def said(path: Path, report: Report, **options: object) -> list[tuple[str, Status, str]]:
    """Return the checks of a report that was written: name, status and what was seen."""
    Reporter(path).write(report)
    found: list[Check] = check_published(
        told_report(path),
        "node-a",
        ["gpu.example.com"],
        active=True,
        **options,  # type: ignore[arg-type]
    )
    return [(check.name, check.status, check.seen) for check in found]


def test_a_report_is_read_as_it_was_written_and_written_only_when_it_changed(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    first = Report(
        "node-a", SERVER, (WELL, Published("nic.example.com", "node-a/nic", 1, ("a",), ("b",), ("c",)))
    )
    reporter.write(first)
    assert read_report(tmp_path) == first
    before = (tmp_path / FILE).stat()
    reporter.write(Report("node-a", SERVER, first.pools))
    assert (tmp_path / FILE).stat() == before
    second = Report("node-a", SERVER, first.pools, ("claims cannot be watched",))
    reporter.write(second)
    assert read_report(tmp_path) == second
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert json.loads((tmp_path / FILE).read_text())["pools"][0]["offered"] == 3


def test_a_report_that_somebody_garbled_or_removed_is_written_again(tmp_path: Path) -> None:
    reporter, report = Reporter(tmp_path), Report("node-a", SERVER, (WELL,))
    path = tmp_path / FILE
    reporter.write(report)
    path.write_text("{")
    reporter.write(report)
    assert read_report(tmp_path) == report
    path.unlink()
    reporter.write(report)
    assert read_report(tmp_path) == report
    path.unlink()
    path.symlink_to("elsewhere")
    reporter.write(report)
    assert read_report(tmp_path) == report
    assert not path.is_symlink()


def test_a_report_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    first = Report("node-a", "", (WELL,))
    reporter.write(first)
    (tmp_path / f".{FILE}.tmp").mkdir()
    with pytest.raises(OSError, match=r"status\.json\.tmp"):
        reporter.write(Report("node-b", "", ()))
    assert read_report(tmp_path) == first
    (tmp_path / f".{FILE}.tmp").rmdir()
    reporter.write(Report("node-b", "", ()))
    assert read_report(tmp_path) == Report("node-b", "", ())


def test_without_an_active_daemon_nothing_is_known(tmp_path: Path) -> None:
    (check,) = check_published(told_report(tmp_path), "node-a", ["gpu.example.com"], active=True)
    assert (check.status, check.seen) == (Status.UNKNOWN, "the active daemon has told nothing yet")
    (check,) = check_published(told_report(tmp_path), "node-a", ["gpu.example.com"], active=None)
    assert (check.status, check.seen) == (Status.UNKNOWN, "no daemon is active, which would tell")
    Reporter(tmp_path).write(Report("node-a", SERVER, (WELL,)))
    (check,) = check_published(told_report(tmp_path), "node-a", ["gpu.example.com"], active=False)
    assert check.status is Status.UNKNOWN
    (check,) = check_published(told_report(tmp_path), "node-a", ["gpu.example.com"], active=None)
    assert check.status is Status.OK


@pytest.mark.parametrize("text", ["", "{", "[]", '{"node": "a"}', '{"node": 1, "server": "", "pools": []}'])
def test_a_report_that_is_none_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    (check,) = check_published(told_report(tmp_path), "node-a", ["gpu.example.com"], active=True)
    assert check.status is Status.UNKNOWN
    assert check.seen.startswith(f"{tmp_path / FILE}: ")


def test_all_well(tmp_path: Path) -> None:
    assert said(tmp_path, Report("node-a", SERVER, (WELL,))) == [
        ("slices of node-a/gpu", Status.OK, f"{SERVER}: 3 devices")
    ]
    assert said(tmp_path, Report("node-a", "", (WELL,))) == [
        ("slices of node-a/gpu", Status.OK, "files: 3 devices")
    ]


def test_trouble_is_an_error_and_names_the_server_once(tmp_path: Path) -> None:
    name = "slices of node-a/gpu"
    refused = Published("gpu.example.com", "node-a/gpu", trouble=f"{SERVER}: connection refused")
    assert said(tmp_path, Report("node-a", SERVER, (refused,), ("404 NotFound",))) == [
        (name, Status.ERROR, f"{SERVER}: connection refused"),
        ("published slices", Status.ERROR, f"{SERVER}: 404 NotFound"),
    ]
    unpublished = Published("gpu.example.com", "node-a/gpu", trouble="not published yet")
    assert said(tmp_path, Report("node-a", "", (unpublished,))) == [
        (name, Status.ERROR, "files: not published yet")
    ]


def test_a_reason_comes_with_what_mends_it(tmp_path: Path) -> None:
    node = f"{NO_NODE} 'node-b': slices are published once it is there"
    forbidden = str(explained(StatusError(403, "Forbidden", "no"), "create", "resourceslices"))
    old = str(explained(StatusError(404, "NotFound", "no"), "list", "resourceslices"))
    for reason, words in (
        (node, "set node or NODE_NAME"),
        (forbidden, "give the account that dradriver uses this rule"),
        (old, "update the cluster"),
        ("connection refused", "see that the API server runs"),
        ("500 InternalError", "it is tried again until it works"),
    ):
        Reporter(tmp_path).write(Report("node-a", SERVER, (replace(WELL, trouble=reason),), (reason,)))
        checks = check_published(told_report(tmp_path), "node-a", ["gpu.example.com"], active=True)
        assert [check.status for check in checks] == [Status.ERROR] * 2
        assert all(words in check.mend and "it is tried again" in check.mend for check in checks)


def test_what_is_left_out_of_nothing_is_not_the_rest(tmp_path: Path) -> None:
    less = Published("gpu.example.com", "node-a/gpu", 0, ("gpu-0 is odd",))
    Reporter(tmp_path).write(Report("node-a", SERVER, (less,)))
    check = check_published(told_report(tmp_path), "node-a", ["gpu.example.com"], active=True)[-1]
    assert (check.status, "the rest" in check.mend) == (Status.WARNING, False)
    Reporter(tmp_path).write(Report("node-a", SERVER, (replace(less, offered=1),)))
    check = check_published(told_report(tmp_path), "node-a", ["gpu.example.com"], active=True)[-1]
    assert "the rest is published" in check.mend


def test_a_daemon_of_another_configuration_is_a_warning(tmp_path: Path) -> None:
    Reporter(tmp_path).write(Report("node-a", "", (WELL,)))
    node, slices = check_published(told_report(tmp_path), "node-b", ["gpu.example.com"], active=True)
    assert (node.status, slices.status) == (Status.WARNING, Status.OK)
    assert node.seen == "the active daemon has node node-a, and the configuration read here node-b"
    drivers, _ = check_published(told_report(tmp_path), "node-a", ["cpu.dradriver.io", "x.io"], active=True)
    assert drivers.seen == (
        "the active daemon has drivers gpu.example.com, and the configuration read here cpu.dradriver.io, x.io"
    )
    assert "--config" in drivers.mend


def test_what_is_less_than_there_is_is_a_warning_unless_it_was_said(tmp_path: Path) -> None:
    name = "slices of node-a/gpu"
    less = Published("gpu.example.com", "node-a/gpu", 1, ("gpu-1 is odd",), ("no taints",), ("no color",))
    report = Report("node-a", SERVER, (less,))
    assert said(tmp_path, report) == [
        (name, Status.OK, f"{SERVER}: 1 device"),
        (name, Status.WARNING, "no taints"),
        (name, Status.WARNING, "gpu-1 is odd"),
        (name, Status.WARNING, "no color"),
    ]
    assert said(tmp_path, report, known={"gpu-1 is odd", "no color"})[1:] == [
        (name, Status.WARNING, "no taints")
    ]
