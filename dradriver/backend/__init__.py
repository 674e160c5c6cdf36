"""The backend API: what a device kind programs against, beside `dradriver.model` and `dradriver.host`.

Facts: the plugin contract is that of Kubernetes DRA (KEP-4381); container edits are CDI's.
"""

from dradriver.backend.api import Backend, Binding, Plan, PlannedDevice, Request, Requested
from dradriver.backend.config import API_VERSION, ClaimConfig, ConfigError, NoOptions, Strict, decode
from dradriver.backend.errors import BackendError, PlanError, TransientError, UnavailableError
from dradriver.backend.steps import (
    Check,
    ContainerAdjustment,
    ContainerStep,
    HostStep,
    Observed,
    Phase,
    Step,
    Work,
)
from dradriver_cdi import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice

__all__ = [
    "API_VERSION",
    "Backend",
    "BackendError",
    "Binding",
    "Check",
    "ClaimConfig",
    "ConfigError",
    "ContainerAdjustment",
    "ContainerEdits",
    "ContainerStep",
    "DeviceNode",
    "Hook",
    "HostStep",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "NoOptions",
    "Observed",
    "Phase",
    "Plan",
    "PlanError",
    "PlannedDevice",
    "Request",
    "Requested",
    "Step",
    "Strict",
    "TransientError",
    "UnavailableError",
    "Work",
    "decode",
]
