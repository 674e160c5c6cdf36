"""What a claim's `status.devices` says of its prepared devices. Pure.

Facts: k8s.io/api/resource/v1 `AllocatedDeviceStatus`. The server refuses the status of the whole claim over one wrong
entry, so what does not fit is left out here, and said.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dradriver.claims import network_body
from dradriver.engine import DeviceRecord, Record
from dradriver.model import shown

READY = "Ready"
"""The condition that all entries have. Its reasons:"""

PREPARED, IN_SANDBOX, WAITING_FOR_SANDBOX = "Prepared", "InSandbox", "WaitingForSandbox"
MAX_DATA = 10 << 10
"""Bytes of `data` as JSON text."""

Place = tuple[str, str, str, str]
"""Driver, pool, device and share id (empty for none): by these the server tells entries apart."""


@dataclass(frozen=True, slots=True)
class DeviceStatuses:
    """The entries of one claim, and sentences on what could not be said of its devices."""

    entries: tuple[dict[str, Any], ...]
    faults: tuple[str, ...] = ()


def device_statuses(records: Iterable[Record]) -> DeviceStatuses:
    """Return the entries for the prepared parts of one claim, a part for each driver.

    A device that was allocated twice without shares, as two monitors may have it, has one entry.
    """
    entries: dict[Place, dict[str, Any]] = {}
    faults: list[str] = []
    for record in records:
        for device in record.devices:
            place = place_of(device)
            if place not in entries:
                entries[place], lost = _entry(record, device)
                faults += (f"device {device.allocated.device}: {fault}" for fault in lost)
    return DeviceStatuses(tuple(entries.values()), tuple(faults))


def place_of(device: DeviceRecord) -> Place:
    """Return what tells the entry of a device from others."""
    allocated = device.allocated
    return allocated.driver, allocated.pool, allocated.device, allocated.share_id or ""


def place_of_entry(entry: Mapping[str, Any]) -> Place:
    """Return what tells an entry from others, whatever stands in it."""
    return (
        str(entry.get("driver")),
        str(entry.get("pool")),
        str(entry.get("device")),
        str(entry.get("shareID") or ""),
    )


def timestamp(seconds: float) -> str:
    """Return a time, in seconds since 1970, as the API has it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def digest(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return a short text that is another for other entries."""
    text = json.dumps(list(entries), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_told(entries: Iterable[Mapping[str, Any]], claim: object) -> bool:
    """Whether a claim object, as the server gave it out, has these entries already, whatever else it has."""
    stored: dict[Place, Mapping[str, Any]] = {}
    match claim:
        case {"status": {"devices": list(devices)}}:
            for found in devices:
                if isinstance(found, Mapping):
                    stored[place_of_entry(found)] = found
    return all(_has(stored.get(place_of_entry(entry), {}), entry) for entry in entries)


def _has(stored: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Whether a stored entry says all that ours does; others may have added conditions of their own."""
    conditions = stored.get("conditions") or []
    return all(
        all(condition in conditions for condition in value)
        if name == "conditions"
        else stored.get(name) == value
        for name, value in entry.items()
    )


def _entry(record: Record, device: DeviceRecord) -> tuple[dict[str, Any], list[str]]:
    driver, pool, name, share = place_of(device)
    entry: dict[str, Any] = {
        "driver": driver,
        "pool": pool,
        "device": name,
        **({"shareID": share} if share else {}),
        "conditions": [_ready(record)],
    }
    data, faults = _data(device.metadata)
    if data:
        entry["data"] = data
    if device.network and record.is_open:
        network, lost = network_body(device.network)
        faults += (f"networkData.{fault}" for fault in lost)
        if network:
            entry["networkData"] = network
    return entry, faults


def _ready(record: Record) -> dict[str, Any]:
    """Return whether containers can be made with the devices, and since when, however often it is looked at."""
    since = record.sandbox.since if record.sandbox else 0.0
    if record.sandbox is None:
        status, reason, message = "True", PREPARED, ""
    elif record.is_open:
        status, reason, message = "True", IN_SANDBOX, ""
    else:
        status, reason = "False", WAITING_FOR_SANDBOX
        message = "goes into the pod's network namespace once the container runtime has made its sandbox"
    return {
        "type": READY,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(since or record.created),
    }


def _data(attributes: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return attributes as plain values; the largest are left out where there are too many for the API."""
    data = {name: value for name, body in attributes.items() for value in body.values()}
    faults = []
    size = _size(data)
    while size > MAX_DATA:
        largest = max(data, key=lambda name: _size({name: data[name]}))
        faults.append(
            f"data.{shown(largest)} is left out: all together have {size} bytes, at most {MAX_DATA} fit"
        )
        del data[largest]
        size = _size(data)
    return data, faults


def _size(value: object) -> int:
    """Return the bytes of a value as JSON, by the longest spelling that any server uses."""
    text = json.dumps(value, separators=(",", ":"))
    return len(text) + 5 * sum(text.count(char) for char in "<>&")
