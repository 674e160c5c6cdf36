"""Rules for the specs of ResourceClaims and their templates: defaults, fields of disabled gates, validation.

Facts: pkg/apis/resource/validation, pkg/apis/resource/v1/defaults.go, pkg/registry/resource/resourceclaim.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dradriver.sim.apiserver.rules import cel, gates, names
from dradriver.sim.apiserver.rules.errors import Literal, Problems
from dradriver.sim.apiserver.rules.gates import Gates
from dradriver.sim.apiserver.rules.lists import (
    check_distinct,
    check_opaque,
    check_toleration,
    few_enough,
    taint_effects,
)

MAX_REQUESTS: Final = 32
_MAX_SUB_REQUESTS: Final = 8
_MAX_CONSTRAINTS: Final = 32
_MAX_CONFIGS: Final = 32
_MAX_SELECTORS: Final = 32

ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
"""The label, "true", of the namespaces in which admin access may be asked for."""

_NOT_ADMIN: Final = (
    f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
)
_NO_SUCH_REQUEST: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)
_ONE_KIND: Final = "exactly one of `exactly` or `firstAvailable` is required"

Body = Mapping[str, Any]
RequestNames = Mapping[str, frozenset[str]]


def set_defaults(spec: dict[str, Any]) -> None:
    """Fill in what a client may leave out of the requests."""
    for wanted in _wanted(spec):
        if not wanted.get("allocationMode"):
            wanted["allocationMode"] = "ExactCount"
        if wanted["allocationMode"] == "ExactCount" and not wanted.get("count"):
            wanted["count"] = 1
        default_operators(wanted.get("tolerations") or ())


def default_operators(tolerations: Sequence[dict[str, Any]]) -> None:
    """Let tolerations without an operator compare."""
    for toleration in tolerations:
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"


def drop_disabled(spec: dict[str, Any], existing: Body | None, on: Gates) -> None:
    """Drop the fields of features that are off, silently, unless the existing spec uses the feature already."""
    old = existing or {"devices": {}}
    if gates.PRIORITIZED_LIST not in on and not any(
        request.get("firstAvailable") for request in _requests(old)
    ):
        for request in _requests(spec):
            request.pop("firstAvailable", None)
    if gates.ADMIN_ACCESS not in on and not any("adminAccess" in one for one in _wanted(old)):
        for wanted in _wanted(spec):
            wanted.pop("adminAccess", None)
    if gates.CONSUMABLE_CAPACITY not in on and not _uses_capacity(old):
        # distinctAttribute stays: the server clears it in a copy.
        for wanted in _wanted(spec):
            wanted.pop("capacity", None)


def check_admin(problems: Problems, spec: Body, *, admin: bool) -> None:
    """Check that admin access is asked for in a labelled namespace only."""
    for index, request in enumerate(_requests(spec)):
        if (request.get("exactly") or {}).get("adminAccess"):
            if not admin:
                # The path is this one, without `exactly`, and for templates too.
                problems.forbidden(f"spec.devices.requests[{index}].adminAccess", _NOT_ADMIN)
            return


def check_admin_results(
    problems: Problems, results: Sequence[Body], old: Sequence[Body], *, admin: bool
) -> None:
    """Check that admin access is given in a labelled namespace only; what was given before stays."""
    if admin or any(result.get("adminAccess") for result in old):
        return
    for index, result in enumerate(results):
        if result.get("adminAccess"):
            problems.forbidden(f"status.allocation.devices.results[{index}].adminAccess", _NOT_ADMIN)
            return


def check_spec(problems: Problems, field: str, spec: Body, on: Gates) -> None:
    """Check the spec of a new claim."""
    devices, field = spec["devices"], f"{field}.devices"
    requests = devices["requests"] or ()
    known = request_names(spec)
    if few_enough(problems, f"{field}.requests", requests, MAX_REQUESTS):
        for index, request in enumerate(requests):
            _check_request(problems, f"{field}.requests[{index}]", request, on)
        check_distinct(problems, f"{field}.requests", requests, lambda request: request["name"])
    constraints = devices.get("constraints") or ()
    if few_enough(problems, f"{field}.constraints", constraints, _MAX_CONSTRAINTS):
        for index, constraint in enumerate(constraints):
            _check_constraint(problems, f"{field}.constraints[{index}]", constraint, known, on)
    configs = devices.get("config") or ()
    if few_enough(problems, f"{field}.config", configs, _MAX_CONFIGS):
        for index, config in enumerate(configs):
            place = f"{field}.config[{index}]"
            check_request_list(problems, f"{place}.requests", config.get("requests") or (), known)
            check_opaque(problems, place, config)


def request_names(spec: Body) -> RequestNames:
    """Return the subrequests of each request of a claim, by name."""
    return {
        request["name"]: frozenset(sub["name"] for sub in request.get("firstAvailable") or ())
        for request in _requests(spec)
    }


def check_request_list(problems: Problems, field: str, items: Sequence[str], known: RequestNames) -> None:
    """Check a list of references to requests."""
    if few_enough(problems, field, items, MAX_REQUESTS):
        for index, item in enumerate(items):
            check_request_reference(problems, f"{field}[{index}]", item, known)
        check_distinct(problems, field, items, lambda item: item)


def check_request_reference(problems: Problems, field: str, name: str, known: RequestNames) -> None:
    """Check a reference to a request or, with a slash, to a subrequest."""
    parts = name.split("/")
    if len(parts) > 2:
        problems.invalid(field, name, _NO_SUCH_REQUEST)
        return
    for part in parts:
        problems.invalid_for(field, part, names.label(part))
    subs = known.get(parts[0])
    if subs is None or (len(parts) == 2 and parts[1] not in subs):
        problems.invalid(field, name, _NO_SUCH_REQUEST)


def check_selectors(
    problems: Problems, field: str, selectors: Sequence[Body], on: Gates, *, kept: bool = False
) -> None:
    """Check CEL selectors; expressions that are `kept` were right when they were stored."""
    if not few_enough(problems, field, selectors, _MAX_SELECTORS):
        return
    for index, selector in enumerate(selectors):
        expression = selector.get("cel")
        if expression is None:
            problems.required(f"{field}[{index}].cel")
        elif not kept:
            cel.check(problems, f"{field}[{index}].cel.expression", expression["expression"], on)


def _requests(spec: Body) -> Sequence[Any]:
    return spec["devices"].get("requests") or ()


def _wanted(spec: Body) -> Iterator[Any]:
    """Yield what says how many devices of which class are wanted: exact requests and subrequests."""
    for request in _requests(spec):
        if request.get("exactly") is not None:
            yield request["exactly"]
        yield from request.get("firstAvailable") or ()


def _uses_capacity(spec: Body) -> bool:
    constraints = spec["devices"].get("constraints") or ()
    return any("distinctAttribute" in one for one in constraints) or any(
        "capacity" in one for one in _wanted(spec)
    )


def _check_request(problems: Problems, field: str, request: Body, on: Gates) -> None:
    problems.invalid_for(f"{field}.name", request["name"], names.label(request["name"]))
    exactly, subs = request.get("exactly"), request.get("firstAvailable") or ()
    if exactly is None and not subs:
        problems.required(field, _ONE_KIND)
    elif exactly is not None and subs:
        problems.invalid(field, Literal("null"), f"{_ONE_KIND}, but multiple fields are set")
    elif exactly is not None:
        _check_wanted(problems, f"{field}.exactly", exactly, on)
    elif few_enough(problems, f"{field}.firstAvailable", subs, _MAX_SUB_REQUESTS):
        for index, sub in enumerate(subs):
            place = f"{field}.firstAvailable[{index}]"
            problems.invalid_for(f"{place}.name", sub["name"], names.label(sub["name"]))
            _check_wanted(problems, place, sub, on)
        check_distinct(problems, f"{field}.firstAvailable", subs, lambda sub: sub["name"])


def _check_wanted(problems: Problems, field: str, wanted: Body, on: Gates) -> None:
    class_name = wanted["deviceClassName"]
    if class_name:
        problems.invalid_for(f"{field}.deviceClassName", class_name, names.subdomain(class_name))
    else:
        problems.required(f"{field}.deviceClassName")
    check_selectors(problems, f"{field}.selectors", wanted.get("selectors") or (), on)
    mode, count = wanted["allocationMode"], wanted.get("count", 0)
    if mode == "All":
        if count:
            problems.invalid(f"{field}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount":
        if count <= 0:
            problems.invalid(f"{field}.count", count, "must be greater than zero")
    else:
        problems.unsupported(f"{field}.allocationMode", mode, ("All", "ExactCount"))
    effects = taint_effects(on.minor)
    for index, toleration in enumerate(wanted.get("tolerations") or ()):
        check_toleration(problems, f"{field}.tolerations[{index}]", toleration, effects)


def _check_constraint(
    problems: Problems, field: str, constraint: Body, known: RequestNames, on: Gates
) -> None:
    check_request_list(problems, f"{field}.requests", constraint.get("requests") or (), known)
    # The server looks at the first of the two that is there, and does not mind the other.
    for name in ("matchAttribute", "distinctAttribute"):
        if name in constraint:
            names.check_fully_qualified(problems, f"{field}.{name}", constraint[name])
            return
    if gates.CONSUMABLE_CAPACITY in on:
        problems.required(
            field,
            'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set',
        )
    else:
        problems.required(f"{field}.matchAttribute")
