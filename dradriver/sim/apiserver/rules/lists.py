"""Checks that many fields share: how many items, none twice, the parts that devices and requests have in common."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from dradriver.sim.apiserver.rules import names
from dradriver.sim.apiserver.rules.body import RawObject
from dradriver.sim.apiserver.rules.errors import Literal, Problems

Body = Mapping[str, Any]

MAX_BINDING_CONDITIONS: Final = 4
MAX_OPAQUE: Final = 10 * 1024
TAINT_EFFECTS: Final = ("NoExecute", "NoSchedule", "None")


def few_enough(problems: Problems, field: str, items: Sequence[Any] | Body, limit: int) -> bool:
    """Report more than `limit` items; the server then looks at none of them."""
    if len(items) <= limit:
        return True
    problems.too_many(field, len(items), limit)
    return False


def check_distinct(
    problems: Problems,
    field: str,
    items: Sequence[Any],
    key: Callable[[Any], Hashable],
    show: Callable[[Any], object] | None = None,
) -> None:
    """Report items whose key was there before."""
    seen = set()
    for index, item in enumerate(items):
        this = key(item)
        if this in seen:
            problems.duplicate(f"{field}[{index}]", this if show is None else show(item))
        seen.add(this)


def check_binding(problems: Problems, field: str, owner: Body) -> None:
    """Check bindingConditions and bindingFailureConditions, which need each other."""
    conditions = owner.get("bindingConditions") or ()
    failures = owner.get("bindingFailureConditions") or ()
    if not conditions and not failures:
        return
    for name, items in (("bindingConditions", conditions), ("bindingFailureConditions", failures)):
        place = f"{field}.{name}"
        if few_enough(problems, place, items, MAX_BINDING_CONDITIONS):
            for index, item in enumerate(items):
                problems.invalid_for(f"{place}[{index}]", item, names.label_key(item))
        check_distinct(problems, place, items, lambda item: item)
    for index, item in enumerate(failures):
        if item in conditions:
            problems.invalid(
                f"{field}.bindingFailureConditions[{index}]",
                item,
                "bindingFailureConditions must not overlap with bindingConditions",
            )
    if not conditions:
        problems.invalid(
            f"{field}.bindingConditions",
            Literal("null"),
            "bindingConditions are required to use bindingFailureConditions",
        )
    if not failures:
        problems.invalid(
            f"{field}.bindingFailureConditions",
            Literal("null"),
            "bindingFailureConditions are required to use bindingConditions",
        )


def check_raw(problems: Problems, field: str, value: Any, *, kept: bool = False) -> None:
    """Check an opaque part: a JSON object of at most 10 KiB as sent; one that was `kept` may be longer."""
    if value is None:
        problems.required(field)
    elif not isinstance(value, RawObject):
        problems.invalid(field, "<value omitted>", "must be a valid JSON object")
    elif not kept and names.size(value.text) > MAX_OPAQUE:
        problems.too_long(field, MAX_OPAQUE)


def check_opaque(problems: Problems, field: str, config: Body, *, kept: bool = False) -> None:
    """Check the `opaque` of a configuration."""
    opaque = config.get("opaque")
    if opaque is None:
        problems.required(f"{field}.opaque")
        return
    names.check_driver(problems, f"{field}.opaque.driver", opaque["driver"])
    check_raw(problems, f"{field}.opaque.parameters", opaque["parameters"], kept=kept)


def check_toleration(problems: Problems, field: str, toleration: Body, effects: Sequence[str]) -> None:
    """Check a toleration."""
    key, value, effect = (toleration.get(name, "") for name in ("key", "value", "effect"))
    if key:
        problems.invalid_for(f"{field}.key", key, names.label_key(key))
    operator = toleration["operator"]
    if operator == "Exists":
        if value:
            problems.invalid(f"{field}.value", value, "must be empty for operator `Exists`")
    elif operator == "Equal":
        problems.invalid_for(f"{field}.value", value, names.label_value(value))
    else:
        problems.unsupported(f"{field}.operator", operator, ("Equal", "Exists"))
    if effect and effect not in effects:
        problems.unsupported(f"{field}.effect", effect, effects)


def taint_effects(minor: int) -> Sequence[str]:
    """Return the effects that taints may have; 1.34 does not know None."""
    return TAINT_EFFECTS if minor >= 35 else TAINT_EFFECTS[:2]
