"""Where a server does not store all of a pool, less is published, and nothing that could be given out twice."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apirules import create
from dradriver.model import (
    AttributeValue,
    BindingConditions,
    Capacity,
    CounterSet,
    Device,
    NodeAllocatable,
    PoolContent,
    Quantity,
    RequestPolicy,
    Taint,
    TaintEffect,
    json_quantity,
)
from dradriver.sim.apiserver.rules import Gates
from dradriver.slices import (
    ApiFeatures,
    Body,
    Earlier,
    Feature,
    NodeAllocatableField,
    Pool,
    PoolSpecs,
    features_of,
    pool_specs,
    same,
)
from fakenode import machine

POOL = Pool("gpu.dradriver.io", "node-a", "node-a/gpu")
SICK = Taint("dradriver.io/unhealthy", TaintEffect.NO_EXECUTE)
NOTE = Taint("dradriver.io/note", TaintEffect.NONE)

EVERYTHING = ApiFeatures()
NO_COUNTERS = ApiFeatures(counters=False)
NO_TAINTS = ApiFeatures(taints=False)


def amount(value: int) -> Quantity:
    return Quantity.from_int(value)


def part(name: str, draws: int, of: str = "gpu-0", **fields: Any) -> Device:
    return Device(name, thing=of, consumes={of: {"slices": amount(draws)}}, **fields)


def gpu(*devices: Device, slices: int = 7) -> PoolContent:
    return PoolContent(devices, (CounterSet("gpu-0", {"slices": amount(slices)}),))


def bodies(made: PoolSpecs) -> dict[str, Body]:
    return {device["name"]: device for spec in made.specs for device in spec.get("devices", ())}


def published(content: PoolContent, features: ApiFeatures = NO_COUNTERS) -> list[str]:
    return list(bodies(pool_specs(POOL, content, features)))


def with_taint(content: PoolContent, name: str, taint: Taint = SICK) -> PoolContent:
    devices = (
        replace(device, taints=(taint,)) if device.name == name else device for device in content.devices
    )
    return replace(content, devices=tuple(devices))


# Without counters.


def test_of_a_gpu_and_its_partitions_the_gpu_is_published() -> None:
    content = gpu(part("mig-0", 3), part("mig-4", 3), part("gpu-0", 7))
    made = pool_specs(POOL, content, NO_COUNTERS)
    assert bodies(made) == {"gpu-0": {"name": "gpu-0"}}
    assert "sharedCounters" not in str(made.specs)
    assert not made.left_out
    (line,) = made.reductions
    assert line == (
        "of devices that overlap only the largest is published, with what fits beside it: this API server does not "
        "store counters (feature gate DRAPartitionableDevices)"
    )


def test_a_partition_that_takes_all_of_it_does_not_go_before_the_gpu() -> None:
    assert published(gpu(part("mig-7g", 7), part("gpu-0", 7))) == ["gpu-0"]


def test_a_part_does_not_appear_because_the_whole_is_ill() -> None:
    content = gpu(part("mig-0", 3), part("gpu-0", 7))
    ill = with_taint(content, "gpu-0")
    assert bodies(pool_specs(POOL, ill, NO_COUNTERS))["gpu-0"]["taints"]
    assert published(ill) == ["gpu-0"]
    none = ApiFeatures(counters=False, taints=False)
    assert published(ill, none) == []
    assert published(with_taint(content, "mig-0"), none) == ["gpu-0"]
    refused = pool_specs(POOL, content, NO_COUNTERS, refused={"gpu-0": "it is odd"})
    assert list(bodies(refused)) == []
    invalid = gpu(part("mig-0", 3), part("gpu-0", 7, taints=(Taint("so sick", TaintEffect.NONE),)))
    assert published(invalid) == []


def test_parts_without_a_whole_are_published_in_their_order_as_far_as_they_fit() -> None:
    parts = [part("a", 2), part("b", 3), part("c", 4), part("d", 1), part("e", 1), part("f", 0)]
    made = pool_specs(POOL, gpu(*parts), NO_COUNTERS)
    assert list(bodies(made)) == ["a", "c", "d", "f"], "the largest is in, then a, d and f still fit"
    assert len(made.reductions) == 1


def test_where_all_fit_nothing_is_lost_and_nothing_is_told() -> None:
    made = pool_specs(POOL, gpu(part("a", 3), part("b", 4), Device("nic-0")), NO_COUNTERS)
    assert list(bodies(made)) == ["a", "b", "nic-0"]
    assert made.reductions == ()


def test_each_counter_of_a_set_can_be_what_runs_out() -> None:
    media = CounterSet("gpu-0", {"slices": amount(8), "decoders": amount(1)})
    one, two = (
        Device(name, consumes={"gpu-0": {"slices": amount(2), "decoders": amount(1)}}) for name in ("a", "b")
    )
    plain = Device("c", consumes={"gpu-0": {"slices": amount(2)}})
    assert published(PoolContent((one, two, plain), (media,))) == ["a", "c"]


def test_a_device_of_two_counter_sets_overlaps_in_both() -> None:
    sets = tuple(CounterSet(name, {"slices": amount(2)}) for name in ("x", "y"))
    link = Device("link", consumes={name: {"slices": amount(1)} for name in ("x", "y")})
    wide = Device("wide", consumes={"y": {"slices": amount(2)}})
    assert published(PoolContent((link, wide), sets)) == ["link"]
    narrow = replace(wide, consumes={"y": {"slices": amount(1)}})
    assert published(PoolContent((link, narrow), sets)) == ["link", "wide"]


def test_what_draws_more_than_there_is_makes_no_room_for_itself() -> None:
    assert published(gpu(part("too-much", 9), part("a", 3))) == ["a"]


def test_odd_counters_are_found_as_everywhere() -> None:
    lost = part("lost", 1, of="gpu-9")
    twice = (CounterSet("gpu-0", {"slices": amount(7)}), CounterSet("gpu-0", {"slices": amount(70)}))
    content = PoolContent((lost, part("a", 7), part("a", 1), part("b", 7)), twice)
    made = pool_specs(POOL, content, NO_COUNTERS)
    assert list(bodies(made)) == ["a"]
    assert [str(left) for left in made.left_out] == [
        "'gpu-0' is not published: a counter set of that name came before",
        "'lost' is not published: counter set 'gpu-9' is not published in the pool",
        "'a' is not published: a device of that name came before",
    ]


@pytest.mark.parametrize("mode", [{"nicMode": "both"}, {"nicMode": "vf"}])
def test_a_fake_node_offers_its_gpu_and_card_whole(tmp_path: Path, mode: dict[str, str]) -> None:
    with machine(tmp_path, gpuMode="partitions", **mode) as made:
        for pool in made.pools.all:
            named = Pool(pool.driver, "n1", pool.name)
            content = pool.snapshot.content
            names = list(bodies(pool_specs(named, content, NO_COUNTERS)))
            if pool.backend.kind == "gpu":
                assert names == ["gpu-0000-43-00-0"]
            elif mode["nicMode"] == "both":
                assert names == ["nic-0000-44-00-0"]
            else:
                assert names == [device.name for device in content.devices]


def test_every_gpu_of_a_large_node_is_offered_whole(tmp_path: Path) -> None:
    with machine(tmp_path, "dgx-h100") as made:
        pool = made.pool("gpu")
        whole = [one.name for one in pool.snapshot.content.devices if one.name == one.physical]
        assert len(whole) == 8
        assert list(bodies(pool_specs(POOL, pool.snapshot.content, NO_COUNTERS))) == whole


# Without the rest.


def test_without_consumable_capacity_shared_devices_are_given_out_whole() -> None:
    policy = RequestPolicy(amount(1))
    content = PoolContent((Device("cpu", shared=True, capacity={"cpu": Capacity(amount(8), policy)}),))
    made = pool_specs(POOL, content, ApiFeatures(shared=False))
    assert bodies(made) == {"cpu": {"name": "cpu", "capacity": {"cpu": {"value": "8"}}}}
    (line,) = made.reductions
    assert line == (
        "devices are given out whole instead of in shares: this API server does not store consumable capacity "
        "(feature gate DRAConsumableCapacity)"
    )


def test_without_taints_a_sick_device_is_withdrawn_and_a_remark_is_dropped() -> None:
    sick = with_taint(PoolContent((Device("a"), Device("b"), Device("c", taints=(NOTE,)))), "a")
    made = pool_specs(POOL, sick, NO_TAINTS)
    assert bodies(made) == {name: {"name": name} for name in ("b", "c")}
    (left,) = made.left_out
    assert str(left) == (
        "'a' is not published: it is tainted with 'dradriver.io/unhealthy' (NoExecute), and this API server stores "
        "no taints"
    )
    (line,) = made.reductions
    assert line == (
        "taints are not published, and devices that they keep claims from are withdrawn: this API server does not "
        "store them (feature gate DRADeviceTaints)"
    )


def test_with_counters_and_without_taints_a_sick_part_takes_along_what_could_overlap_it() -> None:
    """The scheduler counts what a claim's device draws only as long as that device is published."""
    sets = tuple(CounterSet(name, {"slices": amount(4)}) for name in ("x", "y", "z"))
    devices = (
        part("x-0", 2, "x"),
        part("x-1", 2, "x"),
        Device("xy", thing="x", consumes={name: {"slices": amount(1)} for name in ("x", "y")}),
        part("y-0", 2, "y"),
        part("z-0", 2, "z"),
        Device("nic-0"),
    )
    sick = with_taint(PoolContent(devices, sets), "x-0")
    made = pool_specs(POOL, sick, NO_TAINTS)
    assert list(bodies(made)) == ["z-0", "nic-0"]
    assert {left.name: left.reasons for left in made.left_out}["y-0"] == (
        "it draws on the same counters as 'xy', which is withdrawn and no longer counted",
    )
    assert list(bodies(pool_specs(POOL, sick, EVERYTHING))) == [device.name for device in devices]


def test_without_binding_conditions_a_device_is_published_bare() -> None:
    content = PoolContent((Device("a", binding=BindingConditions(("Ready",), ("Failed",), True)),))
    made = pool_specs(POOL, content, ApiFeatures(binding=False))
    assert bodies(made) == {"a": {"name": "a"}}
    assert len(made.reductions) == 1
    assert "DRADeviceBindingConditions" in made.reductions[0]


def test_without_list_attributes_these_are_dropped_with_one_line() -> None:
    attributes: dict[str, AttributeValue] = {"type": "gpu", "numa": (0,), "links": ("a", "b")}
    content = PoolContent(tuple(Device(f"gpu-{n}", attributes=attributes) for n in range(3)))
    made = pool_specs(POOL, content, ApiFeatures(lists=False))
    assert all(body["attributes"] == {"type": {"string": "gpu"}} for body in bodies(made).values())
    (line,) = made.reductions
    assert line == (
        "list attributes are not published ('links', 'numa'): this API server does not store them "
        "(feature gate DRAListTypeAttributes)"
    )
    assert not made.warnings


def test_lists_that_are_not_published_take_no_room_from_what_is() -> None:
    attributes: dict[str, AttributeValue] = {"ids": (0,) * 48, **{f"a{n}": n for n in range(32)}}
    made = pool_specs(POOL, PoolContent((Device("a", attributes=attributes),)), ApiFeatures(lists=False))
    assert len(bodies(made)["a"]["attributes"]) == 32
    assert not made.warnings


def test_what_a_pool_does_not_use_is_not_missed() -> None:
    assert pool_specs(POOL, PoolContent((Device("a"),)), features_of(())).reductions == ()


def test_lines_stay_the_same_while_the_hardware_is_of_the_same_kind() -> None:
    content = gpu(part("a", 4), part("b", 4, taints=(SICK,)), part("c", 4))
    fewer = replace(content, devices=content.devices[:2])
    lines = pool_specs(POOL, content, features_of(())).reductions
    assert lines == pool_specs(POOL, fewer, features_of(())).reductions
    assert len(lines) == 2


# Withdrawn and back.


def test_a_device_that_is_withdrawn_keeps_its_place() -> None:
    content = PoolContent(tuple(Device(f"gpu-{n}") for n in range(128)))
    before = pool_specs(POOL, content, NO_TAINTS)
    sick = pool_specs(POOL, with_taint(content, "gpu-9"), NO_TAINTS, Earlier(before.specs))
    assert [len(spec["devices"]) for spec in sick.specs] == [63, 64]
    more = PoolContent((*content.devices, Device("late")))
    grown = pool_specs(POOL, with_taint(more, "gpu-9"), NO_TAINTS, Earlier(sick.specs))
    assert [len(spec["devices"]) for spec in grown.specs] == [63, 64, 1]
    healed = pool_specs(POOL, more, NO_TAINTS, Earlier(grown.specs))
    assert [same(*pair) for pair in zip(healed.specs, grown.specs, strict=True)] == [False, True, True]
    assert healed.specs[0] | {"pool": {}} == before.specs[0] | {"pool": {}}


def test_no_slice_is_published_only_to_keep_a_place() -> None:
    content = with_taint(PoolContent(tuple(Device(f"gpu-{n}") for n in range(65))), "gpu-64")
    assert len(pool_specs(POOL, content, NO_TAINTS).specs) == 1
    alone = with_taint(PoolContent((Device("a"),)), "a")
    (spec,) = pool_specs(POOL, alone, NO_TAINTS).specs
    assert "devices" not in spec


# Any content, any features.


@dataclass(frozen=True)
class Made:
    """A random device: what it draws of two counters of two sets, whether it is shared, and what else it has."""

    draws: tuple[int, int, int, int]
    shared: bool
    others: int
    thing: int


FEATURES = st.sets(st.sampled_from(Feature)).map(features_of)
DEVICES = st.lists(
    st.builds(
        Made,
        st.tuples(*[st.sampled_from([0, 0, 1, 2, 3])] * 4),
        st.booleans(),
        st.integers(0, 31),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=5,
)
LIMITS = st.tuples(*[st.integers(1, 4)] * 4)
ILLS = st.sets(st.integers(0, 4))

UNITS = (("x", "a"), ("x", "b"), ("y", "a"), ("y", "b"))


def random_content(
    devices: Sequence[Made],
    limits: Sequence[int],
    ill: set[int] = frozenset(),  # type: ignore[assignment]
) -> PoolContent:
    sets = {"x": dict[str, Quantity](), "y": dict[str, Quantity]()}
    for (set_name, counter), limit in zip(UNITS, limits, strict=True):
        sets[set_name][counter] = amount(limit)
    return PoolContent(
        tuple(random_device(n, one, n in ill) for n, one in enumerate(devices)),
        tuple(CounterSet(name, counters) for name, counters in sets.items()),
    )


def random_device(number: int, made: Made, ill: bool) -> Device:
    consumes: dict[str, dict[str, Quantity]] = {}
    for (set_name, counter), draw in zip(UNITS, made.draws, strict=True):
        if draw:
            consumes.setdefault(set_name, {})[counter] = amount(draw)
    has = [bool(made.others >> bit & 1) for bit in range(5)]
    attributes: dict[str, AttributeValue] = {"index": number}
    if has[0]:
        attributes["list"] = (number, 0)
    return Device(
        f"d{number}",
        thing=f"t{made.thing}" if has[4] else "",
        attributes=attributes,
        capacity={"amount": Capacity(amount(2), RequestPolicy(amount(1)) if made.shared else None)},
        shared=made.shared,
        consumes=consumes,
        taints=(*((SICK,) if ill else ()), *((NOTE,) if has[1] else ())),
        binding=BindingConditions(("Ready",), ("Failed",)) if has[2] else None,
        node_allocatable=(NodeAllocatable("cpu", overhead_per_pod=amount(1)),) if has[3] else (),
    )


class Scheduler:
    """What the scheduler gives out of the slices as they are, beside what claims have already."""

    def __init__(self, made: PoolSpecs) -> None:
        self.devices = bodies(made)
        self.counters = {
            (one["name"], name): json_quantity(value["value"]).to_int()
            for spec in made.specs
            for one in spec.get("sharedCounters", ())
            for name, value in one["counters"].items()
        }

    def draws(self, name: str) -> dict[tuple[str, str], int]:
        return {
            (entry["counterSet"], counter): json_quantity(value["value"]).to_int()
            for entry in self.devices[name].get("consumesCounters", ())
            for counter, value in entry["counters"].items()
        }

    def gives(self, held: Sequence[str], name: str) -> bool:
        """Whether one more use of a device is given out. A share is one of two; a held device that is gone is free."""
        device = self.devices.get(name)
        if device is None or any(taint["effect"] != "None" for taint in device.get("taints", ())):
            return False
        if held.count(name) >= (2 if device.get("allowMultipleAllocations") else 1):
            return False
        if name in held:
            return True
        drawn = Counter[tuple[str, str]]()
        for one in {*held, name} & self.devices.keys():
            drawn.update(self.draws(one))
        return all(drawn[unit] <= self.counters[unit] for unit in self.draws(name))

    def outcomes(self, names: Sequence[str], held: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield everything that can have been given out in the end, beside `held`."""
        seen = {held}
        queue = [held]
        for now in queue:
            yield now
            for name in names:
                after = tuple(sorted((*now, name)))
                if after not in seen and self.gives(now, name):
                    seen.add(after)
                    queue.append(after)


def assert_nothing_is_used_twice(content: PoolContent, uses: Sequence[str], whole: bool) -> None:
    """Check what is given out against the hardware; `whole`: each use of a shared device has all of it."""
    drawn = Counter[tuple[str, str]]()
    for device in content.devices:
        count = uses.count(device.name)
        assert count <= (2 if device.shared and not whole else 1), (device.name, uses)
        if count:
            for set_name, counters in device.consumes.items():
                drawn.update({(set_name, name): value.to_int() for name, value in counters.items()})
    for one in content.counter_sets:
        for name, limit in one.counters.items():
            assert drawn[one.name, name] <= limit.to_int(), uses


@settings(max_examples=150, deadline=None)
@given(DEVICES, LIMITS, ILLS, ILLS, FEATURES)
@example(
    [Made((1, 0, 0, 0), False, 0, 0), Made((2, 0, 0, 0), False, 0, 0)], (2, 1, 1, 1), set(), {0}, NO_TAINTS
)
def test_nothing_can_be_used_twice_whatever_falls_ill(
    devices: list[Made], limits: tuple[int, ...], before: set[int], after: set[int], features: ApiFeatures
) -> None:
    names = [f"d{n}" for n in range(len(devices))]
    content, later = random_content(devices, limits, before), random_content(devices, limits, after)
    first = pool_specs(POOL, content, features)
    second = pool_specs(POOL, later, features, Earlier(first.specs))
    sick = {f"d{n}" for n in after}
    scheduler = Scheduler(second)
    for held in Scheduler(first).outcomes(names, ()):
        for uses in scheduler.outcomes(names, held):
            assert_nothing_is_used_twice(content, uses, whole=not features.shared)
            given = Counter(uses) - Counter(held)
            assert not sick & given.keys()


KEYS = {
    "counters": ("sharedCounters", "consumesCounters"),
    "shared": ("allowMultipleAllocations", "requestPolicy"),
    "taints": ("taints",),
    "binding": ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
    "lists": ("ints",),
}


@settings(max_examples=150, deadline=None)
@given(DEVICES, LIMITS, ILLS, FEATURES)
def test_nothing_is_sent_that_is_not_stored_and_nothing_more_is_lost(
    devices: list[Made], limits: tuple[int, ...], ill: set[int], features: ApiFeatures
) -> None:
    content = random_content(devices, limits, ill)
    made = pool_specs(POOL, content, features)
    text = str(made.specs)
    for name, keys in KEYS.items():
        if not getattr(features, name):
            assert not any(f"'{key}'" in text for key in keys)
    for field in NodeAllocatableField:
        if field is not features.node_allocatable:
            assert f"'{field.value}'" not in text
    assert not made.warnings
    for spec in made.specs:
        assert len(spec.get("devices", ())) <= 64
        assert not ("devices" in spec and "sharedCounters" in spec)
        assert [] not in spec.values()
    assert made.offered == len(bodies(made))
    every = pool_specs(POOL, content)
    assert not every.left_out
    assert not every.reductions
    assert list(bodies(every)) == [device.name for device in content.devices]
    if features.counters:
        assert len(bodies(made)) + len(made.left_out) == len(devices)
    if features.taints:
        assert not made.left_out
    lacking = [line.rpartition("gate ")[2].rstrip(")") for line in made.reductions if "gate" in line]
    assert len(lacking) == len(set(lacking)) <= len(Feature)
    assert pool_specs(POOL, content, features, Earlier(made.specs)).specs == made.specs


def plenty(sizes: Sequence[int], sick: dict[int, set[int]]) -> PoolContent:
    """Return things with many partitions each, which overlap, and beside each the whole thing."""
    devices: list[Device] = []
    for thing, size in enumerate(sizes):
        name = f"gpu-{thing}"
        ill = sick.get(thing, set())
        for number in range(size):
            one = part(f"{name}-part-{number}", 1, name)
            devices.append(replace(one, taints=(SICK,)) if number in ill else one)
        devices.append(part(name, 4, name, taints=(SICK,) if -1 in ill else ()))
    return PoolContent(
        tuple(devices), tuple(CounterSet(f"gpu-{n}", {"slices": amount(4)}) for n in range(len(sizes)))
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 63), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.sets(st.integers(-1, 40), max_size=3)), max_size=6),
    FEATURES,
)
def test_a_change_of_one_thing_touches_its_slice_only(
    sizes: list[int], changes: list[tuple[int, set[int]]], features: ApiFeatures
) -> None:
    sick: dict[int, set[int]] = {}
    before = pool_specs(POOL, plenty(sizes, sick), features)
    generation = before.specs[0]["pool"]["generation"]
    for thing, ill in changes:
        sick[thing] = ill
        after = pool_specs(POOL, plenty(sizes, sick), features, Earlier(before.specs))
        changed = [n for n, pair in enumerate(zip(after.specs, before.specs, strict=True)) if not same(*pair)]
        assert len(changed) <= 1
        for number in changed:
            moved = {
                device["name"]
                for spec in (before.specs[number], after.specs[number])
                for device in spec.get("devices", ())
            }
            assert any(name == f"gpu-{thing}" or name.startswith(f"gpu-{thing}-") for name in moved)
        assert {spec["pool"]["generation"] for spec in after.specs} == {generation}
        before = after


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
@pytest.mark.parametrize("on", [True, False, None])
@settings(max_examples=25, deadline=None)
@given(devices=DEVICES, limits=LIMITS, ill=ILLS)
def test_the_stand_in_servers_rules_accept_and_keep_what_is_sent(
    version: str, on: bool | None, devices: list[Made], limits: tuple[int, ...], ill: set[int]
) -> None:
    """With all gates on, all off, or as they are by default."""
    known = {"1.34": 4, "1.35": 4}.get(version, 7)
    overrides = {} if on is None else {feature.gate: on for feature in list(Feature)[:known]}
    gates = Gates.of(version, overrides)
    stored = {feature for feature in Feature if feature.gate in gates}
    if version == "1.34":
        stored -= {Feature.COUNTERS, Feature.TAINTS}
    stored -= {Feature.RESOURCES if version == "1.36" else Feature.MAPPINGS}
    made = pool_specs(POOL, random_content(devices, limits, ill), features_of(stored))
    for spec in made.specs:
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": POOL.generate_name(0)},
            "spec": spec,
        }
        answer = create("ResourceSlice", body, gates)
        assert same(spec, answer.obj["spec"])


def test_a_device_left_out_has_every_reason() -> None:
    sick = with_taint(PoolContent((Device("a"),)), "a")
    made = pool_specs(POOL, sick, NO_TAINTS, refused={"a": "it is odd"})
    (left,) = made.left_out
    assert len(left.reasons) == 2


def test_content_can_be_enumerated_by_brute_force() -> None:
    """The scheduler of these tests gives out what counters allow, and no more."""
    content = gpu(part("a", 3), part("b", 3), part("c", 3))
    outcomes = set(Scheduler(pool_specs(POOL, content)).outcomes(["a", "b", "c"], ()))
    assert outcomes == {(), *itertools.combinations("abc", 1), *itertools.combinations("abc", 2)}
