"""Asks the daemon of this pod whether it answers, as the kubelet asks: what the pod's probes run.

    python -m dradriver.kubelet.probe [--root DIR] [--prepare] DRIVER...

A process of its own every few seconds on every node, whose memory counts as the pod's: so it imports neither the
command line nor the daemon, and reads no configuration. Which instance it asks follows from POD_UID, as for the daemon.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from dradriver.kubelet.sockets import KUBELET_ROOT, SocketPaths, unix_target
from dradriver.model import shown
from dradriver_protos import (
    PLUGIN_TYPE,
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)

SECONDS = 5.0
"""For all calls together; a probe's `timeoutSeconds` should leave some for the start of the process."""


class ProbeError(Exception):
    """A driver does not answer as it should: one line."""


def probe(driver: str, paths: SocketPaths, deadline: float, *, prepare: bool) -> None:
    """Ask one driver who it is, and with `prepare` call NodePrepareResources for no claims. Raises ProbeError.

    A daemon that waits for another instance to end answers both. `deadline` is in seconds of time.monotonic().
    """
    info = _call(
        f"{driver}: GetInfo",
        paths.registration,
        lambda channel: registration_pb2_grpc.RegistrationStub(channel).GetInfo,
        registration_pb2.InfoRequest(),
        deadline,
    )
    told, expected = (info.type, info.name, info.endpoint), (PLUGIN_TYPE, driver, str(paths.service))
    if told != expected:
        raise ProbeError(
            f"{driver}: GetInfo answered {', '.join(map(shown, told))}: {', '.join(expected)} is expected"
        )
    if not prepare:
        return
    answer = _call(
        f"{driver}: NodePrepareResources",
        paths.service,
        lambda channel: dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources,
        dra_v1_pb2.NodePrepareResourcesRequest(),
        deadline,
    )
    if answer.claims:
        raise ProbeError(f"{driver}: NodePrepareResources answered for claims that nobody asked for")


def _call(what: str, socket: Path, method: Any, request: Any, deadline: float) -> Any:
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(unix_target(socket), options=options) as channel:
        try:
            return method(channel)(request, timeout=max(0.0, deadline - time.monotonic()))
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {shown(error.details() or '', 300)}"
            raise ProbeError(f"{what} at {socket} failed: {reason}") from None


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Probe; return 0 where every driver answers, otherwise 1 after one line that says what does not."""
    options = _parser().parse_args(arguments)
    deadline = time.monotonic() + SECONDS
    instance = environment.get("POD_UID") or None
    try:
        for driver in options.drivers:
            probe(driver, SocketPaths.of(driver, options.root, instance), deadline, prepare=options.prepare)
    except (ProbeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dradriver.kubelet.probe",
        description="Ask the daemon of this pod (POD_UID) whether it answers, as the kubelet asks.",
    )
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        default=KUBELET_ROOT,
        help=f"the kubelet's root directory; {KUBELET_ROOT} without it",
    )
    parser.add_argument(
        "--prepare", action="store_true", help="also call NodePrepareResources, for no claims"
    )
    parser.add_argument("drivers", nargs="+", metavar="DRIVER", help="names of the daemon's drivers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
