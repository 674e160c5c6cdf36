"""Manifests of a simulation: what is read, and whether devices are named for what the pods need."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dradriver.sim.manifests import Manifest, ManifestError, check_choices, read_manifests

Body = dict[str, Any]


def obj(kind: str, name: str, spec: Any) -> Manifest:
    return Manifest({"kind": kind, "metadata": {"name": name}, "spec": spec}, "file.yaml")


def claim_spec(*requests: Body) -> Body:
    return {"devices": {"requests": list(requests)}}


def exactly(name: str, kind: str = "gpu") -> Body:
    return {"name": name, "exactly": {"deviceClassName": kind}}


def pod(name: str, *entries: Body, **resources: Any) -> Manifest:
    spec = {"containers": [{"name": "main", "resources": resources}], "resourceClaims": list(entries)}
    return obj("Pod", name, spec)


CLASSES = [obj("DeviceClass", "gpu", {}), obj("DeviceClass", "big", {"extendedResourceName": "x.io/gpu"})]
TEMPLATE = obj("ResourceClaimTemplate", "one", {"spec": claim_spec(exactly("a"), exactly("b"))})
CHOICE = {"name": "c", "firstAvailable": [{"name": n, "deviceClassName": "gpu"} for n in ("big", "small")]}
SHARED = obj("ResourceClaim", "shared", claim_spec(CHOICE))
MADE = {"name": "made", "resourceClaimTemplateName": "one"}


def entry(name: str) -> Body:
    return {"name": name, "resourceClaimName": "shared"}


def test_devices_for_every_request_are_enough() -> None:
    found = [*CLASSES, TEMPLATE, SHARED, pod("p", MADE, entry("s")), pod("q", entry("other"))]
    check_choices(found, [("made", "a"), ("made", "b"), ("s", "c/big")])
    check_choices(found, [("made", "a"), ("made", "b"), ("shared", "c/small")])
    check_choices(
        [*CLASSES, pod("p", limits={"x.io/gpu": 2, "cpu": 1})],
        [("extended-resources", "container-0-request-0")],
    )


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            [("made", "a")],
            "--allocate made/b=DEVICE is missing; --allocate s/c/big=DEVICE or --allocate s/c/small=DEVICE is missing",
        ),
        (
            [("made", "a"), ("mad", "b"), ("s", "c/big")],
            (
                "--allocate mad/b: no pod has such a request: there are made/a, made/b, s/c/big, s/c/small; "
                "--allocate made/b=DEVICE is missing"
            ),
        ),
        (
            [("made", "a"), ("made", "b"), ("s", "c/big"), ("s", "c/small")],
            "--allocate s/c/big=DEVICE or --allocate s/c/small=DEVICE: one of the alternatives is expected",
        ),
        (
            [("made", "a"), ("made", "b"), ("s", "c")],
            (
                "--allocate s/c: no pod has such a request: there are made/a, made/b, s/c/big, s/c/small; "
                "--allocate s/c/big=DEVICE or --allocate s/c/small=DEVICE is missing"
            ),
        ),
    ],
)
def test_what_is_missing_and_what_nobody_uses_is_said(chosen: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ManifestError) as caught:
        check_choices([*CLASSES, TEMPLATE, SHARED, pod("p", MADE, entry("s"))], chosen)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([pod("p", MADE)], "claim made: the FILES have no ResourceClaimTemplate 'one' in namespace default"),
        ([pod("p", entry("s"))], "claim s: the FILES have no ResourceClaim 'shared' in namespace default"),
        ([pod("p", {"name": "s"})], "claim s: resourceClaimName or resourceClaimTemplateName is expected"),
        ([TEMPLATE, pod("p", MADE)], "claim made: request a: the FILES have no DeviceClass 'gpu'; "),
        (
            [*CLASSES, TEMPLATE, pod("p", MADE, claims=[{"name": "maid"}])],
            "container main: claim 'maid' is none of the pod's: made",
        ),
    ],
)
def test_what_a_pod_refers_to_must_be_there(found: list[Manifest], said: str) -> None:
    with pytest.raises(ManifestError) as caught:
        check_choices(found, [("made", "a"), ("made", "b")])
    assert str(caught.value).startswith(f"file.yaml: Pod p: {said}")


def test_what_the_server_will_refuse_is_left_to_it() -> None:
    check_choices([obj("ResourceClaimTemplate", "one", None), pod("p", MADE)], [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Service", "'Service' is none of Namespace, DeviceClass, "),
        ("[1]", "'list' is none of "),
        ("kind: Pod\nmetadata: {name: p}", "Pod p: spec: Expected `object`, got `null`"),
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: []}}",
            "Pod p: spec: Expected `array` of length >= 1",
        ),
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: [{image: x}]}}",
            "Pod p: spec: Object missing required field",
        ),
        ("{kind: Pod, metadata: [1]}", "Pod: metadata: Expected `object`, got `array`"),
        ("{kind: Namespace, metadata: {name: 1}}", "Namespace: metadata: Expected `str | null`, got `int`"),
        ("a: b: c", "line 1: not valid YAML"),
    ],
)
def test_what_is_no_manifest_is_named_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(ManifestError) as caught:
        read_manifests([file])
    assert str(caught.value).startswith(f"{file}: {said}")


def test_files_and_directories_are_read_in_the_order_of_creation(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(dict(pod("p").obj)))
    (tmp_path / "b.yml").write_text(yaml.safe_dump_all([dict(one.obj) for one in CLASSES]))
    (tmp_path / "README.md").write_text("# text")
    assert [str(one) for one in read_manifests([tmp_path])] == [
        f"{tmp_path}/b.yml: DeviceClass gpu",
        f"{tmp_path}/b.yml: DeviceClass big",
        f"{tmp_path}/a.yaml: Pod p",
    ]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ManifestError, match="no manifests in "):
        read_manifests([empty])
