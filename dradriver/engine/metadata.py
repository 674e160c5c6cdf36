"""Device metadata: files from which the containers of a claim learn what devices they have (KEP-5304).

One file for each request of a prepared claim, below the driver's plugin directory, and bind-mounted read-only into
every container that uses the request. Facts: k8s.io/dynamic-resource-allocation/api/metadata (`DeviceMetadata`, 1.36
v1alpha1, 1.37 v1beta1), and kubeletplugin/metadata.go for the places.

Files are renamed into place, and not synced: after a power cut nothing counts as prepared, and after a crash all are
compared and written anew. A container that runs keeps the file that it started with; one that starts later, or again,
sees the newest.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dradriver.claims import network_body
from dradriver.engine.records import DeviceRecord, Record
from dradriver.model import ClaimRef
from dradriver_cdi import ContainerEdits, Mount

log = logging.getLogger(__name__)

VERSIONS = tuple(f"metadata.resource.k8s.io/{version}" for version in ("v1beta1", "v1alpha1"))
"""Newest first: a reader takes the first object that it knows. Both have the same fields."""

CONTAINER_DIRECTORY = "/var/run/kubernetes.io/dra-device-attributes"

FILE_NAME = "metadata.json"
TEMPORARY = f".{FILE_NAME}.tmp"

_MAX_BYTES = 1 << 20
_MAX_NAME = 255
"""Bytes of one path component."""


class MetadataFiles:
    """The metadata files of this daemon's drivers. Any thread may use it."""

    def __init__(self, kubelet_root: Path, *, enabled: bool = True) -> None:
        """`enabled`: whether files are written; those of an earlier run are removed in any case."""
        self._root = kubelet_root
        self._enabled = enabled
        # A claim that was replaced has the directory of its successor: looking and removing are one.
        self._lock = threading.Lock()

    def write(self, record: Record) -> None:
        """Write the files of a prepared claim, as far as they are not there already. Raises OSError."""
        if not self._enabled:
            return
        directory = self._of_claim(record.driver, record.ref)
        for request in _requests(record):
            content = encode(record, request)
            with self._lock:
                _replace(directory / request, content)

    def edits(self, record: Record) -> dict[int, ContainerEdits]:
        """Return the mount of each request's file, by the number of the request's first device."""
        if not self._enabled:
            return {}
        first: dict[str, int] = {}
        for index, device in enumerate(record.devices):
            first.setdefault(device.allocated.base_request, index)
        directory = self._of_claim(record.driver, record.ref)
        return {
            index: ContainerEdits(
                mounts=(
                    Mount(
                        f"{directory}/{request}/{FILE_NAME}", container_path(record, request), ("ro", "bind")
                    ),
                )
            )
            for request, index in first.items()
        }

    def remove(self, driver: str, ref: ClaimRef) -> None:
        """Remove the files of a claim, and leave those of another claim of its name. Raises OSError."""
        directory = self._of_claim(driver, ref)
        with self._lock:
            for request in _names(directory):
                if _owner(directory / request / FILE_NAME) in {"", ref.uid}:
                    _remove(directory / request)
            with contextlib.suppress(OSError):
                directory.rmdir()

    def reconcile(self, drivers: Collection[str], keep: Collection[Record]) -> None:
        """Remove the files of claims and requests that nobody keeps, and what a crash left. Raises OSError."""
        for driver in drivers:
            wanted: dict[Path, set[str]] = {}
            for record in keep:
                if record.driver == driver:
                    wanted.setdefault(self._of_claim(driver, record.ref), set()).update(_requests(record))
            for claim in map(self._of_driver(driver).joinpath, _names(self._of_driver(driver))):
                with self._lock:
                    self._tidy(claim, wanted.get(claim, set()))

    def _tidy(self, claim: Path, wanted: Collection[str]) -> None:
        if not wanted:
            log.warning("stale device metadata %s is removed", claim)
            _remove(claim)
            return
        for request in _names(claim):
            if request not in wanted:
                _remove(claim / request)
            else:
                (claim / request / TEMPORARY).unlink(missing_ok=True)

    def _of_driver(self, driver: str) -> Path:
        return self._root / "plugins" / driver / "dra-device-metadata"

    def _of_claim(self, driver: str, ref: ClaimRef) -> Path:
        """Return the directory of a claim; names that are too long together give way to a hash of the whole."""
        name = f"{ref.namespace}_{ref.name}"
        if len(name) > _MAX_NAME:
            digest = hashlib.sha256(name.encode()).hexdigest()[:32]
            name = f"{name[: _MAX_NAME - len(digest) - 1]}_{digest}"
        return self._of_driver(driver) / name


def container_path(record: Record, request: str) -> str:
    """Return where a container finds the file of a request: by the claim's name, or by the pod's name of it."""
    place = (
        f"resourceclaimtemplates/{record.pod_claim}"
        if record.pod_claim
        else f"resourceclaims/{record.ref.name}"
    )
    return f"{CONTAINER_DIRECTORY}/{place}/{request}/{record.driver}-metadata.json"


def without_mount(edits: ContainerEdits) -> ContainerEdits:
    """Return edits that were read from a claim's CDI file without the mount that `MetadataFiles.edits` adds."""
    theirs = (
        mount for mount in edits.mounts if not mount.container_path.startswith(f"{CONTAINER_DIRECTORY}/")
    )
    return replace(edits, mounts=tuple(theirs))


def encode(record: Record, request: str) -> bytes:
    """Return the content of the file of a request: one object for each version, a line each."""
    devices = [device for device in record.devices if device.allocated.base_request == request]
    names = dict.fromkeys(device.allocated.request for device in devices)
    ref = record.ref
    body: dict[str, Any] = {
        "kind": "DeviceMetadata",
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "uid": ref.uid,
            "generation": record.generation,
        },
        **({"podClaimName": record.pod_claim} if record.pod_claim else {}),
        "requests": [
            {
                "name": name,
                "devices": [_device(device) for device in devices if device.allocated.request == name],
            }
            for name in names
        ],
    }
    return b"".join(msgspec.json.encode({"apiVersion": version, **body}) + b"\n" for version in VERSIONS)


def _device(device: DeviceRecord) -> dict[str, Any]:
    network = network_body(device.network)[0] if device.network else {}
    return {
        "driver": device.allocated.driver,
        "pool": device.allocated.pool,
        "name": device.allocated.device,
        **({"attributes": device.attributes} if device.attributes else {}),
        **({"networkData": network} if network else {}),
    }


def _requests(record: Record) -> Iterator[str]:
    yield from dict.fromkeys(device.allocated.base_request for device in record.devices)


def _replace(directory: Path, content: bytes) -> None:
    """Make the file of a directory hold that content. A file that does is left alone, since containers mount it.

    In a new directory it is written in its place: nothing mounts it before the claim's CDI file is there.
    """
    path = directory / FILE_NAME
    if _content(path) == content:
        return
    new = _made(directory)
    written = path if new else directory / TEMPORARY
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(written, flags, 0o644), "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(content)
        if not new:
            written.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            written.unlink()
        # The temporary name says nothing to people, and the error of a full disk has no name at all.
        raise OSError(error.errno, error.strerror, str(path)) from error


def _made(directory: Path) -> bool:
    """Make a directory, with those above it; return whether it was not there before."""
    try:
        directory.mkdir(mode=0o755)
    except FileNotFoundError:
        directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return _made(directory)
    except FileExistsError:
        return False
    return True


def _content(path: Path) -> bytes | None:
    try:
        with os.fdopen(
            os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
        ) as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return None


def _owner(path: Path) -> str:
    """Return the UID of the claim that a file is of; empty where that cannot be read."""
    try:
        first = json.loads((_content(path) or b"").partition(b"\n")[0])
        return str(first["metadata"]["uid"])
    except (ValueError, KeyError, TypeError):
        return ""


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(path: Path) -> None:
    """Remove a file, or a directory with all that is in it."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    try:
        # What there is as a rule.
        (path / FILE_NAME).unlink(missing_ok=True)
        path.rmdir()
    except OSError:
        shutil.rmtree(path)
