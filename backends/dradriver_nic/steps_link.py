"""A network interface moved into the pod as it is, and back."""

import contextlib
import errno
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dradriver.backend import BackendError, HostStep, Observed, Phase, TransientError, UnavailableError, Work
from dradriver.model.text import plain
from dradriver_nic import messages as m
from dradriver_nic.actuate.before import (
    NUMBERS,
    Before,
    decoded,
    encoded,
    leads_over,
    read_before,
)
from dradriver_nic.actuate.features import Features, by_kernel_names
from dradriver_nic.actuate.found import Seen, Which, by_index, find, links_in, named
from dradriver_nic.actuate.inpod import PodLink, configure, deconfigure
from dradriver_nic.actuate.kept import refuse_of_host
from dradriver_nic.actuate.podspace import NOTED, PodSpace, pod_of_facts, pod_with_links
from dradriver_nic.actuate.restore import Restorer, route_request
from dradriver_nic.actuate.rtnl import RefusedError, Rtnl, naming, telling, why
from dradriver_nic.away import Moved
from dradriver_nic.inventory import Link
from dradriver_nic.netns import inside

if TYPE_CHECKING:
    from dradriver_nic.backend import NicBackend

log = logging.getLogger(__name__)

_ANY_NAME = "nic%d"
"""What a link is called that comes back while another one has its name; the kernel puts in a number that is free."""


@dataclass(frozen=True)
class MoveLink(HostStep["NicBackend"]):
    """Move a network interface into the pod's network namespace, with what it is to have there.

    device     name of the device that is in the pod then
    which      by what it is found on the host
    address    PCI address of its function; empty for a link without one
    index      number of the device in the claim
    link       as it was when it was probed; None where it was yet to be made
    mac_elsewhere   whether another step restores its MAC address

    What it was before is recorded before anything is changed. Hardware comes back to the host by itself when the
    namespace dies, under the name that it has then, with nothing else of what it had.
    """

    phase = Phase.SANDBOX

    device: str
    which: Which
    wanted: PodLink = field(default_factory=PodLink)
    address: str = ""
    index: int = 0
    link: Link | None = None
    mac_elsewhere: bool = False

    def describe(self) -> str:
        """Return what is done, for people."""
        as_what = f" as {plain(self.wanted.name)}" if self.wanted.name else ""
        name = plain(self.which.name or self.device)
        return f"move {name} ({self.device}) into the pod{as_what}{self.wanted.words()}"

    # --- into the pod

    def apply(self, backend: "NicBackend", work: Work) -> None:
        """Move it, and configure it there."""
        actuator = backend.actuator
        with pod_with_links(work.netns, actuator.namespace) as pod, telling(f"{self.device} cannot be moved"):
            with actuator.home() as home:
                seen = self._at_home(backend, work, home)
                if seen:
                    refuse_of_host(home, seen, self.device)
                    as_it_is = self._record(backend, work, home, seen, pod)
                    _note(backend, self.device, as_it_is)
                    self._move(home, seen, as_it_is, pod)
            before = decoded(work)
            if before is None:
                raise BackendError(f"{self.device}: its network interface is not on the host")
            if not seen:
                self._refuse_elsewhere(backend, work, pod)
            inside(pod.path, lambda: self._configure(work, before))

    def _record(self, backend: "NicBackend", work: Work, home: Rtnl, seen: Seen, pod: PodSpace) -> Before:
        """Record how the link is, unless that is known from before, and where it goes."""
        known = decoded(work)
        if known and pod.is_noted(work.facts):
            if work.facts.get("number"):  # it was there once, and is to get another one
                work.record({"number": None})
            return known
        namespace = backend.actuator.namespace
        before = known
        if before is None:
            before = inside(namespace, lambda: self._read(home, seen))
        work.record({"before": encoded(before), "number": None, **pod.noted(work.netns)})
        return before

    def _read(self, home: Rtnl, seen: Seen) -> Before:
        """Return how the link is, in a thread that is on the host."""
        before = read_before(home, seen, self.link)
        if self.link is None:
            before = replace(before, link=replace(before.link, function=self.address or None))
        return self._with_features(before)

    def _with_features(self, before: Before) -> Before:
        """Return it with the features that are to be changed, as they are now."""
        wanted, name = self.wanted, before.link.name
        if not wanted.features and not wanted.private_flags:
            return before
        with Features() as features, naming(self.device):
            now = features.features(name) if wanted.features else {}
            flags = features.private_flags(name) if wanted.private_flags else {}
            kernel = by_kernel_names(dict(wanted.features), now)
        return replace(
            before,
            features={feature: now[feature] for feature in kernel},
            private_flags={flag: on for flag, on in flags.items() if flag in dict(wanted.private_flags)},
        )

    def _move(self, home: Rtnl, seen: Seen, before: Before, pod: PodSpace) -> None:
        """Move a link from the host with all that one message can say."""
        wanted = self.wanted
        name = wanted.name or before.link.name
        with pod.rtnl() as rtnl:
            # The kernel would not have a link called so twice, nor two links.
            clashing = [one for one in seen.link.altnames if one == name or named(rtnl, one)]
        if clashing:
            home.change(m.RTM_DELLINKPROP, m.link(seen.index, m.altnames(*clashing)))
        given = [m.u32(m.IFLA_NET_NS_FD, pod.fd), m.text(m.IFLA_IFNAME, name)]
        if wanted.mtu:
            given.append(m.u32(m.IFLA_MTU, wanted.mtu))
        if wanted.mac:
            given.append(m.mac(wanted.mac))
        given += [m.u32(NUMBERS[size], value) for size, value in wanted.sizes]
        with telling(f"{plain(before.link.name)} cannot be moved into the pod as {plain(name)}"):
            try:
                home.change(m.RTM_NEWLINK, m.link(seen.index, *given))
            except RefusedError as error:
                if error.errno != errno.EEXIST:
                    raise
                raise BackendError(
                    f"{self.device}: the pod has another network interface {plain(name)}: set interface.name"
                ) from None

    def _refuse_elsewhere(self, backend: "NicBackend", work: Work, pod: PodSpace) -> None:
        """Refuse a second pod while the link is in the first one's network namespace."""
        if not work.facts.get("netns") or pod.is_noted(work.facts):
            return
        first = pod_of_facts(work, backend.host)
        if first is None:
            raise TransientError(
                f"{self.device}: its network interface has not come back from the last pod yet"
            )
        first.close()
        raise BackendError(
            f"{self.device} is in another pod that uses the claim: one pod at a time can have it"
        )

    def _configure(self, work: Work, before: Before) -> None:
        """Configure the link, in a thread that is in the pod's namespace."""
        with Rtnl() as rtnl:
            seen = self._seen_inside(rtnl, work, before)
            if seen is None:
                raise BackendError(
                    f"{self.device}: its network interface is neither on the host nor in the pod"
                )
            if not self.which.device and work.facts.get("number") != seen.index:
                work.record({"number": seen.index})
            seen = self._completed(rtnl, seen, before)
            with naming(self.device):
                configure(rtnl, seen, self.wanted, self._inherited(before, seen.index))

    def _completed(self, rtnl: Rtnl, seen: Seen, before: Before) -> Seen:
        """Give a link what the message that moved it may not have given: it may have been cut off in between."""
        wanted, given = self.wanted, []
        name = wanted.name or before.link.name
        if seen.link.name != name:
            given.append(m.text(m.IFLA_IFNAME, name))
        if wanted.mtu and seen.link.mtu != wanted.mtu:
            given.append(m.u32(m.IFLA_MTU, wanted.mtu))
        if wanted.mac and seen.link.mac != wanted.mac:
            given.append(m.mac(wanted.mac))
        if not given:
            return seen
        if seen.link.up:
            rtnl.change(m.RTM_NEWLINK, m.up(seen.index, is_up=False))
        rtnl.change(m.RTM_NEWLINK, m.link(seen.index, *given))
        return by_index(rtnl, seen.index) or seen

    def _inherited(self, before: Before, index: int) -> Iterator[bytes]:
        """Yield the routes that come along: those of the main table that somebody gave, over this link alone."""
        if not self.wanted.keep_routes:
            return
        for body in map(bytes.fromhex, before.routes):
            _, _, _, _, table, protocol, _, kind, _ = m.ROUTE.unpack_from(body)
            if table != m.RT_TABLE_MAIN or protocol == m.RTPROT_KERNEL or kind != m.RTN_UNICAST:
                continue
            if leads_over(body, before.link.index):
                yield route_request(body, before.link.index, index)

    # --- back

    def revert(self, backend: "NicBackend", work: Work) -> None:
        """Bring it back, from wherever it is, and make it what it was."""
        before = decoded(work)
        if before is None:
            backend.away.discard(self.device)
            return
        with telling(f"{self.device} cannot be brought back"):
            with backend.actuator.home() as home:
                seen = self._at_home(backend, work, home)
                if seen is None:
                    self._fetch(backend, work, before)
                    seen = self._at_home(backend, work, home)
                if seen is None and self._is_expected(backend):
                    raise TransientError(f"{self.device}: its network interface has not come back yet")
                if seen:
                    if self.mac_elsewhere:
                        before = replace(before, link=replace(before.link, mac=""))
                    restorer = Restorer(home, before)
                    inside(backend.actuator.namespace, lambda: restorer.restore(seen))
            forget(work, "before", "number", *NOTED)
        backend.away.discard(self.device)

    def _fetch(self, backend: "NicBackend", work: Work, before: Before) -> None:
        """Move the link from the pod's network namespace to the host's, where it is there still."""
        pod = pod_of_facts(work, backend.host)
        if pod is None:
            return
        with pod, PodSpace(backend.actuator.home_file()) as home, pod.rtnl() as rtnl:
            deconfigure(rtnl, self.wanted)
            seen = self._seen_inside(rtnl, work, before)
            if seen:
                _bring_home(rtnl, seen, before, home.fd)

    def _is_expected(self, backend: "NicBackend") -> bool:
        """Return whether the kernel will bring the link back: its hardware is there, and has a driver for networks."""
        if not self.which.device:
            return False
        if self.address:
            driver = backend.actuator.sriov.driver(self.address)
            return bool(driver) and not driver.startswith("vfio")
        return backend.host.exists(f"sys/bus/{self.which.bus}/devices/{self.which.device}/driver")

    def _at_home(self, backend: "NicBackend", work: Work, home: Rtnl) -> Seen | None:
        """Return the link where it is on the host; another one that has its name meanwhile is not it.

        Without hardware it has its number, and where that went to another one, the name of before, the one that it had
        in the pod, or a free one. These count only where it is not in the pod still, and with a MAC address that it can
        have.
        """
        before = decoded(work)
        if before is None or self.which.device:
            return find(home, self.which)
        seen = by_index(home, before.link.index)
        if seen and self._is_like(seen, before):
            return seen
        pod = pod_of_facts(work, backend.host)
        if pod:
            with pod, pod.rtnl() as rtnl:
                if self._seen_inside(rtnl, work, before):
                    return None
        names = (before.link.name, self.wanted.name, f"dev{before.link.index}")
        macs = self._macs(before)
        candidates = (named(home, name) for name in names if name)
        likely = (one for one in candidates if one and self._is_like(one, before))
        return next((one for one in likely if not macs or one.link.mac in macs), None)

    def _is_like(self, seen: Seen, before: Before) -> bool:
        return seen.link.kind == self.which.kind and seen.base == before.base

    # --- looking

    def observe(self, backend: "NicBackend", work: Work) -> Observed:
        """Look where it is.

        What becomes of it there, its name or whether it is up, is the pod's own affair.
        """
        try:
            before = decoded(work)
            if before is None:
                return Observed.UNDONE
            return self._observed(backend, work, before)
        except OSError as error:
            raise UnavailableError(f"{self.device}: {why(error)}") from None

    def _observed(self, backend: "NicBackend", work: Work, before: Before) -> Observed:
        with backend.actuator.home() as home:
            if self._at_home(backend, work, home):
                return Observed.UNDONE
        pod = pod_of_facts(work, backend.host)
        if pod is None:
            return Observed.PARTIAL if self._is_expected(backend) else Observed.UNDONE
        with pod, pod.rtnl() as rtnl:
            seen = self._seen_inside(rtnl, work, before)
        return Observed.PARTIAL if seen is None else Observed.DONE

    def recall(self, backend: "NicBackend", work: Work) -> bool:
        """Note that it is in a pod, or was about to be, so that it stays published."""
        before = decoded(work)
        return before is not None and _note(backend, self.device, before)

    def _seen_inside(self, rtnl: Rtnl, work: Work, before: Before) -> Seen | None:
        number, macs = int(work.facts.get("number") or 0), self._macs(before)
        return next(
            (
                one
                for one in links_in(rtnl)
                if self.which.fits_inside(one, before.base, number=number, macs=macs, name=before.link.name)
            ),
            None,
        )

    def _macs(self, before: Before) -> frozenset[str]:
        """Return the MAC addresses that it has on the host, and that it is given; none for kinds without one."""
        mac = before.link.mac
        return frozenset({mac, self.wanted.mac or mac} if mac.strip("0:") else ())


def _bring_home(rtnl: Rtnl, seen: Seen, before: Before, fd: int) -> None:
    """Move a link to the host, under its number and name where they are free; else under others."""
    rtnl.change(m.RTM_NEWLINK, m.up(seen.index, is_up=False))
    if not before.link.device and before.link.mac and seen.link.mac != before.link.mac:
        # By its address it is known on the host where number and name are another link's by now.
        with contextlib.suppress(RefusedError):
            rtnl.change(m.RTM_NEWLINK, m.link(seen.index, m.mac(before.link.mac)))
    if seen.link.master:
        rtnl.change(m.RTM_NEWLINK, m.link(seen.index, m.u32(m.IFLA_MASTER, 0)))
    # One that a link of the host has would keep it from coming back; they are restored there.
    if seen.link.altnames:
        rtnl.change(m.RTM_DELLINKPROP, m.link(seen.index, m.altnames(*seen.link.altnames)))
    where = m.u32(m.IFLA_NET_NS_FD, fd)
    number = m.u32(m.IFLA_NEW_IFINDEX, before.link.index)
    name, free = m.text(m.IFLA_IFNAME, before.link.name), m.text(m.IFLA_IFNAME, _ANY_NAME)
    for given in ((where, number, name), (where, number, free), (where, name), (where, free)):
        try:
            rtnl.change(m.RTM_NEWLINK, m.link(seen.index, *given))
        except RefusedError as error:
            if by_index(rtnl, seen.index) is None:
                return  # it went, and another name was refused there
            refused = error
        else:
            return
    raise refused


def forget(work: Work, *facts: str) -> None:
    """Have the journal forget what holds no more. A full disk does not stop the way back."""
    try:
        work.record(dict.fromkeys(facts))
    except Exception as error:  # noqa: BLE001 - whatever the engine's journal fails with
        log.warning("what was undone is not recorded: %s", error)


def _note(backend: "NicBackend", device: str, before: Before) -> bool:
    """Note that a link is in a pod, or about to be; return whether that is new."""
    moved = backend.away.moved.get(device, Moved())
    return backend.away.add(device, replace(moved, link=before.link))
