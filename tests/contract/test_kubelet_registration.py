"""A driver registers with the kubelet, and again whenever the kubelet's directories were emptied."""

import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dradriver.kubelet import HealthBoard, Plugin, SocketInUseError, SocketPaths, remove_dead
from dradriver.kubelet.plugin import CALL_WORKERS
from dradriver.kubelet.streams import MAX_STREAMS
from dradriver.model import ClaimRef
from dradriver.sim.kubelet import CallError, Kubelet, RegisteredPlugin, get_info
from dradriver.sim.watcher import EventKind, RegistrationWatcher
from kubeletside import DRIVER, Driver, PrepareAnswer, claim, device, kubelet_root, one_device_each, serving
from waiting import eventually

UID = "b1946ac9-2c6b-4d3a-9d5e-0c9a1f0e7a11"
OTHER_UID = "b1946ac9-2c6b-4d3a-9d5e-0c9a1f0e7a12"

# Serves until it is killed; its sockets are then left behind.
SERVE = """
import sys, threading
from pathlib import Path
from kubeletside import Driver, serving
with serving(Path(sys.argv[1]), instance=sys.argv[2] or None):
    print("serving", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def root() -> Iterator[Path]:
    with kubelet_root() as path:
        yield path


def served_by_another_process(root: Path, instance: str) -> "subprocess.Popen[str]":
    search = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(root), instance],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": search},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "serving\n"
    return process


def killed(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def test_a_driver_that_starts_is_found_and_told(root: Path) -> None:
    with RegistrationWatcher(root) as watcher, serving(root) as plugin:
        found = watcher.wait(EventKind.REGISTERED).plugin
        assert found is not None
        assert found.type == "DRAPlugin"
        assert found.name == DRIVER
        assert found.endpoint == str(root / "plugins" / DRIVER / "dra.sock")
        assert found.versions == (
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        )
        assert plugin.registration.registered is True
        assert plugin.registration.error == ""


def test_a_driver_that_was_there_first_is_found_by_a_kubelet_that_starts(root: Path) -> None:
    with serving(root) as plugin:
        endpoint = str(plugin.paths.service)
        with RegistrationWatcher(root) as watcher:
            first = watcher.wait(EventKind.REGISTERED).plugin
            assert first is not None
            assert (first.name, first.endpoint) == (DRIVER, endpoint)
            assert plugin.registration.registered is True
            watcher.restart()
            assert watcher.wait(EventKind.REGISTERED, count=2).plugin == first
            tried = [event.kind for event in watcher.events if event.kind is not EventKind.CREATED]
            assert tried == [EventKind.REGISTERED] * 2
            assert watcher.registered == (first,)


def test_nothing_was_said_yet(root: Path) -> None:
    with serving(root) as plugin:
        assert plugin.registration.registered is None


def test_the_service_answers_before_the_registration_socket_appears(root: Path) -> None:
    (root / "plugins_registry").mkdir()
    endpoint = SocketPaths.of(DRIVER, root).service
    seen: list[tuple[str, ...]] = []

    def judge(plugin: RegisteredPlugin) -> str:
        with Kubelet(root) as kubelet:
            seen.append(tuple(kubelet.prepare(plugin, [claim()])))
        return ""

    with RegistrationWatcher(root, judge) as watcher:
        assert not endpoint.exists()
        with serving(root):
            watcher.wait(EventKind.REGISTERED)
    assert seen == [(claim().uid,)]


def test_a_refusal_is_logged_loudly_and_remembered(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(root) as plugin, Kubelet(root) as kubelet:
        kubelet.notify(kubelet.plugin(DRIVER), False, "no\nsuch handler" + "!" * 10_000)
        said = plugin.registration
        assert said.registered is False
        assert said.error.startswith("no such handler!!!")
        assert len(said.error) <= 1000
        [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "no such handler" in record.getMessage()
        assert len(record.getMessage()) < 1000

        kubelet.notify(kubelet.plugin(DRIVER), True)
        assert plugin.registration.registered is True
        assert plugin.registration.error == ""


def test_a_refused_driver_is_tried_again(root: Path) -> None:
    answers = iter(["not now", "not yet"])
    with RegistrationWatcher(root, lambda plugin: next(answers, "")) as watcher, serving(root) as plugin:
        watcher.wait(EventKind.REGISTERED)
        kinds = [event.kind for event in watcher.events]
        assert kinds == [EventKind.CREATED, EventKind.REFUSED, EventKind.REFUSED, EventKind.REGISTERED]
        assert plugin.registration.registered is True


def test_get_info_is_answered_while_every_worker_is_blocked(root: Path) -> None:
    workers = CALL_WORKERS + MAX_STREAMS
    go_on, busy = threading.Event(), threading.Semaphore(0)

    def block(claims: Sequence[ClaimRef]) -> PrepareAnswer:
        busy.release()
        go_on.wait()
        return one_device_each(claims)

    with serving(root, Driver(block)), Kubelet(root) as kubelet:
        plugin = kubelet.plugin(DRIVER)
        calls = [
            threading.Thread(target=kubelet.prepare, args=(plugin, [claim(number)]))
            for number in range(workers + 4)
        ]
        for call in calls:
            call.start()
        for _ in range(workers):
            busy.acquire()
        info = get_info(plugin.socket)
        go_on.set()
        for call in calls:
            call.join()
    assert info.error == ""
    assert info.name == DRIVER


@pytest.mark.parametrize("directory", ["plugins_registry", "plugins", f"plugins/{DRIVER}"])
def test_a_wiped_directory_is_noticed_and_the_driver_registers_again(root: Path, directory: str) -> None:
    with RegistrationWatcher(root) as watcher, serving(root) as plugin, Kubelet(root) as kubelet:
        watcher.wait(EventKind.REGISTERED)
        shutil.rmtree(root / directory)
        if directory == "plugins_registry":
            watcher.wait(EventKind.REGISTERED, count=2)
        else:
            eventually(plugin.paths.service.is_socket)
        assert kubelet.prepare(DRIVER, [claim()])
        assert plugin.paths.plugin_dir.stat().st_mode & 0o777 == 0o700


def test_a_kubelet_that_restarts_with_emptied_directories_gets_its_drivers_back(root: Path) -> None:
    with RegistrationWatcher(root) as watcher, serving(root), Kubelet(root) as kubelet:
        watcher.wait(EventKind.REGISTERED)
        for again in (2, 3, 4):
            watcher.wipe()
            watcher.wait(EventKind.REGISTERED, count=again)
            assert kubelet.prepare(DRIVER, [claim()]) == {claim().uid: (device(),)}


def test_a_socket_that_another_put_in_its_place_is_taken_back(root: Path) -> None:
    with RegistrationWatcher(root) as watcher, serving(root) as plugin:
        watcher.wait(EventKind.REGISTERED)
        plugin.paths.registration.unlink()
        plugin.paths.registration.touch()
        watcher.wait(EventKind.REGISTERED, count=2)


def test_a_driver_whose_service_cannot_be_served_is_not_offered(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RegistrationWatcher(root) as watcher, serving(root) as plugin, Kubelet(root) as kubelet:
        watcher.wait(EventKind.REGISTERED)
        obstacle = plugin.paths.service
        obstacle.unlink()
        obstacle.mkdir()
        plugin.paths.registration.unlink()
        eventually(lambda: "cannot be bound anew" in caplog.text)
        assert not plugin.paths.registration.exists()
        obstacle.rmdir()
        watcher.wait(EventKind.REGISTERED, count=2)
        assert kubelet.prepare(DRIVER, [claim()])


def test_a_call_under_way_survives_a_wipe(root: Path) -> None:
    go_on, busy = threading.Event(), threading.Event()
    answers: list[object] = []

    def slow(claims: Sequence[ClaimRef]) -> PrepareAnswer:
        busy.set()
        go_on.wait()
        return {claim().uid: (device(),)}

    with RegistrationWatcher(root) as watcher, serving(root, Driver(slow)), Kubelet(root) as kubelet:
        watcher.wait(EventKind.REGISTERED)
        plugin = kubelet.plugin(DRIVER)
        call = threading.Thread(target=lambda: answers.append(kubelet.prepare(plugin, [claim()])))
        call.start()
        busy.wait()
        watcher.wipe()
        watcher.wait(EventKind.REGISTERED, count=2)
        go_on.set()
        call.join()
    assert answers == [{claim().uid: (device(),)}]


def test_stopping_removes_what_was_ours(root: Path) -> None:
    with serving(root, instance=UID):
        pass
    assert [path for path in root.rglob("*") if not path.is_dir()] == []


def test_directories_are_made_with_the_right_modes(root: Path) -> None:
    with serving(root) as plugin:
        assert mode(root / "plugins_registry") == 0o750
        assert mode(plugin.paths.plugin_dir) == 0o700
        assert mode(plugin.paths.service) == 0o600
        assert mode(plugin.paths.registration) == 0o600


def test_the_kubelets_directory_stays_as_it_is_and_ours_becomes_private(root: Path) -> None:
    (root / "plugins_registry").mkdir(mode=0o711)
    (root / "plugins" / DRIVER).mkdir(parents=True, mode=0o755)
    with serving(root) as plugin:
        assert mode(root / "plugins_registry") == 0o711
        assert mode(plugin.paths.plugin_dir) == 0o700


def test_a_root_that_is_missing_is_an_error_and_not_created(root: Path) -> None:
    with pytest.raises(NotADirectoryError, match="--root-dir"), serving(root / "kubelet"):
        pass
    assert not (root / "kubelet").exists()


def test_a_socket_that_cannot_be_bound_is_an_error_that_leaves_nothing(root: Path) -> None:
    paths = SocketPaths.of(DRIVER, root)
    paths.registration.mkdir(parents=True)
    with pytest.raises(OSError, match="cannot serve"), serving(root):
        pass
    assert not [path for path in root.rglob("*") if not path.is_dir()]
    paths.registration.rmdir()
    with serving(root), Kubelet(root) as kubelet:
        assert kubelet.plugin(DRIVER)


def test_two_instances_of_a_rolling_update_serve_side_by_side(root: Path) -> None:
    with RegistrationWatcher(root) as watcher, Kubelet(root) as kubelet, serving(root, instance=UID) as old:
        with serving(root, instance=OTHER_UID) as new:
            watcher.wait(EventKind.REGISTERED, count=2)
            assert {plugin.endpoint for plugin in kubelet.plugins()} == {
                str(old.paths.service),
                str(new.paths.service),
            }
            assert kubelet.plugin(DRIVER).endpoint == str(new.paths.service)
            assert remove_dead(new.paths) == ()
            assert kubelet.prepare(DRIVER, [claim()])
        assert kubelet.plugin(DRIVER).endpoint == str(old.paths.service)
        assert kubelet.prepare(DRIVER, [claim()])


def test_the_same_names_are_refused_while_their_holder_lives(root: Path) -> None:
    with serving(root, instance=UID), Kubelet(root) as kubelet:
        second = Plugin(DRIVER, SocketPaths.of(DRIVER, root, UID), Driver(), HealthBoard())
        with pytest.raises(SocketInUseError, match=r"dra-.*\.sock.* is in use: another process holds"):
            second.start()
        second.stop()
        assert kubelet.prepare(DRIVER, [claim()])


def test_the_same_names_are_refused_to_another_process_and_free_after_kill_9(root: Path) -> None:
    holder = served_by_another_process(root, "")
    try:
        with pytest.raises(SocketInUseError), serving(root):
            pass
    finally:
        killed(holder)
    assert SocketPaths.of(DRIVER, root).service.is_socket()
    with serving(root), Kubelet(root) as kubelet:
        assert kubelet.prepare(DRIVER, [claim()])


def test_sockets_of_a_killed_instance_are_removed_and_no_others(root: Path) -> None:
    dead = served_by_another_process(root, UID)
    killed(dead)
    left = SocketPaths.of(DRIVER, root, UID)
    assert left.service.is_socket()
    assert left.registration.is_socket()
    foreign = root / "plugins_registry" / f"{DRIVER}-x-reg.sock"
    foreign.touch()

    living = served_by_another_process(root, OTHER_UID)
    try:
        with serving(root) as plugin, Kubelet(root) as kubelet:
            assert set(remove_dead(plugin.paths)) == set(left.sockets)
            assert remove_dead(plugin.paths) == ()
            endpoints = {found.endpoint for found in kubelet.plugins()}
            assert endpoints == {
                str(plugin.paths.service),
                str(SocketPaths.of(DRIVER, root, OTHER_UID).service),
            }
    finally:
        killed(living)
    assert foreign.exists()


def test_an_instance_that_lost_its_lock_file_takes_it_again(root: Path) -> None:
    with serving(root, instance=UID) as plugin:
        lock = plugin.paths.lock_file(plugin.paths.service)
        lock.unlink()
        eventually(lock.exists)
        assert remove_dead(SocketPaths.of(DRIVER, root, OTHER_UID)) == ()
        assert plugin.paths.service.is_socket()


def test_a_plugin_starts_once_and_again_after_a_stop(root: Path) -> None:
    plugin = Plugin(DRIVER, SocketPaths.of(DRIVER, root), Driver(), HealthBoard())
    plugin.start()
    with pytest.raises(RuntimeError, match="already started"):
        plugin.start()
    plugin.stop()
    plugin.stop()
    plugin.start()
    with Kubelet(root) as kubelet:
        assert kubelet.prepare(DRIVER, [claim()])
    plugin.stop()


def test_sockets_of_another_driver_are_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="the two must agree"):
        Plugin("nic.example.com", SocketPaths.of(DRIVER, root), Driver(), HealthBoard())


def test_a_call_that_runs_over_the_grace_is_cut_off(root: Path) -> None:
    go_on, busy = threading.Event(), threading.Event()
    failures: list[str] = []

    def hang(claims: Sequence[ClaimRef]) -> PrepareAnswer:
        busy.set()
        go_on.wait()
        return {}

    def call(kubelet: Kubelet) -> None:
        try:
            kubelet.prepare(DRIVER, [claim()])
        except CallError as error:
            failures.append(error.code)

    with Kubelet(root) as kubelet:
        with serving(root, Driver(hang)):
            caller = threading.Thread(target=call, args=(kubelet,))
            caller.start()
            busy.wait()
        caller.join()
        go_on.set()
    assert len(failures) == 1


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
