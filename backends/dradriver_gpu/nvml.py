"""Access to NVML: the library of the driver root, opened when it is needed, through the binding `pynvml`.

The binding keeps one library for the whole process, which the driver may take away or replace under us: so all use of
it happens in sessions. What is shared between them is `_Binding`; threads of any number may be in a session at once.

Facts: nvml.h; the library may be called from any thread, and init and shutdown are counted.
"""

import contextlib
import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from dradriver.backend import BackendError, UnavailableError
from dradriver.host import Host
from dradriver_gpu.aside import Bounded
from dradriver_gpu.library import NAME, Library, driver_host, find_libraries, module_version

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long the library may take to be opened or closed, and how long a session waits for others that are in its way."""

_CLOSE_SECONDS = 2.0
"""How long the library may take to be closed when the daemon ends."""

# The session is over: the driver went away or was replaced.
_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)

# Nothing of the kind: an old driver, or a GPU without it.
_WITHOUT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)

# Nothing works on the GPU until it is reset, or at all.
_LOST = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
        pynvml.NVML_ERROR_INSUFFICIENT_POWER,
        pynvml.NVML_ERROR_OPERATING_SYSTEM,
    }
)

_NO_GPUS = 1
"""NVML_INIT_FLAG_NO_GPUS: a driver without GPUs is no error."""


class NvmlError(BackendError):
    """NVML refuses a call. `code` is its NVML_ERROR_*, `function` the function's name."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function}: {text}")
        self.function = function
        self.code = code
        self.text = text

    @property
    def is_lost(self) -> bool:
        """Whether the GPU answers nothing any more."""
        return self.code in _LOST


class DriverMissingError(BackendError):
    """There is no driver, or not all of it. `partial` tells which; the text is the reason."""

    def __init__(self, reason: str, *, partial: bool) -> None:
        super().__init__(reason)
        self.partial = partial


class DriverHangsError(UnavailableError):
    """The driver as a whole does not answer; the text says which call does not return."""


class Session:
    """The open library. Handles that it gives are good until it ends."""

    def __init__(self, binding: "_Binding", library: Library, generation: int, *, close: bool) -> None:
        """`close` says whether the library is shut down behind the last one."""
        self.library = library.path
        self.generation = generation
        self._binding = binding
        self._close = close

    @property
    def is_over(self) -> bool:
        """Whether the library is to be closed: who stays in a session for long must leave it soon."""
        return self._binding.is_over(self.generation)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Be in it once more, in another thread: it does not end before both have left it.

        Raises UnavailableError where it has ended.
        """
        self._binding.join(self.generation)
        try:
            yield
        finally:
            self._binding.leave(close=self._close)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function of pynvml and return what it returns.

        Raises NvmlError where NVML refuses, UnavailableError where the driver is gone.
        """
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            code = int(getattr(error, "value", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
            name = getattr(function, "__name__", "nvml")
            if code in _GONE:
                self._binding.end(self.generation)
                raise UnavailableError(f"{name}: {error_text(error)}") from None
            raise NvmlError(name, code, error_text(error)) from None
        except pynvml.NVMLLibraryMismatchError:
            name = getattr(function, "__name__", "nvml")
            raise NvmlError(name, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found") from None
        except (UnicodeDecodeError, ctypes.ArgumentError) as error:
            name = getattr(function, "__name__", "nvml")
            raise NvmlError(
                name, pynvml.NVML_ERROR_UNKNOWN, f"an answer that makes no sense: {error}"
            ) from None

    def ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Call a function as `call` does; return None where the driver or the GPU has nothing of the kind."""
        try:
            return self.call(function, *arguments)
        except NvmlError as error:
            if error.code in _WITHOUT:
                return None
            raise

    def gpu(self, address: str) -> Any:
        """Return the handle of the GPU at a PCI address. Raises NvmlError."""
        return self.call(pynvml.nvmlDeviceGetHandleByPciBusId, address)


class NVML:
    """The NVML library of one driver root."""

    def __init__(self, host: Host, root: str = "/", *, close_when_idle: bool = False) -> None:
        """Nothing is opened yet. `root` is below the host root."""
        self._host = host
        self._root = root
        self._close_when_idle = close_when_idle

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Be in a session, opening the library where it is not open, or is not the one of the driver any more.

        Raises DriverMissingError where there is no driver or only some of it, UnavailableError where the library is
        there and cannot be opened for another reason, or hangs.
        """
        library, generation = self._enter()
        try:
            yield Session(_binding, library, generation, close=self._close_when_idle)
        finally:
            _binding.leave(close=self._close_when_idle)

    def _enter(self) -> tuple[Library, int]:
        """Enter the first library that opens."""
        failures = []
        for library in find_libraries(self._host, self._root):
            try:
                return library, _binding.enter(library)
            except OSError as error:
                failures.append(f"{library.path}: {error}")
            except pynvml.NVMLError as error:
                raise self._missing(library, error) from None
        if failures:
            raise DriverMissingError("; ".join(failures), partial=True)
        version = module_version(self._host)
        where = driver_host(self._host, self._root).root
        if version is None:
            raise DriverMissingError(f"no NVIDIA driver: no {NAME} below {where}", partial=False)
        raise DriverMissingError(
            f"the kernel module of NVIDIA driver {version} is loaded, but there is no {NAME} below {where} "
            "(option driverRoot)",
            partial=True,
        )

    def _missing(self, library: Library, error: pynvml.NVMLError) -> BackendError:
        """Return the error for a library that is there and whose driver does not answer."""
        version = module_version(self._host)
        module = f"kernel module {version}" if version else "no kernel module is loaded"
        text = f"{library.path}: {error_text(error)} ({module})"
        code = getattr(error, "value", 0)
        if code in _GONE or code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return DriverMissingError(text, partial=True)
        return UnavailableError(text)

    @contextlib.contextmanager
    def closed(self, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
        """Keep the library shut down meanwhile, as the kernel module wants it to let go of a GPU.

        Sessions that are open are told that they are over (`Session.is_over`); raises UnavailableError where they do
        not end in so many seconds. New ones wait.
        """
        with _binding.kept_closed(seconds):
            yield

    def close(self) -> None:
        """Shut the library down where nobody is in a session any more."""
        with contextlib.suppress(UnavailableError), _binding.kept_closed(0.0, _CLOSE_SECONDS):
            pass


class _Binding:
    """The one library that pynvml has, for all of this process.

    Only who is `_busy` opens or closes. It does so aside and without the lock, since both may hang: then it is busy for
    as long as that lasts, and everybody is told so at once (`_hang`).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._library: Library | None = None
        self._loaded: ctypes.CDLL | None = None
        self._generation = 0
        self._users = 0
        self._over = False
        self._busy = False
        self._doing = ""
        self._hang = ""
        self._files: dict[Path, list[tuple[int, int, int]]] = {}

    def enter(self, library: Library) -> int:
        """Count one more user of a library, opened where it is not; return the number of its session.

        Raises OSError where it cannot be loaded, NVMLError where it does not begin, UnavailableError where it hangs, or
        others are in the way for too long.
        """
        with self._changed:
            end = time.monotonic() + PATIENCE_SECONDS
            while self._busy or (self._users and (self._over or self._library != library)):
                if self._library is not None and self._library != library:
                    self._over = True
                self._check_hang()
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    if self._doing:
                        raise self._overdue(PATIENCE_SECONDS)
                    raise UnavailableError(
                        f"{library.path}: NVML is in use by others, or kept closed for them"
                    )
            if self._library == library and not self._over and pynvml.nvmlLib is self._loaded:
                self._users += 1
                return self._generation
            self._busy = True
        self._change(lambda: self._reopen(library))
        return self._done(library, users=1)

    def join(self, generation: int) -> None:
        """Count one more user of a session that somebody is in. Raises UnavailableError where nobody is any more."""
        with self._changed:
            if generation != self._generation or not self._users:
                raise UnavailableError("the session of NVML has ended")
            self._users += 1

    def leave(self, *, close: bool) -> None:
        """Count one user less; shut the library down behind the last one where it is over, or is to be closed."""
        with self._changed:
            self._users -= 1
            self._changed.notify_all()
            if self._users or self._busy or not (close or self._over):
                return
            self._busy = True
        try:
            self._change(self._shut)
        except DriverHangsError as error:
            log.warning("%s", error)
        else:
            self._done(None)

    def end(self, generation: int) -> None:
        """Have a session end, as the driver does not serve it any more."""
        with self._changed:
            if generation == self._generation:
                self._over = True

    def is_over(self, generation: int) -> bool:
        """Return whether a session is to end."""
        return self._over or generation != self._generation

    @contextlib.contextmanager
    def kept_closed(self, seconds: float, patience: float | None = None) -> Iterator[None]:
        """Wait for all users to leave, and keep the library closed. Raises UnavailableError.

        patience   seconds that closing may take, in place of PATIENCE_SECONDS
        """
        with self._changed:
            end = time.monotonic() + seconds
            while self._busy or self._users:
                self._check_hang()
                self._over = self._over or self._users > 0
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    raise UnavailableError(f"NVML is in use, and was not closed within {seconds:g} s")
            self._busy = True
        self._change(self._shut, patience)
        try:
            yield
        finally:
            self._done(None)

    def _check_hang(self) -> None:
        """Raise DriverHangsError where opening or closing hangs."""
        if self._hang:
            raise DriverHangsError(self._hang)

    def _overdue(self, seconds: float) -> DriverHangsError:
        return DriverHangsError(f"{self._doing or 'NVML'} did not return within {seconds:g} s")

    def _change(self, work: Callable[[], Library | None], patience: float | None = None) -> None:
        """Open or close the library; `work` returns the one that is open then. Who is busy calls it.

        Raises what `work` raises, and DriverHangsError where it hangs; neither leaves the caller busy.
        """
        patience = PATIENCE_SECONDS if patience is None else patience
        change: Bounded[Library | None] = Bounded("nvml", work, lambda: self._settle(change))
        if not change.ends_within(patience):
            with self._changed:
                if not change.done.is_set():
                    self._hang = str(self._overdue(patience))
                    self._changed.notify_all()
                raise self._overdue(patience)
        self._doing = ""
        try:
            change.result()
        except BaseException:
            self._done(None)
            raise

    def _settle(self, change: Bounded[Library | None]) -> None:
        """Take in what came of opening or closing that was not waited for any more."""
        library = None
        try:
            library = change.result()
        except Exception as error:  # noqa: BLE001 - nobody waits for it any more, and others wait to be next
            log.debug("%s: %s", self._doing, error)
        self._doing = ""
        self._done(library)

    def _done(self, library: Library | None, users: int = 0) -> int:
        """Be busy no more: this library is open, with so many users. Return the number of its session."""
        with self._changed:
            self._library = library
            self._busy = False
            self._over = False
            self._hang = ""
            if library is not None:
                self._generation += 1
                self._users = users
            self._changed.notify_all()
            return self._generation

    def _reopen(self, library: Library) -> Library:
        """Close what is open, and open a library. Raises OSError and NVMLError."""
        self._shut()
        self._doing = f"{library.path}: loading it"
        self._open(library)
        return library

    def _open(self, library: Library) -> None:
        # The dynamic loader takes a name that it knows for the library that it has. A file that took another's place
        # is loaded by another spelling of its path.
        files = self._files.setdefault(library.path, [])
        if library.file not in files:
            files.append(library.file)
        spelling = f"{library.path.parent}{'/.' * files.index(library.file)}/{library.path.name}"
        self._loaded = pynvml.nvmlLib = ctypes.CDLL(spelling)
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it holds functions of the library before
        self._doing = f"{library.path}: nvmlInit"
        try:
            pynvml.nvmlInitWithFlags(_NO_GPUS)
        except pynvml.NVMLError as error:
            if getattr(error, "value", 0) != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            pynvml.nvmlInit()

    def _shut(self) -> None:
        if self._library is None or pynvml.nvmlLib is not self._loaded:
            return
        self._doing = f"{self._library.path}: nvmlShutdown"
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            log.debug("nvmlShutdown: %s", error_text(error))


_binding = _Binding()


def error_text(error: pynvml.NVMLError) -> str:
    """Return what NVML says of an error, as one line of bounded length."""
    try:
        text = str(error)
    except (pynvml.NVMLError, UnicodeDecodeError):
        text = f"error {getattr(error, 'value', '?')}"
    line = text if text.isprintable() else ascii(text)[1:-1]
    return line[:200] or f"error {getattr(error, 'value', '?')}"
