"""What the fake backends share: the hardware, the fault script, and the watching of both."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dradriver.backend import Backend, NoOptions, UnavailableError
from dradriver.host import Host
from dradriver.model import AttributeValue, Health
from dradriver_fake.hardware import KINDS, Hardware, HardwareError
from dradriver_fake.place import Places
from dradriver_fake.script import Ailments, Script

I = TypeVar("I")  # noqa: E741 - the inventory type of a backend

POLL_SECONDS = 0.1


class FakeBackend(Backend[I, NoOptions]):
    """A backend of a fake node: the host's root is the directory that was built for it."""

    def __init__(self, host: Host, options: NoOptions) -> None:
        super().__init__(host, options)
        self.hardware = Hardware(host.root)
        self.script = Script(self.hardware)
        self.places = Places(host)
        self._looked_at: object = None

    def watch(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        """Look for faults that come or go, and for devices that are pulled out or put in.

        What changed before this began was not seen, so it begins with a call. And what a probe has met may be gone
        before it is noticed here: all is as at the last look then, but not as the probe saw it.
        """
        last: tuple[object, object] = None, None
        while not stop.is_set():
            now, probed = self._signature(), self._looked_at
            if now != last[0] or (now != probed and probed != last[1]):
                changed("the fault script or the hardware directory changed")
            last = now, probed
            stop.wait(POLL_SECONDS)

    def begin_probe(self) -> None:
        """Note what there is to be seen by a probe that begins."""
        self._looked_at = self._signature()

    def _signature(self) -> object:
        return self.script.signature(), tuple(self.hardware.present(kind) for kind in KINDS)

    @abstractmethod
    def is_plugged(self, names: Sequence[str]) -> bool:
        """Return whether a device of these names has its place in the hardware directory."""

    @abstractmethod
    def lose(self, name: str) -> None:
        """Let what has that name, a card or a part of one, lose all that was created on it."""

    def is_lost(self, names: Sequence[str]) -> bool:
        """Return whether a device, or the card that it is a part of, is not on the bus.

        What is not, loses what was created on it.

        names   of the device and of the card, or of the card alone
        """
        ailments = self.script.ailments()
        vanished = [name for name in names if ailments.of((name,), "vanish")]
        for name in vanished:
            self.lose(name)
        return bool(vanished) or not self.is_plugged(names)

    def check_on_bus(self, names: Sequence[str]) -> None:
        """Raise HardwareError where the device of these names is not on the bus."""
        if self.is_lost(names):
            raise HardwareError("GPU is lost" if self.kind == "gpu" else "no such device", names[0])

    def check_in_sight(self, names: Sequence[str]) -> None:
        """Raise UnavailableError where nothing can be said of the device of these names."""
        self.script.reach("observe", names)
        if self.is_lost(names):
            raise UnavailableError(f"{names[0]} is not on the bus")


def health_of(ailments: Ailments, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields `health` and `health_message` of a device of these names."""
    for does in ("sick", "odd"):
        ailment = ailments.of(names, does)
        if ailment:
            return {"health": Health.UNHEALTHY, "health_message": ailment.message}
    return {}


def odd_answers(
    ailments: Ailments, names: Sequence[str], attributes: dict[str, AttributeValue], name: str
) -> dict[str, AttributeValue]:
    """Return the attributes of a device; nonsense for `name`, where its driver answers oddly."""
    return {**attributes, name: "\N{REPLACEMENT CHARACTER}" * 40} if ailments.of(names, "odd") else attributes
