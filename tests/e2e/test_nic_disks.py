"""A real daemon whose run directory, or whose state, is on a disk that is full or read-only, while pods come and go."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from netns import needs_namespaces
from netstate import assert_same, state_of
from nicclaims import needs_shares
from nicdaemons import NicHost, Pod, nic_host
from nriruntime import Refused
from waiting import eventually

pytestmark = [needs_namespaces, needs_shares]

SHARE, WHOLE = "nic-link-share0", "nic-link-whole0"


@contextmanager
def disk(directory: Path) -> Iterator[Path]:
    """Give a directory on a file system of its own."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(directory)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@contextmanager
def harmed(directory: Path, harm: str) -> Iterator[None]:
    """Have a disk full, or read-only, meanwhile."""
    filler = directory / "filler"
    if harm == "full":
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
    try:
        yield
    finally:
        if harm == "full":
            filler.unlink()
        else:
            subprocess.run(["mount", "-o", "remount,rw", str(directory)], check=True)


@pytest.fixture
def host() -> Iterator[NicHost]:
    with nic_host(["share0"], ["whole0"]) as made:
        made.host.run("addr add 10.80.0.5/24 dev whole0")
        with disk(made.node.directory / "run"), disk(made.node.directory / "state"):
            yield made
            for process in made.node.processes:
                process.terminate()
                process.wait()
        assert "Traceback" not in made.node.log()


def both(host: NicHost) -> Pod:
    """Prepare a share and a card for a pod, in two claims."""
    share = host.claim("share", f"{SHARE}:bandwidth=2G", pods=["p"])
    whole = host.claim("whole", WHOLE, pods=["p"], config={"interface": {"name": "fast0"}})
    return host.pod("p", share, whole)


HARMS = [("run", "full"), ("run", "read-only"), ("state", "full")]
"""A disk with files that are open for writing is not made read-only by anybody."""

REASONS = {"full": "(No space left on device|disk is full)", "read-only": "Read-only file system"}


@pytest.mark.parametrize(("place", "harm"), HARMS)
class TestDisks:
    def test_at_prepare(self, host: NicHost, place: str, harm: str) -> None:
        host.start(cards=2)
        before = state_of(host.host)
        ref = host.claim("share", f"{SHARE}:bandwidth=2G", pods=["p"])
        with harmed(host.node.directory / place, harm):
            told = str(host.prepare(ref))
            assert re.search(REASONS[harm], told), told
            assert str(host.node.directory / place) in told
            assert_same(host.host, before)
        assert not isinstance(host.prepare(ref), str)
        assert host.unprepare(ref) is None
        assert_same(host.host, before)

    def test_at_the_start_of_a_pod(self, host: NicHost, place: str, harm: str) -> None:
        """The run directory is not written then."""
        host.start(cards=2)
        before = state_of(host.host)
        pod = both(host)
        prepared = state_of(host.host)
        with harmed(host.node.directory / place, harm):
            if place == "run":
                host.run(pod)
            else:
                with pytest.raises(Refused, match=REASONS[harm]):
                    host.run_sandbox(pod)
                assert_same(host.host, prepared)
                host.runtime.remove_pod(pod.sandbox)
        if place != "run":
            host.run(pod)
        host.end(pod)
        assert_same(host.host, before)

    def test_at_the_stop_of_a_pod(self, host: NicHost, place: str, harm: str) -> None:
        """What is in the pod comes back whatever can be written; what is held is let go once it can be."""
        host.start(cards=2)
        before = state_of(host.host)
        pod = both(host)
        host.run(pod)
        with harmed(host.node.directory / place, harm):
            host.runtime.stop_pod(pod.sandbox)
            assert "whole0" in host.host.call("ip", "link")
            host.runtime.remove_pod(pod.sandbox)
            told = [host.unprepare(ref) for ref in pod.claims]
            assert all(one is None or re.search(REASONS[harm], one) for one in told), told
        pod.space.close()
        for ref in pod.claims:
            eventually(lambda ref=ref: host.unprepare(ref) is None, "it is undone")  # type: ignore[misc]
        assert_same(host.host, before)
        assert host.specs() == []
