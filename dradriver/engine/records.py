"""What the journal keeps of a claim: enough to undo it when the API server and the hardware are gone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec

from dradriver.backend import (
    Backend,
    ClaimConfig,
    ContainerEdits,
    Phase,
    Plan,
    PlannedDevice,
    Request,
    Requested,
    Step,
    UnavailableError,
)
from dradriver.claims import typed
from dradriver.model import (
    Allocated,
    AttributeValue,
    ClaimRef,
    Device,
    NetworkData,
    Quantity,
    Version,
    shown,
)
from dradriver.slices.check import fit
from dradriver.slices.encode import attribute_body


def plan_prefix(backend: str) -> str:
    """Return the prefix of the units that plans of that backend hold."""
    return f"plan:{backend}:"


class State(Enum):
    """How far a claim is. `PREPARING` and `UNPREPARING` are seen only while work runs or after a crash."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


class StepState(Enum):
    """How far a step is: nothing was done, it may have been, it was, or it was undone."""

    PLANNED = "planned"
    APPLYING = "applying"
    APPLIED = "applied"
    REVERTED = "reverted"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step as JSON: class name, fields, and the facts that it recorded."""

    backend: str
    type: str
    phase: Phase
    body: dict[str, Any]
    state: StepState = StepState.PLANNED
    facts: dict[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One device of a claim: the allocation, its configuration, and the container's side as last rendered.

    metadata     what the plan says of it: name -> the API's DeviceAttribute object
    base         whether the kubelet was told of the backend's device in the driver's base file too
    attributes   all that containers are told: those of the plan, and those published when it was rendered
    network      what the plan knows of its interface inside the pod
    """

    backend: str
    allocated: Allocated
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    edits: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    base: bool = False
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    network: NetworkData | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """An amount of something that the claim holds, for device `index` of it (-1 for the claim as a whole)."""

    unit: str
    index: int
    amount: Quantity


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """Where a claim with steps of phase sandbox is: in the sandbox of one pod, or in none.

    pods     the UIDs of the pods that it is reserved for, as far as they are known
    id       the runtime's name of the sandbox that the steps were, or are being, applied to; empty for none
    pod      the UID of its pod
    netns    file of its network namespace
    number   inode of that namespace
    since    when it last came wholly into a sandbox, or out of it, in seconds since the epoch; 0 where it was in none
    """

    pods: tuple[str, ...] = ()
    id: str = ""
    pod: str = ""
    netns: str = ""
    number: int = 0
    since: float = 0.0

    @property
    def free(self) -> "SandboxRecord":
        """The same claim in no sandbox."""
        return SandboxRecord(self.pods, since=self.since)


@dataclass(frozen=True, slots=True)
class Sandboxed:
    """A claim with steps of phase sandbox, and where it is. `pod_claim` is that of its record."""

    driver: str
    ref: ClaimRef
    pod_claim: str
    sandbox: SandboxRecord


@dataclass(frozen=True, slots=True)
class Record:
    """A claim of one driver in the journal. Times are seconds since the epoch.

    pod_claim    what the pod calls a claim that was made from a template, else empty
    generation   counts the forms that the devices were told in to the containers
    sandbox      where it is, for a claim with steps of phase sandbox; None for all others
    """

    driver: str
    ref: ClaimRef
    state: State
    boot: str
    created: float
    devices: tuple[DeviceRecord, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    holds: tuple[Hold, ...] = ()
    message: str = ""
    pod_claim: str = ""
    generation: int = 1
    sandbox: SandboxRecord | None = None

    def steps_of(self, *phases: Phase) -> tuple[tuple[int, StepRecord], ...]:
        """Return the steps of these phases, one phase after the other, with their numbers."""
        return tuple(
            (n, step) for phase in phases for n, step in enumerate(self.steps) if step.phase is phase
        )

    def predates(self, boot: str) -> bool:
        """Return whether it was prepared before the boot of that id. One that is not known says nothing of a reboot."""
        return bool(self.boot and boot and self.boot != boot)

    @property
    def host_steps(self) -> tuple[tuple[int, StepRecord], ...]:
        """The steps that this daemon itself executes, in the order of their execution, with their numbers."""
        return self.steps_of(Phase.PREPARE, Phase.SANDBOX)

    @property
    def is_open(self) -> bool:
        """Whether containers may be made: every step that they must wait for is applied."""
        return all(step.state is StepState.APPLIED for _, step in self.steps_of(Phase.SANDBOX))


def encode(value: object) -> bytes:
    """Return dataclasses of plain types and quantities as JSON."""
    return _ENCODER.encode(value)


def builtins(value: object) -> Any:
    """Return dataclasses of plain types and quantities as plain JSON types."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def decode_record(value: Any) -> Record:
    """Return the record of what `builtins` made of it. Raises ValueError where it is none."""
    return msgspec.convert(value, Record, dec_hook=_typed)


def decode_json(text: bytes | str, kind: Any) -> Any:
    """Return the JSON text as `kind`. Raises ValueError where it is none."""
    return msgspec.json.decode(text, type=kind, dec_hook=_typed)


def decode_places(text: bytes | str) -> Iterator[tuple[str, str]]:
    """Yield pool and device of each of the device records that were encoded, and decode nothing else of them."""
    for device in _PLACES.decode(text):
        yield device.allocated.pool, device.allocated.device


class _Allocated(msgspec.Struct):
    pool: str
    device: str


class _Placed(msgspec.Struct):
    allocated: _Allocated


_PLACES = msgspec.json.Decoder(tuple[_Placed, ...])


def _plain(value: Any) -> str:
    if isinstance(value, Quantity):
        return str(value)
    raise NotImplementedError(type(value))


def _typed(kind: type, value: Any) -> Any:
    if kind is Quantity:
        return Quantity.parse(value)
    raise NotImplementedError(kind)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def unstarted(step: StepRecord) -> StepRecord:
    """Return the step without what changes as it is executed."""
    return replace(step, state=StepState.PLANNED, facts={})


def decode_step(state: str, facts: bytes, body: bytes) -> StepRecord:
    """Return the step that was encoded `unstarted`, with its state and its encoded facts."""
    step: StepRecord = decode_json(body, StepRecord)
    return replace(step, state=StepState(state), facts=decode_json(facts, dict[str, Any]))


def step_record(backend: Backend[Any, Any], step: Step[Any]) -> StepRecord:
    """Return the journal's form of a step of that backend."""
    if type(step) not in backend.step_types:
        raise TypeError(f"{type(step).__name__} is not among the step types of backend {backend.kind}")
    body = builtins(step)
    return StepRecord(backend.kind, type(step).__name__, step.phase, body, text=step.describe())


def restore_step(backend: Backend[Any, Any], record: StepRecord) -> Step[Any]:
    """Return the step behind its journal form."""
    for kind in backend.step_types:
        if kind.__name__ == record.type:
            try:
                step: Step[Any] = msgspec.convert(record.body, kind)
            except (ValueError, TypeError) as error:
                raise UnavailableError(
                    f"step {record.type} of backend {backend.kind} was journalled by another version: {error}"
                ) from None
            return step
    raise UnavailableError(f"backend {backend.kind} of this version knows no step {shown(record.type)}")


def device_record(
    backend: Backend[Any, Any],
    planned: PlannedDevice,
    published: Device,
    configs: Mapping[str, Mapping[str, Any]],
    base: bool,
) -> DeviceRecord:
    """Return the journal's form of a planned device, which is `published` so now."""
    # Where there is no room for all, what only this claim has comes first.
    told, _ = fit(
        Device(published.name, attributes={**planned.metadata, **published.attributes, **planned.metadata})
    )
    return DeviceRecord(
        backend.kind,
        planned.allocated,
        {kind: dict(fields) for kind, fields in configs.items()},
        planned.edits.to_dict(),
        _bodies(planned.metadata),
        base,
        _bodies(told.attributes),
        planned.network,
    )


def _bodies(values: Mapping[str, AttributeValue]) -> dict[str, dict[str, Any]]:
    return {name: attribute_body(value) for name, value in values.items() if value != ()}


def _attribute(body: Mapping[str, Any]) -> AttributeValue:
    """Return the value of a DeviceAttribute object."""
    ((kind, value),) = body.items()
    items = value if isinstance(value, list) else [value]
    typed = tuple(Version(item) if kind.startswith("version") else item for item in items)
    return typed if isinstance(value, list) else typed[0]


def restore_request(
    backend: Backend[Any, Any], record: Record, published: Mapping[str, Device]
) -> tuple[Request, Plan]:
    """Return the request and plan of one backend's part of a record, with the devices as published now.

    Raises KeyError with the name of a device that is no longer there.
    """
    mine = [(n, device) for n, device in enumerate(record.devices) if device.backend == backend.kind]
    requested = tuple(
        Requested(
            n,
            device.allocated,
            published[device.allocated.device],
            restore_configs(backend, device.configs),
        )
        for n, device in mine
    )
    prefix = plan_prefix(backend.kind)
    plan = Plan(
        devices=tuple(
            PlannedDevice(
                device.allocated,
                ContainerEdits.from_dict(device.edits),
                {name: _attribute(body) for name, body in device.metadata.items()},
                device.network,
            )
            for _, device in mine
        ),
        steps=tuple(restore_step(backend, step) for step in record.steps if step.backend == backend.kind),
        holds=frozenset(
            hold.unit.removeprefix(prefix) for hold in record.holds if hold.unit.startswith(prefix)
        ),
    )
    return Request(record.ref, requested), plan


def restore_configs(
    backend: Backend[Any, Any], configs: Mapping[str, Mapping[str, Any]]
) -> dict[type[ClaimConfig], ClaimConfig]:
    """Return the configuration behind its journal form; kinds that the backend no longer knows are left out."""
    kinds = {kind.__name__: kind for kind in backend.config_types} if configs else {}
    return {
        kinds[name]: typed(kinds[name], fields, name) for name, fields in configs.items() if name in kinds
    }
