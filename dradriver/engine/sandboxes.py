"""The sandboxes of pods, and the claims that go into them: what must be done once a pod's network namespace is there.

A claim's CDI file is written when all of its steps are done, so that no container of it can be made before. A claim
is in one sandbox at a time: what its steps move is there once.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dradriver.backend import BackendError, TransientError
from dradriver.claims import ClaimError, ClaimNotFoundError, ClaimSource, read_claim
from dradriver.engine.journal import Journal
from dradriver.engine.lanes import HungError
from dradriver.engine.lifecycle import Lifecycle
from dradriver.engine.locks import Key, Locks
from dradriver.engine.progress import Progress, StepRunner
from dradriver.engine.records import Record, Sandboxed, SandboxRecord, State
from dradriver.model import shown

log = logging.getLogger(__name__)

RUN_SECONDS: Final = 1.0
BACK_SECONDS: Final = 0.35
"""How long a pod's claims may take to go into its sandbox, and back where that fails: the runtime waits two seconds."""

STOP_SECONDS: Final = 1.2
"""How long it is waited for that they come back; what takes longer is done later."""

ASK_SECONDS: Final = 0.3
"""How long one pod waits to learn of all claims whether they are reserved for it meanwhile."""

LEAVE_SECONDS: Final = 10.0
"""How long nobody is asked after that was in vain."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod's sandbox.

    id      the runtime's name of it
    pod     the UID of the pod; `namespace` and `name` are its names
    netns   file of its network namespace; empty for a pod in the host's, and where it is not known
    """

    id: str
    pod: str = ""
    namespace: str = ""
    name: str = ""
    netns: str = ""


class Sandboxes:
    """Takes claims into sandboxes and out of them. Any thread may call it."""

    def __init__(
        self,
        journal: Journal,
        claims: ClaimSource,
        *,
        locks: Locks,
        runner: StepRunner,
        lifecycle: Lifecycle,
        unsettled: Callable[[Key], None],
    ) -> None:
        """Know of no sandbox yet; `unsettled` is told of claims that are to be looked at again."""
        self._journal = journal
        self._claims = claims
        self._locks = locks
        self._runner = runner
        self._lifecycle = lifecycle
        self._unsettled = unsettled
        self._guard = threading.Lock()
        self._live: dict[str, Sandbox] = {}
        self._synchronized = False
        self._ask_from = 0.0

    def run(self, sandbox: Sandbox) -> None:
        """Take the claims of a pod into its sandbox, all of them or none, before its containers are made.

        Raises what the runtime is to be told, so that it takes the sandbox down.
        """
        deadline = time.monotonic() + RUN_SECONDS
        with self._guard:
            self._live[sandbox.id] = sandbox
        begun: list[Key] = []
        try:
            for claim, pods in self._wanted(sandbox):
                if not sandbox.netns:
                    raise BackendError(
                        f"claim {claim.ref} needs a pod with a network of its own, and pod "
                        f"{shown(sandbox.name)} has the host's (hostNetwork)"
                    )
                key = (claim.driver, claim.ref.uid)
                begun.append(key)
                self._run(key, sandbox, pods, deadline)
        except Exception:
            self._forget(sandbox.id)
            back = time.monotonic() + BACK_SECONDS
            for key in reversed(begun):
                self._bring_back(key, sandbox.id, back)
            raise

    def _wanted(self, sandbox: Sandbox) -> list[tuple[Sandboxed, tuple[str, ...]]]:
        """Return the claims of a pod, each with the pods that it is reserved for."""
        found = []
        deadline = time.monotonic() + ASK_SECONDS
        for claim in self._journal.sandboxes():
            if not sandbox.pod or claim.ref.namespace != sandbox.namespace:
                continue
            pods = claim.sandbox.pods
            if sandbox.pod not in pods and not claim.sandbox.id:
                pods = self._pods_now(claim, deadline)
            if sandbox.pod in pods:
                found.append((claim, pods))
        return found

    def _pods_now(self, claim: Sandboxed, deadline: float) -> tuple[str, ...]:
        """Return the pods that a claim is reserved for now: more may have come since it was prepared.

        A claim that was made from a template has one pod for life.
        """
        now = time.monotonic()
        if claim.pod_claim or now < self._ask_from or now >= deadline:
            return claim.sandbox.pods
        try:
            return read_claim(self._claims.get(claim.ref, deadline), claim.ref, claim.driver).pods
        except (ClaimError, ClaimNotFoundError):
            pass
        except (BackendError, OSError) as error:
            self._ask_from = time.monotonic() + LEAVE_SECONDS
            log.warning("claim %s cannot be read: %s", claim.ref, shown(error, 300))
        return claim.sandbox.pods

    def _run(self, key: Key, sandbox: Sandbox, pods: tuple[str, ...], deadline: float) -> None:
        with self._locks.held(key, deadline):
            self._runner.refuse_hung(key)
            record = self._journal.get(*key)
            if record is None:
                return  # unprepared meanwhile: its containers will not be made
            if record.state is not State.PREPARED:
                raise TransientError(f"claim {record.ref} is not prepared: it is {record.state.value}")
            progress = Progress(record)
            at = record.sandbox or SandboxRecord()
            if at.id and at.pod != sandbox.pod and not (self.is_gone(at) or _has_ended(at)):
                raise BackendError(
                    f"claim {record.ref} is in another pod (uid {shown(at.pod)}): one pod at a time can have it"
                )
            if (at.id, at.netns) == (sandbox.id, sandbox.netns) and self._lifecycle.is_entered(
                progress, deadline
            ):
                self._lifecycle.restore(record)
                return
            self._lifecycle.reserve(progress, pods)
            self._lifecycle.leave(progress, deadline)
            self._enter(progress, sandbox, deadline)

    def _enter(self, progress: Progress, sandbox: Sandbox, deadline: float) -> None:
        pods = progress.record.sandbox.pods if progress.record.sandbox else ()
        try:
            made = self._lifecycle.enter(
                progress, SandboxRecord(pods, sandbox.id, sandbox.pod, sandbox.netns), deadline
            )
        except HungError:
            # The call may still be changing things: the way back waits for its end.
            self._unsettled(progress.key)
            raise
        except Exception:
            self._leave(progress, time.monotonic() + BACK_SECONDS)
            raise
        log.info("claim %s of %s is in pod %s", made.ref, made.driver, shown(sandbox.name))

    def _leave(self, progress: Progress, deadline: float) -> None:
        """Take a claim out of its sandbox, later where that is not possible now."""
        try:
            self._lifecycle.leave(progress, deadline)
        except Exception as error:  # noqa: BLE001 - it is tried again
            self._unsettled(progress.key)
            log.error(
                "claim %s cannot be taken out of its pod yet: %s", progress.record.ref, shown(error, 500)
            )

    def stop(self, name: str) -> None:
        """Bring all claims back from the sandbox of that id, which is there or not."""
        deadline = time.monotonic() + STOP_SECONDS
        self._forget(name)
        for claim in reversed(self._journal.sandboxes()):
            if claim.sandbox.id == name:
                self._bring_back((claim.driver, claim.ref.uid), name, deadline)

    def _bring_back(self, key: Key, name: str, deadline: float) -> None:
        """Bring a claim back if it is in that sandbox; what cannot be done now is done later."""
        try:
            with self._locks.held(key, deadline):
                self._runner.refuse_hung(key)
                record = self._journal.get(*key)
                if record and record.sandbox and record.sandbox.id == name:
                    if record.state is State.PREPARED:
                        self._leave(Progress(record), deadline)
                    else:
                        self._unsettled(key)
        except Exception as error:  # noqa: BLE001 - it is tried again
            self._unsettled(key)
            log.warning("claim %s of %s comes back later: %s", key[1], key[0], shown(error, 300))

    def synchronize(self, sandboxes: Sequence[Sandbox]) -> None:
        """Take over all sandboxes that there are. What is to be done for them is done by those who settle claims."""
        with self._guard:
            self._live = {sandbox.id: sandbox for sandbox in sandboxes}
            self._synchronized = True
            namespaces = {sandbox.namespace for sandbox in sandboxes}
        for claim in self._journal.sandboxes():
            if self.is_gone(claim.sandbox) or (not claim.sandbox.id and claim.ref.namespace in namespaces):
                self._unsettled((claim.driver, claim.ref.uid))

    def mend(self, record: Record, deadline: float) -> None:
        """Take a prepared claim that is in no sandbox into the one of its pod that is there. The lock is held."""
        if record.sandbox is None or record.sandbox.id:
            return
        with self._guard:
            near = [one for one in self._live.values() if one.namespace == record.ref.namespace and one.netns]
        if not near:
            return
        pods = record.sandbox.pods
        if not any(one.pod in pods for one in near):
            claim = Sandboxed(record.driver, record.ref, record.pod_claim, record.sandbox)
            pods = self._pods_now(claim, min(deadline, time.monotonic() + ASK_SECONDS))
        # A sandbox that was stopped may be listed still, beside its successor; its namespace is gone.
        sandbox = next((one for one in reversed(near) if one.pod in pods and Path(one.netns).exists()), None)
        if sandbox:
            progress = Progress(record)
            self._lifecycle.reserve(progress, pods)
            self._enter(progress, sandbox, deadline)

    @staticmethod
    def check(record: Record, name: str) -> None:
        """Raise BackendError unless a claim with steps of phase sandbox is in the sandbox of that id, wholly."""
        if record.sandbox is None:
            return
        if record.sandbox.id != name:
            where = f"another pod (uid {shown(record.sandbox.pod)})" if record.sandbox.id else "no pod"
            raise BackendError(
                f"claim {record.ref} is in {where}, and not in this container's: one pod at a time can have it"
            )
        if not record.is_open:
            raise BackendError(f"claim {record.ref} is not wholly in its pod")

    def is_gone(self, sandbox: SandboxRecord) -> bool:
        """Whether a sandbox is known not to be there any more."""
        with self._guard:
            return self._synchronized and bool(sandbox.id) and sandbox.id not in self._live

    def _forget(self, name: str) -> None:
        with self._guard:
            self._live.pop(name, None)


def _has_ended(sandbox: SandboxRecord) -> bool:
    """Whether a sandbox has no network namespace any more: the runtime has stopped it.

    It may not have said so: a containerd that was restarted tells of no end of the pods that it found (internal/nri).
    """
    try:
        return os.stat(sandbox.netns).st_ino != sandbox.number  # noqa: PTH116 - a link of procfs
    except OSError as error:
        return error.errno == errno.ENOENT
