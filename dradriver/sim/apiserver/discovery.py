"""What the server says that it serves: groups, resources, its version, and enough OpenAPI for kubectl. Pure.

kubectl asks the OpenAPI v3 documents whether the server checks fields itself (the `fieldValidation` parameter of a
PATCH); then it sends objects without checking them on its own side. A List it checks by the v2 document, which it reads
as protobuf, and lets pass what is not in there.

Facts: k8s.io/api/apidiscovery/v2, metav1.APIGroupList and APIResourceList; kubectl's query_param_verifier.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dradriver.sim.apiserver.kinds import Kind

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

# Without strategic merge patches, which kubectl would calculate from schemas that are not here.
_PATCHES: Final = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
)
PROTOBUF_V2: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
EMPTY_V2: Final = b"\x0a\x032.0"
"""An OpenAPI v2 document without paths and definitions, as protobuf (gnostic's openapi.v2.Document)."""

_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")


def version_info(version: str) -> dict[str, str]:
    """Return the answer of /version for a server of `version`, as "1.36" or "1.36.2"."""
    parts = [*version.removeprefix("v").split("."), "0"]
    major, minor, patch = parts[:3]
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(max(0, int(minor) - 1)),
        "gitVersion": f"v{major}.{minor}.{patch}",
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "dradriver.sim",
        "compiler": "none",
        "platform": "linux/amd64",
    }


class Discovery:
    """The discovery documents for these kinds."""

    def __init__(self, kinds: Iterable[Kind], version: str) -> None:
        self._kinds = tuple(kinds)
        self._version = version

    def document(self, path: str, aggregated: bool) -> dict[str, Any] | None:
        """Return the document at a path, None where there is none."""
        if path in {"/api", "/apis"} and aggregated:
            return self._aggregated(core=path == "/api")
        if path == "/api":
            return {
                "kind": "APIVersions",
                "versions": ["v1"],
                "serverAddressByClientCIDRs": [],
            }
        if path == "/apis":
            groups = [self._group(group) for group in self._groups() if group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if path == "/openapi/v3":
            return self._openapi_paths()
        if path == "/openapi/v2":
            return self._openapi_v2()
        return self._below(path)

    def _below(self, path: str) -> dict[str, Any] | None:
        """Return the document of one group, of one version, or the OpenAPI document of one version."""
        if path.startswith("/openapi/v3/"):
            prefix = path.removeprefix("/openapi/v3")
            kinds = [kind for kind in self._kinds if kind.prefix == prefix]
            return self._openapi_v3(kinds) if kinds else None
        parts = path.strip("/").split("/")
        if len(parts) == 2 and parts[0] == "apis" and parts[1] in self._groups():
            return {"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1])}
        kinds = [kind for kind in self._kinds if kind.prefix == path]
        return self._resources(kinds) if kinds else None

    def _groups(self) -> list[str]:
        return list(dict.fromkeys(kind.group for kind in self._kinds))

    def _versions(self, group: str) -> list[str]:
        """The versions of a group, the preferred one first."""
        return sorted({kind.version for kind in self._kinds if kind.group == group})

    def _group(self, group: str) -> dict[str, Any]:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version} for version in self._versions(group)
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _resources(self, kinds: Sequence[Kind]) -> dict[str, Any]:
        resources: list[dict[str, Any]] = []
        for kind in kinds:
            resource: dict[str, Any] = {
                "name": kind.plural,
                "singularName": kind.singular,
                "namespaced": kind.namespaced,
                "kind": kind.name,
                "verbs": list(kind.verbs),
            }
            if kind.short:
                resource["shortNames"] = list(kind.short)
            if kind.categories:
                resource["categories"] = list(kind.categories)
            resources.append(resource)
            resources += [
                {
                    "name": f"{kind.plural}/{subresource}",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": kind.name,
                    "verbs": ["get", "patch", "update"],
                }
                for subresource in kind.subresources
            ]
        version = kinds[0].api_version
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": resources,
        }

    def _aggregated(self, core: bool) -> dict[str, Any]:
        items = [
            {
                "metadata": {"name": group, "creationTimestamp": None}
                if group
                else {"creationTimestamp": None},
                "versions": [self._discovered(group, version) for version in self._versions(group)],
            }
            for group in self._groups()
            if bool(group) is not core
        ]
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        }

    def _discovered(self, group: str, version: str) -> dict[str, Any]:
        resources = []
        for kind in self._kinds:
            if (kind.group, kind.version) != (group, version):
                continue
            response = {"group": kind.group, "version": kind.version, "kind": kind.name}
            resource: dict[str, Any] = {
                "resource": kind.plural,
                "responseKind": response,
                "scope": "Namespaced" if kind.namespaced else "Cluster",
                "singularResource": kind.singular,
                "verbs": list(kind.verbs),
            }
            if kind.short:
                resource["shortNames"] = list(kind.short)
            if kind.categories:
                resource["categories"] = list(kind.categories)
            if kind.subresources:
                resource["subresources"] = [
                    {
                        "subresource": subresource,
                        "responseKind": response,
                        "verbs": ["get", "patch", "update"],
                    }
                    for subresource in kind.subresources
                ]
            resources.append(resource)
        return {"version": version, "freshness": "Current", "resources": resources}

    def _openapi_paths(self) -> dict[str, Any]:
        paths = {}
        for prefix in dict.fromkeys(kind.prefix for kind in self._kinds):
            digest = hashlib.sha256(f"{prefix} {self._version}".encode()).hexdigest().upper()
            paths[prefix[1:]] = {"serverRelativeURL": f"/openapi/v3{prefix}?hash={digest}"}
        return {"paths": paths}

    def _info(self) -> dict[str, str]:
        return {"title": "Kubernetes", "version": version_info(self._version)["gitVersion"]}

    def _openapi_v3(self, kinds: Sequence[Kind]) -> dict[str, Any]:
        paths = {path: {"patch": _patch(kind)} for kind in kinds for path in _paths(kind)}
        schemas = {_schema_name(kind): _schema(kind) for kind in kinds}
        return {
            "openapi": "3.0.0",
            "info": self._info(),
            "paths": paths,
            "components": {"schemas": schemas},
        }

    def _openapi_v2(self) -> dict[str, Any]:
        return {"swagger": "2.0", "info": self._info(), "paths": {}, "definitions": {}}


def _paths(kind: Kind) -> list[str]:
    namespace = "/namespaces/{namespace}" if kind.namespaced else ""
    path = f"{kind.prefix}{namespace}/{kind.plural}/{{name}}"
    return [path, *(f"{path}/{subresource}" for subresource in kind.subresources)]


def _patch(kind: Kind) -> dict[str, Any]:
    name = f"patch{kind.group.partition('.')[0].capitalize() or 'Core'}{kind.version.upper()}{kind.name}"
    return {
        "operationId": name,
        "parameters": [_parameter(parameter) for parameter in _PARAMETERS],
        "requestBody": {
            "required": True,
            "content": {patch: {"schema": {"type": "object"}} for patch in _PATCHES},
        },
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": _gvk(kind),
    }


def _parameter(name: str) -> dict[str, Any]:
    kind = "boolean" if name == "force" else "string"
    return {"name": name, "in": "query", "description": "", "schema": {"type": kind}}


def _gvk(kind: Kind) -> dict[str, str]:
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


def _schema_name(kind: Kind) -> str:
    group = kind.group.partition(".")[0] or "core"
    return f"io.k8s.api.{group}.{kind.version}.{kind.name}"


def _schema(kind: Kind) -> dict[str, Any]:
    """Return a schema that takes anything: the server checks on its own side."""
    return {
        "type": "object",
        "description": f"{kind.name} of {kind.api_version}",
        "x-kubernetes-group-version-kind": [_gvk(kind)],
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
