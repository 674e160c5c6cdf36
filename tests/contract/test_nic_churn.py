"""Two hundred pods with network cards come and go at once, and leave nothing: no links, addresses, files, threads."""

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dradriver.model import ClaimRef
from dradriver_nic import NicBackend
from netns import Namespace, namespace, needs_namespaces
from netstate import assert_same, state_of
from nicclaims import Life, backend_on, cable, claimed, needs_shares

pytestmark = [needs_namespaces, needs_shares]

SHARED = [f"share{number}" for number in range(4)]
WHOLE = [f"whole{number}" for number in range(40)]
PODS = 200
AT_ONCE = 16
POOL = {"addressPool": {"cidr": "10.9.0.0/16", "reserved": ["10.9.0.0/24"]}}


@dataclass
class Ledger:
    """What claims hold, as the engine keeps it: planning and holding are one."""

    backend: NicBackend
    held: dict[str, ClaimRef] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def claim(self, name: str, card: str, config: Mapping[str, Any]) -> Life:
        with self.lock:
            inventory = self.backend.probe()
            life = claimed(
                self.backend,
                f"nic-link-{card}",
                name=name,
                config=config,
                held=self.held,
                inventory=inventory,
            )
            assert not life.plan.holds & self.held.keys()
            self.held.update(dict.fromkeys(life.plan.holds, life.ref))
            return life

    def free(self, life: Life) -> None:
        with self.lock:
            for name in life.plan.holds:
                del self.held[name]


@dataclass
class Pod:
    """A pod with its claim; whether its network namespace is gone before anybody is told."""

    space: Namespace
    life: Life
    dies: bool


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_two_hundred_pods_come_and_go_at_once(tmp_path: Path, everything: bool) -> None:
    if not everything:
        pytest.skip("test_nic_many_pods does so through a daemon; --all does both")
    with contextlib.ExitStack() as stack:
        host, wire = stack.enter_context(namespace()), stack.enter_context(namespace())
        for number, card in enumerate([*SHARED, *WHOLE]):
            cable(host, card, wire, f"wire{number}")
        host.run(f"addr add 10.200.0.1/24 dev {WHOLE[0]}", f"link set {SHARED[0]} down")
        before = state_of(host)
        backend = backend_on(host, tmp_path, modes={"share*": "shares"}, bandwidths={"share*": "100G"})
        ledger = Ledger(backend)
        files, threads = open_files(), threading.active_count()

        def come(number: int) -> Pod:
            whole = number < len(WHOLE)
            card = WHOLE[number] if whole else SHARED[number % len(SHARED)]
            config = {"interface": {"name": "net1", "mtu": 1400}} if whole else POOL
            life = ledger.claim(f"claim{number}", card, config).prepare()
            pod = Namespace()
            return Pod(pod, life.start(pod), dies=not whole and number % 2 == 0)

        def go(pod: Pod) -> None:
            if pod.dies:
                pod.space.close()
                pod.life.unprepare()
            else:
                pod.life.stop(pod.space).unprepare()
                pod.space.close()
            ledger.free(pod.life)

        with ThreadPoolExecutor(AT_ONCE) as workers:
            pods = [*workers.map(come, range(PODS))]
            told = [device.network for pod in pods for device in pod.life.plan.devices]
            given = [ip for network in told if network for ip in network.ips if ip.startswith("10.9.")]
            assert len(given) == len(set(given)) == PODS - len(WHOLE)
            for pod, network in zip(pods[:: PODS // 20], told[:: PODS // 20], strict=True):
                assert network
                shown = pod.space.call("ip", "-o", "addr", "show", "dev", network.interface)
                assert all(ip in shown for ip in network.ips)
            assert len(backend.devices(backend.probe()).devices) == len([*SHARED, *WHOLE])
            assert [*workers.map(go, pods)] == [None] * PODS
        assert (open_files(), threading.active_count()) == (files, threads)
        assert (ledger.held, dict(backend.away.moved)) == ({}, {})
        assert not [*(tmp_path / "run" / "settings").glob("*")]
        assert_same(host, before)
