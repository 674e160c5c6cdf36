"""A real daemon whose pods have network cards: killed at any time, and pods that do what they like or vanish."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from subprocess import Popen

import pytest

from dradriver_nic.netns import inside
from netns import Namespace, needs_namespaces
from netstate import assert_same, state_of
from nicclaims import link_of, needs_shares
from nicdaemons import NicHost, Pod, nic_host
from nriruntime import Refused
from waiting import eventually

pytestmark = [needs_namespaces, needs_shares]

log = logging.getLogger(__name__)

SHARE, WHOLE = "nic-link-share0", "nic-link-whole0"


@pytest.fixture
def host() -> Iterator[NicHost]:
    """A node with two cards."""
    with nic_host(["share0"], ["whole0"]) as made:
        made.host.run("addr add 10.80.0.5/24 dev whole0", "link set whole0 alias fabric")
        yield made
        assert "Traceback" not in made.node.log()


def both(host: NicHost) -> Pod:
    """Prepare a share and a card for a pod, in two claims."""
    configs = [
        {"interface": {"name": name, "addresses": [address]}}
        for name, address in (("net1", "10.9.0.2/24"), ("fast0", "10.8.0.2/24"))
    ]
    share = host.claim("share", f"{SHARE}:bandwidth=2G", pods=["p"], config=configs[0])
    whole = host.claim("whole", WHOLE, pods=["p"], config=configs[1])
    return host.pod("p", share, whole)


def names(space: Namespace) -> set[str]:
    """Return the names of the links in a namespace."""
    return inside(space.path, lambda: {name for _, name in socket.if_nameindex()})


def is_in(pod: Pod) -> bool:
    """Return whether a pod has both links, up."""
    return {"net1", "fast0"} <= names(pod.space) and all(
        link_of(pod.space, name)["flags"].count("UP") for name in ("net1", "fast0")
    )


def kill(process: Popen[bytes]) -> None:
    """Kill a daemon with SIGKILL."""
    process.kill()
    process.wait()


SOMETHING_THERE: dict[str, Callable[[NicHost, Pod], bool]] = {
    "as the share's link is made": lambda host, pod: names(pod.space) != {"lo"},
    "as the card leaves the host": lambda host, pod: "whole0" not in names(host.host),
    "as the card has its address": lambda host, pod: "10.8.0.2" in pod.space.call("ip", "addr"),
}


class TestKilledWhileAPodStarts:
    @pytest.mark.parametrize("lives", [True, False], ids=["the pod lives", "the pod is gone"])
    @pytest.mark.parametrize("moment", SOMETHING_THERE)
    def test_all_of_it_or_nothing(self, host: NicHost, moment: str, lives: bool) -> None:
        process = host.start(cards=2)
        before = state_of(host.host)
        pod = both(host)
        plugin = host.runtime.plugin()
        running = threading.Thread(target=host.run_sandbox, args=(pod,))
        running.start()
        end = time.monotonic() + 10
        while not SOMETHING_THERE[moment](host, pod) and time.monotonic() < end:
            pass
        kill(process)
        running.join()
        assert time.monotonic() < end
        was_cut = "RunPodSandbox" not in [method for method, _ in plugin.calls]
        log.info("killed %s: %s", moment, "in the middle" if was_cut else "after the answer")
        assert was_cut or host.specs()
        if not lives:
            # What removes the sandbox finds no daemon to tell.
            host.runtime.remove_pod(pod.sandbox)
        host.start(cards=2)
        if lives:
            eventually(lambda: len(host.specs()) == 2 and is_in(pod), "it is repaired")
            host.becomes("True", "InSandbox", *pod.claims)
            host.end(pod)
        else:
            for ref in pod.claims:
                assert host.unprepare(ref) is None
        assert_same(host.host, before)
        assert host.specs() == []
        assert names(pod.space) == {"lo"} if not lives else True


class TestNamespaceThatIsNotSeenHere:
    def test_the_pod_is_told_what_to_do(self, host: NicHost) -> None:
        """As where the runtime's directory of namespaces is not mounted where the daemon is."""
        host.start(cards=2)
        before = state_of(host.host)
        ref = host.claim("whole", WHOLE, pods=["p"])
        assert not isinstance(host.prepare(ref), str)
        with pytest.raises(Refused) as refused:
            host.runtime.run_pod("p", uid="p", network="/run/netns/nobodys")
        assert refused.value.message == (
            "dradriver: the pod's network namespace, which the container runtime says is '/run/netns/nobodys', cannot "
            "be opened: No such file or directory; where dradriver is in a container, the host's directory of it must "
            "be mounted there with mount propagation HostToContainer"
        )
        assert host.unprepare(ref) is None
        assert_same(host.host, before)


class TestNamespaceRemovedByForce:
    def test_while_the_daemon_lives(self, host: NicHost) -> None:
        """It holds the namespace open until the card has left it."""
        host.start(cards=2)
        before = state_of(host.host)
        pod = both(host)
        host.run(pod)
        pod.space.close()
        del pod.sandbox.linux.namespaces[:]
        host.runtime.stop_pod(pod.sandbox)
        assert "whole0" in names(host.host)
        host.runtime.remove_pod(pod.sandbox)
        for ref in pod.claims:
            assert host.unprepare(ref) is None
        assert_same(host.host, before)

    def test_while_no_daemon_lives(self, host: NicHost) -> None:
        """The cable between two namespaces dies with one of them; what was a share leaves nothing."""
        process = host.start(cards=2)
        host.host.run("addr del 10.80.0.5/24 dev whole0")
        pod = both(host)
        host.run(pod)
        kill(process)
        pod.space.close()
        eventually(lambda: "wire1" not in names(host.wire), "the cable is gone")
        host.runtime.remove_pod(pod.sandbox)
        host.start(cards=1)
        for ref in pod.claims:
            assert host.unprepare(ref) is None
        assert host.devices().keys() == {SHARE}
        assert names(host.host) >= {"lo", "share0"}
        assert not [name for name in names(host.host) if name.startswith("dra")]
        assert "clsact" not in host.host.call("tc", "qdisc")
        assert not list((host.node.directory / "run").rglob("*.json"))


class TestAPodsOwnDoing:
    def test_names_and_states_are_its_own_also_after_a_restart(self, host: NicHost) -> None:
        process = host.start(cards=2)
        before = state_of(host.host)
        pod = both(host)
        container = host.run(pod)
        pod.space.run(
            "link set net1 down",
            "link set net1 name mine",
            "link set fast0 down",
            "link set fast0 name whole0",
            "link set whole0 mtu 1280",
        )
        kill(process)
        host.start(cards=2)
        host.runtime.end(container)
        host.runtime.create(pod.sandbox, cdi=pod.cdi)
        for ref in pod.claims:
            host.kubelet.prepare("nic.dradriver.io", [ref])
        time.sleep(1.5)  # as long as it would take to bring them back and in again
        assert names(pod.space) == {"lo", "mine", "whole0"}
        assert not {"UP"} & set(link_of(pod.space, "whole0")["flags"])
        assert len(host.specs()) == 2
        host.end(pod)
        assert_same(host.host, before)
