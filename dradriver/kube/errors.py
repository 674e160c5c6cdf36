"""What a request to the API server can fail with."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from dradriver.model.text import printable

MAX_TEXT = 500
"""Characters of a message; servers and proxies write what they like."""

MAX_RETRY_AFTER_SECONDS = 30.0
"""What is obeyed of a wish to be left alone. A node makes few requests, and what it waits with may be what its pods
wait for; a longer time, or a date far away, is a proxy's or a clock's mistake more often than a server's need."""


def one_line(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text` in one line of printable characters, cut after `limit`."""
    line = printable(text)
    return line if len(line) <= limit else f"{line[:limit]}..."


class KubeError(OSError):
    """A request that had no success; `str()` is one line for people. It names neither object nor credentials."""


class UnreachableError(KubeError):
    """No answer came, or no whole one: connection, TLS, time, a body cut off, too large or not JSON.

    Whether the server has executed the request is not known.
    """


class MalformedError(UnreachableError):
    """An answer came whole and says yes, but cannot be read: asking again brings the same."""


class StoppedError(UnreachableError):
    """The caller's `stop` was set, or the client closed, before the answer was there."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that the server holds against a request.

    field    path in the object, as "spec.devices[3].attributes"; empty where the server names none
    reason   as "FieldValueInvalid"
    message  the server's words
    """

    field: str
    reason: str
    message: str


class StatusError(KubeError):
    """An answer that says no.

    code         of HTTP; an ERROR event of a watch carries the same
    reason       one word as "NotFound", "AlreadyExists", "Conflict", "Invalid", "Expired"; empty where none came
    message      the server's words, in one line
    retry_after  seconds that the server asks to be left alone, at most `MAX_RETRY_AFTER_SECONDS`; None where it does
                 not
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        causes: tuple[Cause, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        self.code = code
        self.reason = one_line(reason, 64)
        self.message = one_line(message)
        self.causes = causes
        self.retry_after = None if retry_after is None else min(retry_after, MAX_RETRY_AFTER_SECONDS)
        super().__init__(f"{f'{code} {self.reason}'.strip()}: {self.message}".removesuffix(": "))

    @property
    def too_new(self) -> bool:
        """Whether the server does not know a resource version yet: it may be one that is put back, or another."""
        return (
            any(cause.reason == "ResourceVersionTooLarge" for cause in self.causes)
            or "too large resource version" in self.message.lower()
        )

    @property
    def expired(self) -> bool:
        """Whether a resource version or a list's continuation is too old: only a new list helps."""
        return self.code == 410 or self.reason in {"Expired", "Gone"}


def status_error(status: Any, code: int = 0, retry_after: float | None = None) -> StatusError:
    """Return the error that a `Status` object describes; `code` and `retry_after` are what HTTP said."""
    fields: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
    details = fields.get("details")
    if not isinstance(details, Mapping):
        details = {}
    own = fields.get("code")
    seconds = details.get("retryAfterSeconds")
    if retry_after is None and isinstance(seconds, int | float) and seconds > 0:
        retry_after = float(seconds)
    return StatusError(
        code or (own if isinstance(own, int) else 500),
        _text(fields.get("reason")),
        _text(fields.get("message")) or "the server gives no reason",
        tuple(_causes(details.get("causes"))),
        retry_after,
    )


def error_of_answer(code: int, phrase: str, body: bytes, retry_after: str | None) -> StatusError:
    """Return the error of an answer that is no success. What proxies write as HTML is left out."""
    try:
        status = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, Mapping) or "message" not in status:
        status = {"message": phrase or "the server gives no reason"}
    return status_error(status, code, _seconds(retry_after))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _causes(causes: Any) -> list[Cause]:
    if not isinstance(causes, list):
        return []
    return [
        Cause(
            one_line(_text(cause.get("field"))),
            one_line(_text(cause.get("reason")), 64),
            one_line(_text(cause.get("message"))),
        )
        for cause in causes
        if isinstance(cause, Mapping)
    ]


def _seconds(retry_after: str | None) -> float | None:
    """Return what a Retry-After header means: a number of seconds, or a date (RFC 9110, 10.2.3)."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text[:10])
    try:
        seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds)
