"""Of a refused slice the devices that the server names are left out, and those that it means are found by trying."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dradriver.model import CounterSet, Device, PoolContent, Quantity
from dradriver.slices import Earlier, Pool, offenders, only, pool_specs, same

VECTORS = Path(__file__).resolve().parents[2].parent / "shared" / "vectors" / "validation" / "vectors.json"
POOL = Pool("gpu.dradriver.io", "node-a", "node-a/gpu")
ONE = Quantity.from_int(1)

SPEC: dict[str, Any] = {
    "driver": "gpu.dradriver.io",
    "nodeName": "node-a",
    "pool": {"name": "node-a/gpu", "generation": 3, "resourceSliceCount": 2},
    "devices": [{"name": f"gpu-{n}"} for n in range(4)],
}
COUNTERS: dict[str, Any] = {key: value for key, value in SPEC.items() if key != "devices"}
COUNTERS["sharedCounters"] = [{"name": f"gpu-{n}", "counters": {}} for n in range(2)]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("spec.devices[3].attributes[model]", "'attributes[model]': 'Too long'"),
        ("spec.devices[3].attributes[a.io/x].versions[0]", "'attributes[a.io/x].versions[0]': 'Too long'"),
        ("spec.devices[3].name", "'name': 'Too long'"),
        ("spec.devices[3]", "refuses it: 'Too long'"),
    ],
)
def test_a_cause_names_its_device(field: str, reason: str) -> None:
    (found,) = offenders(SPEC, [(field, "Too long")]).items()
    assert found[0] == "gpu-3"
    assert found[1].endswith(reason)


@pytest.mark.parametrize(
    "field",
    [
        "",
        "spec",
        "spec.devices",
        "spec.devices[4]",
        "spec.devices[-1]",
        "spec.devices[x].name",
        "spec.devices[3]x",
        "spec.devices[]",
        f"spec.devices[{'9' * 5000}]",
        "xspec.devices[3]",
        "spec.sharedCounters[0]",
        "spec.pool.name",
        "metadata.name",
    ],
)
def test_a_cause_about_anything_else_names_nobody(field: str) -> None:
    assert offenders(SPEC, [(field, "Invalid value")]) == {}


def test_several_causes_of_several_devices_are_told_apart_and_kept_short() -> None:
    causes = [(f"spec.devices[1].attributes[a{n}]", "bad\nINFO all well" * 100) for n in range(5)]
    found = offenders(SPEC, [*causes, *causes, ("spec.devices[0]", "Duplicate value")])
    assert list(found) == ["gpu-1", "gpu-0"]
    assert found["gpu-1"].endswith("and 2 more")
    assert all(text.isprintable() and len(text) < 1000 for text in found.values())


def test_a_counter_set_is_named_likewise() -> None:
    assert list(offenders(COUNTERS, [("spec.sharedCounters[1].counters", "Required value")])) == ["gpu-1"]


def test_part_of_a_slice_can_be_tried() -> None:
    assert only(SPEC, {"gpu-1", "gpu-3"}) == SPEC | {"devices": [{"name": "gpu-1"}, {"name": "gpu-3"}]}
    assert only(COUNTERS, {"gpu-0"})["sharedCounters"] == COUNTERS["sharedCounters"][:1]
    nothing = {key: value for key, value in SPEC.items() if key != "devices"}
    assert only(SPEC, ()) == nothing, "no empty list, which counts as one"


def test_a_refused_device_is_left_out_and_no_other_moves() -> None:
    content = PoolContent(tuple(Device(f"gpu-{n}") for n in range(150)))
    before = pool_specs(POOL, content)
    after = pool_specs(POOL, content, earlier=Earlier(before.specs), refused={"gpu-70": "it is odd"})
    assert [str(left) for left in after.left_out] == ["'gpu-70' is not published: it is odd"]
    assert [same(*pair) for pair in zip(after.specs, before.specs, strict=True)] == [True, False, True]
    assert after.specs[0]["pool"] == before.specs[0]["pool"]
    assert after.offered == 149
    again = pool_specs(POOL, content, earlier=Earlier(after.specs))
    assert again.specs == before.specs


def test_a_refused_counter_set_takes_what_draws_on_it_along() -> None:
    """A counter set and the whole thing have one name: each can be meant."""
    sets = tuple(CounterSet(f"gpu-{n}", {"slices": ONE}) for n in range(2))
    devices = tuple(Device(f"gpu-{n}", consumes={f"gpu-{n}": {"slices": ONE}}) for n in range(2))
    content = PoolContent((*devices, Device("nic-0")), sets)
    made = pool_specs(POOL, content, refused_sets={"gpu-0": "it is odd"})
    assert [device["name"] for spec in made.specs for device in spec.get("devices", ())] == ["gpu-1", "nic-0"]
    assert [left.name for left in made.left_out] == ["gpu-0", "gpu-0"]
    assert {"it is odd", "counter set 'gpu-0' is not published in the pool"} == {
        reason for left in made.left_out for reason in left.reasons
    }
    made = pool_specs(POOL, content, refused={"gpu-0": "it is odd"})
    assert [one["name"] for one in made.specs[0]["sharedCounters"]] == ["gpu-0", "gpu-1"]
    assert [device["name"] for device in made.specs[1]["devices"]] == ["gpu-1", "nic-0"]


def test_recorded_causes_name_the_devices_that_they_are_about() -> None:
    if not VECTORS.exists():
        pytest.skip(f"no recorded answers of an API server at {VECTORS}")
    named = 0
    for vector in json.loads(VECTORS.read_text())["vectors"]:
        spec = vector["object"].get("spec") if isinstance(vector.get("object"), dict) else None
        if vector["kind"] != "ResourceSlice" or vector["accepted"] or not isinstance(spec, dict):
            continue
        causes = [(cause["field"] or "", cause["message"]) for cause in vector.get("causes") or ()]
        about = {
            key: {
                int(number) for field, _ in causes for number in re.findall(rf"^spec\.{key}\[(\d+)\]", field)
            }
            for key in ("devices", "sharedCounters")
        }
        if not all(isinstance(one, dict) and "name" in one for key in about for one in spec.get(key) or ()):
            continue
        names = {spec[key][number]["name"] for key, numbers in about.items() for number in numbers}
        assert set(offenders(spec, causes)) == names, vector["name"]
        named += bool(names)
    assert named > 100
