"""The health of all devices, as the kubelet is told it."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dradriver.model import Health


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The health of one device.

    message     why, for people; the kubelet shows it in pod status
    since       when the health was determined, in seconds since the Unix epoch
    """

    health: Health
    message: str
    since: float


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """All devices of a driver by (pool, device), and the version of that list: 0 before the first."""

    version: int = 0
    states: Mapping[tuple[str, str], DeviceState] = field(default_factory=lambda: MappingProxyType({}))


_NOTHING = HealthSnapshot()


def _never() -> bool:
    return False


class HealthBoard:
    """Where the daemon writes what it knows of device health, and the streams to the kubelet read it.

    One board serves all drivers of the process, and any thread may use it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._drivers: dict[str, HealthSnapshot] = {}

    def update(self, driver: str, states: Mapping[tuple[str, str], DeviceState]) -> None:
        """Replace the list of `driver`. It is always the complete one: a device left out is gone from it."""
        with self._changed:
            last = self._drivers.get(driver, _NOTHING)
            if last.version and last.states == states:
                return
            self._drivers[driver] = HealthSnapshot(last.version + 1, MappingProxyType(dict(states)))
            self._changed.notify_all()

    def snapshot(self, driver: str) -> HealthSnapshot:
        """Return the list of `driver` as it is now."""
        with self._changed:
            return self._drivers.get(driver, _NOTHING)

    def wait(self, driver: str, seen_version: int, timeout: float, ended: Callable[[], bool] = _never) -> int:
        """Wait until the list has another version than `seen_version`; return the version then.

        It is `seen_version` where `timeout` seconds passed, or where `ended` is true. Whoever makes `ended`
        true calls `wake()` afterwards.
        """
        with self._changed:
            self._changed.wait_for(lambda: ended() or self._version(driver) != seen_version, timeout)
            return self._version(driver)

    def wake(self) -> None:
        """Let every `wait` look at its `ended` again."""
        with self._changed:
            self._changed.notify_all()

    def _version(self, driver: str) -> int:
        return self._drivers.get(driver, _NOTHING).version
