"""The plugin with a container runtime on the other side of a real socket, which keeps to NRI, or does not."""

import logging
import random
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dradriver.backend import ContainerAdjustment
from dradriver.clock import Clock
from dradriver.nri import NriPlugin, NriState, Pod, RefusedError, Update
from dradriver_protos import nri_pb2, ttrpc_pb2
from nrihandler import Kept, joined, waiting
from nriruntime import (
    NEW,
    OLD,
    PLUGIN,
    RUNTIME,
    CutOff,
    NriRuntime,
    Plugin,
    Refused,
    Send,
    byte_by_byte,
    frame,
    mux,
    running,
    until,
    whole,
)

VERSIONS = pytest.mark.parametrize("version", [OLD, NEW])


@VERSIONS
def test_the_life_of_a_pod(tmp_path: Path, version: str) -> None:
    with joined(tmp_path, version) as it:
        plugin = it.runtime.plugin()
        assert (plugin.name, plugin.index) == ("dradriver", "50")
        it.handler.answer = ContainerAdjustment(cpus="2-3", mems="0")
        pod = it.runtime.run_pod("web", uid="uid-1", network="/run/netns/web")
        container = it.runtime.create(pod, "main", cdi=["cpu.dradriver.io/claim=u-0"], env=["A=b"])
        assert (it.runtime.cpus(container), it.runtime.mems(container)) == ("2-3", "0")
        it.handler.answer = ContainerAdjustment(cpus="4")
        it.runtime.resize(container, nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(cpus="0-7")))
        assert it.runtime.cpus(container) == "4"
        it.runtime.end(container)
        it.runtime.stop_pod(pod)
        it.runtime.remove_pod(pod)
        assert [name for name, _ in it.handler.events] == [
            "run pod",
            "create",
            "created",
            "update",
            "stop",
            "remove",
            "stop pod",
            "remove pod",
        ]
        assert it.handler.pods == [Pod(pod.id, "uid-1", "default", "web", "/run/netns/web")]
        (told,) = it.handler.containers
        assert (told.pod, told.name, told.env) == (pod.id, "main", ("A=b",))
        assert told.cdi_devices == (("cpu.dradriver.io/claim=u-0",) if version == NEW else ())
        assert it.runtime.log == []
        assert plugin.other == [], "nothing is sent that was not asked for"


@VERSIONS
def test_what_it_says_of_the_runtime(tmp_path: Path, version: str) -> None:
    with joined(tmp_path, version) as it:
        until(lambda: it.plugin.status.state is NriState.ACTIVE, "it is active")
        expected = {OLD: "containerd v1.7.27", NEW: "containerd v2.4.0 (NRI v0.12.2)"}
        assert it.plugin.status.runtime == expected[version]
        assert it.plugin.status.trouble == ""


@VERSIONS
@pytest.mark.parametrize("part", [0, 1, 7])
def test_all_that_runs_is_taken_over_in_parts(tmp_path: Path, version: str, part: int) -> None:
    runtime = NriRuntime(tmp_path / "nri.sock", version)
    for number in range(20):
        pod = runtime.run_pod(f"pod-{number}", uid=f"uid-{number}")
        for _ in range(number % 3):
            runtime.create(pod)
    runtime.part = part
    handler = Kept()
    handler.moved = [Update(name, ContainerAdjustment(cpus="5")) for name in runtime.containers]
    with runtime, running(NriPlugin(handler, socket=runtime.path, environment={}).run):
        runtime.plugin()
        ((pods, containers),) = handler.synchronized
        assert [one.uid for one in pods] == [f"uid-{number}" for number in range(20)]
        assert [one.id for one in containers] == list(runtime.containers)
        assert {runtime.cpus(one) for one in runtime.containers.values()} == {"5"}


@pytest.mark.parametrize("send", [whole, byte_by_byte])
@pytest.mark.parametrize("mux_size", [1, 3, 4096, 4 << 20])
def test_frames_may_be_split_anyhow(tmp_path: Path, send: Send, mux_size: int) -> None:
    with joined(tmp_path, send=send, mux_size=mux_size) as it:
        it.runtime.plugin()
        pod = it.runtime.run_pod("p" * 300, uid="uid-1")
        it.runtime.create(pod, env=["X=" + "y" * 500])
        assert it.handler.pods[0].name == "p" * 300
        assert it.handler.containers[0].env == ("X=" + "y" * 500,)


def questions(*methods: tuple[int, str, bytes]) -> bytes:
    """Return frames of calls, given as (stream, method, payload)."""
    return b"".join(
        frame(
            stream,
            1,
            ttrpc_pb2.Request(
                service="nri.pkg.api.v1alpha1.Plugin", method=method, payload=payload
            ).SerializeToString(),
        )
        for stream, method, payload in methods
    )


def test_several_frames_may_come_in_one_write(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        pods = [nri_pb2.PodEvent(pod=nri_pb2.PodSandbox(id=f"p{n}")).SerializeToString() for n in range(10)]
        asked = questions(*((1001 + 2 * n, "RunPodSandbox", pod) for n, pod in enumerate(pods)))
        plugin.raw(mux(3, b"not ours") + mux(PLUGIN, asked, 11) + mux(RUNTIME, b""))
        for n in range(10):
            assert plugin.answer(1001 + 2 * n).status.code == 0
        assert sorted(it.handler.events) == [("run pod", f"p{n}") for n in range(10)]


def test_what_is_sent_fits_into_the_runtime_s_buffer(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        it.handler.moved = [Update(f"other-{n}", ContainerAdjustment(cpus="0-3,8")) for n in range(3000)]
        it.runtime.create(it.runtime.run_pod())
        assert plugin.largest == 4096


def test_what_is_not_known_is_passed_over(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        for method in ("ValidateContainerAdjustment", "NoSuchMethod", "x" * 500, "a\nb"):
            with pytest.raises(Refused) as caught:
                plugin.ask(method, b"", nri_pb2.Empty)
            assert caught.value.code == 12
        with pytest.raises(Refused, match=r"there is no method other\.Service/RunPodSandbox here"):
            plugin.ask("RunPodSandbox", b"", nri_pb2.Empty, service="other.Service")
        # Fields of another time: a string 99, a number 98.
        unknown = b"\x9a\x06\x03abc\x90\x06\x05"
        pod = nri_pb2.PodSandbox(id="p").SerializeToString() + unknown
        event = b"\x0a" + bytes([len(pod)]) + pod + unknown
        plugin.ask("RunPodSandbox", event, nri_pb2.Empty)
        change = nri_pb2.StateChangeEvent(event=42, pod=nri_pb2.PodSandbox(id="q"))  # type: ignore[arg-type]
        plugin.ask("StateChange", change, nri_pb2.Empty)
        assert plugin.ask("Shutdown", b"", nri_pb2.Empty) == nri_pb2.Empty()
        assert it.handler.events == [("run pod", "p")]


def test_what_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        with pytest.raises(Refused, match=r"3: the message of RunPodSandbox cannot be read"):
            plugin.ask("RunPodSandbox", b"\xff\xff\xff", nri_pb2.Empty)
        plugin.raw(mux(PLUGIN, frame(2001, 1, b"\xff\xff\xff")))
        assert plugin.answer(2001).status.message == "the request cannot be read"
        plugin.raw(mux(PLUGIN, questions((2002, "RunPodSandbox", b""))))
        assert plugin.answer(2002).status.message == "stream ids are odd, and rise"
        plugin.raw(mux(PLUGIN, questions((1999, "RunPodSandbox", b""))))
        assert plugin.answer(1999).status.code == 3
        plugin.raw(mux(PLUGIN, frame(2003, 3, b"data")))
        assert plugin.answer(2003).status.message == "no call of NRI is a stream"
        size = (4 << 20) + 1
        data = struct.pack(">IIBB", size, 2005, 1, 0) + bytes(size)
        plugin.raw(mux(PLUGIN, data, 1 << 20))
        assert plugin.answer(2005).status.code == 8
        plugin.raw(mux(PLUGIN, frame(2007, 77, b"?") + questions((2009, "Shutdown", b""))))
        assert plugin.answer(2009).status.code == 0


def test_a_refusal_is_told_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with joined(tmp_path) as it:
        it.runtime.plugin()
        pod = it.runtime.run_pod()

        def refuse(name: str) -> None:
            raise RefusedError("claim default/c is not prepared on this node")

        it.handler.before = refuse
        for _ in range(3):
            with pytest.raises(Refused, match="9: dradriver: claim default/c is not prepared on this node"):
                it.runtime.create(pod)
        assert it.runtime.containers == {}
        assert caplog.text.count("claim default/c is not prepared") == 1


def test_a_failure_of_the_handler_is_an_error_of_that_question_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        pod = it.runtime.run_pod()

        def fail(name: str) -> None:
            raise ZeroDivisionError("secret")

        it.handler.before = fail
        for _ in range(3):
            with pytest.raises(
                Refused, match=r"13: dradriver: internal error \(ZeroDivisionError\), see its log"
            ):
                it.runtime.create(pod)
        it.handler.before = lambda name: None
        it.runtime.create(pod)
        assert it.runtime.plugins == [plugin]
        assert caplog.text.count("Traceback") == 1


def test_a_handler_that_is_late_is_answered_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        pod = it.runtime.run_pod()
        go_on = threading.Event()
        it.handler.before = waiting(go_on)
        with pytest.raises(Refused, match="14: dradriver came to no answer in time"):
            plugin.ask(
                "CreateContainer",
                nri_pb2.CreateContainerRequest(pod=pod, container=nri_pb2.Container(id="c")),
                nri_pb2.CreateContainerResponse,
                seconds=0.4,
            )
        with pytest.raises(Refused, match="came to no answer in time"):
            it.runtime.create(pod)
        it.handler.before = lambda name: None
        it.runtime.create(pod)
        go_on.set()
        until(lambda: it.handler.unheard_answers == 2, "both answers came too late")
        assert it.runtime.plugins == [plugin], "it was not cut off"
        assert "CreateContainer took too long and was refused" in caplog.text


def test_a_handler_that_hangs_for_ever_leaves_the_others_their_threads(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        pod = it.runtime.run_pod()
        hung = threading.Event()
        it.handler.before = waiting(hung)
        for _ in range(3):
            with pytest.raises(Refused):
                plugin.ask("StopContainer", nri_pb2.StopContainerRequest(pod=pod), nri_pb2.Empty, seconds=0.1)
        it.handler.before = lambda name: None
        it.runtime.create(pod)
        assert len(it.handler.threads) <= 4
        hung.set()


def test_more_questions_than_a_runtime_has_are_refused(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        go_on = threading.Event()
        it.handler.before = waiting(go_on)
        asked = questions(*((1001 + 2 * n, "RunPodSandbox", b"") for n in range(40)))
        plugin.raw(mux(PLUGIN, asked))
        refused = [plugin.answer(1001 + 2 * n).status.code for n in range(16, 40)]
        assert refused == [8] * 24
        go_on.set()
        assert [plugin.answer(1001 + 2 * n).status.code for n in range(16)] == [0] * 16


def test_more_bytes_than_two_messages_are_refused(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        go_on = threading.Event()
        it.handler.before = waiting(go_on)
        large = nri_pb2.PodEvent(pod=nri_pb2.PodSandbox(name="x" * (3 << 20))).SerializeToString()
        asked = questions(*((1001 + 2 * n, "RunPodSandbox", large) for n in range(3)))
        plugin.raw(mux(PLUGIN, asked))
        assert plugin.answer(1005).status.code == 8
        go_on.set()
        assert [plugin.answer(stream).status.code for stream in (1001, 1003)] == [0, 0]


def test_too_many_pods_for_a_node_are_refused(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        part = nri_pb2.SynchronizeRequest(pods=[nri_pb2.PodSandbox() for _ in range(20000)], more=True)
        assert plugin.ask("Synchronize", part, nri_pb2.SynchronizeResponse).more
        with pytest.raises(Refused, match="more than 32768 pods and containers"):
            plugin.ask("Synchronize", part, nri_pb2.SynchronizeResponse)
        part.more = False
        assert not plugin.ask("Synchronize", part, nri_pb2.SynchronizeResponse).more
        assert len(it.handler.synchronized[-1][0]) == 20000, "what came before was let go"


def test_a_plugin_that_was_cut_off_comes_back_and_mends(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        first = it.runtime.plugin()
        pod = it.runtime.run_pod()
        it.runtime.drop()
        container = it.runtime.create(pod)
        assert it.runtime.cpus(container) == "", "nobody was there"
        it.handler.moved = [Update(container.id, ContainerAdjustment(cpus="1"))]
        it.runtime.plugin(besides=first)
        assert it.runtime.cpus(container) == "1"


def test_a_runtime_that_starts_again_is_found_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dradriver")
    with joined(tmp_path) as it:
        for version in (OLD, NEW, OLD):
            plugin = it.runtime.plugin()
            until(lambda: it.plugin.status.state is NriState.ACTIVE, "it is active")
            it.runtime.stop()
            until(lambda: it.plugin.status.trouble, "it is lost")
            assert it.plugin.status.passing
            it.runtime.version = version
            it.runtime.start()
            it.runtime.plugin(besides=plugin)
        assert len(it.handler.synchronized) == 4
        assert caplog.text.count("NRI: joined containerd") == 4
        assert caplog.text.count("is lost, and looked for") == 3


class Ahead(Clock):
    """A clock that can be put forward."""

    seconds = 0.0

    def now(self) -> float:
        return super().now() + self.seconds


def test_a_loss_counts_as_passing_from_when_it_happened(tmp_path: Path) -> None:
    clock = Ahead()
    with joined(tmp_path, clock=clock) as it:
        until(lambda: it.plugin.status.state is NriState.ACTIVE, "it is active")
        clock.seconds += 3600
        it.runtime.stop()
        until(lambda: it.plugin.status.trouble, "it is lost")
        assert it.plugin.status.passing
        clock.seconds += 31
        until(lambda: not it.plugin.status.passing, "it will not pass by itself")


def test_a_runtime_that_does_not_read_an_answer_is_left(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        it.handler.moved = [Update(f"other-{n}", ContainerAdjustment(cpus="0-3")) for n in range(50000)]
        plugin.reading.clear()
        plugin.raw(mux(PLUGIN, questions((1001, "StopContainer", b""))))
        until(lambda: it.plugin.status.trouble, "it is lost")
        until(lambda: it.handler.unheard_answers == 1, "the answer reached nobody")
        it.handler.moved = ()
        plugin.reading.set()
        it.runtime.plugin(besides=plugin)


def test_without_a_socket_it_waits_for_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dradriver")
    path = tmp_path / "nri.sock"
    plugin = NriPlugin(Kept(), socket=path, environment={}, clock=Clock(20.0))
    assert (plugin.status.state, plugin.status.passing) == (NriState.CONNECTING, True)
    with running(plugin.run):
        until(lambda: plugin.status.state is NriState.ABSENT, "it is absent")
        assert plugin.status.trouble == f"there is no socket at {path}: NRI is off in the container runtime"
        assert not plugin.status.passing
        time.sleep(0.5)
        assert len(caplog.records) == 1, "one line, however often it is looked for"
        with NriRuntime(path) as runtime:
            runtime.plugin()
            until(lambda: plugin.status.state is NriState.ACTIVE, "it is active")


def test_a_socket_where_nobody_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    plugin = NriPlugin(Kept(), socket=path, environment={}, clock=Clock(200.0))
    with running(plugin.run):
        until(lambda: plugin.status.state is NriState.FAILING, "it fails")
        assert plugin.status.trouble == f"{path}: Connection refused"
        until(lambda: not plugin.status.passing, "half a minute is over")
        assert len(caplog.records) == 1


def test_what_is_no_socket_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    path.write_text("")
    plugin = NriPlugin(Kept(), socket=path, environment={})
    with running(plugin.run):
        until(lambda: plugin.status.trouble == f"{path} is no socket", "it is no socket")


def test_a_runtime_that_refuses_is_asked_again_with_patience(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with joined(tmp_path, refuse="plugins are\nforbidden") as it:
        until(lambda: len(it.runtime.connections) >= 3, "it was asked again")
        refusal = r"the container runtime refused us: 'plugins are\nforbidden'"
        assert it.plugin.status.trouble == refusal
        assert caplog.text.count("refused us") == 1
        it.runtime.refuse = ""
        it.runtime.plugin()
        until(lambda: it.plugin.status.trouble == "", "it is active")


def test_a_runtime_that_does_not_answer_the_registration_is_left(tmp_path: Path) -> None:
    with joined(tmp_path, clock=Clock(20.0), mute=True) as it:
        until(lambda: "did not register us in 5 s" in it.plugin.status.trouble, "it gave up")
        assert all(one.registered.is_set() for one in it.runtime.connections)
        it.runtime.mute = False
        it.runtime.plugin()


def test_a_runtime_that_never_synchronizes_is_left(tmp_path: Path) -> None:
    with joined(tmp_path, clock=Clock(400.0), mute=True) as it:
        first = until(lambda: it.runtime.connections, "it is connected")[0]
        until(first.registered.is_set, "it has registered")
        first.accept()
        until(lambda: "did not synchronize in 600 s" in it.plugin.status.trouble, "it gave up")


def test_attempts_are_spread_out(tmp_path: Path) -> None:
    with joined(tmp_path, refuse="no") as it:
        time.sleep(2.0)
        assert 2 <= len(it.runtime.connections) <= 8


def test_a_connection_that_never_lasts_is_not_made_in_a_hot_loop(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            if it.runtime.plugins:
                it.runtime.drop()
            time.sleep(0.01)
        assert len(it.handler.synchronized) <= 8


def test_it_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        it.stop.set()
        assert plugin.ended.wait(5)


def test_it_ends_though_the_handler_hangs(tmp_path: Path) -> None:
    hung = threading.Event()
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        it.handler.before = waiting(hung)
        plugin.raw(mux(PLUGIN, questions((1001, "RunPodSandbox", b""))))
        until(lambda: it.handler.threads, "it is at work")
        it.stop.set()
        assert plugin.ended.wait(5)
    hung.set()


def test_a_runtime_that_asks_and_never_reads_is_left(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        plugin = NriPlugin(Kept(), socket=path, environment={})
        with running(plugin.run):
            connected, _ = listener.accept()
            with connected:
                connected.setblocking(False)
                asked = mux(PLUGIN, frame(2, 1, b"") * 1000)

                def left() -> bool:
                    with suppress(OSError):
                        connected.send(asked)
                    return plugin.status.trouble.startswith("nothing can be sent: ")

                until(left, "it is left")


@VERSIONS
def test_a_plugin_that_the_runtime_starts_has_its_socket(tmp_path: Path, version: str) -> None:
    ours, theirs = socket.socketpair()
    runtime = NriRuntime(tmp_path / "nri.sock", version)
    environment = {
        "NRI_PLUGIN_SOCKET": str(ours.detach()),
        "NRI_PLUGIN_NAME": "pinner",
        "NRI_PLUGIN_IDX": "07",
    }
    plugin = NriPlugin(Kept(), socket=runtime.path, environment=environment)
    with runtime, running(plugin.run):
        runtime.attach(theirs)
        first = runtime.plugin()
        assert (first.name, first.index) == ("pinner", "07")
        runtime.drop()
        second = runtime.plugin(besides=first)
        assert second.name == "pinner", "afterwards it comes by the socket's path"


@pytest.mark.parametrize(
    ("descriptor", "trouble"),
    [
        ("987", "file descriptor 987: Bad file descriptor"),
        ("x", "it is no number of a file descriptor"),
        ("-1", "file descriptor -1 is no socket"),
        ("9" * 30, "it is no number of a file descriptor"),
    ],
)
def test_what_is_no_descriptor_of_a_socket_is_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, descriptor: str, trouble: str
) -> None:
    environment = {"NRI_PLUGIN_SOCKET": descriptor}
    plugin = NriPlugin(Kept(), socket=tmp_path / "nri.sock", environment=environment)
    with running(plugin.run):
        until(lambda: plugin.status.state is NriState.ABSENT, "the path was tried")
    assert f"the socket that the container runtime left: {trouble}" in caplog.text


@pytest.mark.parametrize("names", [{"name": "a b"}, {"name": ""}, {"index": "5"}, {"index": "5x"}])
def test_a_name_that_no_runtime_takes_is_refused_at_once(tmp_path: Path, names: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"plugin (name|index)"):
        NriPlugin(Kept(), socket=tmp_path, environment={}, **names)  # type: ignore[arg-type]


def test_several_plugins_of_one_runtime(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        first = it.runtime.plugin()
        other = Kept()
        with running(NriPlugin(other, socket=it.runtime.path, index="60", environment={}).run):
            second = it.runtime.plugin(besides=first)
            it.runtime.run_pod()
            assert (first.index, second.index) == ("50", "60")
            assert it.handler.events == other.events


def strange(source: random.Random) -> bytes:
    """Return bytes as no runtime sends them, but now and then nearly."""
    match source.randrange(4):
        case 0:
            return source.randbytes(source.randrange(1, 300))
        case 1:
            payload = source.randbytes(source.randrange(200))
            return mux(source.choice([PLUGIN, RUNTIME, 0, 9]), payload, source.randrange(1, 50))
        case 2:
            header = struct.pack(">IIBB", source.randrange(40), source.randrange(9), source.randrange(4), 0)
            return mux(source.choice([PLUGIN, RUNTIME]), header + source.randbytes(40))
        case _:
            method = source.choice(["CreateContainer", "Synchronize", "StateChange", "Configure", "?"])
            asked = (source.randrange(1, 99999), method, source.randbytes(source.randrange(60)))
            return mux(PLUGIN, questions(asked))


@pytest.mark.parametrize("seed", range(8))
def test_no_bytes_bring_it_down(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    with joined(tmp_path, clock=Clock(10.0)) as it:
        for _ in range(6):
            plugin = it.runtime.plugin()
            try:
                for _ in range(60):
                    plugin.raw(strange(source))
            except OSError:
                pass  # it has had enough
            plugin.close()
            it.runtime.plugins.clear()
        it.runtime.plugin()
        it.runtime.run_pod(uid="after all")
        assert it.handler.pods[-1].uid == "after all"


def test_a_runtime_that_is_gone_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    with joined(tmp_path) as it:
        plugin = it.runtime.plugin()
        inside, go_on = threading.Event(), threading.Event()

        def wait(name: str) -> None:
            inside.set()
            go_on.wait(10)

        it.handler.before = wait
        plugin.raw(mux(PLUGIN, questions((1001, "RunPodSandbox", b""))))
        assert inside.wait(5)
        it.handler.before = lambda name: None
        it.runtime.drop()
        it.runtime.plugin(besides=plugin)
        go_on.set()
        until(lambda: it.handler.unheard_answers == 1, "the answer reached nobody")
        with pytest.raises(CutOff):
            plugin.answer(1001, 0.1)


def test_the_tests_runtime_cuts_off_who_is_silent(tmp_path: Path) -> None:
    """As a runtime does: the pod goes on without the plugin."""
    runtime = NriRuntime(tmp_path / "nri.sock")
    ours, theirs = socket.socketpair()
    with ours:
        plugin = Plugin(theirs)
        plugin.events = 255
        runtime.plugins.append(plugin)
        runtime.run_pod()
        assert runtime.plugins == []
        assert len(runtime.pods) == 1
