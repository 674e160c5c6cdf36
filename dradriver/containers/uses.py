"""Which devices of which claims a container uses.

The runtime names a container's CDI devices, which the kubelet gave it. Runtimes before NRI 0.10 do not: there the
variable counts that each of our CDI devices sets. A user can set variables too, so it is believed only where the pod
has the claim reserved.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from dradriver.engine.cdifiles import MARKER
from dradriver.engine.containers import ContainerClaim, ContainerClaims
from dradriver.model import shown
from dradriver.nri import Container, Pod, RefusedError


class Allowing(Protocol):
    """Knows which pods have a claim reserved."""

    def allow(self, claim: ContainerClaim, pod: Pod) -> bool:
        """Return whether that pod may use the claim."""


@dataclass(frozen=True, slots=True)
class Use:
    """Device `index` of the claim."""

    driver: str
    uid: str
    index: int


def uses(
    pod: Pod,
    container: Container,
    claims: ContainerClaims,
    drivers: Collection[str],
    reservations: Allowing,
    *,
    strict: bool,
) -> tuple[Use, ...]:
    """Return what a container uses of the drivers' claims.

    strict   raise RefusedError for a CDI device of a claim that is not prepared; else it is passed over
    """
    found: dict[Use, None] = {}
    named = False
    for use in _named(container, drivers):
        named = True
        claim = claims.get(use.driver, use.uid)
        if claim is not None and use.index < claim.devices:
            found[use] = None
        elif strict:
            raise RefusedError(
                f"claim {shown(use.uid)} of {use.driver} is not prepared with a device {use.index} on this node"
            )
    if not named:
        found.update(dict.fromkeys(_marked(pod, container, claims, reservations)))
    return tuple(found)


def _named(container: Container, drivers: Collection[str]) -> Iterator[Use]:
    """Yield what the names of CDI devices tell, `<driver>/claim=<uid>-<index>`."""
    for name in container.cdi_devices:
        kind, _, device = name.partition("=")
        driver, _, what = kind.partition("/")
        uid, _, index = device.rpartition("-")
        if driver in drivers and what == "claim" and index.isascii() and index.isdigit() and len(index) < 5:
            yield Use(driver, uid, int(index))


def _marked(pod: Pod, container: Container, claims: ContainerClaims, reservations: Allowing) -> Iterator[Use]:
    """Yield what the container's variables tell, as far as that is to be believed."""
    allowed: dict[tuple[str, str], bool] = {}
    for text in container.env:
        if not text.startswith(MARKER):
            continue
        marked = claims.marked(text.partition("=")[0])
        if marked is None:
            continue
        claim, index = marked
        key = (claim.driver, claim.ref.uid)
        if key not in allowed:
            allowed[key] = reservations.allow(claim, pod)
        if allowed[key]:
            yield Use(*key, index)
