"""Two hundred pods with network cards come and go at once by one daemon, and leave nothing in it or on the host."""

import logging
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from netns import needs_namespaces
from netstate import assert_same, state_of
from nicclaims import needs_shares
from nicdaemons import NicHost, Pod, nic_host
from waiting import eventually

pytestmark = [needs_namespaces, needs_shares]

log = logging.getLogger(__name__)

SHARED = [f"share{number}" for number in range(4)]
WHOLE = [f"whole{number}" for number in range(40)]
PODS = 200
AT_ONCE = 16
FEW = 8
"""Files and threads more than after the first pods: connections that are kept come and go."""


def files_and_threads(pid: int) -> tuple[int, int]:
    """Return how many files a process has open, and how many threads it has."""
    status = Path(f"/proc/{pid}/status").read_text()
    threads = next(line for line in status.splitlines() if line.startswith("Threads:"))
    return len(os.listdir(f"/proc/{pid}/fd")), int(threads.split()[1])  # noqa: PTH208 - it changes meanwhile


def come(host: NicHost, number: int) -> Pod:
    """Let a pod come up, with a card of its own or a share."""
    if number < len(WHOLE):
        device, config = f"nic-link-{WHOLE[number]}", {"interface": {"name": "net1", "mtu": 1400}}
    else:
        device = f"nic-link-{SHARED[number % len(SHARED)]}:bandwidth=100M"
        config = {"interface": {"name": "net1"}, "addressPool": {"cidr": "10.9.0.0/16"}}
    uid = f"pod-{number}"
    pod = host.pod(uid, host.claim(f"claim-{number}", device, pods=[uid], config=config))
    host.run(pod)
    return pod


def went(host: NicHost, pod: Pod) -> None:
    """Let a pod end; each fourth one by force, so that its namespace is gone first and the runtime knows no path."""
    if int(pod.uid.rpartition("-")[2]) % 4 == 3:
        pod.space.close()
        del pod.sandbox.linux.namespaces[:]
        host.runtime.stop_pod(pod.sandbox)
        host.runtime.remove_pod(pod.sandbox)
        for ref in pod.claims:
            assert host.unprepare(ref) is None
    else:
        host.end(pod)
    for ref in pod.claims:
        host.server.store.delete("ResourceClaim", ref.name)


def test_two_hundred_pods_come_and_go_at_once() -> None:
    with nic_host(SHARED, WHOLE) as host, ThreadPoolExecutor(AT_ONCE) as workers:
        host.host.run(f"addr add 10.200.0.1/24 dev {WHOLE[0]}", f"link set {SHARED[0]} down")
        process = host.start(cards=len([*SHARED, *WHOLE]))
        before = state_of(host.host)
        for pod in [*workers.map(lambda number: come(host, number), range(0, PODS, PODS // AT_ONCE))]:
            went(host, pod)
        first = files_and_threads(process.pid)

        pods = [*workers.map(lambda number: come(host, number), range(PODS))]
        most = files_and_threads(process.pid)
        assert len(host.specs()) == PODS
        shown = [
            pod.space.call("ip", "-o", "-4", "addr", "show", "dev", "net1") for pod in pods[len(WHOLE) :]
        ]
        addresses = [line.split()[3] for line in shown]
        assert len(set(addresses)) == PODS - len(WHOLE), "no address is given twice"
        assert len(host.devices()) == len([*SHARED, *WHOLE])
        assert [*workers.map(lambda pod: went(host, pod), pods)] == [None] * PODS

        assert host.specs() == []
        assert not list((host.node.directory / "run").rglob("*.json"))
        assert_same(host.host, before, seconds=60)
        limit = [count + FEW for count in first]
        eventually(
            lambda: all(now <= most for now, most in zip(files_and_threads(process.pid), limit, strict=True)),
            "no file and no thread is left",
        )
        (plugin,) = host.runtime.plugins
        log.info(
            "files and threads: %s at first, %s with %d pods, %s now",
            first,
            most,
            PODS,
            files_and_threads(process.pid),
        )
        for method in ("RunPodSandbox", "StopPodSandbox", "CreateContainer"):
            taken = sorted(seconds * 1000 for called, seconds in plugin.calls if called == method)
            cuts = statistics.quantiles(taken, n=100)
            log.info("%s: %d answers, p50 %.1f ms, p99 %.1f ms", method, len(taken), cuts[49], cuts[98])
        assert "Traceback" not in host.node.log()
