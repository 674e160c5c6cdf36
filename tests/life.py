"""The lives of a node, as a machine of hypothesis: claims come and go, devices too, and daemons die."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dradriver_fake import clear_faults, pull_out, put_in, reboot, set_fault
from reference import GPU, THINGS, VFS, Claim, Key, Reference, Use, check_against
from waiting import PATIENCE
from wholenode import Answer, Instance, WholeNode, kind_of, ref_of

SLACK = 5.0
"""Seconds that a slow machine may add to a deadline."""

DEVICES = (
    *(f"{GPU}-mig-{name}" for name in ("1g-6gb-0", "1g-6gb-1", "1g-6gb-me-3", "2g-12gb-2", "2g-12gb-me-0")),
    f"{GPU}-mig-4g-24gb-0",
    GPU,
    *VFS,
)
SHARES = {
    "cpu-numa-0": (1, 3, 6),
    "memory-numa-0": (1 << 30, 20 << 30),
    "hugepages-2mi-numa-0": (2 << 20, 1 << 30),
}
CONFIGS: dict[str, dict[str, Any]] = {
    "good": {"memory": "any"},
    "field": {"colour": "blue"},
    "value": {"memory": "x" * 300},
    "kind": {"kind": "../../Config"},
    "version": {"apiVersion": "v2\n"},
}

names = st.sampled_from("abcd")
picks = st.integers(0, 7)
"""Which driver a call comes from: one that the claim concerns, and now and then another."""

seldom = st.sampled_from((*[False] * 7, True))
uses = st.lists(
    st.tuples(
        st.one_of(
            st.tuples(st.sampled_from(DEVICES), st.just(0)),
            st.sampled_from([(device, amount) for device, amounts in SHARES.items() for amount in amounts]),
        ),
        seldom,
    ),
    min_size=1,
    max_size=4,
)
configs = st.sampled_from(["", "", "", "", *CONFIGS])


class Killed(BaseException):
    """The end of a process, for all that it was about to do."""


class Life(RuleBasedStateMachine):
    """One node, and what happens to it."""

    node: WholeNode
    """Built once; its hardware is empty at the beginning of each sequence."""

    probed: Instance
    """One that looked at it when it was built."""

    @initialize(grouped=st.booleans(), claims=st.lists(st.tuples(uses, configs), min_size=3, max_size=3))
    def begin(self, grouped: bool, claims: list[tuple[Any, str]]) -> None:
        """Start with a few claims, and nothing prepared."""
        node = self.node
        for thing in THINGS:
            put_in(node.host_root, "gpus" if thing == GPU else "nics", thing)
        reboot(node.host_root)
        for file in ("progress.json", "complaints"):
            (node.host_root / "fake" / file).unlink(missing_ok=True)
        for path in (node.root / "var", node.claims):
            shutil.rmtree(path, ignore_errors=True)
        node.claims.mkdir()
        node.state = node.root / "var" / "state"
        node.grouped = grouped
        self.crashes = 0
        self.instance = Instance(node, self.probed).activate()
        self.reference = Reference(grouped=grouped)
        for name, (chosen, config) in zip("abc", claims, strict=True):
            self.allocate(name, chosen, config)

    def teardown(self) -> None:
        """End the instance."""
        clear_faults(self.node.host_root)
        if hasattr(self, "instance"):
            self.instance.stop()

    def key(self, pick: int, name: str) -> Key:
        """Return a driver, and the claim."""
        claim = self.reference.claims.get(name)
        concerned = {self.reference.driver(use.device) for use in claim.uses} if claim else set()
        concerned |= {driver for driver, other in self.reference.parts if other == name}
        drivers = self.node.drivers if pick == 7 or not concerned else sorted(concerned)
        return drivers[pick % len(drivers)], name

    def look(self) -> None:
        """Let the instance probe, as the daemon does when something changed."""
        self.instance.look()
        self.reference.look()

    def in_time(self, call: Callable[..., dict[str, Any]], key: Key, seconds: float = 20.0) -> Any:
        """Return the answer for one claim, which must come before the deadline."""
        began = time.monotonic()
        answer = call(key[0], key[1], seconds=seconds)[key[1]]
        assert time.monotonic() - began < seconds + SLACK
        return answer

    def prepared(self, key: Key, answer: Answer, works: bool) -> None:
        """Compare an answer with what it should be."""
        assert isinstance(answer, str) != works, (key, answer)
        asked = self.reference.parts[key].uses if key in self.reference.parts else ()
        if not isinstance(answer, str):
            assert [device.device for device in answer] == [use.device for use in asked]
            assert [device.cdi_ids[0] for device in answer] == [
                f"{key[0]}/claim=uid-{key[1]}-{n}" for n in range(len(asked))
            ]
        elif "is not on this node" in answer or self.is_broken(key):
            self.look()  # what it saw on the way to that error does not matter

    def is_broken(self, key: Key) -> bool:
        """Whether the claim's configuration for that driver is wrong."""
        return key[1] in self.reference.claims and key[0] in self.reference.claims[key[1]].broken

    @rule(name=names, chosen=uses, config=configs)
    def allocate(self, name: str, chosen: Sequence[tuple[tuple[str, int], bool]], config: str) -> None:
        """Write a claim, or allocate it anew."""
        made = tuple(Use(n, device, amount, admin) for n, ((device, amount), admin) in enumerate(chosen))
        results = [
            self.node.result(
                use.device,
                use.number,
                name,
                str(use.amount or ""),
                **({"adminAccess": True} if use.admin else {}),
            )
            for use in made
        ]
        self.node.claim(name, results, [self.node.config("cpu", CONFIGS[config])] if config else ())
        # What is wrong within it is of no concern to devices of other kinds.
        concerned = config in {"kind", "version"}
        concerned |= config not in {"", "good"} and any(kind_of(use.device) == "cpu" for use in made)
        self.reference.claims[name] = Claim(made, frozenset({self.node.driver("cpu")} if concerned else ()))

    @rule(name=names, really=seldom)
    def delete(self, name: str, really: bool) -> None:
        """Delete a claim, whether it is prepared or not."""
        if not really:
            return
        (self.node.claims / f"{name}.json").unlink(missing_ok=True)
        self.reference.claims.pop(name, None)

    @rule(calls=st.lists(st.tuples(picks, names), min_size=1, max_size=6))
    def prepare(self, calls: list[tuple[int, str]]) -> None:
        """Prepare claims for the first time, or again, one after the other."""
        for pick, name in calls:
            key = self.key(pick, name)
            works = self.reference.prepare(key)
            self.prepared(key, self.in_time(self.instance.prepare, key), works)

    @rule(pick=picks, name=names)
    def prepare_at_once(self, pick: int, name: str) -> None:
        """Let several calls ask for one claim: one does the work, and all get its answer."""
        key = self.key(pick, name)
        works = self.reference.prepare(key)
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: self.in_time(self.instance.prepare, key), range(4)))
        if works:
            assert answers == [answers[0]] * 4
        self.prepared(key, answers[0], works)
        self.look()

    @rule(pick=picks, name=names)
    def prepare_and_unprepare_at_once(self, pick: int, name: str) -> None:
        """Whichever comes first, the claim is prepared or undone."""
        key = self.key(pick, name)
        with ThreadPoolExecutor(2) as threads:
            preparing = threads.submit(self.in_time, self.instance.prepare, key)
            assert threads.submit(self.in_time, self.instance.unprepare, key).result() is None
            answer = preparing.result()
        before = self.reference.parts.get(key)
        works = self.reference.prepare(key)
        if (
            before
        ):  # undone first, it may have been prepared where it could not be repeated, and the other way
            self.reference.unprepare(key)
            works = self.reference.prepare(key) or works
        assert works or isinstance(answer, str)
        self.adopt(key)
        self.look()

    @rule(pick=picks, several=st.sets(names, min_size=2))
    def prepare_many(self, pick: int, several: set[str]) -> None:
        """Prepare several claims in one call: as many of them as fit, whichever these are."""
        driver, _ = self.key(pick, min(several))
        self.look()
        for name in several:  # so that each can only be prepared for the first time
            self.instance.unprepare(driver, name)
            self.reference.unprepare((driver, name))
        answers = self.instance.prepare(driver, *sorted(several))
        granted = [name for name in several if not isinstance(answers[name], str)]
        for name in granted:
            assert self.reference.prepare((driver, name)), "no device is given to two"
        for name in several - set(granted):
            assert not self.reference.prepare((driver, name)), (name, answers[name])

    def adopt(self, key: Key) -> None:
        """Take from the journal whether a claim is prepared, where either is right."""
        if self.instance.journal.get(key[0], ref_of(key[1]).uid) is None:
            self.reference.unprepare(key)

    @rule(pick=picks, name=names)
    def unprepare(self, pick: int, name: str) -> None:
        """Undo a claim, known or not."""
        key = self.key(pick, name)
        assert self.in_time(self.instance.unprepare, key) is None
        self.reference.unprepare(key)

    @rule(pick=picks, name=names, at=st.sampled_from(("create", "created")))
    def prepare_with_a_step_that_fails(self, pick: int, name: str, at: str) -> None:
        """Nothing of it stays."""
        key = self.key(pick, name)
        set_fault(self.node.host_root, "*", "fail", at=at, times=1)
        works = self.reference.prepare(key, fails=True)
        self.prepared(key, self.in_time(self.instance.prepare, key), works)
        clear_faults(self.node.host_root)

    @rule(pick=picks, name=names)
    def unprepare_with_a_step_that_fails(self, pick: int, name: str) -> None:
        """It is tried again by the next call, or the next start."""
        key = self.key(pick, name)
        set_fault(self.node.host_root, "*", "fail", at="destroy", times=1)
        works = self.reference.unprepare(key, fails=True)
        assert (self.in_time(self.instance.unprepare, key) is None) == works
        clear_faults(self.node.host_root)

    @rule(pick=picks, name=names, really=seldom)
    def prepare_with_a_step_that_hangs(self, pick: int, name: str, really: bool) -> None:
        """The call is answered, others are not held up, and what it did comes to be undone."""
        if not really:
            return
        key = self.key(pick, name)
        set_fault(self.node.host_root, "*", "hang", at="create")
        self.in_time(self.instance.prepare, key, 0.05)
        assert self.in_time(self.instance.unprepare, (key[0], "unknown")) is None
        clear_faults(self.node.host_root)
        end = time.monotonic() + PATIENCE
        while self.in_time(self.instance.unprepare, key) is not None:
            assert time.monotonic() < end
            time.sleep(0.01)
        self.reference.unprepare(key)
        self.look()

    @rule(thing=st.sampled_from(sorted(THINGS)), noticed=st.booleans())
    def lose(self, thing: str, noticed: bool) -> None:
        """Pull a device out, with all that was created on it."""
        pull_out(self.node.host_root, "gpus" if thing == GPU else "nics", thing)
        self.reference.pull_out(thing)
        if noticed:
            self.look()

    @rule(noticed=st.booleans())
    def give_back(self, noticed: bool) -> None:
        """Put in again all that is out."""
        for thing in THINGS - self.reference.plugged:
            put_in(self.node.host_root, "gpus" if thing == GPU else "nics", thing)
        self.reference.plugged = set(THINGS)
        if noticed:
            self.look()

    @rule()
    def wipe_cdi(self) -> None:
        """Lose the CDI directory under the running daemon."""
        self.node.wipe_cdi()
        for part in self.reference.parts.values():
            part.file = False

    @rule(journal_is_lost=seldom)
    def restart(self, journal_is_lost: bool) -> None:
        """Stop in order and start again; without a journal, where the CDI files can tell all."""
        self.instance.stop()
        if journal_is_lost and all(part.file and not part.stuck for part in self.reference.parts.values()):
            shutil.rmtree(self.node.state)
        self.start()

    def start(self) -> None:
        """Start an instance."""
        self.instance = Instance(self.node, self.instance).activate()
        self.reference.restart()

    @rule()
    def crash(self) -> None:
        """Leave everything as it is, and start on what is there."""
        self.crashes += 1
        state = self.node.root / "var" / f"state-{self.crashes}"
        shutil.copytree(self.node.state, state, ignore=shutil.ignore_patterns("*-shm"))
        self.instance.drop()
        self.node.state = state
        self.start()

    @rule(pick=picks, name=names, undo=st.booleans(), writes=st.integers(0, 7), before=st.booleans())
    def crash_in_the_midst(self, pick: int, name: str, undo: bool, writes: int, before: bool) -> None:
        """Crash before or after one of a call's writes to the journal."""
        key = self.key(pick, name)
        self.give_back(noticed=True)
        if any(part.lost or part.stuck for part in self.reference.parts.values()):
            return
        old = self.reference.parts.get(key)
        _ = self.reference.unprepare(key) if undo else self.reference.prepare(key)
        new = self.reference.parts.get(key)
        call = self.instance.unprepare if undo else self.instance.prepare
        killed = was_killed(self.instance.journal, writes, before, lambda: call(*key))
        self.crash()
        record = self.instance.journal.get(key[0], ref_of(name).uid)
        if killed:
            assert record or old is not new or new is None, "a repeat undoes nothing"
            self.reference.parts.pop(key, None)
        if killed and record:
            devices = [device.allocated.device for device in record.devices]
            found = [part for part in (old, new) if part and [use.device for use in part.uses] == devices]
            self.reference.parts[key] = replace(found[0], file=True)

    @rule(wiped=st.booleans())
    def reboot(self, wiped: bool) -> None:
        """Reboot: nothing counts as prepared."""
        self.instance.stop()
        reboot(self.node.host_root)
        if wiped:
            self.node.wipe_cdi()
        self.reference.parts.clear()
        self.start()

    @rule(pick=picks, name=names)
    def hand_over(self, pick: int, name: str) -> None:
        """Let another instance take over, to which a call came already."""
        key = self.key(pick, name)
        old, new = self.instance, Instance(self.node, self.instance)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(self.in_time, new.prepare, key)
            old.stop()
            self.instance = new.activate()
            self.reference.restart()
            works = self.reference.prepare(key)
            self.prepared(key, waiting.result(), works)

    @invariant()
    def all_agrees(self) -> None:
        """Journal, ledger, CDI files and hardware tell what the reference does."""
        if hasattr(self, "instance"):
            check_against(self.reference, self.instance)


def was_killed(journal: Any, writes: int, before: bool, call: Callable[[], object]) -> bool:
    """Make a call that dies at a write to the journal, before or after it; return whether it came to that."""
    transaction, left = journal.transaction, writes

    @contextmanager
    def cut() -> Iterator[None]:
        nonlocal left
        left -= 1
        if left < 0 and before:
            raise Killed
        with transaction():
            yield
        if left < 0:
            raise Killed

    journal.transaction = cut
    try:
        call()
    except Killed:
        return True
    return False
