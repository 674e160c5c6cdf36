"""The side that faces the kubelet: registration, the DRA service in both versions, and the health streams."""

import os

# gRPC's fork handlers hold up subprocesses and do not make os.fork() safe. gRPC reads the variable when it is
# first imported, and this package is imported before any of its modules, so here is early enough.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from dradriver.kubelet.health import DeviceState, HealthBoard, HealthSnapshot
from dradriver.kubelet.plugin import Plugin, Registration
from dradriver.kubelet.service import Preparer
from dradriver.kubelet.sockets import KUBELET_ROOT, SocketInUseError, SocketPaths, remove_dead, unix_target

__all__ = [
    "KUBELET_ROOT",
    "DeviceState",
    "HealthBoard",
    "HealthSnapshot",
    "Plugin",
    "Preparer",
    "Registration",
    "SocketInUseError",
    "SocketPaths",
    "remove_dead",
    "unix_target",
]
