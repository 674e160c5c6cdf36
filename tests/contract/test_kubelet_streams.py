"""The health streams: the whole list at once, at each change, and again in time; never in the way of a Prepare."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dradriver.kubelet import DeviceState, HealthBoard, streams
from dradriver.model import Health
from dradriver.sim.kubelet import CallError, HealthWatch, Kubelet, ReportedHealth
from dradriver.sim.watcher import EventKind, RegistrationWatcher
from kubeletside import DRIVER, claim, kubelet_root, serving
from waiting import PATIENCE, eventually

WELL = DeviceState(Health.HEALTHY, "", 1_700_000_000.9)
SICK = DeviceState(Health.UNHEALTHY, "fell off\nthe bus", 1_700_000_100.0)
A = ("node-1/gpu", "gpu-a")
B = ("node-1/gpu", "gpu-b")

WELL_TOLD = ReportedHealth(Health.HEALTHY, "", 1_700_000_000, 30)
SICK_TOLD = ReportedHealth(Health.UNHEALTHY, "fell off the bus", 1_700_000_100, 30)


@pytest.fixture
def root() -> Iterator[Path]:
    with kubelet_root() as path:
        yield path


@pytest.fixture
def board() -> HealthBoard:
    board = HealthBoard()
    board.update(DRIVER, {A: WELL, B: WELL})
    return board


@pytest.mark.parametrize("version", ["v1alpha1", "v1"])
def test_the_whole_list_comes_first_and_at_each_change(root: Path, board: HealthBoard, version: str) -> None:
    with serving(root, board=board), Kubelet(root) as kubelet, kubelet.watch_health(DRIVER, version) as watch:
        assert next(watch) == {A: WELL_TOLD, B: WELL_TOLD}
        board.update(DRIVER, {A: SICK, B: WELL})
        assert next(watch) == {A: SICK_TOLD, B: WELL_TOLD}
        board.update(DRIVER, {A: SICK})
        assert next(watch) == {A: SICK_TOLD}
        board.update(DRIVER, {A: DeviceState(Health.UNKNOWN, "", 0)})
        assert next(watch)[A].health is Health.UNKNOWN


def test_the_list_is_repeated_without_a_change(
    root: Path, board: HealthBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert streams.REPEAT_SECONDS < streams.CHECK_TIMEOUT_SECONDS / 2
    monkeypatch.setattr(streams, "REPEAT_SECONDS", 0.05)
    with serving(root, board=board), Kubelet(root) as kubelet, kubelet.watch_health(DRIVER) as watch:
        for _ in range(3):
            assert next(watch) == {A: WELL_TOLD, B: WELL_TOLD}


def test_a_stream_that_opens_before_anything_is_known_hears_of_it_later(root: Path) -> None:
    board = HealthBoard()
    with serving(root, board=board), Kubelet(root) as kubelet, kubelet.watch_health(DRIVER) as watch:
        assert next(watch) == {}
        board.update(DRIVER, {A: WELL})
        assert next(watch) == {A: WELL_TOLD}


def test_two_clients_of_both_versions_hear_the_same(root: Path, board: HealthBoard) -> None:
    with (
        serving(root, board=board),
        Kubelet(root) as kubelet,
        kubelet.watch_health(DRIVER, "v1") as one,
        kubelet.watch_health(DRIVER, "v1alpha1") as other,
    ):
        assert next(one) == next(other) == {A: WELL_TOLD, B: WELL_TOLD}
        board.update(DRIVER, {A: SICK})
        assert next(one) == next(other) == {A: SICK_TOLD}


def test_another_drivers_change_is_not_told(root: Path, board: HealthBoard) -> None:
    with serving(root, board=board), Kubelet(root) as kubelet, kubelet.watch_health(DRIVER) as watch:
        next(watch)
        board.update("nic.example.com", {B: SICK})
        board.update(DRIVER, {A: SICK})
        assert next(watch) == {A: SICK_TOLD}


def test_thousands_of_devices_fit_in_one_message(root: Path) -> None:
    board = HealthBoard()
    states = {
        ("node-1/gpu", f"gpu-{number}"): DeviceState(Health.UNHEALTHY, "x" * 300, 0) for number in range(5000)
    }
    board.update(DRIVER, states)
    with serving(root, board=board), Kubelet(root) as kubelet, kubelet.watch_health(DRIVER) as watch:
        assert len(next(watch)) == 5000


def test_one_stream_too_many_is_turned_away_and_prepare_goes_on(root: Path, board: HealthBoard) -> None:
    with serving(root, board=board), Kubelet(root) as kubelet, ExitStack() as open_streams:
        watches = [
            open_streams.enter_context(kubelet.watch_health(DRIVER, ("v1", "v1alpha1")[number % 2]))
            for number in range(streams.MAX_STREAMS)
        ]
        for watch in watches:
            next(watch)
        with pytest.raises(CallError, match="at most 8 health streams") as failure:
            next(kubelet.watch_health(DRIVER))
        assert failure.value.code == "RESOURCE_EXHAUSTED"
        assert kubelet.prepare(DRIVER, [claim()])


def test_a_client_that_goes_frees_its_place_at_once(
    root: Path, board: HealthBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "REPEAT_SECONDS", 3600.0)
    with serving(root, board=board), Kubelet(root) as kubelet:
        for _ in range(3 * streams.MAX_STREAMS):
            eventually(lambda: opens_and_closes(kubelet))


def test_streams_end_when_the_driver_stops(root: Path, board: HealthBoard) -> None:
    ended = [threading.Event(), threading.Event()]

    def follow(watch: HealthWatch, end: threading.Event) -> None:
        try:
            for _ in watch:
                pass
        finally:
            end.set()

    with Kubelet(root) as kubelet:
        with serving(root, board=board):
            watches = [kubelet.watch_health(DRIVER, "v1"), kubelet.watch_health(DRIVER, "v1alpha1")]
            followers = [
                threading.Thread(target=follow, args=pair) for pair in zip(watches, ended, strict=True)
            ]
            for watch, follower in zip(watches, followers, strict=True):
                next(watch)
                follower.start()
        assert all(end.wait(PATIENCE) for end in ended)
        for follower in followers:
            follower.join()


def test_a_stream_ends_when_its_socket_is_replaced_and_can_be_opened_again(
    root: Path, board: HealthBoard
) -> None:
    with RegistrationWatcher(root) as watcher, serving(root, board=board), Kubelet(root) as kubelet:
        watcher.wait(EventKind.REGISTERED)
        watch = kubelet.watch_health(DRIVER)
        next(watch)
        watcher.wipe()
        watcher.wait(EventKind.REGISTERED, count=2)
        assert list(watch) == []
        with kubelet.watch_health(DRIVER) as again:
            assert next(again) == {A: WELL_TOLD, B: WELL_TOLD}


def opens_and_closes(kubelet: Kubelet) -> bool:
    with kubelet.watch_health(DRIVER) as watch:
        try:
            next(watch)
        except CallError:
            return False
        return True
