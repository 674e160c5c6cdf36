"""RDMA devices moved into the pod, where each belongs to one network namespace."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from dradriver.backend import BackendError, HostStep, Observed, Phase, TransientError, UnavailableError, Work
from dradriver.host import PCI_DIR
from dradriver_nic.actuate.podspace import NOTED, PodSpace, pod_of, pod_of_facts
from dradriver_nic.actuate.rdmanl import RdmaNetlink, RdmaSeen
from dradriver_nic.actuate.rtnl import telling, why
from dradriver_nic.away import Moved
from dradriver_nic.inventory import RdmaDevice
from dradriver_nic.rdma import rdma_devices
from dradriver_nic.steps_link import forget

if TYPE_CHECKING:
    from dradriver_nic.backend import NicBackend


@dataclass(frozen=True)
class MoveRdma(HostStep["NicBackend"]):
    """Move the RDMA devices of a function into the pod's network namespace, and back.

    device    name of the device that they belong to, with the PCI address of its function

    A device's number stays the same in all namespaces: by that it is found, whatever it is called. It comes back to the
    host by itself when the namespace dies.
    """

    phase = Phase.SANDBOX

    device: str
    address: str
    index: int = 0

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"move {self._what} into the pod"

    @property
    def _what(self) -> str:
        return f"the RDMA device of {self.address} ({self.device})"

    def apply(self, backend: "NicBackend", work: Work) -> None:
        """Move those that are on the host; all must be in the pod then."""
        actuator = backend.actuator
        with pod_of(work.netns, actuator.namespace) as pod, telling(f"{self._what} cannot be moved"):
            with actuator.rdma() as home:
                names = {one.name: one for one in rdma_devices(backend.host, self.address)}
                here = [one for one in home.devices() if one.name in names]
                if here:
                    self._move(backend, work, home, [(one, names[one.name]) for one in here], pod)
            with actuator.rdma(pod) as inside:
                there = {one.index for one in inside.devices()}
            numbers = {number for number, _ in _recorded(work)}
            if not numbers or numbers - there:
                raise BackendError(
                    f"{self._what} is neither on the host nor in the pod: one pod at a time can have it"
                )

    def _move(
        self,
        backend: "NicBackend",
        work: Work,
        home: RdmaNetlink,
        here: list[tuple[RdmaSeen, RdmaDevice]],
        pod: PodSpace,
    ) -> None:
        if not home.exclusive():
            raise BackendError(
                f"{self._what} was to be moved, but all network namespaces see it (rdma system set netns)"
            )
        known = dict(_recorded(work)) | {seen.index: device for seen, device in here}
        work.record(
            {
                "moved": [[number, msgspec.to_builtins(device)] for number, device in known.items()],
                **pod.noted(work.netns),
            }
        )
        self._note(backend, work)
        for seen, _ in here:
            home.move(seen.index, pod.fd)

    def _note(self, backend: "NicBackend", work: Work) -> bool:
        """Note what is in a pod, or about to be; return whether that is new."""
        moved = backend.away.moved.get(self.device, Moved())
        rdma = tuple(device for _, device in _recorded(work))
        return backend.away.add(self.device, replace(moved, rdma=rdma))

    def revert(self, backend: "NicBackend", work: Work) -> None:
        """Bring them back, under the names that they had."""
        if _is_known(work) and backend.host.exists("sys/module/ib_core"):
            with telling(f"{self._what} cannot be brought back"):
                self._fetch(backend, work)
                with backend.actuator.rdma() as home:
                    here = {one.index: one for one in home.devices()}
                    for number, device in _recorded(work):
                        if number in here and here[number].name != device.name:
                            home.rename(number, device.name)
                missing = {number for number, _ in _recorded(work)} - here.keys()
                if missing and backend.host.list_dir(f"{PCI_DIR}/{self.address}/infiniband_verbs"):
                    raise TransientError(f"{self._what} has not come back yet")
        if work.facts.get("moved"):
            forget(work, "moved", *NOTED)
        moved = backend.away.moved.get(self.device)
        if moved and moved.link:
            backend.away.add(self.device, replace(moved, rdma=()))
        else:
            backend.away.discard(self.device)

    def _fetch(self, backend: "NicBackend", work: Work) -> None:
        pod = pod_of_facts(work, backend.host)
        if pod is None:
            return
        numbers = {number for number, _ in _recorded(work)}
        with pod, PodSpace(backend.actuator.home_file()) as home, backend.actuator.rdma(pod) as inside:
            for one in [*inside.devices()]:
                if one.index in numbers:
                    inside.move(one.index, home.fd)

    def observe(self, backend: "NicBackend", work: Work) -> Observed:
        """Look where they are."""
        if not _is_known(work):
            return Observed.UNDONE
        numbers = {number for number, _ in _recorded(work)}
        try:
            with backend.actuator.rdma() as home:
                here = numbers & {one.index for one in home.devices()}
            pod = pod_of_facts(work, backend.host)
            if pod is None:
                return Observed.UNDONE if here == numbers else Observed.PARTIAL
            with pod, backend.actuator.rdma(pod) as inside:
                there = numbers & {one.index for one in inside.devices()}
        except OSError as error:
            raise UnavailableError(f"{self._what}: {why(error)}") from None
        if there == numbers:
            return Observed.DONE
        return Observed.UNDONE if here == numbers else Observed.PARTIAL

    def recall(self, backend: "NicBackend", work: Work) -> bool:
        """Note that they are in a pod, or were about to be, so that they stay published."""
        return _is_known(work) and self._note(backend, work)


def _is_known(work: Work) -> bool:
    """Return whether they were moved since the last reboot."""
    return bool(work.facts.get("moved")) and not work.rebooted


def _recorded(work: Work) -> Iterator[tuple[int, RdmaDevice]]:
    """Yield what was moved, or about to be, by number."""
    try:
        yield from msgspec.convert(work.facts.get("moved") or [], list[tuple[int, RdmaDevice]])
    except ValueError as error:
        raise UnavailableError(f"RDMA devices were recorded by another version: {error}") from None
