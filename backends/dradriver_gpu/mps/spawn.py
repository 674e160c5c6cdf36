"""Starts an MPS control daemon as a process of its own: a script that imports nothing of ours.

Orders come as JSON on standard input. The process gets a session and a mount namespace of its own, sees directories of
ours in its root, its /dev/shm among them, and is noted with its start time (proc(5)) before it becomes the daemon.
Until it is noted it dies with who ordered it, so that nobody starts what nobody knows of.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Start it; return 0 once it is noted."""
    orders = json.load(sys.stdin)
    _die_with(orders["parent"])
    orders["launcher"] = os.getpid()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        try:
            _become(orders)
        except OSError as error:
            os.write(writing, str(error).encode())
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        trouble = pipe.read()  # closed by exec
    sys.stderr.write(trouble)
    return 1 if trouble else 0


def _die_with(parent: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _bind(source: str, target: str) -> None:
    Path(target).mkdir(parents=True, exist_ok=True)
    result = _libc.mount(source.encode(), target.encode(), None, _MS_BIND, None)
    _check(result, f"mount of {source} on {target}")


def _become(orders: dict[str, Any]) -> None:
    """Become the daemon; come back with OSError only."""
    _die_with(orders["launcher"])
    os.setsid()
    # As programs expect it, whatever dradriver's unit has: users' processes open what the daemon makes.
    os.umask(0o022)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    output = os.open(orders["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    note = Path(orders["note"])
    _check(_libc.unshare(_CLONE_NEWNS), "a mount namespace")
    # Mounts of the host still arrive here; ours do not leave.
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "mount namespace")
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    new = note.with_suffix(".new")
    new.write_text(json.dumps({"process": os.getpid(), "started": started}))
    new.replace(note)
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    for source, target in orders["binds"]:
        _bind(source, target)
    if orders["root"] != "/":
        os.chroot(orders["root"])
    os.chdir("/")
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.execve(orders["command"][0], orders["command"], orders["environment"])  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    sys.exit(main())
