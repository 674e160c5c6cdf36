"""Programs of a driver root and of a host, as shell scripts that do as the real ones do and note their calls."""

import contextlib
import functools
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from dradriver.host import Host

_NOTE = """#!/bin/sh
# One write a call, so that calls at the same time leave their lines whole.
note() {{
    printf '%s\\n' "$(printf '%s\\037' "$@")"
}}
note {name} "$@" >> {notes}
"""

_SMI = """
test "$1" = compute-policy || exit 2
file={state}/timeslice-"$3"
case "$4" in
--set-timeslice) test -e {state}/smi-fails && {{ echo "Not Supported"; exit 3; }}; echo "$5" > "$file" ;;
-l) number=$(cat "$file" 2> /dev/null || echo 0)
    set -- Default Short Medium Long
    shift "$number"
    echo "| GPU     Name        Value            |"
    echo "|   0     Timeslice   $1             |" ;;
esac
"""

# The control daemon takes commands on its standard input; with -f it is the daemon.
_MPS = """
pipe=$CUDA_MPS_PIPE_DIRECTORY
if test "$1" = -f; then
    test -e {state}/mps-fails && {{ echo "cannot start" > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit 1; }}
    test -e {state}/mps-slow && sleep 0.3
    env | grep -E '^(CUDA|LD)_' | sort > {state}/environment
    test -e {state}/mps-servers && sleep 600 &
    touch "${{STUB_SHM:-/dev/shm}}/cuda.shm"
    echo $$ > "$pipe/nvidia-cuda-mps-control.pid"
    trap 'exit 0' TERM
    while test -d "$pipe" && sleep 0.1; do :; done
    exit 0
fi
daemon=$(cat "$pipe/nvidia-cuda-mps-control.pid" 2> /dev/null) && kill -0 "$daemon" 2> /dev/null || {{
    echo "Cannot find MPS control daemon process"
    exit 1
}}
while read -r line; do
    note "$line" >> {state}/commands
    case "$line" in
    quit) test -e {state}/mps-stubborn || kill "$daemon" ;;
    start_server*) touch "$pipe/server" ;;
    get_server_list) test -e "$pipe/server" && echo 4711 ;;
    set_*) ;;
    *) echo "unknown command"; exit 1 ;;
    esac
done
exit 0
"""

_RUN = """
while test "$1" != --; do
    case "$1" in
    --unit=*) unit=${{1#--unit=}} ;;
    --setenv=*) export "${{1#--setenv=}}" ;;
    esac
    shift
done
shift
test -e {state}/unit-"$unit" && {{ echo "Unit $unit was already loaded" >&2; exit 1; }}
program={root}$1
shift
export STUB_SHM={state}
for name in CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; do
    eval "export $name={root}\\$$name"
done
setsid "$program" "$@" < /dev/null > /dev/null 2>&1 &
echo $! > {state}/unit-"$unit"
"""

_SYSTEMCTL = """
verb=$1
for unit in "$@"; do :; done
file={state}/unit-$unit
process=$(cat "$file" 2> /dev/null)
alive() {{ test -n "$process" && kill -0 "$process" 2> /dev/null; }}
alive || rm -f "$file"
case "$verb" in
show) if alive; then echo active; else echo inactive; fi ;;
stop) if alive; then kill "$process"; while alive; do sleep 0.02; done; fi; rm -f "$file" ;;
esac
"""


class GpuTools:
    """The programs below a host root, whose driver root is `/`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.state = root / "tools"
        self.state.mkdir()
        make_enterable(root)
        self._write("usr/bin/nvidia-smi", _SMI)
        self._write("usr/bin/nvidia-cuda-mps-control", _MPS)
        self._write("usr/bin/systemd-run", _RUN)
        self._write("usr/bin/systemctl", _SYSTEMCTL)
        self.booted = root / "run/systemd/system"
        self.booted.mkdir(parents=True)

    def _write(self, path: str, text: str) -> None:
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        words = {
            "name": file.name,
            "notes": shlex.quote(str(self.state / "notes")),
            "state": shlex.quote(str(self.state)),
            "root": shlex.quote(str(self._root)),
        }
        file.unlink(missing_ok=True)
        file.write_text((_NOTE + text).format(**words))
        file.chmod(0o755)

    def remove(self, name: str) -> None:
        """Remove a program."""
        (self._root / "usr/bin" / name).unlink()

    def set(self, flag: str, *, there: bool = True) -> None:
        """Have a flag, by which a program misbehaves, or not."""
        if there:
            (self.state / flag).touch()
        else:
            (self.state / flag).unlink(missing_ok=True)

    def calls(self, name: str) -> list[list[str]]:
        """Return the arguments of each call of a program."""
        notes = self.state / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        words = [line.split("\037")[:-1] for line in lines]
        return [call[1:] for call in words if call[0] == name]

    def commands(self) -> list[str]:
        """Return the commands that control daemons got, without the questions."""
        file = self.state / "commands"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.rstrip("\037") for line in lines if line != "get_server_list\037"]

    def timeslice(self, uuid: str) -> int:
        """Return the time slice of a GPU."""
        file = self.state / f"timeslice-{uuid}"
        return int(file.read_text()) if file.exists() else 0

    def environment(self) -> dict[str, str]:
        """Return what the last control daemon had in its environment."""
        lines = (self.state / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def daemons(self) -> list[int]:
        """Return the control daemons that run."""
        files = self._root.glob("run/dradriver-gpu/mps/*/pipe/nvidia-cuda-mps-control.pid")
        return [number for number in (int(file.read_text()) for file in files) if runs(number)]

    def kill(self) -> None:
        """End all control daemons, whatever a test has left of them."""
        for number in self.daemons():
            os.kill(number, 9)


def make_enterable(root: Path) -> None:
    """Have what the scripts need in a root directory, so that they run with that as their own: chroot(2)."""
    host = Host(root)
    for source, path in _needed():
        target = host.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            try:
                target.hardlink_to(source)
            except OSError:  # on another file system
                shutil.copy(source, target)
    null = root / "dev/null"
    null.parent.mkdir(exist_ok=True)
    null.touch()
    # What is written by its path on this machine is found by it in there too.
    itself = root / str(root).lstrip("/")
    itself.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        itself.symlink_to("/")


@functools.cache
def _needed() -> tuple[tuple[Path, str], ...]:
    """Return the files of this machine, and where they belong."""
    found = {}
    for program in ("sh", "cat", "env", "grep", "sleep", "sort", "touch"):
        path = shutil.which(program)
        assert path
        found[f"/bin/{program}"] = Path(path).resolve()
        done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            library = next((word for word in line.split() if word.startswith("/")), None)
            if library:
                found[library] = Path(library).resolve()
    return tuple((source, path) for path, source in found.items())


def runs(process: int) -> bool:
    """Return whether a process runs."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends while the file is open
        return False
