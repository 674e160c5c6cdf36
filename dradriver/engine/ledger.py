"""The ledger: what each live claim holds, and the refusal of what others hold.

The scheduler hands devices out; force-deleted pods and scheduler races still bring a device that is taken. Each
use is a set of draws on units: the device itself, shares of its capacity, counters of the physical thing, and
what the plan holds below that.

What counts is what the backend offers, not what the API server stores of it: where slices are published without
counters, or shared devices as whole ones, overlapping uses are refused all the same.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dradriver.engine.records import Hold, plan_prefix
from dradriver.model import Allocated, Capacity, ClaimRef, CounterSet, Device, Quantity
from dradriver.model.names import short_name
from dradriver.model.text import plain

ONE = Quantity.parse("1")
ZERO = Quantity.parse("0")
LEAST = Quantity(1)
"""What a share takes of the device as such: so little that every share fits, and the whole beside none."""

Taken = Callable[[str], Quantity]
Holders = Callable[[str], list[tuple[str, ClaimRef, Quantity]]]


class HeldError(Exception):
    """Another live claim holds what is asked for; the message names it."""


@dataclass(frozen=True, slots=True)
class Draw:
    """An amount taken from a unit that has `limit` of it. `what` names the unit for people, `device` who draws."""

    unit: str
    index: int
    amount: Quantity
    limit: Quantity
    what: str
    device: str = ""


def plan_draws(backend: str, holds: Iterable[str]) -> list[Draw]:
    """Return the draws of a plan's exclusive things."""
    return [Draw(plan_prefix(backend) + name, -1, ONE, ONE, f"{backend} {name}") for name in sorted(holds)]


def device_draws(
    index: int, allocated: Allocated, device: Device, counter_sets: Mapping[str, CounterSet]
) -> list[Draw]:
    """Return what the use of a device draws; nothing for admin access.

    A shared device that comes without share and amounts is taken whole: so it is where the API server does not store
    consumable capacity. That excludes every share, also where the device has grown since.
    """
    if allocated.admin:
        return []
    whole = not device.shared or (allocated.share_id is None and not allocated.consumed)
    draws = [Draw(device_unit(allocated), index, ONE if whole else LEAST, ONE, f"device {allocated.device}")]
    for name, capacity in sorted(device.capacity.items()) if device.shared else ():
        amount = capacity.value if whole else _consumed(allocated, name, capacity)
        what = f"{name} of device {allocated.device}"
        draws.append(Draw(f"{capacity_prefix(allocated)}{name}", index, amount, capacity.value, what))
    for set_name, counters in sorted(device.consumes.items()):
        available = counter_sets[set_name].counters if set_name in counter_sets else {}
        for name, amount in sorted(counters.items()):
            unit = f"{counter_prefix(allocated)}{set_name}:{name}"
            what = f"{name} of {set_name} for device {allocated.device}"
            draws.append(Draw(unit, index, amount, available.get(name, ZERO), what, allocated.device))
    return draws


def device_unit(allocated: Allocated) -> str:
    """Return the unit of a device as such: one use has it whole, or shares have a little of it each."""
    return f"device:{allocated.pool}:{allocated.device}"


def capacity_prefix(allocated: Allocated) -> str:
    """Return the prefix of the units of a shared device's capacities."""
    return f"capacity:{allocated.pool}:{allocated.device}:"


def counter_prefix(allocated: Allocated) -> str:
    """Return the prefix of the units of a pool's counters."""
    return f"counter:{allocated.pool}:"


def _consumed(allocated: Allocated, name: str, capacity: Capacity) -> Quantity:
    amount = allocated.consumed.get(short_name(name, allocated.driver))
    if amount is not None:
        return amount
    if allocated.share_id is not None and capacity.policy is not None:
        return capacity.policy.default
    return capacity.value


def take(draws: Iterable[Draw], taken: Taken, holders: Holders) -> tuple[Hold, ...]:
    """Return the draws as holds, or raise HeldError where a unit has not that much left.

    taken     how much of a unit is held by live claims
    holders   who they are, asked only for a refusal

    Both are called inside the transaction that will write the holds.
    """
    units: dict[str, list[Draw]] = {}
    for draw in draws:
        if draw.amount < ZERO:
            raise HeldError(f"{draw.what}: a negative amount ({_text(draw.amount)}) cannot be held")
        units.setdefault(draw.unit, []).append(draw)
    for unit, parts in units.items():
        asked = sum((part.amount for part in parts), ZERO)
        left = parts[0].limit - taken(unit)
        if asked > left:
            raise HeldError(_refusal(parts, asked, left, [claim for _, claim, _ in holders(unit)]))
    holds = (Hold(draw.unit, draw.index, draw.amount) for parts in units.values() for draw in parts)
    return tuple(sorted(holds, key=lambda hold: (hold.unit, hold.index)))


def _text(amount: Quantity) -> str:
    """Return an amount for a message; exact ones can have a thousand digits."""
    return plain(str(amount), 64)


def _refusal(parts: list[Draw], asked: Quantity, left: Quantity, held: list[ClaimRef]) -> str:
    draw = parts[0]
    claims = list(dict.fromkeys(str(claim) for claim in held))
    names = ", ".join(claims[:3]) + (f" and {len(claims) - 3} more" if len(claims) > 3 else "")
    if draw.unit.startswith(("device:", "plan:")):
        return (
            f"{draw.what} is held by claim {names}"
            if names
            else f"{draw.what} is allocated {len(parts)} times to this claim: it is given out once"
        )
    message = f"{draw.what}: {_text(asked)} asked, {_text(max(left, ZERO))} of {_text(draw.limit)} left"
    overlapping = list(dict.fromkeys(part.device for part in parts if part.device))
    if len(overlapping) > 1:
        message = f"{_listed(overlapping)} of this claim overlap: {message}"
    return f"{message}; held by claim {names}" if names else message


def _listed(devices: list[str]) -> str:
    """Return devices for a message: a claim may have many."""
    if len(devices) > 4:
        return f"devices {', '.join(devices[:3])} and {len(devices) - 3} more"
    return f"devices {', '.join(devices[:-1])} and {devices[-1]}"
