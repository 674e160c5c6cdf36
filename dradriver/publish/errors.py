"""Why slices could not be published."""

from typing import Any

from dradriver.kube import StatusError


class PublishError(OSError):
    """What stands in the way, in one line for people."""


def explained(error: StatusError, verb: str, resource: str, group: str = "resource.k8s.io") -> OSError:
    """Return an error to raise in place of one of the API server's: where it tells what to do, that is said."""
    if error.code == 403:
        rule = f'apiGroups ["{group}"], resources ["{resource}"], verbs ["{verb}"]'
        return PublishError(
            f"the API server does not let this account {verb} {resource}: {error.message}: "
            f"a ClusterRole of it needs the rule {rule}, and admission policies must let it"
        )
    if error.code == 404 and resource == "resourceslices" and verb in {"list", "create"}:
        return PublishError(
            "the API server does not serve resourceslices in resource.k8s.io/v1: it needs Kubernetes 1.34 or later"
        )
    return error


def part(answer: Any, *path: str) -> Any:
    """Return a part of an answer. Raises PublishError where it is not there: something else answered."""
    found = answer
    for key in path:
        if not isinstance(found, dict) or key not in found:
            raise PublishError(f"the API server's answer has no {'.'.join(path)}")
        found = found[key]
    return found
