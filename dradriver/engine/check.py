"""Whether a record that was read back from a CDI file can be believed.

The files are root's own, yet others write into their directory, and what a record says is later reverted: a step or a
hold that this daemon could not have written must not become work.
"""

import re

from dradriver.backend import BackendError, Phase
from dradriver.claims import ClaimError
from dradriver.engine.journal import Journal
from dradriver.engine.ledger import (
    LEAST,
    ONE,
    ZERO,
    capacity_prefix,
    counter_prefix,
    device_draws,
    device_unit,
)
from dradriver.engine.pools import Pool, Pools
from dradriver.engine.records import (
    DeviceRecord,
    Hold,
    Record,
    State,
    StepState,
    encode,
    plan_prefix,
    restore_configs,
    restore_step,
)
from dradriver.model import shown
from dradriver.model.names import check_label, check_subdomain, check_uid

_KINDS = frozenset({"bool", "int", "string", "version", "bools", "ints", "strings", "versions"})
"""The fields of a DeviceAttribute object."""

_PATH = re.compile(r"/[A-Za-z0-9._:/-]{1,1000}")

_PLAN_HOLD = re.compile(r"[A-Za-z0-9._:/-]{1,253}")


def check_record(record: Record, pools: Pools, journal: Journal) -> None:
    """Raise ValueError unless the record is one that this configuration's engine could have written."""
    check_uid(record.ref.uid)
    check_label(record.ref.namespace, "namespace")
    check_subdomain(record.ref.name, "claim name")
    if record.state is not State.PREPARED or not record.devices:
        raise ValueError("it is not that of a prepared claim")
    if not 0 <= record.created < 1e12:
        raise ValueError(f"created: {shown(record.created)} is no time")
    if record.pod_claim:
        check_label(record.pod_claim, "the pod's name of the claim")
    if record.generation < 1:
        raise ValueError(f"generation {record.generation} is not 1 or more")
    _check_sandbox(record)
    for device in record.devices:
        _check_device(record, device, pools)
    for step in record.steps:
        pool = _pool(record, step.backend, pools)
        try:
            restored = restore_step(pool.backend, step)
        except BackendError as error:
            raise ValueError(str(error)) from None
        if restored.phase is not step.phase or step.state not in {StepState.PLANNED, StepState.APPLIED}:
            raise ValueError(f"step {step.type}: phase {step.phase.value}, state {step.state.value}")
    _check_text(record)
    _check_holds(record, pools, journal)


def _check_sandbox(record: Record) -> None:
    sandbox = record.sandbox
    if (sandbox is None) == any(step.phase is Phase.SANDBOX for step in record.steps):
        raise ValueError("its sandbox does not go with its steps")
    if sandbox and not (sandbox.id and record.is_open and _PATH.fullmatch(sandbox.netns)):
        raise ValueError(f"it is in no sandbox: {shown(sandbox.netns)}")


def _pool(record: Record, kind: str, pools: Pools) -> Pool:
    pool = pools.of_kind(kind)
    if pool is None or pool.driver != record.driver:
        raise ValueError(f"backend {shown(kind)} is not one of {record.driver}")
    return pool


def _check_device(record: Record, device: DeviceRecord, pools: Pools) -> None:
    pool = _pool(record, device.backend, pools)
    if (device.allocated.driver, device.allocated.pool) != (record.driver, pool.name):
        raise ValueError(f"pool {shown(device.allocated.pool)} is not {pool.name}")
    check_label(device.allocated.device, "device")
    for part in device.allocated.request.split("/", 1):
        check_label(part, "request name")
    if device.allocated.share_id is not None:
        check_uid(device.allocated.share_id)
    for name, body in (*device.metadata.items(), *device.attributes.items()):
        if len(body) != 1 or not body.keys() <= _KINDS:
            raise ValueError(f"attribute {shown(name)} has no value of a known type")
    try:
        restore_configs(pool.backend, device.configs)
    except ClaimError as error:
        raise ValueError(str(error)) from None


def _check_text(record: Record) -> None:
    """Refuse what no journal can hold, such as half a surrogate pair."""
    try:
        encode(record)
    except UnicodeEncodeError:
        raise ValueError("it holds text that is not Unicode") from None


def _check_holds(record: Record, pools: Pools, journal: Journal) -> None:
    """Refuse holds that are not the record's to have, and a device without its own: it would be given out again."""
    if len({(hold.unit, hold.index) for hold in record.holds}) < len(record.holds):
        raise ValueError("it has a hold twice")
    for hold in record.holds:
        _check_hold(record, hold, journal)
    for index, device in enumerate(record.devices):
        snapshot = _pool(record, device.backend, pools).snapshot
        known = snapshot.index.get(device.allocated.device)
        if known is None:
            continue
        draws = device_draws(index, device.allocated, known, snapshot.counter_sets)
        if draws and not any(hold.index == index for hold in record.holds):
            raise ValueError(f"it holds nothing of device {device.allocated.device}")


def _check_hold(record: Record, hold: Hold, journal: Journal) -> None:
    own = [device.allocated for device in record.devices]
    prefixes = [plan_prefix(device.backend) for device in record.devices]
    of_plan = [hold.unit.removeprefix(prefix) for prefix in prefixes if hold.unit.startswith(prefix)]
    for name in of_plan:
        if not _PLAN_HOLD.fullmatch(name):
            raise ValueError(f"hold {shown(hold.unit)} is none that a plan makes")
    of_device = hold.unit in {device_unit(allocated) for allocated in own}
    exclusive = bool(of_plan) or of_device
    shared = tuple(prefix(allocated) for allocated in own for prefix in (capacity_prefix, counter_prefix))
    if not exclusive and not hold.unit.startswith(shared):
        raise ValueError(f"hold {shown(hold.unit)} is of no device of it")
    if not -1 <= hold.index < len(own) or hold.amount < ZERO:
        raise ValueError(f"hold {shown(hold.unit)}: {hold.amount} for device {hold.index}")
    given_out = {ONE, LEAST} if of_device else {ONE}
    if exclusive and (hold.amount not in given_out or journal.taken(hold.unit) + hold.amount > ONE):
        raise ValueError(f"hold {shown(hold.unit)}: it is given out once, and another claim has it")
