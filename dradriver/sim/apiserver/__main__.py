"""The stand-in API server as a process of its own: `python -m dradriver.sim.apiserver`."""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from dradriver.sim.apiserver.rules import Gates
from dradriver.sim.apiserver.server import ApiServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code: 0 after a signal, 1 where it cannot start, 2 for arguments.

    When it is ready, its URL is printed, and the kubeconfig's path where one was asked for.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        server = ApiServer(
            version=options.version,
            gates=dict(options.gate),
            tls=options.tls,
            port=options.port,
            token=options.token,
        )
    except ValueError as error:
        sys.stderr.write(f"apiserver: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"apiserver: {error}\n")
        return 1
    server.faults.latency = options.latency
    server.faults.error_rate = options.error_rate
    try:
        server.start()
    except OSError as error:
        sys.stderr.write(f"apiserver: port {options.port} cannot be had: {error.strerror or error}\n")
        server.stop()
        return 1
    try:
        if options.kubeconfig is not None:
            server.write_kubeconfig(options.kubeconfig)
    except OSError as error:
        sys.stderr.write(f"apiserver: {error}\n")
        server.stop()
        return 1
    shown = f"{server.url}\n" + (f"{options.kubeconfig}\n" if options.kubeconfig else "")
    sys.stdout.write(shown)
    sys.stdout.flush()
    # With a limit: a signal that arrives just before the main thread goes to sleep is handled when it wakes up.
    while not ended.wait(0.5):
        pass
    server.stop()
    return 0


def _gate(text: str) -> tuple[str, bool]:
    try:
        return Gates.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1
    if not 0 <= port < 65536:
        raise argparse.ArgumentTypeError(f"{text!r}: 0 to 65535 is expected")
    return port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dradriver.sim.apiserver", description="A stand-in for the Kubernetes API server."
    )
    parser.add_argument("--port", type=_port, default=0, help="to listen on; any free one without")
    parser.add_argument(
        "--version", default="1.36", help="of Kubernetes, 1.34 to 1.37 (default: %(default)s)"
    )
    parser.add_argument(
        "--gate",
        action="append",
        default=[],
        type=_gate,
        metavar="NAME=BOOL",
        help="a feature gate; can be repeated",
    )
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="write a kubeconfig there")
    parser.add_argument("--token", default="", help="bearer token that clients need")
    parser.add_argument("--tls", action="store_true", help="serve HTTPS with a certificate of its own")
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="of every request")
    parser.add_argument(
        "--error-rate", type=float, default=0.0, metavar="SHARE", help="of the requests that fail, 0 to 1"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
