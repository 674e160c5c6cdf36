"""The DeviceClasses of the chart: every device is in the one that is meant for it, and none fails at others."""

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import celpy
import pytest

from chart import FAKE, GROUPED, classes, evaluate, helm, render, to_cel
from dradriver.config import load, load_backends
from dradriver.model import Device


@functools.cache
def published(node: str, drivers: str, modes: str) -> list[tuple[str, str, Device]]:
    """Return (driver, backend, device) of a fake node."""
    config: dict[str, Any] = {"fake": {"node": node, **json.loads(modes)}}
    if drivers:
        config["drivers"] = json.loads(drivers)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "config.yaml")
        file.write_text(json.dumps(config))
        settings = load(file, Path(scratch))
        return [
            (name, backend.kind, device)
            for name, backend in load_backends(settings)
            for device in backend.devices(backend.probe()).devices
        ]


def expected_class(kind: str, device: Device) -> str:
    attributes = device.attributes
    match kind:
        case "gpu":
            name = attributes["type"]
        case "nic":
            name = "nic-vf" if attributes["isSriovVf"] else "nic"
        case "cpu":
            name = "cpu-isolated" if attributes["isolated"] else "cpu"
        case _:
            name = attributes["type"]
    return {"memory": "memory.dradriver.io"}.get(str(name), f"{name}.dradriver.io")


def selects(expression: str, driver: str, device: Device) -> bool:
    """Evaluate a selector as the scheduler does: a name without a domain is of the driver's."""
    domains: dict[str, dict[str, Any]] = {}
    for name, value in device.attributes.items():
        domain, _, key = name.rpartition("/")
        domains.setdefault(domain or driver, {})[key] = value if isinstance(value, bool | int) else str(value)
    device_seen = {"driver": driver, "attributes": _Domains(to_cel(domains))}
    verdict = evaluate(expression, {"device": celpy.celtypes.MapType(_keyed(device_seen))})
    assert isinstance(verdict, celpy.celtypes.BoolType)
    return bool(verdict)


class _Domains(celpy.celtypes.MapType):
    """A domain that a device has nothing of is an empty map."""

    def __missing__(self, key: object) -> Any:
        return celpy.celtypes.MapType()


def _keyed(seen: Mapping[str, Any]) -> dict[Any, Any]:
    return {
        celpy.celtypes.StringType(key): celpy.celtypes.StringType(value) if isinstance(value, str) else value
        for key, value in seen.items()
    }


@pytest.mark.parametrize(
    ("node", "values", "modes"),
    [
        ("dgx-h100", FAKE, {}),
        ("telco-edge", FAKE, {"nicMode": "both"}),
        ("small", FAKE, {"gpuMode": "shares", "nicMode": "shares"}),
        ("telco-edge", GROUPED, {}),
    ],
    ids=["dgx-h100", "telco-edge", "shares", "one driver for all"],
)
def test_every_device_is_in_the_one_class_that_is_meant_for_it(
    node: str, values: Mapping[str, Any], modes: dict[str, str]
) -> None:
    helm()
    made = classes(render(values))
    drivers = values["config"].get("drivers")
    seen = set()
    for driver_name, kind, device in published(
        node, json.dumps(drivers) if drivers else "", json.dumps(modes)
    ):
        found = [
            name
            for name, one in made.items()
            if selects(one["spec"]["selectors"][0]["cel"]["expression"], driver_name, device)
        ]
        assert found == [expected_class(kind, device)], device.name
        seen |= set(found)
    assert len(seen) >= 4


def test_no_class_takes_or_fails_at_devices_of_others_or_without_attributes() -> None:
    helm()
    strangers = [Device("a"), Device("b", attributes={"gpu.nvidia.com/type": "gpu", "x/isolated": True})]
    for one in classes(render(FAKE)).values():
        expression = one["spec"]["selectors"][0]["cel"]["expression"]
        for stranger in strangers:
            for name in ("gpu.nvidia.com", "gpu.dradriver.io", "cpu.dradriver.io", "nic.dradriver.io"):
                assert not selects(expression, name, stranger), (expression, name)
