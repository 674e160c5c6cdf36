"""The rules for events that a client of core/v1 can break. Pure.

Facts: kubernetes/pkg/apis/core/validation/events.go (legacyValidateEvent).
"""

from collections.abc import Mapping
from typing import Any

from dradriver.sim.apiserver.errors import FieldError


def event_problems(event: Mapping[str, Any]) -> list[FieldError]:
    """Return what the API server refuses in an Event.

    It stands in the namespace of its object, or in `default` where that has none; one with an eventTime says who
    reports what action.
    """
    problems = []
    involved = event.get("involvedObject")
    about = involved.get("namespace") or "" if isinstance(involved, Mapping) else ""
    if event["metadata"].get("namespace") != (about or "default"):
        text = f'Invalid value: "{about}": does not match event.namespace'
        problems.append(FieldError("involvedObject.namespace", "FieldValueInvalid", text))
    if event.get("eventTime"):
        for field, limit in (
            ("reportingComponent", 0),
            ("reportingInstance", 128),
            ("action", 128),
            ("reason", 128),
        ):
            value = event.get(field) or ""
            name = "reportingController" if field == "reportingComponent" else field
            if not value:
                problems.append(FieldError(name, "FieldValueRequired", "Required value"))
            elif limit and len(str(value)) > limit:
                text = f'Invalid value: "": can have at most {limit} characters'
                problems.append(FieldError(name, "FieldValueInvalid", text))
    if len(str(event.get("message") or "")) > 1024 and event.get("eventTime"):
        text = 'Invalid value: "": can have at most 1024 characters'
        problems.append(FieldError("message", "FieldValueInvalid", text))
    return problems
