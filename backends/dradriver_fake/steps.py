"""A step of which the hardware itself knows whose it is: it names claim and index."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dradriver.backend import HostStep, Observed, Work
from dradriver_fake.backend import FakeBackend

B = TypeVar("B", bound=FakeBackend[Any])


@dataclass(frozen=True)
class OwnedStep(HostStep[B]):
    """Give `device`, which is `thing` or a part of it, to device `index` of a claim."""

    device: str
    thing: str
    claim: str
    index: int

    @abstractmethod
    def made(self, backend: B) -> Mapping[int, Mapping[str, Any]]:
        """Return all that is made of this kind: id -> claim, index and what else belongs to it."""

    @abstractmethod
    def make(self, backend: B) -> int:
        """Make it; return its id."""

    @abstractmethod
    def remove(self, backend: B, number: int) -> None:
        """Remove it."""

    @property
    def names(self) -> tuple[str, ...]:
        """What a fault calls it."""
        return self.device, self.thing

    def apply(self, backend: B, work: Work) -> None:
        """Make it, unless it is made; record its id, and what else only the hardware knows."""
        backend.check_on_bus(self.names)
        number = self._number(backend)
        if number is None:
            backend.script.reach("create", self.names)
            number = self.make(backend)
            backend.script.reach("unrecorded", self.names)
        body = self.made(backend).get(number, {})
        facts = {key: value for key, value in body.items() if key not in {"claim", "index"}}
        work.record({**facts, "id": number})
        backend.script.reach("created", self.names)

    def revert(self, backend: B, work: Work) -> None:
        """Remove it, if it is there."""
        if backend.is_lost(self.names):
            return
        backend.script.reach("destroy", self.names)
        number = self._number(backend)
        if number is not None:
            self.remove(backend, number)
        backend.script.reach("destroyed", self.names)

    def observe(self, backend: B, work: Work) -> Observed:
        """Look for it."""
        backend.check_in_sight(self.names)
        number = self._number(backend)
        return Observed.UNDONE if number is None or number != work.facts.get("id") else Observed.DONE

    def _number(self, backend: B) -> int | None:
        owner = self.claim, self.index
        found = self.made(backend).items()
        return next((number for number, body in found if (body["claim"], body["index"]) == owner), None)
