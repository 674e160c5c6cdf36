"""The configuration file: what is right, and the one line that says what is wrong."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.config import Settings, SettingsError, load, load_backends


def settings(tmp_path: Path, text: str, **environment: str) -> Settings:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return load(file, None, {"NODE_NAME": "node-a", **environment})


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_backends(settings(tmp_path, text))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{tmp_path}/config.yaml: ")
    return message.removeprefix(f"{tmp_path}/config.yaml: ")


def test_without_a_file_everything_has_its_place() -> None:
    found = load(None, None, {"NODE_NAME": "node-a", "POD_UID": "1234"})
    assert (found.node, found.instance) == ("node-a", "1234")
    assert found.state == Path("/var/lib/kubelet/plugins/dradriver.io")
    assert found.journal == found.state / "journal.db"
    assert found.claims == found.state / "claims"
    assert found.drivers == (("cpu.dradriver.io", ("cpu",)), ("memory.dradriver.io", ("memory",)))


def test_a_directory_keeps_everything_below_itself(tmp_path: Path) -> None:
    found = load(None, tmp_path, {})
    for path in (found.kubelet_root, found.state, found.cdi, found.claims, found.slices):
        assert path.is_relative_to(tmp_path)
    assert found.host_root == Path("/")


def test_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    assert settings(tmp_path, "node: node-b").node == "node-b"
    assert settings(tmp_path, "").node == "node-a"


def test_the_full_example_of_the_documentation_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    found = settings(tmp_path, example)
    assert found.node == "worker-1"
    assert [backend.kind for _, backend in load_backends(found)] == ["cpu", "memory"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodee: a", "nodee: unknown field 'nodee'; allowed are "),
        ("log: {level: loud}", "log.level: 'loud' is not one of debug, info, warning, error"),
        ("log: {levle: info}", "log.levle: unknown field 'levle'; allowed are format, level"),
        ("rescanSeconds: 0", "rescanSeconds: "),
        ("rescanSeconds: soon", "rescanSeconds: an integer is expected, found 'soon', a string"),
        ("rescanSeconds: true", "rescanSeconds: "),
        ("rescanSeconds: 1:30", "rescanSeconds: an integer is expected, found '1:30', a string"),
        ("rescanSeconds: 0x1E", "rescanSeconds: an integer is expected, found '0x1E', a string"),
        ("rescanSeconds: " + "9" * 5000, "line 1: an integer of 5000 digits: at most 1000 are read"),
        ("rescanSeconds: " + "9" * 300, "rescanSeconds: an integer from 1 to 86400 is expected, found '9999"),
        ("node: !!int abc", "line 1: tag '!!int' is not read"),
        ("node: !!float abc", "line 1: tag '!!float' is not read"),
        ("node: !!bool abc", "line 1: tag '!!bool' is not read"),
        ("node: !!timestamp abc", "line 1: tag '!!timestamp' is not read"),
        ("node: " + "[" * 3000, "line 1: "),
        ("node: " + "{" * 3000, "line 1: "),
        ('{"node": ' + "[" * 3000, "line 1: "),
        ('{"state": "/\\ud800"}', "'/\\ud800' is not Unicode text"),
        ("".join(f"k{n}: 1\n" for n in range(20_000)), "k0: unknown field 'k0'; allowed are "),
        ("node: Node_A", "node: node name 'Node_A' is not a DNS subdomain"),
        ("node: " + "a" * 300, "node: node name 'aaaa"),
        ("kubeletRoot: relative", "kubeletRoot: an absolute path without '..' is expected, found 'relative'"),
        ("cdi: /a/../b", "cdi: an absolute path without '..' is expected"),
        ('state: "/a\\0b"', "state: an absolute path"),
        ("kubernetes: {}\nstandalone: {}", "standalone: there is an API server"),
        ("kubernetes: {kubeconfig: x}", "kubernetes.kubeconfig: an absolute path"),
        ("kubernetes: {context: x}", "kubernetes.context: a context is one of a kubeconfig"),
        ("kubernetes: {qps: 0}", "kubernetes.qps: "),
        ("metrics: {address: localhost}", "metrics.address: host:port is expected"),
        ("metrics: {address: ':99999'}", "metrics.address: host:port is expected"),
        ("metrics: {address: '::1:80'}", "metrics.address: host:port is expected"),
        ("standalone: {claims: x}", "standalone.claims: an absolute path"),
        ("nri: {enabled: maybe}", "nri.enabled: "),
        ("nri: {socket: nri.sock}", "nri.socket: an absolute path"),
        ('nri: {index: "5"}', "nri.index: two digits are expected, as 50, found '5'"),
        ('nri: {index: "50\\n"}', "nri.index: two digits"),
        ("drivers: []", "drivers: "),
        ("drivers: [{name: cpu.dradriver.io}]", "drivers[0]: Object missing required field `backends`"),
        ("drivers: [{name: CPU, backends: [cpu]}]", "drivers[0].name: driver name 'CPU'"),
        ("drivers: [{name: a-claim-b.io, backends: [cpu]}]", "drivers[0].name: "),
        ("drivers: [{name: a.io, backends: []}]", "drivers[0].backends: "),
        (
            "drivers: [{name: a.io, backends: [cpu]}, {name: b.io, backends: [cpu]}]",
            "drivers[1].backends: 'cpu' already serves a.io",
        ),
        (
            "drivers: [{name: a.io, backends: [cpu]}, {name: a.io, backends: [memory]}]",
            "drivers[1].name: 'a.io' stands twice",
        ),
        (
            "drivers: [{name: a.io, backends: [tpu]}]",
            "drivers: backend 'tpu' is not installed; installed are cpu, ",
        ),
        (
            "{drivers: [{name: a.io, backends: [tpu]}], backends: {cpu: {}}}",
            "drivers: backend 'tpu' is not installed; installed are cpu, ",
        ),
        ("backends: {gpu: {}}", "backends.gpu: no driver uses it; used are cpu, memory"),
        ('backends: {"g\\nu": {}}', "backends.'g\\nu': no driver uses it"),
        ("backends: {cpu: 5}", "backends.cpu: a map is expected, found '5', an integer"),
        (
            "backends: {memory: {reserved: {'0': 5}}}",
            "backends.memory.reserved['0']: a string is expected, found '5', an integer",
        ),
        (
            "backends: {cpu: {reservd: '0'}}",
            "backends.cpu.reservd: unknown field 'reservd'; allowed are reserved",
        ),
        (
            "backends: {cpu: {reserved: 0}}",
            "backends.cpu.reserved: a string is expected, found '0', an integer",
        ),
        ("backends: {cpu: {reserved: x}}", "backends.cpu"),
        ("backends: {memory: {reserved: {'0': lots}}}", "backends.memory"),
        ("node: a\nnode: b", "line 2: key 'node' stands twice"),
        ("1: a", "line 1: key 1 is not a string: quote it"),
        ("a: [", "line 2: not valid YAML: "),
        ("- a", "a map is expected, found a list"),
        ("--- {}\n--- {}", "one YAML document is expected, found 2"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    assert refusal(tmp_path, text).startswith(expected)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.yaml: cannot be read: No such file"):
        load(tmp_path / "absent.yaml", None, {})
    with pytest.raises(SettingsError, match=f"^{tmp_path}: not a plain file$"):
        load(tmp_path, None, {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="binary: not UTF-8 text: byte 0 is 0xff"):
        load(tmp_path / "binary", None, {})
    with pytest.raises(SettingsError, match="/dev/zero: not a plain file"):
        load(Path("/dev/zero"), None, {})
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 100 << 20)
    with pytest.raises(SettingsError, match="large: larger than 1048576 bytes"):
        load(tmp_path / "large", None, {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9155", ("127.0.0.1", 9155)),
        (":9155", ("::", 9155)),
        ("[::1]:80", ("::1", 80)),
        ("", None),
    ],
)
def test_the_address_of_the_metrics(tmp_path: Path, text: str, address: tuple[str, int] | None) -> None:
    assert settings(tmp_path, f"metrics: {{address: '{text}'}}").metrics == address


def test_a_kubeconfig_given_beside_the_configuration_wins(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("kubernetes: {kubeconfig: /a, qps: 7}")
    made = load(config, None, {"NODE_NAME": "node-a"}, kubeconfig=Path("/b")).kubernetes
    assert made is not None
    assert (made.kubeconfig, made.qps) == ("/b", 7)
    assert load(None, None, {"NODE_NAME": "node-a"}).kubernetes is None


@pytest.mark.parametrize(
    ("text", "own", "join", "needed"),
    [
        ("{}", False, True, True),
        ("nri: {enabled: true}", False, True, True),
        ("nri: {enabled: false}", False, False, True),
        ("{}", True, False, False),
        ("nri: {enabled: true}", True, True, True),
        ("nri: {enabled: false}", True, False, False),
    ],
)
def test_the_runtime_is_joined_and_needed_unless_none_is_meant(
    tmp_path: Path, text: str, own: bool, join: bool, needed: bool
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    found = load(file, tmp_path if own else None, {"NODE_NAME": "node-a"}).runtime
    assert (found.join, found.needed, found.index) == (join, needed, "50")
    assert found.socket == (tmp_path if own else Path("/var/run/nri")) / "nri.sock"


def test_a_fake_node_has_no_runtime(tmp_path: Path) -> None:
    found = settings(tmp_path, f"{{state: {tmp_path}/state, fake: {{node: small}}}}").runtime
    assert (found.join, found.needed) == (False, False)


def test_what_looks_like_a_date_is_a_name(tmp_path: Path) -> None:
    assert settings(tmp_path, "node: 2001-99-99").node == "2001-99-99"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    [
        "node",
        "drivers",
        "backends",
        "kubernetes",
        "metrics",
        "standalone",
        "log",
        "state",
        "cdi",
        "rescanSeconds",
    ]
)


@given(st.dictionaries(fields, json_values, max_size=3))
def test_no_configuration_ends_in_anything_but_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, object]
) -> None:
    file = tmp_path_factory.getbasetemp() / "random.yaml"
    file.write_text(json.dumps(config))
    try:
        load_backends(load(file, None, {"NODE_NAME": "node-a"}))
    except SettingsError as error:
        assert str(error).startswith(str(file))  # noqa: PT017 - both outcomes are right
