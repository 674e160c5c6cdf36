"""What the API server says when it says no."""

import time
from email.utils import formatdate

import msgspec
import pytest

from dradriver.kube import KubeError, StatusError, UnreachableError
from dradriver.kube.errors import error_of_answer, one_line, status_error


def body(**fields: object) -> bytes:
    return msgspec.json.encode({"kind": "Status", "message": "no"} | fields)


def test_all_failures_are_os_errors() -> None:
    for error in (KubeError("x"), UnreachableError("x"), StatusError(500, "", "x")):
        assert isinstance(error, OSError)
        assert str(error).endswith("x")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (StatusError(404, "NotFound", 'nodes "n1" not found'), '404 NotFound: nodes "n1" not found'),
        (StatusError(502, "", "Bad Gateway"), "502: Bad Gateway"),
        (StatusError(500, "InternalError", ""), "500 InternalError"),
    ],
)
def test_an_error_is_one_line(status: StatusError, text: str) -> None:
    assert str(status) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n b\t\tc \r\n", "a b c"),
        ("bell \x07 and escape \x1b[31m", "bell \\x07 and escape \\x1b[31m"),
        ("x" * 20, "xxxxxxxxxx..."),
        ("\ud800", "\\ud800"),
    ],
)
def test_text_of_others_becomes_one_printable_line(text: str, expected: str) -> None:
    assert one_line(text, 10 if text.startswith("xx") else 500) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b'{"message": 5}',
        b'{"message": "no", "details": 7}',
        b'{"message": "no", "details": {"causes": {"a": 1}}}',
        b'{"message": "no", "details": {"causes": [1, {"field": 3}]}, "reason": ["x"]}',
        b'{"message": "no", "details": {"retryAfterSeconds": "soon"}}',
        b"\xff\xfe",
        b"[" * 50_000,
    ],
)
def test_any_body_makes_an_error(data: bytes) -> None:
    error = error_of_answer(503, "Service Unavailable", data, None)
    assert error.code == 503
    assert error.retry_after is None
    assert error.message


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("0", 0.0),
        (" 12 ", 12.0),
        ("99999999999999999999", 30.0),
        ("-3", None),
        ("1e3", None),
        ("", None),
        ("\u0663", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("Wed, 21 Oct 99999 07:28:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, expected: float | None) -> None:
    assert error_of_answer(429, "", b"", header).retry_after == expected


def test_retry_after_as_a_date_to_come() -> None:
    seconds = error_of_answer(503, "", b"", formatdate(time.time() + 100, usegmt=True)).retry_after
    assert seconds is not None
    assert 0 < seconds <= 101


def test_the_header_comes_before_the_details() -> None:
    details = {"retryAfterSeconds": 9}
    assert error_of_answer(429, "", body(details=details), "3").retry_after == 3.0
    assert error_of_answer(429, "", body(details=details), None).retry_after == 9.0


@pytest.mark.parametrize(
    ("status", "expired"),
    [
        ({"code": 410, "reason": "Expired"}, True),
        ({"code": 410}, True),
        ({"code": 400, "reason": "Gone"}, True),
        ({"code": 504, "reason": "Timeout"}, False),
        ({}, False),
        ("nonsense", False),
    ],
)
def test_what_has_expired_is_known_by_code_and_reason(status: object, expired: bool) -> None:
    assert status_error(status).expired is expired
