"""What else lies in deployments, systemd and hack: manifests, Containerfile, unit, script for kind."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from chart import CHART, MANIFESTS, ROOT, classes, container, helm, objects, only, render, values_file

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTAINERFILE = (ROOT / "deployments" / "Containerfile").read_text()


def run(
    *command: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
    )


# deployments/manifests


def test_the_manifests_are_what_the_chart_renders() -> None:
    helm()
    checked = run(sys.executable, ROOT / "hack" / "render", "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_manifests_hold_what_their_names_say() -> None:
    read = {path.name: objects([path.read_text()]) for path in MANIFESTS.glob("*.yaml")}
    assert set(read) == {
        "deviceclasses.yaml",
        "dradriver.yaml",
        "dradriver-fake.yaml",
        "dradriver-gpu-mps.yaml",
    }
    assert len(classes(read["deviceclasses.yaml"])) == len(read["deviceclasses.yaml"]) == 8
    for name in ("dradriver.yaml", "dradriver-fake.yaml", "dradriver-gpu-mps.yaml"):
        namespace, *others = read[name]
        assert namespace["kind"] == "Namespace"
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
        assert others[-1]["kind"] == "DaemonSet"
        assert not classes(others)
    names = [obj["metadata"]["name"] for obj in read["dradriver-gpu-mps.yaml"] if obj["kind"] == "DaemonSet"]
    assert names == ["dradriver", "dradriver-mps-keeper"]
    assert "dgx-h100" in only(read["dradriver-fake.yaml"], "ConfigMap")["data"]["config.yaml"]


def test_the_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = PROJECT["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
    image = container(objects([(MANIFESTS / "dradriver.yaml").read_text()]))["image"]
    assert image == f"dradriver:{version}"


def test_every_example_of_values_is_one_of_the_chart() -> None:
    helm()
    files = sorted(path.name for path in (CHART / "values").iterdir())
    readme = (CHART / "README.md").read_text()
    assert files
    for name in files:
        assert [obj for obj in render(values_file(name)) if obj["kind"] == "DaemonSet"]
        assert f"`values/{name}`" in readme


# deployments/Containerfile


def copied() -> list[str]:
    """Return what is copied from the repository."""
    found: list[str] = []
    for line in CONTAINERFILE.splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            found += words[1:-1]
    return found


def test_what_the_image_copies_is_there() -> None:
    assert copied()
    for path in copied():
        assert (ROOT / path).exists(), path


def test_the_image_has_all_that_a_wheel_is_made_of() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PROJECT["project"]
    needed = {path.split("/")[0] for path in wheel["packages"]}
    needed |= {"pyproject.toml", project["readme"], *project["license-files"]}
    assert needed <= set(copied())


def test_the_image_ignores_nothing_that_it_copies() -> None:
    ignored = (ROOT / "deployments" / "Containerfile.dockerignore").read_text().split()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert set(copied()) == kept
    assert ignored[0] == "*"


def test_the_image_is_based_on_a_python_that_will_do() -> None:
    (base,) = re.findall(
        r"^ARG PYTHON_IMAGE=\S+/python:(\d+\.\d+)-slim-\w+$", CONTAINERFILE, flags=re.MULTILINE
    )
    lowest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert [int(part) for part in base.split(".")] >= [int(part) for part in lowest.split(".")]
    stages = re.findall(r"^FROM (\S+)", CONTAINERFILE, flags=re.MULTILINE)
    assert stages == ["${PYTHON_IMAGE}"] * 2


def test_the_dependencies_are_all_pinned_and_named_by_the_command_of_the_image() -> None:
    (command,) = re.findall(r"python -c '(import tomllib[^']+)'", CONTAINERFILE)
    printed = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert printed == PROJECT["project"]["dependencies"]
    pinned = (ROOT / "hack" / "constraints.txt").read_text().lower()
    for requirement in printed:
        name = re.split(r"[^\w-]", requirement)[0].lower()
        assert re.search(rf"^{name.replace('-', '[-_]')}==", pinned, flags=re.MULTILINE), requirement


def test_the_image_runs_the_daemon_and_not_as_root() -> None:
    last = CONTAINERFILE.split("\nFROM ")[-1]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last, flags=re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["python", "-m", "dradriver.daemon"\]$', last, flags=re.MULTILINE)
    assert run(sys.executable, "-m", "dradriver.daemon", "--help").returncode == 0


# systemd/dradriver.service


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with a Python that is there; skips where systemd does not come with the machine."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    text = (ROOT / "systemd" / "dradriver.service").read_text()
    changed = text.replace("/opt/dradriver/bin/python", sys.executable)
    assert changed != text
    path = tmp_path / "dradriver.service"
    path.write_text(changed)
    return path


def test_systemd_understands_the_unit(unit: Path) -> None:
    verified = run("systemd-analyze", "verify", unit)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


def test_the_service_is_exposed_to_little(unit: Path) -> None:
    rated = run("systemd-analyze", "security", "--offline=true", "--threshold=25", unit)
    assert rated.returncode == 0, rated.stdout


@pytest.fixture
def unit_for_gpus(unit: Path) -> Path:
    """Return the unit with the drop-in for GPUs."""
    return with_drop_in(unit, "gpu.conf")


def with_drop_in(unit: Path, name: str) -> Path:
    """Put a drop-in beside the unit, and return the unit."""
    directory = unit.with_name("dradriver.service.d")
    directory.mkdir()
    shutil.copy(ROOT / "systemd" / "dradriver.service.d" / name, directory)
    return unit


def test_systemd_understands_the_drop_in_for_gpus(unit_for_gpus: Path) -> None:
    verified = run("systemd-analyze", "verify", unit_for_gpus)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    drop_in = unit_for_gpus.with_name("dradriver.service.d") / "gpu.conf"
    drop_in.write_text(f"{drop_in.read_text()}Nonsense=1\n")
    assert "Nonsense" in run("systemd-analyze", "verify", unit_for_gpus).stderr, "it is read at all"


def test_the_service_with_gpus_opens_devices_and_changes_them_and_no_more(unit_for_gpus: Path) -> None:
    rated = run("systemd-analyze", "security", "--offline=true", "--threshold=40", unit_for_gpus)
    assert rated.returncode == 0, rated.stdout
    marks = {name: mark for mark, name in re.findall(r"([✓✗]) (\S+)", rated.stdout)}
    opened = {
        "DeviceAllow=",
        "PrivateDevices=",
        "ProtectKernelTunables=",
        "CapabilityBoundingSet=~CAP_SYS_ADMIN",
    }
    assert {marks[name] for name in opened} == {"✗"}
    kept = {"ProtectSystem=", "ProtectHome=", "NoNewPrivileges=", "ProtectKernelModules=", "PrivateTmp="}
    assert {marks[name] for name in kept} == {"✓"}


def test_the_service_with_cards_changes_networks_and_no_more(unit: Path) -> None:
    changed = with_drop_in(unit, "nic.conf")
    verified = run("systemd-analyze", "verify", changed)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    rated = run("systemd-analyze", "security", "--offline=true", "--threshold=40", changed)
    assert rated.returncode == 0, rated.stdout
    marks = {name: mark for mark, name in re.findall(r"([✓✗]) (\S+)", rated.stdout)}
    opened = {"ProtectKernelTunables=", "RestrictNamespaces=~net", "CapabilityBoundingSet=~CAP_NET_ADMIN"}
    kept = {"PrivateDevices=", "ProtectSystem=", "NoNewPrivileges=", "RestrictNamespaces=~user"}
    assert ({marks[name] for name in opened}, {marks[name] for name in kept}) == ({"✗"}, {"✓"})


# hack/kind


def test_the_script_for_kind_says_what_is_missing(tmp_path: Path) -> None:
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    path = {"PATH": str(tmp_path)}
    script = ROOT / "hack" / "kind"
    assert (
        run(script, environment=path).stderr == "hack/kind: kind is missing: see https://kind.sigs.k8s.io\n"
    )
    assert run(script, "sideways", environment=path).stderr == "hack/kind: usage: hack/kind [up|down]\n"
    fake_tools(tmp_path, "kind")
    assert "neither docker nor podman" in run(script, environment=path).stderr
    fake_tools(tmp_path, "docker")
    assert run(script, environment=path).stderr.startswith("hack/kind: kubectl is missing")
    fake_tools(tmp_path, "kubectl")
    result = run(script, environment=path)
    assert result.stderr.startswith("hack/kind: helm is missing")
    assert result.returncode == 1


def fake_tools(directory: Path, *names: str) -> None:
    """Write tools that note how they are called, keep what they are given, and say what the script waits for."""
    for name in names:
        tool = directory / name
        tool.write_text(
            f"""#!/usr/bin/env bash
echo "{name} $*" >> {directory}/calls
case "$*" in
*"create cluster"*) cat > {directory}/cluster.yaml ;;
*"apply -f -"*) cat > /dev/null ;;
*"get resourceslices -o name"*) echo resourceslice/a ;;
*"get -f"*) echo pod/one; echo resourceclaimtemplate/one ;;
esac
"""
        )
        tool.chmod(0o755)


def test_the_script_for_kind_builds_installs_and_runs_an_example(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    fake_tools(tools, "kind", "docker", "kubectl", "helm")
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    result = run(ROOT / "hack" / "kind", environment=path)
    assert result.returncode == 0, result.stderr
    calls = (tools / "calls").read_text().splitlines()
    expected = [
        "docker build --file deployments/Containerfile",
        "kind create cluster",
        "kind load image-archive",
        "helm upgrade --install dradriver deployments/helm/dradriver",
        "kubectl --context kind-dradriver --namespace dradriver rollout status daemonset/dradriver",
        "kubectl --context kind-dradriver apply -f examples/mig-by-memory",
        "kubectl --context kind-dradriver wait --for=condition=Ready --timeout 180s pod/one",
    ]
    found = [next(n for n, call in enumerate(calls) if call.startswith(prefix)) for prefix in expected]
    assert found == sorted(found)
    cluster = yaml.safe_load((tools / "cluster.yaml").read_text())
    assert cluster["featureGates"]["DRAPartitionableDevices"] is True
    patches = [tomllib.loads(patch)["plugins"] for patch in cluster["containerdConfigPatches"]]
    assert {"io.containerd.grpc.v1.cri": {"enable_cdi": True}} in patches
    assert run(ROOT / "hack" / "kind", "down", environment=path).returncode == 0
    assert (tools / "calls").read_text().splitlines()[-1] == "kind delete cluster --name dradriver"


def test_the_script_for_kind_names_what_is_wrong_with_its_environment(tmp_path: Path) -> None:
    fake_tools(tmp_path, "kind", "docker", "kubectl", "helm")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name in ("EXAMPLE", "VALUES"):
        result = run(ROOT / "hack" / "kind", environment={**path, name: "nowhere"})
        assert result.stderr.startswith(f"hack/kind: {name}: there is no ")
