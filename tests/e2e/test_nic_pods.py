"""A real daemon, a container runtime and pods: network cards go into pods and come back, whatever happens meanwhile."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import daemons
from netns import namespace, needs_namespaces
from netstate import State, assert_same, state_of
from nicclaims import cable, link_of, needs_shares
from nicdaemons import DRIVER, POOL, NicHost, Pod, nic_host
from nriruntime import Refused
from traffic import reaches

pytestmark = [needs_namespaces, needs_shares]

SHARE, WHOLE = "nic-link-share0", "nic-link-whole0"

EXAMPLE = Path(__file__).parents[2] / "examples/nic-interface"
TYPE = {"apiVersion", "kind"}

OFF = ", and cannot be: NRI is off in the configuration of dradriver (nri.enabled)"

SHARE_CONFIG: dict[str, Any] = {
    "interface": {"name": "net1", "addresses": ["10.9.0.2/24", "2001:db8:9::2/64"], "mtu": 1300},
}
WHOLE_CONFIG: dict[str, Any] = {
    "interface": {
        "name": "fast0",
        "addresses": ["10.8.0.2/24"],
        "mtu": 1400,
        "hardwareAddr": "02:00:00:00:00:42",
    },
    "routes": [{"destination": "10.77.0.0/16", "gateway": "10.8.0.1"}],
    "rules": [{"source": "10.8.0.0/24", "table": 1000, "priority": 500}],
}


@pytest.fixture
def idle() -> Iterator[NicHost]:
    """A node with two cards, whose daemon is yet to be started."""
    with nic_host(["share0"], ["whole0"]) as made:
        made.wire.run("addr add 10.9.0.1/24 dev wire0", "addr add 10.8.0.1/24 dev wire1")
        made.host.run("addr add 10.80.0.5/24 dev whole0", "link set whole0 alias fabric")
        yield made
        assert "Traceback" not in made.node.log()


@pytest.fixture
def host(idle: NicHost) -> NicHost:
    """The same with a daemon that runs."""
    idle.start(cards=2)
    return idle


@pytest.fixture
def before(host: NicHost) -> State:
    """How the host is before the first claim."""
    return state_of(host.host)


def both(host: NicHost, uid: str = "p") -> Pod:
    """Prepare a share and a card for a pod, in two claims."""
    share = host.claim(f"{uid}-share", f"{SHARE}:bandwidth=2G", pods=[uid], config=SHARE_CONFIG)
    whole = host.claim(f"{uid}-whole", WHOLE, pods=[uid], config=WHOLE_CONFIG)
    return host.pod(uid, share, whole)


def check_inside(host: NicHost, pod: Pod) -> None:
    """Assert that a pod has both links as they were configured, and that traffic flows over them."""
    share, whole = link_of(pod.space, "net1"), link_of(pod.space, "fast0")
    assert (share["mtu"], share["linkinfo"]["info_kind"]) == (1300, "macvlan")
    assert (whole["mtu"], whole["address"]) == (1400, "02:00:00:00:00:42")
    given = [(one["local"], one["prefixlen"]) for link in (share, whole) for one in link["addr_info"]]
    assert {("10.9.0.2", 24), ("2001:db8:9::2", 64), ("10.8.0.2", 24)} <= set(given)
    assert "10.77.0.0/16 via 10.8.0.1 dev fast0" in pod.space.call("ip", "route")
    assert "500:\tfrom 10.8.0.0/24 lookup 1000" in pod.space.call("ip", "rule")
    assert reaches(pod.space.path, host.wire.path, "10.9.0.1") == "10.9.0.2"
    assert reaches(pod.space.path, host.wire.path, "10.8.0.1") == "10.8.0.2"


def told_by_check(node: daemons.Node, *arguments: str) -> dict[str, str]:
    """Return what `dradriver check` says of NRI."""
    config = str(node.directory / "config.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "dradriver", "check", "--config", config, *arguments, "-o", "json"],
        env={**os.environ, "NODE_NAME": daemons.NODE},
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, str] = next(one for one in json.loads(done.stdout)["checks"] if one["name"] == "NRI")
    return found


def test_links_are_in_the_pod_as_configured_and_the_host_is_as_before_once_it_is_gone(
    host: NicHost, before: State
) -> None:
    pod = both(host)
    assert host.specs() == [], "no container can be made before the sandbox is there"
    container = host.run(pod)
    check_inside(host, pod)
    assert "whole0" not in host.host.call("ip", "link")
    assert len(host.devices()) == 2, "a card in a pod stays published"
    host.runtime.end(container)
    host.end(pod)
    assert_same(host.host, before)
    assert host.specs() == []
    again = both(host, "q")
    host.run(again)
    check_inside(host, again)
    host.end(again)
    assert_same(host.host, before)


def test_the_example_works_on_real_links(host: NicHost, before: State) -> None:
    documents = yaml.safe_load_all((EXAMPLE / "configured.yaml").read_text())
    (entry,) = next(iter(documents))["spec"]["spec"]["devices"]["config"]
    fields = {name: value for name, value in entry["opaque"]["parameters"].items() if name not in TYPE}
    pod = host.pod("p", host.claim("c", WHOLE, pods=["p"], config=fields))
    host.run(pod)
    link = link_of(pod.space, "fabric0")
    assert (link["mtu"], link["operstate"]) == (9000, "UP")
    assert "10.10.0.0/16 via 10.9.0.1 dev fabric0" in pod.space.call("ip", "route")
    host.end(pod)
    assert_same(host.host, before)


class TestGate:
    def test_no_container_is_made_before_the_claim_is_in_its_pod(self, host: NicHost) -> None:
        pod = both(host)
        stranger = host.pod("stranger")
        host.run_sandbox(stranger)
        with pytest.raises(Refused, match=r"claim default/p-share .* is in no pod"):
            host.runtime.create(stranger.sandbox, cdi=pod.cdi)
        assert host.specs() == []
        host.run(pod)
        with pytest.raises(Refused, match="is in another pod"):
            host.runtime.create(stranger.sandbox, cdi=pod.cdi)
        host.end(pod)

    def test_a_failure_takes_all_back_and_says_why(self, host: NicHost, before: State) -> None:
        pod = both(host)
        pod.space.run("link add fast0 type bridge")
        with pytest.raises(
            Refused, match=r"whole0: the pod has another network interface fast0: set interface\.name"
        ):
            host.run_sandbox(pod)
        assert host.specs() == []
        assert "net1" not in pod.space.call("ip", "link"), "the claim that fitted is taken back too"
        pod.space.run("link del fast0")
        host.run(pod)
        check_inside(host, pod)
        host.end(pod)
        assert_same(host.host, before)

    def test_a_pod_of_the_host_network_is_refused(self, host: NicHost, before: State) -> None:
        pod = both(host)
        with pytest.raises(
            Refused, match=r"claim default/p-share .*needs a pod with a network of its own, .*hostNetwork"
        ):
            host.runtime.run_pod("p", uid="p", network="")
        with pytest.raises(Refused, match="network namespace is the host's"):
            host.runtime.run_pod("p", uid="p", network=str(host.host.path))
        for ref in pod.claims:
            assert host.unprepare(ref) is None
        assert_same(host.host, before)

    def test_a_second_pod_of_a_claim_is_refused_until_the_first_is_gone(
        self, host: NicHost, before: State
    ) -> None:
        ref = host.claim("exclusive", WHOLE, pods=["p", "q"], config=WHOLE_CONFIG)
        first, second = host.pod("p", ref), host.pod("q", ref)
        assert first.cdi == second.cdi
        host.run(first)
        with pytest.raises(Refused, match=r"is in another pod \(uid 'p'\): one pod at a time can have it"):
            host.run_sandbox(second)
        assert link_of(first.space, "fast0")["operstate"] == "UP"
        host.runtime.stop_pod(first.sandbox)
        host.run(second)
        assert link_of(second.space, "fast0")["operstate"] == "UP"
        host.end(second)
        assert_same(host.host, before)
        refused = host.prepare(host.claim("late", WHOLE, pods=["r"]))
        assert not isinstance(refused, str)


class TestStatus:
    def test_a_device_is_ready_while_it_is_in_its_pod(self, host: NicHost) -> None:
        ref = host.claim("c", WHOLE, pods=["p"], config=WHOLE_CONFIG)
        pod = host.pod("p", ref)
        host.becomes("False", "WaitingForSandbox", ref)
        assert "networkData" not in host.told(ref)[WHOLE]
        host.run(pod)
        host.becomes("True", "InSandbox", ref)
        entry = host.told(ref)[WHOLE]
        assert (entry["driver"], entry["pool"]) == (DRIVER, POOL)
        assert entry["networkData"] == {
            "interfaceName": "fast0",
            "hardwareAddress": "02:00:00:00:00:42",
            "ips": ["10.8.0.2/24"],
        }
        host.runtime.stop_pod(pod.sandbox)
        host.becomes("False", "WaitingForSandbox", ref)
        assert len(writes(host)) == 3
        host.end(pod)

    def test_a_pod_that_starts_at_once_costs_one_write_a_claim_and_a_restart_none(
        self, idle: NicHost
    ) -> None:
        process = idle.start(cards=2)
        pod = both(idle)
        idle.run_sandbox(pod)
        idle.becomes("True", "InSandbox", *pod.claims)
        assert len(writes(idle)) == 2
        process.kill()
        process.wait()
        idle.start(cards=2)
        for ref in pod.claims:
            assert not isinstance(idle.prepare(ref), str)
        time.sleep(1.0)
        assert len(writes(idle)) == 2
        idle.end(pod)
        time.sleep(3.0)
        assert len(writes(idle)) == 2, "what is unprepared at once is not told of its way out"


def writes(host: NicHost) -> list[Any]:
    """Return the requests that wrote a claim's status."""
    return host.server.requests.matching(verb="apply", kind="ResourceClaim")


class TestWithoutARuntime:
    def test_switched_off(self, idle: NicHost) -> None:
        idle.start(cards=2, enabled=False)
        before = state_of(idle.host)
        for name, device in (("share", f"{SHARE}:bandwidth=2G"), ("whole", WHOLE)):
            told = idle.prepare(idle.claim(name, device, pods=["p"]))
            assert str(told).startswith("the container runtime must be asked to ")
            assert str(told).endswith(OFF)
        said = told_by_check(idle.node)
        assert (said["status"], said["seen"]) == ("warning", "off in the configuration (nri.enabled)")
        assert said["mend"].startswith("claims for network cards are refused")
        assert_same(idle.host, before)

    def test_a_daemon_by_itself(self) -> None:
        """With `--dir`: claims are files, and the small kubelet knows of no pods."""
        with namespace() as host, namespace() as wire, daemons.node() as node:
            cable(host, "whole0", wire)
            config = f"""
drivers: [{{name: {DRIVER}, backends: [nic]}}]
backends: {{nic: {{virtualLinks: [veth], runDirectory: {node.directory}/run}}}}
"""
            node.start(config, within=["nsenter", f"--net={host.path}"])
            node.ready(slices=1)
            claim = node.claim("c", [{"request": "r", "driver": DRIVER, "pool": POOL, "device": WHOLE}])
            with daemons.kubelet(node) as kubelet:
                (told,) = kubelet.prepare(DRIVER, [claim]).values()
            assert str(told) == (
                "the container runtime must be asked to move whole0 (nic-link-whole0) into the pod, and cannot be: "
                "this daemon joins none, since it keeps everything below one directory (--dir) or has a fake node; "
                "nri.enabled: true joins one"
            )
            assert told_by_check(node, "--dir", str(node.directory))["status"] == "warning"
