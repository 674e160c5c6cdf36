"""The lowest cdiVersion that a content needs, so that old runtimes take what they can."""

from dataclasses import replace

import pytest

from dradriver_cdi import (
    KNOWN_VERSIONS,
    CDIError,
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    minimum_version,
)

PLAIN = ContainerEdits(
    env=("A=1",),
    device_nodes=(
        DeviceNode("/dev/a", type="c", major=1, minor=3, file_mode=0, permissions="r", uid=1, gid=1),
    ),
    mounts=(Mount("/a", "/a", ("ro",)),),
    hooks=(Hook("createRuntime", "/a", ("a",), ("A=1",), 1),),
)

EDITS = [
    ("0.3.0", PLAIN),
    ("0.4.0", ContainerEdits(mounts=(Mount("/a", "/a", type="none"),))),
    ("0.5.0", ContainerEdits(device_nodes=(DeviceNode("/dev/a", host_path="/dev/a"),))),
    ("0.7.0", ContainerEdits(intel_rdt=IntelRdt())),
    ("0.7.0", ContainerEdits(intel_rdt=IntelRdt("class", "L3:0=f", "MB:0=50"))),
    ("0.7.0", ContainerEdits(additional_gids=(1,))),
    ("1.1.0", ContainerEdits(net_devices=(NetDevice("a", "b"),))),
    ("1.1.0", ContainerEdits(intel_rdt=IntelRdt(schemata=("L3:0=f",)))),
    ("1.1.0", ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=True))),
    ("1.1.0", ContainerEdits(intel_rdt=IntelRdt("/"))),
]


@pytest.mark.parametrize(("version", "edits"), EDITS)
def test_edits_ask_for_their_version_in_a_device_and_in_the_spec(version: str, edits: ContainerEdits) -> None:
    in_device = Spec("example.com/claim", (Device("a", PLAIN), Device("b", edits)))
    in_spec = Spec("example.com/claim", (Device("a", PLAIN),), edits=edits)

    assert minimum_version(in_device) == version
    assert minimum_version(in_spec) == version


@pytest.mark.parametrize(
    ("version", "spec"),
    [
        ("0.3.0", Spec("example.com/claim", (Device("a0", PLAIN),))),
        ("0.5.0", Spec("example.com/claim", (Device("a0", PLAIN), Device("0a", PLAIN)))),
        ("0.6.0", Spec("example.com/claim.x", (Device("a", PLAIN),))),
        ("0.6.0", Spec("example.com/claim", (Device("a", PLAIN),), annotations={"a": ""})),
        ("0.6.0", Spec("example.com/claim", (Device("a", PLAIN, {"a": ""}),))),
    ],
)
def test_names_and_annotations_ask_for_their_version(version: str, spec: Spec) -> None:
    assert minimum_version(spec) == version
    assert spec.to_dict()["cdiVersion"] == version


def test_the_highest_need_wins() -> None:
    edits = sum((edits for _, edits in EDITS), start=ContainerEdits())
    assert minimum_version(Spec("example.com/claim.x", (Device("0", edits, {"a": ""}),))) == "1.1.0"


def test_reading_takes_any_known_version_that_is_high_enough() -> None:
    spec = Spec("example.com/claim", (Device("0", PLAIN),))
    for version in KNOWN_VERSIONS:
        stored = spec.to_dict() | {"cdiVersion": version}
        if version in {"0.3.0", "0.4.0"}:
            with pytest.raises(CDIError, match=r"cdiVersion.*0\.5\.0"):
                Spec.from_dict(stored)
        else:
            assert Spec.from_dict(stored) == spec
    assert minimum_version(replace(spec, devices=(Device("a", PLAIN),))) == KNOWN_VERSIONS[0]
