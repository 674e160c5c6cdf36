"""Documents: what JSON can say is read, all else is refused in one line, and no file or text takes long or hangs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.documents import MAX_DEPTH, load_documents, read_documents, read_plain


def refused(text: str | bytes) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        load_documents(text)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 300
    return message


def test_json_and_yaml_mean_the_same() -> None:
    value = {"a": [1, -2.5, True, None, "ä\u2028"], "b": {"c": "x"}}
    assert load_documents(json.dumps(value)) == [value]
    assert load_documents(yaml.safe_dump(value)) == [value]
    assert load_documents("\ufeff{}".encode()) == [{}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(text, text) for text in ("yes", "on", "No", "True", "NULL", "y", "1:30", "2001-99-99", "0x1F")],
        *[(text, text) for text in ("0644", "1_000", "+5", ".5", "5.", ".inf", ".nan", "NaN", "=", "0o17")],
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("-1", -1),
        ("1e3", 1000.0),
        ("1.50", 1.5),
        ("'1'", "1"),
        ('"true"', "true"),
        ("|-\n  5", "5"),
    ],
)
def test_a_plain_scalar_means_what_json_would_say(text: str, value: Any) -> None:
    (found,) = load_documents(f"a: {text}")
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


def test_several_documents_are_read_and_empty_ones_left_out() -> None:
    assert load_documents("---\n# nothing\n---\na: 1\n---\n---\n- b\n") == [{"a": 1}, ["b"]]
    assert load_documents("") == []


def test_aliases_are_read() -> None:
    assert load_documents("a: &x {b: 1}\nc: [*x, *x]\nd: &x 5\ne: *x") == [
        {"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}], "d": 5, "e": 5}
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n- c: 1\n  c: 2", "line 4: key 'c' stands twice"),
        ('{"a": 1,\n "a": 2}', "line 2: key 'a' stands twice"),
        ("a: 1\n2: 3", "line 2: key 2 is not a string: quote it"),
        ("~: 3", "line 1: key null is not a string: quote it"),
        ("? [a, b]\n: c", "line 1: a key that is a list or an object"),
        ("a: &x {b: 1}\nc: {<<: *x}", "line 2: merge keys (<<) are not read"),
        ("a: *x", "line 1: alias 'x' is of nothing that ends before it"),
        ("&a [*a]", "line 1: alias 'a' is of nothing that ends before it"),
        ("a: &a 1\nb: &a [*a]", "line 2: alias 'a' is of nothing that ends before it"),
        ("--- &a x\n--- [*a]", "line 2: alias 'a' is of nothing that ends before it"),
        ("a: !!int abc", "line 1: tag '!!int' is not read: write the value as JSON has it"),
        ("a: !!set {a, b}", "line 1: tag '!!set' is not read"),
        ("!!python/object/apply:os.system [x]", "line 1: tag '!!python/object/apply:os.system' is not read"),
        ("!x!y z", "line 1: not valid YAML: "),
        ("%TAG ! tag:x,2000:\n--- a", "%TAG is not read"),
        ("a:\n\t- b", "line 2: not valid YAML: "),
        ("a: 1\nb: \x00", "line 2: not valid YAML: "),
        ("a: " + "9" * 5000, "line 1: an integer of 5000 digits: at most 1000 are read"),
        ('{"a":\n' + "9" * 5000 + "}", "line 2: an integer of 5000 digits"),
        ("a: 1e999", "line 1: number '1e999' is too large"),
        ('{"a": 1e999}', "line 1: number '1e999' is too large"),
        ('{"a": ["\\ud800"]}', "'\\ud800' is not Unicode text"),
        ('{"\\udfff": 1}', "'\\udfff' is not Unicode text"),
        ("a: \ud800", "not Unicode text"),
        (b"a: \xff", "not UTF-8 text: byte 3 is 0xff"),
    ],
)
def test_what_json_cannot_say_is_refused_where_it_stands(text: str | bytes, message: str) -> None:
    assert refused(text).startswith(message)


def bomb(depth: int) -> str:
    lines = [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, depth)]
    return "\n".join(["a0: &a0 [x, x]", *lines])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        "{a: " * 1_000_000,
        "- " * 1_000_000,
        "? " * 1_000_000,
        "- ? " * 1_000_000,
        '{"a":' * 3000 + "1" + "}" * 3000,
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "- " * (MAX_DEPTH + 1) + "x",
        bomb(60),
        "a: &a {b: 1}\n" + "\n".join(f"a{n}: {{<<: [*a, *a]}}" for n in range(60)),
        "".join(f"%TAG !a{n}! tag:x\n" for n in range(200_000)) + "--- a",
    ],
    ids=range(11),
)
def test_what_is_too_deep_or_too_large_is_refused(text: str) -> None:
    assert refused(text)


@pytest.mark.parametrize("text", ["- a\n", "---\n- a\n", "---\n", "? a\n---\n", "- &a a\n- *a\n"])
def test_values_are_counted_whatever_they_are_in(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dradriver.documents.MAX_NODES", 1000)
    load_documents(text * 300)
    assert "more than 1000 values" in refused(text * 1001)


def test_values_of_json_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dradriver.documents.MAX_NODES", 1000)
    assert load_documents("[" + "1," * 900 + "1]")
    assert "more than 1000 values" in refused("[" + "1," * 1000 + "1]")


def test_what_is_just_not_too_deep_is_read() -> None:
    assert load_documents("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH)
    assert load_documents("- " * MAX_DEPTH + "x")


def test_many_keys_and_anchors_are_read() -> None:
    (found,) = load_documents("".join(f"k{n}: &a{n} {n}\n" for n in range(20_000)))
    assert len(found) == 20_000


def test_without_libyaml_the_same_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert load_documents("a: &x [yes, 1]\nb: *x") == [{"a": ["yes", 1], "b": ["yes", 1]}]
    assert refused("a: 1\nb: \x00").startswith("line 2: not valid YAML: ")
    assert refused("a: b: c").startswith("line 1: not valid YAML: ")
    assert refused("- " * 3000)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="{}[]:-&*!<>|'\"#%@`?, \n\tab01", max_size=40))
def test_any_text_is_json_or_refused(text: str) -> None:
    try:
        documents = load_documents(text)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017 - both outcomes are right
        return
    json.dumps(documents, allow_nan=False)


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_json_is_read_as_it_is(value: Any) -> None:
    assert load_documents(json.dumps([value])) == [[value]]


def test_only_a_plain_file_of_sane_size_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("a: 1")
    assert read_plain(file, 4)[0] == b"a: 1"
    assert read_documents(file, 4) == [{"a": 1}]
    with pytest.raises(ValueError, match=r"^larger than 3 bytes$"):
        read_plain(file, 3)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "zero", Path("/dev/zero")):
        with pytest.raises(ValueError, match=r"^not a plain file$"):
            read_plain(path, 4)
    # Says that it has no bytes, and has endless ones for its size.
    with pytest.raises(ValueError, match=r"^larger than 2 bytes$"):
        read_plain("/proc/self/status", 2)
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "absent", 4)


def test_links_are_followed_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "link").symlink_to("a")
    assert read_plain(tmp_path / "link", 4)[0] == b"x"
    with pytest.raises(ValueError, match="not a plain file"):
        read_plain(tmp_path / "link", 4, follow=False)
