"""What steps have put out of sight, as told to backends in a process that is new.

The journal knows of it, and no probe shows it. What was seen without knowing does not count.
"""

import logging
from collections.abc import Iterable

from dradriver.backend import BackendError, HostStep, Work
from dradriver.engine.pools import Pool, Pools
from dradriver.engine.records import Record, StepRecord, StepState, restore_step
from dradriver.model import shown

log = logging.getLogger(__name__)

_BEGUN = frozenset({StepState.APPLYING, StepState.APPLIED})


def recall(pools: Pools, records: Iterable[Record], boot: str) -> tuple[Pool, ...]:
    """Tell the backends of what the steps of these claims recorded; return the pools that are to be probed now.

    boot   the kernel's boot id; empty where it is unknown. What was done before the last reboot is told of no more

    What was seen of the returned pools before, or is being looked at, counts no more. Nothing is changed on the host.
    """
    told: dict[str, Pool] = {}
    for record in records:
        if record.predates(boot):
            continue
        for _, step in record.host_steps:
            pool = pools.of_kind(step.backend)
            if pool and pool.driver == record.driver and step.state in _BEGUN and _tell(pool, step, record):
                told[pool.name] = pool
    for pool in told.values():
        pool.outdate()
    return tuple(told.values())


def _tell(pool: Pool, stored: StepRecord, record: Record) -> bool:
    """Return whether a probe sees by it what it would not have seen."""
    try:
        step = restore_step(pool.backend, stored)
        work = Work(dict(stored.facts), lambda _: None)
        return isinstance(step, HostStep) and step.recall(pool.backend, work)
    except BackendError as error:
        log.warning(
            "claim %s of %s: what it moved is not known: %s", record.ref, record.driver, shown(error, 500)
        )
    except Exception:
        log.exception("claim %s of %s: what it moved is not known", record.ref, record.driver)
    return False
