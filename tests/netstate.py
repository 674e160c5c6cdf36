"""The whole state of a network namespace as `ip` and `tc` show it, to be compared before and after.

Left out is what goes on by itself: counters, ages and lifetimes, and addresses on their way from tentative to usable.
"""

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

from dradriver_nic.netns import inside
from netns import Namespace

State = dict[str, Any]

_LIVE = {
    "stats64",
    "stats",
    "valid_life_time",
    "preferred_life_time",
    "tentative",
    "used",
    "confirmed",
    "updated",
}
_LIVE |= {
    "probes",
    "lastuse",
    "age",
    "rtt",
    "options_stats",
    "bytes",
    "packets",
    "drops",
    "overlimits",
    "requeues",
}
_LIVE |= {"direct_packets_stat", "backlog", "qlen", "refcnt", "bind", "ref", "installed", "last_used"}

_COMMANDS = {
    "links": ("ip", "-d", "-j", "link", "show"),
    "addresses": ("ip", "-j", "address", "show"),
    "routes": ("ip", "-j", "-4", "route", "show", "table", "all"),
    "routes of IPv6": ("ip", "-j", "-6", "route", "show", "table", "all"),
    "rules": ("ip", "-j", "-4", "rule", "show"),
    "rules of IPv6": ("ip", "-j", "-6", "rule", "show"),
    "neighbours": ("ip", "-j", "neighbour", "show", "nud", "permanent"),
    "nexthops": ("ip", "-j", "nexthop", "show"),
    "disciplines": ("tc", "-j", "qdisc", "show"),
}


def state_of(space: Namespace) -> State:
    """Return all that there is in a namespace, once nothing in it is on its way any more."""
    return {**_settled(space), "sysctls": inside(space.path, _sysctls)}


def _settled(space: Namespace) -> State:
    end = time.monotonic() + 5
    while True:
        shown = space.call("ip", "address", "show")
        # A carrier is told up to a second later, and only then is an address tested.
        if not {"tentative", "NO-CARRIER"} & set(re.findall("[A-Za-z-]+", shown)) or time.monotonic() > end:
            break
        time.sleep(0.05)
    found: State = {}
    for what, words in _COMMANDS.items():
        # In which order the kernel has its links is nobody's business, and changes as they go and come back.
        found[what] = sorted(_still(json.loads(space.call(*words) or "[]")), key=str)
    for link in [link["ifname"] for link in found["links"]]:
        for parent in ("ingress", "egress", "root"):
            with contextlib.suppress(AssertionError):
                text = space.call("tc", "filter", "show", "dev", link, parent)
                found[f"filters of {link} {parent}"] = re.sub(r" (ref|bind) [0-9]+", "", text)
    return found


def _still(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _still(inside) for key, inside in value.items() if key not in _LIVE}
    if isinstance(value, list):
        return [_still(inside) for inside in value]
    return value


def _sysctls() -> dict[str, str]:
    found = {}
    for directory in ("ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"):
        for file in sorted(Path("/proc/sys/net", directory).glob("*/*")):
            with contextlib.suppress(OSError):
                found[str(file.relative_to("/proc/sys/net"))] = file.read_text().strip()
    return found


def assert_same(space: Namespace, before: State, seconds: float = 15) -> None:
    """Wait until a namespace is as it was before; fail with what differs, and nothing else.

    Carriers, and what the kernel makes of them, take a moment.
    """
    end = time.monotonic() + seconds
    while differences := _differences(state_of(space), before):
        if time.monotonic() > end:
            raise AssertionError("\n".join(differences))
        time.sleep(0.1)


def _differences(now: State, before: State) -> list[str]:
    differences = []
    for what in before.keys() | now.keys():
        old, new = before.get(what), now.get(what)
        if old == new:
            continue
        if isinstance(old, list) and isinstance(new, list):
            differences += [f"{what}: gone: {one}" for one in old if one not in new]
            differences += [f"{what}: new: {one}" for one in new if one not in old]
        elif isinstance(old, dict) and isinstance(new, dict):
            differences += [
                f"{what}: {key}: {old.get(key)} became {new.get(key)}"
                for key in old.keys() | new.keys()
                if old.get(key) != new.get(key)
            ]
        else:
            differences.append(f"{what}: {old} became {new}")
    return differences
