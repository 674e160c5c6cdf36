"""The simulated kubelet in front of drivers that are not ours, some of them wrong."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dradriver.kubelet import unix_target
from dradriver.model import PreparedDevice
from dradriver.sim.kubelet import AnswerError, CallError, Kubelet, KubeletError, PluginNotFoundError
from dradriver.sim.watcher import EventKind, RegistrationWatcher
from dradriver_protos import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)
from kubeletside import claim, kubelet_root

DRIVER = "other.example.com"


class Foreign(
    registration_pb2_grpc.RegistrationServicer,
    dra_v1_pb2_grpc.DRAPluginServicer,
    dra_v1beta1_pb2_grpc.DRAPluginServicer,
):
    """A driver that says what a test tells it to, all on one socket."""

    def __init__(
        self, versions: Sequence[str], entries: Any, *, kind: str = "DRAPlugin", endpoint: str = ""
    ) -> None:
        self.info = registration_pb2.PluginInfo(
            type=kind, name=DRIVER, endpoint=endpoint, supported_versions=versions
        )
        self.entries = entries
        self.notified: list[tuple[bool, str]] = []

    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self.info

    def NotifyRegistrationStatus(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.notified.append((request.plugin_registered, request.error))
        return registration_pb2.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        messages: Any = (
            dra_v1_pb2 if isinstance(request, dra_v1_pb2.NodePrepareResourcesRequest) else dra_v1beta1_pb2
        )
        response = messages.NodePrepareResourcesResponse()
        for uid, fields in self.entries.items():
            response.claims[uid].CopyFrom(messages.NodePrepareResourceResponse(**fields))
        return response

    def NodeUnprepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        messages: Any = (
            dra_v1_pb2 if isinstance(request, dra_v1_pb2.NodeUnprepareResourcesRequest) else dra_v1beta1_pb2
        )
        response = messages.NodeUnprepareResourcesResponse()
        for uid in self.entries:
            response.claims[uid].error = ""
        return response


@contextmanager
def offered(root: Path, foreign: Foreign, *services: str, name: str = DRIVER) -> Iterator[Path]:
    socket = root / "plugins_registry" / f"{name}.sock"
    socket.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        registration_pb2_grpc.add_RegistrationServicer_to_server(foreign, server)
        if "v1" in services:
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(foreign, server)
        if "v1beta1" in services:
            dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(foreign, server)
        server.add_insecure_port(unix_target(socket))
        server.start()
        try:
            yield socket
        finally:
            server.stop(0).wait()


@pytest.fixture
def root() -> Iterator[Path]:
    with kubelet_root() as path:
        yield path


GOOD = {
    "request_names": ["req"],
    "pool_name": "node-1",
    "device_name": "dev-0",
    "cdi_device_ids": ["a.b/c=d"],
}
PREPARED = PreparedDevice(("req",), "node-1", "dev-0", ("a.b/c=d",))


def test_a_driver_of_v1beta1_alone_is_called_by_what_it_advertises(root: Path) -> None:
    foreign = Foreign(["v1beta1.DRAPlugin"], {claim().uid: {"devices": [GOOD]}})
    with offered(root, foreign, "v1beta1"), Kubelet(root) as kubelet:
        assert kubelet.prepare(DRIVER, [claim()]) == {claim().uid: (PREPARED,)}
        assert kubelet.unprepare(DRIVER, [claim()]) == {claim().uid: None}


def test_the_first_version_that_is_known_is_taken(root: Path) -> None:
    foreign = Foreign(
        ["v9.DRAPlugin", "v1.DRAPlugin", "v1beta1.DRAPlugin"], {claim().uid: {"devices": [GOOD]}}
    )
    with offered(root, foreign, "v1"), Kubelet(root) as kubelet:
        assert kubelet.prepare(DRIVER, [claim()]) == {claim().uid: (PREPARED,)}


def test_a_driver_of_unknown_versions_cannot_be_called(root: Path) -> None:
    said = r"speaks 'v9.DRAPlugin': one of v1.DRAPlugin, v1beta1.DRAPlugin is needed"
    with (
        offered(root, Foreign(["v9.DRAPlugin"], {})),
        Kubelet(root) as kubelet,
        pytest.raises(KubeletError, match=said),
    ):
        kubelet.prepare(DRIVER, [claim()])


def test_a_service_that_is_advertised_but_not_there_is_a_failed_call(root: Path) -> None:
    with offered(root, Foreign(["v1.DRAPlugin"], {})), Kubelet(root) as kubelet:
        with pytest.raises(CallError) as failure:
            kubelet.prepare(DRIVER, [claim()])
        assert failure.value.code == "UNIMPLEMENTED"


def test_an_error_entry_is_returned_as_it_is(root: Path) -> None:
    foreign = Foreign(["v1.DRAPlugin"], {claim().uid: {"error": "no such device", "devices": [GOOD]}})
    with offered(root, foreign, "v1"), Kubelet(root) as kubelet:
        assert kubelet.prepare(DRIVER, [claim()]) == {claim().uid: "no such device"}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({}, "left out claim"),
        ({claim().uid: {}, "stranger": {}}, "answered for claim 'stranger'"),
        ({claim().uid: {"devices": [{**GOOD, "request_names": []}]}}, "no request name"),
        ({claim().uid: {"devices": [{**GOOD, "request_names": ["req", ""]}]}}, "no request name"),
        ({claim().uid: {"devices": [{**GOOD, "request_names": ["req/sub"]}]}}, "base names"),
        ({claim().uid: {"devices": [{**GOOD, "pool_name": ""}]}}, "no pool name"),
        ({claim().uid: {"devices": [{**GOOD, "device_name": ""}]}}, "no device name"),
    ],
)
def test_an_answer_that_breaks_the_contract_is_named_and_kept(root: Path, entries: Any, problem: str) -> None:
    with offered(root, Foreign(["v1.DRAPlugin"], entries), "v1"), Kubelet(root) as kubelet:
        with pytest.raises(AnswerError, match=problem) as failure:
            kubelet.prepare(DRIVER, [claim()])
        assert set(failure.value.answer) == set(entries)


def test_an_unprepare_that_leaves_a_claim_out_is_named(root: Path) -> None:
    with (
        offered(root, Foreign(["v1.DRAPlugin"], {claim(0).uid: {}}), "v1"),
        Kubelet(root) as kubelet,
        pytest.raises(AnswerError, match=f"left out claim '{claim(1).uid}'"),
    ):
        kubelet.unprepare(DRIVER, [claim(0), claim(1)])


def test_only_sockets_that_the_kubelet_would_dial_are_dialled(root: Path) -> None:
    foreign = Foreign(["v1.DRAPlugin"], {})
    with offered(root, foreign, name="seen"), offered(root, foreign, name=".hidden"):
        (root / "plugins_registry" / "file.sock").touch()
        (root / "plugins_registry" / "folder").mkdir()
        with Kubelet(root) as kubelet:
            assert [plugin.socket.name for plugin in kubelet.plugins()] == ["seen.sock"]


def test_a_socket_that_nobody_serves_is_listed_with_its_error(root: Path) -> None:
    with offered(root, Foreign([], {})) as socket:
        kept = socket.with_name("kept.sock")
        socket.rename(kept)
    with Kubelet(root) as kubelet:
        [plugin] = kubelet.plugins()
        assert plugin.socket == kept
        assert "UNAVAILABLE" in plugin.error
        with pytest.raises(PluginNotFoundError, match=r"no DRA driver 'other.example.com' answers"):
            kubelet.plugin(DRIVER)


def test_no_registry_means_no_plugins(root: Path) -> None:
    with Kubelet(root / "nowhere") as kubelet:
        assert kubelet.plugins() == []


def test_plugins_of_other_types_are_listed_and_never_taken_for_a_driver(root: Path) -> None:
    with offered(root, Foreign(["1.0.0"], {}, kind="CSIPlugin")), Kubelet(root) as kubelet:
        assert [plugin.type for plugin in kubelet.plugins()] == ["CSIPlugin"]
        with pytest.raises(PluginNotFoundError):
            kubelet.plugin(DRIVER)


@pytest.mark.parametrize(
    ("foreign", "reason"),
    [
        (Foreign(["1.0.0"], {}, kind="CSIPlugin"), "no handler registered for plugin type: CSIPlugin"),
        (Foreign(["v9.DRAPlugin"], {}), "none of the DRA services"),
        (Foreign(["v1.DRAPlugin"], {}, endpoint="dra.sock"), "endpoint is not an absolute path"),
    ],
)
def test_the_watcher_tells_a_plugin_why_it_is_refused(root: Path, foreign: Foreign, reason: str) -> None:
    with RegistrationWatcher(root) as watcher, offered(root, foreign):
        event = watcher.wait(EventKind.REFUSED)
        assert reason in event.detail
        assert foreign.notified[0] == (False, event.detail)
        assert watcher.registered == ()


def test_the_watcher_retries_a_socket_that_does_not_answer(root: Path) -> None:
    with offered(root, Foreign([], {})) as socket:
        socket.rename(socket.with_name("kept.sock"))
    with RegistrationWatcher(root) as watcher:
        watcher.wait(EventKind.FAILED, count=2)
        assert watcher.registered == ()


def test_the_watcher_notices_a_plugin_that_goes(root: Path) -> None:
    foreign = Foreign(["v1.DRAPlugin"], {})
    with RegistrationWatcher(root) as watcher:
        with offered(root, foreign) as socket:
            watcher.wait(EventKind.REGISTERED)
            assert [plugin.socket for plugin in watcher.registered] == [socket]
        watcher.wait(EventKind.REMOVED)
        assert watcher.registered == ()
        assert foreign.notified == [(True, "")]


def test_a_health_version_that_is_none_is_refused(root: Path) -> None:
    with Kubelet(root) as kubelet, pytest.raises(ValueError, match="one of v1, v1alpha1 is allowed"):
        kubelet.watch_health(DRIVER, "v2")


def test_a_driver_without_health_is_a_failed_call(root: Path) -> None:
    with offered(root, Foreign(["v1.DRAPlugin"], {})), Kubelet(root) as kubelet:
        with pytest.raises(CallError) as failure:
            next(kubelet.watch_health(DRIVER))
        assert failure.value.code == "UNIMPLEMENTED"
