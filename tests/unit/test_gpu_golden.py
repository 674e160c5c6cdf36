"""Exactly what is published of GPUs of each kind: tests/data/gpu holds it in a form to be read and checked by hand.

The numbers there are held against ../shared/data/gpu/mig_profiles.json too, by rules that share nothing with ours: an
instance draws what its profile has, and the memory slices from its start on; the GPU as a whole draws on everything.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import nvmlnodes
from dradriver.model import Capacity, Device, PoolContent, Quantity
from gpunode import GpuNode
from nvmlclients import Operator
from nvmlfacts import Node
from recorded import SHARED

DATA = Path(__file__).parents[1] / "data/gpu"
PROFILES = SHARED / "data/gpu/mig_profiles.json"

COLUMNS = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg-engines",
    "ofaEngines": "ofa-engines",
    "memory": "memory",
}
"""Capacity -> counter."""

SWITCHED = {"mode": "partitions", "migMode": "switch"}
PARTITIONED: dict[str, tuple[Node, Mapping[str, Any], str]] = {
    "a100-40gb": (nvmlnodes.a100_40(1).each(mig_at_start=1), {"mode": "partitions"}, "A100-SXM4-40GB"),
    "a100-80gb": (nvmlnodes.a100_80(1).each(mig_at_start=1), {"mode": "partitions"}, "A100-80GB"),
    "h100-80gb": (nvmlnodes.h100(1), SWITCHED, "H100-SXM5-80GB"),
    "h200-141gb": (nvmlnodes.h200(1), SWITCHED, "H200-SXM-141GB"),
    "b200-180gb": (nvmlnodes.b200(1), SWITCHED, "B200-180GB"),
}


def content_of(
    directory: Path, node: Node, options: Mapping[str, Any], *instances: tuple[int, int, int]
) -> PoolContent:
    """Return what is published of a node; `instances` stand on its first GPU: profile, start, compute profile."""
    machine = GpuNode(directory, node)
    for profile, start, compute in instances:
        Operator(machine.stub).create(0, profile, start, compute_profile=compute)
    with machine.backend(options) as backend:
        return backend.devices(backend.probe())


def shown(content: PoolContent) -> str:
    """Return a pool's content as text: of each GPU its counters, what its devices have in common, and each device."""
    things: dict[str, list[Device]] = {}
    for device in content.devices:
        things.setdefault(device.physical, []).append(device)
    sets = {one.name: one.counters for one in content.counter_sets}
    return "\n\n".join("\n".join(_gpu(thing, members, sets)) for thing, members in things.items()) + "\n"


def _gpu(thing: str, members: list[Device], sets: Mapping[str, Mapping[str, Quantity]]) -> Iterable[str]:
    common = {
        name: value
        for name, value in members[0].attributes.items()
        if all(device.attributes.get(name) == value for device in members)
    }
    yield thing
    yield "  counters" if thing in sets else "  no counters"
    yield from (f"    {name:40} {amount}" for name, amount in sets.get(thing, {}).items())
    yield "  attributes of all devices"
    yield from (f"    {name:40} {value}" for name, value in common.items())
    rows = [_row(device, common, sets.get(thing, {})) for device in members]
    names = list(dict.fromkeys(name for row in rows for name in row))
    widths = {name: max(len(name), *(len(row.get(name, "-")) for row in rows)) for name in names}
    yield "  " + "  ".join(f"{name:{widths[name]}}" for name in names).rstrip()
    for row in rows:
        yield "  " + "  ".join(f"{row.get(name, '-'):{widths[name]}}" for name in names).rstrip()


def _row(device: Device, common: Mapping[str, Any], counters: Mapping[str, Quantity]) -> dict[str, str]:
    own = {name: str(value) for name, value in device.attributes.items() if name not in common}
    capacity = {name: _capacity(capacity) for name, capacity in device.capacity.items()}
    assert device.shared == any(one.policy for one in device.capacity.values())
    return {"device": device.name, **own, **capacity, "draws": _draws(device, counters)}


def _draws(device: Device, counters: Mapping[str, Quantity]) -> str:
    """Say what a device draws: most draw what they have, and memory slices."""
    if not device.consumes:
        return "nothing"
    draws = dict(device.consumes[device.physical])
    if draws == {name: amount for name, amount in counters.items() if amount.nano}:
        return "all counters"
    slices = [name.removeprefix("memory-slice-") for name in draws if name.startswith("memory-slice-")]
    assert all(draws.pop(f"memory-slice-{number}") == Quantity.from_int(1) for number in slices)
    has = {COLUMNS.get(name, name): one.value for name, one in device.capacity.items() if one.value.nano}
    assert draws == has, device.name
    return f"what it has, memory slices {' '.join(slices)}"


def _capacity(capacity: Capacity) -> str:
    policy = capacity.policy
    if policy is None:
        return str(capacity.value)
    allowed = " ".join(map(str, policy.valid_values))
    steps = (
        f"{policy.valid_range.min} by {policy.valid_range.step}" if policy.valid_range else f"only {allowed}"
    )
    return f"{capacity.value} (by default {policy.default}; {steps})"


@pytest.mark.parametrize("kind", PARTITIONED)
def test_partitions_are_published_as_the_golden_file_says(tmp_path: Path, kind: str) -> None:
    node, options, _ = PARTITIONED[kind]
    assert shown(content_of(tmp_path, node, options)) == (DATA / f"{kind}.txt").read_text()


def test_other_ways_to_offer_are_published_as_the_golden_file_says(tmp_path: Path) -> None:
    node = nvmlnodes.mixed(
        nvmlnodes.a100_40(2).each(mig_at_start=1), nvmlnodes.l40s(2), nvmlnodes.gb200(1)
    ).having(driver="595.58.03")
    content = content_of(
        tmp_path,
        node,
        {
            "passthrough": True,
            "modes": {"gpu-0000-0f-00-0": "partitions", "gpu-0000-16-00-0": "shares", "*L40S": "passthrough"},
        },
        (9, 4, 2),
        (14, 0, 0),
        (19, 2, 0),
    )
    assert shown(content) == (DATA / "mixed.txt").read_text()


# --- the golden files against the public tables


def table(board: str) -> list[dict[str, Any]]:
    """Return the profiles of a board."""
    if not PROFILES.exists():
        pytest.skip(f"{PROFILES}: not there")
    profiles: list[dict[str, Any]] = json.loads(PROFILES.read_text())["gpus"][board]["profiles"]
    return profiles


@pytest.mark.parametrize("kind", PARTITIONED)
def test_what_is_published_is_what_the_public_tables_say(tmp_path: Path, kind: str) -> None:
    node, options, board = PARTITIONED[kind]
    profiles = table(board)
    content = content_of(tmp_path, node, options)
    (counter_set,) = content.counter_sets
    largest = max(profiles, key=lambda profile: int(profile["placements"]["size"]))
    assert plain(counter_set.counters, largest) == {
        **told(largest, COLUMNS),
        **{f"memory-slice-{number}": 1 for number in range(8)},
    }
    devices = {device.name: device for device in content.devices}
    whole = devices.pop(counter_set.name, None)
    assert (whole is None) == kind.startswith("a100"), "whose MIG mode takes a reset"
    if whole:
        assert whole.consumes[counter_set.name] == {
            name: amount for name, amount in counter_set.counters.items() if amount.nano
        }
    expected = {
        f"{counter_set.name}-mig-{profile['name'].replace('.', '-').replace('+', '-')}-{start}": (
            profile,
            start,
        )
        for profile in profiles
        for start in profile["placements"]["starts"]
    }
    assert devices.keys() == expected.keys()
    for name, (profile, start) in expected.items():
        device = devices[name]
        assert device.attributes["profile"] == profile["name"]
        capacity = {name: one.value for name, one in device.capacity.items()}
        assert plain(capacity, profile) == told(profile, {column: column for column in COLUMNS})
        assert plain(device.consumes[counter_set.name], profile) == {
            **{counter: amount for counter, amount in told(profile, COLUMNS).items() if amount},
            **{f"memory-slice-{start + number}": 1 for number in range(profile["placements"]["size"])},
        }


def told(profile: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, int]:
    """Return what a table says of a profile; it does not know everything."""
    columns = {**profile, "memory": profile["memoryMiB"] and profile["memoryMiB"] << 20}
    return {name: columns[column] for column, name in names.items() if columns[column] is not None}


def plain(amounts: Mapping[str, Quantity], profile: Mapping[str, Any]) -> dict[str, int]:
    """Return amounts as numbers, without those that the table does not know."""
    columns = {**profile, "memory": profile["memoryMiB"]}
    unknown = {column for column in COLUMNS if columns[column] is None}
    unknown |= {COLUMNS[column] for column in unknown}
    return {name: amount.to_int() for name, amount in amounts.items() if name not in unknown}
