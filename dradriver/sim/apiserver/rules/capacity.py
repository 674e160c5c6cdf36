"""Rules for the capacities of a device and how they may be consumed.

Facts: pkg/apis/resource/validation `validateRequestPolicy` and below. Up to 1.36 fractions are compared after rounding
up to integers, and a step of zero panics the handler; from 1.37 thousandths count and a step must be positive.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dradriver.model import Quantity
from dradriver.sim.apiserver.rules import gates, names, quantities
from dradriver.sim.apiserver.rules.errors import Problems, panicked
from dradriver.sim.apiserver.rules.gates import Gates
from dradriver.sim.apiserver.rules.lists import few_enough

_MAX_VALUES: Final = 10
_NANO_PER_MILLI: Final = 10**6
_NANO: Final = 10**9
_MAX_INT64: Final = 2**63 - 1

Body = Mapping[str, Any]


def check_capacities(problems: Problems, field: str, device: Body, on: Gates) -> None:
    """Check the capacities of a device."""
    shared = device.get("allowMultipleAllocations", False)
    for name, capacity in (device.get("capacity") or {}).items():
        if not names.is_qualified(name):
            names.check_qualified(problems, f"{field}.capacity", name)
        policy = capacity.get("requestPolicy")
        if policy is None:
            continue
        place = f"{field}.capacity[{shortened(name)}].requestPolicy"
        if not shared:
            problems.forbidden(place, "allowMultipleAllocations must be true")
        elif policy.get("validValues") and policy.get("validRange") is not None:
            problems.forbidden(
                place,
                'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time',
            )
        else:
            _check_policy(problems, place, policy, capacity["value"], on)


def shortened(key: str, limit: int = names.MAX_DOMAIN + 1 + names.MAX_IDENTIFIER) -> str:
    """Return a map key for a field path, its middle cut out where it is too long."""
    if len(key) <= limit:
        return key
    rest = limit - 3
    return f"{key[: (rest + 1) // 2]}...{key[len(key) - rest // 2 :]}"


def _check_policy(problems: Problems, field: str, policy: Body, capacity: str, on: Gates) -> None:
    default, values, bounds = policy["default"], policy.get("validValues"), policy.get("validRange")
    if values:
        if default is None:
            problems.required(f"{field}.default", "required when validValues is defined")
        else:
            _check_values(problems, f"{field}.validValues", policy, capacity, on)
    elif bounds is not None:
        if default is None:
            problems.required(f"{field}.default", "required when validRange is defined")
        elif bounds.get("min") is None:
            problems.required(f"{field}.validRange.min", "required when validRange is defined")
        else:
            _check_range(problems, f"{field}.validRange", policy, capacity, on)


def _check_values(problems: Problems, field: str, policy: Body, capacity: str, on: Gates) -> None:
    values, default = policy["validValues"], policy["default"]
    exact = gates.FRACTIONAL_CAPACITY in on
    amounts = [quantities.amount(value) for value in values]
    most, wanted = quantities.amount(capacity), quantities.amount(default)
    for index in range(1, len(amounts)):
        if amounts[index - 1] > amounts[index]:
            problems.invalid(f"{field}[{index}]", values[index], "values must be sorted in ascending order")
    found = False
    if few_enough(problems, field, values, _MAX_VALUES):
        seen = set()
        for index, amount in enumerate(amounts):
            if amount > most:
                problems.invalid(
                    f"{field}[{index}]", values[index], f"option is larger than capacity value: {capacity}"
                )
            found = found or amount == wanted
            key = amount.nano if exact else quantities.integer(amount)
            if key in seen:
                problems.duplicate(f"{field}[{index}]", values[index] if exact else str(key))
            seen.add(key)
    if not found:
        problems.invalid(field, default, "default value is not valid according to the requestPolicy")


def _check_range(problems: Problems, field: str, policy: Body, capacity: str, on: Gates) -> None:
    bounds, default = policy["validRange"], policy["default"]
    least_text, most_text, step_text = bounds["min"], bounds.get("max"), bounds.get("step")
    least, room, wanted = (quantities.amount(text) for text in (least_text, capacity, default))
    if least > room:
        problems.invalid(f"{field}.min", least_text, f"min is larger than capacity value: {capacity}")
    if wanted < least:
        # The server names the bound, not the default, as the field.
        problems.invalid(f"{field}.min", default, f"default is less than min: {least_text}")
    if most_text is not None:
        most = quantities.amount(most_text)
        if least > most:
            problems.invalid(f"{field}.max", least_text, f"min is larger than max: {most_text}")
        if most > room:
            problems.invalid(f"{field}.max", most_text, f"max is larger than capacity value: {capacity}")
        if wanted > most:
            problems.invalid(f"{field}.max", default, f"default is more than max: {most_text}")
    if step_text is None:
        return
    points = {"default": default, "min": least_text, "max": most_text, "step": step_text}
    given = {name: text for name, text in points.items() if text is not None}
    steps = _Steps(field, given, {name: quantities.amount(text) for name, text in given.items()}, capacity)
    if on.minor >= 37:
        _check_step(problems, steps)
    else:
        _check_whole_step(problems, steps)


@dataclass(frozen=True, slots=True)
class _Steps:
    """A range with a step: the texts of default, min, max and step where given, and what they amount to."""

    field: str
    texts: Mapping[str, str]
    amounts: Mapping[str, Quantity]
    capacity: str


def _check_whole_step(problems: Problems, steps: _Steps) -> None:
    """Check that default and max are on a step, in whole numbers."""
    used = steps.amounts
    _check_one_step(problems, steps)
    step, least = quantities.integer(used["step"]), quantities.integer(used["min"])
    if step == 0:
        raise panicked("handler panicked: integer divide by zero")
    for name in ("default", "max"):
        if name in used and (quantities.integer(used[name]) - least) % step:
            _off_step(problems, steps, name)


def _check_step(problems: Problems, steps: _Steps) -> None:
    """Check that default and max are on a step, in thousandths where there are fractions."""
    field, texts, used = steps.field, steps.texts, steps.amounts
    fractions = any(amount.nano % _NANO for amount in used.values())
    if fractions:
        fine = [name for name, amount in used.items() if amount.nano % _NANO_PER_MILLI]
        for name in fine:
            problems.invalid(f"{field}.{name}", texts[name], "value cannot be represented as a milli value")
        if fine:
            return
    if used["step"].nano <= 0:
        problems.invalid(f"{field}.step", texts["step"], "must be greater than zero")
        return
    _check_one_step(problems, steps)
    wrong = [] if fractions else [name for name, amount in used.items() if not _countable(amount)]
    for name in wrong:
        below = used[name].nano < 0
        problems.invalid(
            f"{field}.{name}",
            texts[name],
            "must be greater than or equal to 0" if below else f"must not be larger than {_MAX_INT64}",
        )
    if wrong:
        return
    for name in ("default", "max"):
        if name in used and (used[name].nano - used["min"].nano) % used["step"].nano:
            _off_step(problems, steps, name)


def _countable(amount: Quantity) -> bool:
    return 0 <= amount.nano <= _MAX_INT64 * _NANO


def _check_one_step(problems: Problems, steps: _Steps) -> None:
    added = steps.amounts["min"] + steps.amounts["step"]
    if added > quantities.amount(steps.capacity):
        why = f"one step {added} is larger than capacity value: {steps.capacity}"
        problems.invalid(f"{steps.field}.step", steps.texts["step"], why)


def _off_step(problems: Problems, steps: _Steps, name: str) -> None:
    why = f"value is not a multiple of a given step ({steps.texts['step']}) from ({steps.texts['min']})"
    problems.invalid(f"{steps.field}.step", steps.texts[name], why)
