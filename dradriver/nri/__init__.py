"""The container runtime's side of a node: told of pods and containers before they run, by NRI.

NRI is the Node Resource Interface of containerd and CRI-O. A plugin connects to the runtime's socket, registers, is
given all pods and containers that there are, and is then asked about each as it comes and goes.
"""

from dradriver.nri.events import Container, Pod, RefusedError, RuntimeHandler, Update
from dradriver.nri.plugin import OFF, SOCKET, NriPlugin, NriState, NriStatus

__all__ = [
    "OFF",
    "SOCKET",
    "Container",
    "NriPlugin",
    "NriState",
    "NriStatus",
    "Pod",
    "RefusedError",
    "RuntimeHandler",
    "Update",
]
