"""A daemon that is killed at any point of its work leaves every claim wholly prepared or wholly undone.

The work is done by a process of its own that counts the points before and after everything that lasts (writes of the
journal, CDI files, the hardware), and kills itself at one of them.
"""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dradriver.model import ClaimRef
from lever import Node

TESTS = Path(__file__).resolve().parents[1]

WORKER = """
import os, signal, sys
from pathlib import Path

root, work, fatal = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

from dradriver.engine import Journal
from dradriver_cdi import Store
from lever import Node, Pull, config, lever_config

points = 0

def point():
    global points
    points += 1
    if points == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

def watch(owner, *names):
    for name in names:
        def watched(*args, real=getattr(owner, name), **options):
            point()
            try:
                return real(*args, **options)
            finally:
                point()
        setattr(owner, name, watched)

watch(Pull, "apply", "revert")
watch(Store, "write", "remove", "_replace", "reconcile")
watch(Journal, "insert", "update", "set_step_facts", "delete")

node = Node(root)
if work == "prepare":
    steps = [config(lever_config(steps=2, cogs=["left"]))]
    first = node.claim("a", "lever-0", config=steps)
    second = node.claim("b", "lever-1", config=[config(lever_config(steps=0))])
    failing = node.claim("c", "lever-2", config=[config(lever_config(steps=2))])
    assert not isinstance(node.prepare(first), str)
    assert not isinstance(node.prepare(second), str)
    assert isinstance(node.prepare(failing), str)
    assert node.unprepare(first) is None
    assert node.unprepare(second) is None
print(points)
"""


def worker(root: Path, work: str, fatal: int) -> subprocess.CompletedProcess[str]:
    """Let a process work on the node, and die at the point of that number (0: never)."""
    return subprocess.run(
        [sys.executable, "-c", WORKER, str(root), work, str(fatal)],
        env={"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def fresh(root: Path) -> Path:
    node = Node(root)
    node.fault("lever-2-part-1.fail")
    node.close()
    return root


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> int:
    done = worker(fresh(tmp_path_factory.mktemp("whole")), "prepare", 0)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def check_after_the_kubelets_repeat(root: Path) -> None:
    """Assert what must hold after a restart, whatever happened before."""
    node = Node(root)
    try:
        node.check_whole()
        assert "uid-c" not in node.prepared
        left = (
            [path.name for path in node.cdi.iterdir() if not path.name.endswith(".json")]
            if node.specs
            else []
        )
        assert left == []
        refs = [ClaimRef(f"uid-{name}", "default", name) for name in "ab"]
        if all((node.files / f"{ref.name}.json").exists() for ref in refs):
            first = [node.prepare(ref) for ref in refs]
            assert not any(isinstance(answer, str) for answer in first), first
            assert [node.prepare(ref) for ref in refs] == first
            node.check_whole()
        assert [node.unprepare(ref) for ref in refs] == [None, None]
        assert (node.prepared, node.pulled, node.specs) == (set(), {}, {})
        assert node.journal.taken("plan:lever:left").nano == 0
    finally:
        node.close()


def killed(roots: Iterator[tuple[Path, int]], work: str) -> list[Path]:
    """Run a worker for each (node, point), a few at a time; return the nodes whose worker was killed."""

    def one(case: tuple[Path, int]) -> Path:
        root, fatal = case
        done = worker(root, work, fatal)
        assert done.returncode == -9, (fatal, done.stdout, done.stderr)
        return root

    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(one, roots))


def test_a_kill_at_any_point_of_the_work_leaves_nothing_half_done(tmp_path: Path, points: int) -> None:
    assert points > 50
    for root in killed(((fresh(tmp_path / str(n)), n) for n in range(1, points + 1)), "prepare"):
        check_after_the_kubelets_repeat(root)


def test_a_kill_at_any_point_of_the_recovery_leaves_nothing_half_done(tmp_path: Path, points: int) -> None:
    """Half-way through Prepare of the first claim, and then again and again during the way back."""
    middle = points // 8
    (root,) = killed(iter([(fresh(tmp_path / "learn"), middle)]), "prepare")
    done = worker(root, "recover", 0)
    assert done.returncode == 0, done.stderr
    count = int(done.stdout)
    assert count > 4
    roots = killed(((fresh(tmp_path / str(n)), middle) for n in range(1, count + 1)), "prepare")
    for root in killed(iter(zip(roots, range(1, count + 1), strict=True)), "recover"):
        check_after_the_kubelets_repeat(root)
