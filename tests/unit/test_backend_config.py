"""What users write is decoded strictly, and an error names the field, what stood there and what is allowed."""

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.backend import ClaimConfig, ConfigError, Strict, decode


class Mode(enum.Enum):
    FAST = "fast"
    SAFE = "safe"


class Part(Strict, frozen=True, kw_only=True):
    part_size: int = 0


class Wish(ClaimConfig, frozen=True, kw_only=True):
    mode: Mode = Mode.FAST
    level: Literal["low", "high"] | None = None
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    named: dict[str, Part] = msgspec.field(default_factory=dict)
    levels: dict[str, dict[str, Literal["low", "high"]]] | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    text: Annotated[str, msgspec.Meta(max_length=5)] = ""
    rate: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    least: Annotated[int, msgspec.Meta(ge=2)] | None = None
    pair: tuple[int, int] = (0, 0)
    some: Annotated[tuple[int, ...], msgspec.Meta(min_length=2)] = (0, 0)
    switch: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        if self.text == "never":
            raise ValueError("text: 'never' is expected to be something else")


def refused(value: object) -> str:
    with pytest.raises(ConfigError) as error:
        decode(Wish, value, "config")
    assert str(error.value) == f"{error.value.path}: {error.value.reason}"
    return str(error.value)


def test_fields_are_in_camel_case_and_have_defaults() -> None:
    assert decode(Wish, {}, "config") == Wish()
    assert decode(Wish, {"mode": "safe", "parts": [{"partSize": 3}]}, "config") == Wish(
        mode=Mode.SAFE, parts=(Part(part_size=3),)
    )


ALL = "count, least, level, levels, mode, named, pair, part, parts, rate, some, switch, text"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"parts": [{}, {"partSize": "x"}]},
            "config.parts[1].partSize: an integer is expected, found 'x', a string",
        ),
        ({"part": {"size": 1}}, "config.part.size: unknown field 'size'; allowed are partSize"),
        ({"parts": [{}, {"size": 1}]}, "config.parts[1].size: unknown field 'size'; allowed are partSize"),
        ({"named": {"a": {"size": 1}}}, "config.named.a.size: unknown field 'size'; allowed are partSize"),
        (
            {"named": {"a": {}, "0": {"partSize": "x"}}},
            "config.named['0'].partSize: an integer is expected, found 'x', a string",
        ),
        ({"named": {"a": {}, "b\n": 5}}, "config.named['b\\n']: a map is expected, found '5', an integer"),
        ({"named": {"": 5}}, "config.named['']: a map is expected, found '5', an integer"),
        ({"levels": {"a": {"b": "low"}, "c": {"d": "z"}}}, "config.levels.c.d: 'z' is not one of low, high"),
        ({"levels": {"a": [1]}}, "config.levels.a: a map is expected, found a list"),
        ({"a\nb": 1}, f"config: unknown field 'a\\nb'; allowed are {ALL}"),
        ({"mode": "slow"}, "config.mode: 'slow' is not one of fast, safe"),
        ({"mode": "x" * 10_000}, f"config.mode: '{'x' * 64}'... (10000 characters) is not one of fast, safe"),
        ({"level": "z"}, "config.level: 'z' is not one of low, high"),
        ({"count": 9}, "config.count: an integer from 1 to 5 is expected, found '9'"),
        ({"count": True}, "config.count: an integer is expected, found true"),
        ({"count": 1.5}, "config.count: an integer is expected, found '1.5', a number"),
        (
            {"count": 10**5000},
            "config.count: an integer from 1 to 5 is expected, found 'an integer of 16610 bits'",
        ),
        ({"part": []}, "config.part: a map is expected, found a list"),
        ({"part": "x"}, "config.part: a map is expected, found 'x', a string"),
        ({"rate": 0}, "config.rate: a number above 0, at most 1000 is expected, found '0'"),
        ({"rate": 1001}, "config.rate: a number above 0, at most 1000 is expected, found '1001'"),
        ({"least": 1}, "config.least: an integer of at least 2 is expected, found '1'"),
        ({"least": "2"}, "config.least: an integer is expected, found '2', a string"),
        ({"pair": [1]}, "config.pair: a list of 2 entries is expected, found 1"),
        ({"some": [1]}, "config.some: a list of at least 2 entries is expected"),
        ({"text": "longer"}, "config.text: a string of at most 5 characters is expected, found 'longer'"),
        ({"switch": "on"}, "config.switch: 'on' is not one of auto, true, false"),
        ({"text": "never"}, "config: text: 'never' is expected to be something else"),
        ({1: 2}, "config: a key: a string is expected"),
        (None, "config: a map is expected, found nothing (null)"),
        ([], "config: a map is expected, found a list"),
    ],
)
def test_an_error_says_where_and_what_is_allowed(value: object, message: str) -> None:
    assert refused(value) == message


def test_a_long_unknown_field_is_cut() -> None:
    assert (
        refused({"x" * 10_000: 1})
        == f"config: unknown field '{'x' * 64}'... (10000 characters); allowed are {ALL}"
    )


def test_a_value_that_holds_itself_is_an_error_too() -> None:
    endless: dict[str, Any] = {}
    endless["part"] = endless
    assert "part" in refused(endless)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["mode", "level", "levels", "part", "parts", "named", "count", "text", "x"])


@given(st.dictionaries(FIELDS, JSON, max_size=3) | JSON)
def test_whatever_is_written_it_is_a_config_or_a_short_error(value: object) -> None:
    problem = ""
    try:
        decode(Wish, value, "config")
    except ConfigError as error:
        problem = str(error)
    assert len(problem) < 1000
    assert problem.isprintable()
