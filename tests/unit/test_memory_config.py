"""What users may write about memory."""

import pytest

from dradriver.backend import ConfigError, decode
from dradriver_memory import MemoryOptions


def test_nothing_is_reserved_unless_asked() -> None:
    assert decode(MemoryOptions, {}, "backends.memory").reserved_bytes() == {}
    options = decode(
        MemoryOptions, {"reserved": {"0": "1Gi", "12": "500M", "machine": "0"}}, "backends.memory"
    )
    assert options.reserved_bytes() == {0: 1 << 30, 12: 500_000_000, None: 0}


@pytest.mark.parametrize(
    ("reserved", "message"),
    [
        (
            {"node0": "1Gi"},
            "backends.memory: reserved: 'node0': allowed are ids of NUMA nodes, as 0, and machine",
        ),
        ({"01": "1Gi"}, "backends.memory: reserved: '01': allowed are ids"),
        ({"0": "1GB"}, "backends.memory: reserved: 0: quantity '1GB': allowed is a decimal number"),
        ({"0": "-1Gi"}, "backends.memory: reserved: 0: '-1Gi': allowed are whole bytes, 0 or more, as 2Gi"),
        ({"0": "500m"}, "backends.memory: reserved: 0: '500m': allowed are whole bytes"),
        ({"0": 5}, "backends.memory.reserved"),
        (["1Gi"], "backends.memory.reserved"),
    ],
)
def test_wrong_reservations_are_named(reserved: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(MemoryOptions, {"reserved": reserved}, "backends.memory")
