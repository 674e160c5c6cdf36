"""NRI's messages, byte for byte: a wrong number or type of a field shows here. And what of them counts."""

import pytest
from google.protobuf.message import Message

from dradriver.backend import ContainerAdjustment, DeviceNode
from dradriver.nri import Container, Pod, Update
from dradriver.nri.messages import adjustment_message, container_of, pod_of, with_updates
from dradriver.nri.service import EVENTS
from dradriver_protos import nri_pb2


def nested(number: int, value: bytes) -> bytes:
    """Return a field that holds a message, a string or bytes, of fewer than 128 bytes."""
    key = number << 3 | 2
    return (bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])) + bytes([len(value)]) + value


def number(number: int, value: int) -> bytes:
    """Return a field that holds a number below 128."""
    return bytes([number << 3, value])


POD = (
    nested(1, b"sandbox")
    + nested(2, b"web")
    + nested(3, b"uid-1")
    + nested(4, b"default")
    + nested(5, nested(1, b"app") + nested(2, b"web"))
    + nested(
        8,
        nested(3, b"/kubepods")
        + nested(5, nested(1, b"ipc"))
        + nested(5, nested(1, b"network") + nested(2, b"/ns")),
    )
)
RESOURCES = (
    nested(2, nested(6, b"0-3") + nested(7, b"0"))
    + nested(3, nested(1, b"2MB") + number(2, 64))
    + nested(6, nested(1, b"memory.high") + nested(2, b"max"))
)
CONTAINER = (
    nested(1, b"c1")
    + nested(2, b"sandbox")
    + nested(3, b"main")
    + number(4, 3)
    + nested(7, b"sh")
    + nested(8, b"A=b")
    + nested(11, nested(3, RESOURCES))
    + nested(20, nested(1, b"gpu.example/claim=u-0"))
)


def test_a_pod() -> None:
    message = nri_pb2.PodEvent.FromString(nested(1, POD))
    assert pod_of(message.pod) == Pod("sandbox", "uid-1", "default", "web", "/ns")


def test_a_pod_in_the_host_s_network() -> None:
    namespaces = nested(5, nested(1, b"ipc") + nested(2, b"/ipc"))
    assert pod_of(nri_pb2.PodSandbox.FromString(nested(1, b"s") + nested(8, namespaces))) == Pod("s")


def test_a_container() -> None:
    message = nri_pb2.CreateContainerRequest.FromString(nested(1, POD) + nested(2, CONTAINER))
    assert container_of(message.container) == Container(
        "c1",
        pod="sandbox",
        name="main",
        env=("A=b",),
        cdi_devices=("gpu.example/claim=u-0",),
        cpus="0-3",
        mems="0",
        hugepage_limits={"2MB": 64},
    )


@pytest.mark.parametrize(
    ("state", "running"), [(0, True), (1, True), (2, True), (3, True), (4, False), (9, True)]
)
def test_only_a_stopped_container_does_not_run(state: int, running: bool) -> None:
    assert container_of(nri_pb2.Container.FromString(nested(1, b"c") + number(4, state))).running is running


def test_of_two_limits_for_a_page_size_the_last_counts() -> None:
    limits = nested(3, nested(1, b"2MB")) + nested(3, nested(1, b"2MB") + number(2, 4))
    message = nri_pb2.Container.FromString(nested(11, nested(3, limits)))
    assert container_of(message).hugepage_limits == {"2MB": 4}


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (nri_pb2.RegisterPluginRequest(plugin_name="d", plugin_idx="50"), nested(1, b"d") + nested(2, b"50")),
        (nri_pb2.ConfigureResponse(events=5), number(2, 5)),
        (
            nri_pb2.ConfigureRequest(
                config="c",
                runtime_name="r",
                runtime_version="v",
                registration_timeout=1,
                request_timeout=2,
                NRI_version="n",
            ),
            nested(1, b"c")
            + nested(2, b"r")
            + nested(3, b"v")
            + number(4, 1)
            + number(5, 2)
            + nested(6, b"n"),
        ),
        (
            nri_pb2.SynchronizeRequest(
                pods=[nri_pb2.PodSandbox(id="p")], containers=[nri_pb2.Container(id="c")], more=True
            ),
            nested(1, nested(1, b"p")) + nested(2, nested(1, b"c")) + number(3, 1),
        ),
        (
            nri_pb2.SynchronizeResponse(update=[nri_pb2.ContainerUpdate(container_id="c")], more=True),
            nested(1, nested(1, b"c")) + number(2, 1),
        ),
        (
            nri_pb2.CreateContainerResponse(
                adjust=nri_pb2.ContainerAdjustment(env=[nri_pb2.KeyValue(key="k", value="v")]),
                update=[nri_pb2.ContainerUpdate(container_id="c")],
            ),
            nested(1, nested(4, nested(1, b"k") + nested(2, b"v"))) + nested(2, nested(1, b"c")),
        ),
        (
            nri_pb2.UpdateContainerRequest(
                pod=nri_pb2.PodSandbox(id="p"),
                container=nri_pb2.Container(id="c"),
                linux_resources=nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(cpus="1")),
            ),
            nested(1, nested(1, b"p")) + nested(2, nested(1, b"c")) + nested(3, nested(2, nested(6, b"1"))),
        ),
        (
            nri_pb2.UpdateContainerResponse(update=[nri_pb2.ContainerUpdate(container_id="c")]),
            nested(1, nested(1, b"c")),
        ),
        (
            nri_pb2.StopContainerResponse(update=[nri_pb2.ContainerUpdate(container_id="c")]),
            nested(1, nested(1, b"c")),
        ),
        (
            nri_pb2.StateChangeEvent(
                event=nri_pb2.Event.REMOVE_POD_SANDBOX,
                pod=nri_pb2.PodSandbox(id="p"),
                container=nri_pb2.Container(id="c"),
            ),
            number(1, 3) + nested(2, nested(1, b"p")) + nested(3, nested(1, b"c")),
        ),
    ],
)
def test_messages(message: Message, wire: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message


def test_an_adjustment() -> None:
    made = adjustment_message(
        ContainerAdjustment(
            cpus="0-3",
            mems="0",
            hugepage_limits={"2MB": 64},
            unified={"memory.high": "max"},
            env={"A": "b"},
            devices=(DeviceNode("/dev/x", type="c", major=10, minor=3, file_mode=0o60, uid=1, gid=2),),
            rlimits={"RLIMIT_MEMLOCK": 9},
        )
    )
    assert made is not None
    device = (
        nested(1, b"/dev/x")
        + nested(2, b"c")
        + number(3, 10)
        + number(4, 3)
        + nested(5, number(1, 0o60))
        + nested(6, number(1, 1))
        + nested(7, number(1, 2))
    )
    assert made.SerializeToString(deterministic=True) == (
        nested(4, nested(1, b"A") + nested(2, b"b"))
        + nested(6, nested(1, device) + nested(2, RESOURCES))
        + nested(7, nested(1, b"RLIMIT_MEMLOCK") + number(2, 9) + number(3, 9))
    )


def test_an_adjustment_that_changes_nothing_is_none() -> None:
    assert adjustment_message(ContainerAdjustment()) is None


def test_a_device_node_is_told_in_full_or_not_at_all() -> None:
    with pytest.raises(ValueError, match="/dev/x: type, major and minor are needed"):
        adjustment_message(ContainerAdjustment(devices=(DeviceNode("/dev/x"),)))


def test_updates() -> None:
    answer = with_updates(
        nri_pb2.StopContainerResponse(),
        [
            Update(
                "c1",
                ContainerAdjustment(
                    cpus="0-3", mems="0", hugepage_limits={"2MB": 64}, unified={"memory.high": "max"}
                ),
                required=True,
            ),
            Update("c2", ContainerAdjustment(env={"A": "only for new ones"})),
            Update("c3", ContainerAdjustment(cpus="4")),
        ],
    )
    required, other = answer.update
    assert required.SerializeToString() == nested(1, b"c1") + nested(2, nested(1, RESOURCES))
    cpus = nested(2, nested(1, nested(2, nested(6, b"4"))))
    assert other.SerializeToString() == nested(1, b"c3") + cpus + number(3, 1)


def test_the_events_are_those_that_every_version_knows() -> None:
    pods, containers = (1, 2, 3), (4, 5, 8, 10, 11)
    assert sum(1 << (event - 1) for event in (*pods, *containers)) == EVENTS
