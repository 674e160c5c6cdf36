"""Which devices of a slice an API server does not take, where its answer does not tell."""

from collections.abc import Callable

from dradriver.slices import Body, only

MAX_TRIES = 64
"""Dry runs that one search may cost. One culprit among 64 devices takes 14 at most, each further one 12 more."""

_TOO_MANY = "the API server refuses its slice, and there are too many culprits in it to find them all"


def culprits(spec: Body, refusal: Callable[[Body], str]) -> dict[str, str] | None:
    """Return the devices or counter sets without which the API server takes the rest of a slice, with the reasons.

    refusal   tries a spec, and returns why the server refuses it, nothing if it does not

    None where nothing in the slice is to blame: it is refused without anything in it, or taken as it is.
    """
    names = [one["name"] for key in ("sharedCounters", "devices") for one in spec.get(key) or ()]
    if not refusal(spec) or refusal(only(spec, ())):
        return None
    taken: list[str] = []
    found: dict[str, str] = {}
    tries = 2
    # Each group is tried beside all that was taken: two that do not go together are refused only so.
    groups = [names]
    while groups:
        group = groups.pop()
        if tries == MAX_TRIES:
            found |= dict.fromkeys(group, _TOO_MANY)
            continue
        if group is not names:
            tries += 1
            reason = refusal(only(spec, {*taken, *group}))
            if not reason:
                taken += group
                continue
            if len(group) == 1:
                found[group[0]] = f"the API server refuses it: {reason}"
                continue
        middle = len(group) // 2
        groups += [half for half in (group[middle:], group[:middle]) if half]
    return found
