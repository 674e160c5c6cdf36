"""The command line as people and scripts use it: beside a running daemon, and without one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import commandline
import daemons
from daemons import cpu_result
from hosttree import two_sockets
from waiting import PATIENCE, eventually

CPU, MEMORY = "cpu.dradriver.io", "memory.dradriver.io"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[daemons.Node]:
    """A node of two sockets with a running daemon."""
    root = tmp_path_factory.mktemp("host")
    two_sockets(root)
    with daemons.node() as node:
        node.start(f"hostRoot: {root}\nnode: {daemons.NODE}\n")
        node.ready()
        yield node


def dradriver(of: daemons.Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    return commandline.dradriver("--dir", of.directory, "--config", of.directory / "config.yaml", *arguments)


def good(of: daemons.Node, *arguments: str) -> str:
    done = dradriver(of, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def parsed(of: daemons.Node, *arguments: str) -> Any:
    """Return the output as JSON, which must be the same as YAML."""
    as_json = json.loads(good(of, *arguments, "-o", "json"))
    assert yaml.safe_load(good(of, *arguments, "-o", "yaml")) == as_json
    return as_json


def test_devices_are_shown_with_capacity_and_health(host: daemons.Node) -> None:
    found = {device["name"]: device for device in parsed(host, "devices")}
    assert {"cpu-numa-0", "cpu-numa-1", "memory-numa-0", "memory-numa-1"} == set(found)
    assert found["cpu-numa-1"]["capacity"]["cpu"]["value"] == "4"
    assert found["cpu-numa-1"]["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 1}
    assert found["cpu-numa-1"]["health"] == "Healthy"
    table = good(host, "devices")
    assert table.splitlines()[0].split() == ["DEVICE", "DRIVER", "CAPACITY", "ATTRIBUTES", "HEALTH", "CLAIMS"]
    assert "cpu-numa-1" in table


def test_why_there_are_no_devices_is_told_beside_them(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"hostRoot: {tmp_path}\ndrivers: [{{name: gpu.dradriver.io, backends: [gpu]}}]\nnode: n\n"
    )
    done = commandline.dradriver("--dir", tmp_path / "d", "--config", config, "devices")
    assert (done.returncode, done.stdout) == (0, "no devices on this node\n")
    assert done.stderr == f"dradriver: pool n/gpu: no NVIDIA driver: no libnvidia-ml.so.1 below {tmp_path}\n"


def test_slices_are_those_that_the_daemon_publishes(host: daemons.Node) -> None:
    shown = [manifest["spec"] for manifest in parsed(host, "slices")["items"]]
    assert sorted(shown, key=lambda spec: str(spec["driver"])) == host.published()
    assert "000-cpu.dradriver.io-node-a-cpu" in good(host, "slices")


def test_a_claim_by_device_names_from_prepare_to_unprepare(host: daemons.Node) -> None:
    wishes = ["--device", "cpu-numa-1:cpu=2", "--device", "memory-numa-1:memory=64Mi"]
    plan_before = dradriver(host, "plan", "tried")
    assert plan_before.returncode == 1
    assert "tried: no such file, and no such claim in" in plan_before.stderr

    prepared = json.loads(good(host, "kubelet", "prepare", "--name", "tried", *wishes, "-o", "json"))

    assert [one["driver"] for one in prepared] == [CPU, MEMORY]
    (cpu,) = prepared[0]["devices"]
    uid = prepared[0]["claim"]
    assert cpu["cdiDeviceIDs"] == [f"{CPU}/claim={uid}-0"]
    assert cpu["consumed"] == {"cpu": "2"}
    assert "cpu-numa-1 (cpu=2)" in good(host, "kubelet", "prepare", "tried")
    (file,) = prepared[0]["cdiFiles"]
    assert Path(file).parent == host.cdi
    assert json.loads(Path(file).read_text())["kind"] == f"{CPU}/claim"

    claims = {claim["driver"]: claim for claim in parsed(host, "claims")}
    assert claims[CPU]["state"] == "prepared"
    assert {hold["unit"] for hold in claims[CPU]["holds"]} >= {
        "capacity:node-a/cpu:cpu-numa-1:cpu",
        "plan:cpu:2",
    }
    assert claims[CPU]["steps"][0]["phase"] == "container"
    assert "default/tried" in good(host, "claims")
    holders = {device["name"]: device["claims"] for device in parsed(host, "devices")}
    assert [claim["uid"] for claim in holders["cpu-numa-1"]] == [uid]

    plan = parsed(host, "plan", "tried")
    assert [driver["driver"] for driver in plan["drivers"]] == [CPU, MEMORY]
    assert "pin" in good(host, "plan", "default/tried").lower()

    repeated = json.loads(good(host, "kubelet", "prepare", "tried", "-o", "json"))
    assert repeated == prepared

    assert "unprepared" in good(host, "kubelet", "unprepare", "tried")
    assert parsed(host, "claims") == []
    assert good(host, "claims") == "no claims are prepared on this node\n"
    assert list(host.cdi.iterdir()) == []
    assert not list(host.claims.glob("*tried*"))


def test_a_claim_file_as_kubectl_prints_it_is_prepared_and_planned(
    host: daemons.Node, tmp_path: Path
) -> None:
    claim = host.claim("printed", [cpu_result("1", "cpu-numa-0")])
    file = tmp_path / "claim.yaml"
    file.write_text(yaml.safe_dump(json.loads((host.claims / "printed.yaml").read_text())))
    assert parsed(host, "plan", str(file))["claim"]["uid"] == claim.uid
    assert parsed(host, "claims") == []
    good(host, "kubelet", "prepare", str(file))
    good(host, "kubelet", "unprepare", "default/printed", "--uid", claim.uid, "--driver", CPU)
    assert (host.claims / "printed.yaml").exists()
    assert list(host.cdi.iterdir()) == []

    (host.claims / "printed.yaml").unlink()
    good(host, "kubelet", "prepare", str(file))
    assert [held["claim"]["uid"] for held in parsed(host, "claims")] == [claim.uid]
    edited = file.with_name("edited.yaml")
    edited.write_text(file.read_text().replace("cpu-numa-0", "cpu-numa-1"))
    refused = dradriver(host, "kubelet", "prepare", str(edited))
    assert refused.returncode == 1
    assert f"{host.claims} has another claim default/printed (" in refused.stderr
    assert "by which the driver goes: unprepare that" in refused.stderr
    good(host, "kubelet", "unprepare", str(file))
    assert not list(host.claims.glob("*printed*")), "a file that prepare put there is taken away"
    assert "cpu-numa-1" in good(host, "kubelet", "prepare", str(edited))
    good(host, "kubelet", "unprepare", "printed")
    assert not list(host.claims.glob("*printed*"))


def test_global_options_may_stand_behind_the_command(host: daemons.Node) -> None:
    command = [sys.executable, "-m", "dradriver", "devices", "--dir", str(host.directory), "-o", "json"]
    options = [f"--config={host.directory / 'config.yaml'}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=True)
    assert {device["name"] for device in json.loads(done.stdout)} >= {"cpu-numa-0", "cpu-numa-1"}


def test_opaque_configuration_reaches_the_backend(host: daemons.Node) -> None:
    config = {"apiVersion": "dradriver.io/v1alpha1", "kind": "CpuConfig", "memory": "any"}
    wish = ["--device", "cpu-numa-0:cpu=1", "--parameters", f"{CPU}={json.dumps(config)}"]
    good(host, "kubelet", "prepare", "--name", "configured", *wish)
    (claim,) = parsed(host, "claims")
    assert claim["devices"][0]["configs"] == {"CpuConfig": {"memory": "any"}}
    good(host, "kubelet", "unprepare", "configured")


def test_a_refused_claim_ends_with_exit_code_1_and_the_drivers_words(host: daemons.Node) -> None:
    good(host, "kubelet", "prepare", "--name", "all", "--device", "cpu-numa-0:cpu=4")
    late = dradriver(host, "kubelet", "prepare", "--name", "late", "--device", "cpu-numa-0:cpu=1")
    assert late.returncode == 1
    assert "by claim default/all" in late.stdout
    assert not list(host.claims.glob("*late*")), "a new claim that nobody prepared leaves no file"
    waiting = host.claim("waiting", [cpu_result("1", "cpu-numa-0")])
    planned = dradriver(host, "plan", "waiting")
    assert planned.returncode == 1
    assert "default/all" in planned.stderr
    good(host, "kubelet", "unprepare", "all")
    assert parsed(host, "plan", "waiting")["claim"]["uid"] == waiting.uid


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["kubelet", "prepare"], 2, "either CLAIM or --device is expected"),
        (
            ["kubelet", "prepare", "--device", "gpu-0"],
            1,
            "device 'gpu-0' is not published; published are cpu-numa-0",
        ),
        (["kubelet", "prepare", "--device", "cpu-numa-0:cpu"], 1, "capacity=amount is expected"),
        (["kubelet", "prepare", "--device", "cpu-numa-0:cpu=x"], 1, "quantity 'x'"),
        (["kubelet", "prepare", "--device", "cpu-numa-0:cores=1"], 1, "has no capacity 'cores'; it has cpu"),
        (["kubelet", "prepare", "--device", "cpu-numa-0", "--name", "../x"], 1, "claim name '../x'"),
        (["kubelet", "prepare", "--device", "cpu-numa-0", "--namespace", "A"], 1, "namespace 'A'"),
        (["kubelet", "prepare", "--device", "cpu-numa-0", "--parameters", "x"], 2, "DRIVER=JSON"),
        (["kubelet", "prepare", "--device", "cpu-numa-0", "--parameters", "x={"], 2, "DRIVER=JSON"),
        (["kubelet", "prepare", "/etc/hostname"], 1, "not a ResourceClaim"),
        (["kubelet", "unprepare", "x", "--uid", "1"], 2, "--uid needs --driver"),
        (["kubelet", "health", "gpu.example.com"], 1, "no DRA driver 'gpu.example.com' answers"),
        (["kubelet", "prepare", "--device", "x.io/cpu-numa-0"], 1, "device 'cpu-numa-0' is not published"),
        (
            ["kubelet", "prepare", "--device", "cpu-numa-0", "--parameters", "x.io={}"],
            1,
            "parameters for driver 'x.io': no device of it is asked for, but of cpu.dradriver.io",
        ),
        (["plan", "absent"], 1, "absent: no such file, and no such claim in"),
        (["devices", "-o", "xml"], 2, "'xml' is not one of"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(
    host: daemons.Node, arguments: list[str], code: int, words: str
) -> None:
    done = dradriver(host, *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_claim_that_cannot_be_read_is_named_and_one_without_uid_explained(
    host: daemons.Node, tmp_path: Path
) -> None:
    file = tmp_path / "claim.yaml"
    metadata = {"name": "mine", "namespace": "default", "uid": "uid-mine"}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    commands = (["plan"], ["kubelet", "prepare"], ["kubelet", "unprepare"])
    for uid, words in (
        ("uid-mine", "claim is not allocated"),
        ("", "take the claim from there (kubectl get resourceclaim -o yaml)"),
    ):
        file.write_text(yaml.safe_dump({**claim, "metadata": {**metadata, "uid": uid}}))
        for command in commands:
            done = dradriver(host, *command, str(file))
            assert done.returncode == 1
            assert done.stderr.startswith(f"dradriver: claim {file}: ")
            assert words in done.stderr


def test_plugins_and_health_are_shown(host: daemons.Node) -> None:
    plugins = parsed(host, "kubelet", "plugins")
    assert [plugin["name"] for plugin in plugins] == [CPU, MEMORY]
    assert plugins[0]["versions"][0] == "v1.DRAPlugin"
    assert "cpu.dradriver.io" in good(host, "kubelet", "plugins")
    (health,) = json.loads(good(host, "kubelet", "health", CPU, "-o", "json"))
    assert {device["health"] for device in health["devices"]} == {"Healthy"}
    assert "memory-numa-1" in good(host, "kubelet", "health")


def test_health_is_watched_until_interrupted(host: daemons.Node, tmp_path: Path) -> None:
    output = tmp_path / "watched"
    command = [sys.executable, "-c", "from dradriver.cli import main; main()", "--dir", str(host.directory)]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, "kubelet", "health", "--watch"],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    for device in ("cpu-numa-0", "memory-numa-1"):
        eventually(lambda name=device: name in output.read_text(), f"{device} is reported")  # type: ignore[misc]
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) in {1, 130}
    assert "Traceback" not in output.read_text()


def test_without_a_daemon_devices_and_slices_are_shown_and_the_rest_says_what_is_missing(
    tmp_path: Path,
) -> None:
    two_sockets(tmp_path)
    with daemons.node() as empty:
        (empty.directory / "config.yaml").write_text(f"hostRoot: {tmp_path}\n")
        assert len(parsed(empty, "devices")) == 4
        assert len(parsed(empty, "slices")["items"]) == 2
        assert parsed(empty, "claims") == []
        prepare = dradriver(empty, "kubelet", "prepare", "--device", "cpu-numa-0")
        assert prepare.returncode == 1
        assert "is `dradriver run` at work there?" in prepare.stderr
        assert good(empty, "kubelet", "plugins").startswith("no registration sockets in")


def test_a_wrong_configuration_ends_every_command_with_exit_code_2(tmp_path: Path) -> None:
    with daemons.node() as broken:
        (broken.directory / "config.yaml").write_text("log: {level: loud}\n")
        for command in (["devices"], ["slices"], ["claims"], ["kubelet", "plugins"], ["run"]):
            done = dradriver(broken, *command)
            assert done.returncode == 2, command
            assert done.stderr == (
                f"dradriver: {broken.directory}/config.yaml: log.level: "
                "'loud' is not one of debug, info, warning, error\n"
            )
