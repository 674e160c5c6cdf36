"""Claim status: what the API server is told of the devices of prepared claims."""

from dradriver.claimstatus.devices import DeviceStatuses, device_statuses
from dradriver.claimstatus.writer import ClaimStatusWriter

__all__ = ["ClaimStatusWriter", "DeviceStatuses", "device_statuses"]
