"""The chart, rendered by Helm itself: every object one that the API knows, and all of one mind."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart import (
    BINDING,
    CHART,
    EVERYTHING,
    FAKE,
    GROUPED,
    ROOTS,
    SETS,
    Object,
    classes,
    container,
    helm,
    notes,
    objects,
    only,
    render,
)
from dradriver.config import Settings, load
from dradriver.daemon import STOP_SECONDS
from dradriver_gpu.options import GpuOptions
from dradriver_nic.options import NicOptions


@pytest.fixture(params=SETS, ids=list(SETS))
def values(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    helm()
    return SETS[request.param]


def settings_of(found: list[Object], scratch: Path) -> Settings:
    """Load the rendered configuration as the daemon in the pod does."""
    config = scratch / "config.yaml"
    config.write_text(only(found, "ConfigMap")["data"]["config.yaml"])
    return load(
        config, environment={"NODE_NAME": "node-a", "POD_UID": "11111111-2222-3333-4444-555555555555"}
    )


def names(settings: Settings) -> list[str]:
    return [name for name, _ in settings.drivers]


def test_every_object_is_one_that_the_official_client_knows(values: Mapping[str, Any]) -> None:
    client = pytest.importorskip("kubernetes.client")
    for obj in render(values):
        if obj["kind"] == "PodMonitor":
            continue
        assert json.loads(getattr(client, f"V1{obj['kind']}").from_dict(obj).to_json()) == obj


def test_helm_has_nothing_to_say_of_it(values: Mapping[str, Any]) -> None:
    report = helm().lint(CHART, dict(values), strict=True, namespace="dradriver", kube_version="v1.34.0")
    assert report["errors"] == []
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_every_object_is_named_once_and_lies_in_the_namespace(values: Mapping[str, Any]) -> None:
    found = render(values)
    identities = [(obj["kind"], obj["metadata"]["name"]) for obj in found]
    assert len(set(identities)) == len(identities)
    inside = dict.fromkeys(("ServiceAccount", "ConfigMap", "DaemonSet", "PodMonitor"), "dradriver")
    inside |= dict.fromkeys(("Role", "RoleBinding"), "default")
    for obj in found:
        assert obj["metadata"].get("namespace") == inside.get(obj["kind"]), obj["kind"]


def test_the_daemon_takes_the_configuration(values: Mapping[str, Any], tmp_path: Path) -> None:
    settings = settings_of(render(values), tmp_path)
    assert settings.kubernetes is not None
    assert settings.node == "node-a"
    assert str(settings.kubelet_root) == values.get("kubeletRoot", "/var/lib/kubelet")
    assert str(settings.cdi) == values.get("cdiDirectory", "/var/run/cdi")
    if "fake" not in values.get("config", {}):
        has_gpus = any("gpu" in kinds for _, kinds in settings.drivers)
        assert str(settings.host_root) == ("/host" if has_gpus else "/")


def test_the_drivers_are_those_of_the_daemon_where_none_are_named(tmp_path: Path) -> None:
    helm()
    for values in ({}, FAKE):
        config = tmp_path / "plain.yaml"
        config.write_text(json.dumps(values.get("config", {})))
        expected = load(config, environment={"NODE_NAME": "node-a"}).drivers
        assert settings_of(render(values), tmp_path).drivers == expected


def test_what_is_said_of_backends_reaches_them_as_it_was_said(tmp_path: Path) -> None:
    helm()
    said = {
        "cpu": {"reserved": "0-1,64"},
        "memory": {"reserved": {"0": "2Gi", "1": "1e3"}},
        "other": {
            "yes": "yes",
            "octal": "0644",
            "time": "1:30",
            "number": 1000000,
            "none": None,
            "blank": "",
        },
    }
    settings = settings_of(render({"config": {"backends": said}}), tmp_path)
    assert settings.options == said


def test_all_speak_of_the_same_drivers(values: Mapping[str, Any], tmp_path: Path) -> None:
    found = render(values)
    drivers = names(settings_of(found, tmp_path))
    made = container(found)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert made[probe]["exec"]["command"][-len(drivers) :] == drivers
    policy = only(found, "ValidatingAdmissionPolicy")["spec"]
    (expression,) = [v["expression"] for v in policy["variables"] if v["name"] == "otherDrivers"]
    assert json.dumps(drivers, separators=(",", ":")) in expression
    for rule in only(found, "ClusterRole")["rules"]:
        assert rule.get("resourceNames", drivers) == drivers
    for one in classes(found).values():
        expression = one["spec"]["selectors"][0]["cel"]["expression"]
        assert any(f'device.driver == "{driver}"' in expression for driver in drivers)


# What the pod may do on its node


def test_the_pod_may_do_nothing_that_cpus_memory_and_fake_nodes_do_not_need() -> None:
    helm()
    for values in ({}, FAKE, GROUPED):
        found = render(values)
        pod = only(found, "DaemonSet")["spec"]["template"]["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
        assert container(found)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsUser": 0,
            "runAsGroup": 0,
        }
        runtime = [] if values else ["/var/run/nri"]
        assert host_paths(found) == [
            "/var/lib/kubelet/plugins",
            "/var/lib/kubelet/plugins_registry",
            "/var/run/cdi",
            *runtime,
        ]


def host_paths(found: list[Object]) -> list[str]:
    volumes = only(found, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
    return [volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume]


def driver(*kinds: str) -> dict[str, Any]:
    return {"drivers": [{"name": "a.example.com", "backends": list(kinds)}]}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "/var/run/nri"),
        ({"nri": {"enabled": "auto", "index": "07"}}, "/var/run/nri"),
        ({"nri": {"socket": "/run/other/nri.sock"}}, "/run/other"),
        ({"nri": {"enabled": False}}, None),
        (driver("memory"), "/var/run/nri"),
        (driver("gpu"), None),
        (driver("gpu") | {"nri": {"enabled": True}}, "/var/run/nri"),
        ({"fake": {"node": "dgx-h100"}}, None),
        ({"fake": {"node": "dgx-h100"}, "nri": {"enabled": True}}, "/var/run/nri"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_the_runtimes_socket_is_seen_where_it_is_needed(
    config: dict[str, Any], expected: str | None, tmp_path: Path
) -> None:
    """Its directory, which may come before the socket does, and is there when the runtime makes another one."""
    helm()
    found = render({"config": config})
    runtime = settings_of(found, tmp_path).runtime
    volumes = only(found, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
    made = [volume for volume in volumes if volume.get("hostPath", {}).get("path") == expected]
    mounts = container(found)["volumeMounts"]
    if expected is None:
        assert not [mount for mount in mounts if "nri" in mount["mountPath"]]
        return
    assert runtime.join
    assert str(runtime.socket.parent) == expected
    (volume,) = made
    assert volume["hostPath"]["type"] == "DirectoryOrCreate"
    assert {"name": volume["name"], "mountPath": expected} in mounts


def test_cards_need_the_hosts_network_its_kernel_settings_and_the_runtime(tmp_path: Path) -> None:
    helm()
    found = render({"config": driver("nic")})
    pod = only(found, "DaemonSet")["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True
    # A container that is not privileged has /sys and /proc/sys read-only.
    assert container(found)["securityContext"] == {
        "privileged": True,
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "runAsGroup": 0,
    }
    mounts = {mount["mountPath"]: mount for mount in container(found)["volumeMounts"]}
    assert mounts["/var/run/netns"]["mountPropagation"] == "HostToContainer"
    settings = settings_of(found, tmp_path)
    assert settings.runtime.join
    assert str(settings.runtime.socket.parent) in mounts
    kept = NicOptions().run_directory
    for path in (kept, f"{settings.host_root}{kept}"):
        assert mounts[path].keys() == {"name", "mountPath"}, "it is written there"


def test_gpus_need_device_nodes_and_no_network() -> None:
    helm()
    found = render({"config": driver("gpu")})
    assert "hostNetwork" not in only(found, "DaemonSet")["spec"]["template"]["spec"]
    assert container(found)["securityContext"] == {
        "privileged": True,
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "runAsGroup": 0,
    }
    assert "/dev" in [mount["mountPath"] for mount in container(found)["volumeMounts"]]


def test_the_driver_of_gpus_is_found_below_the_host_root_and_what_is_kept_of_them_is_written_there(
    tmp_path: Path,
) -> None:
    helm()
    found = render({"config": driver("gpu", "cpu")})
    settings = settings_of(found, tmp_path)
    volumes = {
        volume["name"]: volume["hostPath"]
        for volume in only(found, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
        if "hostPath" in volume
    }
    mounts = container(found)["volumeMounts"]
    (whole,) = [mount for mount in mounts if mount["mountPath"] == str(settings.host_root)]
    assert volumes[whole["name"]] == {"path": "/", "type": "Directory"}
    assert (whole["readOnly"], whole["mountPropagation"]) == (True, "HostToContainer")
    kept = GpuOptions().run_directory
    for path in (kept, f"{settings.host_root}{kept}"):
        (mount,) = [one for one in mounts if one["mountPath"] == path]
        assert mount.keys() == {"name", "mountPath"}
        assert volumes[mount["name"]] == {"path": kept, "type": "DirectoryOrCreate"}


def test_the_whole_host_is_seen_for_hardware_that_is_there_only() -> None:
    helm()
    for values in ({}, FAKE, GROUPED):
        assert "/" not in host_paths(render(values))


def test_a_backend_of_ones_own_gets_what_it_needs_only_while_it_is_used() -> None:
    helm()
    access = {"access": {"scratch": {"capabilities": ["CHOWN"], "paths": [{"path": "/s", "readOnly": True}]}}}
    for used in (True, False):
        found = render({**access, "config": driver(*(["scratch"] if used else ["cpu"]))})
        capabilities = container(found)["securityContext"]["capabilities"]
        assert capabilities == {"drop": ["ALL"], **({"add": ["CHOWN"]} if used else {})}
        mounts = [mount for mount in container(found)["volumeMounts"] if mount["mountPath"] == "/s"]
        assert mounts == ([{"name": "host-0", "mountPath": "/s", "readOnly": True}] if used else [])


def test_every_mount_has_its_volume_and_a_place_of_its_own(values: Mapping[str, Any]) -> None:
    found = render(values)
    mounts = container(found)["volumeMounts"]
    volumes = [volume["name"] for volume in only(found, "DaemonSet")["spec"]["template"]["spec"]["volumes"]]
    assert {mount["name"] for mount in mounts} == set(volumes)
    assert len(set(volumes)) == len(volumes)
    places = [mount["mountPath"] for mount in mounts]
    assert len(set(places)) == len(places)


def test_the_kubelets_directories_are_at_the_same_path_inside_and_outside(values: Mapping[str, Any]) -> None:
    found = render(values)
    pod = only(found, "DaemonSet")["spec"]["template"]["spec"]
    outside = {
        volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume
    }
    inside = {
        mount["name"]: mount["mountPath"]
        for mount in container(found)["volumeMounts"]
        if not mount["mountPath"].startswith("/host/")
    }
    root = values.get("kubeletRoot", "/var/lib/kubelet")
    assert {f"{root}/plugins", f"{root}/plugins_registry", values.get("cdiDirectory", "/var/run/cdi")} <= set(
        outside.values()
    )
    outside.pop("host-root", None)
    assert all(inside[name] == path for name, path in outside.items())


# Updates


def test_one_daemon_takes_over_from_another_without_a_gap(values: Mapping[str, Any]) -> None:
    found = render(values)
    spec = only(found, "DaemonSet")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    made = container(found)
    # A port of the host would keep the second pod from the node.
    assert "ports" not in made
    variables = {one["name"]: one for one in made["env"]}
    assert variables["POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert variables["NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > STOP_SECONDS
    assert spec["template"]["spec"]["priorityClassName"] == "system-node-critical"
    assert spec["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_another_configuration_means_other_pods_and_another_image_does_not_mean_another_configuration() -> (
    None
):
    helm()

    def checksum(values: Mapping[str, Any]) -> str:
        annotations = only(render(values), "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/config"])

    assert checksum({}) == checksum({"image": {"tag": "other"}})
    sums = {checksum(values) for values in ({}, {"config": {"log": {"level": "debug"}}}, ROOTS, FAKE)}
    assert len(sums) == 4


def test_the_daemonset_finds_its_pods_and_no_others(values: Mapping[str, Any]) -> None:
    spec = only(render(values), "DaemonSet")["spec"]
    selector, labels = spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    # A selector can never be changed: nothing that changes may be in it.
    assert set(selector) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}


def test_two_releases_keep_apart() -> None:
    helm()
    first, second = render({}, "one"), render({}, "two")
    shared = {(obj["kind"], obj["metadata"]["name"]) for obj in first} & {
        (obj["kind"], obj["metadata"]["name"]) for obj in second
    }
    assert {kind for kind, _ in shared} == {"DeviceClass"}


# Rights


def rules(values: Mapping[str, Any], kind: str = "ClusterRole") -> dict[str, list[str]]:
    """Return the verbs by resource."""
    found = {}
    for rule in only(render(values), kind)["rules"]:
        (group,), (resource,) = rule["apiGroups"], rule["resources"]
        assert group == ("" if resource in {"nodes", "events"} else "resource.k8s.io")
        found[resource] = rule["verbs"]
    return found


LEAST = {
    "resourceslices": ["get", "list", "watch", "create", "update", "delete"],
    "resourceclaims": ["get"],
    "nodes": ["get"],
}
STATUS = {
    "resourceclaims/status": ["patch"],
    "resourceclaims/driver": ["associated-node:patch", "associated-node:update"],
}


def test_the_rights_are_the_least_that_do() -> None:
    helm()
    assert rules({}) == LEAST | STATUS
    assert rules({"config": {"kubernetes": {"claimStatus": False}}}) == LEAST
    watching = {"resourceclaims": ["get", "list", "watch"]}
    assert rules(BINDING) == LEAST | STATUS | watching
    both = {"config": {"kubernetes": {"bindingConditions": True, "claimStatus": False}}}
    assert rules(both) == LEAST | STATUS | watching
    # Events of nodes, which are in the namespace `default`, and no others.
    assert rules({}, "Role") == {"events": ["create"]}


def test_the_status_of_other_drivers_devices_is_out_of_reach(
    values: Mapping[str, Any], tmp_path: Path
) -> None:
    found = render(values)
    for rule in only(found, "ClusterRole")["rules"]:
        if rule["resources"] == ["resourceclaims/driver"]:
            assert rule["resourceNames"] == names(settings_of(found, tmp_path))


def test_account_role_pod_and_policy_mean_the_same_account(values: Mapping[str, Any]) -> None:
    found = render(values)
    account = only(found, "ServiceAccount")["metadata"]["name"]
    assert only(found, "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"] == account
    for kind in ("ClusterRole", "Role"):
        binding = only(found, f"{kind}Binding")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "dradriver"}]
        role = only(found, kind)["metadata"]["name"]
        assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    policy = only(found, "ValidatingAdmissionPolicy")
    (condition,) = policy["spec"]["matchConditions"]
    assert (
        condition["expression"] == f'request.userInfo.username == "system:serviceaccount:dradriver:{account}"'
    )
    policy_binding = only(found, "ValidatingAdmissionPolicyBinding")
    assert policy_binding["spec"]["policyName"] == policy["metadata"]["name"]


def test_what_others_made_is_used() -> None:
    helm()
    found = render(
        {
            "rbac": {"create": False},
            "serviceAccount": {"create": False, "name": "given"},
            "admissionPolicy": {"create": False},
        }
    )
    assert {obj["kind"] for obj in found} == {"ConfigMap", "DeviceClass", "DaemonSet"}
    assert only(found, "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"] == "given"


# Classes


def test_each_class_stands_for_a_backend_in_use() -> None:
    helm()
    usual = ["cpu", "cpu-isolated", "memory", "hugepages"]
    assert set(classes(render())) == {f"{name}.dradriver.io" for name in usual}
    hardware = {f"{name}.dradriver.io" for name in [*usual, "gpu", "mig", "nic", "nic-vf"]}
    assert set(classes(render(FAKE))) == hardware
    made = classes(render(EVERYTHING))
    assert set(made) == hardware - {"memory.dradriver.io"} | {"rails.example.com"}
    assert made["gpu.dradriver.io"]["spec"]["extendedResourceName"] == "dradriver.io/gpu"
    assert made["cpu.dradriver.io"]["spec"]["config"] == [
        {
            "opaque": {
                "driver": "cpu.dradriver.io",
                "parameters": {"apiVersion": "dradriver.io/v1alpha1", "kind": "CpuConfig", "memory": "any"},
            }
        }
    ]
    assert [name for name, one in made.items() if "extendedResourceName" in one["spec"]] == [
        "cpu.dradriver.io",
        "gpu.dradriver.io",
    ]


# The rest


def test_metrics_are_served_where_they_are_looked_for(tmp_path: Path) -> None:
    found = render({"metrics": {"enabled": True, "port": 9200, "podMonitor": {"create": True}}})
    assert only(found, "ConfigMap")["data"]["config.yaml"].endswith("metrics:\n  address: :9200\n")
    served = settings_of(found, tmp_path).metrics
    assert served
    assert served[1] == 9200
    monitor = only(found, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= (
        only(found, "DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    )
    (endpoint,) = monitor["podMetricsEndpoints"]
    addresses = [rule["replacement"] for rule in endpoint["relabelings"] if "replacement" in rule]
    assert addresses == ["$1:9200", "[$1]:9200"]


def test_without_metrics_nothing_is_served(tmp_path: Path) -> None:
    assert settings_of(render(), tmp_path).metrics is None


def test_what_the_installer_is_told() -> None:
    helm()
    assert "serves cpu.dradriver.io, memory.dradriver.io.\n" in notes()
    assert "of a fake node, dgx-h100.\n" in notes(FAKE)
    assert "every slice of the cluster can be changed" in notes({"admissionPolicy": {"create": False}})


def test_the_image_is_the_tag_or_better_the_digest() -> None:
    helm()
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert container(render())["image"] == f"dradriver:{version}"
    assert container(render({"image": {"repository": "r.example.com:5000/d", "tag": "v2"}}))["image"] == (
        "r.example.com:5000/d:v2"
    )
    assert container(render(EVERYTHING))["image"].endswith("/dradriver@sha256:" + 64 * "a")


def test_a_key_that_stands_twice_would_be_seen() -> None:
    with pytest.raises(AssertionError, match="twice"):
        objects(["a: 1\na: 2\n"])
