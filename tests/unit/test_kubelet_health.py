"""The board between what the daemon knows of health and the streams that tell it."""

import threading

from dradriver.kubelet import DeviceState, HealthBoard
from dradriver.model import Health

WELL = DeviceState(Health.HEALTHY, "", 100.0)
SICK = DeviceState(Health.UNHEALTHY, "fell off the bus", 200.0)
A = ("node-1/gpu", "gpu-a")
B = ("node-1/gpu", "gpu-b")


def test_nothing_is_known_before_the_first_update() -> None:
    snapshot = HealthBoard().snapshot("gpu.example.com")
    assert snapshot.version == 0
    assert not snapshot.states


def test_an_update_replaces_the_list() -> None:
    board = HealthBoard()
    board.update("gpu.example.com", {A: WELL, B: WELL})
    board.update("gpu.example.com", {A: SICK})
    assert board.snapshot("gpu.example.com").states == {A: SICK}
    assert board.snapshot("nic.example.com").states == {}


def test_an_equal_list_is_no_change() -> None:
    board = HealthBoard()
    board.update("gpu.example.com", {A: WELL})
    version = board.snapshot("gpu.example.com").version
    board.update("gpu.example.com", {A: WELL})
    assert board.snapshot("gpu.example.com").version == version


def test_the_first_list_counts_even_when_it_is_empty() -> None:
    board = HealthBoard()
    board.update("gpu.example.com", {})
    assert board.wait("gpu.example.com", 0, timeout=0) == 1


def test_later_changes_of_the_callers_mapping_do_not_show() -> None:
    board = HealthBoard()
    states = {A: WELL}
    board.update("gpu.example.com", states)
    states[A] = SICK
    assert board.snapshot("gpu.example.com").states == {A: WELL}


def test_who_waits_learns_of_a_change_and_of_its_own_drivers_only() -> None:
    board = HealthBoard()
    seen: list[int] = []
    waiter = threading.Thread(target=lambda: seen.append(board.wait("gpu.example.com", 0, timeout=60)))
    waiter.start()
    board.update("nic.example.com", {A: WELL})
    board.wake()
    assert waiter.is_alive()
    board.update("gpu.example.com", {A: WELL})
    waiter.join(timeout=30)
    assert seen == [1]


def test_a_wait_ends_when_it_is_told_so() -> None:
    board = HealthBoard()
    over = threading.Event()
    seen: list[int] = []
    waiter = threading.Thread(
        target=lambda: seen.append(board.wait("gpu.example.com", 0, timeout=60, ended=over.is_set))
    )
    waiter.start()
    over.set()
    board.wake()
    waiter.join(timeout=30)
    assert seen == [0]


def test_a_wait_for_what_has_changed_already_returns_at_once() -> None:
    board = HealthBoard()
    board.update("gpu.example.com", {A: WELL})
    assert board.wait("gpu.example.com", 0, timeout=60) == 1
