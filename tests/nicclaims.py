"""Claims for network cards, and what the engine does with their steps: journalled, run, and undone."""

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dradriver.backend import (
    HostStep,
    Observed,
    Phase,
    Plan,
    PlannedDevice,
    Request,
    Requested,
    Step,
    Work,
    decode,
)
from dradriver.engine.records import restore_step, step_record
from dradriver.host import Host
from dradriver.model import Allocated, ClaimRef, Quantity
from dradriver_nic import NicBackend, NicConfig
from dradriver_nic.inventory import NicInventory
from dradriver_nic.netns import inside
from netns import Namespace, namespace, supports
from nicnode import options_of

DRIVER = "nic.dradriver.io"

needs_shares = pytest.mark.skipif(
    not supports("macvlan", "mode bridge", link=True) or not supports("ifb"),
    reason="this kernel has no macvlan links, or no intermediate devices (ifb)",
)


def new_namespace() -> Iterator[Namespace]:
    """Be a fixture for each name that a module gives it: a network namespace of its own."""
    with namespace() as made:
        yield made


def link_of(space: Namespace, name: str) -> dict[str, Any]:
    """Return a link as `ip` shows it, with its addresses."""
    found: dict[str, Any] = json.loads(space.call("ip", "-d", "-j", "addr", "show", "dev", name))[0]
    return found


def backend_on(host: Namespace, directory: Path, **options: Any) -> NicBackend:
    """Return a backend whose host is a network namespace of this machine."""
    given = {
        "virtualLinks": ["veth"],
        "networkNamespace": str(host.path),
        "runDirectory": str(directory / "run"),
        **options,
    }
    return NicBackend(Host(Path("/")), options_of(given))


def cable(host: Namespace, card: str, wire: Namespace, end: str = "wire0", *, tests: bool = False) -> None:
    """Put a card into a host: one end of a veth pair, of which the other is on the wire.

    tests   whether IPv6 addresses are tested for duplicates, which takes a second or two each time
    """
    if not tests:
        accept = Path("/proc/sys/net/ipv6/conf/default/accept_dad")
        inside(host.path, lambda: accept.write_text("0"))
    host.run(f"link add {card} type veth peer name {end} netns {wire.path}", f"link set {card} up")
    wire.run(f"link set {end} up")


def busy_card(host: Namespace, wire: Namespace, *, tests: bool = False) -> None:
    """Give a host the card `card0`, with all that a host can have of one; on the wire are the neighbours of pods."""
    cable(host, "card0", wire, tests=tests)
    host.run(
        "link set card0 mtu 1400 alias fabric txqueuelen 500",
        "link property add dev card0 altname enp9s0",
        "link property add dev card0 altname rail0",
        "addr add 10.8.0.5/24 dev card0",
        "addr add 10.8.0.6/24 brd + dev card0",
        "addr add 10.8.1.5/24 metric 77 noprefixroute dev card0",
        "addr add 2001:db8:8::5/64 dev card0 nodad",
        "addr add 2001:db8:8::6/64 dev card0",
        "route add 10.77.0.0/16 via 10.8.0.1 metric 50 mtu 1300",
        "route add 10.77.0.0/16 via 10.8.0.2 metric 60",
        "route add 10.78.0.0/16 dev card0 table 1234 proto static",
        "route add 10.8.1.0/24 dev card0 proto kernel scope link src 10.8.1.5 metric 100",
        "-6 route add 2001:db8:77::/48 via 2001:db8:8::1 src 2001:db8:8::5",
        "-6 route add 2001:db8:78::/48 dev card0 metric 5",
        "neigh add 10.8.0.99 lladdr 02:00:00:00:00:99 dev card0",
        "rule add from 10.8.0.0/24 lookup 1234",
    )
    inside(host.path, lambda: Path("/proc/sys/net/ipv4/conf/card0/rp_filter").write_text("2"))
    wire.run("addr add 10.9.0.1/24 dev wire0", "addr add 2001:db8:9::1/64 dev wire0 nodad")


class Life:
    """One claim: its plan, and how far its steps are. What the steps record goes through JSON, as in the journal."""

    def __init__(self, backend: NicBackend, ref: ClaimRef, request: Request, plan: Plan) -> None:
        self.backend = backend
        self.ref = ref
        self.request = request
        self.plan = plan
        self.records = [step_record(backend, step) for step in plan.steps]
        self.facts: list[dict[str, Any]] = [{} for _ in self.records]
        self.rebooted = False
        self._lock = threading.Lock()

    @property
    def steps(self) -> list[Step[Any]]:
        """The steps, as another process would read them from the journal."""
        bodies = [json.loads(json.dumps(record.body)) for record in self.records]
        return [
            restore_step(self.backend, replace(record, body=body))
            for record, body in zip(self.records, bodies, strict=True)
        ]

    def _run(self, verb: str, phase: Phase, netns: str = "") -> list[Any]:
        numbers = [number for number, record in enumerate(self.records) if record.phase is phase]
        steps = self.steps
        answers = []
        for number in reversed(numbers) if verb == "revert" else numbers:
            work = Work(self.facts[number], partial(self._keep, number), netns=netns, rebooted=self.rebooted)
            answers.append(getattr(steps[number], verb)(self.backend, work))
        return answers

    def _keep(self, number: int, facts: Mapping[str, Any]) -> None:
        with self._lock:
            self.facts[number].update(json.loads(json.dumps(dict(facts))))

    def prepare(self) -> "Life":
        """Do what is done at Prepare."""
        self._run("apply", Phase.PREPARE)
        return self

    def start(self, pod: Namespace | str) -> "Life":
        """Do what is done when a pod's sandbox runs."""
        self._run("apply", Phase.SANDBOX, str(pod.path) if isinstance(pod, Namespace) else pod)
        return self

    def stop(self, pod: Namespace | str = "") -> "Life":
        """Do what is done when the sandbox stops, whose namespace is known or not."""
        self._run("revert", Phase.SANDBOX, str(pod.path) if isinstance(pod, Namespace) else pod)
        return self

    def unprepare(self) -> None:
        """Undo everything, as the engine does, without knowing of a pod."""
        self.stop()
        self._run("revert", Phase.PREPARE)

    def observe(self, pod: Namespace | str = "") -> list[Observed]:
        """Look at all steps of the host."""
        path = str(pod.path) if isinstance(pod, Namespace) else pod
        return [*self._run("observe", Phase.PREPARE), *self._run("observe", Phase.SANDBOX, path)]

    def recall(self) -> list[bool]:
        """Tell the backend of what is in pods, as another process does before it counts what it sees."""
        works = (Work(facts, lambda _: None, rebooted=self.rebooted) for facts in self.facts)
        steps = zip(self.steps, works, strict=True)
        return [isinstance(step, HostStep) and step.recall(self.backend, work) for step, work in steps]

    def restarted(self, backend: NicBackend, *, rebooted: bool = False) -> "Life":
        """Return the claim as another instance of the daemon has it, of another boot or not."""
        other = Life(backend, self.ref, self.request, self.plan)
        other.records = [*self.records]
        other.facts = json.loads(json.dumps(self.facts))
        other.rebooted = rebooted
        return other

    def rendered(self) -> tuple[PlannedDevice, ...]:
        """Return what containers are told."""
        return self.backend.render(self.request, self.plan, tuple(self.facts), self.backend.probe())


def claimed(
    backend: NicBackend,
    *devices: str,
    name: str = "claim",
    config: Mapping[str, Any] | None = None,
    configs: Mapping[int, Mapping[str, Any]] | None = None,
    bandwidth: str = "",
    admin: bool = False,
    held: Mapping[str, ClaimRef] | None = None,
    inventory: NicInventory | None = None,
) -> Life:
    """Plan a claim for devices as they are published now.

    config    fields of NicConfig for all devices; `configs` for single ones
    """
    inventory = inventory or backend.probe()
    published = {device.name: device for device in backend.devices(inventory).devices}
    ref = ClaimRef(f"uid-{name}", "default", name)
    requested = []
    for index, device in enumerate(devices):
        fields = {**(config or {}), **((configs or {}).get(index, {}))}
        shared = published[device].shared
        consumed = {"bandwidth": Quantity.parse(bandwidth)} if bandwidth else {}
        requested.append(
            Requested(
                index,
                Allocated(
                    f"r{index}",
                    DRIVER,
                    "n1/nic",
                    device,
                    consumed,
                    f"share-{index}" if shared else None,
                    admin,
                ),
                published[device],
                {NicConfig: decode(NicConfig, fields, "NicConfig")},
            )
        )
    request = Request(ref, tuple(requested))
    plan = backend.plan(request, inventory, held or {}, ())
    return Life(backend, ref, request, plan)
