"""What `dradriver sim` does with its simulated cluster, step by step, and what it finds wrong."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dradriver.documents import read_documents
from dradriver.kube import KubeError
from dradriver.model import shown
from dradriver.sim.allocate import AllocationError, Wish
from dradriver.sim.cluster import SimulatedCluster, SimulationError
from dradriver.sim.kubelet import KubeletError
from dradriver.sim.pods import KINDS, RunningPod, claim_path, create
from dradriver_cdi import ContainerEdits, Spec, Store

MAX_FILE: Final = 4 << 20
STATUS_SECONDS: Final = 5.0
_BAD_LINE: Final = re.compile(r"^\S+ (?:ERROR|CRITICAL) .*|^Traceback .*", re.MULTILINE)


@dataclass(slots=True)
class Outcome:
    """What a run showed.

    containers   (pod, container) -> what it gets
    problems     what was not as it should be; empty where all is well
    log          the end of the daemon's log, where there are problems
    """

    devices: dict[str, int] = field(default_factory=dict)
    claims: list[dict[str, Any]] = field(default_factory=list)
    containers: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    log: str = ""

    def view(self) -> dict[str, Any]:
        """Return the outcome as plain JSON types."""
        return {
            "devices": self.devices,
            "claims": self.claims,
            "containers": self.containers,
            "problems": self.problems,
        }


def manifests(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the objects of these files, and of the YAML files in these directories, in the order of creation.

    Raises SimulationError for what is no manifest.
    """
    found: list[dict[str, Any]] = []
    files = [
        file
        for path in paths
        for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])
        if file.is_file()
    ]
    for file in files:
        try:
            documents = [one for one in read_documents(file, MAX_FILE) if one is not None]
        except (OSError, ValueError) as error:
            raise SimulationError(f"{file}: {error}") from None
        for one in documents:
            if not isinstance(one, dict) or one.get("kind") not in KINDS:
                kind = one.get("kind") if isinstance(one, dict) else type(one).__name__
                raise SimulationError(f"{file}: {shown(kind)} is none of {', '.join(KINDS)}")
            found.append(one)
    if paths and not found:
        raise SimulationError(f"no manifests in {', '.join(map(str, paths))}")
    return sorted(found, key=lambda one: KINDS.index(one["kind"]))


class Loop:
    """One run: `begin`, `run_claim` or `run_pods`, `end`."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        say: Callable[[str, str], None],
        show: Callable[[Sequence[tuple[str, str, Mapping[str, Any]]]], None],
    ) -> None:
        """`say` shows a line under a title, `show` what containers get: (container, CDI device, its edits)."""
        self.cluster = cluster
        self.outcome = Outcome()
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

    def run_claim(self, wishes: Sequence[Wish]) -> None:
        """Bring up and down a pod with one claim for these devices; for the first one of each driver by default."""
        chosen = list(wishes) or self._first()
        classes, requests, choices = [], [], {}
        for number, wish in enumerate(chosen):
            driver = wish.driver or self._driver(wish.device)
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
        self.run_pods(objects, choices)

    def run_pods(
        self, objects: Sequence[Mapping[str, Any]], choices: Mapping[tuple[str, str], Sequence[Wish]]
    ) -> None:
        """Create the objects, bring all pods up, look at them, and bring them down.

        Raises AllocationError and KubeError.
        """
        made = [create(self.cluster.client, one, self.cluster.node) for one in objects]
        running: list[RunningPod] = []
        try:
            for pod in (one for one in made if one["kind"] == "Pod"):
                running.append(self.cluster.pods.start(pod, choices))
                self._show(running[-1])
        except Exception:
            # The directory may be used again: what is prepared would hold its devices.
            with contextlib.suppress(KubeError, KubeletError):
                self._bring_down(running)
            raise
        self._check_status(running)
        self._check_repeat(running)
        known = {name for one in running for claim in one.claims for name in claim.names}
        self._problems(
            f"devices were named for claim {shown(name)}, which no pod has: {', '.join(sorted(known)) or 'none'}"
            for name in sorted({name for name, _ in choices} - known)
        )
        self._bring_down(running)

    def _bring_down(self, running: Sequence[RunningPod]) -> None:
        for one in reversed(running):
            failures = self.cluster.pods.stop(one)
            self._problems(failures)
            if not failures:
                self._say("Unprepared", f"pod {one.name}")

    def end(self, problem: str = "") -> Outcome:
        """Stop the daemon; look at what it left and what it logged. `problem` is why the run came to an early end."""
        self._problems([problem] if problem else [])
        store = Store(self.cluster.settings.cdi)
        left = [
            name for driver, _ in self.cluster.settings.drivers for name in store.names(f"{driver}-claim-")
        ]
        self._problems(f"CDI file {name} is left" for name in left)
        code = self.cluster.stop_daemon()
        if code:
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

    def _driver(self, name: str) -> str:
        drivers = [driver for driver, device in self._devices() if device == name]
        if len(drivers) != 1:
            raise AllocationError(
                f"device {shown(name)} is published by {', '.join(drivers) or 'no driver'}: "
                "see `kubectl get resourceslices -o yaml`, or write DRIVER/NAME"
            )
        return drivers[0]

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

        def missing() -> str:
            silent = []
            for claim in claims:
                status = self.cluster.client.get(claim_path(claim.obj))["status"]
                ready = {
                    (one["driver"], one["pool"], one["device"], one.get("shareID"))
                    for one in status.get("devices") or ()
                    for condition in one.get("conditions") or ()
                    if (condition["type"], condition["status"]) == ("Ready", "True")
                }
                silent += [
                    f"{claim.ref.name}: {one['device']}"
                    for one in status["allocation"]["devices"].get("results") or ()
                    if (one["driver"], one["pool"], one["device"], one.get("shareID")) not in ready
                ]
            return f"no condition Ready in the status of claim {', '.join(silent)}" if silent else ""

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


def _device_text(result: Mapping[str, Any]) -> str:
    consumed = ", ".join(f"{name}={amount}" for name, amount in result.get("consumedCapacity", {}).items())
    return f"{result['device']} ({consumed})" if consumed else str(result["device"])
