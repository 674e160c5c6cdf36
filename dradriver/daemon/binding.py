"""Binding conditions: claims whose pods wait until a device is made ready, and are told when it is (KEP-5007).

Claims carry no node selector that a watch could use, so every node watches all claims of the cluster. Of what it is
sent it keeps those that wait for a device of this node.

Facts: k8s.io/api/resource/v1 `DeviceRequestAllocationResult.bindingConditions`; the scheduler reads the conditions of
`status.devices`.
"""

import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from dradriver.backend import Binding
from dradriver.backoff import delays
from dradriver.claimstatus import (
    MAX_FAILURES,
    MAX_REFUSALS,
    REQUEST_SECONDS,
    Place,
    apply_devices,
    extra_wait,
    is_over,
    may_pass,
    place_of_entry,
    timestamp,
)
from dradriver.clock import SYSTEM, Clock
from dradriver.daemon.complaint import Complaint
from dradriver.engine import Pool
from dradriver.kube import CLAIMS, Client, KubeError, ListWatch, StatusError, UnreachableError, spread
from dradriver.kube.errors import one_line
from dradriver.model import ClaimRef
from dradriver.publish import Loop
from dradriver.publish.errors import explained

log = logging.getLogger(__name__)

MANAGER: Final = "dradriver-binding"
"""A field manager of its own: what Prepare writes into the same entries later is another's."""

MAX_MESSAGE: Final = 1000


class _Result(msgspec.Struct, frozen=True, rename="camel"):
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


class _Devices(msgspec.Struct, frozen=True):
    results: tuple[_Result, ...] | None = None


class _Allocation(msgspec.Struct, frozen=True):
    devices: _Devices = _Devices()


class _Status(msgspec.Struct, frozen=True):
    allocation: _Allocation | None = None
    devices: tuple[dict[str, Any], ...] | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str
    uid: str
    resource_version: str = ""


class _Claim(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _Status = _Status()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A claim that waits for devices of this node.

    told     the true conditions that it has, by device, and since when
    failed   what came of the last try, where that is worth another
    due      time of the clock before which it is not tried again
    """

    ref: ClaimRef
    results: tuple[_Result, ...]
    told: Mapping[Place, Mapping[str, str]]
    failed: KubeError | None = None
    due: float = 0.0

    def is_settled(self) -> bool:
        """Whether the scheduler knows all that it waits for, or that there is nothing to wait for any more."""
        true = [(result, self.told.get(_place(result), {}).keys()) for result in self.results]
        return any(told & set(result.binding_failure_conditions) for result, told in true) or all(
            set(result.binding_conditions) <= told for result, told in true
        )


class BindingWatch:
    """Tells claims which binding conditions of their devices hold. The handler of the list-and-watch of all claims."""

    def __init__(self, client: Client, pools: Sequence[Pool], clock: Clock = SYSTEM) -> None:
        self._client = client
        self._pools = {pool.name: pool for pool in pools}
        self._clock = clock
        self._watch = ListWatch(client, CLAIMS, {}, self, clock=clock, name="claims")
        self._guard = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._answered: dict[str, int] = {}
        self._refusals: dict[str, int] = {}
        self._due = threading.Event()
        self._failing = Complaint(
            log, "binding conditions cannot be written", "binding conditions are written", logging.WARNING
        )

    @property
    def trouble(self) -> str:
        """Why claims that wait are not seen or not told; empty while they are."""
        return self._watch.trouble or self._failing.text

    def loops(self) -> Sequence[Loop]:
        """Return the loops: the watch of the claims, and the writer."""
        return (("claims that bind", self._watch.run), ("binding conditions", self.run))

    def seen(self) -> None:
        """Look again: hardware has changed."""
        self._due.set()

    def replaced(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Take over a list of all claims."""
        with self._guard:
            found: dict[str, _Waiting | None] = {}
            for obj in objects:
                uid = str(obj["metadata"].get("uid"))
                found[uid] = self._waiting.get(uid) if self._is_old(uid, obj) else self._read(obj)
            self._waiting = {uid: waiting for uid, waiting in found.items() if waiting}
            self._answered = {uid: version for uid, version in self._answered.items() if uid in found}
            self._refusals = {uid: times for uid, times in self._refusals.items() if uid in self._waiting}
        self._due.set()

    def changed(self, kind: str, obj: Mapping[str, Any]) -> None:
        """Take over one event of the watch."""
        uid = str(obj["metadata"].get("uid"))
        with self._guard:
            if kind != "DELETED" and self._is_old(uid, obj):
                return
            self._answered.pop(uid, None)
            self._take(uid, None if kind == "DELETED" else self._read(obj))

    def run(self, stop: threading.Event) -> None:
        """Write what holds, until `stop`."""
        waits = delays(0.5, 10.0)
        while not stop.is_set():
            if not self._due.wait(0.5):
                continue
            self._due.clear()
            trouble, pause = self._write_all(stop)
            if trouble:
                self._failing.say(str(_explained(trouble)))
            else:
                self._failing.end()
            if trouble or self._refusals:
                self._clock.wait(stop, next(waits) + pause)
                self._due.set()
            else:
                waits = delays(0.5, 10.0)

    def _take(self, uid: str, waiting: _Waiting | None) -> None:
        if waiting:
            self._waiting[uid] = waiting
            self._due.set()
        else:
            self._waiting.pop(uid, None)
            self._refusals.pop(uid, None)

    def _is_old(self, uid: str, obj: Mapping[str, Any]) -> bool:
        """Whether an object is older than the answer to what we wrote into it.

        The resource versions of a kind are numbers that rise (KEP-5504).
        """
        version = _version(obj)
        return version is not None and version < self._answered.get(uid, 0)

    def _read(self, obj: Mapping[str, Any]) -> _Waiting | None:
        """Return a claim that waits for devices of ours, None for any other."""
        # Most claims of a cluster are other nodes' affair: a look tells.
        match obj:
            case {"status": {"allocation": {"devices": {"results": list(results)}}}}:
                if not any(
                    isinstance(one, Mapping) and one.get("pool") in self._pools and "bindingConditions" in one
                    for one in results
                ):
                    return None
            case _:
                return None
        try:
            claim = msgspec.convert(obj, _Claim)
        except (msgspec.ValidationError, RecursionError) as error:
            log.debug("a claim is passed over: %s", error)
            return None
        allocation = claim.status.allocation or _Allocation()
        mine = tuple(result for result in allocation.devices.results or () if self._is_ours(result))
        metadata = claim.metadata
        ref = ClaimRef(metadata.uid, metadata.namespace, metadata.name)
        waiting = _Waiting(ref, mine, _told(claim.status.devices or ()))
        return None if not mine or waiting.is_settled() else waiting

    def _is_ours(self, result: _Result) -> bool:
        pool = self._pools.get(result.pool)
        return pool is not None and pool.driver == result.driver and bool(result.binding_conditions)

    def _write_all(self, stop: threading.Event) -> tuple[KubeError | None, float]:
        """Write all that is due.

        Return what stands in the way of those that cannot be written, and for how many seconds beyond the back-off all
        are to wait.
        """
        with self._guard:
            waiting = list(self._waiting.items())
        trouble: KubeError | None = None
        failures = 0
        for uid, claim in waiting:
            if stop.is_set() or failures >= MAX_FAILURES:
                break
            if claim.due > self._clock.now():
                trouble = trouble or claim.failed
                continue
            entries = [entry for result in claim.results if (entry := self._entry(claim, result))]
            if not _says_more(entries, claim.told):
                with self._guard:
                    self._refusals.pop(uid, None)
                continue
            try:
                answer = self._write(claim.ref, entries)
            except KubeError as error:
                if not isinstance(error, StatusError) or may_pass(error):
                    trouble = error
                    failures += 1 if isinstance(error, StatusError) else MAX_FAILURES
                    self._put_off(uid, claim, error)
                    continue
                if not is_over(error) and self._is_worth_another(uid):
                    continue
                level = logging.DEBUG if is_over(error) else logging.WARNING
                log.log(level, "claim %s is not told of binding conditions: %s", claim.ref, error)
                answer = None
            failures = 0
            with self._guard:
                self._refusals.pop(uid, None)
                if self._waiting.get(uid) is claim:
                    self._take(uid, self._read(answer) if answer else None)
                if answer:
                    self._answered[uid] = _version(answer) or 0
        return trouble, extra_wait(trouble) if trouble and failures >= MAX_FAILURES else 0.0

    def _put_off(self, uid: str, claim: _Waiting, error: KubeError) -> None:
        """Let a claim wait behind all others, and for as long as the server asks."""
        asked = error.retry_after if isinstance(error, StatusError) else None
        with self._guard:
            if self._waiting.get(uid) is claim:
                del self._waiting[uid]
                due = self._clock.now() + spread(asked or 0.0)
                self._waiting[uid] = replace(claim, failed=error.with_traceback(None), due=due)

    def _is_worth_another(self, uid: str) -> bool:
        """Count a refusal; return whether the claim may be sent once more."""
        with self._guard:
            if uid not in self._waiting:
                return False
            self._refusals[uid] = self._refusals.get(uid, 0) + 1
            return self._refusals[uid] < MAX_REFUSALS

    def _entry(self, claim: _Waiting, result: _Result) -> dict[str, Any] | None:
        """Return what the claim is told of one device; None where there is nothing to tell yet."""
        pool = self._pools[result.pool]
        snapshot = pool.snapshot
        device = snapshot.index.get(result.device)
        if device is None and not snapshot.probed:
            return None
        if device is None:
            gone = "the device is no longer on this node"
            binding = Binding(failed=dict.fromkeys(result.binding_failure_conditions[:1], gone))
        else:
            binding = pool.backend.binding(device, snapshot.inventory)
        true = {
            name: ("Bound", text) for name, text in binding.met.items() if name in result.binding_conditions
        }
        true |= {
            name: ("Failed", text)
            for name, text in binding.failed.items()
            if name in result.binding_failure_conditions
        }
        if not true:
            return None
        now = timestamp(time.time())
        since = claim.told.get(_place(result), {})
        return {
            "driver": result.driver,
            "pool": result.pool,
            "device": result.device,
            **({"shareID": result.share_id} if result.share_id else {}),
            "conditions": [
                {
                    "type": name,
                    "status": "True",
                    "reason": reason,
                    "message": one_line(text, MAX_MESSAGE),
                    "lastTransitionTime": since.get(name) or now,
                }
                for name, (reason, text) in true.items()
            ],
        }

    def _write(self, ref: ClaimRef, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Write the entries; return the claim as it is then. Raises KubeError."""
        deadline = self._clock.now() + REQUEST_SECONDS
        answer = apply_devices(self._client, ref, entries, MANAGER, deadline)
        match answer:
            case {"metadata": {}}:
                log.info("claim %s is told of the binding conditions of its devices", ref)
                return dict(answer)
        raise UnreachableError("the answer is no claim")


def _explained(error: KubeError) -> OSError:
    if isinstance(error, StatusError):
        return explained(error, "patch", "resourceclaims/status")
    return error


def _version(obj: Mapping[str, Any]) -> int | None:
    """Return the resource version of an object as a number."""
    text = obj["metadata"].get("resourceVersion")
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,20}", text) else None


def _place(result: _Result) -> Place:
    return result.driver, result.pool, result.device, result.share_id or ""


def _told(devices: Iterable[Mapping[str, Any]]) -> dict[Place, dict[str, str]]:
    """Return the conditions that are true by device, with the time since when."""
    return {
        place_of_entry(one): {
            str(condition.get("type")): str(condition.get("lastTransitionTime") or "")
            for condition in _listed(one.get("conditions"))
            if isinstance(condition, Mapping) and condition.get("status") == "True"
        }
        for one in devices
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _says_more(entries: Iterable[Mapping[str, Any]], told: Mapping[Place, Mapping[str, str]]) -> bool:
    """Whether entries have conditions that the claim was not told of."""
    return any(
        condition["type"] not in told.get(place_of_entry(entry), {})
        for entry in entries
        for condition in entry["conditions"]
    )
