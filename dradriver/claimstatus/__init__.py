"""Claim status: what the API server is told of the devices of prepared claims."""

from dradriver.claimstatus.devices import DeviceStatuses, Place, device_statuses, place_of_entry, timestamp
from dradriver.claimstatus.writer import (
    MAX_FAILURES,
    MAX_REFUSALS,
    REQUEST_SECONDS,
    ClaimStatusWriter,
    apply_devices,
    extra_wait,
    is_over,
    may_pass,
)

__all__ = [
    "MAX_FAILURES",
    "MAX_REFUSALS",
    "REQUEST_SECONDS",
    "ClaimStatusWriter",
    "DeviceStatuses",
    "Place",
    "apply_devices",
    "device_statuses",
    "extra_wait",
    "is_over",
    "may_pass",
    "place_of_entry",
    "timestamp",
]
