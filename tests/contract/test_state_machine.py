"""Random lives of a node, compared with a simple reference: whatever happens in whatever order, all agrees.

Claims are prepared, repeated, at once, undone, written anew; devices go and come back; steps fail or hang; the daemon
crashes, between two writes too, is restarted, hands over to another instance; the node reboots, files are lost. After
each of them journal, ledger, CDI files and hardware tell what the reference does, and nothing waits for a lock.

A few sequences in every run, 10,000 with `--all`.
"""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from crashes import directory
from life import Life
from wholenode import Instance, WholeNode

SEQUENCES, PARTS, STEPS = 10_000, 8, 30


@pytest.fixture
def quiet() -> Iterator[None]:
    """Log nothing: the lives of ten thousand nodes would fill the memory."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_all_agrees(part: int, everything: bool, quiet: None) -> None:
    chosen = settings(
        max_examples=SEQUENCES // PARTS if everything else 2,
        stateful_step_count=STEPS,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with directory() as root:
        node = WholeNode(root)
        kind = type("Life", (Life,), {"node": node, "probed": Instance(node)})
        run_state_machine_as_test(kind, settings=chosen)
