"""A fake network card: functions that are moved into pods, and links on top of a function that claims share."""

from typing import Any

from dradriver_fake.facts import NICDevice, NodeFacts, VFDevice
from dradriver_fake.hardware import Hardware, HardwareError, free_id, read_all, write_json
from dradriver_fake.tree_pci import made_up_mac

BUSY = "device or resource busy"
NO_DEVICE = "no such device"
NOT_FOUND = "no such file or directory"
NO_ROOM = "no space left on device"

FIRST_IFINDEX = 100


class NICHardware:
    """One function of a card. Every method raises HardwareError where kernel or driver would refuse."""

    def __init__(self, hardware: Hardware, facts: NodeFacts, function: NICDevice | VFDevice) -> None:
        self._hardware = hardware
        self._function = function
        self._directory = hardware.thing("nics", function.name)
        self._relatives = _relatives(facts, function)

    @property
    def is_present(self) -> bool:
        """Whether it is on the bus."""
        return self._directory.is_dir()

    def moves(self) -> dict[int, dict[str, Any]]:
        """Return the move of the function into a pod: interface index there -> claim and index; one at most."""
        return read_all(self._directory, "pod")

    def move(self, claim: str, index: int) -> int:
        """Move the function into the pod of a claim; return the index of its interface there."""
        with self._hardware.locked():
            self._check_present()
            if self.moves() or self.links():
                raise self._refuse(BUSY, f"moved for claim {claim}")
            for name in self._relatives:
                if read_all(self._hardware.thing("nics", name), "pod"):
                    raise self._refuse(BUSY, f"moved for claim {claim}, while {name} is in a pod")
            number = self._next()
            write_json(self._directory / f"pod-{number}.json", {"claim": claim, "index": index})
            return number

    def move_back(self, number: int) -> None:
        """Move the function back to the host."""
        self._remove("pod", number)

    def links(self) -> dict[int, dict[str, Any]]:
        """Return the links on top: interface index -> claim, index, bandwidth in bits a second, MAC address."""
        return read_all(self._directory, "link")

    def add_link(self, claim: str, index: int, bandwidth: int) -> int:
        """Add a link with so many bits a second; return the index of its interface."""
        with self._hardware.locked():
            self._check_present()
            if self.moves():
                raise self._refuse(BUSY, f"a link for claim {claim}, while it is in a pod")
            links = self.links()
            if sum(body["bandwidth"] for body in links.values()) + bandwidth > self._speed:
                raise self._refuse(NO_ROOM, f"{bandwidth} bits a second for claim {claim}")
            number = self._next()
            mac = made_up_mac(f"{self._function.bdf} {number} {claim}")
            body = {"claim": claim, "index": index, "bandwidth": bandwidth, "mac": mac}
            write_json(self._directory / f"link-{number}.json", body)
            return number

    def delete_link(self, number: int) -> None:
        """Delete a link."""
        self._remove("link", number)

    def lose(self) -> None:
        """Lose all that was done to it, as a card that is pulled out does."""
        with self._hardware.locked():
            for kind in ("pod", "link"):
                for number in read_all(self._directory, kind):
                    self._unlink(kind, number)

    @property
    def _speed(self) -> int:
        if isinstance(self._function, NICDevice) and self._function.nic.rate_gbps:
            return self._function.nic.rate_gbps * 10**9
        return 0

    def _next(self) -> int:
        """Return an interface index that no function has: the kernel counts them for the whole namespace."""
        used: dict[int, Any] = {}
        for name in self._hardware.present("nics"):
            for other in ("pod", "link"):
                used |= read_all(self._hardware.thing("nics", name), other)
        return free_id(used, FIRST_IFINDEX)

    def _check_present(self) -> None:
        if not self.is_present:
            raise HardwareError(NO_DEVICE, self._function.name)

    def _remove(self, kind: str, number: int) -> None:
        with self._hardware.locked():
            self._unlink(kind, number)

    def _unlink(self, kind: str, number: int) -> None:
        try:
            (self._directory / f"{kind}-{number}.json").unlink()
        except FileNotFoundError:
            if self.is_present:
                raise self._refuse(NOT_FOUND, f"no {kind} {number}") from None

    def _refuse(self, code: str, message: str) -> HardwareError:
        return self._hardware.complain(HardwareError(code, f"{self._function.name}: {message}"))


def _relatives(facts: NodeFacts, function: NICDevice | VFDevice) -> tuple[str, ...]:
    """Return the functions that cannot be used beside this one: a physical function's virtual ones, and back."""
    if isinstance(function, VFDevice):
        return tuple(nic.name for nic in facts.nics if nic.bdf == function.vf.physfn)
    return tuple(vf.name for vf in facts.vfs if vf.vf.physfn == function.bdf)
