"""The keeper of MPS control daemons as the chart deploys it: beside the daemon, and not replaced with it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart import CHART, FAKE, Object, helm, notes, only, render, values_file
from dradriver.config import load
from dradriver_gpu.mps.__main__ import arguments_of
from dradriver_gpu.options import GpuOptions

ON: Mapping[str, Any] = values_file("gpu-mps.yaml")
ELSEWHERE: Mapping[str, Any] = {
    **ON,
    "nameOverride": "dra",
    "config": {
        **ON["config"],
        "backends": {"gpu": {"driverRoot": "/run/nvidia/driver", "runDirectory": "/run/gpu"}},
    },
    "image": {"repository": "registry.example.com/dradriver", "tag": "v2"},
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"gpu": "yes"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    },
    "securityContext": {"seLinuxOptions": {"type": "spc_t"}},
    "podLabels": {"example.com/b": "2"},
    "podAnnotations": {"example.com/a": "1"},
}


def both(values: Mapping[str, Any]) -> tuple[Object, Object]:
    """Return the DaemonSets of the daemon and of the keeper."""
    helm()
    sets = [obj for obj in render(values) if obj["kind"] == "DaemonSet"]
    assert len(sets) == 2
    keeper = next(one for one in sets if one["metadata"]["name"].endswith("-mps-keeper"))
    return next(one for one in sets if one is not keeper), keeper


def container(one: Object) -> Object:
    (found,) = one["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "values",
    [
        {},
        FAKE,
        {"access": {"gpu": {"mpsKeeper": True}}},
        {**FAKE, "access": {"gpu": {"mpsKeeper": True}}},
        {"config": ON["config"]},
    ],
    ids=["default", "fake", "no GPUs", "fake GPUs", "off"],
)
def test_it_is_there_only_where_it_is_wanted_and_of_use(values: Mapping[str, Any], tmp_path: Path) -> None:
    helm()
    found = render(values)
    assert only(found, "DaemonSet")["metadata"]["name"] == "dradriver"
    assert "mpsLauncher" not in only(found, "ConfigMap")["data"]["config.yaml"]
    assert "mps-keeper" not in notes(values)


@pytest.mark.parametrize("values", [ON, ELSEWHERE], ids=["plain", "all else"])
def test_the_api_and_helm_know_it(values: Mapping[str, Any]) -> None:
    client = pytest.importorskip("kubernetes.client")
    _, keeper = both(values)
    assert json.loads(client.V1DaemonSet.from_dict(keeper).to_json()) == keeper
    report = helm().lint(CHART, dict(values), strict=True, namespace="dradriver", kube_version="v1.34.0")
    assert report["errors"] == []


@pytest.mark.parametrize("values", [ON, ELSEWHERE], ids=["plain", "all else"])
def test_it_is_replaced_by_hand_only_and_runs_where_the_daemon_runs(values: Mapping[str, Any]) -> None:
    daemon, keeper = both(values)
    assert keeper["spec"]["updateStrategy"] == {"type": "OnDelete"}
    theirs, its = daemon["spec"]["template"]["spec"], keeper["spec"]["template"]["spec"]
    for field in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "imagePullSecrets"):
        assert its.get(field) == theirs.get(field), field
    assert container(keeper)["image"] == container(daemon)["image"]
    assert "livenessProbe" not in container(keeper)
    assert "limits" not in container(keeper)["resources"]
    # What ends daemons at the end: waiting for callers, a command that hangs, two signals.
    assert its["terminationGracePeriodSeconds"] > 25 + 5 + 10


def test_its_pods_are_not_taken_for_the_daemons() -> None:
    for values in (ON, ELSEWHERE):
        daemon, keeper = both(values)
        for one, other in ((daemon, keeper), (keeper, daemon)):
            selector = one["spec"]["selector"]["matchLabels"]
            assert selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
            assert not selector.items() <= other["spec"]["template"]["metadata"]["labels"].items()
            assert set(selector) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}


def test_names_stay_names_however_long_the_release_is_called() -> None:
    helm()
    sets = [
        obj for obj in render({**ON, "nameOverride": 63 * "n"}, name="r" * 53) if obj["kind"] == "DaemonSet"
    ]
    for one in sets:
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert all(len(value) <= 63 for value in (one["metadata"]["name"], *labels.values()))


@pytest.mark.parametrize(("values", "directory"), [(ON, "/run/dradriver-gpu"), (ELSEWHERE, "/run/gpu")])
def test_it_sees_the_host_and_nothing_of_the_cluster(values: Mapping[str, Any], directory: str) -> None:
    _, keeper = both(values)
    pod, made = keeper["spec"]["template"]["spec"], container(keeper)
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & pod.keys()
    extra = {"seLinuxOptions": {"type": "spc_t"}} if values is ELSEWHERE else {}
    assert made["securityContext"] == {
        "privileged": True,
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "runAsGroup": 0,
        **extra,
    }
    volumes = {volume["name"]: volume["hostPath"] for volume in pod["volumes"]}
    assert volumes == {
        "host-root": {"path": "/", "type": "Directory"},
        "run": {"path": directory, "type": "DirectoryOrCreate"},
    }
    assert made["volumeMounts"] == [
        {
            "name": "host-root",
            "mountPath": "/host",
            "readOnly": True,
            "mountPropagation": "HostToContainer",
        },
        {"name": "run", "mountPath": f"/host{directory}"},
    ]


@pytest.mark.parametrize("values", [ON, ELSEWHERE], ids=["plain", "all else"])
def test_it_goes_by_the_daemons_configuration(values: Mapping[str, Any], tmp_path: Path) -> None:
    helm()
    config = tmp_path / "config.yaml"
    config.write_text(only(render(values), "ConfigMap")["data"]["config.yaml"])
    settings = load(config, environment={"NODE_NAME": "node-a", "POD_UID": "u"})
    told = settings.options["gpu"]
    assert told["mpsLauncher"] == "pod"
    _, keeper = both(values)
    made = container(keeper)
    for command, check in (
        (made["command"], False),
        (made["readinessProbe"]["exec"]["command"], True),
    ):
        assert command[:3] == ["python", "-m", "dradriver_gpu.mps"]
        options = arguments_of(command[3:])
        assert options.host_root == settings.host_root
        assert options.driver_root == told.get("driverRoot", GpuOptions().driver_root)
        assert options.run_directory == told.get("runDirectory", GpuOptions().run_directory)
        assert options.check == check


def test_a_launcher_that_somebody_chose_stays() -> None:
    helm()
    config = {**ON["config"], "backends": {"gpu": {"mpsLauncher": "process"}, "cpu": {"reserved": "0"}}}
    text = only(render({**ON, "config": config}), "ConfigMap")["data"]["config.yaml"]
    backends = yaml.safe_load(text)["backends"]
    assert backends == {"gpu": {"mpsLauncher": "process"}, "cpu": {"reserved": "0"}}


def test_the_installer_is_told_what_a_deleted_pod_means() -> None:
    helm()
    assert "Pods of dradriver-mps-keeper are replaced only when they are deleted" in notes(ON)
