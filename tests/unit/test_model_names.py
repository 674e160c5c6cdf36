"""Names are those of Kubernetes, and what comes from outside is shown in one short line."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.model import ClaimRef, shown
from dradriver.model.names import (
    check_absolute,
    check_label,
    check_pool,
    check_qualified,
    check_subdomain,
    check_uid,
    pool_name,
    short_name,
)
from dradriver.model.text import plain

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "/",
    "a b",
    "a\n",
    "\na",
    "a\0b",
    "ä",
    "\ud800",
    "-a",
    "a-",
    "x" * 10_000,
    "A;b",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_no_hostile_name_passes_any_check(value: str) -> None:
    checks = [
        partial(check_label, value, "device"),
        partial(check_subdomain, value, "driver"),
        partial(check_pool, value),
        partial(check_uid, value),
        partial(check_qualified, value, "attribute"),
    ]
    for check in checks:
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is looked at below
            check()
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 300


def test_good_names_come_back() -> None:
    assert check_label("gpu-0000-41-00-0", "device") == "gpu-0000-41-00-0"
    assert check_label("a" * 63, "device")
    assert check_subdomain("cpu.dradriver.io", "driver") == "cpu.dradriver.io"
    assert check_pool("node-1.example.com/cpu")
    assert check_uid("8F2c1e34-9f6e-4b56-8a5e-0d6f3f3f3f3f")
    assert check_qualified("resource.kubernetes.io/pcieRoot", "attribute")
    assert check_qualified("a_b", "attribute")


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_label("a" * 64, "device"),
        lambda: check_label("A", "device"),
        lambda: check_subdomain("a..b", "driver"),
        lambda: check_subdomain("a" * 254, "driver"),
        lambda: check_subdomain("a.b", "driver", 2),
        lambda: check_pool("a//b"),
        lambda: check_pool("a/" * 127),
        lambda: check_qualified("x" * 33, "attribute"),
        lambda: check_qualified("/x", "attribute"),
        lambda: check_qualified(f"{'d' * 64}/x", "attribute"),
        lambda: check_qualified("1x", "attribute"),
        lambda: check_uid("a" * 64),
    ],
)
def test_names_that_are_a_little_wrong_are_refused(check: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which one is the parameter
        check()  # type: ignore[operator]


@pytest.mark.parametrize("value", ["", "run", "/run/../etc", "/..", "/run\0"])
def test_a_path_is_absolute_and_leads_nowhere_else(value: str) -> None:
    assert check_absolute("/run/x..y", "directory") == "/run/x..y"
    said = f"an absolute path without '..' is expected, found {shown(value)}"
    for what, text in (("directory", f"directory: {said}"), ("", said)):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is looked at
            check_absolute(value, what)
        assert str(error.value) == text


def test_long_node_names_keep_their_pools_apart() -> None:
    assert pool_name("node-1", "cpu") == "node-1/cpu"
    first, second = (pool_name(f"{'n' * 251}{end}", "memory") for end in "ab")
    assert first != second
    assert len(first) <= 253
    assert check_pool(first)
    assert first.endswith("/memory")


def test_the_drivers_own_domain_is_left_out() -> None:
    assert short_name("cpu.example.com/cores", "cpu.example.com") == "cores"
    assert short_name("other.example.com/cores", "cpu.example.com") == "other.example.com/cores"


def test_values_are_shown_in_one_short_line() -> None:
    assert shown("a") == "'a'"
    assert shown("a\n\x1b[31m\u202e") == "'a\\n\\x1b[31m\\u202e'"
    assert shown("x" * 100, 3) == "'xxx'... (100 characters)"
    assert shown(5) == "'5'"
    assert shown(10**5000) == "'an integer of 16610 bits'"
    assert shown({"a": 1}) == "'an object of 1 fields'"
    endless: list[object] = []
    for _ in range(100):
        endless = [endless, endless]
    assert shown(endless) == "'a list of 2 items'"


@given(st.text() | st.integers() | st.floats() | st.none() | st.lists(st.text()))
def test_whatever_is_shown_is_printable_ascii(value: object) -> None:
    text = shown(value)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 700


def test_a_claim_reads_as_people_write_it_and_stays_one_line() -> None:
    assert str(ClaimRef("uid-1", "default", "a.b")) == "default/a.b (uid-1)"
    hostile = str(ClaimRef("u\n", "n s", "x" * 10_000))
    assert hostile.isprintable()
    assert len(hostile) < 300
    assert plain("ä") == "'\\xe4'"
