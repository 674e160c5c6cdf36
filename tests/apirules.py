"""What the stand-in API server does to an object between its URL and its storage: the server's own steps, in order."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from dradriver.sim.apiserver import rules
from dradriver.sim.apiserver.checks import Target, check_place, check_version, sent_namespace
from dradriver.sim.apiserver.errors import ApiError
from dradriver.sim.apiserver.metadata import counted, new_metadata, random_suffix
from dradriver.sim.apiserver.rest import replaced
from dradriver.sim.apiserver.rules import KINDS, Body, Cause, Gates, Refused, Result
from dradriver.sim.apiserver.store import Stored


def create(
    kind: str,
    obj: Mapping[str, Any] | Body,
    gates: Gates,
    *,
    namespace: str = "",
    admin: bool = False,
    validation: str = "Warn",
    now: datetime | None = None,
    suffix: Callable[[], str] = random_suffix,
) -> Result:
    """Return `obj` as it is stored when it is created; `namespace` is that of the URL. Raises Refused."""
    read = rules.decode(kind, obj, gates, validation)
    sent = read.obj["metadata"]
    known = KINDS[kind]
    with _refusing():
        own = sent_namespace(Target(known, namespace or sent.get("namespace", ""), ""), read.obj)
    metadata = new_metadata(known, sent, own, now or datetime.now(UTC), suffix)
    made = rules.create(kind, {**read.obj, "metadata": metadata}, gates, admin=admin, now=now)
    return Result(made.obj, (*read.warnings, *made.warnings))


def update(
    kind: str,
    obj: Mapping[str, Any] | Body,
    existing: Mapping[str, Any],
    gates: Gates,
    subresource: str = "",
    *,
    namespace: str = "",
    name: str = "",
    admin: bool = False,
    validation: str = "Warn",
) -> Result:
    """Return `obj` as it is stored in the place of `existing`; namespace and name are the URL's. Raises Refused."""
    read = rules.decode(kind, obj, gates, validation)
    known = KINDS[kind]
    old = Stored(known, existing, int(existing["metadata"].get("resourceVersion", "1")))
    target = Target(known, namespace or old.key[0], name or old.name, subresource)
    with _refusing():
        check_place(target, read.obj)
        check_version(known, old, read.obj["metadata"])
    new = copy.deepcopy(replaced(target, existing, read.obj))
    made = rules.update(kind, new, existing, gates, subresource, admin=admin)
    if known.generation and made.spec_changed:
        made.obj["metadata"] = counted(made.obj["metadata"], existing["metadata"])
    return Result(made.obj, (*read.warnings, *made.warnings), made.spec_changed)


@contextmanager
def _refusing() -> Iterator[None]:
    """Say what the server's own checks say in the words of its rules."""
    try:
        yield
    except ApiError as error:
        found = [
            Cause(one["field"], one["reason"], one["message"]) for one in error.details.get("causes") or ()
        ]
        raise Refused(error.code, error.reason, error.message, found) from None
