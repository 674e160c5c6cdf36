"""Hearing the driver's events: XIDs, ECC errors, recovery actions, and changes of MIG instances.

Facts: nvml.h. Events from before a registration are not delivered. While a GPU of an event set is lost, a wait ends at
once with GPU_IS_LOST, and does not say which: the others need a set without it. A GPU that cannot send one of the types
asked for registers none. One that hangs holds up its own registration only, which is done aside.
"""

import contextlib
import ctypes
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from dradriver.backend import BackendError, UnavailableError
from dradriver.host import pci_address
from dradriver_gpu.aside import Aside
from dradriver_gpu.facts import Reader
from dradriver_gpu.health import HealthBook
from dradriver_gpu.inventory import gpu_name
from dradriver_gpu.mig import text_of
from dradriver_gpu.nvml import NVML, DriverMissingError, NvmlError, Session
from dradriver_gpu.symptoms import LOST, POISON, REMAP_FAILED, UNCORRECTED

log = logging.getLogger(__name__)

WAIT_MILLISECONDS = 100
"""How long a wait lasts, and so how late a stop, or the end of the session, is seen."""

LOOK_SECONDS = 1.0
"""How often GPUs that were lost are looked for."""

REGISTER_SECONDS = 1.0
"""How long GPUs are waited for that are asked for their events, before the others are listened to."""

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 5.0

_MIG_CHANGE = 0x100
"""nvmlEventTypeMigConfigChange, which the binding does not name."""

_TELLING = {
    pynvml.nvmlEventTypeDoubleBitEccError: UNCORRECTED,
    pynvml.nvmlEventTypeDramRetirementFailure: REMAP_FAILED,
    pynvml.nvmlEventTypeFatalPoisonError: POISON,
    pynvml.nvmlEventTypeGpuUnavailableError: LOST,
}
"""Events that say themselves what is wrong."""

_HINTS = {
    pynvml.nvmlEventTypeDramRetirementEvent: "memory was retired",
    pynvml.nvmlEventTypeGpuRecoveryAction: "its recovery action changed",
    _MIG_CHANGE: "its MIG instances changed",
}
"""Events after which a probe tells more."""

_WANTED = pynvml.nvmlEventTypeXidCriticalError | sum(_TELLING) | sum(_HINTS)

_WHOLE = 0xFFFFFFFF
"""Instance id of an event that concerns the GPU as a whole."""

Changed = Callable[[str], None]


class EventWatch:
    """Keeps listening, in one session of NVML after the other."""

    def __init__(self, nvml: NVML, book: HealthBook) -> None:
        """What is heard is written into the book."""
        self._nvml = nvml
        self._book = book
        self._trouble = ""

    def run(self, stop: threading.Event, changed: Changed) -> None:
        """Run until `stop`; call `changed(why)` where there is something to see."""
        delay = _FIRST_DELAY
        while not stop.is_set():
            began = time.monotonic()
            try:
                with self._nvml.session() as session:
                    self._listen(session, stop, changed)
            except BackendError as error:
                self._say(error)
            if time.monotonic() - began > _LONGEST_DELAY:
                delay = _FIRST_DELAY
            stop.wait(delay * random.uniform(0.5, 1.0))  # noqa: S311 - spreading, not secrecy
            delay = min(delay * 2, _LONGEST_DELAY)

    def _listen(self, session: Session, stop: threading.Event, changed: Changed) -> None:
        with contextlib.closing(_Listener(session, self._book, changed)) as listener:
            listener.begin()
            told = False
            while not stop.is_set() and not session.is_over:
                if not told and not self._trouble:
                    # What happened before the events were asked for is found by a probe.
                    changed("GPU events are listened to")
                    told = True
                listener.listen()
                if self._trouble:
                    log.info("GPU events are heard again")
                self._trouble = ""

    def _say(self, error: BackendError) -> None:
        """Log why nothing is heard, once. A driver that is not there is told of by probes."""
        text = str(error)
        if text != self._trouble:
            missing = isinstance(error, DriverMissingError | UnavailableError)
            log.log(logging.DEBUG if missing else logging.WARNING, "GPU events are not heard: %s", text)
        self._trouble = text


class _Registration(Aside[bool]):
    """Asking a GPU for its events, into an event set.

    reader   of the GPU, open once it has told who it is
    """

    def __init__(self, session: Session, index: int, events: Any) -> None:
        self.events = events
        self.reader = Reader(session, index)
        super().__init__("gpu-events", lambda: self._register(session))

    def _register(self, session: Session) -> bool:
        """Register the GPU; return whether it has events. Raises NvmlError, and UnavailableError."""
        with session.shared():
            self.reader.open()
            types = session.ask(pynvml.nvmlDeviceGetSupportedEventTypes, self.reader.handle) or 0
            if types & _WANTED:
                session.call(
                    pynvml.nvmlDeviceRegisterEvents, self.reader.handle, types & _WANTED, self.events
                )
            return bool(types & _WANTED)


class _Listener:
    """The event set of one session."""

    def __init__(self, session: Session, book: HealthBook, changed: Changed) -> None:
        """Raises NvmlError where the driver has no event sets."""
        self._session = session
        self._book = book
        self._changed = changed
        self._set: Any = session.call(pynvml.nvmlEventSetCreate)
        self._heard: dict[int, Reader] = {}
        self._away: set[int] = set()
        self._addresses: dict[int, str | None] = {}
        self._pending: dict[int, _Registration] = {}
        self._look_at = 0.0

    def begin(self) -> None:
        """Register all GPUs. Raises NvmlError."""
        self._register(range(self._session.call(pynvml.nvmlDeviceGetCount)))

    def close(self) -> None:
        """Free the event set."""
        self._free(self._set)

    def listen(self) -> None:
        """Wait for an event, and take it. Raises NvmlError where that does not work."""
        try:
            data = self._session.call(pynvml.nvmlEventSetWait_v2, self._set, WAIT_MILLISECONDS)
        except NvmlError as error:
            if error.is_lost:
                self._leave_out_lost(error)
            elif error.code != pynvml.NVML_ERROR_TIMEOUT:
                raise
        else:
            self._take(data)
        for index in self._settled():
            self._changed(f"GPU {index} answers again")
        if self._away and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            self._begin(self._away)

    def _free(self, events: Any) -> None:
        """Free an event set, but for one that a GPU that hangs may yet be registered with."""
        if all(one.done.is_set() or one.events is not events for one in self._pending.values()):
            with contextlib.suppress(BackendError):
                self._session.call(pynvml.nvmlEventSetFree, events)

    # --- GPUs

    def _register(self, indices: Iterable[int]) -> None:
        """Register GPUs; what does not answer soon is taken in once it does."""
        self._begin(indices)
        end = time.monotonic() + REGISTER_SECONDS
        for one in self._pending.values():
            one.done.wait(max(0.0, end - time.monotonic()))
        self._settled()
        self._away |= self._pending.keys()

    def _begin(self, indices: Iterable[int]) -> None:
        for index in indices:
            if index not in self._pending:
                self._pending[index] = _Registration(self._session, index, self._set)

    def _settled(self) -> list[int]:
        """Take in the GPUs that are registered by now; return those of them that were away."""
        back = []
        for index, one in list(self._pending.items()):
            if not one.done.is_set():
                continue
            del self._pending[index]
            try:
                has_events = one.result()
            except BackendError as error:
                self._miss(index, error)
                continue
            if has_events and one.events is not self._set:
                self._away.add(index)  # in a set that is not listened to any more
                continue
            if has_events:
                self._heard[_number(one.reader.handle)] = one.reader
                self._addresses[index] = one.reader.address
            else:
                log.info(
                    "GPU %s has no events: what is wrong with it is found by probing", one.reader.address
                )
            if index in self._away:
                self._away.discard(index)
                back.append(index)
        return back

    def _miss(self, index: int, error: BackendError) -> None:
        """Note that a GPU cannot be registered now; one that was before is lost where it says so."""
        address = self._addresses.get(index)
        if index not in self._away:
            log.debug("GPU %s sends no events: %s", address or index, error)
            if isinstance(error, NvmlError) and error.is_lost and address and self._book.lose(address):
                self._changed(f"{_name(address)} lost")
        self._away.add(index)

    def _leave_out_lost(self, error: NvmlError) -> None:
        """Go on with a set of the GPUs that answer. Raises the error where it is not known whose it is."""
        lost = self._lost()
        if not lost:
            raise error
        well = [reader.index for reader in self._heard.values() if reader not in lost]
        news = [self._book.lose(reader.address) for reader in lost if reader.address]
        if any(news):
            self._changed(f"{' and '.join(_name(reader.address) for reader in lost)} lost")
        self._away |= {reader.index for reader in lost}
        before, self._set = self._set, self._session.call(pynvml.nvmlEventSetCreate)
        heard_before, self._heard = self._heard, {}
        self._register(well)
        # What comes until the new set is complete is in the old one.
        try:
            while True:
                self._take(self._session.call(pynvml.nvmlEventSetWait_v2, before, 0), heard_before)
        except NvmlError:
            pass
        finally:
            self._free(before)

    def _lost(self) -> list[Reader]:
        """Return the GPUs that answer nothing: lost ones, and those that do not say so either."""
        asked = [(reader, self._asked(reader)) for reader in self._heard.values()]
        end = time.monotonic() + REGISTER_SECONDS
        return [
            reader
            for reader, one in asked
            if not one.done.wait(max(0.0, end - time.monotonic())) or one.result()
        ]

    def _asked(self, reader: Reader) -> Aside[bool]:
        """Begin to ask a GPU whether it is lost."""

        def is_lost() -> bool:
            with self._session.shared():
                try:
                    self._session.call(pynvml.nvmlDeviceGetMemoryInfo, reader.handle)
                except NvmlError as error:
                    return error.is_lost
            return False

        return Aside("gpu-lost", is_lost)

    # --- events

    def _take(self, data: Any, heard: dict[int, Reader] | None = None) -> None:
        reader = (self._heard if heard is None else heard).get(_number(data.device))
        address = reader.address if reader else self._address_of(data.device)
        if address is None:
            self._changed("an event of an unknown GPU")
            return
        kind = int(data.eventType)
        if kind == pynvml.nvmlEventTypeXidCriticalError:
            number = int(data.eventData)
            ids = (_id(data.gpuInstanceId), _id(data.computeInstanceId))
            if self._book.xid(address, number, *ids):
                self._changed(f"{_name(address)}: XID {number}")
        elif kind in _TELLING:
            if self._book.hear(address, _TELLING[kind]):
                self._changed(f"{_name(address)}: {_TELLING[kind].message}")
        else:
            self._changed(f"{_name(address)}: {_HINTS.get(kind, f'event {kind:#x}')}")

    def _address_of(self, handle: Any) -> str | None:
        try:
            return pci_address(text_of(self._session.call(pynvml.nvmlDeviceGetPciInfo_v3, handle), "busId"))
        except NvmlError:
            return None


def _number(handle: Any) -> int:
    """Return what tells handles apart."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _id(number: int) -> int | None:
    return None if number == _WHOLE else int(number)


def _name(address: str | None) -> str:
    return gpu_name(address) if address else "a GPU"
