"""What is changed on a network card: functions are moved into pods, or links are made on top of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dradriver_fake.steps import OwnedStep

if TYPE_CHECKING:
    from dradriver_fake.nic_backend import FakeNicBackend


@dataclass(frozen=True)
class MoveNIC(OwnedStep["FakeNicBackend"]):
    """Move a function into the pod of a claim."""

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"move {self.device} into the pod of claim {self.claim}"

    def made(self, backend: "FakeNicBackend") -> Mapping[int, Mapping[str, Any]]:
        """Return where the function is."""
        return backend.nic(self.device).moves()

    def make(self, backend: "FakeNicBackend") -> int:
        """Move it."""
        return backend.nic(self.device).move(self.claim, self.index)

    def remove(self, backend: "FakeNicBackend", number: int) -> None:
        """Move it back."""
        backend.nic(self.device).move_back(number)


@dataclass(frozen=True)
class AddLink(OwnedStep["FakeNicBackend"]):
    """Make a link on top of a function, with so many bits a second."""

    bandwidth: int

    def describe(self) -> str:
        """Return what is done, for people."""
        return f"make a link of {self.bandwidth} bits a second on {self.device} for claim {self.claim}"

    def made(self, backend: "FakeNicBackend") -> Mapping[int, Mapping[str, Any]]:
        """Return all links of the function."""
        return backend.nic(self.device).links()

    def make(self, backend: "FakeNicBackend") -> int:
        """Make it."""
        return backend.nic(self.device).add_link(self.claim, self.index, self.bandwidth)

    def remove(self, backend: "FakeNicBackend", number: int) -> None:
        """Delete it."""
        backend.nic(self.device).delete_link(number)
