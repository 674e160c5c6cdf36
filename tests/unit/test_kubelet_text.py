"""What the kubelet shows to people is one printable line of bounded length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.kubelet.text import MAX_CHARACTERS, sentence

anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=3000)


@given(anything)
def test_any_text_becomes_one_printable_line_that_can_be_sent(text: str) -> None:
    line = sentence(text)
    assert line.isprintable()
    assert len(line) <= MAX_CHARACTERS
    line.encode()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("GPU fell off the bus", "GPU fell off the bus"),
        ("first\nsecond\t third ", "first second third"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202etxet", "\\u202etxet"),
        ("\udcff", "\\udcff"),
        ("größer ✓", "größer ✓"),
    ],
)
def test_known_texts(text: str, line: str) -> None:
    assert sentence(text) == line


def test_a_long_text_says_how_long_it_was() -> None:
    line = sentence("x" * 10_000)
    assert line.startswith("xxx")
    assert line.endswith("... (10000 characters)")
    assert len(line) == MAX_CHARACTERS


def test_an_escape_that_makes_a_text_too_long_is_cut_as_well() -> None:
    assert len(sentence("\x01" * 900)) == MAX_CHARACTERS
