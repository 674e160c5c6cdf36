"""A claim under work, and the running of its steps on the lanes of their backends."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dradriver.backend import BackendError, HostStep, Phase, UnavailableError, Work
from dradriver.engine.journal import Journal
from dradriver.engine.lanes import HungError
from dradriver.engine.locks import Key
from dradriver.engine.namespaces import Namespaces
from dradriver.engine.pools import Pool, Pools
from dradriver.engine.records import Record, StepState, restore_step


class Progress:
    """A claim under work: its record, and how far each host step is, ahead of the journal while a write fails."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.key: Key = (record.driver, record.ref.uid)
        self.states = {n: step.state for n, step in record.host_steps}
        self.facts = {n: dict(step.facts) for n, step in record.host_steps}

    def of(self, phase: Phase) -> list[int]:
        """Return the numbers of the steps of a phase."""
        return [n for n, _ in self.record.steps_of(phase)]

    @property
    def touched(self) -> list[int]:
        """The steps that may have changed something, and were not undone, in the order of their execution."""
        return [n for n, state in self.states.items() if state in {StepState.APPLYING, StepState.APPLIED}]

    def changed(self, **fields: Any) -> Record:
        """Return the record with its steps as they are now, and the given fields changed."""
        steps = tuple(
            replace(step, state=self.states[n], facts=self.facts[n]) if n in self.states else step
            for n, step in enumerate(self.record.steps)
        )
        return replace(self.record, steps=steps, **fields)


class StepRunner:
    """Calls the methods of host steps, and remembers calls that did not come back."""

    def __init__(self, pools: Pools, journal: Journal, namespaces: Namespaces, boot: str) -> None:
        """`boot` is the kernel's boot id; empty where it is unknown."""
        self._pools = pools
        self._journal = journal
        self._namespaces = namespaces
        self._boot = boot
        self._hung: dict[Key, HungError] = {}
        self._stops: set[threading.Event] = set()
        self._stopped = False
        self._guard = threading.Lock()

    def call(self, progress: Progress, n: int, deadline: float, verb: str) -> Any:
        """Call `verb` (apply, revert or observe) of a step on its backend's lane, and return what it returns.

        Raises HungError at `deadline` (time.monotonic() seconds), and what the step raises.
        """
        pool, step = self._restored(progress, n)

        def keep(facts: Mapping[str, Any]) -> None:
            progress.facts[n].update(facts)
            self._journal.set_step_facts(*progress.key, n, progress.facts[n])

        stop = self._new_stop()
        netns = self._namespaces.file(progress.record) if step.phase is Phase.SANDBOX else ""
        work = Work(progress.facts[n], keep, stop, netns, rebooted=progress.record.predates(self._boot))
        try:
            return pool.lane.call(
                lambda: getattr(step, verb)(pool.backend, work),
                deadline,
                f"{verb} {progress.record.steps[n].text}",
            )
        except HungError as error:
            stop.set()
            self._hung[progress.key] = error
            raise
        finally:
            with self._guard:
                self._stops.discard(stop)

    def mends(self, progress: Progress, n: int) -> bool:
        """Return whether a step of a prepared claim can be applied again where it ended by itself."""
        return self._restored(progress, n)[1].mends

    def _restored(self, progress: Progress, n: int) -> tuple[Pool, HostStep[Any]]:
        stored = progress.record.steps[n]
        pool = self._pools.of_kind(stored.backend)
        if pool is None or pool.driver != progress.record.driver:
            raise UnavailableError(f"backend {stored.backend} is not configured for {progress.record.driver}")
        step = restore_step(pool.backend, stored)
        if not isinstance(step, HostStep):
            raise UnavailableError(f"step {stored.type} is not executed on the host")
        return pool, step

    def _new_stop(self) -> threading.Event:
        stop = threading.Event()
        with self._guard:
            self._stops.add(stop)
            if self._stopped:
                stop.set()
        return stop

    def refuse_hung(self, key: Key) -> None:
        """Raise BackendError while a call for that claim is still running somewhere.

        To be called before the claim is read from the journal: the call may be recording facts.
        """
        hung = self._hung.get(key)
        if hung is None:
            return
        if not hung.future.done():
            raise BackendError(f"{hung}; it is still running")
        del self._hung[key]

    def close(self) -> None:
        """Tell the steps that run to come to their end."""
        with self._guard:
            self._stopped = True
            for stop in self._stops:
                stop.set()
