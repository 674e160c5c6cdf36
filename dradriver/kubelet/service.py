"""The DRA service (DRAPlugin), v1 and v1beta1: one implementation, two names.

The answer has exactly one entry for each claim of the call, whatever the preparer did: the kubelet fails the
whole pod over a missing one, and a call that fails as such hides which claim was at fault.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import grpc

from dradriver.kubelet.text import sentence
from dradriver.model import ClaimRef, PreparedDevice, shown
from dradriver.model.names import MAX_SUBDOMAIN, check_label, check_subdomain, check_uid
from dradriver_protos import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc

MAX_CALL_SECONDS = 40.0
"""The kubelet waits for 45 s and calls again much later: an answer must come within its patience."""

MARGIN_SECONDS = 2.0
"""Time kept back from the caller's deadline, for the answer to reach it."""

_LOGGED = 10
"""Failing claims of one call that are logged one by one."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Preparer(Protocol):
    """What makes claims ready and undoes that. Called from many threads at once, also for the same claim.

    `deadline` is in seconds of time.monotonic(). Claims of one call have distinct UIDs, and UIDs that
    `names.check_uid` admits. Namespaces and names are well formed in `prepare`; in `unprepare` they may be
    anything. An error is a sentence for people: the kubelet adds the claim's namespace and name.
    """

    def prepare(
        self, driver: str, claims: Sequence[ClaimRef], deadline: float
    ) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Return, for each UID, the devices prepared or an error. A repeat returns the same devices."""

    def unprepare(self, driver: str, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str | None]:
        """Return, for each UID, None when nothing of the claim is left on the node, or an error."""


def add_services(server: grpc.Server, driver: str, preparer: Preparer) -> None:
    """Register both versions of the service."""
    calls = _Calls(driver, preparer)
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_Servicer(calls, dra_v1_pb2, has_share_id=True), server)
    dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(
        _Servicer(calls, dra_v1beta1_pb2, has_share_id=False), server
    )


class _Calls:
    """The two calls, in our own types."""

    def __init__(self, driver: str, preparer: Preparer) -> None:
        self.driver = driver
        self._preparer = preparer

    def prepare(
        self, claims: Iterable[ClaimRef], deadline: float
    ) -> dict[str, tuple[PreparedDevice, ...] | str]:
        answers: dict[str, tuple[PreparedDevice, ...] | str] = {}
        asked: dict[str, ClaimRef] = {}
        for claim in claims:
            try:
                _check(claim, asked)
            except ValueError as error:
                answers[claim.uid] = sentence(str(error))
                asked.pop(claim.uid, None)
            else:
                if claim.uid not in answers:
                    asked[claim.uid] = claim
        return answers | self._ask("prepare", self._preparer.prepare, asked, deadline, _devices)

    def unprepare(self, claims: Iterable[ClaimRef], deadline: float) -> dict[str, str | None]:
        answers: dict[str, str | None] = {}
        asked: dict[str, ClaimRef] = {}
        for claim in claims:
            try:
                asked.setdefault(check_uid(claim.uid), claim)
            except ValueError:
                answers[claim.uid] = None  # such a claim was never prepared
        return answers | self._ask("unprepare", self._preparer.unprepare, asked, deadline, _nothing)

    def failed(self, verb: str, uid: str, error: Exception) -> str:
        """Log an exception under an id, and return the error that names the id to the outside."""
        ident = secrets.token_hex(4)
        _log.error("%s: %s of %s: internal error %s", self.driver, verb, shown(uid), ident, exc_info=error)
        return f"internal error of the driver: its log has the details under {ident}"

    def _ask(
        self,
        verb: str,
        call: Callable[[str, Sequence[ClaimRef], float], Mapping[str, T | str]],
        asked: Mapping[str, ClaimRef],
        deadline: float,
        check: Callable[[object], T],
    ) -> dict[str, T | str]:
        if not asked:
            return {}
        try:
            given = dict(call(self.driver, tuple(asked.values()), deadline))
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the kubelet needs an answer
            return dict.fromkeys(asked, self.failed(verb, ", ".join(asked), error))
        answers: dict[str, T | str] = {}
        for uid, claim in asked.items():
            try:
                answer = given.get(uid, "the driver left the claim out of its answer")
                answers[uid] = _error(answer, claim) if isinstance(answer, str) else check(answer)
            except (TypeError, ValueError) as error:
                answers[uid] = self.failed(verb, uid, error)
        failed = [claim for claim in asked.values() if isinstance(answers[claim.uid], str)]
        for claim in failed[:_LOGGED]:
            name = shown(f"{claim.namespace}/{claim.name}", 256)
            _log.warning("%s: %s of %s (%s): %s", self.driver, verb, name, claim.uid, answers[claim.uid])
        if len(failed) > _LOGGED:
            _log.warning("%s: %s failed for %d more claims", self.driver, verb, len(failed) - _LOGGED)
        return answers


class _Servicer(dra_v1_pb2_grpc.DRAPluginServicer, dra_v1beta1_pb2_grpc.DRAPluginServicer):
    """One version of the service; the messages of the two differ in their package and in the share id."""

    def __init__(self, calls: _Calls, messages: Any, *, has_share_id: bool) -> None:
        self._calls = calls
        self._messages = messages
        self._has_share_id = has_share_id

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        response = self._messages.NodePrepareResourcesResponse()
        for uid, answer in self._calls.prepare(_refs(request), _deadline(context)).items():
            entry = response.claims[uid]
            if isinstance(answer, str):
                entry.error = answer
                continue
            try:
                entry.devices.extend(self._device(device) for device in answer)
            except (TypeError, ValueError) as error:
                entry.Clear()
                entry.error = self._calls.failed("prepare", uid, error)
        return response

    def NodeUnprepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        response = self._messages.NodeUnprepareResourcesResponse()
        for uid, error in self._calls.unprepare(_refs(request), _deadline(context)).items():
            entry = response.claims[uid]
            if error is not None:
                entry.error = error
        return response

    def _device(self, device: PreparedDevice) -> Any:
        message = self._messages.Device(
            request_names=device.requests,
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_ids,
        )
        if self._has_share_id and device.share_id is not None:
            message.share_id = device.share_id
        return message


def _refs(request: Any) -> Iterable[ClaimRef]:
    return (ClaimRef(claim.uid, claim.namespace, claim.name) for claim in request.claims)


def _check(claim: ClaimRef, asked: Mapping[str, ClaimRef]) -> None:
    check_uid(claim.uid)
    check_label(claim.namespace, "namespace of the claim")
    check_subdomain(claim.name, "name of the claim", MAX_SUBDOMAIN)
    if asked.get(claim.uid, claim) != claim:
        raise ValueError("the call names two claims with this UID: a UID belongs to one claim")


def _deadline(context: grpc.ServicerContext) -> float:
    """Return when the answer must be ready, in seconds of time.monotonic()."""
    remaining: float | None = context.time_remaining()
    if remaining is None:
        remaining = MAX_CALL_SECONDS + MARGIN_SECONDS
    return time.monotonic() + max(0.0, min(remaining - MARGIN_SECONDS, MAX_CALL_SECONDS))


def _devices(answer: object) -> tuple[PreparedDevice, ...]:
    if isinstance(answer, tuple) and all(isinstance(device, PreparedDevice) for device in answer):
        return answer
    raise TypeError(f"the answer is {shown(answer)}: a tuple of PreparedDevice or a string is allowed")


def _nothing(answer: object) -> None:
    if answer is not None:
        raise TypeError(f"the answer is {shown(answer)}: None or a string is allowed")


def _error(text: str, claim: ClaimRef) -> str:
    """Return `text` for the kubelet: without the claim's name, and never empty, which would mean success."""
    return sentence(text.replace(str(claim), "the claim")) or "the driver gave no reason"
