"""From what the backends see to the list of device states that the kubelet is sent."""

import time
from collections.abc import Collection, Mapping

from dradriver.engine import Pool
from dradriver.kubelet import DeviceState
from dradriver.model import Health

Key = tuple[str, str]


def device_states(
    pools: Collection[Pool],
    in_use: Collection[Key],
    before: Mapping[Key, DeviceState],
) -> dict[Key, DeviceState]:
    """Return the states of a driver's devices by (pool, device).

    in_use   devices that live claims have; one that is no longer found stays listed, as unhealthy, until its
             claims are gone
    before   the last list: a device whose state is the same keeps its time

    Of hardware that cannot be read now nothing is known, whatever was seen before.
    """
    found: dict[Key, tuple[Health, str]] = {}
    for pool in pools:
        snapshot = pool.snapshot
        for device in snapshot.content.devices:
            found[pool.name, device.name] = (
                (Health.UNKNOWN, f"not seen: {snapshot.error}")
                if snapshot.error
                else (device.health, device.health_message)
            )
        if snapshot.probed:
            for key in in_use:
                if key[0] == pool.name and key not in found:
                    found[key] = (Health.UNHEALTHY, "the device is no longer found on this node")
    now = float(int(time.time()))
    return {
        key: last
        if (last := before.get(key)) and (last.health, last.message) == state
        else DeviceState(*state, since=now)
        for key, state in found.items()
    }
