"""The chart as Helm renders it, for tests: objects by kind and name."""

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml
from celpy.adapter import json_to_cel

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deployments" / "helm" / "dradriver"
MANIFESTS = ROOT / "deployments" / "manifests"
ACCOUNT = "system:serviceaccount:dradriver:dradriver"

Object = dict[str, Any]


def helm() -> Any:
    """Return the package that embeds Helm; skips the test where it is not installed."""
    return pytest.importorskip("helm_python", reason="helm-python-sdk, which embeds Helm, is not installed")


def values_file(name: str) -> dict[str, Any]:
    """Return one of the chart's example values."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values" / name).read_text())
    return found


def render(values: Mapping[str, Any] | None = None, name: str = "dradriver") -> list[Object]:
    """Return the objects that Helm makes of the values, in the namespace `dradriver`."""
    # Rendered once for all tests that want the same.
    return objects(_render(json.dumps(values or {}), name).values())


def notes(values: Mapping[str, Any] | None = None) -> str:
    """Return what an installation is told."""
    return _render(json.dumps(values or {}), "dradriver", everything=True)["dradriver/templates/NOTES.txt"]


def objects(texts: Iterable[str]) -> list[Object]:
    """Return the objects of some YAML texts; one that is empty has none."""
    return [document for text in texts for document in yaml.load_all(text, _Once) if document]


def only(found: Iterable[Object], kind: str) -> Object:
    """Return the single object of that kind."""
    (one,) = [obj for obj in found if obj["kind"] == kind]
    return one


def container(found: Iterable[Object]) -> Object:
    """Return the container of the DaemonSet."""
    (one,) = only(found, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(one, dict)
    return one


def classes(found: Iterable[Object]) -> dict[str, Object]:
    """Return the DeviceClasses by name."""
    return {obj["metadata"]["name"]: obj for obj in found if obj["kind"] == "DeviceClass"}


def evaluate(expression: str, seen: Mapping[str, Any]) -> Any:
    """Return the value of a CEL expression. Raises celpy.CELEvalError."""
    return _program(expression).evaluate({name: to_cel(value) for name, value in seen.items()})


def to_cel(value: Any) -> Any:
    """Return JSON as CEL's own types; what is one already stays."""
    return (
        value if isinstance(value, celpy.celtypes.MapType | celpy.celtypes.ListType) else json_to_cel(value)
    )


@functools.cache
def _program(expression: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


@functools.cache
def _chart() -> Any:
    return helm().Chart.load(CHART)


@functools.cache
def _render(values: str, name: str, *, everything: bool = False) -> dict[str, str]:
    rendered: dict[str, str] = _chart().render(json.loads(values), name=name, namespace="dradriver")
    return {path: text for path, text in rendered.items() if everything or path.endswith(".yaml")}


class _Once(yaml.SafeLoader):
    """Refuses a key that stands twice, of which the API server would see the last only."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"{node.start_mark}: {twice} stand twice"
        return super().construct_mapping(node, deep)


# Values to render with

FAKE = values_file("fake.yaml")
GPU_NIC = values_file("gpu-nic.yaml")
ROOTS = {"kubeletRoot": "/mnt/kubelet", "cdiDirectory": "/run/cdi"}
BINDING = {"config": {"kubernetes": {"bindingConditions": True}}}
GROUPED = {
    "config": {
        "drivers": [{"name": "devices.example.com", "backends": ["memory", "cpu", "nic", "gpu"]}],
        "fake": {"node": "telco-edge", "gpuMode": "shares"},
        "kubernetes": {"qps": 7.5, "burst": 1000, "claimStatus": False},
        "backends": {"cpu": {"reserved": "0"}, "memory": {"reserved": {"0": "2Gi"}}},
        "log": {"level": "debug", "format": "json"},
    }
}
EVERYTHING = {
    **GPU_NIC,
    "nameOverride": "dra",
    "image": {"repository": "registry.example.com/dradriver", "digest": "sha256:" + 64 * "a"},
    "imagePullSecrets": [{"name": "pull"}],
    "serviceAccount": {"name": "account", "annotations": {"example.com/a": "b"}},
    "metrics": {
        "enabled": True,
        "port": 9200,
        "podMonitor": {"create": True, "labels": {"release": "prometheus"}},
    },
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    },
    "podSecurityContext": {"fsGroup": 0},
    "securityContext": {"seLinuxOptions": {"type": "spc_t"}},
    "podAnnotations": {"example.com/a": "1"},
    "podLabels": {"example.com/b": "2"},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "more", "hostPath": {"path": "/more"}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "deviceClasses": {
        **GPU_NIC["deviceClasses"],
        "cpu": {
            "config": {"apiVersion": "dradriver.io/v1alpha1", "kind": "CpuConfig", "memory": "any"},
            "extendedResourceName": "example.com/cpu",
        },
        "memory": {"create": False},
        "rails": {
            "name": "rails.example.com",
            "backend": "nic",
            "expression": 'device.driver == "{{ .driver }}"',
        },
    },
}
SETS: dict[str, Mapping[str, Any]] = {
    "default": {},
    "fake": FAKE,
    "gpu and nic": GPU_NIC,
    "another kubelet root": ROOTS,
    "binding conditions": BINDING,
    "metrics": {"metrics": {"enabled": True, "podMonitor": {"create": True}}},
    "one driver for all": GROUPED,
    "everything": EVERYTHING,
}
