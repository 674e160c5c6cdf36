"""A daemon that is killed at any point of its work leaves every claim wholly prepared or wholly undone.

A process of its own works on a whole node, with real files, and is killed with SIGKILL at one point of its work: the
points are counted in a first run. Then the node must be in order, what was answered must hold, the kubelet's repeat
succeeds, and Unprepare leaves nothing. Some of the points in every run, all of them with `--all`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from crashes import Bench, Scenario, Worker, directory, scenario, shares, some, worker

SCENARIOS = {
    "a driver for each kind": scenario(grouped=False),
    "one driver for all kinds": scenario(grouped=True),
    "shares": shares(),
}
every_scenario = pytest.mark.parametrize("of", SCENARIOS.values(), ids=SCENARIOS)

KILL = 9


@pytest.fixture(scope="module")
def process() -> Iterator[Worker]:
    with worker() as made:
        yield made


@pytest.fixture
def root() -> Iterator[Path]:
    with directory() as made:
        yield made


@every_scenario
def test_a_kill_at_any_point_of_the_work(of: Scenario, root: Path, process: Worker, everything: bool) -> None:
    bench = Bench(root / "node", of, process)
    ended, passed = bench.run(of.work)
    assert ended == 0
    assert len(passed) > 100
    assert {"before commit", "before os.rename", "before os.unlink", "before answer"} <= set(passed)
    bench.check(of.work)
    points = range(1, len(passed) + 1)
    for fatal in points if everything else some(points, 16):
        bench.put_back(bench.fresh)
        ended, _ = bench.run(of.work, fatal=fatal)
        assert ended == KILL, passed[fatal - 1]
        bench.check(of.work)


@every_scenario
def test_a_kill_at_any_point_of_the_recovery(
    of: Scenario, root: Path, process: Worker, everything: bool
) -> None:
    """And again on the way back from the kill, at any point of that."""
    bench = Bench(root / "node", of, process)
    _, passed = bench.run(of.work)
    points = range(1, len(passed) + 1)
    for first in some(points, 25 if everything else 4):
        bench.put_back(bench.fresh)
        assert bench.run(of.work, fatal=first)[0] == KILL
        died = bench.keep()
        ended, back = bench.run([])
        assert ended == 0
        again = range(1, len(back) + 1)
        for second in again if everything else some(again, 4):
            bench.put_back(died)
            assert bench.run([], fatal=second)[0] == KILL, back[second - 1]
            bench.check(of.work)
