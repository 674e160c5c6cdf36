"""Virtual functions: made on demand, and set up by their physical function."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from dradriver.backend import BackendError, HostStep, Observed, TransientError, UnavailableError, Work
from dradriver.host import PCI_DIR
from dradriver.model.text import plain
from dradriver_nic import messages as m
from dradriver_nic.actuate import sriov
from dradriver_nic.actuate.actuator import holder_of
from dradriver_nic.actuate.before import FAMILIES, addresses_on, is_given, read_before
from dradriver_nic.actuate.found import Seen, Which, find, links_in
from dradriver_nic.actuate.kept import refuse_of_host
from dradriver_nic.actuate.restore import Restorer
from dradriver_nic.actuate.rtnl import RefusedError, Rtnl, telling, why
from dradriver_nic.inventory import RdmaDevice, VFSettings, function_name
from dradriver_nic.netns import inside
from dradriver_nic.rdma import rdma_devices

if TYPE_CHECKING:
    from dradriver_nic.backend import NicBackend

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class CreateVFs(HostStep["NicBackend"]):
    """Have a card have `count` virtual functions for as long as claims use them; number `number` is for this one.

    device    name of the virtual function's device
    card      PCI address of the physical function, whose link is found by `which`
    address   PCI address that the virtual function will have
    rdma      whether it will have an RDMA device

    The kernel makes all at once, and goes from one count to another only over none: so only on a card that has none,
    and that nobody uses.
    """

    device: str
    card: str
    which: Which
    address: str
    number: int
    count: int
    claim: str
    index: int
    rdma: bool = False

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"make {self.count} virtual functions of {self.card}, of which {self.address} is used"

    @property
    def _setting(self) -> str:
        return f"{self.card}.virtual-functions"

    @property
    def _holder(self) -> str:
        return holder_of(self.claim, self.index)

    def apply(self, backend: "NicBackend", work: Work) -> None:
        """Make them, unless they are there, and wait for this one."""
        actuator = backend.actuator
        with telling(f"{self.device} cannot be made"), actuator.home() as home:
            actuator.settings.take(
                self._setting,
                self._holder,
                self.count,
                read=lambda: self._idle_count(backend, home),
                change=lambda count: self._change(backend, count),
            )
            card = self._card(home)
            if card:  # without its link up many have no virtual function pass anything
                actuator.take_up(home, card, function_name(self.card), self._holder)
            found = self._settled(backend, home, work.stop)
        work.record(found)

    def _idle_count(self, backend: "NicBackend", home: Rtnl) -> int:
        """Return how many there are. Raises BackendError for a card that is in use."""
        count = backend.actuator.sriov.count(self.card)
        if count:
            return count
        card = self._card(home)
        used = _used(home, card) if card else ""
        if used:
            raise BackendError(f"{self.card} is in use, so that no virtual functions are made on it: {used}")
        return 0

    def _change(self, backend: "NicBackend", count: int) -> None:
        now = backend.actuator.sriov.count(self.card)
        if now == count:
            return
        if now:
            raise BackendError(
                f"{self.card} has {now} virtual functions, {count} were published: they are not changed, as they may "
                "be in use"
            )
        backend.actuator.sriov.set_count(self.card, count)

    def _settled(self, backend: "NicBackend", home: Rtnl, stop: threading.Event) -> dict[str, Any]:
        """Wait until the virtual function is on the bus and its driver has made its link. Return what it is."""
        end = time.monotonic() + _SETTLE_SECONDS
        while True:
            missing, found = self._looked(backend, home)
            if not missing:
                return found
            if stop.wait(_POLL_SECONDS) or time.monotonic() > end:
                raise TransientError(f"{self.address}: {missing} yet")

    def _looked(self, backend: "NicBackend", home: Rtnl) -> tuple[str, dict[str, Any]]:
        """Return what is missing of the virtual function; and else what it is."""
        sriov = backend.actuator.sriov
        address = sriov.address(self.card, self.number)
        if address is None:
            return "it is not on the bus", {}
        if address != self.address:
            raise BackendError(
                f"{self.card}: virtual function {self.number} is {address}, {self.address} was published"
            )
        if sriov.driver(address).startswith("vfio"):
            return "", {"name": "", "mac": "", "rdma": []}
        seen = find(home, Which(bus="pci", device=address))
        if seen is None:
            return "its driver has made no network interface", {}
        rdma = rdma_devices(backend.host, address)
        if self.rdma and not all(one.char_devices for one in rdma or [RdmaDevice("")]):
            return "it has no RDMA device", {}
        return "", {"name": seen.link.name, "mac": seen.link.mac, "rdma": msgspec.to_builtins(rdma)}

    def revert(self, backend: "NicBackend", work: Work) -> None:
        """Remove them all, where this was the last one in use."""
        actuator = backend.actuator
        with telling(f"{self.card}: its virtual functions cannot be removed"), actuator.home() as home:
            actuator.let_down(home, self._card(home), function_name(self.card), self._holder)
            actuator.settings.leave(
                self._setting, self._holder, lambda before: self._remove(backend, home, before)
            )

    def _remove(self, backend: "NicBackend", home: Rtnl, before: int) -> bool:
        """Remove all virtual functions where there were none. Where somebody else uses one they stay."""
        if not backend.host.exists(f"{PCI_DIR}/{self.card}"):
            return True
        now = backend.actuator.sriov.count(self.card)
        if before or not now:
            return True
        used = self._used_by_others(backend, home, now)
        if used:
            log.warning("%s keeps its virtual functions: %s", self.card, used)
            return False
        backend.actuator.sriov.set_count(self.card, 0)
        return True

    def _used_by_others(self, backend: "NicBackend", home: Rtnl, count: int) -> str:
        here = {one.link.device: one for one in links_in(home) if one.link.device and not one.link.kind}
        for number in range(count):
            address = backend.actuator.sriov.address(self.card, number)
            driver = backend.actuator.sriov.driver(address) if address else ""
            if not address or not driver:
                continue
            if driver.startswith("vfio"):
                return f"{address} is bound to {plain(driver)}"
            if address not in here:
                return f"{address} is in another network namespace"
            used = _used(home, here[address])
            if used:
                return used
        return ""

    def observe(self, backend: "NicBackend", work: Work) -> Observed:
        """Look for this one."""
        there = backend.actuator.sriov.address(self.card, self.number) == self.address
        holds = backend.actuator.settings.holds(self._setting, self._holder)
        if not there:
            return Observed.UNDONE
        return Observed.DONE if holds else Observed.PARTIAL

    def _card(self, home: Rtnl) -> Seen | None:
        return find(home, self.which) if self.which.name else None


def _used(home: Rtnl, seen: Seen) -> str:
    """Return what the host uses a link for; empty for nothing."""
    name = plain(seen.link.name)
    if seen.link.master:
        return f"{name} is a port of another link"
    if any(is_given(body) for family in FAMILIES for body in addresses_on(home, family, seen.index)):
        return f"{name} has addresses"
    upper = next((one for one in links_in(home) if one.link.parent == seen.index), None)
    return f"{plain(upper.link.name)} is made on {name}" if upper else ""


@dataclass(frozen=True)
class SetVF(HostStep["NicBackend"]):
    """Have the physical function enforce something on a virtual one. What is None or empty stays as it is.

    card      PCI address of the physical function, whose link is found by `which`
    function  that of the virtual one
    vlan      with `qos` and `vlan_proto`; 0 takes the tag off
    min_rate, max_rate   in Mbit/s
    link_state           0 as the port, 1 up, 2 down
    """

    device: str
    card: str
    which: Which
    number: int
    function: str = ""
    mac: str = ""
    vlan: int | None = None
    qos: int = 0
    vlan_proto: int = 0x8100
    spoof_check: bool | None = None
    trust: bool | None = None
    link_state: int | None = None
    min_rate: int | None = None
    max_rate: int | None = None

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"set virtual function {self.number} of {self.card}: {', '.join(self._words())}"

    def _words(self) -> Iterator[str]:
        if self.mac:
            yield f"MAC address {self.mac}"
        if self.vlan is not None:
            yield f"VLAN {self.vlan}"
        for word, value in (
            ("spoof check", self.spoof_check),
            ("trust", self.trust),
            ("link state", self.link_state),
            ("least rate", self.min_rate),
            ("rate", self.max_rate),
        ):
            if value is not None:
                yield f"{word} {value}"

    def _wanted(self, now: VFSettings) -> VFSettings:
        given = {
            "spoof_check": self.spoof_check,
            "trust": self.trust,
            "link_state": self.link_state,
            "min_rate": self.min_rate,
            "max_rate": self.max_rate,
        }
        if self.vlan is not None:
            given |= {"vlan": self.vlan, "qos": self.qos, "vlan_proto": self.vlan_proto}
        known: Mapping[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(now, mac=self.mac or now.mac, **known)

    def apply(self, backend: "NicBackend", work: Work) -> None:
        """Record how it is, and set it."""
        with telling(f"{self.device} cannot be set up"), backend.actuator.home() as home:
            card = find(home, self.which)
            now = self._now(card)
            if card is None or now is None:
                raise BackendError(f"{self.device}: {self.card} does not show virtual function {self.number}")
            own = self._link(home)
            if own:
                refuse_of_host(home, own, self.device)
            if not work.facts.get("before"):
                own_mac = own.link.mac if own else ""
                work.record({"before": msgspec.to_builtins(now), "mac": own_mac})
            for what, body in sriov.changes(card.index, now, self._wanted(now)):
                with telling(f"{self.device}: {what} cannot be set by {plain(card.link.name)}"):
                    home.change(m.RTM_SETLINK, body)

    def revert(self, backend: "NicBackend", work: Work) -> None:
        """Set it back. What the driver does not take back is told in the log."""
        before = self._before(work)
        if before is None:
            return
        with telling(f"{self.device} cannot be set back"), backend.actuator.home() as home:
            card = find(home, self.which)
            now = self._now(card)
            if card is None or now is None:
                return
            for what, body in sriov.changes(card.index, now, self._back(before, now)):
                try:
                    home.change(m.RTM_SETLINK, body)
                except RefusedError as error:
                    log.warning("%s: %s is not restored: %s", self.device, what, why(error))
            if self.mac:
                mac = str(work.facts.get("mac") or "")
                inside(backend.actuator.namespace, lambda: self._restore_mac(home, mac))

    def _link(self, home: Rtnl) -> Seen | None:
        return find(home, Which(bus="pci", device=self.function)) if self.function else None

    def _restore_mac(self, home: Rtnl, mac: str) -> None:
        """Give the function's own link its address back, which it cannot take while the card says another."""
        seen = self._link(home)
        if seen is None or not mac or seen.link.mac == mac:
            return
        try:
            home.change(m.RTM_NEWLINK, m.link(seen.index, m.mac(mac)))
        except RefusedError:
            # Some drivers take an address only while the link is down, which loses routes and IPv6 addresses.
            now = read_before(home, seen)
            home.change(m.RTM_NEWLINK, m.up(seen.index, is_up=False))
            Restorer(home, replace(now, link=replace(now.link, mac=mac))).restore(seen)

    def _back(self, before: VFSettings, now: VFSettings) -> VFSettings:
        """Return the settings that are to be: as before where this step set something, else as they are."""
        tag = {"vlan": before.vlan, "qos": before.qos, "vlan_proto": before.vlan_proto}
        rates = {"min_rate": before.min_rate, "max_rate": before.max_rate}
        given: dict[str, Any] = {"mac": before.mac} if self.mac else {}
        given |= tag if self.vlan is not None else {}
        given |= rates if (self.min_rate, self.max_rate) != (None, None) else {}
        for name in ("spoof_check", "trust", "link_state"):
            if getattr(self, name) is not None:
                given[name] = getattr(before, name)
        return replace(now, **given)

    def observe(self, backend: "NicBackend", work: Work) -> Observed:
        """Look what is set."""
        if not work.facts.get("before"):
            return Observed.UNDONE
        try:
            with backend.actuator.home() as home:
                card = find(home, self.which)
                now = self._now(card)
        except OSError as error:
            raise UnavailableError(f"{self.device}: {why(error)}") from None
        if card is None or now is None:
            return Observed.UNDONE
        left = [*sriov.changes(card.index, now, self._wanted(now))]
        return Observed.PARTIAL if left else Observed.DONE

    def _now(self, card: Seen | None) -> VFSettings | None:
        return next((one for one in card.link.vfs if one.number == self.number), None) if card else None

    def _before(self, work: Work) -> VFSettings | None:
        recorded = work.facts.get("before")
        if not recorded or work.rebooted:
            return None
        try:
            return msgspec.convert(recorded, VFSettings)
        except ValueError as error:
            raise UnavailableError(f"how {self.device} was before was recorded otherwise: {error}") from None
