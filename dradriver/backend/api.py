"""The API that a device kind implements: one `Backend` class, found by the entry point group `dradriver.backends`.

A backend reads its hardware (`probe`), says what it offers (`devices`), and decides what an allocation means
(`plan`). None of the three changes anything: what must be changed is returned as steps, and the engine runs,
journals, reverts and recovers them. See docs/backends.md for a worked example.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from dradriver.backend.config import ClaimConfig, NoOptions, Strict
from dradriver.backend.steps import Check, Step
from dradriver.host import CPUSet, Host
from dradriver.model import Allocated, AttributeValue, ClaimRef, Device, NetworkData, Peer, PoolContent
from dradriver_cdi import ContainerEdits

I = TypeVar("I")  # noqa: E741 - the inventory type of a backend
O = TypeVar("O", bound=Strict)  # noqa: E741 - the options type of a backend
C = TypeVar("C", bound=ClaimConfig)


@dataclass(frozen=True, slots=True)
class Requested:
    """One allocated device of a claim, as its backend sees it.

    index     its number among the driver's results of the claim; its CDI device is `<claim uid>-<index>`
    device    the device as it is published now
    configs   the claim's configuration for it by type, already layered: defaults < class < claim
    """

    index: int
    allocated: Allocated
    device: Device
    configs: Mapping[type[ClaimConfig], ClaimConfig] = field(default_factory=dict)

    def config(self, kind: type[C]) -> C:
        """Return the configuration of that type; the type's defaults where the claim has none."""
        found = self.configs.get(kind)
        return found if isinstance(found, kind) else kind()


@dataclass(frozen=True, slots=True)
class Request:
    """What one claim asks of one backend: its devices in the order of the allocation."""

    claim: ClaimRef
    devices: tuple[Requested, ...]


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """What the container gets for one allocated device.

    edits       written to the claim's CDI spec
    metadata    attributes for the workload and the claim's status, beyond those published
    network     for a network device, what is known of it inside the pod: for the same two
    """

    allocated: Allocated
    edits: ContainerEdits
    metadata: Mapping[str, AttributeValue] = field(default_factory=dict)
    network: NetworkData | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """How far a device with binding conditions is made ready for a claim that it is allocated to.

    met      its conditions that hold, with a sentence for people each
    failed   its failure conditions that hold, with the reason; the scheduler then looks for another device
    """

    met: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request comes to.

    devices   one for each requested device, in the request's order
    steps     executed in order, reverted in reverse
    holds     names of exclusive things below the published devices (a CPU, an address) that the claim holds from
              now until Unprepare; `held` shows them to later plans. Of letters, digits and `._:/-`
    checks    looked at before the first step
    """

    devices: tuple[PlannedDevice, ...]
    steps: tuple[Step[Any], ...] = ()
    holds: frozenset[str] = frozenset()
    checks: tuple[Check[Any], ...] = ()


class Backend(ABC, Generic[I, O]):
    """One kind of hardware on this host: `Backend[its inventory, its options]`.

    kind           short lower-case name: the last part of the pool's name and the key in the configuration
    serves         what people call its hardware, in the plural ("network cards"); the kind where it is empty
    options_type   what stands below `backends.<kind>` in the configuration
    config_types   the opaque claim configuration that its devices understand
    step_types     every step class that its plans may hold, so that the journal can be read back
    """

    kind: ClassVar[str]
    serves: ClassVar[str] = ""
    options_type: ClassVar[type[Strict]] = NoOptions
    config_types: ClassVar[tuple[type[ClaimConfig], ...]] = ()
    step_types: ClassVar[tuple[type[Step[Any]], ...]] = ()

    def __init__(self, host: Host, options: O) -> None:
        """Keep the host and the decoded options; touch no hardware yet."""
        self.host = host
        self.options = options

    @abstractmethod
    def probe(self) -> I:
        """Read the hardware. No hardware is an empty inventory, not an error; an odd device degrades alone.

        Raises UnavailableError while the hardware cannot be read at all; the last inventory then stays.
        """

    @abstractmethod
    def devices(self, inventory: I) -> PoolContent:
        """Return what is offered of that inventory. Pure."""

    @abstractmethod
    def plan(
        self, request: Request, inventory: I, held: Mapping[str, ClaimRef], peers: tuple[Peer, ...]
    ) -> Plan:
        """Decide how to honour a request. Pure, and fast: it runs inside the ledger's transaction.

        held    what other claims' plans of this backend hold -> who
        peers   the claim's other devices, of this and other drivers

        Raises PlanError where the request cannot be honoured. A device with admin access must hold nothing.
        """

    def render(
        self,
        request: Request,
        plan: Plan,
        facts: tuple[Mapping[str, Any], ...],
        inventory: I,
    ) -> tuple[PlannedDevice, ...]:
        """Return the container's side once the steps of phase prepare are done, and at each repeat. Pure.

        facts   what each step of the plan recorded, in the plan's order

        Override it where edits need what only the steps or a later inventory know.
        """
        return plan.devices

    def binding(self, device: Device, inventory: I) -> Binding:
        """Return which of the device's binding conditions hold. Pure.

        Asked for each claim that the device is allocated to, and again after each change of the inventory, until all
        conditions hold or one has failed. Override it where `devices` returns devices with binding conditions.
        """
        return Binding()

    def base_edits(self, inventory: I) -> ContainerEdits:
        """Return what every container with any device of this backend needs, once for all. Pure."""
        return ContainerEdits()

    def behind(self, inventory: I) -> object:
        """Return what edits are made of beyond what is published, to be compared between inventories. Pure.

        Where it changes, the files of prepared claims are rendered anew.
        """
        return None

    def strayed(self, device: str, edits: ContainerEdits, inventory: I) -> str:
        """Return why edits that a claim got for a device lead to other hardware now; empty where they do not. Pure.

        Such edits are withdrawn, also where the device is not published any more.
        """
        return ""

    @property
    def reserved_cpus(self) -> CPUSet | None:
        """CPUs that are kept for the system, where claims get CPUs of the backend; None where they get none.

        They are in no device, and containers without a claim do not run there either unless claims have all others.
        """
        return None

    def watch(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        """Run until `stop`; call `changed(why)` when the hardware should be probed again.

        A failure ends it with an exception; it is then started again with back-off. The daemon also probes
        at a fixed period, so a backend without events leaves this as it is.
        """
        stop.wait()

    def close(self) -> None:
        """Let go of vendor libraries and sockets, at the end of the daemon."""
