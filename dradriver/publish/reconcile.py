"""What has to be written so that the stored slices of a pool say what they should. Pure.

Readers use the slices of a pool's highest generation only, and only when there are as many as they state. While some of
that generation are missing nobody reads the others, so that such a pool is completed in the same generation, whatever
changed meanwhile: what would complete it is written last. A pool that is complete follows `next_generation`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dradriver.model import PoolContent
from dradriver.publish.stored import Stored
from dradriver.slices import (
    UNSOUND_GENERATION,
    ApiFeatures,
    Body,
    Earlier,
    Pool,
    PoolSpecs,
    pool_specs,
    same,
    slice_object,
)

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "dradriver"
"""The label by which slices of drivers that are no longer configured are known to be ours."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The Node object that the slices belong to: when it is deleted, they are collected as garbage."""

    name: str
    uid: str

    @property
    def reference(self) -> Body:
        """The entry of `metadata.ownerReferences`."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid, "controller": True}


@dataclass(frozen=True, slots=True)
class Sent:
    """What was last wanted of a slice, and what the API server made of it.

    altered   where it stored something else, for people
    """

    spec: Body
    owner: Owner
    answer: Body
    altered: str = ""

    @property
    def uid(self) -> str:
        """The UID of the object."""
        uid: str = self.answer["metadata"]["uid"]
        return uid

    def is_as_answered(self, body: Body) -> bool:
        """Whether an object still is what the API server made of it, as far as we set it."""
        return body is self.answer or (
            body["spec"] == self.answer["spec"] and _marks(body) == _marks(self.answer)
        )


@dataclass(slots=True)
class Memory:
    """What this process knows of a pool beside what is stored.

    sent         by slice number; of slices that were found as they should be, too
    generation   the generation that this process last wrote or found
    complete     the pool was published; until then, slices at the end that hold nothing are let go
    """

    sent: dict[int, Sent] = field(default_factory=dict)
    generation: int = 0
    complete: bool = False

    def found(self, planned: "Plan", owner: Owner) -> None:
        """Note what is as it should be already."""
        for number, stored in planned.confirmed.items():
            sent = self.sent.get(number)
            if sent is None or not sent.is_as_answered(stored.body):
                self._note(number, Sent(planned.specs.specs[number], owner, stored.body))

    def written(self, write: "Write", owner: Owner, answer: Body, altered: str = "") -> None:
        """Note the answer to a write."""
        self._note(write.number, Sent(write.wanted, owner, answer, altered))

    def done(self, planned: "Plan") -> None:
        """Note that a plan was carried out."""
        self.sent = {number: sent for number, sent in self.sent.items() if number < len(planned.specs.specs)}
        self.complete = True

    def _note(self, number: int, sent: Sent) -> None:
        self.sent[number] = sent
        self.generation = sent.spec["pool"]["generation"]


@dataclass(frozen=True, slots=True)
class Refused:
    """What the API server did not take, by name, with the reasons."""

    devices: Mapping[str, str]
    counter_sets: Mapping[str, str]


NONE_REFUSED = Refused({}, {})


@dataclass(frozen=True, slots=True)
class Write:
    """One slice to be created (`stored` is None) or replaced.

    wanted   the spec that it should mean, without the times of taints
    """

    number: int
    wanted: Body
    body: Body
    stored: Stored | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, in this order; nothing of both where all is as it should be.

    confirmed   slices that are as they should be: number -> what is stored
    """

    specs: PoolSpecs
    writes: tuple[Write, ...]
    deletes: tuple[Stored, ...]
    confirmed: Mapping[int, Stored]


def plan(
    pool: Pool,
    content: PoolContent,
    *,
    features: ApiFeatures,
    slices: Iterable[Stored],
    memory: Memory,
    owner: Owner,
    refused: Refused = NONE_REFUSED,
) -> Plan:
    """Return how the stored `slices` of a pool come to say `content`, less what the API server refused."""
    kept, strays = _by_number(pool, slices, memory)
    earlier = _earlier(kept, memory)
    specs = pool_specs(
        pool, content, features, earlier, refused=refused.devices, refused_sets=refused.counter_sets
    )
    generation = _generation(specs.specs, kept, earlier)
    times = _Times(kept, memory)
    changes: list[Write] = []
    missing: list[Write] = []
    confirmed: dict[int, Stored] = {}
    for number, wanted in enumerate(specs.specs):
        wanted["pool"]["generation"] = generation
        stored = kept.get(number)
        if stored is not None and _settled(wanted, stored, memory.sent.get(number), owner):
            confirmed[number] = stored
            continue
        body = _object(pool, number, times.added(wanted), stored, owner)
        late = stored is None or stored.generation != generation
        (missing if late else changes).append(Write(number, wanted, body, stored))
    extra = [stored for number, stored in kept.items() if number >= len(specs.specs)]
    return Plan(specs, (*changes, *missing), (*strays, *extra), confirmed)


def _by_number(
    pool: Pool, slices: Iterable[Stored], memory: Memory
) -> tuple[dict[int, Stored], list[Stored]]:
    """Return the slices by number, and those that are none of ours or too many of a number."""
    kept: dict[int, Stored] = {}
    strays: list[Stored] = []
    ours = {sent.uid for sent in memory.sent.values()}
    # Of several that share a number, the one that this process wrote stays, else the newest generation's.
    for stored in sorted(slices, key=lambda one: (one.uid not in ours, -one.generation, one.name)):
        number = pool.slice_number(stored.name)
        if number is None or number in kept:
            strays.append(stored)
        else:
            kept[number] = stored
    return kept, strays


def _earlier(kept: Mapping[int, Stored], memory: Memory) -> Earlier:
    """Return what the pool is to go on from.

    That is what this process last wrote, whatever became of it: so what others deleted or edited, or what the API
    server stored otherwise, moves no device and raises no generation. What it did not write yet is as it is stored.
    """
    specs = {
        number: _sound(stored.spec)
        for number, stored in kept.items()
        # A number beyond what the slice itself counts is not of our making: it must not become a place in the pool.
        if number < stored.spec["pool"]["resourceSliceCount"]
    }
    specs |= {number: sent.spec for number, sent in memory.sent.items()}
    return Earlier.of(specs, generation=memory.generation, whole=memory.complete)


def _sound(spec: Body) -> Body:
    if spec["pool"]["generation"] < UNSOUND_GENERATION:
        return spec
    return spec | {"pool": spec["pool"] | {"generation": 0}}


def _generation(specs: Sequence[Body], kept: Mapping[int, Stored], earlier: Earlier) -> int:
    """Return the generation to write: that of specs which follow `earlier`, or the one that is to be completed."""
    newest = earlier.generation
    current = [number for number, stored in kept.items() if stored.generation == newest]
    counts = {kept[number].spec["pool"]["resourceSliceCount"] for number in current}
    fitting = counts <= {len(specs)} and all(number < len(specs) for number in current)
    if newest and fitting and len(current) < len(specs):
        return newest
    following: int = specs[0]["pool"]["generation"]
    return following


def _settled(wanted: Body, stored: Stored, sent: Sent | None, owner: Owner) -> bool:
    if sent is not None and sent.is_as_answered(stored.body):
        return sent.owner == owner and same(wanted, sent.spec)
    return same(wanted, stored.spec) and _is_marked(stored.body, owner)


def _is_marked(body: Body, owner: Owner) -> bool:
    labels, owners = _marks(body)
    return labels.get(MANAGED_BY) == MANAGER and owner.reference in owners


def _marks(body: Body) -> tuple[Mapping[str, str], Sequence[Body]]:
    """Return the labels and owners of an object."""
    metadata = body["metadata"]
    owners = [
        {key: value for key, value in one.items() if value is not False}
        for one in metadata.get("ownerReferences") or ()
    ]
    return metadata.get("labels") or {}, owners


def _object(pool: Pool, number: int, spec: Body, stored: Stored | None, owner: Owner) -> Body:
    """Return the object to send. What others have put into the metadata of a slice stays."""
    metadata: Body = {"generateName": pool.generate_name(number)}
    labels: Body = {}
    owners: list[Body] = []
    if stored is not None:
        old = stored.body["metadata"]
        metadata = {"name": stored.name, "uid": stored.uid, "resourceVersion": stored.revision}
        metadata |= {key: old[key] for key in ("annotations", "finalizers") if old.get(key)}
        labels = old.get("labels") or {}
        owners = [
            one
            for one in old.get("ownerReferences") or ()
            if one.get("kind") != "Node" and not one.get("controller")
        ]
    metadata["labels"] = {**labels, MANAGED_BY: MANAGER}
    metadata["ownerReferences"] = [owner.reference, *owners]
    return slice_object(metadata, spec)


class _Times:
    """When taints were added, as the API server noted it.

    It would note the time anew in every slice that is replaced, and with it begin the toleration of a running pod
    again.
    """

    def __init__(self, kept: Mapping[int, Stored], memory: Memory) -> None:
        self._specs = [
            *(sent.answer["spec"] for number, sent in memory.sent.items() if number not in kept),
            *(stored.spec for stored in kept.values()),
        ]
        self._known: dict[tuple[str, ...], str] | None = None

    def added(self, spec: Body) -> Body:
        """Return a spec with the times that are known filled in."""
        if not any("taints" in device for device in spec.get("devices", ())):
            return spec
        return spec | {"devices": [self._with_times(device) for device in spec["devices"]]}

    def _with_times(self, device: Body) -> Body:
        if "taints" not in device:
            return device
        if self._known is None:
            self._known = {
                _key(other["name"], taint): taint["timeAdded"]
                for spec in self._specs
                for other in spec.get("devices") or ()
                for taint in other.get("taints") or ()
                if taint.get("timeAdded")
            }
        taints = []
        for taint in device["taints"]:
            time = self._known.get(_key(device["name"], taint))
            taints.append(taint if "timeAdded" in taint or time is None else taint | {"timeAdded": time})
        return device | {"taints": taints}


def _key(device: str, taint: Body) -> tuple[str, ...]:
    return device, taint["key"], taint.get("value", ""), taint["effect"]
