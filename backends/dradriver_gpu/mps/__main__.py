"""Running the keeper: `python -m dradriver_gpu.mps`, or `dradriver-gpu-mps`."""

import argparse
import logging
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dradriver.host import Host
from dradriver.model.names import check_absolute
from dradriver_gpu.mps.keeper import KeeperError, make_keeper
from dradriver_gpu.mps.kept import KeptMps
from dradriver_gpu.mps.process import NOTE, read_note
from dradriver_gpu.mps.supervise import supervise
from dradriver_gpu.options import GpuOptions

log = logging.getLogger("dradriver.mps")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT, and then end all control daemons; return the exit code."""
    options = arguments_of(arguments)
    host = Host(options.host_root)
    daemons = KeptMps(host, options.run_directory)
    if options.check:
        return _check(daemons)
    _set_up()

    def work(stop: threading.Event) -> int:
        try:
            make_keeper(host, options.run_directory, options.driver_root).run(stop)
        except (KeeperError, OSError) as error:
            log.error("%s", error)
            return 1
        return 0

    def ended(process: int, how: str) -> None:
        for name in daemons.names():
            noted = read_note(host.path(f"{daemons.home(name)}/{NOTE}"))
            if noted and noted[0] == process:
                level = logging.INFO if how == "exit code 0" else logging.WARNING
                log.log(level, "MPS control daemon %s ended: %s", name, how)

    return supervise(work, ended)


def _check(daemons: KeptMps) -> int:
    """Return 0 where a keeper answers."""
    trouble = daemons.unanswered()
    if trouble:
        sys.stderr.write(f"dradriver-gpu-mps: {trouble}\n")
    return 1 if trouble else 0


def _set_up() -> None:
    """Log to standard error, as the daemon does."""
    formatter = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; those of this process for None. Ends it where they are wrong."""
    defaults = GpuOptions()
    parser = argparse.ArgumentParser(
        prog="dradriver-gpu-mps",
        description="Keep the MPS control daemons that dradriver asks for (option mpsLauncher: pod), until SIGTERM.",
    )
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="where the host's files are seen: hostRoot of the configuration",
    )
    parser.add_argument(
        "--driver-root",
        type=_directory,
        default=defaults.driver_root,
        metavar="DIR",
        help="root of the driver, below that: option driverRoot",
    )
    parser.add_argument(
        "--run-directory",
        type=_directory,
        default=defaults.run_directory,
        metavar="DIR",
        help="where sockets and daemons are, below that: option runDirectory",
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with 0 where a keeper answers, with 1 where not"
    )
    return parser.parse_args(words)


def _directory(text: str) -> str:
    try:
        return check_absolute(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
