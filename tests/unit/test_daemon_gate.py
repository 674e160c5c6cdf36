"""The gate at which calls wait: what is told of those that cannot be let through."""

import time

from dradriver.daemon.active import Gate
from dradriver.model import ClaimRef

DRIVER = "cpu.example.com"
CLAIMS = [ClaimRef(f"uid-{number}", "default", f"claim-{number}") for number in range(2)]


def test_calls_that_are_turned_away_are_counted_as_failed() -> None:
    counted: list[tuple[str, str, int]] = []
    gate = Gate(
        lambda: True,
        lambda driver: None,
        lambda driver, call, seconds, failed: counted.append((driver, call, failed)),
    )
    reason = "another instance of dradriver is active on this node"
    prepared = gate.prepare(DRIVER, CLAIMS, time.monotonic())
    assert prepared == {claim.uid: f"not prepared: {reason}" for claim in CLAIMS}
    gate.close()
    unprepared = gate.unprepare(DRIVER, CLAIMS[:1], time.monotonic() + 10)
    assert unprepared == {"uid-0": "not unprepared: dradriver is stopping on this node"}
    assert counted == [(DRIVER, "prepare", 2), (DRIVER, "unprepare", 1)]
