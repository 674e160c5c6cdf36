"""Looking inside from the command line: beside a running daemon, without one, and at another machine."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import commandline
import daemons
from daemons import cpu_result, memory_result
from hosttree import HostTree, two_sockets
from waiting import eventually


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[daemons.Node]:
    """A node of two sockets with a running daemon, and one claim that is prepared."""
    root = tmp_path_factory.mktemp("host")
    tree = two_sockets(root)
    network_card(tree)
    with daemons.node() as node:
        node.start(f"hostRoot: {root}\nnode: {daemons.NODE}\n")
        node.ready()
        ref = node.claim("tried", [cpu_result("2"), memory_result("64Mi")])
        with daemons.kubelet(node) as kubelet:
            for driver in ("cpu.dradriver.io", "memory.dradriver.io"):
                assert not isinstance(kubelet.prepare(driver, [ref])[ref.uid], str)
        eventually((node.directory / "state/status.json").exists, "the daemon tells of itself")
        yield node


def network_card(tree: HostTree) -> None:
    way = "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0"
    for name, text in (
        ("class", "0x020000"),
        ("numa_node", "1"),
        ("net/enx04421a0b0c0d/address", "04:42:1a:0b:0c:0d"),
    ):
        tree.write(f"sys/devices/{way}/{name}", text)
    tree.link("sys/bus/pci/devices/0000:1a:00.0", f"../../../devices/{way}")
    tree.link("sys/class/net/enx04421a0b0c0d", f"../../devices/{way}/net/enx04421a0b0c0d")


def run(
    *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = {"NODE_NAME": daemons.NODE, "COLUMNS": "40", **(environment or {})}
    return commandline.dradriver(*arguments, environment=variables)


def good(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def of(node: daemons.Node) -> tuple[str | Path, ...]:
    return "--dir", node.directory, "--config", node.directory / "config.yaml"


def parsed(*arguments: str | Path) -> Any:
    """Return the output as JSON, which must be the same as YAML."""
    as_json = json.loads(good(*arguments, "-o", "json"))
    assert yaml.safe_load(good(*arguments, "-o", "yaml")) == as_json
    return as_json


def test_the_tree_says_where_everything_is_and_who_has_it(host: daemons.Node) -> None:
    assert good(*of(host), "topology").splitlines() == [
        "node-a",
        "├── socket 0  CPUs 0-1,4-5",
        "│   └── NUMA node 0  4 GiB",
        "│       ├── 2 cores, CPUs 0-1,4-5",
        "│       ├── cpu-numa-0  cpu 2 of 4",
        "│       │   └── default/tried  cpu 2  holds 0,4",
        "│       └── memory-numa-0  memory 64Mi of 4Gi",
        "│           └── default/tried  memory 64Mi",
        "└── socket 1  CPUs 2-3,6-7",
        "    └── NUMA node 1  4 GiB",
        "        ├── 2 cores, CPUs 2-3,6-7",
        "        ├── cpu-numa-1  cpu 0 of 4",
        "        ├── memory-numa-1  memory 0 of 4Gi",
        "        └── pci0000:17",
        "            └── switch 0000:18:00.0",
        "                └── 0000:1a:00.0  network  enx04421a0b0c0d",
    ]
    view = parsed(*of(host), "topology")
    assert [socket["cpus"] for socket in view["sockets"]] == ["0-1,4-5", "2-3,6-7"]


def test_a_node_that_works_has_nothing_to_mend(host: daemons.Node) -> None:
    view = json.loads(good(*of(host), "check", "-o", "json"))
    assert [one for one in view["checks"] if one["status"] != "ok" and one["name"] != "kernel events"] == []
    seen = {check["name"]: check["seen"] for check in view["checks"]}
    assert seen["journal"].endswith("sound, 1 claim")
    assert seen["CDI files"].endswith("2 of ours, all valid and wanted")
    assert seen["active instance"] in {
        f"process {host.processes[0].pid}",
        "a process that cannot be seen from here",
    }
    assert "v1.DRAPlugin" in seen["registration of cpu.dradriver.io"]
    table = good(*of(host), "check").splitlines()
    assert table[0].split() == ["CHECK", "STATUS", "SEEN"]
    assert any(line.startswith("CDI files") and line.endswith("valid and wanted") for line in table)


def test_what_is_wrong_ends_with_exit_code_1_and_how_to_mend_it(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"kubeletRoot: {tmp_path}/none\nhostRoot: {tmp_path}\n")
    done = run("--config", config, "check")
    assert done.returncode == 1
    assert "mend: name the kubelet's --root-dir as kubeletRoot" in done.stdout
    config.write_text("nothing: 1")
    done = run("--config", config, "check", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["status"]) == (1, "error")
    assert "unknown field 'nothing'" in json.loads(done.stdout)["checks"][0]["seen"]


def test_a_snapshot_shows_the_same_devices_slices_plan_and_tree(host: daemons.Node, tmp_path: Path) -> None:
    file = tmp_path / "node.json.gz"
    told = good(*of(host), "snapshot", "--out", file)
    assert told.startswith(f"{file}: ")
    assert told.endswith("identifiers replaced\n")
    again = ("--snapshot", file)

    assert parsed(*again, "slices") == parsed(*of(host), "slices")
    claim = next(host.claims.glob("tried*"))
    assert "cpu-numa-0" in good(*again, "plan", claim)
    devices = {device["name"]: device["claims"] for device in parsed(*again, "devices")}
    assert set(devices) == {"cpu-numa-0", "cpu-numa-1", "memory-numa-0", "memory-numa-1"}
    assert not any(devices.values()), "the claims of this machine are not those of another"
    tree = good(*again, "topology")
    assert "enx020000000001" in tree
    assert "enx04421a0b0c0d" not in tree

    good(*of(host), "snapshot", "--out", file, "--keep-identifiers")
    assert "enx04421a0b0c0d" in good(*again, "topology")
    assert [path.name for path in tmp_path.iterdir()] == ["node.json.gz"]


def test_a_snapshot_can_be_unpacked_to_be_a_host_root(host: daemons.Node, tmp_path: Path) -> None:
    file, root, config = tmp_path / "snapshot", tmp_path / "root", tmp_path / "config.yaml"
    good(*of(host), "snapshot", "--out", file)
    good("replay", file, root)
    config.write_text(f"hostRoot: {root}\n")
    assert parsed("--config", config, "slices") == parsed("--snapshot", root, "slices")
    refused = run("replay", file, root)
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr


def test_this_machine_replayed_publishes_the_same_slices(tmp_path: Path) -> None:
    file = tmp_path / "here"
    before = good("slices", "-o", "json")
    good("snapshot", "--out", file)
    if good("slices", "-o", "json") != before:
        pytest.skip("the machine changed meanwhile: a guest's memory comes and goes")
    assert good("--snapshot", file, "slices", "-o", "json") == before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--snapshot", "FILE", "slices"), 1, "--snapshot: FILE: not a snapshot"),
        (("--snapshot", "NONE", "slices"), 2, "does not exist"),
        (("--snapshot", "DIRECTORY", "check"), 2, "--snapshot: check is about this machine"),
        (("--snapshot", "DIRECTORY", "run"), 2, "--snapshot: run is about this machine"),
        (("snapshot", "--out", "DIRECTORY/none/x"), 1, "none/x: No such file or directory"),
        (("replay", "FILE", "DIRECTORY/new"), 1, "FILE: not a snapshot"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(
    arguments: tuple[str, ...], code: int, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("no snapshot")
    names = {"FILE": str(file), "DIRECTORY": str(tmp_path), "NONE": str(tmp_path / "nowhere")}

    def named(text: str) -> str:
        for name, path in names.items():
            text = text.replace(name, path)
        return text

    done = run(*map(named, arguments))
    assert done.returncode == code, done.stderr
    assert named(words) in done.stderr
    assert "Traceback" not in done.stderr
