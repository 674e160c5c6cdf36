"""What `dradriver sim` does with its simulated cluster, step by step, and what it finds wrong."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dradriver.kube import KubeError, StatusError
from dradriver.model import shown
from dradriver.sim.allocate import Wish, named, published
from dradriver.sim.apiserver.rules.gates import DEVICE_STATUS
from dradriver.sim.cluster import SimulatedCluster, SimulationError
from dradriver.sim.kubelet import KubeletError
from dradriver.sim.manifests import Manifest, ManifestError
from dradriver.sim.pods import RunningPod, claim_path, create
from dradriver_cdi import ContainerEdits, Spec, Store

STATUS_SECONDS: Final = 5.0
REPORT_SECONDS: Final = 10.0
_LISTED: Final = 5
"""Devices that are named in one line."""

_BAD_LINE: Final = re.compile(r"^\S+ (?:ERROR|CRITICAL) .*|^Traceback .*", re.MULTILINE)


@dataclass(slots=True)
class Outcome:
    """What a run showed.

    containers   (pod, container) -> what it gets
    reduced      what is not published, or otherwise than it is, and why
    warnings     what a scheduler would not have done
    problems     what was not as it should be; empty where all is well
    log          the end of the daemon's log, where there are problems
    """

    devices: dict[str, int] = field(default_factory=dict)
    claims: list[dict[str, Any]] = field(default_factory=list)
    containers: list[dict[str, Any]] = field(default_factory=list)
    reduced: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    log: str = ""

    def view(self) -> dict[str, Any]:
        """Return the outcome as plain JSON types."""
        return {
            "devices": self.devices,
            "claims": self.claims,
            "containers": self.containers,
            "reduced": self.reduced,
            "warnings": self.warnings,
            "problems": self.problems,
        }


class Loop:
    """One run: `begin`, `run_claim` or `run_pods`, `bring_down`, `end`."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        say: Callable[[str, str], None],
        show: Callable[[Sequence[tuple[str, str, Mapping[str, Any]]]], None],
        reduced: Callable[[], Sequence[str] | None],
    ) -> None:
        """Keep what a run is shown with.

        say       shows a line under a title
        show      shows what containers get: (container, CDI device, its edits)
        reduced   returns what the daemon could not publish, None while it has not told
        """
        self.cluster = cluster
        self.outcome = Outcome()
        self._reduced = reduced
        self._running: list[RunningPod] = []
        self._say = say
        self._show_edits = show

    def begin(self) -> None:
        """Wait for the daemon, and show what it published."""
        cluster = self.cluster
        self._say("API server", f"{cluster.server.url}, kubeconfig {cluster.kubeconfig}")
        cluster.wait_until_ready()
        counts: Counter[str] = Counter()
        slices = cluster.slices()
        for one in slices:
            counts[one["spec"]["driver"]] += len(one["spec"].get("devices") or ())
        self.outcome.devices = dict(counts)
        self._say(
            "Node",
            f"{cluster.node}, registered: {', '.join(driver for driver, _ in cluster.settings.drivers)}",
        )
        listed = ", ".join(f"{driver} {number}" for driver, number in counts.items())
        self._say("Published", f"{sum(counts.values())} devices in {len(slices)} slices: {listed}")
        cluster.wait(
            lambda: "the daemon has not told what it published" if self._reduced() is None else "",
            REPORT_SECONDS,
        )
        self.outcome.reduced = list(self._reduced() or ())
        for text in self.outcome.reduced:
            self._say("Reduced", text)

    def run_claim(self, wishes: Sequence[Wish]) -> None:
        """Bring up a pod with one claim for these devices; for the first one of each driver by default.

        Raises AllocationError and KubeError.
        """
        chosen = list(wishes) or self._first()
        found = published(one["spec"] for one in self.cluster.slices())
        classes, requests, choices = [], [], {}
        for number, wish in enumerate(chosen):
            driver = named(wish, found)[0]["driver"]
            classes.append(driver)
            exactly = {"deviceClassName": driver}
            requests.append({"name": f"device-{number}", "exactly": exactly})
            choices["demo", f"device-{number}"] = [Wish(wish.device, driver, wish.amounts)]
        selector = 'device.driver == "{}"'
        objects: list[dict[str, Any]] = [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": driver},
                "spec": {"selectors": [{"cel": {"expression": selector.format(driver)}}]},
            }
            for driver in dict.fromkeys(classes)
        ]
        objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "demo"},
                "spec": {"devices": {"requests": requests}},
            }
        )
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "demo"}]}}
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "demo"},
                "spec": {
                    "containers": [container],
                    "resourceClaims": [{"name": "demo", "resourceClaimName": "demo"}],
                },
            }
        )
        self.run_pods([Manifest(one) for one in objects], choices)

    def run_pods(
        self, manifests: Sequence[Manifest], choices: Mapping[tuple[str, str], Sequence[Wish]]
    ) -> None:
        """Create the objects, bring all pods up and look at them.

        Raises ManifestError, AllocationError and KubeError; no pod is up then.
        """
        made = [self._create(one) for one in manifests]
        files = [one for one in manifests if one.source]
        if files:
            counts = Counter(one.kind for one in files)
            self._say("Created", ", ".join(f"{kind} {number}" for kind, number in counts.items()))
        try:
            for pod in (one for one in made if one["kind"] == "Pod"):
                self._running.append(self.cluster.pods.start(pod, choices))
                self._show(self._running[-1])
        except BaseException:
            # The directory may be used again: what is prepared would hold its devices.
            with contextlib.suppress(KubeError, KubeletError):
                self.bring_down()
            raise
        self._check_status(self._running)
        self._check_repeat(self._running)
        known = {name for one in self._running for claim in one.claims for name in claim.names}
        self._problems(
            f"devices were named for claim {shown(name)}, which no pod has: {', '.join(sorted(known)) or 'none'}"
            for name in sorted({name for name, _ in choices} - known)
        )

    def _create(self, manifest: Manifest) -> dict[str, Any]:
        try:
            return create(self.cluster.client, manifest.obj, self.cluster.node)
        except StatusError as error:
            raise ManifestError(f"{manifest}: {error}") from None

    def bring_down(self) -> None:
        """Bring all pods down that are up, unless the daemon is gone. Raises KubeError and KubeletError."""
        while self._running and self.cluster.alive():
            one = self._running.pop()
            failures = self.cluster.pods.stop(one)
            self._problems(failures)
            if not failures:
                self._say("Unprepared", f"pod {one.name}")

    def failed(self, problem: str) -> Outcome:
        """Return the outcome of a run that cannot go on, for a reason of which the daemon's log tells nothing."""
        self._problems([problem])
        return self.outcome

    def end(self, problem: str = "") -> Outcome:
        """Stop the daemon; look at what it left and what it logged. `problem` is why the run came to an early end."""
        self._problems([problem] if problem else [])
        alive = self.cluster.alive()
        if alive:
            store = Store(self.cluster.settings.cdi)
            drivers = [driver for driver, _ in self.cluster.settings.drivers]
            left = [name for driver in drivers for name in store.names(f"{driver}-claim-")]
            self._problems(f"CDI file {name} is left" for name in left)
        code = self.cluster.stop_daemon()
        if code or not alive:
            self._problems([f"the daemon ended with code {code}"])
        log = self.cluster.log.read_text(errors="replace")
        self._problems(f"the daemon logged: {line}" for line in _BAD_LINE.findall(log))
        if self.outcome.problems:
            self.outcome.log = self.cluster.log_end()
        else:
            self._say("Done", "nothing is left, nothing went wrong")
        return self.outcome

    def _problems(self, texts: Iterable[str]) -> None:
        self.outcome.problems += (text for text in texts if text not in self.outcome.problems)

    def _devices(self) -> list[tuple[str, str]]:
        """Return (driver, device) of all that is published, in its order."""
        return [
            (one["spec"]["driver"], device["name"])
            for one in self.cluster.slices()
            for device in one["spec"].get("devices") or ()
        ]

    def _first(self) -> list[Wish]:
        first: dict[str, str] = {}
        for driver, device in self._devices():
            first.setdefault(driver, device)
        return [Wish(device, driver) for driver, device in first.items()]

    def _show(self, pod: RunningPod) -> None:
        """Show a pod's claims, and what the runtime would give its containers."""
        self._problems(f"pod {pod.name}: {error}" for error in pod.errors())
        for claim in pod.claims:
            allocated = claim.obj["status"]["allocation"]["devices"].get("results") or ()
            names = ", ".join(f"{one['request']}: {_device_text(one)}" for one in allocated)
            self._say("Allocated", f"{claim.ref.namespace}/{claim.ref.name}: {names}")
            self.outcome.claims.append(
                {"namespace": claim.ref.namespace, "name": claim.ref.name, "results": list(allocated)}
            )
        for doubt in pod.doubts:
            self.outcome.warnings.append(f"pod {pod.name}: {doubt}")
            self._say("Warning", self.outcome.warnings[-1])
        if pod.errors():
            return
        self._say("Prepared", f"pod {pod.name}")
        specs = self._specs()
        rows = []
        for container, ids in pod.containers():
            self._problems(
                f"pod {pod.name}: no CDI file has device {name}" for name in ids if name not in specs
            )
            edits = {name: specs[name].to_dict() for name in ids if name in specs}
            self.outcome.containers.append({"pod": pod.name, "container": container, "cdiDevices": edits})
            rows += [(f"{pod.name}/{container}", name, edits.get(name, {})) for name in ids]
        self._show_edits(rows)

    def _specs(self) -> dict[str, ContainerEdits]:
        """Return the edits of every CDI device by its qualified name."""
        store = Store(self.cluster.settings.cdi)
        found: dict[str, ContainerEdits] = {}
        for driver, _ in self.cluster.settings.drivers:
            for name in store.names(f"{driver}-"):
                spec: Spec = store.read(name)
                found |= {f"{spec.kind}={device.name}": spec.edits + device.edits for device in spec.devices}
        return found

    def _check_status(self, running: Sequence[RunningPod]) -> None:
        """See that the status of each claim tells of each of its devices."""
        kubernetes = self.cluster.settings.kubernetes
        claims = [claim for pod in running if not pod.errors() for claim in pod.claims]
        if not claims or (kubernetes and not kubernetes.claim_status):
            return
        if not self.cluster.keeps_device_status:
            self._say(
                "Status", f"the API server keeps none of devices: its feature gate {DEVICE_STATUS} is off"
            )
            return

        def missing() -> str:
            silent: dict[str, list[str]] = {}
            for claim in claims:
                status = self.cluster.client.get(claim_path(claim.obj))["status"]
                ready = {
                    (one["driver"], one["pool"], one["device"], one.get("shareID"))
                    for one in status.get("devices") or ()
                    for condition in one.get("conditions") or ()
                    if (condition["type"], condition["status"]) == ("Ready", "True")
                }
                for one in status["allocation"]["devices"].get("results") or ():
                    if (one["driver"], one["pool"], one["device"], one.get("shareID")) not in ready:
                        silent.setdefault(claim.ref.name, []).append(one["device"])
            return "; ".join(
                f"the status of claim {name} has no condition Ready of {_listed(devices)}"
                for name, devices in silent.items()
            )

        try:
            self.cluster.wait(missing, STATUS_SECONDS)
        except SimulationError as error:
            self._problems([str(error)])
        else:
            self._say("Status", "every device is Ready in its claim's status")

    def _check_repeat(self, running: Sequence[RunningPod]) -> None:
        """See that a second Prepare, as after a restart of the kubelet, is answered alike."""
        for pod in running:
            before = [dict(claim.answers) for claim in pod.claims]
            self.cluster.pods.prepare(pod)
            if not pod.errors() and before != [claim.answers for claim in pod.claims]:
                self._problems([f"pod {pod.name}: a second Prepare is answered otherwise than the first"])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _device_text(result: Mapping[str, Any]) -> str:
    consumed = ", ".join(f"{name}={amount}" for name, amount in result.get("consumedCapacity", {}).items())
    return f"{result['device']} ({consumed})" if consumed else str(result["device"])
