"""Claims that all want an address of one small pool at once, from a real daemon."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from daemons import NODE
from dradriver.model import ClaimRef
from netns import needs_namespaces
from nicclaims import needs_shares
from nicdaemons import NicHost, nic_host

pytestmark = [needs_namespaces, needs_shares]

SHARE = "nic-link-share0:bandwidth=1M"
POOL = {"cidr": "10.9.0.0/28", "reserved": ["10.9.0.1"]}
FREE = {f"10.9.0.{number}" for number in range(2, 15)}
CLAIMS = 64
USED_UP = "addressPool: no address of 10.9.0.0/28 is free: all 14 are given out or reserved"


def prepared(host: NicHost, claims: Sequence[ClaimRef]) -> list[ClaimRef]:
    """Prepare claims at once; return those that got an address, where all others are told that there is none."""
    with ThreadPoolExecutor(16) as workers:
        answers = dict(zip(claims, workers.map(host.prepare, claims), strict=True))
    assert {answer for answer in answers.values() if isinstance(answer, str)} == {USED_UP}
    return [ref for ref, answer in answers.items() if not isinstance(answer, str)]


def addresses(host: NicHost) -> list[str]:
    """Return the addresses that claims hold, as `dradriver claims` shows them."""
    shown = subprocess.run(
        [sys.executable, "-m", "dradriver", "claims", "-o", "json"],
        env={
            **os.environ,
            "NODE_NAME": NODE,
            "DRADRIVER_CONFIG": str(host.node.directory / "config.yaml"),
        },
        stdout=subprocess.PIPE,
        check=True,
    )
    units = [hold["unit"] for claim in json.loads(shown.stdout) for hold in claim["holds"]]
    return sorted(unit.partition("ip:")[2] for unit in units if "ip:" in unit)


def test_no_address_is_given_out_twice_and_all_come_back() -> None:
    with nic_host(["share0"]) as host:
        host.start(cards=1)
        config = {"addressPool": POOL}
        claims = [
            host.claim(f"claim-{number}", SHARE, pods=[f"pod-{number}"], config=config)
            for number in range(CLAIMS)
        ]
        had = prepared(host, claims)
        assert addresses(host) == sorted(FREE)
        some = had[::2]
        for ref in some:
            assert host.unprepare(ref) is None
        assert len(addresses(host)) == len(FREE) - len(some)
        had = [ref for ref in had if ref not in some]
        had += prepared(host, [ref for ref in claims if ref not in had])
        assert addresses(host) == sorted(FREE)
        for ref in had:
            assert host.unprepare(ref) is None
        assert addresses(host) == []
        assert "Traceback" not in host.node.log()
