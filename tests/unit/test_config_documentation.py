"""docs/configuration.md describes every field of every type, and no other."""

import re
import types
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from dradriver.config import Config, DriverConfig, Kubernetes, Log, Metrics, Nri, Standalone
from dradriver.daemon import __main__ as main
from dradriver_cpu.config import CpuConfig, CpuOptions
from dradriver_fake import FakeOptions, Fault
from dradriver_gpu import GpuOptions
from dradriver_gpu.config import GpuConfig, Mps, Sharing, TimeSlicing
from dradriver_memory.config import MemoryOptions
from dradriver_nic.config import (
    AddressPool,
    Ethtool,
    Interface,
    Neighbor,
    NicConfig,
    Route,
    Rule,
    VirtualFunction,
    Vrf,
)
from dradriver_nic.options import NicOptions

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
TYPES: list[type[msgspec.Struct]] = [
    Config,
    DriverConfig,
    Kubernetes,
    Standalone,
    Nri,
    Metrics,
    Log,
    CpuOptions,
    GpuOptions,
    MemoryOptions,
    NicOptions,
    FakeOptions,
    Fault,
    CpuConfig,
    GpuConfig,
    Sharing,
    TimeSlicing,
    Mps,
    NicConfig,
    Interface,
    Vrf,
    Route,
    Rule,
    Neighbor,
    Ethtool,
    VirtualFunction,
    AddressPool,
]


def table(name: str) -> dict[str, tuple[str, str]]:
    """Return the rows of the table below the heading that names the type: field -> (type, default)."""
    section = re.split(rf"^#+ (?:\w+: )?{name}$", PAGE, flags=re.MULTILINE)[1]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| .+ \|$", section.split("\n#")[0], flags=re.MULTILINE)
    return {field: (kind, default) for field, kind, default in rows}


@pytest.mark.parametrize("kind", TYPES)
def test_the_fields_of_a_type_are_those_of_its_table(kind: type[msgspec.Struct]) -> None:
    assert list(table(kind.__name__)) == [field.encode_name for field in msgspec.structs.fields(kind)]


def words(kind: Any) -> set[str]:
    """Return words that the description of a field of that type must hold."""
    if get_origin(kind) is Literal:
        return {f"`{value}`" for value in get_args(kind)}
    origin = get_origin(kind)
    if origin in {tuple, list}:
        return {"list"}
    if origin is dict:
        return {"map"}
    if origin is not None and not isinstance(origin, types.GenericAlias):
        return words(get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {kind.__name__}
    return {"integer"} if kind is int else set()


@pytest.mark.parametrize("kind", TYPES)
def test_types_and_defaults_are_described_as_they_are(kind: type[msgspec.Struct]) -> None:
    described = table(kind.__name__)
    for field in msgspec.structs.fields(kind):
        text, default = described[field.encode_name]
        assert all(word in text for word in words(field.type)), (field.name, text)
        if field.required:
            assert default == "required", field.name
        elif isinstance(field.default, str | int | float) and field.default != "":
            shown = str(field.default).lower() if isinstance(field.default, bool) else field.default
            assert default == f"`{shown}`", field.name
        else:
            assert default != "required", field.name


@pytest.mark.parametrize("kind", TYPES)
def test_no_field_of_a_type_is_described_twice(kind: type[msgspec.Struct]) -> None:
    section = re.split(rf"^#+ (?:\w+: )?{kind.__name__}$", PAGE, flags=re.MULTILINE)[1]
    rows = re.findall(r"^\| `(\w+)` \|", section.split("\n#")[0], flags=re.MULTILINE)
    assert len(rows) == len(set(rows))


def test_the_options_and_variables_of_the_daemon_are_described() -> None:
    source = Path(main.__file__).read_text()
    named = set(re.findall(r'"(--[a-z-]+)"', source)) | set(re.findall(r'"(DRADRIVER_[A-Z_]+)"', source))
    assert {"--config", "--dir", "--kubeconfig"} <= named
    assert {name for name in named if f"`{name}" not in PAGE} == set()


def test_every_type_of_the_page_is_a_type_of_the_code() -> None:
    headed = set(re.findall(r"^### (?:\w+: )?(\w+)$", PAGE, flags=re.MULTILINE))
    assert headed == {kind.__name__ for kind in TYPES}
