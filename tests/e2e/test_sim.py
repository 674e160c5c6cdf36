"""`dradriver sim` as people and CI use it: what it says and how it ends when something is wrong, and kubectl."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import commandline
import daemons
from clusterdaemons import free_port
from waiting import eventually

ROOT = Path(__file__).parents[2]
CLASSES, CPUS = "deployments/manifests/deviceclasses.yaml", "examples/exclusive-cpus"
KINDS = ("gpu", "nic", "cpu", "memory")
COMMAND = [sys.executable, "-m", "dradriver", "sim"]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A short directory, for what needs sockets below it."""
    directory = Path(tempfile.mkdtemp(prefix="sim-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def sim(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return commandline.dradriver("sim", *arguments, environment=environment, directory=ROOT)


def daemons_in(directory: Path | str) -> list[int]:
    """Return the processes whose command line names that directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if entry.name.isdigit() and str(directory) in command and "dradriver.daemon" in command:
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["--node", "nope"],
            2,
            "dradriver: --node: 'nope' is neither an absolute path nor one of dgx-h100, ",
        ),
        (["--node", "nope", "-o", "json"], 2, "dradriver: --node: 'nope' is neither"),
        (["--gate", "DRADeviceTaints"], 2, "--gate DRADeviceTaints: NAME=true or NAME=false is expected"),
        (["--gate", "DRADeviceTaints=maybe"], 2, "NAME=true or NAME=false is expected"),
        (["--gate", "Unheard=true"], 2, "feature gate 'Unheard' of API server 1.36: known are "),
        (["--kubernetes", "1.20"], 2, "API server version '1.20': allowed are 1.34 to 1.37"),
        (["--allocate", "a/b=c"], 2, "--allocate is for the claims of FILES: use --device"),
        ([CPUS, "--device", "cpu-numa-0"], 2, "name the devices for FILES with --allocate"),
        ([CPUS, "--allocate", "cpus"], 2, "--allocate cpus: CLAIM/REQUEST=DEVICE is expected"),
        (
            [CPUS, "--allocate", "cpus/cpus=a:b"],
            2,
            "--allocate cpus/cpus=a:b: 'a:b': capacity=amount is expected",
        ),
        (["--node", "small", "--config", "any"], 2, "--node and --config: one of them says what node it is"),
        (["--config", "/no/file"], 2, "/no/file: cannot be read: No such file or directory"),
        (["--device", "cpu-numa-9"], 1, "device 'cpu-numa-9' is not published; nearest of 21: cpu-numa-0, "),
        (
            ["--device", "cpu.dradriver.io/x"],
            1,
            "'x' is not published by cpu.dradriver.io; published are cpu-numa-0",
        ),
        (
            ["--device", "tpu.io/x"],
            1,
            "'x' is not published by 'tpu.io'; drivers with devices are cpu.dradriver.io, ",
        ),
        (["--device", "cpu-numa-0:cpu"], 2, "--device: 'cpu-numa-0:cpu': capacity=amount is expected"),
        (["--device", "cpu-numa-0:bogus=1"], 1, "device cpu-numa-0 has no capacity 'bogus'; it has cpu"),
        (
            [CPUS, "--allocate", "cpus/cpus=cpu-numa-0"],
            2,
            "Pod exclusive-cpus: claim cpus: request cpus: the FILES have no DeviceClass 'cpu.dradriver.io'; ",
        ),
        ([CLASSES, CPUS], 2, "dradriver: --allocate cpus/cpus=DEVICE is missing"),
        (
            [CLASSES, CPUS, "--allocate", "cpu/cpus=cpu-numa-0"],
            2,
            "--allocate cpu/cpus: no pod has such a request: there are cpus/cpus; --allocate cpus/cpus=DEVICE is",
        ),
        (
            [CLASSES, CPUS, "--allocate", "cpus/cpus=cpu-numa-7"],
            1,
            "claim 'cpus': device 'cpu-numa-7' is not published; nearest of 21: cpu-numa-0, ",
        ),
        ([CLASSES], 2, "there is no Pod in the FILES, so nothing to run"),
        (["README.md"], 2, "README.md"),
    ],
)
def test_wrong_options_are_named_in_one_line(arguments: list[str], code: int, said: str) -> None:
    done = sim(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_devices_for_a_claim_that_no_pod_has_are_refused() -> None:
    done = sim(CLASSES, CPUS, "--allocate", "cpus/cpus=cpu-numa-0", "--allocate", "other/cpus=cpu-numa-0")
    assert done.returncode == 2
    assert "--allocate other/cpus: no pod has such a request: there are cpus/cpus\n" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--device", "nothing"], "device 'nothing' is not published"),
        ([CLASSES, CPUS, "--allocate", "cpus/cpus=cpu-numa-0:gpu=1"], "has no capacity 'gpu'"),
        (["--dir", "/proc/none"], "/proc/none"),
    ],
)
def test_a_failure_too_is_one_json_document(arguments: list[str], problem: str) -> None:
    done = sim(*arguments, "-o", "json")
    assert done.returncode == 1
    (said,) = json.loads(done.stdout)["problems"]
    assert problem in said
    assert done.stderr == f"dradriver: {said}\n"


def test_what_the_server_refuses_is_told_with_file_and_object(scratch: Path) -> None:
    wrong = scratch / "wrong.yaml"
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
    selector = {"cel": {"expression": "device.driver = 1"}}
    wrong.write_text(yaml.safe_dump({**body, "spec": {"selectors": [selector]}}))
    done = sim(wrong, CLASSES, CPUS, "--allocate", "cpus/cpus=cpu-numa-0")
    assert done.returncode == 1
    assert done.stderr.startswith(f"dradriver: {wrong}: DeviceClass gpu: 422 Invalid: ")
    assert len(done.stderr.splitlines()) == 1


def test_less_is_published_for_an_older_server_and_that_is_said() -> None:
    done = sim("--node", "telco-edge", "--kubernetes", "1.34")
    assert done.returncode == 0, done.stderr
    reduced = [line for line in done.stdout.splitlines() if line.startswith("Reduced ")]
    assert any("pool node-a/cpu: " in line and "DRAConsumableCapacity" in line for line in reduced)
    assert "gpu.dradriver.io 0" in done.stdout, "a slice without devices is no obstacle"


def test_a_server_that_keeps_no_device_status_is_no_problem() -> None:
    done = sim("--gate", "DRAResourceClaimDeviceStatus=false")
    assert done.returncode == 0, done.stderr
    assert "keeps none of devices: its feature gate DRAResourceClaimDeviceStatus is off" in done.stdout


def test_a_device_that_the_class_does_not_select_is_doubted() -> None:
    done = sim(CLASSES, "examples/whole-gpu", "--allocate", "gpu/gpu=nic-0000-44-00-2", "-o", "json")
    assert done.returncode == 0, done.stderr
    (warning,) = json.loads(done.stdout)["warnings"]
    assert warning.startswith("pod whole-gpu: claim whole-gpu-gpu-")
    assert warning.endswith(
        "request gpu: device nic-0000-44-00-2 is of nic.dradriver.io, "
        "class gpu.dradriver.io selects devices of gpu.dradriver.io"
    )


def contents(directory: Path) -> dict[str, bytes]:
    """Return what is in the files of a directory, without the logs of daemons."""
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.is_file() and not path.name.startswith(("log-", "daemon.log"))
    }


def test_a_directory_in_use_is_refused_before_anything_is_written(scratch: Path) -> None:
    with serving(scratch) as process:
        wait_for(process, "Serving")
        before = contents(scratch)
        done = sim("--dir", scratch, "--node", "telco-edge", "-o", "json")
        assert done.returncode == 1
        assert json.loads(done.stdout)["problems"] == [
            f"{scratch}: a simulation is at work there: end it, or name another --dir"
        ]
        assert contents(scratch) == before
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert daemons_in(scratch), "its daemon is left"
        done = sim("--dir", scratch)
        assert done.returncode == 1
        assert "a daemon is at work there" in done.stderr
        assert contents(scratch) == before


def test_what_others_keep_in_a_directory_stays(scratch: Path) -> None:
    config = scratch / "config.yaml"
    config.write_text("fake: {node: small}\n")
    done = sim("--dir", scratch)
    assert done.returncode == 1
    assert f"{config} was not written by `dradriver sim`" in done.stderr
    assert config.read_text() == "fake: {node: small}\n"
    assert not (scratch / "kubeconfig").exists()
    done = sim("--dir", scratch, "--config", config)
    assert done.returncode == 0, done.stderr
    with daemons.node() as node:
        node.start("fake: {node: small}\n")
        node.ready()
        before = contents(node.directory)
        assert "a daemon is at work there" in sim("--dir", node.directory).stderr
        daemons.terminate(node.processes[0])
        assert "the state of a daemon is kept there" in sim("--dir", node.directory).stderr
        assert contents(node.directory) == before


def test_the_variables_of_this_machines_daemon_are_not_for_it(scratch: Path) -> None:
    variables = {"DRADRIVER_DIR": str(scratch / "live"), "DRADRIVER_CONFIG": str(scratch / "none.yaml")}
    done = sim("--node", "small", environment=variables)
    assert done.returncode == 0, done.stderr
    assert "DRADRIVER_DIR is not for sim, --dir is" in done.stdout
    assert not (scratch / "live").exists()


def test_the_node_of_a_kept_directory_can_be_looked_at(scratch: Path) -> None:
    with serving(scratch) as process:
        wait_for(process, "Serving")
        assert {one["claim"]["name"] for one in looked_at(scratch, "claims")} == {"demo"}
        devices = looked_at(scratch, "devices")
        assert {one["driver"] for one in devices} == {f"{kind}.dradriver.io" for kind in KINDS}
        assert sum(bool(one["claims"]) for one in devices) == len(KINDS), (
            "each driver's first device is taken"
        )
        assert list((scratch / "cdi").glob("*-claim-*"))
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 0, stderr
        assert "Unprepared  pod demo\n" in stdout
        assert not list((scratch / "cdi").glob("*-claim-*"))
        assert looked_at(scratch, "claims") == []


def looked_at(directory: Path, command: str) -> Any:
    """Return what a command says of the node in a directory."""
    options = ("--config", directory / "config.yaml", "--dir", directory)
    done = commandline.dradriver(*options, command, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_manifests_without_a_pod_can_be_served(scratch: Path) -> None:
    with serving(scratch, CLASSES) as process:
        line = wait_for(process, "Created")
        assert line.startswith("Created     DeviceClass ")
        wait_for(process, "Serving")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_the_outcome_is_one_json_document(scratch: Path) -> None:
    done = sim("--dir", scratch, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    outcome = json.loads(done.stdout)
    assert outcome["problems"] == []
    assert set(outcome["devices"]) == {f"{kind}.dradriver.io" for kind in ("gpu", "nic", "cpu", "memory")}
    assert len(outcome["claims"][0]["results"]) == 4
    assert daemons_in(scratch) == []


def test_a_directory_can_be_used_again_after_a_run_that_failed(scratch: Path) -> None:
    two = scratch / "two.yaml"
    pod = next(
        one for one in yaml.safe_load_all((ROOT / CPUS / "pod.yaml").read_text()) if one["kind"] == "Pod"
    )
    more = yaml.safe_load(json.dumps(pod))
    more["metadata"]["name"] = "more"
    more["spec"]["resourceClaims"][0]["name"] = "more"
    more["spec"]["containers"][0]["resources"]["claims"] = [{"name": "more"}]
    two.write_text(yaml.safe_dump(more))
    whole = "cpus/cpus=cpu-numa-0:cpu=4"
    wrong = ["--allocate", "more/cpus=cpu-numa-9"]
    failed = sim("--dir", scratch / "d", CLASSES, CPUS, two, "--allocate", whole, *wrong)
    assert failed.returncode == 1
    assert "claim 'more': device 'cpu-numa-9' is not published" in failed.stderr
    done = sim("--dir", scratch / "d", CLASSES, CPUS, "--allocate", whole)
    assert done.returncode == 0, done.stderr


def test_a_claim_that_cannot_be_prepared_is_a_problem_and_the_log_tells_more(scratch: Path) -> None:
    config = scratch / "fail.yaml"
    config.write_text('fake: {node: small, faults: [{device: "gpu*", does: fail, at: create}]}\n')
    done = sim("--config", config, "-o", "json")
    assert done.returncode == 1
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem.startswith(
        "pod demo: claim demo: gpu.dradriver.io: gpu-0000-43-00-0-mig-1g-6gb-0: create: "
    )
    first, *log = done.stderr.splitlines()
    assert first == f"dradriver: {problem}"
    assert any("WARNING" in line and "create: fails, as the fault script says" in line for line in log)


@pytest.mark.parametrize("output", ["json", "table"])
def test_a_daemon_that_dies_is_told_of_with_the_end_of_its_log(scratch: Path, output: str) -> None:
    config = scratch / "crash.yaml"
    config.write_text('fake: {node: small, faults: [{device: "*", does: crash, at: probe}]}\n')
    done = sim("--config", config, "-o", output)
    assert done.returncode == 1
    assert done.stderr.startswith("dradriver: the daemon ended with code -9\nthe end of the daemon's log:\n")
    assert "dradriver.daemon: node node-a: state in" in done.stderr
    if output == "json":
        assert json.loads(done.stdout)["problems"] == ["the daemon ended with code -9"]


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = sim("--port", str(port))
    assert done.returncode == 1
    assert done.stderr == f"dradriver: port {port} cannot be had: Address already in use\n"


def test_the_server_by_itself_names_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "dradriver.sim.apiserver", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == f"apiserver: port {port} cannot be had: Address already in use\n"


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Let it serve; kill what is left of it at the end."""
    process = subprocess.Popen(
        [*COMMAND, "--serve", "--dir", str(directory), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        for pid in [process.pid, *daemons_in(directory)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.communicate()


def wait_for(process: subprocess.Popen[str], title: str, stream: str = "stdout") -> str:
    """Return the first line under that title."""
    lines = getattr(process, stream)
    for line in lines:
        if line.startswith(title):
            return str(line)
    raise AssertionError(f"no line {title}: {process.communicate()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("output", ["table", "json"])
def test_an_interrupt_while_serving_ends_all_in_order(
    scratch: Path, number: signal.Signals, output: str
) -> None:
    with serving(scratch, "-o", output) as process:
        line = wait_for(process, "Serving", "stdout" if output == "table" else "stderr")
        assert f"KUBECONFIG={scratch}/kubeconfig" in line
        assert len(daemons_in(scratch)) == 1
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 0, stderr
        assert daemons_in(scratch) == []
        assert "stopped" in (scratch / "daemon.log").read_text()
        if output == "json":
            assert json.loads(stdout)["problems"] == []
        else:
            assert "nothing is left, nothing went wrong" in stdout


def test_an_interrupt_before_that_leaves_nothing_running(scratch: Path) -> None:
    with serving(scratch) as process:
        wait_for(process, "API server")
        eventually(lambda: daemons_in(scratch), "the daemon runs")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 1
        assert daemons_in(scratch) == []


def test_an_interrupt_before_that_is_one_json_document_too(scratch: Path) -> None:
    with serving(scratch, "-o", "json") as process:
        eventually(lambda: daemons_in(scratch), "the daemon runs")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 1
        assert json.loads(stdout)["problems"] == ["interrupted"]
        assert stderr == "dradriver: interrupted\n"


def test_a_daemon_that_dies_while_serving_ends_it_with_a_problem(scratch: Path) -> None:
    with serving(scratch) as process:
        wait_for(process, "Serving")
        (daemon,) = daemons_in(scratch)
        os.kill(daemon, signal.SIGKILL)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 1
        assert stderr.startswith("dradriver: the daemon ended with code -9\n")


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl")
def test_kubectl_gets_and_describes_slices_and_claims(scratch: Path) -> None:
    port = free_port()
    claim = scratch / "claim.yaml"
    claim.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "by-hand"},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
            }
        )
    )
    kubeconfig = scratch / "d/kubeconfig"

    def kubectl(*arguments: str | Path) -> str:
        done = subprocess.run(
            ["kubectl", *map(str, arguments)],
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(scratch)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with serving(scratch / "d", "--port", str(port)) as process:
        wait_for(process, "Serving")
        assert f":{port}" in kubeconfig.read_text()
        table = kubectl("get", "resourceslices").splitlines()
        assert table[0].split() == ["NAME", "NODE", "DRIVER", "POOL", "AGE"]
        assert len(table) == 1 + 5
        name = next(line.split()[0] for line in table if "gpu.dradriver.io" in line)
        described = kubectl("describe", "resourceslice", name)
        assert "gpu.dradriver.io" in described
        listed = json.loads(
            kubectl("get", "resourceslices", "-o", "json", "--field-selector", "spec.nodeName=node-a")
        )
        assert sum(len(one["spec"].get("devices") or ()) for one in listed["items"]) == 21
        assert "created" in kubectl("apply", "-f", claim)
        assert "by-hand" in kubectl("get", "resourceclaims")
        assert "demo" in kubectl("get", "resourceclaims", "-A")
        assert "gpu" in kubectl("describe", "resourceclaim", "by-hand")
        assert "Name:" in kubectl("describe", "node", "node-a")
        kubectl("delete", "resourceslice", name)
        eventually(
            lambda: len(kubectl("get", "resourceslices", "--no-headers").splitlines()) == 5, "it is restored"
        )
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 0, stderr
