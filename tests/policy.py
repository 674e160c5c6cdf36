"""The admission policy of the chart, evaluated as the API server does.

The order (match conditions, variables, validations) and the names `object`, `oldObject`, `request` and `variables` are
those of admissionregistration.k8s.io/v1.
"""

from collections.abc import Mapping
from typing import Any

import celpy

from chart import MANIFESTS, evaluate, objects, only

NODE_KEY = "authentication.kubernetes.io/node-name"
POLICY = only(objects([(MANIFESTS / "dradriver.yaml").read_text()]), "ValidatingAdmissionPolicy")


def decide(request: Mapping[str, Any], policy: Mapping[str, Any] = POLICY) -> list[str] | None:
    """Return the messages of the denials, none where the request is let through; None where it is not looked at."""
    spec = policy["spec"]
    variables = celpy.celtypes.MapType()
    seen: dict[str, Any] = {
        "request": {"operation": request["operation"], "userInfo": request["userInfo"]},
        "object": request.get("object"),
        "oldObject": request.get("oldObject"),
        "variables": variables,
    }
    if not all(evaluate(condition["expression"], seen) for condition in spec["matchConditions"]):
        return None
    for variable in spec["variables"]:
        variables[celpy.celtypes.StringType(variable["name"])] = evaluate(variable["expression"], seen)
    denials = []
    for validation in spec["validations"]:
        verdict = evaluate(validation["expression"], seen)
        assert isinstance(verdict, celpy.celtypes.BoolType)
        if not verdict:
            say = validation.get("messageExpression")
            denials.append(str(evaluate(say, seen)) if say else validation["message"])
    return denials
