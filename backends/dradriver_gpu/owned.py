"""Which GPU instances are ours. NVML does not tell who made an instance, so the steps that make them do.

A step says what it is about to make before it makes it: an instance that then stands there is ours, whatever happens to
the daemon. What is ours is also kept in a file, which other processes read: a daemon that takes over, and the command
line, see the same instances as ours. The file is below /run: instances do not outlive a reboot either.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from dradriver.host import Host

log = logging.getLogger(__name__)

Place = tuple[str, int, int]
"""GPU name, profile id, first memory slice."""

_POLL_SECONDS = 0.25


class Owned:
    """The places of our instances. Safe from all threads."""

    def __init__(self, host: Host, directory: str) -> None:
        """Touch nothing yet. `directory` is below the host root."""
        self._host = host
        self._file = f"{directory.rstrip('/')}/instances.json"
        self._lock = threading.Lock()
        self._own: frozenset[Place] = frozenset()
        self._is_settled = False
        self._can_write = True
        self._changed = threading.Event()

    def add(self, gpu: str, profile_id: int, start: int) -> None:
        """Note that the instance at that place is ours, or will be."""
        self._become(lambda places: places | {(gpu, profile_id, start)})

    def discard(self, gpu: str, profile_id: int, start: int) -> None:
        """Forget it: what stands there from now on is not ours."""
        self._become(lambda places: places - {(gpu, profile_id, start)})

    @property
    def places(self) -> frozenset[Place]:
        """All of them: what steps of this process said, and what the file says of those of others."""
        with self._lock:
            return self._places()

    def settle(self) -> None:
        """Believe the steps of this process alone: those of all claims have been observed.

        What only the file knows belongs to a claim that nobody knows any more.
        """
        with self._lock:
            self._is_settled = True

    def watch(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        """Run until `stop`; call `changed(why)` after instances became ours or ceased to be."""
        while not stop.is_set():
            if self._changed.wait(_POLL_SECONDS):
                self._changed.clear()
                changed("GPU instances were made, destroyed or found")

    def _become(self, change: Callable[[frozenset[Place]], frozenset[Place]]) -> None:
        with self._lock:
            before = self._places()
            after = change(before)
            self._own = change(self._own)
            if after != before:
                self._write(after)
                self._changed.set()

    def _places(self) -> frozenset[Place]:
        return self._own if self._is_settled else self._own | self._read()

    def _read(self) -> frozenset[Place]:
        """Return what the file says; nothing where it is not there, or of an earlier boot."""
        text = self._host.read_text(self._file)
        try:
            body = json.loads(text) if text else {}
            if body.get("boot") != self._host.boot_id():
                return frozenset()
            return frozenset(_place(one) for one in body["instances"])
        except (ValueError, TypeError, KeyError, AttributeError):
            return frozenset()

    def _write(self, places: Iterable[Place]) -> None:
        """Write the file. Without it, others take our instances for foreign ones: nothing breaks."""
        try:
            path = self._host.path(self._file)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            new.write_text(json.dumps({"boot": self._host.boot_id(), "instances": sorted(places)}))
            os.replace(new, path)  # noqa: PTH105 - a Path's method hides that it is atomic
        except OSError as error:
            if self._can_write:
                log.warning("%s (option runDirectory): %s", self._file, error.strerror)
            self._can_write = False
        else:
            self._can_write = True


def _place(one: Any) -> Place:
    gpu, profile_id, start = one
    return str(gpu), int(profile_id), int(start)
