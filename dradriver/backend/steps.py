"""Steps: the changes that a plan asks for, as data.

A step is a frozen dataclass of plain JSON types (str, int, bool, tuples of them): the journal keeps it as JSON
before anything is done, so that it can be undone by another process after a crash. Its class is found again by
name, so a released step class keeps its name and fields; new fields need defaults.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from dradriver_cdi import DeviceNode

B = TypeVar("B")


class Phase(Enum):
    """When a step is executed: at Prepare, when the pod's sandbox exists, or as a container is created."""

    PREPARE = "prepare"
    SANDBOX = "sandbox"
    CONTAINER = "container"


class Observed(Enum):
    """What reality shows of a step."""

    DONE = "done"
    UNDONE = "undone"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine lends to a step while it runs.

    facts     what the step recorded so far, also in an earlier process: ids that only the hardware knows
    record    adds facts and journals them before it returns; call it as soon as an id is known
    stop      set when the call's time is over or the daemon stops: long waits must look at it
    netns     for a step of phase sandbox: file of the pod's network namespace, which the engine keeps open meanwhile;
              empty where there is none, as for a pod in the host's network, and where it is gone already
    rebooted  the machine was started anew since the step was applied: what lives in the kernel or in a device's memory
              is gone with what was below /run, and what is found there now is nobody's to undo
    """

    facts: Mapping[str, Any]
    record: Callable[[Mapping[str, Any]], None]
    stop: threading.Event = field(default_factory=threading.Event)
    netns: str = ""
    rebooted: bool = False


class Step(ABC, Generic[B]):
    """One change, executed in `phase`. `B` is the backend that it belongs to."""

    phase: ClassVar[Phase]

    def describe(self) -> str:
        """Return one line for people: what is done to what."""
        return repr(self)


class Check(ABC, Generic[B]):
    """A look at the hardware while a claim is prepared, before anything is changed for it.

    It is for what an inventory cannot know at that moment. It leaves no trace, is not journalled, and costs less than a
    step; what must be so as long as the claim is prepared is a step, which is observed again and again.
    """

    @abstractmethod
    def describe(self) -> str:
        """Return what is looked at, for people, as `see that ...`."""

    @abstractmethod
    def look(self, backend: B) -> None:
        """Raise BackendError where the claim cannot be honoured now, TransientError to be asked again."""


class HostStep(Step[B]):
    """A change of the host, in phase `prepare` or `sandbox`.

    All three methods may be called again after a crash at any point of an earlier call, so each must be
    idempotent: applying what is done and reverting what is undone are successes. A claim that was cut off before it
    was wholly prepared is always reverted; after a reboot every claim is.

    The fields and facts come back from a file. Let them name things (a disk and a directory on it), not paths or
    commands, so that nothing that stands there can reach further than the backend's own hardware.
    """

    phase: ClassVar[Phase] = Phase.PREPARE

    mends: ClassVar[bool] = False
    """Whether what was made in phase prepare may end by itself, and `apply` makes it again beneath running containers.

    It is then made again once that is seen (`Backend.behind`). A claim that lost anything else is undone at the next
    start or Prepare.
    """

    @abstractmethod
    def apply(self, backend: B, work: Work) -> None:
        """Make the change. Raises TransientError to be called again, any other error to be rolled back."""

    @abstractmethod
    def revert(self, backend: B, work: Work) -> None:
        """Undo the change, as far as it was made. Hardware that is gone needs no undoing.

        Raises TransientError to be called again, any other error to be called again much later; the claim keeps what
        it holds until then.
        """

    @abstractmethod
    def observe(self, backend: B, work: Work) -> Observed:
        """Look whether the change is there. Raises UnavailableError while that cannot be said."""

    def recall(self, backend: B, work: Work) -> bool:
        """Tell the backend what this step has put out of sight; return whether a probe sees more by that.

        Called in each process that is new, before anything counts that the backend has seen there, for every step that
        was applied, or may have been, since the last reboot. It looks at nothing, changes nothing, and records nothing:
        all is in `work.facts`. Override it where `apply` notes in the backend what the host no longer shows. Raises
        UnavailableError where the facts cannot be read.
        """
        return False


@dataclass(frozen=True, slots=True)
class ContainerAdjustment:
    """What a container gets when it is created (NRI `LinuxResources`, OCI `linux.resources`).

    cpus, mems        kernel lists for cpuset.cpus and cpuset.mems; empty leaves the runtime's choice. CPUs that one
                      claim's containers get so are taken from all containers without a claim for CPUs
    hugepage_limits   page size as the hugetlb cgroup writes it (`2MB`) -> bytes, for pages in use and reserved ones
    unified           file of cgroup v2 (`memory.high`) -> what is written there
    env               variable -> value
    devices           device nodes; type, major and minor must be given
    rlimits           `RLIMIT_MEMLOCK` -> soft and hard limit
    """

    cpus: str = ""
    mems: str = ""
    hugepage_limits: Mapping[str, int] = field(default_factory=dict)
    unified: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceNode, ...] = ()
    rlimits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ContainerStep(Step[B]):
    """An adjustment of each container that uses device `index` of the claim, made by the container runtime.

    It lives and dies with the container, so there is nothing to revert, and what must be held meanwhile
    (CPUs) is held by the plan.
    """

    phase: ClassVar[Phase] = Phase.CONTAINER

    index: int

    @abstractmethod
    def adjustment(self) -> ContainerAdjustment:
        """Return what the container gets."""
