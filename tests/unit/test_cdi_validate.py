"""The rules of CDI: for each an accepted value and a refused one, and the field that the error names."""

from dataclasses import replace

import pytest

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
    qualified,
    validate,
)

EDITS = ContainerEdits(env=("A=1",))
SPEC = Spec("vendor.com/class", (Device("name", EDITS),))


def kind(value: str) -> Spec:
    return replace(SPEC, kind=value)


def named(*names: str) -> Spec:
    return replace(SPEC, devices=tuple(Device(name, EDITS) for name in names))


def annotated(**annotations: str) -> Spec:
    return replace(SPEC, annotations=annotations)


def env(*variables: str) -> Spec:
    return edited(ContainerEdits(env=variables))


def node(node: DeviceNode) -> Spec:
    return edited(ContainerEdits(device_nodes=(node,)))


def net(*devices: NetDevice) -> Spec:
    return edited(ContainerEdits(net_devices=devices))


def mount(mount: Mount) -> Spec:
    return edited(ContainerEdits(mounts=(mount,)))


def hook(hook: Hook) -> Spec:
    return edited(ContainerEdits(hooks=(hook,)))


def rdt(rdt: IntelRdt) -> Spec:
    return edited(ContainerEdits(intel_rdt=rdt))


def gids(*gids: int) -> Spec:
    return edited(ContainerEdits(additional_gids=gids))


def edited(edits: ContainerEdits) -> Spec:
    return replace(SPEC, devices=(Device("name", edits),))


LARGEST_ANNOTATION = "x" * (256 * 1024 - 1)
LONE_SURROGATE = "\udc80"

RULES = [
    # accepted, refused, field (below the device's edits where it starts with a dot)
    ("kind has a class", kind("vendor/class"), kind("vendor"), "kind"),
    ("kind has a vendor", kind("vendor/class"), kind("/class"), "kind"),
    ("kind has one slash", kind("vendor.com/class"), kind("vendor.com/class/more"), "kind"),
    ("kind is not empty", kind("a1/b2"), kind(""), "kind"),
    ("vendor starts with a letter", kind("v9/class"), kind("9v/class"), "kind"),
    ("vendor ends with a letter or digit", kind("a_.-9/class"), kind("vendor-/class"), "kind"),
    ("vendor of plain characters", kind("A.b-c_d/class"), kind("vend or/class"), "kind"),
    ("vendor has two characters", kind("ve/class"), kind("v/class"), "kind"),
    ("vendor is ASCII", kind("vendor/class"), kind("vendör/class"), "kind"),
    ("vendor of at most 253", kind("v" * 253 + "/class"), kind("v" * 254 + "/class"), "kind"),
    ("class starts with a letter", kind("vendor/c9"), kind("vendor/9c"), "kind"),
    ("class ends with a letter or digit", kind("vendor/c_.-9"), kind("vendor/class."), "kind"),
    ("class of plain characters", kind("vendor/a.b-c_d"), kind("vendor/a:b"), "kind"),
    ("class has two characters", kind("vendor/cl"), kind("vendor/c"), "kind"),
    ("class of at most 63", kind("vendor/" + "c" * 63), kind("vendor/" + "c" * 64), "kind"),
    ("kind ends there", kind("vendor/class"), kind("vendor/class\n"), "kind"),
    ("a device at least", named("a"), named(), "devices"),
    ("device names differ", named("a", "A"), named("a", "b", "a"), "devices[2].name"),
    ("device name is not empty", named("0"), named(""), "devices[0].name"),
    ("device name of plain characters", named("a:b.c-d_e"), named("a/b"), "devices[0].name"),
    ("device name starts with letter or digit", named("0:a"), named("-a"), "devices[0].name"),
    ("device name ends with letter or digit", named("a-0"), named("a:"), "devices[0].name"),
    ("device name ends there", named("a"), named("a\n"), "devices[0].name"),
    ("a device has edits", edited(EDITS), edited(ContainerEdits()), "devices[0].containerEdits"),
    ("annotation key is a name", annotated(A_b="1"), annotated(_a="1"), "annotations"),
    ("annotation key is not empty", annotated(a="1"), annotated(**{"": "1"}), "annotations"),
    ("annotation key of at most 63", annotated(**{"k" * 63: ""}), annotated(**{"k" * 64: ""}), "annotations"),
    ("annotation prefix is a domain", annotated(**{"A.b/c": ""}), annotated(**{"a_b/c": ""}), "annotations"),
    (
        "annotation prefix is ASCII",
        annotated(**{"k.b/c": ""}),
        annotated(**{"\u212a.b/c": ""}),
        "annotations",
    ),
    ("annotation prefix is not empty", annotated(**{"b/c": ""}), annotated(**{"/c": ""}), "annotations"),
    ("annotation key has one prefix", annotated(**{"b/c": ""}), annotated(**{"a/b/c": ""}), "annotations"),
    (
        "annotation prefix of at most 253",
        annotated(**{"d" * 253 + "/c": ""}),
        annotated(**{"d" * 254 + "/c": ""}),
        "annotations",
    ),
    (
        "annotations of at most 256 KiB",
        annotated(a=LARGEST_ANNOTATION),
        annotated(a=LARGEST_ANNOTATION, b=""),
        "annotations",
    ),
    (
        "annotations are counted in bytes",
        annotated(a="é" * 100_000),
        annotated(a="é" * 140_000),
        "annotations",
    ),
    ("annotation without NUL", annotated(a="b\n"), annotated(a="b\0"), "annotations.a"),
    (
        "annotations of devices",
        replace(SPEC, devices=(Device("a", EDITS, {"a": "1"}),)),
        replace(SPEC, devices=(Device("a", EDITS, {"a b": "1"}),)),
        "devices[0].annotations",
    ),
    (
        "edits of the whole spec",
        replace(SPEC, edits=ContainerEdits(env=("A=1",))),
        replace(SPEC, edits=ContainerEdits(env=("A",))),
        "containerEdits.env[0]",
    ),
    ("env has a value", env("A="), env("A=1", "A"), ".env[1]"),
    ("env has a name", env("a b=c"), env("=c"), ".env[0]"),
    ("env without NUL", env("A=1\n2"), env("A=1\0B=2"), ".env[0]"),
    ("env is Unicode", env("A=é😀"), env(f"A={LONE_SURROGATE}"), ".env[0]"),
    ("node has a path", node(DeviceNode("/dev/a")), node(DeviceNode("")), ".deviceNodes[0].path"),
    (
        "node path without NUL",
        node(DeviceNode("/dev/a")),
        node(DeviceNode("/dev/a\0")),
        ".deviceNodes[0].path",
    ),
    (
        "host path without NUL",
        node(DeviceNode("/dev/a", host_path="/dev/b")),
        node(DeviceNode("/dev/a", host_path="\0")),
        ".deviceNodes[0].hostPath",
    ),
    (
        "node type b",
        node(DeviceNode("/d", type="b")),
        node(DeviceNode("/d", type="d")),
        ".deviceNodes[0].type",
    ),
    (
        "node type c",
        node(DeviceNode("/d", type="c")),
        node(DeviceNode("/d", type="C")),
        ".deviceNodes[0].type",
    ),
    (
        "node type u",
        node(DeviceNode("/d", type="u")),
        node(DeviceNode("/d", type="bc")),
        ".deviceNodes[0].type",
    ),
    (
        "node type p",
        node(DeviceNode("/d", type="p")),
        node(DeviceNode("/d", type="s")),
        ".deviceNodes[0].type",
    ),
    (
        "numbers come with a type",
        node(DeviceNode("/d", type="b", major=8)),
        node(DeviceNode("/d", major=8)),
        ".deviceNodes[0].type",
    ),
    (
        "a pipe has no numbers",
        node(DeviceNode("/d", type="u", major=1, minor=3)),
        node(DeviceNode("/d", type="p", major=1, minor=3)),
        ".deviceNodes[0].type",
    ),
    (
        "a minor needs a major",
        node(DeviceNode("/d", type="c", major=1, minor=0)),
        node(DeviceNode("/d", type="c", minor=3)),
        ".deviceNodes[0].major",
    ),
    (
        "major is not 0",
        node(DeviceNode("/d", type="c", major=1)),
        node(DeviceNode("/d", type="c", major=0, minor=0)),
        ".deviceNodes[0].major",
    ),
    (
        "major of 12 bits",
        node(DeviceNode("/d", type="c", major=4095)),
        node(DeviceNode("/d", type="c", major=4096)),
        ".deviceNodes[0].major",
    ),
    (
        "minor of 20 bits",
        node(DeviceNode("/d", type="c", major=1, minor=0xFFFFF)),
        node(DeviceNode("/d", type="c", major=1, minor=0x100000)),
        ".deviceNodes[0].minor",
    ),
    (
        "minor is not negative",
        node(DeviceNode("/d", type="c", major=1, minor=0)),
        node(DeviceNode("/d", type="c", major=1, minor=-1)),
        ".deviceNodes[0].minor",
    ),
    (
        "permissions from r, w, m",
        node(DeviceNode("/d", permissions="mrw")),
        node(DeviceNode("/d", permissions="rx")),
        ".deviceNodes[0].permissions",
    ),
    (
        "permissions that only later readers know",
        node(DeviceNode("/d")),
        node(DeviceNode("/d", permissions="none")),
        ".deviceNodes[0].permissions",
    ),
    (
        "file mode as in chmod",
        node(DeviceNode("/d", file_mode=0o1660)),
        node(DeviceNode("/d", file_mode=0o20660)),
        ".deviceNodes[0].fileMode",
    ),
    (
        "uid of 32 bits",
        node(DeviceNode("/d", uid=2**32 - 1)),
        node(DeviceNode("/d", uid=2**32)),
        ".deviceNodes[0].uid",
    ),
    (
        "uid is not negative",
        node(DeviceNode("/d", uid=0)),
        node(DeviceNode("/d", uid=-1)),
        ".deviceNodes[0].uid",
    ),
    (
        "gid of 32 bits",
        node(DeviceNode("/d", gid=2**32 - 1)),
        node(DeviceNode("/d", gid=2**32)),
        ".deviceNodes[0].gid",
    ),
    (
        "interface on the host has a name",
        net(NetDevice("eth0", "net1")),
        net(NetDevice("", "net1")),
        ".netDevices[0].hostInterfaceName",
    ),
    (
        "interface in the container has a name",
        net(NetDevice("eth0", "eth0")),
        net(NetDevice("eth0", "")),
        ".netDevices[0].name",
    ),
    (
        "interface name of at most 15 bytes",
        net(NetDevice("a" * 15, "b")),
        net(NetDevice("a" * 16, "b")),
        ".netDevices[0].hostInterfaceName",
    ),
    (
        "interface name is one component",
        net(NetDevice("a.b", "b")),
        net(NetDevice("a", "../b")),
        ".netDevices[0].name",
    ),
    (
        "interface name without colon",
        net(NetDevice("a", "b-1")),
        net(NetDevice("a", "b:1")),
        ".netDevices[0].name",
    ),
    (
        "interface name without space",
        net(NetDevice("a", "b_1")),
        net(NetDevice("a", "b\n")),
        ".netDevices[0].name",
    ),
    (
        "interface name is no dots",
        net(NetDevice("a", "...")),
        net(NetDevice("a", "..")),
        ".netDevices[0].name",
    ),
    (
        "interfaces on the host differ",
        net(NetDevice("a", "b"), NetDevice("b", "a")),
        net(NetDevice("a", "b"), NetDevice("a", "c")),
        ".netDevices[1].hostInterfaceName",
    ),
    (
        "interfaces in the container differ",
        net(NetDevice("a", "b"), NetDevice("c", "d")),
        net(NetDevice("a", "b"), NetDevice("c", "b")),
        ".netDevices[1].name",
    ),
    ("mount has a host path", mount(Mount("tmpfs", "/a")), mount(Mount("", "/a")), ".mounts[0].hostPath"),
    (
        "mount has a container path",
        mount(Mount("/a", "/a")),
        mount(Mount("/a", "")),
        ".mounts[0].containerPath",
    ),
    ("mount path without NUL", mount(Mount("/a", "/a")), mount(Mount("/a\0", "/a")), ".mounts[0].hostPath"),
    (
        "mount option without NUL",
        mount(Mount("/a", "/a", ("ro", "bind"))),
        mount(Mount("/a", "/a", ("ro", "\0"))),
        ".mounts[0].options[1]",
    ),
    (
        "mount type without NUL",
        mount(Mount("/a", "/a", (), "none")),
        mount(Mount("/a", "/a", (), "\0")),
        ".mounts[0].type",
    ),
    ("hook name prestart", hook(Hook("prestart", "/a")), hook(Hook("", "/a")), ".hooks[0].hookName"),
    (
        "hook name createRuntime",
        hook(Hook("createRuntime", "/a")),
        hook(Hook("create", "/a")),
        ".hooks[0].hookName",
    ),
    (
        "hook name createContainer",
        hook(Hook("createContainer", "/a")),
        hook(Hook("createcontainer", "/a")),
        ".hooks[0].hookName",
    ),
    (
        "hook name startContainer",
        hook(Hook("startContainer", "/a")),
        hook(Hook("start", "/a")),
        ".hooks[0].hookName",
    ),
    (
        "hook name poststart",
        hook(Hook("poststart", "/a")),
        hook(Hook("postStart", "/a")),
        ".hooks[0].hookName",
    ),
    ("hook name poststop", hook(Hook("poststop", "/a")), hook(Hook("stop", "/a")), ".hooks[0].hookName"),
    ("hook has a path", hook(Hook("poststop", "/a")), hook(Hook("poststop", "")), ".hooks[0].path"),
    ("hook path is absolute", hook(Hook("poststop", "/a")), hook(Hook("poststop", "a")), ".hooks[0].path"),
    (
        "hook argument without NUL",
        hook(Hook("poststop", "/a", ("a", ""))),
        hook(Hook("poststop", "/a", ("a", "\0"))),
        ".hooks[0].args[1]",
    ),
    (
        "hook env has a name",
        hook(Hook("poststop", "/a", (), ("A=",))),
        hook(Hook("poststop", "/a", (), ("=1",))),
        ".hooks[0].env[0]",
    ),
    (
        "hook timeout is above 0",
        hook(Hook("poststop", "/a", timeout=1)),
        hook(Hook("poststop", "/a", timeout=0)),
        ".hooks[0].timeout",
    ),
    (
        "hook timeout of 32 bits",
        hook(Hook("poststop", "/a", timeout=2**32 - 1)),
        hook(Hook("poststop", "/a", timeout=2**32)),
        ".hooks[0].timeout",
    ),
    ("RDT class without slash", rdt(IntelRdt("a-b")), rdt(IntelRdt("a/b")), ".intelRdt.closID"),
    ("RDT root class", rdt(IntelRdt("/")), rdt(IntelRdt("//")), ".intelRdt.closID"),
    ("RDT class without newline", rdt(IntelRdt("a b")), rdt(IntelRdt("a\nb")), ".intelRdt.closID"),
    ("RDT class is not .", rdt(IntelRdt(".a")), rdt(IntelRdt(".")), ".intelRdt.closID"),
    ("RDT class is not ..", rdt(IntelRdt("...")), rdt(IntelRdt("..")), ".intelRdt.closID"),
    ("RDT class below 4096 bytes", rdt(IntelRdt("a" * 4095)), rdt(IntelRdt("é" * 2048)), ".intelRdt.closID"),
    ("RDT class without NUL", rdt(IntelRdt("")), rdt(IntelRdt("\0")), ".intelRdt.closID"),
    (
        "RDT cache schema without NUL",
        rdt(IntelRdt(l3_cache_schema="L3:0=f")),
        rdt(IntelRdt(l3_cache_schema="\0")),
        ".intelRdt.l3CacheSchema",
    ),
    (
        "RDT bandwidth schema without NUL",
        rdt(IntelRdt(mem_bw_schema="MB:0=50")),
        rdt(IntelRdt(mem_bw_schema="\0")),
        ".intelRdt.memBwSchema",
    ),
    (
        "RDT schemata without NUL",
        rdt(IntelRdt(schemata=("L3:0=f",))),
        rdt(IntelRdt(schemata=("L3:0=f", "\0"))),
        ".intelRdt.schemata[1]",
    ),
    ("gid is not 0, which runtimes skip", gids(1), gids(1, 0), ".additionalGids[1]"),
    ("gid of the list has 32 bits", gids(2**32 - 1), gids(2**32), ".additionalGids[0]"),
]


@pytest.mark.parametrize(
    ("accepted", "refused", "field"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES]
)
def test_each_rule_accepts_and_refuses(accepted: Spec, refused: Spec, field: str) -> None:
    validate(accepted)
    with pytest.raises(CDIError) as error:
        validate(refused)

    assert error.value.field == (f"devices[0].containerEdits{field}" if field.startswith(".") else field)
    assert str(error.value).isprintable()


def test_a_qualified_name_is_made_of_valid_parts_only() -> None:
    assert qualified("gpu.example.com/claim", "0a1b-0") == "gpu.example.com/claim=0a1b-0"
    for kind_, device in (("gpu.example.com", "a"), ("gpu.example.com/claim", "a=b"), ("a=b/claim", "a")):
        with pytest.raises(CDIError):
            qualified(kind_, device)
