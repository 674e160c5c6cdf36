"""The life of one claim: executed, repeated, settled after a cut, undone. The caller holds the claim's lock.

The order of writes makes every cut recoverable: the journal knows of a step before it is applied, a CDI file exists
only while every step is applied, the journal calls a claim prepared after that, and the claim leaves the journal last.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

from dradriver.backend import BackendError, Check, Observed, Phase, UnavailableError
from dradriver.claims import ClaimError
from dradriver.engine.cdifiles import CDIFiles
from dradriver.engine.journal import Journal, JournalError
from dradriver.engine.lanes import HungError
from dradriver.engine.locks import Key
from dradriver.engine.namespaces import Namespaces
from dradriver.engine.planning import Planned, rendered, rendered_anew, strayed
from dradriver.engine.pools import Pool, Pools
from dradriver.engine.progress import Progress, StepRunner
from dradriver.engine.records import DeviceRecord, Record, SandboxRecord, State, StepState
from dradriver.engine.retry import retried
from dradriver.model import shown

log = logging.getLogger(__name__)

MESSAGE_CHARACTERS = 1000


class Lifecycle:
    """Brings claims from one state to another."""

    def __init__(
        self,
        pools: Pools,
        journal: Journal,
        cdi: CDIFiles,
        *,
        runner: StepRunner,
        namespaces: Namespaces,
        boot: str,
        unsettled: Callable[[Key], None],
        moved: Callable[[Record], None],
    ) -> None:
        """Have nothing to do yet.

        unsettled   told of claims that are neither wholly prepared nor wholly undone, for another try
        moved       told of prepared claims that are wholly in a sandbox now, or are so no more
        """
        self._pools = pools
        self._journal = journal
        self._cdi = cdi
        self._runner = runner
        self._namespaces = namespaces
        self._boot = boot
        self._unsettled = unsettled
        self._moved = moved
        self._stop = threading.Event()

    def execute(self, progress: Progress, planned: Planned, deadline: float) -> None:
        """Check what is to be looked at for a claim that was just journalled, apply its steps, and write its CDI file.

        Steps of phase sandbox wait for `enter`, and the file with them.
        """
        self._check(planned, deadline)
        numbers = progress.of(Phase.PREPARE)
        self._apply(progress, numbers, deadline)
        if not numbers:
            self._write(progress.record)
            return
        devices = rendered(planned, progress.facts)
        progress.record = progress.changed(devices=devices, state=State.PREPARED)
        self._write(progress.record)
        self._journal.update(
            *progress.key, state=State.PREPARED, devices=devices, steps=[(numbers[-1], StepState.APPLIED)]
        )

    def _check(self, planned: Planned, deadline: float) -> None:
        for pool, check in planned.checks:
            retried(partial(_look, pool, check, deadline), deadline, self._stop)

    def _apply(self, progress: Progress, numbers: list[int], deadline: float) -> None:
        """Apply steps, of which the first is journalled as being applied; the outcome of the last is not journalled."""
        for n, following in zip_longest(numbers, numbers[1:]):
            self._patiently(progress, n, deadline, "apply")
            progress.states[n] = StepState.APPLIED
            if following is not None:
                progress.states[following] = StepState.APPLYING
                steps = [(n, StepState.APPLIED), (following, StepState.APPLYING)]
                self._journal.update(*progress.key, steps=steps)

    def enter(self, progress: Progress, sandbox: SandboxRecord, deadline: float) -> Record:
        """Apply the steps of phase sandbox of a prepared claim that is in none, and write its CDI file.

        Leave again with `leave` where this raises.
        """
        numbers = progress.of(Phase.SANDBOX)
        sandbox = replace(sandbox, number=self._namespaces.hold(progress.key, sandbox.netns))
        progress.states[numbers[0]] = StepState.APPLYING
        progress.record = progress.changed(sandbox=sandbox)
        self._journal.update(*progress.key, sandbox=sandbox, steps=[(numbers[0], StepState.APPLYING)])
        self._apply(progress, numbers, deadline)
        record = progress.changed()
        devices = rendered_anew(record, self._pools)
        generation = record.generation + _tells_otherwise(record.devices, devices)
        sandbox = replace(sandbox, since=time.time())
        progress.record = replace(record, devices=devices, generation=generation, sandbox=sandbox)
        self._write(progress.record)
        self._journal.update(
            *progress.key,
            devices=devices if devices != record.devices else None,
            generation=generation,
            sandbox=sandbox,
            steps=[(numbers[-1], StepState.APPLIED)],
        )
        self._moved(progress.record)
        return progress.record

    def leave(self, progress: Progress, deadline: float) -> None:
        """Take a prepared claim out of its sandbox, if it is in one: its steps are as planned, and it has no CDI file.

        The journal knows first that none of it counts any more. Raises where that is not possible now; the claim then
        waits for another try.
        """
        sandbox = progress.record.sandbox or SandboxRecord()
        numbers = progress.of(Phase.SANDBOX)
        touched = [n for n in numbers if progress.states[n] is not StepState.PLANNED]
        was_whole = all(progress.states[n] is StepState.APPLIED for n in numbers)
        if was_whole:
            sandbox = replace(sandbox, since=time.time())
        try:
            begun = [(n, StepState.APPLYING) for n in touched if progress.states[n] is StepState.APPLIED]
            if begun:
                self._note(progress, sandbox=sandbox, steps=begun)
            progress.states.update(begun)
            self._cdi.remove_claim(progress.record.driver, progress.record.ref)
            for n in reversed(touched):
                self._patiently(progress, n, deadline, "revert")
                progress.states[n] = StepState.REVERTED
            if touched or sandbox.id:
                with self._journal.transaction():
                    planned = [(n, StepState.PLANNED) for n in numbers]
                    self._journal.update(*progress.key, sandbox=sandbox.free, steps=planned)
                    for n in touched:
                        self._journal.set_step_facts(*progress.key, n, {})
        except Exception:
            self._unsettled(progress.key)
            raise
        finally:
            if was_whole:
                self._moved(progress.record)
        for n in numbers:
            progress.states[n] = StepState.PLANNED
            progress.facts[n] = {}
        progress.record = progress.changed(sandbox=sandbox.free)
        self._namespaces.release(progress.key)

    def reserve(self, progress: Progress, pods: tuple[str, ...]) -> None:
        """Take note of the pods that a claim with steps of phase sandbox is reserved for now."""
        sandbox = progress.record.sandbox
        if sandbox is not None and sandbox.pods != pods:
            progress.record = replace(progress.record, sandbox=replace(sandbox, pods=pods))
            self._journal.update(*progress.key, sandbox=progress.record.sandbox)

    def is_entered(self, progress: Progress, deadline: float) -> bool:
        """Whether every step of phase sandbox is applied, and seen to be. Raises where that cannot be seen."""
        return all(
            progress.states[n] is StepState.APPLIED
            and self._runner.call(progress, n, deadline, "observe") is Observed.DONE
            for n in progress.of(Phase.SANDBOX)
        )

    def mend(self, progress: Progress, deadline: float) -> None:
        """Do again what ended by itself of a prepared claim, beneath its containers. Raises where that fails."""
        for n in progress.of(Phase.PREPARE):
            if self._runner.mends(progress, n):
                self._stands(progress, n, deadline)

    def _stands(self, progress: Progress, n: int, deadline: float) -> bool:
        """Return whether a step is done, if need be after it was done again."""
        if self._runner.call(progress, n, deadline, "observe") is Observed.DONE:
            return True
        if not self._runner.mends(progress, n):
            return False
        record = progress.record
        log.warning(
            "claim %s of %s: it ended by itself, and is done again: %s",
            record.ref,
            record.driver,
            record.steps[n].text,
        )
        self._patiently(progress, n, deadline, "apply")
        progress.record = progress.changed()
        return True

    def repeat(self, record: Record) -> Record:
        """Write the CDI file of a prepared claim anew.

        Raises ClaimError where a device is gone; its file is withdrawn where that leads to other hardware now.
        """
        try:
            devices = rendered_anew(record, self._pools)
        except (ClaimError, BackendError) as error:
            self._withdraw_strayed(record, record.devices, f"; {error}")
            raise
        self._withdraw_strayed(record, devices)
        return self._refresh(record, devices)

    def _withdraw_strayed(self, record: Record, devices: tuple[DeviceRecord, ...], more: str = "") -> None:
        """Take a claim's CDI file away where it would lead to other hardware, and raise ClaimError.

        A container that is started again then fails, and gets nothing that is not the claim's.
        """
        why = strayed(devices, self._pools)
        if why:
            self._cdi.remove_claim(record.driver, record.ref)
            raise ClaimError(f"its CDI file is withdrawn: {why}{more}")

    def restore(self, record: Record) -> None:
        """Write the CDI file of a prepared claim anew, as it was where a device is gone: its containers live on."""
        try:
            devices = rendered_anew(record, self._pools)
        except (ClaimError, BackendError) as error:
            log.error("claim %s of %s: %s", record.ref, record.driver, error)
            devices = record.devices
        try:
            self._withdraw_strayed(record, devices)
        except ClaimError as error:
            log.error("claim %s of %s: %s", record.ref, record.driver, error)
        else:
            self._refresh(record, devices)

    def _refresh(self, record: Record, devices: tuple[DeviceRecord, ...]) -> Record:
        """Bring the claim's files to what its devices are now. The journal knows of it first."""
        if devices != record.devices:
            generation = record.generation + _tells_otherwise(record.devices, devices)
            record = replace(record, devices=devices, generation=generation)
            self._journal.update(record.driver, record.ref.uid, devices=devices, generation=generation)
        self._write(record)
        return record

    def _write(self, record: Record) -> None:
        wanted = {device.backend for device in record.devices if device.base}
        if wanted:
            self._cdi.write_base(record.driver, self._pools.of_driver(record.driver), wanted)
        if record.is_open:
            self._cdi.write_claim(record)

    def settle(
        self, progress: Progress, deadline: float, is_gone: Callable[[SandboxRecord], bool]
    ) -> Record | None:
        """Return the record of a claim that is wholly prepared; undo it where it is not, and return None.

        A prepared claim whose steps of phase sandbox are not all done, or whose sandbox `is_gone`, leaves the sandbox.

        Wholly prepared is what the journal says so of, and of which every step is observed done; what ended by itself,
        and can be done again beneath containers, is done again. A claim that was cut off before is undone even where
        its steps seem done: what they found out may be lost, and nobody was told of it. So are claims of an earlier
        boot: after a reboot nothing counts as prepared. Raises where the hardware cannot be looked at, and then leaves
        the claim as it is.
        """
        record = progress.record
        if record.predates(self._boot):
            log.info("claim %s of %s was prepared before the last reboot: undone", record.ref, record.driver)
        elif record.state is State.PREPARED and self._is_whole(progress, deadline):
            self._settle_sandbox(progress, deadline, is_gone)
            return progress.record
        else:
            log.warning("claim %s of %s is not wholly prepared: undone", record.ref, record.driver)
        self.undo(progress, deadline)
        return None

    def _is_whole(self, progress: Progress, deadline: float) -> bool:
        return all(self._stands(progress, n, deadline) for n in progress.of(Phase.PREPARE))

    def _settle_sandbox(
        self, progress: Progress, deadline: float, is_gone: Callable[[SandboxRecord], bool]
    ) -> None:
        sandbox = progress.record.sandbox
        if sandbox is None or not (sandbox.id or set(progress.of(Phase.SANDBOX)) & set(progress.touched)):
            return
        if is_gone(sandbox):
            why = "its pod is gone"
        elif self.is_entered(progress, deadline):
            return
        else:
            why = "not all of it is done"
        log.warning(
            "claim %s of %s is taken out of its pod: %s", progress.record.ref, progress.record.driver, why
        )
        self.leave(progress, deadline)

    def roll_back(self, progress: Progress, deadline: float) -> None:
        """Undo a claim that could not be executed; what cannot be undone now is left for another try."""
        try:
            self.undo(progress, deadline)
        except Exception as error:  # noqa: BLE001 - the failure that led here is the one to report
            log.error("claim %s cannot be undone yet: %s", progress.record.ref, shown(error, 500))

    def undo(self, progress: Progress, deadline: float) -> None:
        """Take the claim's CDI file away, revert its steps in reverse order, and forget it.

        The journal's writes in between only spare work after a crash: reverting is idempotent, so a full disk does not
        stop the way back before the last one.
        """
        try:
            touched = progress.touched
            if touched:
                self._note(progress, state=State.UNPREPARING)
            self._cdi.remove_claim(progress.record.driver, progress.record.ref)
            for n in reversed(touched):
                self._patiently(progress, n, deadline, "revert")
                progress.states[n] = StepState.REVERTED
                if n != touched[0]:
                    self._note(progress, steps=[(n, StepState.REVERTED)])
            self._journal.delete(*progress.key)
            self._namespaces.release(progress.key)
        except Exception as error:
            self._unsettled(progress.key)
            message = str(error)[:MESSAGE_CHARACTERS].encode(errors="backslashreplace").decode()
            self._note(progress, state=State.UNPREPARING, message=message)
            raise

    def _patiently(self, progress: Progress, n: int, deadline: float, verb: str) -> None:
        retried(lambda: self._runner.call(progress, n, deadline, verb), deadline, self._stop)

    def _note(self, progress: Progress, **changes: Any) -> None:
        try:
            self._journal.update(*progress.key, **changes)
        except JournalError as error:
            log.error("claim %s: %s", progress.record.ref, error)

    def close(self) -> None:
        """End the retries, and tell steps that run to come to their end."""
        self._stop.set()
        self._runner.close()


def _look(pool: Pool, check: Check[Any], deadline: float) -> None:
    """Make one check. One that hangs changes nothing, so that nothing waits for its end."""
    try:
        pool.lane.call(lambda: check.look(pool.backend), deadline, check.describe())
    except HungError as error:
        raise UnavailableError(str(error)) from None


def _tells_otherwise(before: tuple[DeviceRecord, ...], now: tuple[DeviceRecord, ...]) -> bool:
    """Whether containers are told something else of their devices.

    A record that was taken over from a CDI file has no attributes, whatever its containers were told.
    """
    return any(
        old.network != new.network or (old.attributes and old.attributes != new.attributes)
        for old, new in zip(before, now, strict=True)
    )
