"""What the API server makes of an object's metadata. Pure but for randomness.

Facts: k8s.io/apiserver/pkg/storage/names (random suffixes), pkg/registry/rest (FillObjectMetaSystemFields,
BeforeCreate, BeforeUpdate).
"""

import random
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from dradriver.sim.apiserver.kinds import Kind

SUFFIX_LENGTH: Final = 5
BASE_LENGTH: Final = 63 - SUFFIX_LENGTH
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"

SYSTEM: Final = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
"""What a client cannot change."""

_NOT_TAKEN: Final = (*SYSTEM, "resourceVersion", "selfLink", "managedFields")


def generated_name(base: str) -> str:
    """Return a name for `generateName`: its first 58 characters and five random ones."""
    suffix = "".join(random.choices(_ALPHABET, k=SUFFIX_LENGTH))  # noqa: S311 - no secret
    return f"{base[:BASE_LENGTH]}{suffix}"


def timestamp(now: datetime) -> str:
    """Return a time as metav1.Time is written: RFC 3339, UTC, whole seconds."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def new_metadata(kind: Kind, sent: Mapping[str, Any], namespace: str, now: datetime) -> dict[str, Any]:
    """Return the metadata of a new object: what was sent, a name, and what the server fills in.

    A given uid is kept for nobody: each object gets its own.
    """
    metadata = {name: value for name, value in sent.items() if name not in _NOT_TAKEN and name != "namespace"}
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"])
    if kind.namespaced:
        metadata["namespace"] = sent.get("namespace") or namespace
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = timestamp(now)
    if kind.generation:
        metadata["generation"] = 1
    return metadata


def kept_metadata(sent: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an update: what was sent, but what only the server changes as it was."""
    metadata = {name: value for name, value in sent.items() if name not in _NOT_TAKEN and name != "namespace"}
    kept = (*SYSTEM, "namespace", "resourceVersion", "managedFields")
    metadata |= {name: old[name] for name in kept if name in old}
    return metadata
