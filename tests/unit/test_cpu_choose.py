"""Which CPUs are chosen: on small machines compared with all possible choices."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.host import CPUSet
from dradriver_cpu.choose import choose_cpus
from dradriver_cpu.layout import Core, Layout, mask_of


def machine(
    *nodes: list[list[int]],
    threads: int | list[int] = 2,
    kinds: tuple[str | None, ...] = (None,),
    distances: dict[int, dict[int, int]] | None = None,
) -> Layout:
    """A machine given as NUMA nodes, their L3 caches, and in each the numbers of cores of its clusters.

    CPUs are numbered through, the threads of a core side by side; cores are of each kind and size in turn.
    """
    sizes = [threads] if isinstance(threads, int) else threads
    cores: list[Core] = []
    cluster = 0
    cpu = 0
    for node, caches in enumerate(nodes):
        for l3, clusters in enumerate(caches):
            for size in clusters:
                for _ in range(size):
                    width = sizes[len(cores) % len(sizes)]
                    cores.append(
                        Core(
                            mask=mask_of(CPUSet(range(cpu, cpu + width))),
                            size=width,
                            kind=kinds[len(cores) % len(kinds)],
                            node=node,
                            caches=(("l3", node * 100 + l3), ("cluster", cluster), ("l2", -1)),
                            parts=(("node", node),),
                        )
                    )
                    cpu += width
                cluster += 1
    return Layout(tuple(cores), distances or {})


def everything(layout: Layout) -> CPUSet:
    return CPUSet(cpu for core in layout.cores for cpu in range(2048) if core.mask >> cpu & 1)


def chosen(layout: Layout, free: str, count: int, near: frozenset[int] = frozenset()) -> str:
    return str(choose_cpus(layout, CPUSet.parse(free), count, near))


SMALL_SERVER = machine([[4], [4]], [[4], [4]], distances={0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}})
"""Two nodes with two L3 caches of four cores of two threads: CPUs 0-7, 8-15 and 16-23, 24-31."""


def test_on_an_idle_machine_the_first_whole_cores_are_chosen() -> None:
    assert chosen(SMALL_SERVER, "0-31", 4) == "0-3"


def test_a_whole_core_comes_before_two_halves() -> None:
    assert chosen(SMALL_SERVER, "1,3,6-7", 2) == "6-7"


def test_halves_are_taken_when_no_whole_core_is_left() -> None:
    assert chosen(SMALL_SERVER, "1,3,5", 2) == "1,3"


def test_the_odd_cpu_comes_from_a_core_that_is_broken_already() -> None:
    assert chosen(SMALL_SERVER, "0-4,6-7", 3) == "0-1,4"


def test_the_odd_cpu_breaks_a_core_rather_than_taking_another_cache() -> None:
    assert chosen(SMALL_SERVER, "0-3,9", 3) == "0-2"


def test_a_cache_with_just_enough_is_used_up_before_a_full_one_is_begun() -> None:
    assert chosen(SMALL_SERVER, "0-7,12-15", 4) == "12-15"
    assert chosen(SMALL_SERVER, "0-7,12-15", 6) == "0-5"


def test_what_needs_two_caches_takes_two_of_one_node() -> None:
    assert chosen(SMALL_SERVER, "2-7,16-31", 12) == "16-27"


def test_of_two_caches_the_emptier_one_is_used_up() -> None:
    layout = machine([[4], [3], [2], [1]])
    assert chosen(layout, "0-19", 10) == "0-7,18-19"
    assert chosen(layout, "0-19", 14) == "0-13"


def test_near_the_claims_other_devices() -> None:
    assert chosen(SMALL_SERVER, "0-31", 4, frozenset({1})) == "16-19"
    assert chosen(SMALL_SERVER, "0-31", 4, frozenset({0, 1})) == "0-3"
    assert chosen(SMALL_SERVER, "0-7,16-17,24-25", 4, frozenset({1})) == "0-3"


def test_a_cluster_is_kept_together() -> None:
    layout = machine([[2, 2, 2]], threads=1)
    assert chosen(layout, "1-5", 2) == "2-3"
    assert chosen(layout, "0-5", 4) == "0-3"


def test_one_kind_of_cores_comes_before_a_mixture() -> None:
    layout = machine([[8]], threads=1, kinds=("performance", "efficiency"))
    assert chosen(layout, "0-7", 3) == "0,2,4"
    assert chosen(layout, "0-1,3,5", 2) == "1,3"
    assert chosen(layout, "0-1,3", 3) == "0-1,3"


def test_four_and_eight_threads_a_core() -> None:
    four = machine([[4]], threads=4)
    assert chosen(four, "0-15", 6) == "0-5"
    assert chosen(four, "0-11,14-15", 6) == "0-3,14-15"
    assert chosen(four, "1-3,5,8-15", 9) == "5,8-15"
    eight = machine([[2]], threads=8)
    assert chosen(eight, "0-15", 9) == "0-8"
    assert chosen(eight, "5-15", 8) == "8-15"


def test_an_odd_rest_comes_from_one_cache_where_each_core_has_its_own() -> None:
    layout = machine([[1], [1], [1]], threads=4)
    assert chosen(layout, "0-1,4-5,8-11", 3) == "8-10"
    assert chosen(layout, "0-1,4-6,8-11", 3) == "4-6"


def test_cpu_numbers_beyond_a_thousand() -> None:
    layout = machine(*[[[64]] * 4] * 4, threads=2)
    assert chosen(layout, "1020-1025,1100-1199,2000-2045", 40) == "2000-2039"


@pytest.mark.parametrize("count", [0, -1, 9])
def test_a_number_that_cannot_be_had_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} CPUs cannot be chosen from 8"):
        choose_cpus(SMALL_SERVER, CPUSet.parse("0-7"), count)


THREADS: st.SearchStrategy[int | list[int]] = st.sampled_from((1, 2, 4, 8))
MIXED_THREADS: st.SearchStrategy[int | list[int]] = st.lists(st.integers(1, 4), min_size=1, max_size=3)
ONE_KIND: st.SearchStrategy[tuple[str | None, ...]] = st.just((None,))
KINDS: st.SearchStrategy[tuple[str | None, ...]] = st.sampled_from(
    ((None,), ("performance", "efficiency"), (None, "efficiency", "efficiency"))
)


@st.composite
def situations(
    draw: st.DrawFn,
    threads: st.SearchStrategy[int | list[int]] = THREADS,
    kinds: st.SearchStrategy[tuple[str | None, ...]] = ONE_KIND,
) -> tuple[Layout, CPUSet, int]:
    """A small machine, some free CPUs of it, and how many are wanted."""
    nodes = draw(
        st.lists(
            st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=2), min_size=1, max_size=3),
            min_size=1,
            max_size=2,
        )
    )
    layout = machine(*nodes, threads=draw(threads), kinds=draw(kinds))
    cpus = sorted(everything(layout))
    held = draw(st.sets(st.sampled_from(cpus), max_size=len(cpus) - 1))
    free = CPUSet(cpus) - CPUSet(held)
    return layout, free, draw(st.integers(1, len(free)))


def broken_by(layout: Layout, cpus: CPUSet) -> int:
    """How many of the chosen CPUs are in cores that the choice does not have wholly."""
    mask = mask_of(cpus)
    return sum((core.mask & mask).bit_count() for core in layout.cores if core.mask & mask != core.mask)


def caches_of(layout: Layout, cpus: CPUSet) -> int:
    mask = mask_of(cpus)
    return len({core.caches[0] for core in layout.cores if core.mask & mask})


@given(situations(), st.frozensets(st.integers(0, 2)))
@settings(max_examples=100, deadline=None)
def test_nearness_changes_neither_the_number_of_caches_nor_of_broken_cores(
    situation: tuple[Layout, CPUSet, int], near: frozenset[int]
) -> None:
    layout, free, count = situation
    anywhere, nearby = choose_cpus(layout, free, count), choose_cpus(layout, free, count, near)
    assert caches_of(layout, nearby) == caches_of(layout, anywhere)
    assert broken_by(layout, nearby) == broken_by(layout, anywhere)


@given(situations(threads=MIXED_THREADS, kinds=KINDS))
@settings(max_examples=200, deadline=None)
def test_cores_of_different_sizes_and_kinds(situation: tuple[Layout, CPUSet, int]) -> None:
    layout, free, count = situation
    cpus = choose_cpus(layout, free, count)
    assert cpus <= free
    assert len(cpus) == count
    available, mask = mask_of(free), mask_of(cpus)
    of_kind: dict[str | None, int] = {}
    for core in layout.cores:
        of_kind[core.kind] = of_kind.get(core.kind, 0) + (core.mask & available).bit_count()
    if max(of_kind.values()) >= count and count < len(free):
        assert len({core.kind for core in layout.cores if core.mask & mask}) == 1


@given(situations())
@settings(max_examples=200, deadline=None)
def test_what_is_chosen_is_free_and_as_much_as_was_asked(situation: tuple[Layout, CPUSet, int]) -> None:
    layout, free, count = situation
    cpus = choose_cpus(layout, free, count)
    assert cpus <= free
    assert len(cpus) == count
    assert choose_cpus(layout, CPUSet(reversed(list(free))), count) == cpus


@given(situations())
@settings(max_examples=200, deadline=None)
def test_no_core_is_split_where_whole_ones_would_do(situation: tuple[Layout, CPUSet, int]) -> None:
    layout, free, count = situation
    threads = layout.cores[0].size
    whole = sum(core.mask & mask_of(free) == core.mask for core in layout.cores)
    cpus = choose_cpus(layout, free, count)
    assert broken_by(layout, cpus) == count - threads * min(whole, count // threads)


@given(situations())
@settings(max_examples=200, deadline=None)
def test_the_fewest_caches_that_allow_it(situation: tuple[Layout, CPUSet, int]) -> None:
    layout, free, count = situation
    cpus = choose_cpus(layout, free, count)
    fewest = least_broken = None
    by_cache: dict[object, list[Core]] = {}
    for core in layout.cores:
        by_cache.setdefault(core.caches[0], []).append(core)
    for size in range(1, len(by_cache) + 1):
        for caches in combinations(by_cache.values(), size):
            broken = fewest_in_broken([core for cores in caches for core in cores], mask_of(free), count)
            if broken is not None and (least_broken is None or broken < least_broken):
                least_broken, fewest = broken, size
    assert (broken_by(layout, cpus), caches_of(layout, cpus)) == (least_broken, fewest)


def fewest_in_broken(cores: list[Core], free: int, count: int) -> int | None:
    """The fewest CPUs that must come from cores which are not taken wholly; None where too few are free."""
    if sum((core.mask & free).bit_count() for core in cores) < count:
        return None
    threads = cores[0].size
    whole = sum(core.mask & free == core.mask for core in cores)
    return count - threads * min(whole, count // threads)


@given(situations())
@settings(max_examples=200, deadline=None)
def test_a_core_is_newly_broken_only_where_its_caches_have_no_broken_one(
    situation: tuple[Layout, CPUSet, int],
) -> None:
    layout, free, count = situation
    cpus = mask_of(choose_cpus(layout, free, count))
    mask = mask_of(free)
    newly = [
        core
        for core in layout.cores
        if core.mask & mask == core.mask and core.mask & cpus not in (0, core.mask)
    ]
    assert len(newly) <= 1
    for broken in newly:
        rest = (broken.mask & cpus).bit_count()
        used = {core.caches[0] for core in layout.cores if core.mask & cpus}
        elsewhere = sum(
            (core.mask & mask).bit_count()
            for core in layout.cores
            if core.mask & mask != core.mask and core.caches[0] in used
        )
        assert elsewhere < rest
