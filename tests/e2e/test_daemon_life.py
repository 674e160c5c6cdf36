"""The daemon over time: stops, crashes, restarts, hand-over, wiped directories, hardware that comes and goes."""

import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import daemons
from daemons import cpu_result, memory_result
from dradriver.model import ClaimRef
from dradriver.sim.kubelet import Kubelet, KubeletError
from hosttree import HostTree, two_sockets
from waiting import PATIENCE, eventually

CPU, MEMORY = "cpu.dradriver.io", "memory.dradriver.io"


@pytest.fixture
def host() -> Iterator[daemons.Node]:
    with daemons.node() as node:
        yield node


def sockets(node: daemons.Node) -> list[Path]:
    return sorted(node.kubelet_root.rglob("*.sock"))


def cpu_device(node: daemons.Node) -> str:
    return next(name for name, body in node.devices().items() if "cpu" in body.get("capacity", {}))


def prepared(kubelet: Kubelet, claim: ClaimRef) -> bool:
    return not isinstance(kubelet.prepare(CPU, [claim])[claim.uid], str)


def test_sigterm_ends_it_in_time_with_open_streams_and_leaves_the_slices(host: daemons.Node) -> None:
    process = host.start()
    host.ready()
    with daemons.kubelet(host) as kubelet:
        streams = [kubelet.watch_health(driver) for driver in (CPU, MEMORY)]
        for stream in streams:
            next(stream)
        seconds = daemons.terminate(process)
    assert process.returncode == 0, host.log()
    assert seconds < 5.0
    assert sockets(host) == []
    assert len(host.published()) == 2
    assert "Traceback" not in host.log()


def test_a_wrong_configuration_starts_nothing(host: daemons.Node) -> None:
    process = host.start("rescanSeconds: never\n")
    assert process.wait(PATIENCE) == 2
    (line,) = host.log().splitlines()
    assert (
        line
        == f"dradriver: {host.directory}/config.yaml: rescanSeconds: an integer is expected, found 'never', a string"
    )
    assert not host.kubelet_root.exists()


def test_a_claim_outlives_kill_9_and_a_restart(host: daemons.Node) -> None:
    process = host.start()
    host.ready()
    device = cpu_device(host)
    everything = host.devices()[device]["capacity"]["cpu"]["value"]
    claim = host.claim("survivor", [cpu_result(everything, device)])
    with daemons.kubelet(host) as kubelet:
        first = kubelet.prepare(CPU, [claim])
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(host.cdi)
        host.start()
        eventually(lambda: host.log().count("active on node") == 2, "the second is active")
        assert len(list(host.cdi.iterdir())) == 1
        assert kubelet.prepare(CPU, [claim]) == first
        late = host.claim("late", [cpu_result("1", device)])
        assert claim.uid in str(kubelet.prepare(CPU, [late])[late.uid])
        assert kubelet.unprepare(CPU, [claim]) == {claim.uid: None}
    assert list(host.cdi.iterdir()) == []


def test_a_reboot_leaves_nothing_prepared(host: daemons.Node, tmp_path: Path) -> None:
    tree = HostTree(tmp_path).online("0-3").cores([[0], [1], [2], [3]]).memory(1 << 20)
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    tree.write("proc/sys/kernel/random/boot_id", "boot-1")
    process = host.start(f"hostRoot: {tmp_path}\n")
    host.ready()
    claim = host.claim("before", [cpu_result("1", cpu_device(host))])
    with daemons.kubelet(host) as kubelet:
        assert prepared(kubelet, claim)
        daemons.terminate(process)
        boot.write_text("boot-2\n")
        host.start(f"hostRoot: {tmp_path}\n")
        eventually(lambda: host.log().count("active on node") == 2, "the second is active")
        assert list(host.cdi.iterdir()) == []
        assert prepared(kubelet, claim)


def test_wiped_directories_are_filled_again(host: daemons.Node) -> None:
    host.start()
    host.ready()
    before = sockets(host)
    shutil.rmtree(host.kubelet_root / "plugins_registry")
    shutil.rmtree(host.slices)
    shutil.rmtree(host.cdi, ignore_errors=True)
    eventually(lambda: sockets(host) == before and len(host.published()) == 2, "sockets and slices are back")
    claim = host.claim("after", [cpu_result("1", cpu_device(host))])
    with daemons.kubelet(host) as kubelet:
        assert prepared(kubelet, claim)


def test_edited_slices_are_restored(host: daemons.Node) -> None:
    host.start()
    host.ready()
    before = host.published()
    for path in host.slices.iterdir():
        text = path.read_text()
        assert "numaNode" in text
        path.write_text(text.replace("numaNode", "numaKnot"))
    eventually(lambda: host.published() == before, "the slices are as before")


def test_a_second_daemon_with_the_same_sockets_is_refused(host: daemons.Node) -> None:
    host.start()
    host.ready()
    second = host.start()
    assert second.wait(PATIENCE) == 1
    assert "is in use: another process holds" in host.log()
    claim = host.claim("still", [cpu_result("1", cpu_device(host))])
    with daemons.kubelet(host) as kubelet:
        assert prepared(kubelet, claim)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_two_daemons_hand_over_without_losing_a_call(host: daemons.Node, end: signal.Signals) -> None:
    """As in a rolling update: the new one serves its sockets, and its calls wait for the old one's end."""
    old = host.start(instance="old-pod")
    host.ready()
    device = cpu_device(host)
    kept = host.claim("kept", [memory_result("64Mi", "memory-numa-0")])
    failures: list[str] = []
    calls = 0
    stop = threading.Event()

    def pods() -> None:
        nonlocal calls
        with daemons.kubelet(host) as kubelet:
            while not stop.is_set():
                claim = host.claim("busy", [cpu_result("1", device)])
                try:
                    answers = [
                        kubelet.prepare(CPU, [claim])[claim.uid],
                        kubelet.prepare(CPU, [claim])[claim.uid],
                        kubelet.unprepare(CPU, [claim])[claim.uid],
                    ]
                except KubeletError as error:
                    failures.append(str(error))
                    continue
                failures.extend(answer for answer in answers if isinstance(answer, str))
                calls += 1

    with daemons.kubelet(host) as kubelet:
        assert not isinstance(kubelet.prepare(MEMORY, [kept])[kept.uid], str)
    worker = threading.Thread(target=pods)
    worker.start()
    try:
        eventually(lambda: calls > 5, "calls are answered by the old one")
        host.start(instance="new-pod")
        eventually(lambda: "standing by" in host.log(), "the new one stands by")
        eventually(lambda: len([one for one in sockets(host) if "new-pod" in one.name]) == 4, "its sockets")
        time.sleep(0.5)
        old.send_signal(end)
        old.wait(PATIENCE)
        eventually(lambda: host.log().count("active on node") == 2, "the new one is active")
        reached = calls
        eventually(lambda: calls > reached + 5, "calls are answered by the new one")
    finally:
        stop.set()
        worker.join()
    assert failures == []
    eventually(lambda: all("new-pod" in one.name for one in sockets(host)), "the old one's sockets are gone")
    with daemons.kubelet(host) as kubelet:
        assert kubelet.unprepare(MEMORY, [kept]) == {kept.uid: None}
    assert list(host.cdi.iterdir()) == []


def test_cpus_and_nodes_that_come_and_go_are_published_and_reported(
    host: daemons.Node, tmp_path: Path
) -> None:
    tree = two_sockets(tmp_path)
    (node_1,) = tmp_path.glob("sys/devices/system/node/node1")
    aside = tmp_path / "node1-aside"
    host.start(f"hostRoot: {tmp_path}\nrescanSeconds: 1\n")
    host.ready()
    assert {"cpu-numa-0", "cpu-numa-1", "memory-numa-0", "memory-numa-1"} <= set(host.devices())
    claim = host.claim("on-one", [cpu_result("2", "cpu-numa-1")])
    with daemons.kubelet(host) as kubelet:
        assert prepared(kubelet, claim)
        with kubelet.watch_health(CPU) as stream:
            assert {state.health.value for state in next(stream).values()} == {"Healthy"}
            node_1.rename(aside)
            tree.online("0-1,4-5")
            states = next(
                states for states in stream if any(s.health.value == "Unhealthy" for s in states.values())
            )
            unhealthy = {name for (_, name), state in states.items() if state.health.value == "Unhealthy"}
            assert unhealthy == {"cpu-numa-1"}
        eventually(lambda: "cpu-numa-1" not in host.devices(), "the node is no longer offered")
        assert kubelet.unprepare(CPU, [claim]) == {claim.uid: None}
        aside.rename(node_1)
        tree.online("0-7")
        eventually(lambda: "cpu-numa-1" in host.devices(), "the node is offered again")


def test_a_driver_name_that_prepared_claims_have_cannot_be_configured_away(host: daemons.Node) -> None:
    process = host.start()
    host.ready()
    claim = host.claim("kept", [cpu_result("1", cpu_device(host))])
    with daemons.kubelet(host) as kubelet:
        assert prepared(kubelet, claim)
        daemons.terminate(process)
        renamed = "drivers: [{name: cpus.example.com, backends: [cpu]}]\n"
        host.start(renamed)
        eventually(lambda: "which the configuration no longer has" in host.log(), "the reason is logged")
    assert f"claim default/kept ({claim.uid}) is prepared under driver {CPU}" in host.log()


def test_a_read_only_state_directory_is_reported_for_each_claim(host: daemons.Node) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    state = host.directory / "state"
    state.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", state], check=False).returncode:
        pytest.skip("this machine does not let a file system be mounted")
    try:
        host.start()
        eventually(lambda: "becoming active failed" in host.log(), "the reason is logged")
        unknown = ClaimRef(str(uuid.uuid4()), "default", "unknown")
        assert "Read-only file system" in host.log()
        with daemons.kubelet(host) as kubelet:
            assert [plugin.name for plugin in kubelet.plugins()] == [CPU, MEMORY]
        subprocess.run(["mount", "-o", "remount,rw", state], check=True)
        host.ready()
        with daemons.kubelet(host) as kubelet:
            assert kubelet.unprepare(CPU, [unknown]) == {unknown.uid: None}
    finally:
        host.end()
        subprocess.run(["umount", state], check=True)


@pytest.mark.parametrize("gone", ["", "serialize.lock", "journal.db", "journal.db-wal"])
def test_a_daemon_whose_state_is_taken_away_ends_and_the_next_one_knows_its_claims(
    host: daemons.Node, gone: str
) -> None:
    process = host.start(instance="first")
    host.ready()
    device = cpu_device(host)
    everything = host.devices()[device]["capacity"]["cpu"]["value"]
    claim = host.claim("kept", [cpu_result(everything, device)])
    with daemons.kubelet(host) as kubelet:
        assert prepared(kubelet, claim)
        state = host.directory / "state"
        if gone:
            (state / gone).unlink()
        else:
            shutil.rmtree(state)
        late = host.claim("late", [cpu_result("1", device)])
        host.start(instance="second")
        assert process.wait(PATIENCE) == 1
        assert "was removed or replaced" in host.log()
        eventually(lambda: host.log().count("active on node") == 2, "the second is active")
        assert str(claim.uid) in str(kubelet.prepare(CPU, [late])[late.uid])
        assert kubelet.unprepare(CPU, [claim]) == {claim.uid: None}
    assert list(host.cdi.iterdir()) == []


def test_a_boot_id_that_cannot_be_read_is_no_reboot(host: daemons.Node, tmp_path: Path) -> None:
    tree = HostTree(tmp_path).online("0-3").cores([[0], [1], [2], [3]]).memory(1 << 20)
    tree.write("proc/sys/kernel/random/boot_id", "boot-1")
    config = f"hostRoot: {tmp_path}\n"
    process = host.start(config)
    host.ready()
    claim = host.claim("kept", [cpu_result("4", cpu_device(host))])
    with daemons.kubelet(host) as kubelet:
        first = kubelet.prepare(CPU, [claim])
        for number, boot in enumerate((None, "boot-1"), 2):
            daemons.terminate(process)
            tree.remove("proc/sys/kernel/random/boot_id") if boot is None else tree.write(
                "proc/sys/kernel/random/boot_id", boot
            )
            process = host.start(config)
            eventually(lambda n=number: host.log().count("active on node") == n, "active again")  # type: ignore[misc]
            assert kubelet.prepare(CPU, [claim]) == first


def test_what_lies_in_the_plugin_directory_does_not_keep_the_daemon_from_its_work(host: daemons.Node) -> None:
    obstacle = host.kubelet_root / "plugins" / CPU / "old.sock.lock"
    obstacle.mkdir(parents=True)
    host.start()
    host.ready()
    claim = host.claim("fine", [cpu_result("1", cpu_device(host))])
    with daemons.kubelet(host) as kubelet:
        assert prepared(kubelet, claim)
    eventually(lambda: "sockets of dead instances cannot be removed" in host.log(), "the obstacle is named")
    assert "Traceback" not in host.log()


def test_sigterm_is_never_lost(host: daemons.Node) -> None:
    for number in range(12):
        process = host.start()
        eventually(lambda n=number: (host.directory / f"log-{n + 1}").stat().st_size, "the first line")  # type: ignore[misc]
        assert daemons.terminate(process) < 15.0
        assert process.returncode == 0, host.log()
