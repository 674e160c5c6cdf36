"""What has the GPUs probed anew: loops that run as one, and instances that become ours."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dradriver.backend.together import run_together
from dradriver.host import Host
from dradriver_gpu.owned import Owned
from hosttree import HostTree
from waiting import PATIENCE, eventually


def started(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


GPU = "gpu-0000-41-00-0"


def owned_on(root: Path, boot: str = "boot-1") -> Owned:
    HostTree(root).write("proc/sys/kernel/random/boot_id", boot)
    return Owned(Host(root), "/run/dradriver-gpu")


def test_instances_that_become_ours_have_the_gpus_probed(tmp_path: Path) -> None:
    owned, stop = owned_on(tmp_path), threading.Event()
    reasons: list[str] = []
    thread = started(lambda: owned.watch(stop, reasons.append))
    owned.add(GPU, 19, 3)
    eventually(lambda: len(reasons) == 1)
    owned.add(GPU, 19, 3)
    owned.discard(GPU, 19, 2)
    assert owned.places == {(GPU, 19, 3)}
    owned.discard(GPU, 19, 3)
    eventually(lambda: len(reasons) == 2)
    assert not owned.places
    stop.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_what_is_ours_is_known_to_other_processes_of_the_same_boot(tmp_path: Path) -> None:
    daemon, other = owned_on(tmp_path), owned_on(tmp_path)
    daemon.add(GPU, 19, 3)
    assert other.places == {(GPU, 19, 3)}
    daemon.discard(GPU, 19, 3)
    daemon.add(GPU, 14, 0)
    assert other.places == {(GPU, 14, 0)}
    assert owned_on(tmp_path, "boot-2").places == frozenset()


def test_a_daemon_that_has_recovered_believes_its_own_steps_only(tmp_path: Path) -> None:
    before = owned_on(tmp_path)
    before.add(GPU, 19, 3)
    before.add(GPU, 14, 0)
    after = owned_on(tmp_path)
    assert after.places == {(GPU, 19, 3), (GPU, 14, 0)}
    after.add(GPU, 19, 3)
    after.settle()
    assert after.places == {(GPU, 19, 3)}
    after.add(GPU, 19, 5)
    assert owned_on(tmp_path).places == {(GPU, 19, 3), (GPU, 19, 5)}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot": "boot-1"}', '{"boot": "boot-1", "instances": [1]}']
)
def test_a_file_that_makes_no_sense_says_nothing(tmp_path: Path, text: str) -> None:
    owned = owned_on(tmp_path)
    HostTree(tmp_path).write("run/dradriver-gpu/instances.json", text)
    assert owned.places == frozenset()
    owned.add(GPU, 19, 3)
    assert owned_on(tmp_path).places == {(GPU, 19, 3)}


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    HostTree(tmp_path).write("run", "no directory")
    owned = owned_on(tmp_path)
    owned.add(GPU, 19, 3)
    owned.add(GPU, 19, 4)
    assert owned.places == {(GPU, 19, 3), (GPU, 19, 4)}
    assert len(caplog.records) == 1


def test_loops_run_together_until_they_are_stopped() -> None:
    stop, running = threading.Event(), [threading.Event(), threading.Event()]

    def loop(number: int, over: threading.Event) -> None:
        running[number].set()
        over.wait(2 * PATIENCE)

    thread = started(lambda: run_together(stop, lambda over: loop(0, over), lambda over: loop(1, over)))
    assert all(event.wait(PATIENCE) for event in running)
    stop.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_loop_that_fails_ends_the_others_and_one_that_ends_does_not() -> None:
    ended = threading.Event()

    def fails(over: threading.Event) -> None:
        over.wait(0.05)
        raise ConnectionError("the driver is gone")

    def goes_on(over: threading.Event) -> None:
        if over.wait(PATIENCE):
            ended.set()

    with pytest.raises(ConnectionError, match="the driver is gone"):
        run_together(threading.Event(), lambda over: None, goes_on, fails)
    assert ended.is_set()
