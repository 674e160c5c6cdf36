"""The manifests of a simulation: reading them, and whether devices are named for what their pods need.

Facts: k8s.io/api/core/v1 `Pod` and k8s.io/api/resource/v1, as far as pods and their claims hang together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from dradriver.documents import read_documents
from dradriver.model import shown
from dradriver.model.text import plain
from dradriver.sim.allocate import nearest
from dradriver.sim.pods import EXTENDED_ENTRY, KINDS

MAX_FILE: Final = 4 << 20
"""Bytes of a file."""

Place = tuple[str, str]
"""Claim, and request of it: what devices are named for."""

T = TypeVar("T")


class ManifestError(Exception):
    """A manifest, or what is asked of it, cannot be done: one line."""


class _Shape(msgspec.Struct, rename="camel"):
    """A part of an object; what is not looked at may be there."""


class _Alternative(_Shape):
    name: str
    device_class_name: str


class _Exactly(_Shape):
    device_class_name: str


class _Request(_Shape):
    name: str
    exactly: _Exactly | None = None
    first_available: list[_Alternative] | None = None

    def classes(self) -> dict[str, str]:
        """Return the names by which devices can be named for it -> the device class."""
        if self.exactly:
            return {self.name: self.exactly.device_class_name}
        return {f"{self.name}/{one.name}": one.device_class_name for one in self.first_available or ()}


class _Devices(_Shape):
    requests: list[_Request] | None = None


class _Claim(_Shape):
    devices: _Devices | None = None


class _Template(_Shape):
    spec: _Claim


class _Class(_Shape):
    extended_resource_name: str | None = None


class _ContainerClaim(_Shape):
    name: str


class _Resources(_Shape):
    claims: list[_ContainerClaim] | None = None
    limits: dict[str, str | int | float] | None = None


class _Container(_Shape):
    name: str
    resources: _Resources | None = None


class _Entry(_Shape):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _Pod(_Shape):
    containers: Annotated[list[_Container], msgspec.Meta(min_length=1)]
    resource_claims: list[_Entry] | None = None


class _Metadata(_Shape):
    name: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object to be created, and the file that it stands in; empty where it stands in none."""

    obj: Mapping[str, Any]
    source: str = ""

    @property
    def kind(self) -> str:
        """The object's kind."""
        return str(self.obj["kind"])

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name; empty for a name that the server makes."""
        metadata = self.obj.get("metadata") or {}
        return str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")

    def __str__(self) -> str:
        name = plain(self.key[1] or "without a name")
        return f"{self.source}: {self.kind} {name}" if self.source else f"{self.kind} {name}"


def read_manifests(paths: Sequence[Path]) -> list[Manifest]:
    """Return the objects of these files, and of the YAML files in these directories, in the order of creation.

    Raises ManifestError for what is no manifest.
    """
    found: list[Manifest] = []
    for file in _files(paths):
        try:
            documents = [one for one in read_documents(file, MAX_FILE) if one is not None]
        except OSError as error:
            raise ManifestError(f"{file}: {error.strerror}") from None
        except ValueError as error:
            raise ManifestError(f"{file}: {error}") from None
        for one in documents:
            if not isinstance(one, dict) or one.get("kind") not in KINDS:
                kind = one.get("kind") if isinstance(one, dict) else type(one).__name__
                raise ManifestError(f"{file}: {shown(kind)} is none of {', '.join(KINDS)}")
            found.append(_checked(Manifest(one, str(file))))
    if paths and not found:
        raise ManifestError(f"no manifests in {', '.join(map(str, paths))}")
    return sorted(found, key=lambda one: KINDS.index(one.kind))


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from (
                file for file in sorted((*path.glob("*.yaml"), *path.glob("*.yml"))) if file.is_file()
            )
        else:
            yield path


def _checked(manifest: Manifest) -> Manifest:
    """Return the manifest, of whose form as much is right as is used here."""
    try:
        msgspec.convert(manifest.obj.get("metadata") or {}, _Metadata)
    except msgspec.ValidationError as error:
        raise ManifestError(f"{manifest.source}: {manifest.kind}: metadata: {error}") from None
    if manifest.kind == "Pod":
        try:
            msgspec.convert(manifest.obj.get("spec"), _Pod)
        except msgspec.ValidationError as error:
            raise ManifestError(f"{manifest}: spec: {error}") from None
    return manifest


@dataclass(frozen=True, slots=True)
class _Need:
    """Devices that a pod needs.

    claims     the names of the claim: the pod's own first
    requests   the names by which devices can be named; several are alternatives
    shared     namespace and name of a claim that other pods may have too; empty for one that is made for the pod
    """

    claims: tuple[str, ...]
    requests: tuple[str, ...]
    shared: tuple[str, str] = ("", "")

    def places(self) -> list[str]:
        """Return how devices are named for it."""
        return [f"{self.claims[0]}/{request}" for request in self.requests]

    def has(self, place: Place) -> bool:
        """Whether devices that are named so are for it."""
        return place[0] in self.claims and place[1] in self.requests


class _Objects:
    """What pods refer to. `unread` is set where an object has a form that the server refuses."""

    def __init__(self, found: Iterable[Manifest]) -> None:
        self.unread = False
        self.classes: dict[str, _Class | None] = {}
        self.claims: dict[tuple[str, str], _Claim | None] = {}
        self.templates: dict[tuple[str, str], _Claim | None] = {}
        for one in found:
            if one.kind == "DeviceClass":
                self.classes[one.key[1]] = self._read(one, _Class)
            elif one.kind == "ResourceClaim":
                self.claims[one.key] = self._read(one, _Claim)
            elif one.kind == "ResourceClaimTemplate":
                template = self._read(one, _Template)
                self.templates[one.key] = template.spec if template else None

    def _read(self, manifest: Manifest, kind: type[T]) -> T | None:
        try:
            return msgspec.convert(manifest.obj.get("spec"), kind)
        except msgspec.ValidationError:
            self.unread = True
            return None


def check_choices(found: Sequence[Manifest], chosen: Iterable[Place]) -> None:
    """See that all that the pods refer to is there, and that devices are named for each request and for nothing else.

    Raises ManifestError. Of objects that the server will refuse nothing is said.
    """
    objects = _Objects(found)
    if objects.unread:
        return
    needs = [need for one in found if one.kind == "Pod" for need in _needs(one, objects)]
    places = list(dict.fromkeys(chosen))
    known = [name for need in needs for name in need.places()]
    complaints = [
        f"--allocate {plain(f'{claim}/{request}')}: no pod has such a request: {nearest(f'{claim}/{request}', known)}"
        for claim, request in places
        if not any(need.has((claim, request)) for need in needs)
    ]
    allocated = set()
    for need in needs:
        given = [request for claim, request in places if need.has((claim, request))]
        wanted = " or ".join(f"--allocate {plain(name)}=DEVICE" for name in need.places())
        place = (need.shared, need.requests)
        if len(set(given)) > 1:
            complaints.append(f"{wanted}: one of the alternatives is expected")
        elif given:
            allocated.add(place)
        elif not any(need.shared) or place not in allocated:
            complaints.append(f"{wanted} is missing")
    if complaints:
        raise ManifestError("; ".join(dict.fromkeys(complaints)))


def _needs(manifest: Manifest, objects: _Objects) -> Iterator[_Need]:
    pod = msgspec.convert(manifest.obj.get("spec"), _Pod)
    entries = pod.resource_claims or ()
    own = [entry.name for entry in entries]
    for container in pod.containers:
        for used in (container.resources.claims if container.resources else None) or ():
            if used.name not in own:
                raise ManifestError(
                    f"{manifest}: container {plain(container.name)}: claim {shown(used.name)} is none of the pod's: "
                    f"{', '.join(map(plain, own)) or 'it has none'}"
                )
    for entry in entries:
        yield from _needs_of(manifest, entry, objects)
    resources = {one.extended_resource_name for one in objects.classes.values() if one}
    for index, container in enumerate(pod.containers):
        limits = (container.resources.limits if container.resources else None) or {}
        for number in range(len(resources & set(limits))):
            yield _Need((EXTENDED_ENTRY,), (f"container-{index}-request-{number}",))


def _needs_of(manifest: Manifest, entry: _Entry, objects: _Objects) -> Iterator[_Need]:
    """Yield what one claim of a pod needs."""
    where = f"{manifest}: claim {plain(entry.name)}"
    namespace, names, shared = manifest.key[0], [entry.name], ("", "")
    if name := entry.resource_claim_name:
        kind, claim = "ResourceClaim", objects.claims.get((namespace, name))
        names, shared = list(dict.fromkeys((entry.name, name))), (namespace, name)
    elif name := entry.resource_claim_template_name:
        kind, claim = "ResourceClaimTemplate", objects.templates.get((namespace, name))
    else:
        raise ManifestError(f"{where}: resourceClaimName or resourceClaimTemplateName is expected")
    if claim is None:
        raise ManifestError(
            f"{where}: the FILES have no {kind} {shown(name)} in namespace {plain(namespace)}"
        )
    for request in (claim.devices.requests if claim.devices else None) or ():
        for device_class in request.classes().values():
            if device_class not in objects.classes:
                raise ManifestError(
                    f"{where}: request {plain(request.name)}: the FILES have no DeviceClass {shown(device_class)}; "
                    "deployments/manifests/deviceclasses.yaml has those of this driver"
                )
        yield _Need(tuple(names), tuple(request.classes()), shared)
