"""The kubelet's messages and calls, byte for byte: a wrong field number, type or path shows here."""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

import dradriver_protos
from dradriver_protos import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)
from waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

# A field is a key byte (number * 8 + wire type: 0 varint, 2 length-delimited), then the value.
CLAIM = b"\x0a\x02ns" + b"\x12\x03uid" + b"\x1a\x04name"
DEVICE = (
    b"\x0a\x03gpu" + b"\x0a\x03nic" + b"\x12\x04pool" + b"\x1a\x05gpu-0" + b"\x22\x05a/b=0" + b"\x22\x05a/b=1"
)
IDENTIFIER = b"\x0a\x04pool" + b"\x12\x05gpu-0"
HEALTH = (
    b"\x0a\x0d" + IDENTIFIER + b"\x10\x02" + b"\x18\x80\x8d\xcb\xd5\x06" + b"\x20\x1e" + b"\x2a\x06xid 79"
)


def nested(key: bytes, value: bytes) -> bytes:
    """Return a field that holds a message or string of fewer than 128 bytes."""
    return key + bytes([len(value)]) + value


def entry(key: bytes, uid: bytes, value: bytes) -> bytes:
    """Return an entry of a map<string, message>: a message of 1 key and 2 value."""
    return nested(key, nested(b"\x0a", uid) + nested(b"\x12", value))


def assert_wire(message: Message, wire: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message


def test_registration_messages() -> None:
    assert_wire(registration_pb2.InfoRequest(), b"")
    assert_wire(
        registration_pb2.PluginInfo(
            type="DRAPlugin", name="d.io", endpoint="/p/dra.sock", supported_versions=["v1.DRAPlugin", "x"]
        ),
        b"\x0a\x09DRAPlugin\x12\x04d.io\x1a\x0b/p/dra.sock\x22\x0cv1.DRAPlugin\x22\x01x",
    )
    assert_wire(
        registration_pb2.RegistrationStatus(plugin_registered=True, error="no"), b"\x08\x01" + b"\x12\x02no"
    )
    assert_wire(registration_pb2.RegistrationStatusResponse(), b"")


@pytest.mark.parametrize("api", [dra_v1_pb2, dra_v1beta1_pb2])
def test_prepare_messages(api: Any) -> None:
    claim = api.Claim(namespace="ns", uid="uid", name="name")
    device = api.Device(
        request_names=["gpu", "nic"], pool_name="pool", device_name="gpu-0", cdi_device_ids=["a/b=0", "a/b=1"]
    )
    assert_wire(claim, CLAIM)
    assert_wire(device, DEVICE)
    assert_wire(api.NodePrepareResourcesRequest(claims=[claim]), nested(b"\x0a", CLAIM))
    prepared = api.NodePrepareResourceResponse(devices=[device])
    assert_wire(prepared, nested(b"\x0a", DEVICE))
    assert_wire(api.NodePrepareResourceResponse(error="no"), b"\x12\x02no")
    assert_wire(
        api.NodePrepareResourcesResponse(claims={"uid": prepared}),
        entry(b"\x0a", b"uid", nested(b"\x0a", DEVICE)),
    )


def test_a_share_id_is_sent_only_when_set() -> None:
    assert_wire(dra_v1_pb2.Device(share_id="s-1"), b"\x2a\x03s-1")
    assert_wire(dra_v1_pb2.Device(share_id=""), b"\x2a\x00")
    assert not dra_v1_pb2.Device().HasField("share_id")
    assert "share_id" not in dra_v1beta1_pb2.Device.DESCRIPTOR.fields_by_name


@pytest.mark.parametrize("api", [dra_v1_pb2, dra_v1beta1_pb2])
def test_unprepare_messages(api: Any) -> None:
    claim = api.Claim(namespace="ns", uid="uid", name="name")
    assert_wire(api.NodeUnprepareResourcesRequest(claims=[claim]), nested(b"\x0a", CLAIM))
    failed = api.NodeUnprepareResourceResponse(error="busy")
    assert_wire(failed, b"\x0a\x04busy")
    assert_wire(
        api.NodeUnprepareResourcesResponse(claims={"uid": failed, "v": api.NodeUnprepareResourceResponse()}),
        entry(b"\x0a", b"uid", b"\x0a\x04busy") + entry(b"\x0a", b"v", b""),
    )


@pytest.mark.parametrize("api", [health_v1_pb2, health_v1alpha1_pb2])
def test_health_messages(api: Any) -> None:
    identifier = api.DeviceIdentifier(pool_name="pool", device_name="gpu-0")
    health = api.DeviceHealth(
        device=identifier,
        health=api.UNHEALTHY,
        last_updated_time=1790101120,
        health_check_timeout_seconds=30,
        message="xid 79",
    )
    assert_wire(api.NodeWatchResourcesRequest(), b"")
    assert_wire(identifier, IDENTIFIER)
    assert_wire(health, HEALTH)
    assert_wire(api.NodeWatchResourcesResponse(devices=[health]), nested(b"\x0a", HEALTH))
    assert (api.UNKNOWN, api.HEALTHY, api.UNHEALTHY) == (0, 1, 2)


class Registration(registration_pb2_grpc.RegistrationServicer):
    def GetInfo(  # noqa: N802
        self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(type=dradriver_protos.PLUGIN_TYPE)

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_pb2.RegistrationStatusResponse:
        assert request.plugin_registered
        return registration_pb2.RegistrationStatusResponse()


def fail_all(claims: Iterable[Any], entries: Any) -> None:
    for claim in claims:
        entries[claim.uid].error = claim.name


class PluginV1(dra_v1_pb2_grpc.DRAPluginServicer):
    def NodePrepareResources(  # noqa: N802
        self, request: dra_v1_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_v1_pb2.NodePrepareResourcesResponse:
        answer = dra_v1_pb2.NodePrepareResourcesResponse()
        fail_all(request.claims, answer.claims)
        return answer

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra_v1_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        answer = dra_v1_pb2.NodeUnprepareResourcesResponse()
        fail_all(request.claims, answer.claims)
        return answer


class PluginV1Beta1(dra_v1beta1_pb2_grpc.DRAPluginServicer):
    def NodePrepareResources(  # noqa: N802
        self, request: dra_v1beta1_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_v1beta1_pb2.NodePrepareResourcesResponse:
        answer = dra_v1beta1_pb2.NodePrepareResourcesResponse()
        fail_all(request.claims, answer.claims)
        return answer

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra_v1beta1_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_v1beta1_pb2.NodeUnprepareResourcesResponse:
        answer = dra_v1beta1_pb2.NodeUnprepareResourcesResponse()
        fail_all(request.claims, answer.claims)
        return answer


class HealthV1(health_v1_pb2_grpc.DRAResourceHealthServicer):
    def NodeWatchResources(  # noqa: N802
        self, request: health_v1_pb2.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health_v1_pb2.NodeWatchResourcesResponse]:
        for state in (health_v1_pb2.HEALTHY, health_v1_pb2.UNHEALTHY):
            device = health_v1_pb2.DeviceHealth(health=state)
            yield health_v1_pb2.NodeWatchResourcesResponse(devices=[device])


class HealthV1Alpha1(health_v1alpha1_pb2_grpc.DRAResourceHealthServicer):
    def NodeWatchResources(  # noqa: N802
        self, request: health_v1alpha1_pb2.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health_v1alpha1_pb2.NodeWatchResourcesResponse]:
        for state in (health_v1alpha1_pb2.HEALTHY, health_v1alpha1_pb2.UNHEALTHY):
            device = health_v1alpha1_pb2.DeviceHealth(health=state)
            yield health_v1alpha1_pb2.NodeWatchResourcesResponse(devices=[device])


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[grpc.Channel]:
    """A channel to one server with all five services, on a socket as the kubelet would dial it."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    registration_pb2_grpc.add_RegistrationServicer_to_server(Registration(), server)
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(PluginV1(), server)
    dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(PluginV1Beta1(), server)
    health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthV1(), server)
    health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthV1Alpha1(), server)
    address = f"unix:{tmp_path / 's'}"
    server.add_insecure_port(address)
    server.start()
    try:
        with grpc.insecure_channel(address) as opened:
            yield opened
    finally:
        server.stop(None).wait()


PREPARE = nested(b"\x0a", CLAIM)
FAILED_PREPARE = entry(b"\x0a", b"uid", b"\x12\x04name")
FAILED_UNPREPARE = entry(b"\x0a", b"uid", b"\x0a\x04name")


@pytest.mark.parametrize(
    ("path", "request_wire", "response_wire"),
    [
        ("/pluginregistration.Registration/GetInfo", b"", b"\x0a\x09DRAPlugin"),
        ("/pluginregistration.Registration/NotifyRegistrationStatus", b"\x08\x01", b""),
        ("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", PREPARE, FAILED_PREPARE),
        ("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources", PREPARE, FAILED_UNPREPARE),
        ("/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources", PREPARE, FAILED_PREPARE),
        ("/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources", PREPARE, FAILED_UNPREPARE),
    ],
)
def test_a_call_by_path_and_bytes_is_answered(
    channel: grpc.Channel, path: str, request_wire: bytes, response_wire: bytes
) -> None:
    assert channel.unary_unary(path)(request_wire, timeout=PATIENCE) == response_wire


@pytest.mark.parametrize("package", ["v1", "v1alpha1"])
def test_a_health_stream_by_path_and_bytes_is_answered(channel: grpc.Channel, package: str) -> None:
    stream = channel.unary_stream(f"/{package}.DRAResourceHealth/NodeWatchResources")(b"", timeout=PATIENCE)
    assert list(stream) == [b"\x0a\x02\x10\x01", b"\x0a\x02\x10\x02"]


def test_stubs_call_the_same_paths(channel: grpc.Channel) -> None:
    assert registration_pb2_grpc.RegistrationStub(channel).GetInfo(registration_pb2.InfoRequest()).type
    v1 = dra_v1_pb2_grpc.DRAPluginStub(channel)
    assert not v1.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest()).claims
    v1beta1 = dra_v1beta1_pb2_grpc.DRAPluginStub(channel)
    assert not v1beta1.NodeUnprepareResources(dra_v1beta1_pb2.NodeUnprepareResourcesRequest()).claims
    health = health_v1_pb2_grpc.DRAResourceHealthStub(channel)
    assert len(list(health.NodeWatchResources(health_v1_pb2.NodeWatchResourcesRequest()))) == 2


def test_versions_are_offered_in_the_order_of_preference() -> None:
    assert dradriver_protos.SUPPORTED_VERSIONS == (
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    )


def test_descriptors_have_paths_of_their_own() -> None:
    names = {
        api.DESCRIPTOR.name
        for api in (dra_v1_pb2, dra_v1beta1_pb2, health_v1_pb2, health_v1alpha1_pb2, registration_pb2)
    }
    assert len(names) == 5
    assert all(name.startswith("dradriver_protos/") for name in names)


def test_generated_code_is_imported_without_a_warning() -> None:
    modules = sorted(path.stem for path in (ROOT / "protos/dradriver_protos").glob("*_pb2_grpc.py"))
    program = "".join(f"import dradriver_protos.{module}\n" for module in modules)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(modules) == 5


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what hack/generate reads and writes."""
    (tmp_path / "hack").mkdir()
    shutil.copy(ROOT / "hack/generate", tmp_path / "hack/generate")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    shutil.copytree(
        ROOT / "protos/dradriver_protos",
        tmp_path / "protos/dradriver_protos",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return tmp_path


def generate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "hack/generate"), *arguments], capture_output=True, text=True, check=False
    )


def test_generated_code_in_the_tree_is_up_to_date() -> None:
    result = generate(ROOT, "--check")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_check_names_what_is_altered_missing_or_left_over(copy: Path) -> None:
    package = copy / "protos/dradriver_protos"
    (package / "dra_v1_pb2.py").write_text("altered\n")
    (package / "health_v1_pb2.pyi").unlink()
    (package / "gone_pb2.py").write_text("")
    result = generate(copy, "--check")
    assert result.returncode == 1
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == [
        "protos/dradriver_protos/dra_v1_pb2.py",
        "protos/dradriver_protos/gone_pb2.py",
        "protos/dradriver_protos/health_v1_pb2.pyi",
    ]
    assert (package / "dra_v1_pb2.py").read_text() == "altered\n"

    assert generate(copy).returncode == 0
    assert generate(copy, "--check").returncode == 0
    assert (package / "dra_v1_pb2.py").read_bytes() == (
        ROOT / "protos/dradriver_protos/dra_v1_pb2.py"
    ).read_bytes()


def test_check_sees_a_changed_field_number(copy: Path) -> None:
    source = copy / "protos/dradriver_protos/dra_v1.proto"
    source.write_text(source.read_text().replace("string uid = 2;", "string uid = 4;"))
    result = generate(copy, "--check")
    assert result.returncode == 1
    assert "protos/dradriver_protos/dra_v1_pb2.py:" in result.stdout


def test_another_grpcio_tools_than_the_pinned_one_is_refused(copy: Path) -> None:
    project = copy / "pyproject.toml"
    lines = [
        '    "grpcio-tools==1.0.0",' if "grpcio-tools==" in line else line
        for line in project.read_text().splitlines()
    ]
    project.write_text("\n".join(lines))
    result = generate(copy)
    assert result.returncode == 1
    assert "grpcio-tools 1.0.0 is needed" in result.stderr
