"""A GPU backend whose watch runs, and what it asks to be probed for."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dradriver.model import Device, PoolContent
from dradriver_gpu import GpuBackend
from gpunode import GpuNode
from nvmlstub import Stub
from waiting import PATIENCE

BEGUN = "GPU events are listened to"


class Watched:
    """A backend whose watch runs, and the reasons that it gives for probing."""

    def __init__(self, backend: GpuBackend) -> None:
        self.backend = backend
        self._changed = threading.Condition()
        self._reasons: list[str] = []

    def changed(self, why: str) -> None:
        with self._changed:
            self._reasons.append(why)
            self._changed.notify_all()

    def count(self, why: str) -> int:
        """Return how often that was the reason."""
        with self._changed:
            return sum(why in reason for reason in self._reasons)

    def wait(self, why: str, times: int = 1) -> None:
        """Wait until that was the reason so many times."""
        with self._changed:
            there = self._changed.wait_for(lambda: self.count(why) >= times, PATIENCE)
        assert there, f"{why}: {self._reasons}"

    def hear(self, stub: Stub, index: int, xid: int) -> None:
        """Send an XID until it is heard: the session of NVML may just be ended for another, of which nobody is told."""
        deadline = time.monotonic() + PATIENCE
        while not self.count(f"XID {xid}"):
            assert time.monotonic() < deadline, self._reasons
            stub.xid(index, xid)
            time.sleep(0.05)

    def content(self) -> PoolContent:
        """Probe."""
        return self.backend.devices(self.backend.probe())

    def device(self, name: str) -> Device:
        found = self.content().device(name)
        assert found
        return found

    def taints(self) -> dict[str, list[str]]:
        """Probe; return the taints of the devices that have some."""
        return {
            device.name: [f"{taint.key.partition('/')[2]}={taint.value}" for taint in device.taints]
            for device in self.content().devices
            if device.taints
        }


@contextmanager
def watching(
    node: GpuNode, options: Mapping[str, Any] | None = None, *, begun: bool = True
) -> Iterator[Watched]:
    """Run the watch of a backend; it must end soon after it is told to."""
    stop = threading.Event()
    with node.backend(options) as backend:
        backend.probe()
        watched = Watched(backend)
        thread = threading.Thread(target=backend.watch, args=(stop, watched.changed), daemon=True)
        thread.start()
        try:
            if begun:
                watched.wait(BEGUN)
            yield watched
        finally:
            stop.set()
            thread.join(PATIENCE)
        assert not thread.is_alive()
