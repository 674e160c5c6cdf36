"""CPU sets: the kernel's two notations, set algebra, refusal of what is not one."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.host import CPUSet

CPUS = st.frozensets(st.one_of(st.integers(0, 300), st.integers(0, 65_535)), max_size=80)


@given(CPUS)
def test_a_set_is_what_went_in(cpus: frozenset[int]) -> None:
    made = CPUSet(cpus)
    assert list(made) == sorted(cpus)
    assert len(made) == len(cpus)
    assert bool(made) == bool(cpus)
    assert all(cpu in made for cpu in cpus)
    assert -1 not in made
    assert "0" not in made
    if cpus:
        assert made.first == min(cpus)


@given(CPUS)
def test_the_list_format_survives_a_round_trip_and_is_shortest(cpus: frozenset[int]) -> None:
    text = str(CPUSet(cpus))
    assert CPUSet.parse(text) == CPUSet(cpus)
    assert CPUSet.parse(f" {text}\n") == CPUSet(cpus)
    borders = sum(cpu - 1 not in cpus for cpu in cpus)
    assert len([region for region in text.split(",") if region]) == borders


@given(CPUS)
def test_a_mask_names_the_same_cpus_as_the_list(cpus: frozenset[int]) -> None:
    bits = sum(1 << cpu for cpu in cpus)
    words: list[str] = []
    while bits or not words:
        words.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    assert CPUSet.parse_mask(",".join(reversed(words))) == CPUSet(cpus)


@given(CPUS, CPUS)
def test_operators_are_those_of_sets(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = CPUSet(left), CPUSet(right)
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert set(a ^ b) == left ^ right
    assert (a <= b) == (left <= right)
    assert (a < b) == (left < right)
    assert (a >= b) == (left >= right)
    assert (a > b) == (left > right)
    assert a.isdisjoint(b) == left.isdisjoint(right)
    assert (a == b) == (left == right)
    assert a != b or hash(a) == hash(b)


@given(st.text(alphabet="0123456789-,:/ x\n", max_size=20))
def test_any_text_is_a_set_or_a_value_error(text: str) -> None:
    for parse in (CPUSet.parse, CPUSet.parse_mask):
        with suppress(ValueError):
            assert CPUSet.parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ""),
        ("\n", ""),
        ("(null)", ""),
        ("              (null)\n", ""),
        ("\0", ""),
        ("0", "0"),
        ("0-3,8\n", "0-3,8"),
        ("8,0-3,2-4", "0-4,8"),
        ("0-31:1/2", ",".join(str(cpu) for cpu in range(0, 32, 2))),
        ("0-9:2/4", "0-1,4-5,8-9"),
        ("0-8:2/4", "0-1,4-5,8"),
        ("65535", "65535"),
        ("1020-1030", "1020-1030"),
    ],
)
def test_lists_of_the_kernel(text: str, cpus: str) -> None:
    assert str(CPUSet.parse(text)) == cpus


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "1-",
        "-1",
        "3-1",
        "0,,1",
        "0-99999999999",
        "65536",
        "0-3:1",
        "0-3:0/2",
        "0-3:3/2",
        "0-3:1/0",
        "٣",
        "+1",
        "1_0",
    ],
)
def test_what_is_no_list_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"CPU (list|number): "):
        CPUSet.parse(text)


@pytest.mark.parametrize("text", ["g", "ff,", "123456789", "f f", "-1", ",".join(["0"] * 2049)])
def test_what_is_no_mask_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="CPU mask: "):
        CPUSet.parse_mask(text)


@pytest.mark.parametrize("cpu", [-1, 65_536, 1 << 70])
def test_numbers_out_of_bounds_are_refused(cpu: int) -> None:
    with pytest.raises(ValueError, match="0 to 65535"):
        CPUSet([cpu])


def test_a_message_shows_only_the_beginning_of_a_long_text() -> None:
    with pytest.raises(ValueError, match="CPU list") as caught:
        CPUSet.parse("x\n" * 10_000 + "y")
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_the_empty_set_has_no_first_cpu() -> None:
    with pytest.raises(ValueError, match="empty"):
        _ = CPUSet().first
