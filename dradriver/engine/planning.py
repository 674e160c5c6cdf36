"""From an allocated claim to the plans of the backends concerned. Pure but for the clock: nothing is changed."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dradriver.backend import (
    Backend,
    BackendError,
    Check,
    ContainerEdits,
    Phase,
    Plan,
    PlannedDevice,
    Request,
    Requested,
)
from dradriver.claims import Claim, ClaimError, layered
from dradriver.engine.ledger import Draw, device_draws, plan_draws
from dradriver.engine.pools import Pool, Pools, Snapshot
from dradriver.engine.records import (
    DeviceRecord,
    Hold,
    Record,
    SandboxRecord,
    State,
    StepRecord,
    StepState,
    device_record,
    restore_configs,
    restore_request,
    step_record,
)
from dradriver.model import Allocated, ClaimRef, Peer, shown
from dradriver.model.names import check_label, check_uid


@dataclass(frozen=True, slots=True)
class Part:
    """One backend's share of a claim: its request, and the snapshot that it was made from."""

    pool: Pool
    snapshot: Snapshot
    request: Request
    configs: tuple[dict[str, dict[str, Any]], ...]
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """The plans of all backends concerned, in the order of the parts."""

    parts: tuple[tuple[Part, Plan], ...]
    draws: tuple[Draw, ...]

    @property
    def checks(self) -> Iterator[tuple[Pool, Check[Any]]]:
        """All that is to be looked at, with the pool whose lane it is done on."""
        return ((part.pool, check) for part, made in self.parts for check in made.checks)


class MissingDeviceError(ClaimError):
    """An allocated device was not there when its hardware was last looked at."""

    def __init__(self, pool: Pool, message: str) -> None:
        super().__init__(message)
        self.pool = pool


def requests(claim: Claim, driver: str, pools: Pools) -> tuple[Part, ...]:
    """Return what the claim asks of each backend of the driver; results of other drivers are passed over.

    Raises ClaimError where a result or its configuration cannot be honoured, MissingDeviceError where looking again
    may help.
    """
    results = [result for result in claim.results if result.driver == driver]
    by_pool: dict[str, list[Requested]] = {}
    raw: dict[str, list[dict[str, dict[str, Any]]]] = {}
    snapshots: dict[str, Snapshot] = {}
    for index, result in enumerate(results):
        _check_result(result)
        pool = _pool(result, pools)
        snapshot = snapshots.setdefault(pool.name, pool.snapshot)
        device = snapshot.index.get(result.device)
        if device is None:
            raise MissingDeviceError(pool, _missing(result, snapshot))
        configs: dict[str, dict[str, Any]] = {}
        if claim.configs:
            configs = layered(result, claim.configs, pool.backend.config_types, pools.config_types)
        by_pool.setdefault(pool.name, []).append(
            Requested(index, result, device, restore_configs(pool.backend, configs))
        )
        raw.setdefault(pool.name, []).append(configs)
    parts = []
    for pool in pools.of_driver(driver):
        if pool.name in by_pool:
            mine = by_pool[pool.name]
            peers = tuple(
                pools.peer(other)
                for other in claim.results
                if not any(other is requested.allocated for requested in mine)
            )
            request = Request(claim.ref, tuple(mine))
            parts.append(Part(pool, snapshots[pool.name], request, tuple(raw[pool.name]), peers))
    return tuple(parts)


def _check_result(result: Allocated) -> None:
    """Refuse what the API server would not have stored. Pool and device are looked up, and need no check."""
    try:
        for part in result.request.split("/", 1):
            check_label(part, "request name")
        if result.share_id is not None:
            check_uid(result.share_id)
    except ValueError as error:
        raise ClaimError(f"allocation result of device {shown(result.device)}: {error}") from None


def _pool(result: Allocated, pools: Pools) -> Pool:
    pool = pools.named(result.pool)
    if pool is None or pool.driver != result.driver:
        served = ", ".join(pool.name for pool in pools.of_driver(result.driver))
        raise ClaimError(f"pool {shown(result.pool)} is not one of this node's, which are {served}")
    return pool


def _missing(result: Allocated, snapshot: Snapshot) -> str:
    message = f"device {shown(result.device)} of pool {result.pool} is not on this node"
    if not snapshot.probed:
        message += ": its hardware was not probed yet"
    return f"{message} ({snapshot.error})" if snapshot.error else message


def plan(parts: tuple[Part, ...], held: Mapping[str, Mapping[str, ClaimRef]]) -> Planned:
    """Ask each backend for its plan, and add up what the claim draws.

    held   backend kind -> what plans of it hold -> who
    """
    planned = []
    draws: list[Draw] = []
    for part in parts:
        backend = part.pool.backend
        made = backend.plan(part.request, part.snapshot.inventory, held[backend.kind], part.peers)
        _check(backend, part.request, made)
        planned.append((part, made))
        for requested in part.request.devices:
            draws += device_draws(
                requested.index, requested.allocated, requested.device, part.snapshot.counter_sets
            )
        draws += plan_draws(backend.kind, made.holds)
    return Planned(tuple(planned), tuple(draws))


def _check(backend: Backend[Any, Any], request: Request, made: Plan) -> None:
    check_devices(backend, request, made.devices)
    if made.holds and all(requested.allocated.admin for requested in request.devices):
        raise BackendError(f"backend {backend.kind} holds something for admin access, which never owns")


def check_devices(backend: Backend[Any, Any], request: Request, devices: Sequence[PlannedDevice]) -> None:
    """Raise BackendError unless a backend answers with the devices that it was asked for, in their order."""
    if [device.allocated for device in devices] != [asked.allocated for asked in request.devices]:
        raise BackendError(f"backend {backend.kind} answers with other devices than it was asked for")


def record(planned: Planned, claim: Claim, driver: str, boot: str, holds: tuple[Hold, ...]) -> Record:
    """Return the journal entry of a plan: its intent, or the whole where there is nothing to execute."""
    steps: list[StepRecord] = [
        step_record(part.pool.backend, step) for part, made in planned.parts for step in made.steps
    ]
    first = next((n for n, step in enumerate(steps) if step.phase is Phase.PREPARE), None)
    if first is not None:
        steps[first] = replace(steps[first], state=StepState.APPLYING)
    return Record(
        driver,
        claim.ref,
        State.PREPARED if first is None else State.PREPARING,
        boot,
        time.time(),
        rendered(planned, {}, final=first is None),
        tuple(steps),
        holds,
        pod_claim=claim.pod_claim,
        sandbox=SandboxRecord(claim.pods) if any(step.phase is Phase.SANDBOX for step in steps) else None,
    )


def rendered(
    planned: Planned, facts: Mapping[int, Mapping[str, Any]], *, final: bool = True
) -> tuple[DeviceRecord, ...]:
    """Return the claim's devices in the order of the allocation.

    facts   what the claim's steps recorded, by their number
    final   whether the steps are done; where not, the edits are those that were planned
    """
    by_index: dict[int, DeviceRecord] = {}
    first = 0
    for part, made in planned.parts:
        backend, devices = part.pool.backend, made.devices
        if final:
            mine = tuple(facts.get(first + n, {}) for n in range(len(made.steps)))
            devices = backend.render(part.request, made, mine, part.snapshot.inventory)
            check_devices(backend, part.request, devices)
        first += len(made.steps)
        for requested, device, configs in zip(part.request.devices, devices, part.configs, strict=True):
            by_index[requested.index] = device_record(
                backend, device, requested.device, configs, bool(part.snapshot.base)
            )
    return tuple(by_index[index] for index in sorted(by_index))


def strayed(devices: Sequence[DeviceRecord], pools: Pools) -> str:
    """Return why edits of a prepared claim lead to hardware that is not the claim's; empty where they do not."""
    for device in devices:
        pool = pools.of_kind(device.backend)
        if pool is not None and pool.snapshot.probed:
            edits = ContainerEdits.from_dict(device.edits)
            why = pool.backend.strayed(device.allocated.device, edits, pool.snapshot.inventory)
            if why:
                return why
    return ""


def rendered_anew(record: Record, pools: Pools) -> tuple[DeviceRecord, ...]:
    """Return a prepared claim's devices with edits from the backends as they are now.

    Hardware that could not be looked at yet leaves the edits as they are. Raises ClaimError where a device is gone.
    """
    devices = list(record.devices)
    for kind in dict.fromkeys(device.backend for device in devices):
        pool = pools.of_kind(kind)
        if pool is None or not pool.snapshot.probed:
            continue
        snapshot = pool.snapshot
        try:
            request, made = restore_request(pool.backend, record, snapshot.index)
        except KeyError as error:
            gone = shown(error.args[0])
            raise ClaimError(f"device {gone} of pool {pool.name} is no longer on this node") from None
        facts = tuple(step.facts for step in record.steps if step.backend == kind)
        answered = pool.backend.render(request, made, facts, snapshot.inventory)
        check_devices(pool.backend, request, answered)
        for requested, device in zip(request.devices, answered, strict=True):
            old = devices[requested.index]
            devices[requested.index] = device_record(
                pool.backend, device, requested.device, old.configs, old.base
            )
    return tuple(devices)
