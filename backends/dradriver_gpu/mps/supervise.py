"""The keeper's first process, which does next to nothing, so that nothing ends it.

A container ends with its first process, and all of its other processes with that: the control daemons too. So the work
is done by a second process, which is started again when it ends. The first one is also the parent of processes that
lost theirs, as daemons do, and hears of their ends.
"""

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from dradriver.backoff import delays

log = logging.getLogger("dradriver.mps")

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_STOPS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (signal.SIGCHLD, *_STOPS)

LASTED_SECONDS = 60.0
"""A process that ran for so long is started again without delay."""

_libc = ctypes.CDLL(None, use_errno=True)


def supervise(work: Callable[[threading.Event], int], ended: Callable[[int, str], None]) -> int:
    """Have `work` run in a process of its own until SIGTERM or SIGINT; return the exit code.

    work    is given what is set at a signal, and returns an exit code: 0 only once it has been set
    ended   is told of other processes that ended, and how
    """
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    stopping = False
    waiting = delays(0.5, 30.0)
    while True:
        began = time.monotonic()
        worker = _start(work, stopping=stopping)
        code, stopping = _watch(worker, ended, stopping=stopping)
        if code == "exit code 0" and stopping:
            return 0
        log.error("the process at work ended: %s", code)
        if stopping:
            return 1
        if time.monotonic() - began > LASTED_SECONDS:
            waiting = delays(0.5, 30.0)
        # A signal that comes meanwhile has the next process end all daemons at once.
        stopping = signal.sigtimedwait(_STOPS, next(waiting)) is not None


def _start(work: Callable[[threading.Event], int], *, stopping: bool) -> int:
    """Start a process that does the work and ends with this one; return its number."""
    parent = os.getpid()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            code = _work(work, stopping=stopping)
    except BaseException:
        log.exception("the process at work failed")
    finally:
        logging.shutdown()
        os._exit(code)


def _work(work: Callable[[threading.Event], int], *, stopping: bool) -> int:
    """Do the work in a thread: a signal is handled in the first one, which must not hold what the handler takes."""
    stop = threading.Event()
    if stopping:
        stop.set()
    codes: list[int] = []
    for number in _STOPS:
        signal.signal(number, lambda *_: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    thread = threading.Thread(target=lambda: codes.append(work(stop)), daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.25)
    return codes[0] if codes else 1


def _watch(worker: int, ended: Callable[[int, str], None], *, stopping: bool) -> tuple[str, bool]:
    """Pass signals on until a process has ended; return how it ended, and whether there was a signal to stop."""
    while True:
        info = signal.sigtimedwait(_SIGNALS, 60.0)
        if info and info.si_signo in _STOPS:
            stopping = True
            os.kill(worker, signal.SIGTERM)
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if process == 0:
                break
            if process == worker:
                return _how(status), stopping
            ended(process, _how(status))


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


__all__ = ["supervise"]
