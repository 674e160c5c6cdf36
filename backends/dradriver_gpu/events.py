"""Hearing the driver's events: XIDs, ECC errors, recovery actions, and changes of MIG instances.

Facts: nvml.h. Events from before a registration are not delivered. While a GPU of an event set is lost, a wait ends at
once with GPU_IS_LOST, and does not say which: the others need a set without it. A GPU that cannot send one of the types
asked for registers none.
"""

import contextlib
import ctypes
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml

from dradriver.backend import BackendError, UnavailableError
from dradriver.host import pci_address
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
        self._look_at = 0.0

    def begin(self) -> None:
        """Register all GPUs. Raises NvmlError."""
        for index in range(self._session.call(pynvml.nvmlDeviceGetCount)):
            self._register(index)

    def close(self) -> None:
        """Free the event set."""
        with contextlib.suppress(BackendError):
            self._session.call(pynvml.nvmlEventSetFree, self._set)

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
        if self._away and time.monotonic() >= self._look_at:
            self._look_for_lost()

    # --- GPUs

    def _register(self, index: int) -> bool:
        """Register a GPU; return whether it can be, or never will be."""
        reader = Reader(self._session, index)
        try:
            reader.open()
            types = self._session.ask(pynvml.nvmlDeviceGetSupportedEventTypes, reader.handle) or 0
            if types & _WANTED:
                self._session.call(pynvml.nvmlDeviceRegisterEvents, reader.handle, types & _WANTED, self._set)
        except NvmlError as error:
            if index not in self._away:
                log.debug("GPU %s sends no events: %s", reader.address or index, error)
            self._away.add(index)
            return False
        if types & _WANTED:
            self._heard[_number(reader.handle)] = reader
        else:
            log.info("GPU %s has no events: what is wrong with it is found by probing", reader.address)
        self._away.discard(index)
        return True

    def _leave_out_lost(self, error: NvmlError) -> None:
        """Go on with a set of the GPUs that answer. Raises the error where it is not known whose it is."""
        lost = [reader for reader in self._heard.values() if self._is_lost(reader)]
        if not lost:
            raise error
        well = [reader.index for reader in self._heard.values() if reader not in lost]
        news = [self._book.lose(reader.address) for reader in lost if reader.address]
        if any(news):
            self._changed(f"{' and '.join(_name(reader.address) for reader in lost)} lost")
        self._away |= {reader.index for reader in lost}
        before, self._set = self._set, self._session.call(pynvml.nvmlEventSetCreate)
        heard_before, self._heard = self._heard, {}
        for index in well:
            self._register(index)
        # What comes until the new set is complete is in the old one.
        try:
            while True:
                self._take(self._session.call(pynvml.nvmlEventSetWait_v2, before, 0), heard_before)
        except NvmlError:
            pass
        finally:
            with contextlib.suppress(BackendError):
                self._session.call(pynvml.nvmlEventSetFree, before)

    def _is_lost(self, reader: Reader) -> bool:
        try:
            self._session.call(pynvml.nvmlDeviceGetMemoryInfo, reader.handle)
        except NvmlError as error:
            return error.is_lost
        return False

    def _look_for_lost(self) -> None:
        for index in sorted(self._away):
            if self._register(index):
                self._changed(f"GPU {index} answers again")
        self._look_at = time.monotonic() + LOOK_SECONDS

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
