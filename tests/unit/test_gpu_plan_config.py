"""What claims may say of how GPUs are shared."""

from typing import Any

import pytest

from dradriver.backend import ConfigError, decode
from dradriver_gpu.config import GpuConfig, Mps, mebibytes

UUIDS = ("GPU-0A", "GPU-0b", None)


def config(value: Any) -> GpuConfig:
    return decode(GpuConfig, value, "config[0]")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"sharing": {}},
        {"sharing": {"timeSlicing": {}}},
        {"sharing": {"mps": {}}},
        {"sharing": {"mps": {"defaultPerDevicePinnedMemoryLimit": {}}}},
        {"sharing": {"timeSlicing": None, "mps": None}},
        {"sharing": {"exclusive": False, "timeSlicing": {"interval": "Default"}}},
        {"sharing": {"mps": {"defaultActiveThreadPercentage": 100, "uid": 0}}},
    ],
)
def test_what_is_left_out_has_a_default(value: Any) -> None:
    config(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"sharing": "mps"}, "config[0].sharing: a map is expected, found 'mps', a string"),
        (
            {"sharing": {"timeSlicing": {"interval": "long"}}},
            "config[0].sharing.timeSlicing.interval: 'long' is not one of Default, Short, Medium, Long",
        ),
        (
            {"sharing": {"timeSlice": {}}},
            "config[0].sharing.timeSlice: unknown field 'timeSlice'; allowed are exclusive, mps, timeSlicing",
        ),
        (
            {"sharing": {"mps": {}, "exclusive": True}},
            "config[0].sharing: one of timeSlicing, mps, exclusive is allowed, found mps and exclusive",
        ),
        (
            {"sharing": {"mps": {"defaultActiveThreadPercentage": 0}}},
            "config[0].sharing.mps.defaultActiveThreadPercentage: an integer from 1 to 100 is expected, found '0'",
        ),
        (
            {"sharing": {"mps": {"defaultPinnedDeviceMemoryLimit": "lots"}}},
            "config[0].sharing.mps: defaultPinnedDeviceMemoryLimit: quantity 'lots': allowed is a decimal number",
        ),
        (
            {"sharing": {"mps": {"defaultPinnedDeviceMemoryLimit": "1k"}}},
            "config[0].sharing.mps: defaultPinnedDeviceMemoryLimit: '1k' is no amount of GPU memory",
        ),
        (
            {"sharing": {"mps": {"defaultPerDevicePinnedMemoryLimit": {"a\nb": "-1Gi"}}}},
            "config[0].sharing.mps: defaultPerDevicePinnedMemoryLimit['a\\nb']: '-1Gi' is no amount of GPU memory",
        ),
        (
            {"sharing": {"mps": {"uid": -1}}},
            "config[0].sharing.mps.uid: an integer from 0 to 4294967294 is expected, found '-1'",
        ),
    ],
)
def test_an_error_names_field_value_and_what_is_allowed(value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "amount"), [("1Mi", 1), ("10Gi", 10240), ("1500M", 1430), ("2e9", 1907)])
def test_memory_is_in_whole_mebibytes(text: str, amount: int) -> None:
    assert mebibytes(text, "limit") == amount


def test_a_limit_is_found_by_number_and_uuid_and_the_uuid_wins() -> None:
    mps = Mps(
        default_pinned_device_memory_limit="1Gi",
        default_per_device_pinned_memory_limit={"gpu-0B": "3Gi", "1": "2Gi", "2": "5Gi"},
    )
    assert mps.limits(UUIDS) == (1024, 3072, 5120)
    assert Mps().limits(UUIDS) == (0, 0, 0)


@pytest.mark.parametrize("key", ["3", "GPU-0c", "", "-1", "¹", "99999999999"])
def test_a_limit_for_a_device_that_the_claim_has_not_is_refused(key: str) -> None:
    with pytest.raises(
        ValueError, match="is none of the claim's GPUs: numbers 0 to 2 and their UUIDs are allowed"
    ):
        Mps(default_per_device_pinned_memory_limit={key: "1Gi"}).limits(UUIDS)
