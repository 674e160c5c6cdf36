"""Claim objects that a server might give out, and such as none would: plausible ones, and those bent out of shape.

Seeded, so that a failure comes again. `Wild.claim` makes one; most are near enough to a right one to get far.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from wholenode import API_VERSION, NODE, WholeNode, kind_of

GPU = "gpu-0000-43-00-0"
DEVICES = (
    GPU,
    f"{GPU}-mig-1g-6gb-0",
    f"{GPU}-mig-1g-6gb-1",
    f"{GPU}-mig-2g-12gb-2",
    "nic-0000-44-00-0",
    "nic-0000-44-00-2",
    "nic-0000-44-00-3",
    "cpu-numa-0",
    "memory-numa-0",
    "hugepages-2mi-numa-0",
)
SHARED = ("cpu", "memory", "hugepages")

AMOUNTS: tuple[Any, ...] = (
    *(
        "1",
        "2",
        "4Mi",
        "1Gi",
        "500m",
        "0",
        "-1",
        "8Ei",
        "1e999",
        "1e-9",
        "",
        " 2 ",
        "two",
        "0x10",
        "1" * 600,
        "+1",
    ),
    *(1, 2.5, -3, 10**400, True, None, [], {}, float("inf"), float("nan")),
)
TEXTS: tuple[str, ...] = (
    *(
        "",
        " ",
        "r",
        "r0",
        "a/b",
        "a/b/c",
        "../../etc/passwd",
        "-",
        "x" * 64,
        "x" * 10_000,
        "A_b",
        "r\n",
        "\0",
        "\ud800",
    ),
    *("%s%n{}{0}", "$(reboot)", "`id`", "\u202eabc", "\U0001f600", "NaN", "null", "cpu.dradriver.io/cpu"),
)
UIDS = ("0b7f2c3d-1111-4222-8333-444455556666", "share-0", "", "../x", "a" * 64, "\n", "0B7F")


class Wild:
    """A source of claims for one node."""

    def __init__(self, node: WholeNode, seed: int) -> None:
        self._node = node
        self._random = random.Random(seed)

    def claim(self, name: str, uid: str) -> Any:
        """Return a claim object; now and then something else altogether."""
        obj: Any = self._object(name, uid)
        for _ in range(self._pick((0, 0, 0, 0, 0, 1, 1, 2, 5))):
            if self._chance(0.15):
                return self._bent(obj)
            allocation = obj["status"]["allocation"]
            obj = obj | {"status": obj["status"] | {"allocation": self._bent(allocation)}}
        return obj

    def _pick(self, things: Sequence[Any]) -> Any:
        return self._random.choice(things)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _object(self, name: str, uid: str) -> dict[str, Any]:
        results = [self._result(n) for n in range(self._pick((0, 1, 1, 1, 2, 2, 3, 6)))]
        config = [self._config(results) for _ in range(self._pick((0, 0, 0, 1, 1, 2, 4)))]
        metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": uid}
        if self._chance(0.3):
            metadata["annotations"] = {
                "resource.kubernetes.io/pod-claim-name": self._pick(("gpus", *TEXTS)),
                "other": "x",
            }
        status: dict[str, Any] = {"allocation": {"devices": {"results": results, "config": config}}}
        if self._chance(0.2):
            status["devices"] = [{"driver": "x", "pool": "y", "device": "z"}]
            status["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
        return {
            "apiVersion": self._pick(("resource.k8s.io/v1", "resource.k8s.io/v1beta2")),
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": {"devices": {"requests": [{"name": "r0"}]}},
            "status": status,
        }

    def _result(self, number: int) -> dict[str, Any]:
        device = self._pick(DEVICES)
        kind = kind_of(device)
        result: dict[str, Any] = {
            "request": self._pick((f"r{number}", "r0", "r0/sub"))
            if self._chance(0.95)
            else self._pick(TEXTS),
            "driver": self._node.driver(kind)
            if self._chance(0.9)
            else self._pick(("gpu.example.com", *TEXTS)),
            "pool": f"{NODE}/{kind}" if self._chance(0.95) else self._pick(("n2/gpu", *TEXTS)),
            "device": device if self._chance(0.95) else self._pick(TEXTS),
        }
        capacity = {"gpu": "memory", "nic": "bandwidth"}.get(kind, device.partition("-")[0])
        if self._chance(0.8 if capacity in SHARED else 0.2):
            key = capacity if self._chance(0.6) else f"{result['driver']}/{capacity}"
            amount = self._pick(AMOUNTS) if self._chance(0.2) else {"cpu": "1"}.get(capacity, "4Mi")
            result["consumedCapacity"] = {key: amount}
            if self._chance(0.05):
                result["consumedCapacity"][self._pick((capacity, *TEXTS))] = self._pick(AMOUNTS)
        if self._chance(0.5):
            result["shareID"] = self._pick(UIDS) if self._chance(0.1) else UIDS[0]
        if self._chance(0.15):
            result["adminAccess"] = self._pick((True, True, False, None))
        if self._chance(0.1):
            result["tolerations"] = [{"operator": "Exists"}]
            result["brandNewField"] = self._value(3)
        return result

    def _config(self, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        requests = [result["request"] for result in results] or ["r0"]
        drivers = [result["driver"] for result in results] or ["x"]
        entry: dict[str, Any] = {
            "source": self._pick(("FromClass", "FromClaim", "FromClaim", "", "FromSpace")),
            "requests": self._random.sample(requests, self._random.randint(0, len(requests))),
            "opaque": {"driver": self._pick(drivers), "parameters": self._parameters()},
        }
        if self._chance(0.3):
            entry["requests"] = []
        if self._chance(0.1):
            entry["requests"] = self._pick((None, [], ["r0/sub"], list(TEXTS)))
        if self._chance(0.05):
            entry["opaque"] = None
        return entry

    def _parameters(self) -> Any:
        if self._chance(0.15):
            return self._value(4)
        parameters: dict[str, Any] = {
            "apiVersion": API_VERSION if self._chance(0.9) else self._pick(TEXTS),
            "kind": "CpuConfig" if self._chance(0.85) else self._pick(("MemoryConfig", "GpuConfig", *TEXTS)),
        }
        if self._chance(0.6):
            right = self._chance(0.8)
            parameters["memory"] = self._pick(("local", "any") if right else ("everywhere", *TEXTS, *AMOUNTS))
        if self._chance(0.1):
            parameters[self._pick(TEXTS)] = self._value(3)
        return parameters

    def _value(self, depth: int) -> Any:
        """Return any JSON value, and some that JSON cannot say."""
        makers: tuple[Callable[[], Any], ...] = (
            lambda: self._pick(TEXTS),
            lambda: self._pick(AMOUNTS),
            lambda: self._random.randint(-(2**70), 2**70),
            lambda: [self._value(depth - 1) for _ in range(self._random.randint(0, 3))],
            lambda: {self._pick(TEXTS): self._value(depth - 1) for _ in range(self._random.randint(0, 3))},
            lambda: nested(self._pick((50, 5_000))),
        )
        return self._pick(makers[: 3 if depth <= 0 else len(makers)])()

    def _bent(self, obj: Any) -> Any:
        """Return the object with one thing in it another, gone, or twice."""
        if not isinstance(obj, dict | list) or not obj or self._chance(0.02):
            return self._value(3)
        keys = list(obj) if isinstance(obj, dict) else list(range(len(obj)))
        key = self._pick(keys)
        changed: Any = dict(obj) if isinstance(obj, dict) else list(obj)
        inner = obj[key]
        if isinstance(inner, dict | list) and inner and self._chance(0.85):
            changed[key] = self._bent(inner)
        elif self._chance(0.3):
            del changed[key]
        elif self._chance(0.2) and isinstance(changed, list):
            changed.append(inner)
        else:
            changed[key] = self._value(2)
        return changed


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value
