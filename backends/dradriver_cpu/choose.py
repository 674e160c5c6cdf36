"""Which CPUs a claim gets: pure, deterministic, and quick, since it runs while the ledger is locked.

The wishes, the earlier before the later:

1. cores of one kind, if one kind has enough: performance cores before efficiency cores
2. whole cores; CPUs of a core that others use a part of, or that is broken open, only for what is left over
3. as few L3 caches as possible
4. near to the NUMA nodes of the claim's other devices
5. the rest, less than a core, from a core that is broken already
6. of the L3 caches (then clusters, then L2 caches) that would do, those with the least free: full ones stay
   full for those who need them; several that lie in one die, NUMA node or socket before others
7. the lowest CPU numbers

With cores of different sizes (hybrid machines when no kind has enough, cores with offline threads) 2 and 3 are
followed as far as a greedy choice does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import add, gt, lt, or_, sub
from typing import NamedTuple

from dradriver.host import EFFICIENCY, PERFORMANCE, CPUSet
from dradriver_cpu.layout import CACHE_LEVELS, Core, Layout, mask_of

# Further than any known node: distances are bytes in the ACPI SLIT, 255 is unreachable.
_UNKNOWN_DISTANCE = 255

_KIND_RANK = {PERFORMANCE: 0, EFFICIENCY: 1, None: 2}

Vector = tuple[int, ...]
"""How many free whole cores there are of each size, largest first, then how many free CPUs of broken cores."""


class _Need(NamedTuple):
    """What is to be taken: whole cores by size, and a rest of CPUs, from broken cores or else by breaking one."""

    whole: Vector
    rest: int
    may_break: bool


class _Stock(NamedTuple):
    """Free whole cores, and cores of which only the CPUs in the mask are free."""

    whole: list[Core]
    broken: list[tuple[Core, int]]


@dataclass(slots=True)
class _Group:
    """The part of a stock that shares a cache. `far` is its distance to what it should be near to."""

    stock: _Stock
    vector: Vector
    far: int
    parts: tuple[object, ...]


class _Terms(NamedTuple):
    """What holds for the whole choice: the sizes of whole cores, and how far NUMA nodes are (0 where all alike)."""

    sizes: tuple[int, ...]
    far: Mapping[int | None, int]


def choose_cpus(layout: Layout, free: CPUSet, count: int, near: frozenset[int] = frozenset()) -> CPUSet:
    """Return `count` of the `free` CPUs.

    near   NUMA nodes of the claim's other devices

    Raises ValueError where `count` is below 1 or above the number of free CPUs.
    """
    if not 1 <= count <= len(free):
        raise ValueError(f"{count} CPUs cannot be chosen from {len(free)}")
    if count == len(free):
        return free
    available = mask_of(free)
    stock = _Stock([], [])
    for core in layout.cores:
        here = core.mask & available
        if here == core.mask:
            stock.whole.append(core)
        elif here:
            stock.broken.append((core, here))
    stock = _alike(stock, count)
    sizes = tuple(sorted({core.size for core in stock.whole}, reverse=True))
    chosen = _take(stock, _need(stock, sizes, count), _Terms(sizes, _distances(layout, near)), 0)
    return CPUSet(_bits(chosen))


def _distances(layout: Layout, near: frozenset[int]) -> dict[int | None, int]:
    """Return the sum of distances from each NUMA node to those that the CPUs should be near to."""
    if not near:
        return {}
    nodes = {core.node for core in layout.cores}
    rows = {node: {} if node is None else layout.distances.get(node, {}) for node in nodes}
    return {node: sum(row.get(other, _UNKNOWN_DISTANCE) for other in near) for node, row in rows.items()}


def _alike(stock: _Stock, count: int) -> _Stock:
    """Return the part of the stock that is of one kind and has enough, in whole cores if possible, or else all."""
    kinds: dict[str | None, _Stock] = {}
    for core in stock.whole:
        kinds.setdefault(core.kind, _Stock([], [])).whole.append(core)
    for core, mask in stock.broken:
        kinds.setdefault(core.kind, _Stock([], [])).broken.append((core, mask))
    if len(kinds) == 1:
        return stock
    ranked = sorted(kinds, key=lambda kind: _KIND_RANK.get(kind, len(_KIND_RANK)))
    for with_broken in (False, True):
        for kind in ranked:
            found = kinds[kind]
            threads = sum(core.size for core in found.whole)
            if threads + (_threads(found.broken) if with_broken else 0) >= count:
                return found
    return stock


def _need(stock: _Stock, sizes: tuple[int, ...], count: int) -> _Need:
    whole = []
    for size in sizes:
        cores = min(count // size, sum(core.size == size for core in stock.whole))
        whole.append(cores)
        count -= cores * size
    return _Need(tuple(whole), count, may_break=True)


def _take(stock: _Stock, need: _Need, terms: _Terms, level: int) -> int:
    """Return the CPUs to take, as bits; `level` says which cache the stock is divided by next."""
    if level == CACHE_LEVELS:
        return _take_cores(stock, need, terms.sizes)
    groups = _divided(stock, terms, level)
    if len(groups) == 1:
        # Whether to break a core is decided once the L3 caches are: clusters and L2 caches weigh less.
        need = need._replace(may_break=need.rest > groups[0].vector[-1])
        return _take(stock, need, terms, level + 1)
    if level and len(groups) == len(stock.whole) + len(stock.broken):
        return _take(stock, need, terms, level + 1)
    taken = 0
    for group, share in _shares(_fewest(groups, need), need):
        if (*share.whole, share.rest) == group.vector:
            taken |= _all(group.stock)
        else:
            taken |= _take(group.stock, share, terms, level + 1)
    return taken


def _divided(stock: _Stock, terms: _Terms, level: int) -> list[_Group]:
    stocks: dict[object, _Stock] = {}
    for core in stock.whole:
        key = core.caches[level]
        if key not in stocks:
            stocks[key] = _Stock([], [])
        stocks[key].whole.append(core)
    for core, mask in stock.broken:
        stocks.setdefault(core.caches[level], _Stock([], [])).broken.append((core, mask))
    groups = []
    for part in stocks.values():
        some = part.whole[0] if part.whole else part.broken[0][0]
        if len(terms.sizes) == 1:
            whole: Vector = (len(part.whole),)
        else:
            whole = tuple(sum(core.size == size for core in part.whole) for size in terms.sizes)
        groups.append(_Group(part, (*whole, _threads(part.broken)), terms.far.get(some.node, 0), some.parts))
    return groups


def _fewest(groups: list[_Group], need: _Need) -> list[_Group]:
    """Return as few groups as can serve the need, those to be emptied first in front."""
    totals = accumulate(_vectors(_richest(groups)), _sum)
    size = next(size for size, total in enumerate(totals, 1) if _covers(total, need))
    if 1 < size < len(groups):
        groups = _in_one_part(groups, need, size)
    return _best_fit(groups, need, size)


def _in_one_part(groups: list[_Group], need: _Need, size: int) -> list[_Group]:
    """Return the groups of the smallest part of the machine in which `size` of them serve the need."""
    parts: dict[object, list[_Group]] = {}
    for group in groups:
        for part in group.parts:
            parts.setdefault(part, []).append(group)
    fitting = [
        inside
        for inside in parts.values()
        if len(inside) >= size and _covers(_total(_vectors(_richest(inside)[:size])), need)
    ]
    return min(
        [*fitting, groups],
        key=lambda inside: (max(group.far for group in inside), sum(map(sum, _vectors(inside)))),
    )


def _best_fit(groups: list[_Group], need: _Need, size: int) -> list[_Group]:
    """Return `size` groups that serve the need: from the poorest on, each that leaves it possible.

    `best` are the richest groups that could still complete the choice, `total` is what it would come to with them.
    """
    chosen = []
    best = _vectors(_richest(groups)[:size])
    total = _total(best)
    for group in sorted(groups, key=lambda group: (group.far, group.vector)):
        if group.vector >= best[-1]:
            best.remove(group.vector)
        else:
            reach = tuple(map(add, map(sub, total, best[-1]), group.vector))
            if not _covers(reach, need):
                continue
            total = reach
            best.pop()
        chosen.append(group)
        if not best:
            break
    return chosen


def _covers(vector: Vector, need: _Need) -> bool:
    whole = vector[:-1]
    if any(map(lt, whole, need.whole)):
        return False
    return need.rest <= vector[-1] or (need.may_break and any(map(gt, whole, need.whole)))


def _shares(chosen: Sequence[_Group], need: _Need) -> Iterator[tuple[_Group, _Need]]:
    """Divide the need among the chosen groups, which are emptied in their order."""
    left, rest = need.whole, need.rest
    from_broken = rest <= sum(group.vector[-1] for group in chosen)
    for group in chosen:
        whole = tuple(map(min, group.vector[:-1], left))
        left = tuple(map(sub, left, whole))
        room = 0
        if from_broken:
            room = group.vector[-1]
        elif any(map(gt, group.vector[:-1], whole)):
            room = rest
        part = min(rest, room)
        rest -= part
        if part or any(whole):
            yield group, _Need(whole, part, not from_broken)


def _take_cores(stock: _Stock, need: _Need, sizes: tuple[int, ...]) -> int:
    left = dict(zip(sizes, need.whole, strict=True))
    taken = 0
    spare = []
    for core in stock.whole:
        if left[core.size]:
            left[core.size] -= 1
            taken |= core.mask
        else:
            spare.append(core)
    rest = need.rest
    if rest > _threads(stock.broken):
        core = min((core for core in spare if core.size >= rest), key=lambda core: core.size)
        return taken | _lowest(core.mask, rest)
    broken = [mask for _, mask in stock.broken]
    while rest:
        mask = min(broken, key=lambda mask: _fit(mask.bit_count(), rest))
        broken.remove(mask)
        part = min(rest, mask.bit_count())
        taken |= _lowest(mask, part)
        rest -= part
    return taken


def _all(stock: _Stock) -> int:
    return reduce(or_, [*(core.mask for core in stock.whole), *(mask for _, mask in stock.broken)])


def _fit(free: int, asked: int) -> tuple[bool, int]:
    """Order broken cores: the smallest that is enough, or else the largest."""
    return free < asked, free if free >= asked else -free


def _threads(broken: list[tuple[Core, int]]) -> int:
    return sum(mask.bit_count() for _, mask in broken)


def _lowest(mask: int, count: int) -> int:
    lowest = 0
    for _ in range(count):
        low = mask & -mask
        lowest |= low
        mask ^= low
    return lowest


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _richest(groups: Iterable[_Group]) -> list[_Group]:
    return sorted(groups, key=lambda group: group.vector, reverse=True)


def _vectors(groups: Iterable[_Group]) -> list[Vector]:
    return [group.vector for group in groups]


def _total(vectors: Sequence[Vector]) -> Vector:
    return tuple(map(sum, zip(*vectors, strict=True)))


def _sum(one: Vector, other: Vector) -> Vector:
    return tuple(map(add, one, other))
