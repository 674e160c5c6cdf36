"""The command line, run for tests: each command is a process of its own, forked from one that has imported it all.

Starting an interpreter and importing costs ten times what most commands do. For each line on its standard input, a
command in JSON, this script forks before it has ever had a thread or a connection; the child becomes what `python -m
dradriver` is. It prints a line for each: the wait status.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SECONDS = 120.0
"""How long a command may take."""

_IMPORTED = (
    "dradriver.cli.commands",
    "dradriver.cli.inspect",
    "dradriver.cli.kubelet",
    "dradriver.cli.sim",
    "dradriver.daemon.daemon",
    "dradriver.inspect.checks",
    "dradriver.inspect.topology",
    "dradriver.sim.apiserver",
    "dradriver.sim.cluster",
    "dradriver.sim.pods",
    "dradriver_cpu",
    "dradriver_fake",
    "dradriver_memory",
    "kubernetes.config",
    "rich.console",
    "rich.table",
)


def dradriver(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, in a directory, with more in its environment."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as scratch:
        output, errors = Path(scratch, "stdout"), Path(scratch, "stderr")
        status = _server().run(
            {
                "arguments": words,
                "environment": {**os.environ, **(environment or {})},
                "directory": str(directory or Path.cwd()),
                "output": str(output),
                "errors": str(errors),
            }
        )
        return subprocess.CompletedProcess(words, status, output.read_text(), errors.read_text())


class _Server:
    """The process that forks."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._process.communicate)

    def run(self, command: Mapping[str, Any]) -> int:
        """Run a command; return its exit code, negative for a signal."""
        assert self._process.stdin
        assert self._process.stdout
        with self._guard:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            status = int(self._process.stdout.readline())
        assert status != -signal.SIGKILL, f"{command['arguments']} took longer than {SECONDS:g} s"
        return status


@functools.cache
def _server() -> _Server:
    return _Server()


def _serve() -> None:
    """Serve commands until the end of the input; return in each child that has become one."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
            return
        ended = os.pidfd_open(child)
        if not select.select([ended], [], [], SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
        os.close(ended)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(command: Mapping[str, Any]) -> None:
    """Be the process of a command, with nothing of the server's open, and do it."""
    for descriptor, path in enumerate((os.devnull, command["output"], command["errors"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(command["directory"])
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.argv = ["dradriver", *command["arguments"]]
    runpy.run_module("dradriver", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
