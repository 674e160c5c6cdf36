"""What the API server makes of an object's metadata. Pure but for randomness.

Facts: k8s.io/apiserver/pkg/storage/names (random suffixes), pkg/registry/rest (FillObjectMetaSystemFields,
BeforeCreate, BeforeUpdate).
"""

import random
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from dradriver.sim.apiserver.kinds import Kind
from dradriver.sim.apiserver.rules.times import utc_text

_SUFFIX_LENGTH: Final = 5
_BASE_BYTES: Final = 63 - _SUFFIX_LENGTH
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"

SYSTEM: Final = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
"""What a client cannot change."""

_NOT_TAKEN: Final = (*SYSTEM, "resourceVersion", "selfLink", "managedFields")


def random_suffix() -> str:
    """Return five characters as the server's name generator makes them."""
    return "".join(random.choices(_ALPHABET, k=_SUFFIX_LENGTH))  # noqa: S311 - a name, not a secret


def new_metadata(
    kind: Kind,
    sent: Mapping[str, Any],
    namespace: str,
    now: datetime,
    suffix: Callable[[], str] = random_suffix,
) -> dict[str, Any]:
    """Return the metadata of a new object: what was sent, a name, and what the server fills in.

    `suffix` makes the random end of a generated name, in front of which 58 bytes of `generateName` are kept. A given
    uid is kept for nobody: each object gets its own.
    """
    metadata = {name: value for name, value in sent.items() if name not in _NOT_TAKEN and name != "namespace"}
    prefix = metadata.get("generateName")
    if prefix and not metadata.get("name"):
        kept = prefix.encode(errors="surrogatepass")[:_BASE_BYTES].decode(errors="ignore")
        metadata["name"] = f"{kept}{suffix()}"
    if kind.namespaced:
        metadata["namespace"] = sent.get("namespace") or namespace
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = utc_text(now)
    if kind.generation:
        metadata["generation"] = 1
    return metadata


def kept_metadata(sent: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an update: what was sent, but what only the server changes as it was."""
    metadata = {name: value for name, value in sent.items() if name not in _NOT_TAKEN and name != "namespace"}
    kept = (*SYSTEM, "namespace", "resourceVersion", "managedFields")
    metadata |= {name: old[name] for name in kept if name in old}
    return metadata


def counted(metadata: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an object whose spec has changed: its generation is the next one."""
    return {**metadata, "generation": old.get("generation", 0) + 1}
