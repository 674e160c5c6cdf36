"""What users may write about CPUs."""

import pytest

from dradriver.backend import ConfigError, decode
from dradriver_cpu import CpuConfig, CpuOptions


def test_nothing_is_reserved_unless_asked() -> None:
    assert str(decode(CpuOptions, {}, "backends.cpu").reserved_cpus) == ""
    assert str(decode(CpuOptions, {"reserved": "64-65, 0-1"}, "backends.cpu").reserved_cpus) == "0-1,64-65"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"reserved": "0-x"},
            "backends.cpu: reserved: CPU list: '0-x': .* allowed are CPU numbers and ranges",
        ),
        (
            {"reserved": "3-1"},
            "backends.cpu: reserved: CPU list: '3-1': the range '3-1' ends before it begins",
        ),
        ({"reserved": 2}, "backends.cpu.reserved: "),
        ({"isolated": "1"}, "backends.cpu.*'isolated'.* reserved"),
    ],
)
def test_wrong_options_are_named(options: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(CpuOptions, options, "backends.cpu")


def test_a_claim_may_leave_its_memory_to_the_runtime() -> None:
    assert decode(CpuConfig, {}, "config").memory == "local"
    assert decode(CpuConfig, {"memory": "any"}, "config").memory == "any"
    with pytest.raises(ConfigError, match=r"config.memory: .*'near'"):
        decode(CpuConfig, {"memory": "near"}, "config")
