"""Rules for DeviceClasses.

Facts: pkg/apis/resource/validation `validateDeviceClassSpec`, pkg/registry/resource/deviceclass, k8s.io/
component-helpers `IsExtendedResourceName`.
"""

from collections.abc import Mapping
from typing import Any, Final

from dradriver.sim.apiserver.rules import gates, names
from dradriver.sim.apiserver.rules.claims import check_selectors
from dradriver.sim.apiserver.rules.errors import Problems
from dradriver.sim.apiserver.rules.gates import Gates
from dradriver.sim.apiserver.rules.lists import check_opaque, few_enough

_MAX_CONFIGS: Final = 32
_QUOTA_PREFIX: Final = "requests."

Body = Mapping[str, Any]


def drop_disabled(spec: dict[str, Any], existing: Body | None, on: Gates) -> None:
    """Drop the fields of features that are off, silently, unless the existing class uses the feature already."""
    if gates.EXTENDED_RESOURCE not in on and (existing or {}).get("extendedResourceName") is None:
        spec.pop("extendedResourceName", None)


def check_spec(problems: Problems, spec: Body, on: Gates, *, kept: frozenset[str] = frozenset()) -> None:
    """Check the spec of a class; what is in the fields that are `kept` was right when it was stored."""
    check_selectors(problems, "spec.selectors", spec.get("selectors") or (), on, kept="selectors" in kept)
    configs = spec.get("config") or ()
    if few_enough(problems, "spec.config", configs, _MAX_CONFIGS):
        for index, config in enumerate(configs):
            check_opaque(problems, f"spec.config[{index}]", config, kept="config" in kept)
    name = spec.get("extendedResourceName")
    if name is not None and not _is_extended_resource(name):
        problems.invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


def _is_extended_resource(name: str) -> bool:
    if "/" not in name or "kubernetes.io/" in name or name.startswith(_QUOTA_PREFIX):
        return False
    # It must also do as the name of a quota, which has the prefix.
    return not names.label_key(f"{_QUOTA_PREFIX}{name}")
