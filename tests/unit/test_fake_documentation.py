"""docs/fake.md names every attribute, capacity and variable of fake devices, and no other."""

import re
from pathlib import Path

import pytest

from dradriver.model import Device
from fakenode import environment, machine

PAGE = (Path(__file__).parents[2] / "docs/fake.md").read_text()
SECTION = PAGE.split("## What fake devices are")[1].split("\n## ")[0]
GPU, PARTITION = "gpu-0000-43-00-0", "gpu-0000-43-00-0-mig-1g-6gb-0"
VF = "nic-0000-44-00-3"

MODES = [{"nicMode": "both"}, {"gpuMode": "shares", "nicMode": "shares"}]


def offered(path: Path) -> list[Device]:
    """Return devices of each mode, on nodes with all that fakes can have."""
    found: list[Device] = []
    for node in ("small", "telco-edge"):
        for number, options in enumerate(MODES):
            with machine(path / f"{node}{number}", node, **options) as made:
                found += [*made.devices("gpu").values(), *made.devices("nic").values()]
    return found


def test_attributes_and_their_types_are_those_that_are_described(tmp_path: Path) -> None:
    published = {
        (name, {"Version": "version", "str": "string"}.get(type(value).__name__, type(value).__name__))
        for device in offered(tmp_path)
        for name, value in device.attributes.items()
    }
    rows = re.findall(r"^\| (`[^|]+`) \| (string|int|bool|version) \|", SECTION, flags=re.MULTILINE)
    described = [(name, kind) for names, kind in rows for name in re.findall(r"`([^`]+)`", names)]
    assert len(described) == len(set(described))
    assert {name for name, _ in described} == {name for name, _ in published}
    assert set(described) == published


def test_capacities_are_described(tmp_path: Path) -> None:
    names = {name for device in offered(tmp_path) for name in device.capacity}
    assert {name for name in names if f"`{name}`" not in SECTION} == set()


@pytest.mark.parametrize(("kind", "device"), [("gpu", GPU), ("gpu", PARTITION), ("nic", VF)])
def test_the_variables_of_a_claim_are_described(tmp_path: Path, kind: str, device: str) -> None:
    with machine(tmp_path) as made:
        claim = made.claim("a", device)
        assert not isinstance(made.prepare(claim, kind), str)
        (edits,) = made.edits(claim, kind)
        (name,) = (name for name in environment(edits) if name.startswith("DRA_"))
        assert name == f"DRA_{kind.upper()}_uid_a_0"
        assert f"`{name.replace('uid_a_0', '<claim uid>_<n>')}`" in SECTION
        base = made.pool(kind).snapshot.base
        assert {entry.partition("=")[0] for entry in base.env} <= set(re.findall(r"`(\w+)`", SECTION))
