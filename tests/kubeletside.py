"""A kubelet directory, claims, and a driver that serves them, for tests of both sides of the kubelet's protocols."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dradriver.kubelet import HealthBoard, Plugin, SocketPaths
from dradriver.model import ClaimRef, PreparedDevice

DRIVER = "gpu.example.com"

PrepareAnswer = Mapping[str, tuple[PreparedDevice, ...] | str]
UnprepareAnswer = Mapping[str, str | None]


@contextmanager
def kubelet_root() -> Iterator[Path]:
    """Yield an empty directory with a path short enough for the sockets below it."""
    with tempfile.TemporaryDirectory(prefix="kl", dir="/tmp") as path:
        yield Path(path)


def claim(number: int = 0) -> ClaimRef:
    """Return a claim with a UID of its own."""
    return ClaimRef(f"00000000-0000-4000-8000-{number:012}", "team-a", f"claim-{number}")


def device(number: int = 0, share_id: str | None = None) -> PreparedDevice:
    """Return a prepared device with a name of its own."""
    return PreparedDevice(
        ("req",), "node-1/gpu", f"gpu-{number}", (f"gpu.example.com/claim=gpu-{number}",), share_id
    )


def one_device_each(claims: Sequence[ClaimRef]) -> PrepareAnswer:
    """Prepare a device for each claim."""
    return {claim.uid: (device(number),) for number, claim in enumerate(claims)}


def nothing_left(claims: Sequence[ClaimRef]) -> UnprepareAnswer:
    """Succeed for each claim."""
    return {claim.uid: None for claim in claims}


@dataclass
class Driver:
    """A preparer made of two functions, which remembers the claims and the deadlines that it was asked for."""

    on_prepare: Callable[[Sequence[ClaimRef]], PrepareAnswer] = one_device_each
    on_unprepare: Callable[[Sequence[ClaimRef]], UnprepareAnswer] = nothing_left
    asked: list[ClaimRef] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)

    def prepare(self, driver: str, claims: Sequence[ClaimRef], deadline: float) -> PrepareAnswer:
        assert driver == DRIVER
        self.asked += claims
        self.deadlines.append(deadline)
        return self.on_prepare(claims)

    def unprepare(self, driver: str, claims: Sequence[ClaimRef], deadline: float) -> UnprepareAnswer:
        assert driver == DRIVER
        self.asked += claims
        self.deadlines.append(deadline)
        return self.on_unprepare(claims)


@contextmanager
def serving(
    root: Path,
    driver: Driver | None = None,
    board: HealthBoard | None = None,
    instance: str | None = None,
) -> Iterator[Plugin]:
    """Serve a driver below `root`, with its sockets guarded, until the block ends."""
    plugin = Plugin(
        DRIVER, SocketPaths.of(DRIVER, root, instance), driver or Driver(), board or HealthBoard()
    )
    stop = threading.Event()
    guard = threading.Thread(target=plugin.run, args=(stop,))
    plugin.start()
    try:
        guard.start()
        yield plugin
    finally:
        stop.set()
        guard.join()
        plugin.stop(grace=0.2)
