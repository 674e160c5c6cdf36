"""Which pods a claim is reserved for: what is believed of a container that only says itself that it uses a claim.

Facts: k8s.io/api/resource/v1 `ResourceClaimStatus.reservedFor`, which names pods and, from 1.36 on, PodGroups.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from dradriver.backend import TransientError
from dradriver.claims import ClaimError, ClaimNotFoundError, ClaimSource
from dradriver.clock import SYSTEM, Clock
from dradriver.engine import Record
from dradriver.engine.containers import ContainerClaim
from dradriver.nri import Pod

ASK_SECONDS: Final = 0.4
"""How long the claim is waited for: the runtime waits two seconds for all of the answer."""

LEAVE_SECONDS: Final = 10.0
"""How long nobody is asked after that was in vain."""

MAX_KNOWN: Final = 4096

Key = tuple[str, str]


class _Consumer(msgspec.Struct, frozen=True):
    resource: str = ""
    uid: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    reserved_for: tuple[_Consumer, ...] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    uid: str = ""


class _Claim(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    status: _Status | None = None


@dataclass(frozen=True, slots=True)
class _Users:
    """The UIDs of pods, and whether there are others, whose pods are not named."""

    pods: frozenset[str]
    groups: bool


class Reservations:
    """Remembers for whom claims are reserved, and asks where it does not know. Any thread may ask."""

    def __init__(self, source: ClaimSource, clock: Clock = SYSTEM) -> None:
        self._source = source
        self._clock = clock
        self._guard = threading.Lock()
        self._known: OrderedDict[Key, _Users] = OrderedDict()
        self._ask_from = clock.now()

    def prepared(self, record: Record, claim: object) -> None:
        """Take note of a claim's object as it was read for Prepare; None where it could not be. Quick."""
        users = _users(claim, record.ref.uid)
        if users:
            self._keep((record.driver, record.ref.uid), users)

    def _keep(self, key: Key, users: _Users) -> None:
        with self._guard:
            self._known[key] = users
            self._known.move_to_end(key)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def allow(self, claim: ContainerClaim, pod: Pod) -> bool:
        """Return whether that pod may use the claim.

        Of a PodGroup's claim the namespace is all that can be seen from here, and while the claim cannot be read it
        has to do: only pods of its namespace can name a claim at all.
        """
        if pod.namespace != claim.ref.namespace:
            return False
        key = (claim.driver, claim.ref.uid)
        with self._guard:
            users = self._known.get(key)
        if users is None or not (users.groups or pod.uid in users.pods):
            try:
                users = self._ask(claim)
            except (TransientError, OSError):
                return users is None
            if users:
                self._keep(key, users)
        return users is not None and (users.groups or pod.uid in users.pods)

    def _ask(self, claim: ContainerClaim) -> _Users | None:
        """Read the claim; return None for one that is not there, or another. Raises TransientError or OSError."""
        now = self._clock.now()
        if now < self._ask_from:
            raise TransientError("claims could not be read a moment ago")
        try:
            return _users(self._source.get(claim.ref, now + ASK_SECONDS), claim.ref.uid)
        except (ClaimError, ClaimNotFoundError):
            return None
        except (TransientError, OSError):
            self._ask_from = self._clock.now() + LEAVE_SECONDS
            raise


def _users(claim: object, uid: str) -> _Users | None:
    try:
        found = msgspec.convert(claim, _Claim)
    except msgspec.ValidationError:
        return None
    if found.metadata.uid != uid:
        return None
    consumers = (found.status.reserved_for if found.status else None) or ()
    pods = frozenset(one.uid for one in consumers if one.resource == "pods" and one.uid)
    return _Users(pods, groups=any(one.resource != "pods" for one in consumers))
