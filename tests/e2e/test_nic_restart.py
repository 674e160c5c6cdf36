"""Cards that are in pods are known to each process that looks: to a daemon after a restart, and to commands."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import daemons
from dradriver.model import Health
from dradriver.sim.kubelet import RegisteredPlugin
from netns import needs_namespaces
from netstate import assert_same, state_of
from nicclaims import link_of, needs_shares
from nicdaemons import DRIVER, POOL, NicHost, Pod, nic_host
from waiting import eventually

pytestmark = [needs_namespaces, needs_shares]

SHARE, WHOLE, SPARE = "nic-link-share0", "nic-link-whole0", "nic-link-spare0"

QUIET_SECONDS = 2.0
"""How long a daemon that is active is watched: what it sees wrong at first it mends within a tenth of that."""


@pytest.fixture
def host() -> Iterator[NicHost]:
    """A node with three cards, whose daemon is yet to be started."""
    with nic_host(["share0"], ["whole0", "spare0"]) as made:
        yield made
        assert "Traceback" not in made.node.log()


def prepared(host: NicHost) -> Pod:
    """Prepare a share and a card for a pod."""
    share = host.claim("p-share", f"{SHARE}:bandwidth=2G", pods=["p"], config={"interface": {"name": "net1"}})
    whole = host.claim("p-whole", WHOLE, pods=["p"], config={"interface": {"name": "fast0"}})
    return host.pod("p", share, whole)


def run(host: NicHost, pod: Pod) -> Pod:
    """Have the pod run, so that the card is in it and not on the host."""
    host.run(pod)
    assert link_of(pod.space, "fast0")
    assert "whole0" not in host.host.call("ip", "link")
    return pod


def slice_writes(host: NicHost) -> int:
    """Return how often a slice was changed so far."""
    return sum(one.changed for one in host.server.requests.matching(kind="ResourceSlice"))


def registered(host: NicHost, instance: str) -> RegisteredPlugin:
    """Return what an instance of the daemon registers."""

    def look() -> RegisteredPlugin | None:
        found = (one for one in host.kubelet.plugins() if one.name == DRIVER and instance in one.endpoint)
        return next(found, None)

    plugin: RegisteredPlugin = eventually(look, f"instance {instance} serves its sockets")
    return plugin


@contextmanager
def health_told(host: NicHost, plugin: RegisteredPlugin) -> Iterator[list[dict[str, Health]]]:
    """Give all health lists that the kubelet is sent meanwhile, by device."""
    lists: list[dict[str, Health]] = []
    watch = host.kubelet.watch_health(plugin)

    def listen() -> None:
        lists.extend({device: state.health for (_, device), state in told.items()} for told in watch)

    thread = threading.Thread(target=listen)
    thread.start()
    yield lists
    watch.cancel()
    thread.join(10.0)
    assert not thread.is_alive()


def start(host: NicHost, instance: str) -> subprocess.Popen[bytes]:
    """Start an instance of the daemon, active or not; return at once."""
    return host.node.start(
        host.config(),
        instance=instance,
        kubeconfig=host.kubeconfig,
        within=["nsenter", f"--net={host.host.path}"],
        own_directory=False,
    )


def check_quiet(host: NicHost, instance: str, *, activate: Callable[[], Any], times: int) -> None:
    """Assert that nobody is told of a change while an instance becomes active, the `times`-th of all."""
    writes, said = slice_writes(host), len(host.node.log())
    activate()
    with health_told(host, registered(host, instance)) as lists:
        eventually(lambda: host.node.log().count("active on node") == times, "it is active")
        eventually(lambda: lists and WHOLE in lists[-1], "the kubelet is told of the card in the pod")
        time.sleep(QUIET_SECONDS)
    assert slice_writes(host) == writes
    assert {state for told in lists for state in told.values()} == {Health.HEALTHY}
    assert all(WHOLE in told for told in lists[lists.index(max(lists, key=len)) :]), (
        "it does not vanish again"
    )
    log = host.node.log()[said:]
    assert "no longer on this node" not in log
    assert " ERROR " not in log
    assert host.devices().keys() == {SHARE, WHOLE, SPARE}


def test_a_daemon_that_was_killed_comes_back_unseen(host: NicHost) -> None:
    process = host.start(cards=3)
    pod = run(host, prepared(host))

    def again() -> None:
        process.kill()
        process.wait()
        start(host, "second")

    check_quiet(host, "second", activate=again, times=2)
    for ref in pod.claims:
        assert not isinstance(host.kubelet.prepare(registered(host, "second"), [ref])[ref.uid], str)


def test_an_instance_that_stood_by_takes_over_unseen(host: NicHost) -> None:
    first = host.start(cards=3)
    pod = prepared(host)
    start(host, "second")
    eventually(lambda: "standing by" in host.node.log(), "it stands by")
    registered(host, "second")
    time.sleep(0.5)  # it has looked at the cards, which are all on the host still
    run(host, pod)

    def hand_over() -> None:
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0

    check_quiet(host, "second", activate=hand_over, times=2)


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.03])
def test_an_instance_takes_over_while_a_pod_starts(host: NicHost, seconds: float) -> None:
    """Whether the runtime had its answer or went on without, the pod has all of it in the end, and gives it back."""
    first = host.start(cards=3)
    before = state_of(host.host)
    pod = prepared(host)
    start(host, "second")
    eventually(lambda: "standing by" in host.node.log(), "it stands by")
    starting = threading.Thread(target=host.run_sandbox, args=(pod,))
    starting.start()
    time.sleep(seconds)
    first.send_signal(signal.SIGTERM)
    starting.join()
    assert first.wait(30) == 0
    eventually(
        lambda: any(not plugin.ended.is_set() for plugin in host.runtime.plugins),
        "the second one has joined the runtime",
    )
    eventually(lambda: len(host.specs()) == 2, "it is in the pod")
    assert {link_of(pod.space, name)["operstate"] for name in ("net1", "fast0")} == {"UP"}
    host.end(pod)
    assert_same(host.host, before)


class TestCommands:
    @pytest.fixture
    def pod(self, host: NicHost) -> Pod:
        host.start(cards=3)
        return run(host, prepared(host))

    def test_devices_shows_a_card_in_a_pod_with_its_claim(self, host: NicHost, pod: Pod) -> None:
        done = command(host, "devices", "-o", "json")
        claims = {one["name"]: [claim["name"] for claim in one["claims"]] for one in json.loads(done.stdout)}
        assert claims == {SHARE: ["p-share"], WHOLE: ["p-whole"], SPARE: []}
        (told,) = (one for one in json.loads(done.stdout) if one["name"] == WHOLE)
        published = host.devices()[WHOLE]
        assert {name: told[name] for name in published} == published

    def test_slices_topology_and_check_have_it_too(self, host: NicHost, pod: Pod) -> None:
        manifests = json.loads(command(host, "slices", "-o", "json").stdout)["items"]
        assert WHOLE in {device["name"] for one in manifests for device in one["spec"].get("devices", ())}
        assert json.loads(command(host, "topology", "-o", "json").stdout)["missing"] == []
        checks = json.loads(command(host, "check", "-o", "json").stdout)["checks"]
        seen = [one["seen"] for one in checks if one["name"] == "backend nic"]
        assert any(text.startswith("3 devices") for text in seen), seen

    def test_what_a_backend_warns_of_is_said_once(self, host: NicHost, pod: Pod) -> None:
        for name in ("devices", "slices"):
            lines = command(host, name).stderr.splitlines()
            (warning,) = (line for line in lines if "has no default route" in line)
            assert warning.startswith(f"dradriver: pool {POOL}: ")
        assert command(host, "check").stderr == ""


def command(host: NicHost, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `dradriver` on the node."""
    config = str(host.node.directory / "config.yaml")
    return subprocess.run(
        [
            "nsenter",
            f"--net={host.host.path}",
            sys.executable,
            "-m",
            "dradriver",
            *arguments,
            "--config",
            config,
        ],
        env={**os.environ, "NODE_NAME": daemons.NODE},
        capture_output=True,
        text=True,
        check=False,
    )
