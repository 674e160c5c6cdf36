"""Options of the backend gpu: what is refused at the start, whom a mode is for, and the filter by CEL."""

import subprocess
import sys
from typing import Any

import pytest

from dradriver.backend import ConfigError, decode
from dradriver.backend.select import Filter
from dradriver.model import NUMA_NODE, Capacity, Device, Quantity, Version
from dradriver_gpu import GpuOptions
from dradriver_gpu.options import OWN_DOMAIN

OWN = 'device.attributes["gpu.dradriver.io"]'

DEVICE = Device(
    "gpu-0000-18-00-0-mig-3g-71gb-4",
    attributes={
        "type": "mig",
        "productName": "NVIDIA H200",
        "profile": "3g.71gb",
        "driverVersion": Version("580.65.6"),
        NUMA_NODE: 1,
    },
    capacity={
        "memory": Capacity(Quantity.parse("71168Mi")),
        "multiprocessors": Capacity(Quantity.parse("60")),
    },
)


def options(**written: Any) -> GpuOptions:
    return decode(GpuOptions, written, "backends.gpu")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"driverRoot": "run"}, "driverRoot: an absolute path without '..' is expected, found 'run'"),
        (
            {"driverRoot": "/run/../etc"},
            "driverRoot: an absolute path without '..' is expected, found '/run/../etc'",
        ),
        ({"mode": "mig"}, "mode: 'mig' is not one of static, whole, partitions, shares, passthrough"),
        (
            {"modes": {"gpu-*": "mig"}},
            "modes['gpu-*']: 'mig' is not one of static, whole, partitions, shares, passthrough",
        ),
        ({"migMode": "enable"}, "migMode: 'enable' is not one of leave, switch"),
        ({"shares": -1}, "shares: an integer from 0 to 1000 is expected, found '-1'"),
        ({"shares": 4}, "shares: no GPU is offered in shares: set mode, or an entry of modes, to shares"),
        ({"devices": "device.foo("}, "devices: 'device.foo(' is no CEL expression: "),
        ({"devices": "devise.name == 'x'"}, "devices: \"devise.name == 'x'\": there is no variable 'devise'"),
        ({"devices": "device.name"}, "devices: 'device.name' is neither true nor false of a device"),
        ({"devices": "isMig(device)"}, "devices: 'isMig(device)': there is no function 'isMig'"),
        ({"devices": "1 + 1"}, "devices: '1 + 1' is neither true nor false of a device"),
        ({"driverCapabilities": ["all"]}, "driverCapabilities[0]: 'all' is not one of compute, utility"),
        ({"partitions": True}, "partitions: unknown field 'partitions'; allowed are "),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_start(written: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(**written)
    assert message in str(caught.value)
    assert str(caught.value).startswith("backends.gpu")


def test_a_mode_is_that_of_the_first_entry_that_fits() -> None:
    chosen = options(
        mode="whole",
        modes={
            "gpu-0000-18-00-0": "shares",
            "GPU-1234*": "passthrough",
            "NVIDIA A100*": "partitions",
            "*A100*": "static",
        },
    )
    assert chosen.mode_of("gpu-0000-18-00-0", "GPU-1234", "NVIDIA A100-SXM4-40GB") == "shares"
    assert chosen.mode_of("gpu-0000-19-00-0", "GPU-12345", "NVIDIA A100-SXM4-40GB") == "passthrough"
    assert chosen.mode_of("gpu-0000-19-00-0", "GPU-9", "NVIDIA A100-SXM4-40GB") == "partitions"
    assert chosen.mode_of("gpu-0000-19-00-0", None, None) == "whole"


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        (f'{OWN}.productName == "NVIDIA H200"', True),
        (f'{OWN}.type in ["gpu", "vfio"]', False),
        (f'{OWN}.profile.startsWith("3g.")', True),
        (f'{OWN}.driverVersion.isGreaterThan(semver("570.0.0"))', True),
        (f'{OWN}.driverVersion.compareTo(semver("580.65.6")) == 0', True),
        (f'{OWN}.driverVersion == semver("580.65.6")', True),
        (f"{OWN}.driverVersion.major() >= 590", False),
        ('device.capacity["gpu.dradriver.io"].memory.isLessThan(quantity("80Gi"))', True),
        ('device.capacity["gpu.dradriver.io"].multiprocessors.compareTo(quantity("60")) >= 0', True),
        ('device.attributes["resource.kubernetes.io"].numaNode == 1', True),
        ('device.name.matches("^gpu-0000-18-")', True),
        (f"has({OWN}.uuid)", False),
        (f'"uuid" in {OWN}', False),
        ('has(device.attributes["other.example.com"].model)', False),
        (f'["3g.71gb", "1g.18gb"].exists(name, name == {OWN}.profile)', True),
        ("!device.allowMultipleAllocations", True),
    ],
)
def test_the_filter_reads_as_a_selector_of_a_class(expression: str, verdict: bool) -> None:
    assert Filter(expression, OWN_DOMAIN).admits(DEVICE) is verdict


@pytest.mark.parametrize(
    "expression",
    [
        f'{OWN}.uuid == "GPU-1"',
        'device.attributes["other.example.com"].model == "x"',
        f"{OWN}.productName > 3",
        f'{OWN}.driverVersion.isLessThan(semver("five"))',
        f"{OWN}.productName.isLessThan(quantity('1Gi'))",
    ],
)
def test_what_cannot_be_said_of_a_device_is_an_error_of_one_line(expression: str) -> None:
    with pytest.raises(ValueError, match=r"^['\"]") as caught:
        Filter(expression, OWN_DOMAIN).admits(DEVICE)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_cel_is_loaded_for_a_filter_only() -> None:
    program = (
        "import sys, dradriver_gpu as gpu, dradriver.backend as backend\n"
        "backend.decode(gpu.GpuOptions, {}, '$')\n"
        "assert 'celpy' not in sys.modules\n"
        "backend.decode(gpu.GpuOptions, {'devices': 'true'}, '$')\n"
        "assert 'celpy' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
