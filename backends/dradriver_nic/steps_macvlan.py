"""Shares of a card: a macvlan link of the pod's own, and limits of what goes over it."""

import errno
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dradriver.backend import BackendError, HostStep, Observed, Phase, UnavailableError, Work
from dradriver.model.text import plain
from dradriver_nic import messages as m
from dradriver_nic.actuate import shaping
from dradriver_nic.actuate.actuator import holder_of
from dradriver_nic.actuate.before import NUMBERS
from dradriver_nic.actuate.found import Seen, Which, by_index, find, links_in, named
from dradriver_nic.actuate.inpod import PodLink, configure, deconfigure
from dradriver_nic.actuate.kept import refuse_of_host
from dradriver_nic.actuate.podspace import NOTED, PodSpace, pod_of_facts, pod_with_links
from dradriver_nic.actuate.rtnl import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RefusedError,
    Rtnl,
    naming,
    telling,
    why,
)
from dradriver_nic.netns import inside
from dradriver_nic.steps_link import forget

if TYPE_CHECKING:
    from dradriver_nic.backend import NicBackend

_MACVLAN = "macvlan"
_IFB = "ifb"
_DIRECTIONS = (shaping.EGRESS, shaping.INGRESS)


@dataclass(frozen=True)
class ShareCard(HostStep["NicBackend"]):
    """Have a card up, and limit what device `index` of a claim sends over it, and what it receives, in bits a second.

    mac   of the link that the pod will have; empty for all that goes over the card

    The limits are made at Prepare, before the link: it is never there without them. They are of the MAC address that
    the link's packets have, since the kernel forgets which link of a card they come from. So a pod that may send raw
    packets (NET_RAW) can send some past its limit, under another address; what it receives is limited all the same.
    """

    device: str
    which: Which
    claim: str
    index: int
    bandwidth: int
    mac: str = ""

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"limit a share of {plain(self.which.name)} ({self.device}) to {self.bandwidth} bits a second"

    @property
    def _holder(self) -> str:
        return holder_of(self.claim, self.index)

    @property
    def _digest(self) -> str:
        return hashlib.sha256(self._holder.encode()).hexdigest()

    @property
    def _tag(self) -> int:
        """Number of its filters, by which they are told from others; never 0."""
        return int(self._digest[:8], 16) | 1

    @property
    def _clsact(self) -> str:
        """Name of the setting whether filters can hang on the card."""
        return f"{self.device}.{shaping.CLSACT}"

    def _queue(self, parent: int) -> str:
        """Return the name of the device that packets wait in front of."""
        return f"dra{self._digest[:10]}{'o' if parent == shaping.EGRESS else 'i'}"

    def apply(self, backend: "NicBackend", work: Work) -> None:
        """Set the card up, make the queues, and have its packets take that way."""
        actuator = backend.actuator
        with telling(f"{self.device} cannot be shared"), actuator.home() as home:
            card = self._card(home)
            if card is None:
                raise BackendError(f"{self.device}: its network interface is not on the host")
            index = card.index
            actuator.take_up(home, card, self.device, self._holder)
            was_there = actuator.settings.take(
                self._clsact,
                self._holder,
                True,
                read=lambda: shaping.has_others_clsact(home, index),
                change=lambda _: self._hang(home, index),
            )
            if not was_there and not work.facts.get("hung"):
                work.record({"hung": True})
            queues = {parent: self._make_queue(home, parent) for parent in _DIRECTIONS}
            with actuator.lock(self.device):
                there = {one.parent for one in shaping.filters(home, index) if one.tag == self._tag}
                for parent in set(_DIRECTIONS) - there:
                    body = shaping.redirection(index, parent, self.mac, queues[parent], self._tag)
                    home.change(shaping.RTM_NEWTFILTER, body, NLM_F_CREATE | NLM_F_EXCL)

    def _hang(self, home: Rtnl, index: int) -> None:
        if not shaping.has_clsact(home, index):
            home.change(shaping.RTM_NEWQDISC, shaping.clsact(index), NLM_F_CREATE | NLM_F_EXCL)

    def _make_queue(self, home: Rtnl, parent: int) -> int:
        """Make the device that packets wait in front of; return its number."""
        name = self._queue(parent)
        seen = named(home, name)
        if seen is None:
            body = m.link(0, m.text(m.IFLA_IFNAME, name), m.kind_of_link(_IFB))
            home.change(m.RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL)
            seen = named(home, name)
        if seen is None or seen.link.kind != _IFB:
            raise BackendError(f"{self.device}: there is another network interface {name}")
        bucket = shaping.token_bucket(seen.index, self.bandwidth)
        home.change(shaping.RTM_NEWQDISC, bucket, NLM_F_CREATE | NLM_F_REPLACE)
        home.change(m.RTM_NEWLINK, m.up(seen.index))
        return seen.index

    def revert(self, backend: "NicBackend", work: Work) -> None:
        """Take filters and queues away, and leave the card as it was where nobody else shares it."""
        actuator = backend.actuator
        with telling(f"{self.device}: its limits cannot be taken away"), actuator.home() as home:
            card = self._card(home)
            if card:
                with actuator.lock(self.device):
                    shaping.remove_filters(home, card.index, self._tag)
            for parent in _DIRECTIONS:
                queue = named(home, self._queue(parent))
                if queue and queue.link.kind == _IFB:
                    home.change(m.RTM_DELLINK, m.link(queue.index))
            known = actuator.settings.leave(
                self._clsact, self._holder, lambda before: _unhang(home, card, before)
            )
            if not known and work.facts.get("hung") and not work.rebooted:
                # The run directory was removed meanwhile.
                _unhang(home, card, before=False)
            actuator.let_down(home, card, self.device, self._holder)

    def observe(self, backend: "NicBackend", work: Work) -> Observed:
        """Look for the filters and the queues."""
        try:
            with backend.actuator.home() as home:
                card = self._card(home)
                found = [*shaping.filters(home, card.index)] if card else []
                parts = [one.parent for one in found if one.tag == self._tag]
                parts += [
                    parent
                    for parent in _DIRECTIONS
                    if (queue := named(home, self._queue(parent))) and queue.link.up
                ]
        except OSError as error:
            raise UnavailableError(f"{self.device}: {why(error)}") from None
        if not parts:
            return Observed.UNDONE
        return Observed.DONE if len(parts) == 4 else Observed.PARTIAL

    def _card(self, home: Rtnl) -> Seen | None:
        return find(home, self.which)


def _unhang(home: Rtnl, card: Seen | None, before: bool) -> bool:
    """Remove what filters hung on, where nobody hung others on it meanwhile."""
    if card and not before and shaping.has_clsact(home, card.index):
        if any(shaping.filters(home, card.index)):
            return False
        home.change(shaping.RTM_DELQDISC, shaping.clsact(card.index))
    return True


@dataclass(frozen=True)
class AddMacvlan(HostStep["NicBackend"]):
    """Make a macvlan link on a card, in the pod's network namespace.

    mode    `bridge`, `private`, `vepa` or `passthru`
    """

    phase = Phase.SANDBOX

    device: str
    which: Which
    mode: str
    wanted: PodLink = field(default_factory=PodLink)

    def describe(self) -> str:
        """Return what is done, for people."""
        name = plain(self.which.name)
        made = f"make a macvlan link {plain(self.wanted.name)} on {name} ({self.device}) in the pod"
        return f"{made}{self.wanted.words()}"

    def apply(self, backend: "NicBackend", work: Work) -> None:
        """Make it, and configure it."""
        actuator = backend.actuator
        with (
            pod_with_links(work.netns, actuator.namespace) as pod,
            telling(f"{self.device}: no link can be made on it"),
        ):
            self._refuse_elsewhere(backend, work, pod)
            with actuator.home() as home:
                card = find(home, self.which)
                if card is None:
                    raise BackendError(f"{self.device}: its network interface is not on the host")
                refuse_of_host(home, card, self.device, shared=True)
                if not pod.is_noted(work.facts):
                    work.record({**pod.noted(work.netns), "card": card.index, "link": None})
                inside(pod.path, lambda: self._in_pod(work, home, card, pod))

    def _in_pod(self, work: Work, home: Rtnl, card: Seen, pod: PodSpace) -> None:
        """Make the link and configure it, in a thread that is in the pod's namespace; `home` is in the host's."""
        with Rtnl() as rtnl:
            seen = self._mine(rtnl, work, card.index)
            if seen is None:
                self._make(home, card, pod)
                seen = self._mine(rtnl, work, card.index)
            if seen is None:
                raise BackendError(f"{self.device}: its link in the pod went away at once")
            if work.facts.get("link") != seen.index:
                work.record({"link": seen.index})
            if seen.link.name != self.wanted.name:
                seen = self._renamed(rtnl, seen)
            if seen.link.mac != self.wanted.mac:  # one of mode passthru begins with that of the card
                rtnl.change(m.RTM_NEWLINK, m.link(seen.index, m.mac(self.wanted.mac)))
            sizes = [
                (NUMBERS[size], value)
                for size, value in self.wanted.sizes
                if seen.number(NUMBERS[size]) != value
            ]
            if sizes:
                rtnl.change(m.RTM_NEWLINK, m.link(seen.index, *(m.u32(kind, value) for kind, value in sizes)))
            with naming(self.device):
                configure(rtnl, seen, self.wanted)

    @property
    def _first_name(self) -> str:
        """What the link is called at first: kernels look for its name on the host, and then make it in the pod."""
        return f"dra{hashlib.sha256(self.wanted.mac.encode()).hexdigest()[:10]}"

    def _make(self, home: Rtnl, card: Seen, pod: PodSpace) -> None:
        """Make the link on the host's card, but in the pod: it is never on the host."""
        given = [
            m.u32(m.IFLA_LINK, card.index),
            m.u32(m.IFLA_NET_NS_FD, pod.fd),
            m.text(m.IFLA_IFNAME, self._first_name),
            m.macvlan(self.mode),
            m.mac(self.wanted.mac),
        ]
        if self.wanted.mtu:
            if self.wanted.mtu > card.link.mtu:
                raise BackendError(
                    f"{self.device}: interface.mtu {self.wanted.mtu} is more than the card has now, {card.link.mtu}"
                )
            given.append(m.u32(m.IFLA_MTU, self.wanted.mtu))
        home.change(m.RTM_NEWLINK, m.link(0, *given), NLM_F_CREATE | NLM_F_EXCL)

    def _renamed(self, rtnl: Rtnl, seen: Seen) -> Seen:
        """Give the link its name."""
        name = self.wanted.name
        if seen.link.up:
            rtnl.change(m.RTM_NEWLINK, m.up(seen.index, is_up=False))
        try:
            rtnl.change(m.RTM_NEWLINK, m.link(seen.index, m.text(m.IFLA_IFNAME, name)))
        except RefusedError as error:
            if error.errno != errno.EEXIST:
                raise
            raise BackendError(
                f"{self.device}: the pod has another network interface {plain(name)}: set interface.name"
            ) from None
        return by_index(rtnl, seen.index) or seen

    def _is_mine(self, seen: Seen, card: int, number: int) -> bool:
        """Return whether a link in the pod is the one.

        The pod may have changed its name and its address, and may have others on the card, by other claims: not even
        the name that this one is to have says that it is this one.

        number   that it was made with; 0 where that was not recorded any more: it has its first name still
        """
        if seen.link.kind != _MACVLAN or seen.base != card:
            return False
        return seen.index == number if number else seen.link.name == self._first_name

    def _mine(self, rtnl: Rtnl, work: Work, card: int) -> Seen | None:
        number = int(work.facts.get("link") or 0)
        return next((one for one in links_in(rtnl) if self._is_mine(one, card, number)), None)

    def _refuse_elsewhere(self, backend: "NicBackend", work: Work, pod: PodSpace) -> None:
        """Refuse a second pod: two links of one address on a card would take each other's packets."""
        first = pod_of_facts(work, backend.host)
        if first is None:
            return
        with first, first.rtnl() as rtnl:
            if not pod.is_noted(work.facts) and self._found(rtnl, work):
                raise BackendError(
                    f"{self.device}: another pod that uses the claim has its share: one pod at a time can have it"
                )

    def revert(self, backend: "NicBackend", work: Work) -> None:
        """Remove it, where the pod's network namespace is not gone with it already."""
        pod = pod_of_facts(work, backend.host)
        if pod:
            with pod, pod.rtnl() as rtnl, telling(f"{self.device}: its link in the pod cannot be removed"):
                for seen in self._found(rtnl, work):
                    rtnl.change(m.RTM_DELLINK, m.link(seen.index))
                deconfigure(rtnl, self.wanted)
        if work.facts.get("netns"):
            forget(work, *NOTED, "card", "link")

    def observe(self, backend: "NicBackend", work: Work) -> Observed:
        """Look for it in the pod. What became of it there, its name or whether it is up, is the pod's own affair."""
        try:
            pod = pod_of_facts(work, backend.host)
            if pod is None:
                return Observed.UNDONE
            with pod, pod.rtnl() as rtnl:
                found = self._found(rtnl, work)
        except OSError as error:
            raise UnavailableError(f"{self.device}: {why(error)}") from None
        return Observed.DONE if found else Observed.UNDONE

    def _found(self, rtnl: Rtnl, work: Work) -> list[Seen]:
        card, number = int(work.facts.get("card") or 0), int(work.facts.get("link") or 0)
        return [one for one in links_in(rtnl) if self._is_mine(one, card, number)]
