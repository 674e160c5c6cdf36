"""Rules for NodeSelectors, which slices, devices and allocations share.

Facts: pkg/apis/core/validation `ValidateNodeSelector`.
"""

from collections.abc import Mapping
from typing import Any

from dradriver.sim.apiserver.rules import names
from dradriver.sim.apiserver.rules.errors import Problems


def check_node_selector(problems: Problems, field: str, selector: Mapping[str, Any]) -> None:
    """Check a selector: at least one term, each requirement complete."""
    terms = selector["nodeSelectorTerms"]
    if not terms:
        problems.required(f"{field}.nodeSelectorTerms", "must have at least one node selector term")
        return
    for index, term in enumerate(terms):
        place = f"{field}.nodeSelectorTerms[{index}]"
        for number, requirement in enumerate(term.get("matchExpressions") or ()):
            _check_expression(problems, f"{place}.matchExpressions[{number}]", requirement)
        for number, requirement in enumerate(term.get("matchFields") or ()):
            _check_field(problems, f"{place}.matchFields[{number}]", requirement)


def _check_expression(problems: Problems, field: str, requirement: Mapping[str, Any]) -> None:
    operator, values = requirement["operator"], requirement.get("values") or ()
    if operator in {"In", "NotIn"}:
        if not values:
            problems.required(f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            problems.forbidden(
                f"{field}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
    elif operator in {"Gt", "Lt"}:
        if len(values) != 1:
            problems.required(
                f"{field}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"
            )
    else:
        problems.invalid(f"{field}.operator", operator, "not a valid selector operator")
    problems.invalid_for(f"{field}.key", requirement["key"], names.label_key(requirement["key"]))
    for index, value in enumerate(values):
        problems.invalid_for(f"{field}.values[{index}]", value, names.label_value(value))


def _check_field(problems: Problems, field: str, requirement: Mapping[str, Any]) -> None:
    operator, values = requirement["operator"], requirement.get("values") or ()
    if operator in {"In", "NotIn"}:
        if len(values) != 1:
            problems.required(
                f"{field}.values",
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            )
    else:
        problems.invalid(f"{field}.operator", operator, "not a valid selector operator")
    if requirement["key"] != "metadata.name":
        problems.invalid(f"{field}.key", requirement["key"], "not a valid field selector key")
        return
    for index, value in enumerate(values):
        problems.invalid_for(f"{field}.values[{index}]", value, names.subdomain(value))
