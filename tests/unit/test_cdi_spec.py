"""CDI specs as data: what their JSON looks like, that it reads back the same, and what is refused."""

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver_cdi import (
    CDIError,
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    encode,
    validate,
)

EVERYTHING = Spec(
    kind="gpu.example.com/claim",
    annotations={"b": "2", "example.com/a": "1"},
    edits=ContainerEdits(env=("SHARED=1",)),
    devices=(
        Device(
            name="0a1b-0",
            annotations={"for": "me"},
            edits=ContainerEdits(
                env=("A=", "B=x=y"),
                device_nodes=(
                    DeviceNode(
                        path="/dev/gpu0",
                        host_path="/dev/gpu7",
                        type="c",
                        major=195,
                        minor=0,
                        file_mode=0o660,
                        permissions="rw",
                        uid=0,
                        gid=44,
                    ),
                ),
                net_devices=(NetDevice("ens1f0v2", "net1"),),
                mounts=(Mount("/usr/lib/a.so", "/usr/lib/a.so", ("ro", "bind"), "none"),),
                hooks=(Hook("createContainer", "/bin/hook", ("hook", "go"), ("PATH=/bin",), 5),),
                intel_rdt=IntelRdt("fast", "L3:0=f", "MB:0=50", ("L2:0=1",), True),
                additional_gids=(44, 109),
            ),
        ),
    ),
)

EVERYTHING_JSON: dict[str, object] = {
    "cdiVersion": "1.1.0",
    "kind": "gpu.example.com/claim",
    "annotations": {"b": "2", "example.com/a": "1"},
    "devices": [
        {
            "name": "0a1b-0",
            "annotations": {"for": "me"},
            "containerEdits": {
                "env": ["A=", "B=x=y"],
                "deviceNodes": [
                    {
                        "path": "/dev/gpu0",
                        "hostPath": "/dev/gpu7",
                        "type": "c",
                        "major": 195,
                        "minor": 0,
                        "fileMode": 432,
                        "permissions": "rw",
                        "uid": 0,
                        "gid": 44,
                    }
                ],
                "netDevices": [{"hostInterfaceName": "ens1f0v2", "name": "net1"}],
                "mounts": [
                    {
                        "hostPath": "/usr/lib/a.so",
                        "containerPath": "/usr/lib/a.so",
                        "options": ["ro", "bind"],
                        "type": "none",
                    }
                ],
                "hooks": [
                    {
                        "hookName": "createContainer",
                        "path": "/bin/hook",
                        "args": ["hook", "go"],
                        "env": ["PATH=/bin"],
                        "timeout": 5,
                    }
                ],
                "intelRdt": {
                    "closID": "fast",
                    "l3CacheSchema": "L3:0=f",
                    "memBwSchema": "MB:0=50",
                    "schemata": ["L2:0=1"],
                    "enableMonitoring": True,
                },
                "additionalGids": [44, 109],
            },
        }
    ],
    "containerEdits": {"env": ["SHARED=1"]},
}


def test_every_field_has_its_place_in_the_json_form() -> None:
    validate(EVERYTHING)
    assert EVERYTHING.to_dict() == EVERYTHING_JSON
    assert Spec.from_dict(EVERYTHING_JSON) == EVERYTHING


def test_what_is_empty_is_absent() -> None:
    spec = Spec("example.com/claim", (Device("a", ContainerEdits(device_nodes=(DeviceNode("/dev/a"),))),))

    assert spec.to_dict() == {
        "cdiVersion": "0.3.0",
        "kind": "example.com/claim",
        "devices": [{"name": "a", "containerEdits": {"deviceNodes": [{"path": "/dev/a"}]}}],
    }


def test_edits_without_content_are_falsy() -> None:
    assert not ContainerEdits()
    assert ContainerEdits(env=("A=1",))
    assert ContainerEdits(additional_gids=(5,))
    assert ContainerEdits(intel_rdt=IntelRdt())


def test_edits_add_up_in_order_and_the_later_rdt_class_wins() -> None:
    first = ContainerEdits(env=("A=1",), mounts=(Mount("/a", "/a"),), intel_rdt=IntelRdt("one"))
    second = ContainerEdits(
        env=("A=2",),
        device_nodes=(DeviceNode("/dev/a"),),
        net_devices=(NetDevice("eth1", "net1"),),
        mounts=(Mount("/b", "/b"),),
        hooks=(Hook("poststop", "/bin/true"),),
        intel_rdt=IntelRdt("two"),
        additional_gids=(7,),
    )

    assert first + second == ContainerEdits(
        env=("A=1", "A=2"),
        device_nodes=second.device_nodes,
        net_devices=second.net_devices,
        mounts=(Mount("/a", "/a"), Mount("/b", "/b")),
        hooks=second.hooks,
        intel_rdt=IntelRdt("two"),
        additional_gids=(7,),
    )
    assert (first + ContainerEdits(env=("C=1",))).intel_rdt == IntelRdt("one")
    assert sum([first, second], start=ContainerEdits()) == first + second


def changed(path: str, value: object) -> dict[str, Any]:
    """Return EVERYTHING_JSON with the value at the dotted `path` set, or removed where it is `...`."""
    root: dict[str, Any] = EVERYTHING.to_dict()
    place: Any = root
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in steps:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return root


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("cdiVersion", ..., "cdiVersion"),
        ("cdiVersion", "9.9.9", "cdiVersion"),
        ("cdiVersion", "0.2.0", "cdiVersion"),
        ("cdiVersion", "1.0.0", "cdiVersion"),
        ("kind", ..., "kind"),
        ("kind", 1, "kind"),
        ("devices", {}, "devices"),
        ("extra", 1, "(root)"),
        ("annotations", [], "annotations"),
        ("annotations.a", 1, "annotations['a']"),
        ("devices.0", "a", "devices[0]"),
        ("devices.0.name", ..., "devices[0].name"),
        ("devices.0.name", None, "devices[0].name"),
        ("devices.0.containerEdits", [], "devices[0].containerEdits"),
        ("devices.0.containerEdits.env", "A=1", "devices[0].containerEdits.env"),
        ("devices.0.containerEdits.env", None, "devices[0].containerEdits.env"),
        ("devices.0.containerEdits.env.1", 5, "devices[0].containerEdits.env[1]"),
        ("devices.0.containerEdits.Env", [], "devices[0].containerEdits"),
        ("devices.0.containerEdits.deviceNodes.0.path", ..., "devices[0].containerEdits.deviceNodes[0].path"),
        ("devices.0.containerEdits.deviceNodes.0.uid", "0", "devices[0].containerEdits.deviceNodes[0].uid"),
        (
            "devices.0.containerEdits.deviceNodes.0.major",
            1.5,
            "devices[0].containerEdits.deviceNodes[0].major",
        ),
        (
            "devices.0.containerEdits.deviceNodes.0.minor",
            True,
            "devices[0].containerEdits.deviceNodes[0].minor",
        ),
        ("devices.0.containerEdits.deviceNodes.0.mode", 1, "devices[0].containerEdits.deviceNodes[0]"),
        ("devices.0.containerEdits.netDevices.0.name", ..., "devices[0].containerEdits.netDevices[0].name"),
        ("devices.0.containerEdits.mounts.0.hostPath", ..., "devices[0].containerEdits.mounts[0].hostPath"),
        ("devices.0.containerEdits.mounts.0.source", "", "devices[0].containerEdits.mounts[0]"),
        ("devices.0.containerEdits.hooks.0.timeout", "5", "devices[0].containerEdits.hooks[0].timeout"),
        ("devices.0.containerEdits.hooks.0.when", "", "devices[0].containerEdits.hooks[0]"),
        (
            "devices.0.containerEdits.intelRdt.enableMonitoring",
            1,
            "devices[0].containerEdits.intelRdt.enableMonitoring",
        ),
        ("devices.0.containerEdits.intelRdt.enableCMT", True, "devices[0].containerEdits.intelRdt"),
        ("devices.0.containerEdits.additionalGids.0", True, "devices[0].containerEdits.additionalGids[0]"),
        ("containerEdits.mounts", {}, "containerEdits.mounts"),
    ],
)
def test_reading_refuses_unknown_keys_and_wrong_types_by_name(path: str, value: object, field: str) -> None:
    with pytest.raises(CDIError) as error:
        Spec.from_dict(changed(path, value))

    assert error.value.field == field


@pytest.mark.parametrize(
    "hostile",
    [
        ["x"] * 1000,
        {"x": "y" * 1000},
        pytest.param(10**9000, id="large"),
        -1.5,
        None,
        False,
        "\n\x1b[31m" * 1000,
    ],
)
def test_an_error_shows_hostile_values_on_one_short_line(hostile: object) -> None:
    with pytest.raises(CDIError) as error:
        Spec.from_dict(changed("cdiVersion", hostile))

    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300


def test_an_error_shows_a_hostile_key_on_one_short_line() -> None:
    with pytest.raises(CDIError) as error:
        Spec.from_dict(changed("\n\x1b[31m" * 1000, 1))

    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
NAMES = st.text(string.ascii_letters + string.digits, min_size=2, max_size=12)
VARIABLES = st.builds(lambda name, value: f"{name}={value}", NAMES, WORDS)


def tuples(of: st.SearchStrategy[Any], key: Any = None) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=3, unique_by=key).map(tuple)


NODES = st.builds(
    DeviceNode,
    path=WORDS,
    host_path=WORDS | st.just(""),
    type=st.sampled_from("bcu"),
    major=st.integers(1, 4095),
    minor=st.integers(0, 2**20 - 1) | st.none(),
    file_mode=st.integers(0, 0o7777) | st.none(),
    permissions=st.sampled_from(["", "r", "rw", "rwm"]),
    uid=st.integers(0, 2**32 - 1) | st.none(),
    gid=st.integers(0, 2**32 - 1) | st.none(),
)
RDT = st.builds(
    IntelRdt, st.just("") | NAMES, st.just("") | WORDS, st.just("") | WORDS, tuples(WORDS), st.booleans()
)
HOOKS = st.builds(
    Hook,
    hook_name=st.sampled_from(["prestart", "createRuntime", "poststop"]),
    path=WORDS.map("/".__add__),
    args=tuples(WORDS),
    env=tuples(VARIABLES),
    timeout=st.integers(1, 100) | st.none(),
)
EDITS = st.builds(
    ContainerEdits,
    env=tuples(VARIABLES).map(lambda env: (*env, "ALWAYS=1")),
    device_nodes=tuples(NODES),
    net_devices=tuples(NAMES.map(lambda name: NetDevice(name, name)), lambda device: device.name),
    mounts=tuples(st.builds(Mount, WORDS, WORDS, tuples(WORDS), WORDS | st.just(""))),
    hooks=tuples(HOOKS),
    intel_rdt=RDT | st.none(),
    additional_gids=tuples(st.integers(1, 2**32 - 1)),
)
ANNOTATIONS = st.dictionaries(NAMES, WORDS, max_size=3)
DEVICES = st.builds(Device, name=NAMES, edits=EDITS, annotations=ANNOTATIONS)
SPECS = st.builds(
    Spec,
    kind=st.just("example.com/claim"),
    devices=st.lists(DEVICES, min_size=1, max_size=3, unique_by=lambda device: device.name).map(tuple),
    annotations=ANNOTATIONS,
    edits=EDITS | st.just(ContainerEdits()),
)


@settings(max_examples=60, deadline=None)
@given(SPECS)
def test_a_valid_spec_reads_back_the_same(spec: Spec) -> None:
    validate(spec)
    assert Spec.from_dict(spec.to_dict()) == spec
    assert encode(Spec.from_dict(spec.to_dict())) == encode(spec)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_other_json_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    path = data.draw(
        st.sampled_from(["kind", "devices", "devices.0", "devices.0.containerEdits", "annotations", "extra"])
    )
    try:
        spec = Spec.from_dict(changed(path, data.draw(JSON_VALUES)))
        validate(spec)
    except CDIError:
        return
    assert Spec.from_dict(spec.to_dict()) == spec
