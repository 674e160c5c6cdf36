"""Running the daemon: `python -m dradriver.daemon`, and what `dradriver run` calls.

The argument parser is the standard library's: a daemon on every node should not carry the command line's packages.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from dradriver.config import Settings, SettingsError, load
from dradriver.daemon.daemon import Daemon, make_directories
from dradriver.daemon.logs import set_up

log = logging.getLogger("dradriver.daemon")

EXIT_FAILED = 1
EXIT_CONFIGURATION = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    0 after a signal; 2 where the configuration is wrong, and trying again is useless; 1 where something else kept the
    daemon from its start.
    """
    options = _parser().parse_args(arguments)
    try:
        settings = load(options.config, options.dir, kubeconfig=options.kubeconfig)
        set_up(settings.log)
        daemon = Daemon(settings)
    except SettingsError as error:
        sys.stderr.write(f"dradriver: {error}\n")
        return EXIT_CONFIGURATION
    try:
        if options.dir:
            make_directories(settings, options.dir)
    except OSError as error:
        sys.stderr.write(f"dradriver: {error}\n")
        return EXIT_FAILED
    return _run(daemon, settings)


def _run(daemon: Daemon, settings: Settings) -> int:
    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        daemon.ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    log.info("node %s: state in %s, CDI files in %s", settings.node, settings.state, settings.cdi)
    try:
        daemon.start()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"dradriver: {error}\n")
        daemon.stop()
        return EXIT_FAILED
    # With a limit: a signal that arrives just before the main thread goes to sleep is handled when it wakes up.
    while not daemon.ended.wait(0.25):
        pass
    if daemon.failed:
        log.error("%s: starting again is needed", daemon.failed)
    log.info("stopping")
    left = daemon.stop()
    if left:
        log.warning("still at work at the end: %s", ", ".join(left))
    log.info("stopped")
    return EXIT_FAILED if daemon.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dradriver run", description="Probe this node, publish its devices, and serve the kubelet."
    )
    environment = os.environ
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=environment.get("DRADRIVER_CONFIG") or None,
        help="configuration file (docs/configuration.md); all defaults without it [env: DRADRIVER_CONFIG]",
    )
    parser.add_argument(
        "--dir",
        type=lambda text: Path(text).absolute(),
        metavar="DIR",
        default=environment.get("DRADRIVER_DIR") or None,
        help="keep everything, sockets included, below DIR instead of the system's places [env: DRADRIVER_DIR]",
    )
    parser.add_argument(
        "--kubeconfig",
        type=lambda text: Path(text).absolute(),
        metavar="FILE",
        default=environment.get("DRADRIVER_KUBECONFIG") or None,
        help="work with the API server that this kubeconfig names [env: DRADRIVER_KUBECONFIG]",
    )
    return parser


def exit_at_once(code: int) -> None:
    """End the process without waiting for threads: a vendor call that hangs must not hold it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    exit_at_once(main())
