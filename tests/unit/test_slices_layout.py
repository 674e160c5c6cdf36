"""Where devices go: the limits hold, nothing is lost, and what does not change stays where it is."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.model import CounterSet, Device, PoolContent, Quantity, Taint, TaintEffect
from dradriver.model.names import check_subdomain
from dradriver.slices import Body, Earlier, Pool, PoolSpecs, pool_specs, same

POOL = Pool("gpu.dradriver.io", "node-a", "node-a/gpu")
SICK = (Taint("dradriver.io/unhealthy", TaintEffect.NO_EXECUTE),)
ONE = Quantity.from_int(1)


def thing(name: str, parts: int) -> tuple[Device, ...]:
    return tuple(Device(f"{name}-{part}", thing=name) for part in range(parts))


def content(*things: tuple[Device, ...], counter_sets: int = 0) -> PoolContent:
    return PoolContent(
        tuple(device for one in things for device in one),
        tuple(CounterSet(f"set-{number}", {"slices": ONE}) for number in range(counter_sets)),
    )


def specs(wanted: PoolContent, earlier: Sequence[Body] = ()) -> tuple[Body, ...]:
    return pool_specs(POOL, wanted, earlier=Earlier(tuple(earlier))).specs


def names(spec: Body) -> list[str]:
    return [device["name"] for device in spec.get("devices", ())]


def changed(after: Sequence[Body], before: Sequence[Body]) -> list[int]:
    return [number for number, spec in enumerate(after) if not same(spec, before[number])]


def test_a_pool_without_devices_is_one_empty_slice() -> None:
    assert specs(PoolContent()) == (
        {
            "driver": "gpu.dradriver.io",
            "nodeName": "node-a",
            "pool": {"name": "node-a/gpu", "generation": 1, "resourceSliceCount": 1},
        },
    )


def test_the_first_layout_keeps_the_order_and_things_together() -> None:
    made = specs(content(*(thing(f"gpu-{n}", 30) for n in range(5)), thing("last", 1)))
    assert [len(names(spec)) for spec in made] == [60, 60, 31]
    assert names(made[2])[-1] == "last-0"
    assert [name for spec in made for name in names(spec)][:31:30] == ["gpu-0-0", "gpu-1-0"]


def test_devices_of_two_things_may_alternate() -> None:
    whole = (*thing("gpu-0", 3), *thing("gpu-1", 3))
    alternating = PoolContent(whole[::3] + whole[1::3] + whole[2::3])
    assert names(specs(alternating)[0]) == [device.name for device in alternating.devices]


def test_counters_stand_apart_and_first() -> None:
    made = specs(content(thing("gpu-0", 1), counter_sets=9))
    assert [len(spec.get("sharedCounters", ())) for spec in made] == [8, 1, 0]
    assert [len(names(spec)) for spec in made] == [0, 0, 1]
    assert all("devices" not in spec or "sharedCounters" not in spec for spec in made)


def test_a_device_that_falls_ill_changes_one_slice_of_many() -> None:
    healthy = content(*(thing(f"gpu-{n}", 8) for n in range(250)))
    before = specs(healthy)
    ill = replace(
        healthy,
        devices=tuple(
            replace(device, taints=SICK) if device.physical == "gpu-77" else device
            for device in healthy.devices
        ),
    )
    after = specs(ill, before)
    assert len(changed(after, before)) == 1
    assert after[0]["pool"] == before[0]["pool"]
    assert changed(specs(healthy, after), before) == []


def test_a_removed_thing_leaves_a_gap_and_a_new_one_fills_it() -> None:
    things = [thing(f"gpu-{n}", 30) for n in range(6)]
    before = specs(content(*things))
    without = specs(content(*things[:2], *things[3:]), before)
    assert changed(without, before) == [1]
    assert without[0]["pool"]["generation"] == 1
    again = specs(content(*things[:2], *things[3:], thing("nic-0", 30)), without)
    assert changed(again, without) == [1]
    assert "nic-0-0" in names(again[1])


def test_a_slice_that_runs_empty_stays() -> None:
    before = specs(content(thing("gpu-0", 64), thing("gpu-1", 1)))
    after = specs(content(thing("gpu-0", 64)), before)
    assert changed(after, before) == [1]
    assert names(after[1]) == []


def test_one_slice_more_is_a_new_generation_of_all() -> None:
    before = specs(content(thing("gpu-0", 64)))
    after = specs(content(thing("gpu-0", 64), thing("gpu-1", 1)), before)
    assert [spec["pool"]["generation"] for spec in after] == [2, 2]
    assert [spec["pool"]["resourceSliceCount"] for spec in after] == [2, 2]
    assert names(after[0]) == names(before[0])


def test_two_slices_changed_is_a_new_generation_of_all() -> None:
    devices = content(thing("gpu-0", 64), thing("gpu-1", 64), thing("gpu-2", 64)).devices
    before = specs(PoolContent(devices))
    two_ill = (replace(devices[0], taints=SICK), *devices[1:-1], replace(devices[-1], taints=SICK))
    after = specs(PoolContent(two_ill), before)
    assert [spec["pool"]["generation"] for spec in after] == [2, 2, 2]


def test_a_thing_that_outgrows_its_slice_moves_and_the_others_stay() -> None:
    before = specs(content(thing("gpu-0", 30), thing("gpu-1", 30)))
    after = specs(content(thing("gpu-0", 30), thing("gpu-1", 40)), before)
    assert names(after[0]) == names(before[0])[:30]
    assert len(names(after[1])) == 40


def test_a_thing_larger_than_a_slice_takes_as_few_as_it_can() -> None:
    before = specs(content(thing("small", 20), thing("pf-0", 100)))
    assert [len(names(spec)) for spec in before] == [20, 64, 36]
    after = specs(content(thing("small", 20), thing("pf-0", 101)), before)
    assert changed(after, before) == [2]


def test_a_lost_slice_raises_the_generation() -> None:
    wanted = content(thing("gpu-0", 64), thing("gpu-1", 64))
    before = specs(wanted)
    made = pool_specs(POOL, wanted, earlier=Earlier((before[0], None)))
    assert [spec["pool"]["generation"] for spec in made.specs] == [2, 2]


def test_the_generation_never_falls() -> None:
    made = pool_specs(POOL, PoolContent(), earlier=Earlier((), 41))
    assert made.specs[0]["pool"]["generation"] == 42


def test_slice_names_sort_by_number_and_fit() -> None:
    pool = Pool("gpu.dradriver.io", ".".join(["n" * 49] * 5), "node/gpu")
    slices = [pool.slice_name(number) for number in (0, 1, 10, 100)]
    assert slices == sorted(slices)
    assert len({*slices, replace(pool, node=f"{pool.node}0").slice_name(0)}) == 5
    assert max(map(len, slices)) <= 253
    assert POOL.slice_name(7) == "007-gpu.dradriver.io-node-a-gpu"


labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
subdomains = st.lists(labels, min_size=1, max_size=12).map(".".join)


@given(subdomains.filter(lambda name: len(name) <= 63), subdomains, st.integers(0, 999), st.integers(0, 999))
def test_a_generated_name_is_one_that_the_server_takes_and_keeps_its_number(
    driver: str, node: str, one: int, other: int
) -> None:
    pool = Pool(driver, node, "node/gpu")
    prefix = pool.generate_name(one)
    assert len(prefix) <= 58
    # The server demands of it what it demands of a name, but for dashes at the end.
    assert check_subdomain(prefix.rstrip("-"), "generateName")
    name = check_subdomain(f"{prefix}x7k2p", "name")
    assert pool.slice_number(name) == one
    assert pool.slice_number(pool.slice_name(one)) == one
    if one < other:
        assert name < f"{pool.generate_name(other)}22222"


def test_a_name_that_was_not_made_here_has_no_number() -> None:
    assert POOL.generate_name(7) == "007-gpu.dradriver.io-node-a-"
    assert POOL.slice_number("1000-gpu.dradriver.io-node-a-x7k2p") == 1000
    for name in (
        "node-a-gpu.dradriver.io-x7k2p",
        "07-gpu.dradriver.io-node-a-x",
        "",
        "007-",
        "007-gpu-node-a-x",
    ):
        assert POOL.slice_number(name) is None
    for name in (
        "0007-gpu.dradriver.io-node-a-x",
        "007-nic.dradriver.io-node-a-x",
        "-007-gpu.dradriver.io-node-a",
    ):
        assert POOL.slice_number(name) is None


@dataclass(frozen=True)
class Part:
    """A random thing: how many devices it has, whether it is ill and whether it draws on counters."""

    size: int
    ill: bool
    counted: bool


parts = st.builds(
    Part, st.one_of(st.integers(1, 12), st.sampled_from([30, 63, 64, 65, 130])), st.booleans(), st.booleans()
)
worlds = st.dictionaries(st.sampled_from([f"t{n}" for n in range(12)]), parts, max_size=10)


def random_content(world: dict[str, Part]) -> PoolContent:
    devices = tuple(
        replace(
            device,
            taints=SICK if part.ill else (),
            consumes={name: {"slices": ONE}} if part.counted else {},
        )
        for name, part in world.items()
        for device in thing(name, part.size)
    )
    counters = tuple(CounterSet(name, {"slices": ONE}) for name, part in world.items() if part.counted)
    return PoolContent(devices, counters)


@settings(max_examples=60, deadline=None)
@given(st.lists(worlds, min_size=1, max_size=6))
def test_through_any_sequence_of_changes(history: list[dict[str, Part]]) -> None:
    before: PoolSpecs = PoolSpecs((), (), ())
    old: dict[str, Part] = {}
    for world in history:
        after = pool_specs(POOL, random_content(world), earlier=Earlier(before.specs))
        assert not after.left_out
        assert_limits_hold(after.specs)
        assert_nothing_lost(after.specs, random_content(world))
        assert_things_together(after.specs, world)
        for name in world.keys() & old.keys():
            if world[name] == old[name]:
                assert places(after.specs)[name] == places(before.specs)[name]
        assert_generation_rules(after.specs, before.specs)
        assert pool_specs(POOL, random_content(world), earlier=Earlier(after.specs)).specs == after.specs
        before, old = after, world


def assert_limits_hold(made: Sequence[Body]) -> None:
    assert made
    for spec in made:
        assert len(names(spec)) <= 64
        assert len(spec.get("sharedCounters", ())) <= 8
        assert not ("devices" in spec and "sharedCounters" in spec)
        assert [] not in spec.values()
        assert spec["pool"]["resourceSliceCount"] == len(made)


def assert_nothing_lost(made: Sequence[Body], wanted: PoolContent) -> None:
    assert sorted(name for spec in made for name in names(spec)) == sorted(
        device.name for device in wanted.devices
    )
    assert sorted(one["name"] for spec in made for one in spec.get("sharedCounters", ())) == sorted(
        one.name for one in wanted.counter_sets
    )
    order = {device.name: index for index, device in enumerate(wanted.devices)}
    for spec in made:
        assert names(spec) == sorted(names(spec), key=order.__getitem__)


def places(made: Sequence[Body]) -> dict[str, list[tuple[int, str]]]:
    found = defaultdict(list)
    for number, spec in enumerate(made):
        for name in names(spec):
            found[name.rpartition("-")[0]].append((number, name))
    return found


def assert_things_together(made: Sequence[Body], world: dict[str, Part]) -> None:
    for name, found in places(made).items():
        if world[name].size <= 64:
            assert len({number for number, _ in found}) == 1


def assert_generation_rules(after: Sequence[Body], before: Sequence[Body]) -> None:
    (now,) = {spec["pool"]["generation"] for spec in after}
    if not before:
        assert now == 1
        return
    then = before[0]["pool"]["generation"]
    renumbered = [spec | {"pool": spec["pool"] | {"generation": then}} for spec in after]
    stays = len(after) == len(before) and len(changed(renumbered, before)) <= 1
    assert now == (then if stays else then + 1)
