"""values.schema.json: what is wrong is refused before anything is installed, with the name of the value."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from chart import CHART, helm, render
from dradriver.config import Config, DriverConfig, Kubernetes, Log, Nri
from dradriver_fake import FakeOptions

SCHEMA = json.loads((CHART / "values.schema.json").read_text())

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"kubeletroot": "/var/lib/kubelet"}, "kubeletroot"),
    ({"kubeletRoot": "var/lib/kubelet"}, "/kubeletRoot"),
    ({"kubeletRoot": "/var/lib/kubelet/"}, "/kubeletRoot"),
    ({"kubeletRoot": "/var/../etc"}, "/kubeletRoot"),
    ({"kubeletRoot": "/" + 60 * "k"}, "/kubeletRoot"),
    ({"cdiDirectory": ""}, "/cdiDirectory"),
    ({"image": {"repository": ""}}, "/image/repository"),
    ({"image": {"tag": "a b"}}, "/image/tag"),
    ({"image": {"digest": "abc"}}, "/image/digest"),
    ({"image": {"pullPolicy": "always"}}, "/image/pullPolicy"),
    ({"imagePullSecrets": ["pull"]}, "/imagePullSecrets/0"),
    ({"config": {"node": "worker-1"}}, "'node'"),
    ({"config": {"hostRoot": "/host"}}, "'hostRoot'"),
    ({"config": {"standalone": {}}}, "'standalone'"),
    ({"config": {"kubeletRoot": "/k"}}, "'kubeletRoot'"),
    ({"config": {"rescanSeconds": 0}}, "/config/rescanSeconds"),
    ({"config": {"rescanSeconds": "30"}}, "/config/rescanSeconds"),
    ({"config": {"drivers": []}}, "/config/drivers"),
    ({"config": {"drivers": [{"name": "GPU", "backends": ["gpu"]}]}}, "/config/drivers/0/name"),
    ({"config": {"drivers": [{"name": 64 * "a", "backends": ["gpu"]}]}}, "/config/drivers/0/name"),
    ({"config": {"drivers": [{"name": "a.b", "backends": []}]}}, "/config/drivers/0/backends"),
    ({"config": {"drivers": [{"name": "a.b"}]}}, "backends"),
    ({"config": {"kubernetes": {"kubeconfig": "/k"}}}, "'kubeconfig'"),
    ({"config": {"kubernetes": {"qps": 0}}}, "/config/kubernetes/qps"),
    ({"config": {"kubernetes": {"claimStatus": "yes"}}}, "/config/kubernetes/claimStatus"),
    ({"config": {"fake": {}}}, "/config/fake"),
    ({"config": {"fake": {"node": "dgx-h100", "directory": "/d"}}}, "'directory'"),
    ({"config": {"nri": {"enabled": "yes"}}}, "/config/nri/enabled"),
    ({"config": {"nri": {"socket": "nri.sock"}}}, "/config/nri/socket"),
    ({"config": {"nri": {"socket": "/nri.sock"}}}, "/config/nri/socket"),
    ({"config": {"nri": {"index": 50}}}, "/config/nri/index"),
    ({"config": {"nri": {"index": "5"}}}, "/config/nri/index"),
    ({"config": {"nri": {"name": "dradriver"}}}, "'name'"),
    ({"config": {"log": {"level": "loud"}}}, "/config/log/level"),
    ({"access": {"nic": {"capabilities": ["CAP_NET_ADMIN"]}}}, "/access/nic/capabilities/0"),
    ({"access": {"nic": {"capabilities": ["net_admin"]}}}, "/access/nic/capabilities/0"),
    ({"access": {"nic": {"hostPID": True}}}, "'hostPID'"),
    ({"access": {"gpu": {"hostRoot": "/host"}}}, "/access/gpu/hostRoot"),
    ({"access": {"cpu": {"nri": "/var/run/nri"}}}, "/access/cpu/nri"),
    ({"access": {"gpu": {"mpsKeeper": "yes"}}}, "/access/gpu/mpsKeeper"),
    ({"access": {"gpu": {"paths": ["/dev"]}}}, "/access/gpu/paths/0"),
    ({"access": {"gpu": {"paths": [{"path": "/"}]}}}, "/access/gpu/paths/0/path"),
    ({"access": {"gpu": {"paths": [{"path": "/dev", "propagation": "Both"}]}}}, "/access/gpu/paths/0"),
    ({"deviceClasses": {"mine": {"name": "mine", "backend": "gpu"}}}, "expression"),
    ({"deviceClasses": {"gpu": {"name": "GPU"}}}, "/deviceClasses/gpu/name"),
    ({"deviceClasses": {"gpu": {"extendedResourceName": "gpu"}}}, "/deviceClasses/gpu/extendedResourceName"),
    ({"deviceClasses": {"gpu": {"config": {"kind": "GpuConfig"}}}}, "apiVersion"),
    ({"serviceAccount": {"name": "A"}}, "/serviceAccount/name"),
    ({"admissionPolicy": {"create": "false"}}, "/admissionPolicy/create"),
    ({"metrics": {"port": 0}}, "/metrics/port"),
    ({"metrics": {"port": 70000}}, "/metrics/port"),
    ({"metrics": {"podMonitor": {"interval": "often"}}}, "/metrics/podMonitor/interval"),
    ({"tolerations": {"operator": "Exists"}}, "/tolerations"),
    ({"nodeSelector": {"a": 1}}, "/nodeSelector/a"),
    ({"updateStrategy": {"type": "Recreate"}}, "/updateStrategy/type"),
    ({"updateStrategy": {"rollingUpdate": {"maxSurge": "some"}}}, "/updateStrategy/rollingUpdate/maxSurge"),
    ({"terminationGracePeriodSeconds": 0}, "/terminationGracePeriodSeconds"),
    ({"resources": {"request": {}}}, "'request'"),
    ({"probes": {"liveness": {"timeoutSeconds": 1}}}, "/probes/liveness/timeoutSeconds"),
    ({"probes": {"liveness": {"httpGet": {}}}}, "'httpGet'"),
    ({"podAnnotations": {"a": 1}}, "/podAnnotations/a"),
    ({"extraEnv": [{"value": "1"}]}, "/extraEnv/0"),
]


@pytest.mark.parametrize(("values", "named"), WRONG, ids=lambda value: json.dumps(value)[:60])
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm().HelmValuesError) as caught:
        render(values)
    assert named in str(caught.value)


def test_a_default_can_be_taken_away() -> None:
    helm()
    found = render({"deviceClasses": {"memory": None}, "nodeSelector": {"kubernetes.io/os": None}})
    assert "memory.dradriver.io" not in [obj["metadata"]["name"] for obj in found]


def test_the_chart_can_be_part_of_another() -> None:
    helm()
    assert render({"global": {"imageRegistry": "registry.example.com"}}) == render()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"metrics": {"podMonitor": {"create": True}}}, "metrics.podMonitor.create: needs metrics.enabled"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name: is needed"),
    ],
)
def test_values_that_do_not_go_together_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm().HelmRenderError, match=re.escape(said)):
        render(values)


def fields(kind: type[msgspec.Struct], *left_out: str) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)} - set(left_out)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        # What the chart sets itself, or what would not be in the pod.
        (
            "",
            fields(Config, "node", "hostRoot", "kubeletRoot", "state", "cdi", "standalone", "metrics"),
        ),
        ("drivers/items", fields(DriverConfig)),
        ("kubernetes", fields(Kubernetes, "kubeconfig", "context", "serviceAccount")),
        ("nri", fields(Nri)),
        ("log", fields(Log)),
        ("fake", fields(FakeOptions, "directory")),
    ],
)
def test_the_configuration_in_the_values_has_the_fields_of_the_daemons(path: str, expected: set[str]) -> None:
    schema: Mapping[str, Any] = SCHEMA["definitions"]["config"]
    for part in filter(None, path.split("/")):
        schema = schema["items"] if part == "items" else schema["properties"][part]
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() == expected


def test_nothing_is_let_through_that_is_not_described() -> None:
    """Every object of the schema that the chart itself reads is closed."""
    kubernetes_own = {"affinity", "podSecurityContext", "securityContext", "global"}

    def check(schema: Mapping[str, Any], where: str) -> None:
        if schema.get("type") == "object" and "properties" in schema and "required" not in schema:
            assert schema.get("additionalProperties") is False, where
        for name, inner in schema.get("properties", {}).items():
            if name not in kubernetes_own:
                check(inner, f"{where}/{name}")

    check(SCHEMA, "")
    for name, definition in SCHEMA["definitions"].items():
        check(definition, name)
