"""Pods with claims at an API server, as the scheduler and the kubelet of one node bring them up and down.

Facts: k8s.io/api/core/v1 `PodResourceClaim` and `ResourceClaim` (a container's); what the controllers write into the
claims that they make of a template (KEP-4381) or of an extended resource (KEP-5004).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from dradriver.kube import Client, StatusError
from dradriver.kube.paths import NODES, SLICES
from dradriver.model import ClaimRef, PreparedDevice, json_quantity, shown
from dradriver.sim.allocate import AllocationError, Wish, allocation, doubts
from dradriver.sim.kubelet import Kubelet

Body = Mapping[str, Any]

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
EXTENDED_ENTRY: Final = "extended-resources"

CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
_OF_THE_CLUSTER: Final = {"Namespace": "/api/v1/namespaces", "DeviceClass": CLASSES}
_PLURALS: Final = {
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "ResourceClaim": "resourceclaims",
    "Pod": "pods",
}
KINDS: Final = (*_OF_THE_CLUSTER, *_PLURALS)
"""What `create` makes, in an order in which each finds what it needs."""


@dataclass(slots=True)
class PodClaim:
    """One claim of a pod.

    entry     the pod's own name for it; empty for that of its extended resources
    made      whether it was made for this pod, and ends with it
    answers   what each driver that has devices in it answered to Prepare
    """

    entry: str
    obj: dict[str, Any]
    made: bool
    answers: dict[str, tuple[PreparedDevice, ...] | str] = field(default_factory=dict)

    @property
    def ref(self) -> ClaimRef:
        """The claim's identity."""
        metadata = self.obj["metadata"]
        return ClaimRef(metadata["uid"], metadata["namespace"], metadata["name"])

    @property
    def names(self) -> frozenset[str]:
        """The names by which its devices are chosen."""
        return frozenset((self.entry or EXTENDED_ENTRY, self.ref.name))

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers of its devices."""
        results = self.obj["status"]["allocation"]["devices"].get("results") or ()
        return tuple(dict.fromkeys(result["driver"] for result in results))

    def ids(self, prefix: str = "", request: str | None = None) -> Iterator[str]:
        """Yield the CDI devices of one request, or of all whose name starts with `prefix`."""
        for answer in self.answers.values():
            for device in () if isinstance(answer, str) else answer:
                names = device.requests
                if request in names if request else any(name.startswith(prefix) for name in names):
                    yield from device.cdi_ids


@dataclass(slots=True)
class RunningPod:
    """A pod and its claims. `doubts` is what a scheduler would most likely have done otherwise."""

    obj: dict[str, Any]
    claims: list[PodClaim]
    doubts: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.obj["metadata"]["name"])

    def errors(self) -> list[str]:
        """Return what keeps the pod from starting."""
        return [
            f"claim {claim.ref.name}: {driver}: {answer}"
            for claim in self.claims
            for driver, answer in claim.answers.items()
            if isinstance(answer, str)
        ]

    def containers(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each container's name and the CDI devices that the kubelet asks the runtime for."""
        for index, container in enumerate(self.obj["spec"]["containers"]):
            ids: list[str] = []
            for asked in (container.get("resources") or {}).get("claims") or ():
                for claim in self.claims:
                    if claim.entry == asked["name"]:
                        ids += claim.ids(request=asked.get("request"))
            for claim in self.claims:
                if not claim.entry:
                    ids += claim.ids(prefix=f"container-{index}-")
            yield container["name"], list(dict.fromkeys(ids))


class PodRunner:
    """Brings pods up and down on one node.

    It stands in for the claim controller, for the scheduler, which takes the devices that it is told, and for the
    kubelet, whose calls are real.
    """

    def __init__(self, client: Client, kubelet: Kubelet) -> None:
        self._client = client
        self._kubelet = kubelet

    def start(self, pod: Body, choices: Mapping[tuple[str, str], Sequence[Wish]]) -> RunningPod:
        """Make the pod's claims, allocate them and prepare; the pod tells how it went.

        pod       as it is at the API server
        choices   (the pod's entry, or the claim's name; request) -> devices

        Raises AllocationError, and KubeError where the API server refuses something.
        """
        classes = {one["metadata"]["name"]: one for one in self._list(CLASSES)}
        specs = [one["spec"] for one in self._list(SLICES)]
        running = RunningPod(dict(pod), list(self._claims(pod, classes)))
        for claim in running.claims:
            mine = {request: wishes for (name, request), wishes in choices.items() if name in claim.names}
            self._allocate(claim, pod, classes, specs, mine)
            running.doubts += (f"claim {claim.ref.name}: {doubt}" for doubt in doubts(claim.obj, classes))
        self.prepare(running)
        return running

    def prepare(self, running: RunningPod) -> None:
        """Call every driver concerned, with all its claims at once, as the kubelet does."""
        for driver in dict.fromkeys(driver for claim in running.claims for driver in claim.drivers):
            mine = [claim for claim in running.claims if driver in claim.drivers]
            answers = self._kubelet.prepare(driver, [claim.ref for claim in mine])
            for claim in mine:
                claim.answers[driver] = answers[claim.ref.uid]

    def stop(self, running: RunningPod) -> list[str]:
        """Unprepare, let go of the claims and delete the pod; return what went wrong."""
        failures = []
        for driver in dict.fromkeys(driver for claim in running.claims for driver in claim.drivers):
            mine = [claim for claim in running.claims if driver in claim.drivers]
            answers = self._kubelet.unprepare(driver, [claim.ref for claim in mine])
            failures += [
                f"claim {claim.ref.name}: {driver}: {error}"
                for claim in mine
                if (error := answers[claim.ref.uid])
            ]
        for claim in running.claims:
            self._release(claim, running.obj["metadata"]["uid"])
        try:
            self._client.delete(f"{_path('pods', running.obj)}/{running.name}")
        except StatusError as error:
            # Somebody else, as a person with kubectl, may have deleted it.
            if error.code != 404:
                raise
        return failures

    def _list(self, path: str) -> list[dict[str, Any]]:
        return list(self._client.get(path)["items"])

    def _claims(self, pod: Body, classes: Mapping[str, Body]) -> Iterator[PodClaim]:
        for entry in pod["spec"].get("resourceClaims") or ():
            if name := entry.get("resourceClaimName"):
                obj = self._client.get(f"{_path('resourceclaims', pod)}/{name}")
                yield PodClaim(entry["name"], obj, made=False)
            else:
                path = f"{_path('resourceclaimtemplates', pod)}/{entry['resourceClaimTemplateName']}"
                spec = self._client.get(path)["spec"]
                metadata = spec.get("metadata") or {}
                annotations = (metadata.get("annotations") or {}) | {POD_CLAIM_NAME: entry["name"]}
                made = self._made(pod, entry["name"], metadata | {"annotations": annotations}, spec["spec"])
                yield PodClaim(entry["name"], made, made=True)
        requests = _extended_requests(pod, classes)
        if requests:
            metadata = {"annotations": {EXTENDED: "true"}}
            spec = {"devices": {"requests": requests}}
            yield PodClaim("", self._made(pod, EXTENDED_ENTRY, metadata, spec), made=True)

    def _made(self, pod: Body, word: str, metadata: Body, spec: Body) -> dict[str, Any]:
        owner = pod["metadata"]
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner["name"], "uid": owner["uid"]}
        made: dict[str, Any] = self._client.create(
            _path("resourceclaims", pod),
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {
                    **metadata,
                    "generateName": f"{owner['name']}-{word}-",
                    "namespace": owner["namespace"],
                    "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
                },
                "spec": spec,
            },
        )
        return made

    def _allocate(
        self,
        claim: PodClaim,
        pod: Body,
        classes: Mapping[str, Body],
        specs: Sequence[Body],
        choices: Mapping[str, Sequence[Wish]],
    ) -> None:
        status = dict(claim.obj.get("status") or {})
        if "allocation" not in status:
            try:
                status["allocation"] = allocation(claim.obj, classes, specs, choices)
            except AllocationError as error:
                raise AllocationError(f"claim {shown(claim.entry or claim.ref.name)}: {error}") from None
        owner = pod["metadata"]
        user = {"resource": "pods", "name": owner["name"], "uid": owner["uid"]}
        status["reservedFor"] = [*(status.get("reservedFor") or ()), user]
        self._put_status(claim, status)

    def _release(self, claim: PodClaim, uid: str) -> None:
        """Let go of a claim: the last user of it takes the allocation along."""
        path = claim_path(claim.obj)
        try:
            claim.obj = self._client.get(path)
        except StatusError as error:
            if error.code == 404:
                return
            raise
        status = dict(claim.obj["status"])
        status["reservedFor"] = [user for user in status.get("reservedFor") or () if user["uid"] != uid]
        if not status["reservedFor"]:
            status.pop("allocation", None)
        self._put_status(claim, status)
        if claim.made:
            self._client.delete(path)

    def _put_status(self, claim: PodClaim, status: Body) -> None:
        path = f"{claim_path(claim.obj)}/status"
        for attempt in range(5):
            try:
                claim.obj = self._client.replace(path, {**claim.obj, "status": status})
            except StatusError as error:
                # Somebody else, most likely the driver, wrote the status in between.
                if error.code != 409 or attempt == 4:
                    raise
                claim.obj = self._client.get(path.removesuffix("/status"))
                devices = claim.obj.get("status", {}).get("devices")
                status = {**status, **({"devices": devices} if devices else {})}
            else:
                return


def _extended_requests(pod: Body, classes: Mapping[str, Body]) -> list[dict[str, Any]]:
    """Return the requests that stand for what containers ask for by the name of an extended resource."""
    by_name = {
        one["spec"]["extendedResourceName"]: name
        for name, one in classes.items()
        if one["spec"].get("extendedResourceName")
    }
    requests = []
    for index, container in enumerate(pod["spec"]["containers"]):
        limits = (container.get("resources") or {}).get("limits") or {}
        for number, name in enumerate(sorted(name for name in limits if name in by_name)):
            exactly = {
                "deviceClassName": by_name[name],
                "allocationMode": "ExactCount",
                "count": _count(name, limits[name]),
            }
            requests.append({"name": f"container-{index}-request-{number}", "exactly": exactly})
    return requests


def _count(name: str, amount: object) -> int:
    """Return how many devices a limit asks for."""
    try:
        return json_quantity(amount).to_int()
    except ValueError as error:
        raise AllocationError(f"limit of {shown(name)}: {error}") from None


def ensure_node(client: Client, name: str) -> None:
    """Make the Node object, if there is none."""
    try:
        client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    except StatusError as error:
        if error.code != 409:
            raise


def create(client: Client, manifest: Body, node: str) -> dict[str, Any]:
    """Create what a manifest describes, a pod on that node; return it as stored.

    Raises AllocationError for a kind that has no part in this, KubeError where the API server refuses it.
    """
    kind, metadata = str(manifest.get("kind")), dict(manifest.get("metadata") or {})
    if kind not in KINDS:
        raise AllocationError(f"kind {shown(kind)}: one of {', '.join(KINDS)} is expected")
    if kind in _OF_THE_CLUSTER:
        path = _OF_THE_CLUSTER[kind]
    else:
        metadata.setdefault("namespace", "default")
        path = _path(_PLURALS[kind], {"metadata": metadata})
    body = {**manifest, "metadata": metadata}
    if kind == "Pod":
        body["spec"] = {**manifest["spec"], "nodeName": node}
    made: dict[str, Any] = client.create(path, body)
    return made


def claim_path(claim: Body) -> str:
    """Return the path of a claim object."""
    return f"{_path('resourceclaims', claim)}/{claim['metadata']['name']}"


def _path(plural: str, obj: Body) -> str:
    """Return the path of the objects of a kind in the namespace of `obj`."""
    group = "/api/v1" if plural == "pods" else "/apis/resource.k8s.io/v1"
    return f"{group}/namespaces/{quote(obj['metadata']['namespace'], safe='')}/{plural}"
